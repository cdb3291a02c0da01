"""The outbox in memory: unacknowledged messages, in a buffer that grows with them."""

from headwater.connection import RamOutbox

#: Default size of the buffer while it is empty, in bytes.
OUTBOX_SIZE = 1 << 16
#: How many bytes unacknowledged messages may take together.
OUTBOX_LIMIT = 1 << 29


class GrowingOutbox(RamOutbox):
    """``RamOutbox`` whose memory grows from ``size`` to ``limit`` bytes as messages need it.

    It shrinks when it is empty. Growing moves the entries: none may be half sent then, so this is for who hands whole
    packets to its transport.
    """

    def __init__(self, size: int = OUTBOX_SIZE, slots: int = 1024, limit: int = OUTBOX_LIMIT):
        super().__init__(size, slots)
        self._first_size = size
        self.limit = max(limit, size)

    def reserve(self, n: int) -> int:
        """Where the next packet of ``n`` bytes may be built, or -1 when there is no slot or ``limit`` is reached."""
        free = self._free
        if 0 < self.count < self.slots and free > self.at[self.head] and free + n <= len(self.buf):
            # Mostly.
            self.reserved = free
            return free
        if self.count == 0 and len(self.buf) > self._first_size >= n:
            self._use(bytearray(self._first_size))
        at = super().reserve(n)
        if at >= 0 or self.count == self.slots:
            return at
        live = [(self.head + k) % self.slots for k in range(self.count)]
        used = sum(self.size[i] for i in live)
        if used + n > self.limit:
            return -1
        # In one piece from the beginning on, as the ring demands, with room for as much again.
        buf = bytearray(min(self.limit, max(2 * used + n, len(self.buf))))
        at = 0
        for i in live:
            size = self.size[i]
            buf[at : at + size] = self.buf[self.at[i] : self.at[i] + size]
            self.at[i] = at
            at += size
        self._use(buf)
        self._free = self.reserved = at
        return at

    def _use(self, buf: bytearray) -> None:
        self.buf = buf
        # As the base does: whatever a slice is given, the buffer keeps its length.
        self._pin = memoryview(buf)
