"""Two pumps on one line, a client over one end of a stream and a server at the other."""

from line import Line, Rng

from headwater.errors import E_AGAIN, E_CLOSED, E_OFFLINE, E_WINDOW, HeadwaterError
from headwater.link.link import UP, Link
from headwater.link.pump import Pump, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


class Server:
    """What works at the other end: a session over the stream, opened anew whenever it ends."""

    def __init__(self, pair: Pair, session: "Any"):
        self.pair = pair
        self.session = session
        self._stream = pair.streams[1]
        self._open()

    def _open(self) -> None:
        self._stream.channel.open()

    def power_cut(self) -> None:
        """The line's other end is reset; its session is on disk."""
        pair = self.pair
        self.session.lost()
        pair.pumps[1] = Pump(pair.raws[1], Link(1000 + pair.now % 5000), pair.ticks_ms, 50)
        pair.streams[1] = self._stream = Stream(pair.pumps[1], pair.pumps[1].link.channels[0])
        self._open()

    def work(self) -> None:
        session = self.session
        room = session.rx.window()
        n = self._stream.readinto(session.rx.view, room)
        if n == 0:
            session.lost()
            self._open()
            return
        assert session.feed(n or 0) == 0
        while True:
            n = session.out()
            if n <= 0 or self._stream.channel.state != UP:
                return
            k = self._stream.write(session.out_buf, session.out_at, n)
            if not k:
                return
            session.sent(k)


class Dialer:
    """A dialer over the first end; while it waits, time goes by and the server's end does its work."""

    def __init__(self, pair: Pair, server: Server):
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


def publish_all(
    client: "Any", server: Server, qos: "tuple[int, ...]", cuts: "tuple[int, ...]" = ()
) -> "list[bytes]":
    """Publish 40 messages, with each QoS in turn, connecting again whenever the connection ends: what was handed in.

    After as many of them as ``cuts`` has, the server's end is reset.
    """
    handed: list[bytes] = []
    while len(handed) < 40 or client.session.outbox.count:
        assert server.pair.now < 600000
        if not client.connected:
            try:
                client.connect()
            except (HeadwaterError, OSError):
                continue
        if len(handed) < 40:
            payload = b"message %d " % len(handed) + b"\x00\x03\x04\r" * 20
            status = client.publish(b"a/b", payload, qos[len(handed) % len(qos)])
            if status > 0:
                handed.append(payload)
                if len(handed) in cuts:
                    server.power_cut()
            else:
                assert status in (E_WINDOW, E_OFFLINE, E_AGAIN, E_CLOSED), status
        client.wait(20)
    client.disconnect()
    return handed
