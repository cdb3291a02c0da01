"""Ring buffer for runtimes without ``micropython.RingIO``: CPython and the smallest ports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


class RingIO:
    """A ring of up to ``size`` bytes with some methods of MicroPython's RingIO. They allocate nothing."""

    def __init__(self, size: int):
        self._buf = bytearray(size)
        self._size = size
        self._at = 0
        self._n = 0

    def any(self) -> int:
        """Return the number of bytes to read."""
        return self._n

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int:
        """Move up to ``n`` bytes, limited by the size of ``buf``, to the start of ``buf``. Return their number."""
        n = min(n, self._n, len(buf))
        ring = self._buf
        at = self._at
        size = self._size
        for i in range(n):
            buf[i] = ring[at]
            at += 1
            if at == size:
                at = 0
        self._at = at
        self._n -= n
        return n

    def write(self, buf: "Bytes", at: int, n: int) -> int:
        """Append as much of ``buf[at:at+n]`` as there is room for. Return the number of bytes."""
        size = self._size
        n = min(n, size - self._n)
        ring = self._buf
        to = (self._at + self._n) % size
        for i in range(at, at + n):
            ring[to] = buf[i]
            to += 1
            if to == size:
                to = 0
        self._n += n
        return n
