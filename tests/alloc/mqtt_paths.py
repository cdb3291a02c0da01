# paths: publish qos 0, publish qos 1, publish qos 2, receive qos 0, receive qos 1, receive qos 2, poll
# paths: keep-alive, large message to a sink, large message skipped, acknowledged by the application
# paths: session refusals, publish again after a cut, publish again after a cut at PUBREL
# paths: client publish qos 0, client window of qos 1, client publish qos 2, client receive qos 2
# paths: client against a full transport, a repetition is answered
# frames: publish qos 0, publish qos 1, publish qos 2, receive qos 0, receive qos 1, receive qos 2, poll
# frames: keep-alive, large message to a sink, large message skipped, acknowledged by the application
# frames: session refusals, publish again after a cut, publish again after a cut at PUBREL
# frames: client publish qos 0, client window of qos 1, client publish qos 2, client receive qos 2
# frames: client against a full transport, a repetition is answered
"""A client and a server back to back over memory: every path that runs after construction, at every QoS."""

from prove import prove

from headwater.client import Client
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.decode import Packet
    from headwater.mqtt.endpoint import Endpoint
    from headwater.types import Bytes

TOPIC = b"board/telemetry"
PAYLOAD = b"0123456789abcdef"
LARGE = bytes(1000)


class Counter:
    def __init__(self) -> None:
        self.messages = 0
        self.delivered = 0
        self.pieces = 0

    def on_message(self, message: "Packet") -> None:
        self.messages += 1

    def on_delivered(self, packet_id: int) -> None:
        self.delivered += 1

    def open(self, message: "Packet", size: int) -> bool:
        return True

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        self.pieces += n

    def close(self, complete: bool) -> None:
        if complete:
            self.messages += 1


def move(source: "Endpoint", target: "Endpoint") -> bool:
    """Carry what one end has to send to the other; whether there was anything."""
    n = source.out()
    if n <= 0:
        if target.stalled:
            assert target.feed(0) == 0
        return False
    room = target.rx.window()
    if n > room:
        n = room
    view = target.rx.view
    buf = source.out_buf
    at = source.out_at
    for i in range(n):
        view[i] = buf[at + i]
    source.sent(n)
    assert target.feed(n) == 0
    return True


class Pair:
    """Two ends and what each has got."""

    def __init__(self) -> None:
        self.now = 0
        self.client = ClientSession(
            b"board", 10, False, rx_size=256, tx_size=128, outbox_size=2048, slots=4, window=4
        )
        self.server = ServerSession(rx_size=256, tx_size=128, outbox_size=2048, slots=4, window=4)
        self.up = Counter()
        self.down = Counter()
        self.server.on_message = self.up.on_message
        self.client.on_delivered = self.up.on_delivered
        self.client.on_message = self.down.on_message
        self.server.on_delivered = self.down.on_delivered
        self.connect()

    def connect(self) -> None:
        self.server.listen(self.now)
        assert self.client.connect(self.now) == 0
        self.settle()

    def settle(self) -> None:
        busy = True
        while busy:
            busy = move(self.client, self.server)
            if move(self.server, self.client):
                busy = True

    def lose(self) -> None:
        self.client.lost()
        self.server.lost()


pair = Pair()


def publish(qos: int) -> None:
    before = pair.up.messages
    assert pair.client.publish(TOPIC, PAYLOAD, qos) >= 0
    pair.settle()
    assert pair.up.messages == before + 1
    assert pair.client.outbox.count == 0


def receive(qos: int) -> None:
    before = pair.down.messages
    assert pair.server.publish(TOPIC, PAYLOAD, qos) >= 0
    pair.settle()
    assert pair.down.messages == before + 1
    assert pair.server.outbox.count == 0


def publish_0() -> None:
    publish(0)


def publish_1() -> None:
    publish(1)


def publish_2() -> None:
    publish(2)


def receive_0() -> None:
    receive(0)


def receive_1() -> None:
    receive(1)


def receive_2() -> None:
    receive(2)


def poll() -> None:
    pair.now += 1
    assert pair.client.poll(pair.now) == 0
    assert pair.server.poll(pair.now) == 0


def keep_alive() -> None:
    pair.now += 8000
    assert pair.client.poll(pair.now) == 0
    assert pair.client.out() == 2
    pair.server.poll(pair.now)
    pair.settle()


def to_sink() -> None:
    pair.client.sink = pair.down
    before = pair.down.pieces
    assert pair.server.publish(TOPIC, LARGE, 2) > 0
    pair.settle()
    assert pair.down.pieces == before + 1000


def skipped() -> None:
    pair.client.sink = None
    before = pair.client.skipped
    assert pair.server.publish(TOPIC, LARGE, 1) > 0
    pair.settle()
    assert pair.client.skipped == before + 1
    assert pair.server.outbox.count == 0


