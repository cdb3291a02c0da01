"""A receive buffer that grows with the packet that is arriving.

Slices of a memoryview are cheap on CPython, so each read gets a new one. Unparsed bytes are moved only when there is
little room after them.
"""

from headwater.connection import RxBuf

#: MQTT's largest packet: five bytes of fixed header and 268 435 455 after it (3.1.1, section 2.2.3).
MAX_PACKET = 268_435_460
#: The size of the smallest receive buffer, and the least Maximum Packet Size: answers of a server fit into it.
SMALLEST = 16
# The size that stays allocated after a large packet.
_KEEP = 1 << 20


class GrowingRxBuf(RxBuf):
    """``RxBuf`` of ``size`` bytes at first, which holds packets of up to ``capacity`` bytes.

    It grows to about twice the bytes that have arrived; a large announced length alone costs no memory. ``buf`` stays
    the same object. The ``extra`` bytes after the buffer keep their number, but not their content.
    """

    def __init__(self, size: int = 1 << 16, capacity: int = MAX_PACKET, extra: int = 0):
        # The base's constructor is not called, because this class has no fixed views.
        if size < SMALLEST:
            raise ValueError(f"rx_size {size}: need at least 16 bytes")
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
        """Remove all bytes: a new connection begins."""
        self.start = self.end = 0

    def window(self) -> int:
        """Set ``view`` and ``room`` for the next read. Returns ``room``, 0 when ``capacity`` bytes are unparsed.

        The previous view must not be in use any more.
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
