"""A client and a server back to back over memory, of any version: every path that runs after construction."""

from dialers import Dialer
from prove import prove

from headwater.mqtt.client import Client
from headwater.mqtt.manual_ack import ManualAck
from headwater.streaming import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.server import ServerSession
    from headwater.mqtt.session import ClientSession, Session
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


def move(source: "Session", target: "Session") -> bool:
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
    """Two ends and what each has got; the methods without an underscore are the paths to be proved."""

    def __init__(self, client: "ClientSession", server: "ServerSession") -> None:
        self.now = 0
        self.client = client
        self.server = server
        self.up = Counter()
        self.down = Counter()
        self.server.on_message = self.up.on_message
        self.client.on_delivered = self.up.on_delivered
        self.client.on_message = self.down.on_message
        self.server.on_delivered = self.down.on_delivered
        self.streaming = Stream(self.down)
        self._connect()

    def _connect(self) -> None:
        self.server.listen(self.now)
        assert self.client.connect(self.now) == 0
        self._settle()

    def _settle(self) -> None:
        busy = True
        while busy:
            busy = move(self.client, self.server)
            if move(self.server, self.client):
                busy = True

    def _lose(self) -> None:
        self.client.lost()
        self.server.lost()

    def publish(self, qos: int) -> None:
        before = self.up.messages
        assert self.client.publish(TOPIC, PAYLOAD, qos) >= 0
        self._settle()
        assert self.up.messages == before + 1
        assert self.client.outbox.count == 0

    def receive(self, qos: int) -> None:
        before = self.down.messages
        assert self.server.publish(TOPIC, PAYLOAD, qos) >= 0
        self._settle()
        assert self.down.messages == before + 1
        assert self.server.outbox.count == 0

    def poll(self) -> None:
        self.now += 1
        assert self.client.poll(self.now) == 0
        assert self.server.poll(self.now) == 0

    def keep_alive(self) -> None:
        self.now += 8000
        assert self.client.poll(self.now) == 0
        assert self.client.out() == 2
        self.server.poll(self.now)
        self._settle()

    def to_sink(self) -> None:
        self.client.stream = self.streaming
        before = self.down.pieces
        assert self.server.publish(TOPIC, LARGE, 2) > 0
        self._settle()
        assert self.down.pieces == before + 1000

    def skipped(self) -> None:
        self.client.stream = None
        before = self.client.skipped
        assert self.server.publish(TOPIC, LARGE, 1) > 0
        self._settle()
        assert self.client.skipped == before + 1
        assert self.server.outbox.count == 0

    def _by_hand(self) -> "ClientSession":
        """The client, which leaves acknowledgements to the application; the part is attached by the first call."""
        if self.client.acks is None:
            ManualAck(self.client)
        self.client.acks.automatic = False
        return self.client

    def acknowledged(self) -> None:
        client = self._by_hand()
        packet_id = self.server.publish(TOPIC, PAYLOAD, 2)
        self._settle()
        assert client.acks.acknowledge(packet_id, 2, client.epoch) == 0
        self._settle()
        packet_id = self.server.publish(TOPIC, PAYLOAD, 1)
        self._settle()
        assert client.acks.acknowledge(packet_id, 1, client.epoch) == 0
        client.acks.automatic = True
        self._settle()
        assert self.server.outbox.count == 0

    def refusals(self) -> None:
        client = self.client
        assert client.publish(TOPIC, PAYLOAD, 3) < 0
        assert client.publish(b"a/#", PAYLOAD, 1) < 0
        assert client.publish(TOPIC, LARGE, 0) < 0
        while client.publish(TOPIC, PAYLOAD, 0) == 0:
            pass
        while client.publish(TOPIC, PAYLOAD, 1) > 0:
            pass
        self._settle()
        assert client.outbox.count == 0

    def again(self) -> None:
        before = self.up.messages
        assert self.client.publish(TOPIC, PAYLOAD, 2) > 0
        n = self.client.out()
        # Half of it leaves before the cut: the repetition carries DUP, and arrives once.
        self.client.sent(n // 2)
        self._lose()
        self._connect()
        assert self.up.messages == before + 1
        assert self.client.outbox.count == 0

    def again_at_pubrel(self) -> None:
        before = self.up.messages
        assert self.client.publish(TOPIC, PAYLOAD, 2) > 0
        move(self.client, self.server)
        move(self.server, self.client)
        # PUBREC has arrived, PUBREL waits.
        self._lose()
        self._connect()
        assert self.up.messages == before + 1
        assert self.client.outbox.count == 0

    def repetition(self) -> None:
        before = self.server.duplicates
        assert self.client.publish(TOPIC, PAYLOAD, 2) > 0
        move(self.client, self.server)
        self._lose()
        self._connect()
        assert self.server.duplicates == before + 1
        assert self.client.outbox.count == 0


class Line:
    """A transport to a server session that answers at once; ``room`` is how much it takes; ``broken``: it is closed."""

    def __init__(self, server: "ServerSession") -> None:
        self.server = server
        self.room = 1 << 20
        self.broken = False
        # Bound once, because binding allocates.
        self.readinto = self._read
        self.write = self._write

    def begin(self, now: int) -> None:
        self.broken = False
        self.server.listen(now)

    def _read(self, buf: "bytearray | memoryview", n: int) -> "int | None":
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

    def _write(self, buf: "Bytes", off: int, n: int) -> "int | None":
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


class OnLine:
    """A client over a line."""

    def __init__(self, session: "ClientSession", server: "ServerSession") -> None:
        self.line = Line(server)
        self.client = Client(Dialer(self.line), session=session)
        self.client.connect()
        self.got = Counter()
        self.client.on_message = self.got.on_message

    def _settle(self) -> None:
        while self.client.session.outbox.count or self.line.server.out() > 0:
            assert self.client.poll() == 0

    def publish_0(self) -> None:
        assert self.client.publish(TOPIC, PAYLOAD) == 0

    def window(self) -> None:
        while self.client.publish(TOPIC, PAYLOAD, 1) > 0:
            pass
        self._settle()

    def publish_2(self) -> None:
        assert self.client.publish(TOPIC, PAYLOAD, 2, True) > 0
        self._settle()

    def receive_2(self) -> None:
        before = self.got.messages
        assert self.line.server.publish(TOPIC, PAYLOAD, 2) > 0
        self._settle()
        assert self.client.poll() == 0
        assert self.got.messages == before + 1

    def full(self) -> None:
        self.line.room = 5
        assert self.client.publish(TOPIC, PAYLOAD) == 0
        self.line.room = 0
        while self.client.publish(TOPIC, PAYLOAD) == 0:
            pass
        self.line.room = 1 << 20
        assert self.client.poll() == 0
        assert self.client.session.out() == 0


def prove_client(on: OnLine) -> None:
    prove("client publish qos 0", on.publish_0)
    prove("client window of qos 1", on.window)
    prove("client publish qos 2", on.publish_2)
    prove("client receive qos 2", on.receive_2)
    prove("client against a full transport", on.full)