def acknowledged_by_application() -> None:
    client = pair.client
    client.auto_ack = False
    packet_id = pair.server.publish(TOPIC, PAYLOAD, 2)
    pair.settle()
    assert client.acknowledge(packet_id, 2, client.epoch) == 0
    pair.settle()
    packet_id = pair.server.publish(TOPIC, PAYLOAD, 1)
    pair.settle()
    assert client.acknowledge(packet_id, 1, client.epoch) == 0
    client.auto_ack = True
    pair.settle()
    assert pair.server.outbox.count == 0


def refusals() -> None:
    client = pair.client
    assert client.publish(TOPIC, PAYLOAD, 3) < 0
    assert client.publish(b"a/#", PAYLOAD, 1) < 0
    assert client.publish(TOPIC, LARGE, 0) < 0
    while client.publish(TOPIC, PAYLOAD, 0) == 0:
        pass
    while client.publish(TOPIC, PAYLOAD, 1) > 0:
        pass
    pair.settle()
    assert client.outbox.count == 0


def again() -> None:
    before = pair.up.messages
    assert pair.client.publish(TOPIC, PAYLOAD, 2) > 0
    n = pair.client.out()
    # Half of it leaves before the cut: the repetition carries DUP, and arrives once.
    pair.client.sent(n // 2)
    pair.lose()
    pair.connect()
    assert pair.up.messages == before + 1
    assert pair.client.outbox.count == 0


def again_at_pubrel() -> None:
    before = pair.up.messages
    assert pair.client.publish(TOPIC, PAYLOAD, 2) > 0
    move(pair.client, pair.server)
    move(pair.server, pair.client)
    # PUBREC has arrived, PUBREL waits.
    pair.lose()
    pair.connect()
    assert pair.up.messages == before + 1
    assert pair.client.outbox.count == 0


def repetition() -> None:
    before = pair.server.duplicates
    assert pair.client.publish(TOPIC, PAYLOAD, 2) > 0
    move(pair.client, pair.server)
    pair.lose()
    pair.connect()
    assert pair.server.duplicates == before + 1
    assert pair.client.outbox.count == 0


prove("publish qos 0", publish_0)
prove("publish qos 1", publish_1)
prove("publish qos 2", publish_2)
prove("receive qos 0", receive_0)
prove("receive qos 1", receive_1)
prove("receive qos 2", receive_2)
prove("poll", poll)
prove("keep-alive", keep_alive)
prove("large message to a sink", to_sink, 20)
prove("large message skipped", skipped, 20)
prove("acknowledged by the application", acknowledged_by_application)
prove("session refusals", refusals)
prove("publish again after a cut", again)
prove("publish again after a cut at PUBREL", again_at_pubrel)
prove("a repetition is answered", repetition)


class Line:
    """A transport to a server session that answers at once; ``room`` is how much it takes."""

    def __init__(self) -> None:
        self.server = ServerSession(rx_size=2048, tx_size=512, outbox_size=512, slots=4)
        self.room = 1 << 20

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
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

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        if n > self.room:
            n = self.room
        if n == 0:
            return None
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


class LineDialer:
    def __init__(self, line: Line):
        self.line = line
        self.now = 0

    def open(self) -> Line:
        self.line.server.listen(0)
        return self.line

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        self.now += ms


line = Line()
client = Client(LineDialer(line), b"board", clean=False, keep_alive=0)
client.connect()
got = Counter()
client.on_message = got.on_message


def settle() -> None:
    while client.session.outbox.count or line.server.out() > 0:
        assert client.poll() == 0


def client_publish_0() -> None:
    assert client.publish(TOPIC, PAYLOAD) == 0


def client_window() -> None:
    while client.publish(TOPIC, PAYLOAD, 1) > 0:
        pass
    settle()


def client_publish_2() -> None:
    assert client.publish(TOPIC, PAYLOAD, 2, True) > 0
    settle()


def client_receive_2() -> None:
    before = got.messages
    assert line.server.publish(TOPIC, PAYLOAD, 2) > 0
    settle()
    assert client.poll() == 0
    assert got.messages == before + 1


def client_full() -> None:
    line.room = 5
    assert client.publish(TOPIC, PAYLOAD) == 0
    line.room = 0
    while client.publish(TOPIC, PAYLOAD) == 0:
        pass
    line.room = 1 << 20
    assert client.poll() == 0
    assert client.session.out() == 0


prove("client publish qos 0", client_publish_0)
prove("client window of qos 1", client_window)
prove("client publish qos 2", client_publish_2)
prove("client receive qos 2", client_receive_2)
prove("client against a full transport", client_full)
