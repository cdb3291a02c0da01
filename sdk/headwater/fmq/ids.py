"""FMQ's message ids (docs/protocols/fmq.md, section 2): where one ends, what it says, and who makes them.

    type << 4 | P    P bytes of process number    T << 4 | thread & 15    T bytes of thread >> 4    a DateTime

Ids are compared by their bytes; makers write the shortest form, so equal ids are equal bytes.
"""

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

# As in ``headwater.fmq.spec``.
_DATETIME = const(11)
_ID_SIZE = const(18)
_E_ID = const(-59)


#: The answer of ``id_end`` when the buffer ends before the id does.
MORE = const(0)
_MS = const(1000000)
# No difference of times is that long: the clock went back.
_BACK = const(0x20000000)
# From this many milliseconds on, all the nanoseconds that were ever added are fewer.
_LONG = const(1000)
_BOOTS = const(0xFFFF)


def id_end(buf: "Bytes", at: int, end: int) -> int:
    """Where the id at ``at`` ends, of which bytes up to ``end`` are there: an offset, MORE, or E_ID."""
    if at >= end:
        return MORE
    i = at + 1 + (buf[at] & 15)
    # Behind the thread number's first byte come two bytes at least, which are a time.
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


def thread_at(buf: "Bytes", at: int) -> int:
    """Where in the id at ``at`` the thread number is; its process number lies before it, from ``at + 1`` on."""
    return at + 1 + (buf[at] & 15)


def time_at(buf: "Bytes", at: int) -> int:
    """Where in the id at ``at`` the DateTime is."""
    at += 1 + (buf[at] & 15)
    return at + 1 + (buf[at] >> 4)


def same(a: "Bytes", at: int, end: int, b: "Bytes", b_at: int) -> bool:
    """Whether ``a[at:end]`` stands at ``b_at`` in ``b``, too."""
    b_at -= at
    if b_at + end > len(b):
        return False
    # Two ids differ in their times, and these in the lowest of their bytes, which come first.
    if end - at > 8 and a[end - 8] != b[b_at + end - 8]:
        return False
    while end > at:
        end -= 1
        if a[end] != b[b_at + end]:
            return False
    return True


def put_id(buf: bytearray, at: int, limit: int, kind: int, process: int, thread: int, time: "Bytes") -> int:
    """Write an id: the offset behind it, E_TOO_LARGE, or E_ARGUMENT when it would take more than 18 bytes.

    ``time`` is an encoded DateTime.
    """
    start = at
    at = _put_little(buf, at + 1, limit, process)
    i = _put_little(buf, at + 1, limit, thread >> 4)
    if at < 0 or i < 0:
        return E_TOO_LARGE
    buf[start] = kind << 4 | at - start - 1
    buf[at] = i - at - 1 << 4 | thread & 15
    at = i + len(time)
    if at - start > _ID_SIZE:
        return E_ARGUMENT
    if at > limit:
        return E_TOO_LARGE
    buf[i:at] = time
    return at


def _put_little(buf: bytearray, at: int, limit: int, value: int) -> int:
    """A number below 2**120 in as many little-endian bytes as it needs, none for 0: E_TOO_LARGE."""
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
    """Makes the ids of one thread: each is later than the one before by a nanosecond at least.

    ``ident`` is the id that ``next`` made last, until it is called again. It says when it was made as far as that is
    known: from ``set_time`` on by the hub's clock. Before, the times of a boot begin 2**44 nanoseconds (4.9 hours)
    behind those of the boot before, in 1972 to 2008: ``boot`` counts them, modulo 65 536, and is kept where a reset
    does not reach. ``next`` allocates nothing.
    """

    def __init__(self, thread: int = 0, boot: int = 0, now_ms: int = 0):
        self._buf = bytearray(_ID_SIZE)
        self._thread = thread
        self._ms = now_ms
        # Nanoseconds that were added since the clock moved.
        self._more = 0
        self._at = 9
        self.ident: Bytes = memoryview(self._buf)
        boot = 0x10000 + ((boot & _BOOTS) << 4)
        for i in (14, 15, 16):
            self._buf[i] = boot & 255
            boot >>= 8
        self.set_process(b"", 0, 0)

    def set_process(self, buf: "Bytes", at: int, end: int) -> int:
        """Take the process number in the little-endian bytes ``buf[at:end]``: 0, or E_ARGUMENT. It allocates.

        None of them, or zero: there is none yet.
        """
        while end > at and buf[end - 1] == 0:
            end -= 1
        new = bytearray(_ID_SIZE)
        i = 1
        for k in range(at, end):
            if i < _ID_SIZE:
                new[i] = buf[k]
            i += 1
        stop = _put_little(new, i + 1, _ID_SIZE - 9, self._thread >> 4)
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
        """It is ``buf[at:end]``, nanoseconds since 1970 in little-endian bytes: 0; E_ARGUMENT when there are not eight.

        What is not later than the last id is not taken: ids go on from there.
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
        """The next id, of a message of this type. ``now_ms`` counts as ``Dialer.ticks_ms`` does."""
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
    """Add nanoseconds, which may be less than 0, and milliseconds to the time at ``at``."""
    end = at + 8
    while at < end:
        # The product of a byte and a million is a small integer everywhere.
        ns += buf[at] + (ms & 255) * _MS
        ms >>= 8
        buf[at] = ns & 255
        ns >>= 8
        at += 1


# A table of message ids: what waits for an answer, and what waits to be answered.

_TURNS = const(256)


class IdTable:
    """``places`` ids, each with a ``state`` that is the user's, but 0 (free), and ``more``, a number up to 255.

    A place has another number each time it is taken, up to 256 times, so that what is late is not mistaken for another.
    Nothing allocates after construction.
    """

    def __init__(self, places: int):
        if not 0 < places < 256:
            raise ValueError("a table has 1 to 255 places")
        self.places = places
        self.state = bytearray(places)
        self.more = bytearray(places)
        self.ids = bytearray(places * _ID_SIZE)
        self.sizes = bytearray(places)
        self._turns = bytearray(places)

    def free(self) -> int:
        """A free place, or -1."""
        for i in range(self.places):
            if not self.state[i]:
                return i
        return -1

    def put(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Take the free place ``i`` for the id ``buf[at:end]``."""
        self._turns[i] = (self._turns[i] + 1) % _TURNS
        self.more[i] = 0
        self.rename(i, state, buf, at, end)

    def rename(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Put another id into its place."""
        self.state[i] = state
        self.sizes[i] = end - at
        i *= _ID_SIZE
        while at < end:
            self.ids[i] = buf[at]
            i += 1
            at += 1

    def find(self, state: int, buf: "Bytes", at: int, end: int) -> int:
        """The place of an id in this state, or -1."""
        n = end - at
        for i in range(self.places):
            if self.state[i] == state and self.sizes[i] == n and same(buf, at, end, self.ids, i * _ID_SIZE):
                return i
        return -1

    def number(self, i: int) -> int:
        """The number of a place, from 1 on."""
        return self._turns[i] * self.places + i + 1

    def place(self, number: int) -> int:
        """The place with this number, or -1 when it is another's by now, or nobody's."""
        i = (number - 1) % self.places
        return i if self.state[i] and self.number(i) == number else -1
