"""A bad serial line with a link at either end, and a driver that checks every byte that comes out.

What a stream carries is a function of the session number of its sender and of the position: so a byte that is lost,
doubled, out of place or from another stream is seen where it is read.
"""

from headwater.link.frames import (
    DAMAGED,
    DELIMITER,
    INIT,
    PAYLOAD,
    TRAILER,
    Unstuffer,
    check_frame,
    crc16,
    fill_trailer,
    stuff,
)
from headwater.link.link import UP, Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.link.link import Channel

_TEXT = b"\r\nTraceback (most recent call last):\r\n>>> \x04\x01\x03raw REPL; CTRL-B to exit\r\n>"


class Rng:
    """Random numbers that are the same on every Python (Park and Miller's generator)."""

    def __init__(self, seed: int):
        self._x = seed * 7919 % 2147483646 + 1
        self.below(2)

    def below(self, n: int) -> int:
        """An integer from 0 to ``n - 1``."""
        self._x = self._x * 48271 % 2147483647
        return (self._x >> 8) % n

    def of(self, thousandths: int) -> bool:
        """True so many times in a thousand."""
        return thousandths > 0 and self.below(1000) < thousandths

    def bytes(self, n: int) -> bytes:
        """So many bytes."""
        return bytes([self.below(256) for _ in range(n)])


class Line:
    """One direction of a line. Each fault happens to so many frames in a thousand.

    ``lose``: the frame is gone. ``flip``: one to four bytes are others. ``drop``: one to four bytes are missing.
    ``twice``: it comes twice. ``noise``: bytes, or text, come before it. ``cut`` (True or False): nothing passes at
    all. Damage that no 16-bit checksum can see, one in 65536, is left out: what a link does then is not defined.
    """

    def __init__(self, rng: Rng, lose: int = 0, flip: int = 0, drop: int = 0, twice: int = 0, noise: int = 0):
        self.rng = rng
        self.lose = lose
        self.flip = flip
        self.drop = drop
        self.twice = twice
        self.noise = noise
        self.cut = False
        self.faults = 0
        # A good line passes bytes, a bad one frames.
        self._good = not (lose or flip or drop or twice or noise)
        self._frame = bytearray()
        self._out = bytearray()
        # Follows what comes out, so that a frame that was never sent and passes the checksum is noticed.
        self._clean = Unstuffer(PAYLOAD + TRAILER)
        self._follow = Unstuffer(PAYLOAD + TRAILER)
        self._genuine: list[bytes] = []

    def heal(self) -> None:
        """No more faults."""
        self.lose = self.flip = self.drop = self.twice = self.noise = 0
        self.cut = False

    def put(self, data: bytes) -> None:
        """Bytes from the sender."""
        if self._good:
            if not self.cut:
                self._out += data
            return
        for byte in data:
            self._frame.append(byte)
            if byte == DELIMITER:
                self._pass(bytes(self._frame))
                self._frame = bytearray()

    def take(self, n: int) -> bytes:
        """Up to ``n`` bytes for the receiver."""
        data = bytes(self._out[:n])
        self._out = self._out[n:]
        return data

    @property
    def waiting(self) -> int:
        """How many bytes are on their way."""
        return len(self._out)

    def _pass(self, frame: bytes) -> None:
        rng = self.rng
        if self.cut or rng.of(self.lose):
            self.faults += 1
            return
        damaged = frame
        if rng.of(self.flip):
            damaged = self._flipped(damaged)
        if rng.of(self.drop):
            for _ in range(1 + rng.below(4)):
                i = rng.below(len(damaged) + 1)
                damaged = damaged[:i] + damaged[i + 1 :]
        if rng.of(self.twice):
            damaged = damaged + damaged
        if rng.of(self.noise):
            damaged = self._noise() + damaged
        self._genuine = self._genuine[-40:] + _parts(self._clean, frame)
        if damaged != frame:
            self.faults += 1
            state = _saved(self._follow)
            for part in _parts(self._follow, damaged):
                if part not in self._genuine and check_frame(part, len(part)) != DAMAGED:
                    _restore(self._follow, state)
                    damaged = b"\0" + frame
                    break
            else:
                self._out += damaged
                return
        _parts(self._follow, damaged)
        self._out += damaged

    def _flipped(self, frame: bytes) -> bytes:
        rng = self.rng
        changed = bytearray(frame)
        for _ in range(1 + rng.below(4)):
            changed[rng.below(len(changed))] ^= 1 << rng.below(8)
        return bytes(changed)

    def _noise(self) -> bytes:
        rng = self.rng
        if rng.below(2):
            return _TEXT[rng.below(len(_TEXT)) :]
        return rng.bytes(1 + rng.below(60))


