"""The outbox: what is to be delivered at QoS 1 or 2 and is not yet acknowledged, in the order it was given.

The contract (``Outbox`` in ``headwater.types``): an entry is one encoded PUBLISH with a packet id and a
delivery state (``headwater.mqtt.transitions``). Entries form a ring, and an entry's packet id is its index + 1:
so an acknowledgement finds its entry without a search, and after a reset it is known which ids a former life may
have left open at the server. ``RamOutbox`` is the contract in memory.
"""

from array import array

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import ReceivedIds

_FREE = const(0)
_DONE = const(4)
#: Packet ids from here on belong to SUBSCRIBE and UNSUBSCRIBE.
FIRST_REQUEST_ID = const(65281)


class RamOutbox:
    """Up to ``slots`` messages in ``size`` bytes of memory; allocates nothing after construction.

    A packet is built in ``buf`` at the offset that ``reserve`` gives and becomes an entry with ``commit``.
    ``head`` is the oldest entry's index, ``count`` how many there are from it on; ``state[i]``, ``at[i]`` and
    ``size[i]`` describe entry i, whose packet id is i + 1. ``next`` is the index of the entry that the next ``commit``
    makes, ``reserved`` the offset that ``reserve`` gave last. ``fresh``: nothing is known of what was under way before
    this was made.
    """

    #: What outlives a power cut brings the QoS 2 ids that were open when it came (``types.ReceivedIds``).
    received: "ReceivedIds | None" = None

    def __init__(self, size: int, slots: int):
        if not 0 < slots < FIRST_REQUEST_ID or size < 8:
            raise ValueError("an outbox needs 1 to 65280 slots, and at least 8 bytes")
        self.buf = bytearray(size)
        # Whatever a slice is given, the buffer keeps its length.
        self._pin = memoryview(self.buf)
        self.slots = slots
        self.head = 0
        self.count = 0
        self.state = bytearray(slots)
        self.at = array("I", [0] * slots)
        self.size = array("I", [0] * slots)
        self.fresh = True
        self.next = 0
        self._free = 0
        self.reserved = 0

    def reserve(self, n: int) -> int:
        """Where in ``buf`` the next packet of ``n`` bytes may be built, or -1 when there is no slot or no room."""
        if self.count == self.slots:
            return -1
        size = len(self.buf)
        if self.count == 0:
            self._free = 0
            self.reserved = 0
            return 0 if n <= size else -1
        oldest = self.at[self.head]
        free = self._free
        if free > oldest:
            # Used bytes lie in one piece: behind them, or before them when the end is too near.
            if free + n > size:
                free = 0
                if n > oldest:
                    return -1
        elif free + n > oldest:
            return -1
        self.reserved = free
        return free

    def commit(self, n: int, state: int) -> int:
        """Make the packet of ``n`` bytes built at the reserved offset an entry; returns its index."""
        i = self.next
        self.state[i] = state
        self.at[i] = self.reserved
        self.size[i] = n
        self._free = self.reserved + n
        self.next = i + 1 if i + 1 < self.slots else 0
        self.count += 1
        return i

    def find(self, packet_id: int) -> int:
        """The index of the entry with this packet id, or -1."""
        i = packet_id - 1
        return i if 0 <= i < self.slots and _FREE != self.state[i] != _DONE else -1

    def set(self, i: int, state: int) -> int:
        """Change an entry's delivery state: 0. Acknowledged entries leave from the oldest on."""
        self.state[i] = state
        if state == _DONE:
            head = self.head
            while self.count and self.state[head] == _DONE:
                self.state[head] = _FREE
                head += 1
                if head == self.slots:
                    head = 0
                self.count -= 1
            self.head = head
        return 0

    def settle(self) -> int:
        """The other end holds nothing of an earlier life any more: ``fresh`` is over. 0."""
        self.fresh = False
        return 0

    def clear(self) -> None:
        """Forget every entry: for a session that begins anew."""
        for i in range(self.slots):
            self.state[i] = _FREE
        self.head = self.next
        self.count = 0
