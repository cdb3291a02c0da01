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

from prove import prove

from headwater import errors
from headwater.mqtt import packets_server
from headwater.mqtt.backlog import Backlog
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import CONNECTING, ONLINE, PAUSE, Keeper
from headwater.mqtt.server import ServerSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

TOPIC = b"board/telemetry"
PAYLOAD = b"0123456789abcdef"
GRANTED = b"\x01"


class Server(ServerSession):
    """One that grants QoS 1 whatever is asked for, and allocates nothing for it."""

    subscriptions = 0

    def answer_filters(self, p: "Packet") -> int:
        self.subscriptions += 1
        self.tx_end = packets_server.encode_suback(self.tx, self.tx_end, self.tx_size, p.packet_id, GRANTED)
        return 0


class Site:
    """A dialer and its transport in one, to a server session that answers at once."""

    def __init__(self) -> None:
        self.server = Server(rx_size=512, tx_size=512, outbox_size=512, slots=4)
        self.readinto = self.read_at_once
        self.write = self.write_at_once
        self.now = 0
        self.slow = False
        self.broken = False

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        self.now += ms

    def ready(self) -> bool:
        return not self.slow

    def hang_up(self) -> None:
        pass

    def open(self) -> "Site":
        self.broken = False
        self.server.listen(self.now)
        return self

    def read_at_once(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        if self.broken:
            return 0
        server = self.server
        k = server.out()
        if k <= 0:
            return None
        if k > n:
            k = n
        source = server.out_buf
        at = server.out_at
        for i in range(k):
            buf[i] = source[at + i]
        server.sent(k)
        return k

    def write_at_once(self, buf: "Bytes", off: int, n: int) -> "int | None":
        server = self.server
        k = server.rx.window()
        if n > k:
            n = k
        view = server.rx.view
        for i in range(n):
            view[i] = buf[off + i]
        assert server.feed(n) == 0
        return n

    def close(self) -> None:
        self.server.lost()


class Count:
    def __init__(self) -> None:
        self.delivered = 0
        self.answers = 0
        self.changes = 0

    def on_delivered(self, packet_id: int) -> None:
        self.delivered += 1

    def on_answer(self, topic_filter: "Bytes", code: int) -> None:
        self.answers += 1

    def on_change(self, what: object) -> None:
        self.changes += 1


site = Site()
client = Client(site, b"board", clean_start=False, slots=4)
keeper = Keeper(client)
count = Count()
keeper.on_delivered = count.on_delivered
keeper.on_answer = count.on_answer
keeper.on_online = keeper.on_offline = count.on_change
keeper.subscribe(b"board/commands", 1)
keeper.subscribe(b"all/#", 2)


def until(state: int) -> None:
    while keeper.state != state:
        assert keeper.poll() == 0
        site.now += 100


def settle() -> None:
    while keeper.waiting() or site.server.out() > 0:
        assert keeper.poll() == 0


keeper.start()
until(ONLINE)
settle()


def idle() -> None:
    site.now += 1000
    assert keeper.poll() == 0


def publish_0() -> None:
    assert keeper.publish(TOPIC, PAYLOAD) == 0


def publish_1() -> None:
    before = count.delivered
    assert keeper.publish(TOPIC, PAYLOAD, 1) > 0
    settle()
    assert count.delivered == before + 1


def lost() -> None:
    site.broken = True
    until(PAUSE)
    assert keeper.publish(TOPIC, PAYLOAD, 2) > 0
    until(ONLINE)
    settle()


def forgotten() -> None:
    before = site.server.subscriptions
    answers = count.answers
    site.server.has_session = False
    lost()
    settle()
    idle()
    assert site.server.subscriptions == before + 2
    assert count.answers == answers + 2


def subscribes() -> None:
    answers = count.answers
    assert keeper.subscribe(b"all/#", 1) == 0
    idle()
    settle()
    idle()
    assert count.answers == answers + 1


def nobody() -> None:
    """An attempt that comes to nothing, and the pause behind it."""
    until(CONNECTING)
    until(PAUSE)


prove("keeper idle", idle)
prove("keeper publish qos 0", publish_0)
prove("keeper publish qos 1", publish_1)
prove("keeper subscribes", subscribes)
prove("a connection is lost and kept", lost)
prove("a session is lost and its subscriptions come back", forgotten)

site.broken = site.slow = True
until(PAUSE)
prove("nobody answers", nobody, 20)


def offline() -> None:
    assert keeper.publish(TOPIC, PAYLOAD) == errors.E_OFFLINE
    assert keeper.publish(TOPIC, PAYLOAD, 1) > 0
    client.session.outbox.clear()


def full() -> None:
    while keeper.publish(TOPIC, PAYLOAD, 1) > 0:
        pass
    assert keeper.publish(TOPIC, PAYLOAD, 1) == errors.E_WINDOW


prove("publish while offline", offline)
prove("refused by a full outbox", full)
backlog = keeper.backlog = Backlog(200, 8)


def dropped() -> None:
    before = backlog.dropped
    for _ in range(8):
        assert keeper.publish(TOPIC, PAYLOAD, 1) == 0
    assert keeper.publish(TOPIC, PAYLOAD, 0) == 0
    assert backlog.dropped > before


prove("the oldest of the backlog are dropped", dropped)