def _parts(unstuffer: Unstuffer, data: bytes) -> "list[bytes]":
    parts = []
    at = 0
    while at < len(data):
        at = unstuffer.take(data, at, len(data))
        if unstuffer.size > 0:
            parts.append(bytes(unstuffer.buf[: unstuffer.size]))
    return parts


def _saved(unstuffer: Unstuffer) -> "tuple[bytes, int, int, int]":
    return bytes(unstuffer.buf), unstuffer._n, unstuffer._left, unstuffer._kind


def _restore(unstuffer: Unstuffer, state: "tuple[bytes, int, int, int]") -> None:
    unstuffer.buf[:] = state[0]
    unstuffer._n, unstuffer._left, unstuffer._kind = state[1:]


def content(session: int, at: int, n: int) -> bytes:
    """What the end with this session number sends at a position of its stream."""
    # The middle term makes every byte value come, and a position that is off by any small number shows.
    return bytes([(session * 167 + i * 5 + (i >> 7) * 11 + (i * i >> 4)) & 0xFF for i in range(at, at + n)])


class End:
    """One end: a link, the program above it, and a board that can be reset. It sends ``size`` bytes in each stream.

    ``ended`` has for each stream that is over: the session number of the other end, how many bytes came, and why it
    ended.
    """

    def __init__(self, session: int, size: int, rng: Rng, clock: int = 0, **options: int):
        self.size = size
        self.rng = rng
        self.clock = clock
        self.options = options
        self.ended: list[tuple[int, int, int]] = []
        self.most = 300
        self.reading = True
        self.closes = False
        self._buf = bytearray(300)
        self.start(session)

    def start(self, session: int) -> None:
        """Switch the power on: the program opens the stream."""
        self.link = Link(session, **self.options)
        self.channel = self.link.channels[0]
        self.open()

    def open(self) -> None:
        """Begin the next stream."""
        self.channel.open()
        self.sent = 0
        self.got = 0
        self.over = False

    def work(self, now: int, data: bytes) -> None:
        """One turn of the program: the bytes that have come, then what is due, then reading and writing."""
        now = (now + self.clock) & 0x3FFFFFFF
        link = self.link
        link.feed(data, 0, len(data), now)
        link.poll(now)
        if self.reading and not self.over:
            self._read()
        if self.channel.state == UP and self.sent < self.size:
            n = min(1 + self.rng.below(self.most), self.size - self.sent)
            piece = b"<" + content(self.channel.session, self.sent, n) + b">"
            k = self.channel.write(piece, 1, n)
            assert k is None or 0 < k <= n
            self.sent += k or 0

    def _read(self) -> None:
        channel = self.channel
        while True:
            # Before it is read: the peer of what is read now.
            peer = channel.peer
            k = channel.readinto(self._buf, 1 + self.rng.below(self.most))
            if k is None:
                return
            if k == 0:
                self.over = True
                self.ended.append((peer, self.got, channel.why))
                return
            expected = content(peer, self.got, k)
            assert self._buf[:k] == expected, (channel.session, peer, self.got, k)
            self.got += k

    def out(self, n: int) -> bytes:
        """Up to ``n`` bytes for the line."""
        link = self.link
        data = b""
        while len(data) < n:
            k = min(link.out(), n - len(data))
            if k <= 0:
                break
            data += bytes(link.out_buf[link.out_at : link.out_at + k])
            link.sent(k)
        return data

    @property
    def done(self) -> bool:
        """Whether everything that this stream has for the other end was sent and acknowledged."""
        return self.channel.state == UP and self.sent == self.size and self.channel.waiting() == 0


