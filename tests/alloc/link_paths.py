# paths: transfer, join small writes, repeat after a time-out, go back after NAK, blocked by the reader
# paths: noise and damage, keep alive, frames of no stream, close and open, two channels, ring of bytes
# frames: transfer, join small writes, repeat after a time-out, go back after NAK, blocked by the reader
# frames: noise and damage, keep alive, frames of no stream, close and open, two channels, ring of bytes
"""The serial link: two ends, and between them a line that is two rings of bytes."""

from prove import prove

from headwater.link.link import ENDED, UP, Link
from headwater.link.pump import Pump, Stream
from headwater.link.ring import RingIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

DATA = bytes([i & 0xFF for i in range(600)])
NOISE = b"\x00>>> print(1)\r\n\x00\x1b\x41\x00\x22xxx\x00\xff\x05Traceback (most recent call last)\x00"


class Clock:
    def __init__(self) -> None:
        self.now = 0x3FFFFF00

    def step(self, ms: int) -> None:
        # The sum would be no small integer on 32 bits.
        left = 0x3FFFFFFF - self.now
        self.now = self.now + ms if ms <= left else ms - left - 1

    def ticks_ms(self) -> int:
        return self.now


class Wire:
    """One end of a line: a raw transport. ``cut`` loses everything, ``skip`` the next frame as large as that."""

    def __init__(self, incoming: RingIO, outgoing: RingIO) -> None:
        self._in = incoming
        self._out = outgoing
        self.cut = False
        self.skip = 0

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        return self._in.readinto(buf, n) or None

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        if self.skip and n >= self.skip:
            self.skip = 0
        elif not self.cut:
            self._out.write(buf, off, n)
        return n

    def close(self) -> None:
        pass


class End:
    def __init__(self, session: int, wire: Wire, clock: Clock) -> None:
        self.wire = wire
        self.link = Link(session, 2)
        self.pump = Pump(wire, self.link, clock.ticks_ms)
        self.channel = self.link.channels[0]
        self.other = self.link.channels[1]
        self.stream = Stream(self.pump, self.channel)
        self.buf = bytearray(100)

    def read(self) -> int:
        """Read all there is: how many bytes."""
        n = 0
        while True:
            k = self.stream.readinto(self.buf, 100)
            if not k:
                return n
            n += k


class Both:
    def __init__(self) -> None:
        self.clock = Clock()
        ab = RingIO(4000)
        ba = RingIO(4000)
        self.a = End(100, Wire(ba, ab), self.clock)
        self.b = End(200, Wire(ab, ba), self.clock)
        self.a.channel.open()
        self.b.channel.open()
        self.a.other.open()
        self.b.other.open()
        self.settle()
        assert self.a.channel.state == self.b.channel.state == UP
        assert self.a.other.state == self.b.other.state == UP

    def settle(self) -> None:
        for _ in range(8):
            self.clock.step(5)
            self.a.pump.pump()
            self.b.pump.pump()

    def carry(self, n: int) -> None:
        """What a wrote comes to b, and nothing else."""
        got = 0
        turns = 0
        while got < n:
            self.clock.step(5)
            self.a.pump.pump()
            got += self.b.read()
            turns += 1
            assert turns < 2000
        assert got == n
        self.settle()
        assert self.a.channel.waiting() == 0


both = Both()
a = both.a
b = both.b
for end in (a, b):
    # The counters go round in the first proof, as does the clock.
    end.link.bytes_in = end.link.bytes_out = end.link.frames_in = end.link.frames_out = 0x1FFFFFF0
    end.channel.received = end.channel.sender.frames = 0x1FFFFFF0


def transfer() -> None:
    assert a.stream.write(DATA, 3, 500) == 500
    both.carry(500)
    assert b.stream.write(DATA, 0, 100) == 100
    both.settle()
    assert a.read() == 100


def join_small_writes() -> None:
    for i in range(100):
        assert a.channel.write(DATA, i, 1) == 1
    both.carry(100)


def repeat() -> None:
    timeouts = a.channel.sender.timeouts
    a.wire.cut = True
    assert a.stream.write(DATA, 0, 300) == 300
    while a.channel.sender.timeouts == timeouts:
        both.clock.step(50)
        a.pump.pump()
    a.wire.cut = False
    both.carry(300)


def go_back() -> None:
    timeouts = a.channel.sender.timeouts
    repeated = a.channel.sender.repeated
    a.wire.skip = 100
    assert a.stream.write(DATA, 0, 600) == 600
    both.carry(600)
    assert a.channel.sender.repeated > repeated
    assert a.channel.sender.timeouts == timeouts


def blocked() -> None:
    written = 0
    k: int | None = 1
    while k:
        k = a.channel.write(DATA, 0, 600)
        written += k or 0
        both.settle()
    assert a.channel.sender.credit == 0
    # The reader reads on, and what would say so is lost: the writer asks.
    b.wire.skip = 1
    n = b.read()
    both.clock.step(2000)
    both.carry(written - n)


def noise() -> None:
    damaged = b.link.damaged
    b.link.feed(NOISE, 0, len(NOISE), both.clock.now)
    assert b.link.damaged > damaged
    assert a.stream.write(DATA, 0, 50) == 50
    both.carry(50)


def keep_alive() -> None:
    frames = b.link.frames_out
    both.clock.step(2500)
    both.settle()
    assert b.link.frames_out > frames


def strangers() -> None:
    stale = b.channel.stale
    b.channel._key_in ^= 1
    assert a.stream.write(DATA, 0, 10) == 10
    both.settle()
    b.channel._key_in ^= 1
    assert b.channel.stale > stale
    # It was answered with RESET; both begin anew.
    assert a.channel.state == ENDED
    begin_anew()


def begin_anew() -> None:
    a.channel.open()
    both.settle()
    assert b.channel.state == ENDED
    b.channel.open()
    both.clock.step(250)
    both.settle()
    assert a.channel.state == b.channel.state == UP


def close_and_open() -> None:
    assert a.stream.write(DATA, 0, 500) == 500
    a.stream.close()
    both.settle()
    assert b.channel.state == ENDED
    assert b.read() == 500
    begin_anew()


def two_channels() -> None:
    assert a.other.write(DATA, 0, 600) == 600
    transfer()
    both.settle()
    k = b.other.readinto(b.buf, 100)
    while k:
        k = b.other.readinto(b.buf, 100)
    both.settle()


own_ring = RingIO(50)
taken = bytearray(40)


def ring_of_bytes() -> None:
    assert own_ring.write(DATA, 7, 60) == 50
    assert own_ring.any() == 50
    assert own_ring.readinto(taken, 50) == 40
    assert own_ring.readinto(taken, 50) == 10
    assert own_ring.any() == 0


# Each goes through many turns of both ends.
TIMES = 20
prove("transfer", transfer, TIMES)
prove("join small writes", join_small_writes, TIMES)
prove("repeat after a time-out", repeat, TIMES)
prove("go back after NAK", go_back, TIMES)
prove("blocked by the reader", blocked, TIMES)
prove("noise and damage", noise, TIMES)
prove("keep alive", keep_alive, TIMES)
prove("frames of no stream", strangers, TIMES)
prove("close and open", close_and_open, TIMES)
prove("two channels", two_channels, TIMES)
prove("ring of bytes", ring_of_bytes, TIMES)
