"""Messages by sequence number: the last ones in memory, others from the storage."""

from collections.abc import Iterable, Sequence
from typing import Any

from headwater_host.hub.storage.contract import Engine
from headwater_host.hub.storage.queues import Queue
from headwater_host.hub.storage.records import Message, held, message

#: Bytes of messages that are read from the storage at once, since the event loop waits for them.
READ = 1 << 20
#: Messages that are read from the storage in one query.
_AT_ONCE = 500


class Cache:
    """The messages of a storage. ``limit``: bytes of those that stay in memory after a commit."""

    def __init__(self, engine: Engine, limit: int):
        self._engine = engine
        self._limit = limit
        #: By sequence number. The garbage collector does not track exact tuples of such values.
        self._there: dict[int, tuple[Any, ...]] = {}
        #: No message is older.
        self._oldest = 0
        self._bytes = 0
        #: Messages since the start that could not be read as they were written.
        self.damaged = 0

    def __len__(self) -> int:
        """Return how many messages are in memory."""
        return len(self._there)

    def readable(self, seqs: Sequence[int], queue: Queue) -> int:
        """Return the number of a queue's messages, at least one, that one ``read`` may return: the others are too much
        to be read from the storage at once."""
        room = READ
        for n, seq in enumerate(seqs):
            if seq not in self._there:
                room -= queue.size(seq)
                if room < 0 < n:
                    return n
        return len(seqs)

    def put(self, fresh: Message, size: int) -> None:
        """Add the newest message, which takes ``size`` bytes."""
        if not self._there:
            self._oldest = fresh.seq
        self._there[fresh.seq] = tuple(fresh)
        self._bytes += size

    def drop(self, seqs: Iterable[int]) -> None:
        """Drop messages, if they are in memory."""
        for seq in seqs:
            found = self._there.pop(seq, None)
            if found is not None:
                self._bytes -= held(found)

    def shrink(self) -> None:
        """Drop the oldest messages beyond ``limit``, also those not on the disk yet: they are read only afterwards."""
        while self._bytes > self._limit:
            self.drop((self._oldest,))
            self._oldest += 1

    def read(self, topic: str, seqs: Iterable[int]) -> list[Message]:
        """Return those of a topic's messages that can be read, in the same order. Raises StorageError."""
        wanted: dict[int, Message | None] = dict.fromkeys(seqs)
        for seq in wanted:
            stored = self._there.get(seq)
            if stored is not None:
                wanted[seq] = Message._make(stored)
        missing = [seq for seq, one in wanted.items() if one is None]
        for n in range(0, len(missing), _AT_ONCE):
            for values in self._engine.read(missing[n : n + _AT_ONCE]):
                wanted[values[0]] = message(values, topic)
        found = [one for one in wanted.values() if one is not None]
        self.damaged += len(wanted) - len(found)
        return found
