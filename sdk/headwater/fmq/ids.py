"""Message ids of FMQ (docs/protocols/fmq.md, section 2): parse, create, and look up while a message waits.

    type << 4 | P    P bytes of process number    T << 4 | thread & 15    T bytes of thread >> 4    a DateTime

Ids are compared by their bytes. Writers use the shortest form, so equal ids are equal bytes.
"""

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

# Copies of constants of ``headwater.fmq.spec``.
_DATETIME = const(11)
_ID_SIZE = const(18)
_E_ID = const(-59)


#: The result of ``id_end`` if the id is incomplete.
MORE = const(0)
_MS = const(1000000)
# A longer difference means that the clock went back.
_BACK = const(0x20000000)
# This number of milliseconds exceeds all nanoseconds that can have been added.
_LONG = const(1000)
_BOOTS = const(0xFFFF)


def id_end(buf: "Bytes", at: int, end: int) -> int:
    """Return the offset after the id at ``at``, MORE if it is incomplete at ``end``, or E_ID."""
    if at >= end:
        return MORE
    i = at + 1 + (buf[at] & 15)
    # At least two bytes, a time, follow the first byte of the thread number.
    if i + 3 - at > _ID_SIZE:
        return _E_ID
    if i >= end:
        return MORE
    i += 1 + (buf[i] >> 4)
    if i + 2 - at > _ID_SIZE:
        return _E_ID
    if i >= end:
        return MORE
    n = buf[i]
    if n >> 4 != _DATETIME:
        return _E_ID
    stop = i + 1 + (n & 7 or 8)
    if stop - at > _ID_SIZE:
        return _E_ID
    if stop > end:
        return MORE
    return _E_ID if n & 15 == 8 and buf[stop - 1] > 127 else stop


def same(a: "Bytes", at: int, end: int, b: "Bytes", b_at: int) -> bool:
    """Return whether ``a[at:end]`` is also at ``b_at`` in ``b``."""
    b_at -= at
    if b_at + end > len(b):
        return False
    # Ids differ in their times, mostly in the lowest byte, which is first.
    if end - at > 8 and a[end - 8] != b[b_at + end - 8]:
        return False
    while end > at:
        end -= 1
        if a[end] != b[b_at + end]:
            return False
    return True


def put_little(buf: bytearray, at: int, limit: int, value: int) -> int:
    """Write a number below 2**120 in as few little-endian bytes as possible, none for 0: the offset, or E_TOO_LARGE."""
    if at < 0 or at > limit:
        return E_TOO_LARGE
    while value:
        if at >= limit:
            return E_TOO_LARGE
        buf[at] = value & 255
        value >>= 8
        at += 1
    return at


class IdMaker:
    """Creates the ids of one thread. Each is at least a nanosecond later than the previous id.

    ``ident`` is the last id, valid until the next call of ``next``. Its time is that of the hub's clock after
    ``set_time``. Before, the times of each boot begin 2**44 nanoseconds (4.9 hours) after those of the previous one, in
    1972 to 2008: ``boot`` is a persistent boot counter, modulo 65 536. ``next`` allocates nothing.
    """

    def __init__(self, thread: int = 0, boot: int = 0, now_ms: int = 0):
        self._buf = bytearray(_ID_SIZE)
        self._thread = thread
        self._ms = now_ms
        # Nanoseconds added since the clock moved.
        self._more = 0
        self._at = 9
        self.ident: Bytes = memoryview(self._buf)
        boot = 0x10000 + ((boot & _BOOTS) << 4)
        for i in (14, 15, 16):
            self._buf[i] = boot & 255
            boot >>= 8
        self.set_process(b"", 0, 0)

    def set_process(self, buf: "Bytes", at: int, end: int) -> int:
        """Set the process number from the little-endian bytes ``buf[at:end]``. Return 0 or E_ARGUMENT. It allocates.

        No bytes, or zero, mean that there is no number yet.
        """
        while end > at and buf[end - 1] == 0:
            end -= 1
        new = bytearray(_ID_SIZE)
        i = 1
        for k in range(at, end):
            if i < _ID_SIZE:
                new[i] = buf[k]
            i += 1
        stop = put_little(new, i + 1, _ID_SIZE - 9, self._thread >> 4)
        if stop < 0:
            return E_ARGUMENT
        new[0] = i - 1
        new[i] = stop - i - 1 << 4 | self._thread & 15
        new[stop] = _DATETIME << 4
        new[stop + 1 : stop + 9] = self._buf[self._at : self._at + 8]
        self._at = stop + 1
        self._buf = new
        self.ident = memoryview(new)[: stop + 9]
        return 0

    def set_time(self, buf: "Bytes", at: int, end: int, now_ms: int) -> int:
        """Set the clock to ``buf[at:end]``: nanoseconds since 1970, eight little-endian bytes. Return 0 or E_ARGUMENT.

        A time that is not later than the last id is ignored.
        """
        if end - at != 8:
            return E_ARGUMENT
        i = 7
        while i and buf[at + i] == self._buf[self._at + i]:
            i -= 1
        if buf[at + i] > self._buf[self._at + i]:
            for i in range(8):
                self._buf[self._at + i] = buf[at + i]
            self._more = 0
            self._ms = now_ms
        return 0

    def next(self, kind: int, now_ms: int) -> "Bytes":
        """Return the next id for a message of type ``kind``; ``now_ms`` counts like ``Dialer.ticks_ms``."""
        buf = self._buf
        buf[0] = kind << 4 | buf[0] & 15
        at = self._at
        ms = now_ms - self._ms & TICKS_MASK
        if 0 < ms < _BACK and (ms > _LONG or ms * _MS > self._more):
            self._ms = now_ms
            _add(buf, at, -self._more, ms)
            self._more = 0
            return self.ident
        self._more += 1
        ms = at + 8
        while at < ms:
            if buf[at] < 255:
                buf[at] += 1
                break
            buf[at] = 0
            at += 1
        return self.ident