class Bench:
    """Two ends and the line between them; ``now`` goes on by ``step_ms`` a turn, in which ``rate`` bytes pass each
    way."""

    def __init__(
        self,
        seed: int = 1,
        size: int = 2000,
        rate: int = 115,
        step_ms: int = 10,
        faults: "dict[str, int] | None" = None,
        **options: int,
    ):
        self.rng = Rng(seed)
        self.a = End(1 + seed % 20000, size, self.rng, 0, **options)
        self.b = End(30001 + seed % 20000, size, self.rng, 0x3FFFF000, **options)
        faults = faults or {}
        self.ab = Line(self.rng, **faults)
        self.ba = Line(self.rng, **faults)
        self.rate = rate
        self.step_ms = step_ms
        self.now = 0
        self.turns = 0
        # Whether bytes come in pieces of any size, and late.
        self.ragged = False

    def turn(self) -> None:
        """Let a little time pass."""
        self.now += self.step_ms
        self.turns += 1
        self.a.work(self.now, self._arriving(self.ba))
        self.ab.put(self.a.out(self._room(self.ab)))
        self.b.work(self.now, self._arriving(self.ab))
        self.ba.put(self.b.out(self._room(self.ba)))

    def _arriving(self, line: Line) -> bytes:
        return line.take(self.rng.below(2 * self.rate + 1) if self.ragged else self.rate)

    def _room(self, line: Line) -> int:
        return max(0, 2 * self.rate - line.waiting)

    def until(self, condition: "Callable[[], bool]", limit_ms: int = 60000) -> int:
        """Let time pass until the condition holds, and return how much (ms); fails when it takes too long."""
        begin = self.now
        while not condition():
            self.turn()
            assert self.now - begin < limit_ms, self.report()
        return self.now - begin

    def up(self) -> bool:
        """Whether the ends have a stream with each other."""
        a = self.a.channel
        b = self.b.channel
        return a.state == b.state == UP and a.peer == b.session and b.peer == a.session

    def delivered(self) -> bool:
        """Whether everything has come, both ways, in one stream."""
        return self.up() and self.a.got == self.b.size and self.b.got == self.a.size

    def reopen(self) -> None:
        """The programs at both ends begin a new stream when theirs is over, as MQTT does."""
        for end in (self.a, self.b):
            if end.over:
                end.open()

    def run(self, milliseconds: int) -> None:
        """Let so much time pass, whatever happens."""
        end = self.now + milliseconds
        while self.now < end:
            self.turn()

    def report(self) -> str:
        """How things stand, for a test that fails."""
        words = ["after %d ms" % self.now]
        for end in (self.a, self.b):
            channel = end.channel
            sender = channel.sender
            words.append(
                "state %d session %d peer %d sent %d got %d queued %d flight %d credit %d rto %d ended %s"
                % (
                    channel.state,
                    channel.session,
                    channel.peer,
                    end.sent,
                    end.got,
                    sender.queued,
                    sender.flight,
                    sender.credit,
                    sender.rto,
                    end.ended,
                )
            )
        return "; ".join(words)


def kinds(line: bytes) -> "list[int]":
    """The types of the frames on the line."""
    found = _parts(Unstuffer(PAYLOAD + TRAILER), line)
    return [body[len(body) - TRAILER] >> 3 & 7 for body in found]


def frame_on_line(body: bytes) -> bytes:
    """A frame, made by hand, as it stands on the line."""
    out = bytearray(2 * len(body) + 2)
    return bytes(out[: stuff(body, 0, len(body), out, 0)]) + b"\0"


def raises(error: "type[Exception]", call: "Callable[[], object]") -> None:
    try:
        call()
    except error:
        return
    raise AssertionError("no error")


def handmade(kind: int, key: int, seq: int = 0, ack: int = 0, credit: int = 4, payload: bytes = b"") -> bytes:
    """A frame on the line, made by hand."""
    trailer = bytearray(TRAILER)
    fill_trailer(trailer, kind << 3, seq, ack, credit, key, len(payload))
    crc = crc16(trailer, 0, 7, crc16(payload, 0, len(payload), INIT))
    return frame_on_line(payload + bytes(trailer[:7]) + bytes([crc >> 8, crc & 0xFF]))


def put(link: Link, data: bytes, now: int) -> None:
    link.feed(data, 0, len(data), now)


def say(channel: "Channel", data: bytes) -> None:
    assert channel.write(data, 0, len(data)) == len(data)


def read(channel: "Channel", n: int = 100) -> "bytes | None":
    buf = bytearray(n)
    k = channel.readinto(buf, n)
    return None if k is None else bytes(buf[:k])


def bench_up(**options: int) -> Bench:
    """A good line and two ends that are connected, and do nothing by themselves."""
    bench = Bench(1, 0, 115, 10, None, **options)
    bench.until(bench.up, 2000)
    bench.a.reading = bench.b.reading = False
    bench.run(100)
    return bench
