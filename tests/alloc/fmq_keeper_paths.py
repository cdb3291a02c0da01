# paths: keeper idle, keeper publish qos 0, keeper publish qos 1, keeper publish with tags, keeper consumes
# paths: keeper while paused, nobody answers, publish while offline, refused by a full outbox
# frames: keeper idle, keeper publish qos 0, keeper publish qos 1, keeper publish with tags, keeper consumes
# frames: nobody answers, publish while offline, refused by a full outbox
"""FMQ's keeper: in its steady state, and while it tries again. Connecting, and what is asked for then, allocate."""

from fmq_line import SUBSCRIPTION, TIME, Line, made
from prove import prove

from headwater import errors
from headwater.fmq.client import Client
from headwater.fmq.frames import tag_list
from headwater.fmq.keeper import CONNECTING, ONLINE, PAUSE, Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame

TOPIC = b"board/telemetry"
PAYLOAD = b"0123456789abcdef"
TAGS = tag_list((b"eu",))
CONSUMED = made(0xB0, b"\x31\x07\x00" + TIME, SUBSCRIPTION, None, (), PAYLOAD)


class Site(Line):
    """A dialer and its transport in one; ``slow``: it does not open."""

    now = 0
    slow = False

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        self.now += ms

    def ready(self) -> bool:
        return not self.slow

    def hang_up(self) -> None:
        pass

    def open(self) -> "Site":
        return self


class Count:
    def __init__(self) -> None:
        self.delivered = 0
        self.messages = 0
        self.consumed = 0

    def on_delivered(self, number: int) -> None:
        self.delivered += 1

    def on_message(self, f: "Frame") -> None:
        self.messages += 1
        self.consumed += len(keeper.topic_of(client.session.source))


site = Site()
client = Client(site, b"board", clean_start=False, slots=4)
keeper = Keeper(client)
count = Count()
keeper.on_delivered = count.on_delivered
client.on_message = count.on_message
keeper.consume(b"jobs", b"workers")
keeper.start()


def until(state: int) -> None:
    while keeper.state != state:
        assert keeper.poll() == 0
        site.now += 100


def settle() -> None:
    for _ in range(4):
        assert keeper.poll() == 0
    assert keeper.waiting() == 0


until(ONLINE)
settle()


def idle() -> None:
    site.now += 1000
    assert keeper.poll() == 0


def publish_0() -> None:
    assert keeper.publish(TOPIC, PAYLOAD) == 0
    settle()


def publish_1() -> None:
    before = count.delivered
    assert keeper.publish(TOPIC, PAYLOAD, 1) > 0
    settle()
    assert count.delivered == before + 1


def tagged() -> None:
    assert keeper.publish(TOPIC, PAYLOAD, 2, True, TAGS) > 0
    settle()


def consumes() -> None:
    before = count.consumed
    answered = site.answers
    site.give(CONSUMED)
    settle()
    assert count.consumed == before + 4
    assert site.answers == answered + 1


prove("keeper idle", idle)
prove("keeper publish qos 0", publish_0)
prove("keeper publish qos 1", publish_1)
prove("keeper publish with tags", tagged)
prove("keeper consumes", consumes)

site.slow = True
client.close()
client.status = errors.E_CLOSED
assert keeper.poll() == 0
while keeper.state != PAUSE or not keeper.pause_ms:
    site.now += 100
    assert keeper.poll() == 0


def paused() -> None:
    """The clock stands still: the pause does not end."""
    assert keeper.poll() == 0
    assert keeper.state == PAUSE


def nobody() -> None:
    """An attempt that comes to nothing, and the pause behind it."""
    until(CONNECTING)
    until(PAUSE)


def offline() -> None:
    assert keeper.publish(TOPIC, PAYLOAD) == errors.E_OFFLINE
    assert keeper.publish(TOPIC, PAYLOAD, 1) > 0
    client.session.outbox.clear()


def full() -> None:
    while keeper.publish(TOPIC, PAYLOAD, 1) > 0:
        pass
    assert keeper.publish(TOPIC, PAYLOAD, 1) == errors.E_WINDOW


prove("keeper while paused", paused)
prove("nobody answers", nobody, 20)
prove("publish while offline", offline)
prove("refused by a full outbox", full)
