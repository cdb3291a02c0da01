"""Remembered message ids, which identify duplicates."""

from collections import deque

from headwater_host.hub.storage.records import Seen
from headwater_host.hub.storage.writer import Writer


class SeenIds:
    """The ids of the last messages, at most ``limit``."""

    def __init__(self, writer: Writer, limit: int):
        self._writer = writer
        self._limit = limit
        #: To be read only.
        self.ids: set[bytes] = set()
        #: The oldest first.
        self._order: deque[Seen] = deque()
        #: The last change whose id was forgotten since the last transaction.
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._order)

    def restore(self, found: list[Seen], renewed: tuple[int, int], forgotten: int) -> None:
        """Take in the ids of the file, the oldest first, after the change ``forgotten``. ``renewed``: see
        ``Counters``."""
        last, at = renewed
        for seq, ident, time_ns in found:
            if seq > forgotten:
                self._order.append((seq, ident, time_ns if seq > last else at))
                self.ids.add(ident)

    def add(self, seq: int, ident: bytes, time_ns: int) -> None:
        """Remember the id of a message that is stored now."""
        self.replay(seq, ident, time_ns)
        while len(self.ids) > self._limit:
            self._forget()

    def replay(self, seq: int, ident: bytes, time_ns: int) -> None:
        """Remember the id of a message of the leader, which decides how many are remembered."""
        seen = seq, ident, time_ns
        self.ids.add(ident)
        self._order.append(seen)
        self._writer.batch.seen.append(seen)

    def replay_forgotten(self, seq: int) -> None:
        """Forget the ids that the leader has forgotten, up to a change."""
        while self._order and self._order[0][0] <= seq:
            self.ids.discard(self._order.popleft()[1])
        self._writer.tidy("forget_ids", seq)

    def _forget(self) -> None:
        seq, ident, _ = self._order.popleft()
        self.ids.discard(ident)
        self._forgotten = seq
        self._writer.wake()

    def forget_before(self, time_ns: int, most: int) -> bool:
        """Remove ids from before a time, up to a limit. Return whether there may be more."""
        while most > 0 and self._order and self._order[0][2] < time_ns:
            self._forget()
            most -= 1
        return most <= 0

    def settle(self) -> None:
        """Complete the transaction. Followers forget the same ids."""
        if self._forgotten:
            self._writer.change("counter", "forgotten", self._forgotten)
            self._writer.tidy("forget_ids", self._forgotten)
            self._forgotten = 0
