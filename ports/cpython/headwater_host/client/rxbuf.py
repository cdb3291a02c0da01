"""The receive buffer on a computer: it grows with the packet that is arriving.

On CPython a slice of a memoryview costs nothing worth saving, so there is one view, made for each read, and the
unparsed rest is moved only when the room behind it gets short.
"""

from headwater.connection import RxBuf

#: MQTT's largest packet: five bytes of fixed header and 268 435 455 behind it (3.1.1, section 2.2.3).
MAX_PACKET = 268_435_460
#: The smallest receive buffer, and the least that a maximum packet size may be: what a server answers fits into it.
SMALLEST = 16
# What stays allocated when a large packet has been parsed.
_KEEP = 1 << 20


class GrowingRxBuf(RxBuf):
    """``size`` bytes at first, more when a packet needs them; the interface is ``headwater.connection.RxBuf``'s.

    ``capacity`` is the largest packet that can be held whole. The buffer grows only as bytes of the packet arrive, to
    about twice what has arrived: a length that is only claimed costs no memory. ``buf`` stays the same object. The
    ``extra`` bytes behind it keep their number, not what is in them.
    """

    def __init__(self, size: int = 1 << 16, capacity: int = MAX_PACKET, extra: int = 0):
        # Not the base's: its eight views are what this class does without.
        if size < SMALLEST:
            raise ValueError("the receive buffer needs at least 16 bytes")
        self._first_size = size
        self._extra = extra
        self.buf = bytearray(size + extra)
        self.size = size
        self.capacity = capacity
        self._whole = memoryview(self.buf)[:size]
        self.view = self._whole
        self.start = self.end = 0
        self.room = size

    def clear(self) -> None:
        """Forget what was read: for a new connection."""
        self.start = self.end = 0

    def window(self) -> int:
        """Make room to read into ``view``; returns ``room``, 0 when ``capacity`` bytes are unparsed.

        The view of the call before must not be in use any more.
        """
        start = self.start
        end = self.end
        if start == end:
            self.start = self.end = end = 0
            if self.size > _KEEP and self.size > self._first_size:
                self._resize(self._first_size)
        elif self.size - end < self._first_size // 2:
            n = end - start
            if start:
                self.buf[:n] = self.buf[start:end]
                self.start = 0
                self.end = end = n
            if self.size - n < self._first_size // 2 and self.size < self.capacity + self._first_size:
                self._resize(min(2 * self.size, self.capacity + self._first_size))
        self.view = self._whole[end:] if end else self._whole
        self.room = self.size - end
        return self.room

    def _resize(self, size: int) -> None:
        # A bytearray changes its size in place only while no view of it is alive.
        self.view.release()
        self._whole.release()
        if size < self.size:
            del self.buf[size + self._extra :]
        else:
            self.buf.extend(bytes(size - self.size))
        self.size = size
        self._whole = memoryview(self.buf)[:size]
