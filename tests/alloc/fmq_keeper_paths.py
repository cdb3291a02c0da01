# paths: keeper idle, keeper publish qos 0, keeper publish qos 1, keeper publish with tags, keeper consumes
# paths: keeper while paused, nobody answers, publish while offline, refused by a full outbox
# frames: keeper idle, keeper publish qos 0, keeper publish qos 1, keeper publish with tags, keeper consumes
# frames: nobody answers, publish while offline, refused by a full outbox
"""FMQ's keeper: in its steady state, and while it tries again. Connecting, and what is asked for then, allocate."""

from dialers import PollDialer
from fmq_line import SUBSCRIPTION, TIME, Line, made
from keepers import PAYLOAD, TOPIC, Kept, prove_offline, prove_online
from prove import prove

from headwater import errors
from headwater.fmq.client import Client
from headwater.fmq.frames import tag_list
from headwater.fmq.keeper import Keeper
from headwater.reconnect import PAUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame

TAGS = tag_list((b"eu",))
CONSUMED = made(0xB0, b"\x31\x07\x00" + TIME, SUBSCRIPTION, None, (), PAYLOAD)


line = Line()
dialer = PollDialer(line)
client = Client(dialer, b"board", clean_start=False, slots=4)
keeper = Keeper(client)


class On(Kept):
    def __init__(self) -> None:
        Kept.__init__(self, dialer, client, keeper)
        self.consumed = 0
        client.on_message = self._on_message

    def _on_message(self, f: "Frame") -> None:
        self.consumed += len(keeper.topic_of(client.session.source))

    def tagged(self) -> None:
        assert keeper.publish(TOPIC, PAYLOAD, 2, True, TAGS) > 0
        self._settle()

    def consumes(self) -> None:
        before = self.consumed
        answered = line.answers
        line.give(CONSUMED)
        self._settle()
        assert self.consumed == before + 4
        assert line.answers == answered + 1

    def paused(self) -> None:
        """The clock stands still: the pause does not end."""
        assert keeper.poll() == 0
        assert keeper.state == PAUSE


on = On()
keeper.consume(b"jobs", b"workers")
on._start()
prove_online(on)
prove("keeper publish with tags", on.tagged)
prove("keeper consumes", on.consumes)

dialer.slow = True
client.close()
client.status = errors.E_CLOSED
assert keeper.poll() == 0
while keeper.state != PAUSE or not keeper.pause_ms:
    dialer.now += 100
    assert keeper.poll() == 0
prove("keeper while paused", on.paused)
prove_offline(on)
