"""The outbox in memory: unacknowledged messages, in a buffer that grows with them."""

from typing import Any

from headwater.connection import RamOutbox

#: Default size of the buffer while it is empty, in bytes.
OUTBOX_SIZE = 1 << 16
#: How many bytes unacknowledged messages may take together.
OUTBOX_LIMIT = 1 << 29


class GrowingOutbox(RamOutbox):
    """A ``RamOutbox`` that grows from ``size`` to ``limit`` bytes, and shrinks when it is empty.

    Growing moves the entries, so this is only for transports that take whole packets.
    """

    #: The parts of FMQ's message ids, if the outbox stores them.
    message_ids: Any = None

    def __init__(self, size: int = OUTBOX_SIZE, slots: int = 1024, limit: int = OUTBOX_LIMIT):
        super().__init__(size, slots)
        self._first_size = size
        self.limit = max(limit, size)

    def reserve(self, n: int) -> int:
        """Return where to build the next packet of ``n`` bytes, or -1 without a slot or beyond ``limit``."""
        free = self._free
        if 0 < self.count < self.slots and free > self.at[self.head] and free + n <= len(self.buf):
            # The usual case.
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
        # The ring must be contiguous. Double its size.
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
        # A view pins the buffer, so that no slice assignment can change its length.
        self._pin = memoryview(buf)
