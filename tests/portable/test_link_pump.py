# heap: 512K
"""The link's transports: over raw lines that take and give little, that break; and MQTT over them, on a bad line."""

from line import Line, Rng

from headwater.client import Client
from headwater.errors import E_AGAIN, E_CLOSED, E_OFFLINE, E_WINDOW, HeadwaterError
from headwater.link.link import Link
from headwater.link.pump import Pump, Stream
from headwater.link.transitions import ENDED, OPENING, UP, WHY_LINE
from headwater.mqtt.server import ServerSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode import Packet
    from headwater.types import Bytes


class Raw:
    """One end of a line that takes and gives up to ``most`` bytes at a time; ``broken`` is raised, ``ended``: 0."""

    def __init__(self, rng: Rng, incoming: Line, outgoing: Line, most: int = 1000):
        self.rng = rng
        self.incoming = incoming
        self.outgoing = outgoing
        self.most = most
        self.broken: OSError | None = None
        self.ended = False

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        if self.broken:
            raise self.broken
        data = self.incoming.take(min(n, self.rng.below(self.most + 1)))
        buf[: len(data)] = data
        return len(data) or (0 if self.ended else None)

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        if self.broken:
            raise self.broken
        k = min(n, self.rng.below(self.most + 1))
        self.outgoing.put(bytes(buf[off : off + k]))
        return k or None

    def close(self) -> None:
        pass


