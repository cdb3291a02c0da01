# paths: keeper idle, keeper publish qos 0, keeper publish qos 1, keeper subscribes, a connection is lost and kept
# paths: a session is lost and its subscriptions come back, nobody answers, publish while offline
# paths: the oldest of the backlog are dropped, refused by a full outbox
# frames: keeper idle, keeper publish qos 0, keeper publish qos 1, keeper subscribes, a connection is lost and kept
# frames: a session is lost and its subscriptions come back, nobody answers, publish while offline
# frames: the oldest of the backlog are dropped, refused by a full outbox
"""The keeper: in its steady state, while it tries again, and when it is connected again.

The dialer allocates nothing here: its transport is always the same, and its methods are bound. One that cannot open
says so by an exception, which costs what exceptions cost; here nobody answers instead.
"""

from dialers import PollDialer
from keepers import PAYLOAD, TOPIC, Kept, prove_offline, prove_online
from pairs import Line
from prove import prove

from headwater.mqtt import packets_server
from headwater.mqtt.backlog import Backlog
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater.mqtt.server import ServerSession
from headwater.reconnect import ONLINE, PAUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

GRANTED = b"\x01"


class Server(ServerSession):
    """One that grants QoS 1 whatever is asked for, and allocates nothing for it."""

    subscriptions = 0

    def answer_filters(self, p: "Packet") -> int:
        self.subscriptions += 1
        self.tx_end = packets_server.encode_suback(self.tx, self.tx_end, self.tx_size, p.packet_id, GRANTED)
        return 0


server = Server(rx_size=512, tx_size=512, outbox_size=512, slots=4)
line = Line(server)
dialer = PollDialer(line)
client = Client(dialer, b"board", clean_start=False, slots=4)
keeper = Keeper(client)


class On(Kept):
    def __init__(self) -> None:
        Kept.__init__(self, dialer, client, keeper)
        self.answers = 0
        keeper.on_answer = self._on_answer
        keeper.on_online = keeper.on_offline = self._on_change

    def _on_answer(self, topic_filter: "Bytes", code: int) -> None:
        self.answers += 1

    def _on_change(self, what: object) -> None:
        pass

    def _settle(self) -> None:
        while keeper.waiting() or server.out() > 0:
            assert keeper.poll() == 0

    def lost(self) -> None:
        line.broken = True
        self._until(PAUSE)
        assert keeper.publish(TOPIC, PAYLOAD, 2) > 0
        self._until(ONLINE)
        self._settle()

    def forgotten(self) -> None:
        before = server.subscriptions
        answers = self.answers
        server.has_session = False
        self.lost()
        self._settle()
        self.idle()
        assert server.subscriptions == before + 2
        assert self.answers == answers + 2

    def subscribes(self) -> None:
        answers = self.answers
        assert keeper.subscribe(b"all/#", 1) == 0
        self.idle()
        self._settle()
        self.idle()
        assert self.answers == answers + 1

    def dropped(self) -> None:
        before = backlog.dropped
        for _ in range(8):
            assert keeper.publish(TOPIC, PAYLOAD, 1) == 0
        assert keeper.publish(TOPIC, PAYLOAD, 0) == 0
        assert backlog.dropped > before


on = On()
keeper.subscribe(b"board/commands", 1)
keeper.subscribe(b"all/#", 2)
on._start()
prove_online(on)
prove("keeper subscribes", on.subscribes)
prove("a connection is lost and kept", on.lost)
prove("a session is lost and its subscriptions come back", on.forgotten)
line.broken = dialer.slow = True
on._until(PAUSE)
prove_offline(on)
backlog = keeper.backlog = Backlog(200, 8)
prove("the oldest of the backlog are dropped", on.dropped)