def _add(buf: bytearray, at: int, ns: int, ms: int) -> None:
    """Add nanoseconds, which can be negative, and milliseconds to the time at ``at``."""
    end = at + 8
    while at < end:
        # The product of a byte and a million is a small integer on every board.
        ns += buf[at] + (ms & 255) * _MS
        ms >>= 8
        buf[at] = ns & 255
        ns >>= 8
        at += 1


_TURNS = const(256)


class IdTable:
    """A table of ``places`` ids, each with a ``state`` (0: free) and a number ``more`` (0 to 255) for the user.

    A place gets a new number each time it is taken, up to 256 times, so that a late answer does not match another
    message. Nothing allocates after construction.
    """

    def __init__(self, places: int):
        if not 0 < places < 256:
            raise ValueError("places %r: need 1 to 255" % places)
        self.places = places
        self.state = bytearray(places)
        self.more = bytearray(places)
        self.ids = bytearray(places * _ID_SIZE)
        self.sizes = bytearray(places)
        self._turns = bytearray(places)

    def free(self) -> int:
        """Return a free place, or -1."""
        for i in range(self.places):
            if not self.state[i]:
                return i
        return -1

    def put(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Store the id ``buf[at:end]`` in the free place ``i``."""
        self._turns[i] = (self._turns[i] + 1) % _TURNS
        self.more[i] = 0
        self.rename(i, state, buf, at, end)

    def rename(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Replace the id of a place."""
        self.state[i] = state
        self.sizes[i] = end - at
        i *= _ID_SIZE
        while at < end:
            self.ids[i] = buf[at]
            i += 1
            at += 1

    def keep(self, state: int) -> None:
        """Free all places but those in this state."""
        for i in range(self.places):
            if self.state[i] != state:
                self.state[i] = 0

    def find(self, first: int, last: int, buf: "Bytes", at: int, end: int) -> int:
        """Return the place of an id in a state from ``first`` to ``last``, or -1."""
        for i in range(self.places):
            if (
                first <= self.state[i] <= last
                and self.sizes[i] == end - at
                and same(buf, at, end, self.ids, i * _ID_SIZE)
            ):
                return i
        return -1

    def ident(self, i: int) -> bytes:
        """Return the id in a place: allocates."""
        at = i * _ID_SIZE
        return bytes(self.ids[at : at + self.sizes[i]])

    def number(self, i: int) -> int:
        """Return the number of a place, from 1 on."""
        return self._turns[i] * self.places + i + 1

    def place(self, number: int) -> int:
        """Return the place with this number, or -1 if it is free or was taken again."""
        i = (number - 1) % self.places
        return i if self.state[i] and self.number(i) == number else -1