class Pair:
    """Two pumps on one line, and the clock."""

    def __init__(self, seed: int = 1, most: int = 1000, **faults: int):
        self.rng = Rng(seed)
        self.now = 0
        self.lines = [Line(self.rng, **faults), Line(self.rng, **faults)]
        self.raws = [Raw(self.rng, self.lines[1 - i], self.lines[i], most) for i in (0, 1)]
        self.pumps = [Pump(self.raws[i], Link(10 + i), self.ticks_ms, 50) for i in (0, 1)]
        self.streams = [Stream(pump, pump.link.channels[0]) for pump in self.pumps]

    def ticks_ms(self) -> int:
        return self.now & 0x3FFFFFFF

    def pump(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.now += 5
            for pump in self.pumps:
                pump.pump()

    def up(self) -> None:
        for stream in self.streams:
            stream.channel.open()
        while self.streams[0].channel.state != UP or self.streams[1].channel.state != UP:
            self.pump()
            assert self.now < 20000


def _raised(call: "Callable[[], object]") -> "OSError | None":
    try:
        call()
    except OSError as e:
        return e
    return None


def test_a_line_that_takes_and_gives_a_few_bytes() -> None:
    for most in (1, 3, 40):
        pair = Pair(most=most)
        pair.up()
        data = bytes([i & 0xFF for i in range(800)])
        got = b""
        sent = 0
        buf = bytearray(90)
        while len(got) < len(data):
            pair.now += 5
            if sent < len(data):
                sent += pair.streams[0].write(data, sent, len(data) - sent) or 0
            pair.pumps[0].pump()
            n = pair.streams[1].readinto(buf, 90)
            got += bytes(buf[: n or 0])
            assert pair.now < 200000
        assert got == data
        assert pair.pumps[1].link.damaged == 0


def test_a_broken_line_is_reported_behind_what_had_come() -> None:
    for ended in (False, True):
        pair = Pair()
        pair.up()
        a, b = pair.streams
        buf = bytearray(50)
        assert a.write(b"x" * 60, 0, 60) == 60
        pair.pump(20)
        raw = pair.raws[1]
        if ended:
            raw.ended = True
        else:
            raw.broken = OSError(5)
        assert b.readinto(buf, 50) == 50
        assert pair.pumps[1].error is not None
        assert b.readinto(buf, 50) == 10
        for _ in range(3):
            error = _raised(lambda: b.readinto(buf, 50))  # noqa: B023 - called at once
            assert error is pair.pumps[1].error
        assert b.channel.state == ENDED
        assert b.channel.why == WHY_LINE
        assert _raised(lambda: b.write(buf, 0, 1))  # noqa: B023 - called at once
        # The line is there again: the next stream.
        raw.broken = None
        raw.ended = False
        pair.pumps[1].attach(raw)
        assert pair.pumps[1].error is None
        b.channel.open()
        while a.readinto(buf, 50) != 0:
            pair.pump()
        a.channel.open()
        pair.pump(100)
        assert a.write(b"again", 0, 5) == 5
        pair.pump(20)
        assert b.readinto(buf, 50) == 5


def test_a_line_that_breaks_before_the_stream_is_up() -> None:
    pair = Pair()
    pair.raws[0].broken = OSError(19)
    stream = pair.streams[0]
    stream.channel.open()
    error = _raised(lambda: stream.readinto(bytearray(5), 5))
    assert error is pair.raws[0].broken
    assert stream.channel.state == OPENING


def test_another_line_ends_the_stream_there_is() -> None:
    pair = Pair()
    pair.up()
    pair.pumps[0].attach(pair.raws[0])
    stream = pair.streams[0]
    assert stream.channel.state == ENDED
    assert stream.channel.why == WHY_LINE
    assert stream.readinto(bytearray(5), 5) == 0


def test_close_reaches_the_other_end_when_it_is_pumped_on() -> None:
    pair = Pair()
    pair.up()
    a, b = pair.streams
    assert a.write(b"the end", 0, 7) == 7
    a.close()
    assert a.channel.waiting() == 2
    while a.channel.waiting():
        pair.pump()
    buf = bytearray(20)
    assert b.readinto(buf, 20) == 7
    assert b.readinto(buf, 20) == 0


class Dialer:
    """A dialer over the first end; while it waits, time goes by and the server's end does its work."""

    def __init__(self, pair: Pair, server: "Server"):
        self._pair = pair
        self._server = server
        self.ticks_ms = pair.ticks_ms

    def open(self) -> Stream:
        stream = self._pair.streams[0]
        stream.channel.open()
        return stream

    def wait(self, ms: int) -> None:
        self._pair.now += min(ms, 5)
        self._server.work()


class Server:
    """What a gateway does: MQTT's server end over the stream, opened anew whenever it ends."""

    def __init__(self, pair: Pair):
        self._pair = pair
        self.session = ServerSession(1024, 1024)
        self.session.on_message = self._message
        self.messages: list[bytes] = []
        self._stream = pair.streams[1]
        self._open()

    def _message(self, message: "Packet") -> None:
        self.messages.append(message.payload_bytes())

    def _open(self) -> None:
        self._stream.channel.open()
        self.session.listen(self._pair.ticks_ms())

    def power_cut(self) -> None:
        """The gateway is reset; its session is on disk."""
        pair = self._pair
        self.session.lost()
        pair.pumps[1] = Pump(pair.raws[1], Link(1000 + pair.now % 5000), pair.ticks_ms, 50)
        pair.streams[1] = self._stream = Stream(pair.pumps[1], pair.pumps[1].link.channels[0])
        self._open()

    def work(self) -> None:
        session = self.session
        rx = session.rx
        room = rx.window()
        n = self._stream.readinto(rx.view, room)
        if n == 0:
            session.lost()
            self._open()
            return
        assert session.feed(n or 0) == 0
        assert session.poll(self._pair.ticks_ms()) == 0
        while True:
            n = session.out()
            if n <= 0 or self._stream.channel.state != UP:
                return
            k = self._stream.write(session.out_buf, session.out_at, n)
            if not k:
                return
            session.sent(k)


def _publish_all(pair: Pair, qos: int, cuts: "tuple[int, ...]") -> "tuple[list[bytes], list[bytes]]":
    """Publish 40 messages, connecting again whenever the connection ends: (what was handed in, what the server has)."""
    server = Server(pair)
    client = Client(Dialer(pair, server), b"board", clean=False, keep_alive=0)
    handed: list[bytes] = []
    while len(handed) < 40 or client.session.outbox.count:
        assert pair.now < 600000
        if not client.connected:
            try:
                client.connect()
            except (HeadwaterError, OSError):
                continue
        if len(handed) < 40:
            payload = b"message %d " % len(handed) + b"\x00\x03\x04\r" * 20
            status = client.publish(b"a/b", payload, qos)
            if status > 0:
                handed.append(payload)
                if len(handed) in cuts:
                    server.power_cut()
            else:
                assert status in (E_WINDOW, E_OFFLINE, E_AGAIN, E_CLOSED), status
        client.wait(20)
    client.disconnect()
    return handed, server.messages


def test_mqtt_over_a_good_line() -> None:
    pair = Pair()
    handed, stored = _publish_all(pair, 1, ())
    assert stored == handed
    assert pair.now < 10000


def test_mqtt_over_a_bad_line() -> None:
    pair = Pair(2, lose=60, flip=60, noise=60)
    handed, stored = _publish_all(pair, 2, ())
    assert stored == handed
    assert pair.streams[0].channel.streams == 1


def test_mqtt_over_a_bad_line_and_resets_of_the_gateway() -> None:
    pair = Pair(3, lose=40, flip=40, drop=40)
    handed, stored = _publish_all(pair, 2, (5, 6, 17, 30))
    assert stored == handed
    pair = Pair(4, flip=80)
    handed, stored = _publish_all(pair, 1, (3, 11, 12, 39))
    # At QoS 1 a message may come again, after those that were under way with it.
    assert set(stored) == set(handed)
