"""Queues as arrays, and a group's position in one. Without I/O."""

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

_SECOND = 1_000_000_000
_LAST = 0xFFFFFFFF


class Queue:
    """The messages of a queue, oldest first: 16 bytes each for sequence number, size and second."""

    __slots__ = ("_head", "_seqs", "_sizes", "_times", "bytes")

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._sizes = array("I")
        self._times = array("I")
        self._head = 0
        #: Of all messages.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._seqs) - self._head

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._seqs, seq, self._head) - 1
        return at >= self._head and self._seqs[at] == seq

    @property
    def first(self) -> int:
        """The oldest message, 0 for none."""
        return self._seqs[self._head] if len(self) else 0

    @property
    def last(self) -> int:
        """The newest message, 0 for none."""
        return self._seqs[-1] if len(self) else 0

    def append(self, seq: int, size: int, time_ns: int) -> None:
        """Add a message."""
        self._seqs.append(seq)
        self._sizes.append(size)
        second = time_ns // _SECOND
        self._times.append(second if 0 <= second <= _LAST else 0 if second < 0 else _LAST)
        self.bytes += size

    def extend(self, seqs: Sequence[int], sizes: Sequence[int], times: Iterable[int]) -> None:
        """Add messages."""
        self._seqs.extend(seqs)
        self._sizes.extend(sizes)
        seconds = [time_ns // _SECOND for time_ns in times]
        if min(seconds) < 0 or max(seconds) > _LAST:
            seconds = [min(max(second, 0), _LAST) for second in seconds]
        self._times.extend(seconds)
        self.bytes += sum(sizes)

    def size(self, seq: int) -> int:
        """Return the size of a message that is there."""
        return self._sizes[bisect_right(self._seqs, seq, self._head) - 1]

    def after(self, seq: int, limit: int) -> list[int]:
        """Return the first messages after a sequence number, at most ``limit``."""
        at = bisect_right(self._seqs, seq, self._head)
        return self._seqs[at : at + limit].tolist()

    def behind(self, seq: int) -> int:
        """Return how many messages are after a sequence number."""
        return len(self._seqs) - bisect_right(self._seqs, seq, self._head)

    def older_than(self, time_ns: int, limit: int) -> int:
        """Return the last of at most ``limit`` oldest messages that came before a time, 0 for none."""
        second, at = time_ns // _SECOND, self._head
        end = min(len(self._seqs), at + limit)
        while at < end and self._times[at] < second:
            at += 1
        return self._seqs[at - 1] if at > self._head else 0

    def drop_through(self, seq: int, limit: int) -> list[int]:
        """Remove the messages up to a sequence number, at most ``limit``; return which they are."""
        end = min(bisect_right(self._seqs, seq, self._head), self._head + limit)
        gone = self._seqs[self._head : end].tolist()
        self.bytes -= sum(self._sizes[self._head : end])
        self._head = end
        if self._head * 2 > len(self._seqs):
            for numbers in (self._seqs, self._sizes, self._times):
                del numbers[: self._head]
            self._head = 0
        return gone


class Position:
    """A group's position in a queue.

    Messages up to ``through`` are acknowledged unless they are in ``pending``; none after it is. ``pending`` holds the
    unacknowledged messages that were handed out, in order; True: the message came back and is redelivered first.
    ``tries`` counts failed deliveries.

    The file holds ``through``, and a row for each message that came back, or that is passed over by ``through`` and not
    acknowledged. So what is written for a message does not depend on how many others stay unacknowledged.
    """

    __slots__ = (
        "_ahead",
        "_changed",
        "_cursor",
        "_returned",
        "_rows",
        "_written",
        "pending",
        "through",
        "tries",
    )

    def __init__(self, through: int):
        self.through = through
        self.tries: dict[int, int] = {}
        self.pending: OrderedDict[int, bool] = OrderedDict()
        self._returned: list[int] = []
        self._cursor = through
        #: What was handed out after ``through``, acknowledged or not. Most places are idle, and have none of it.
        self._ahead: deque[int] | None = None
        #: ``through`` as it is in the file, the messages that have a row there, and those whose row may have changed.
        self._written = -1
        self._rows: set[int] | None = None
        self._changed: dict[int, None] = {}

    def restore(self, rows: Iterable[tuple[int, int]]) -> None:
        """Take in the rows of the file: sequence number and tries of each message."""
        self._written = self._cursor = self.through
        self.pending.clear()
        found = sorted(rows)
        self._rows = {seq for seq, _ in found} or None
        for seq, tries in found:
            if tries:
                self.tries[seq] = tries
            if seq <= self.through:
                self.pending[seq] = True
        self._returned = list(self.pending)

    def replay(self, through: int) -> None:
        """Take over ``through`` from the leader's file."""
        self.through = self._written = self._cursor = through

    def replay_row(self, seq: int, tries: int) -> None:
        """Take over a message's row from the leader's file."""
        if self._rows is None:
            self._rows = set()
        self._rows.add(seq)
        self.tries.pop(seq, None)
        if tries:
            self.tries[seq] = tries

    def replay_closed(self, seqs: Iterable[int]) -> None:
        """Take over the removal of rows from the leader's file."""
        rows = self._rows or set()
        for seq in seqs:
            rows.discard(seq)
            self.tries.pop(seq, None)
        self._rows = rows or None

    def replayed(self) -> None:
        """Hand out from here on what the rows say, after the last replayed change."""
        self.restore([(seq, self.tries.get(seq, 0)) for seq in self._rows or ()])

    @property
    def floor(self) -> int:
        """The sequence number up to which everything is acknowledged."""
        return min(next(iter(self.pending)) - 1, self.through) if self.pending else self.through

    def behind(self, queue: Queue) -> int:
        """Return how many of a queue's messages are not acknowledged."""
        return queue.behind(self._cursor) + sum(seq >= queue.first for seq in self.pending)

    def take(self, queue: Queue, limit: int, durable: int) -> list[int]:
        """Return the messages to hand out next, at most ``limit``, none after ``durable``."""
        found: list[int] = []
        while self._returned and len(found) < limit:
            seq = heappop(self._returned)
            # It may have been acknowledged or removed meanwhile.
            if seq not in queue:
                self.ack(seq)
            elif self.pending.get(seq):
                self.pending[seq] = False
                found.append(seq)
        for seq in queue.after(self._cursor, limit - len(found)):
            if seq > durable:
                break
            self._cursor = seq
            self.pending[seq] = False
            if self._ahead is None:
                self._ahead = deque()
            self._ahead.append(seq)
            found.append(seq)
        return found

    def ack(self, seq: int) -> bool:
        """Acknowledge a message; return whether it was unacknowledged."""
        if seq not in self.pending:
            return False
        del self.pending[seq]
        self.tries.pop(seq, None)
        self._changed[seq] = None
        if seq > self.through:
            self.through = seq
            ahead = self._ahead
            while ahead and ahead[0] <= seq:
                passed = ahead.popleft()
                if passed in self.pending:
                    self._changed[passed] = None
            if not ahead:
                self._ahead = None
        return True

    def give_back(self, seq: int) -> int:
        """Redeliver a message. Return its number of failed deliveries, 0 if it was not delivered."""
        if self.pending.get(seq) is not False:
            return 0
        self.pending[seq] = True
        heappush(self._returned, seq)
        self.tries[seq] = self.tries.get(seq, 0) + 1
        self._changed[seq] = None
        return self.tries[seq]

    def untake(self, seqs: Iterable[int]) -> None:
        """Hand out messages again that were taken and not delivered, without counting a try."""
        for seq in seqs:
            self.pending[seq] = True
            heappush(self._returned, seq)

    def rewind(self) -> None:
        """Have everything unacknowledged redelivered, without counting a try."""
        self._returned = list(self.pending)
        heapify(self._returned)
        self.pending = OrderedDict.fromkeys(self.pending, True)

    def settle(self) -> tuple[bool, list[tuple[int, int]], list[int]]:
        """Return the changes to write: whether ``through`` changed, rows (sequence number, tries), and rows to
        remove."""
        moved, self._written = self._written != self.through, self.through
        changed, self._changed = self._changed, {}
        rows = self._rows or set()
        opened = [(seq, self.tries.get(seq, 0)) for seq in changed if seq in self.pending]
        closed = [seq for seq in changed if seq not in self.pending and seq in rows]
        rows.update(seq for seq, _ in opened)
        rows.difference_update(closed)
        self._rows = rows or None
        return moved, opened, closed
