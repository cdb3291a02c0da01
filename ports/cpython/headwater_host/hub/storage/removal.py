"""Remove messages that no group needs."""

from bisect import bisect_right
from functools import partial
from itertools import islice

from headwater_host.hub.storage.cache import Cache
from headwater_host.hub.storage.queues import Queue
from headwater_host.hub.storage.topic import Topic, Topics
from headwater_host.hub.storage.writer import Writer

#: Messages that are removed in one transaction.
SWEPT = 2_000


class Removal:
    """Pending removals: from queues, up to a sequence number; and all queues of deleted topics."""

    def __init__(self, topics: Topics, writer: Writer, cache: Cache):
        self._topics = topics
        self._writer = writer
        self._cache = cache
        self._done: dict[tuple[Topic, int], int] = {}
        #: By the number of the topic.
        self._leaving: dict[int, list[Queue]] = {}
        #: Messages since the start that were removed before every group had them.
        self.dropped = 0

    @property
    def pending(self) -> bool:
        """True if there is anything to remove."""
        return bool(self._done or self._leaving)

    def mark(self, topic: Topic, queue: int, through: int) -> None:
        """Have the messages of a queue removed, up to a sequence number."""
        if 0 < topic.queues[queue].first <= through:
            self._done[topic, queue] = max(through, self._done.get((topic, queue), 0))

    def mark_done(self, topic: Topic, queue: int) -> None:
        """Have the messages of a queue removed that every group has acknowledged."""
        self.mark(topic, queue, topic.done_through(queue))

    def mark_topic(self, number: int, queues: list[Queue]) -> None:
        """Have all messages of a deleted topic removed."""
        self._leaving[number] = queues

    def sweep(self) -> None:
        """Remove some of it, as far as this transaction has room."""
        gone = self._writer.batch.gone
        for (topic, queue), through in list(islice(self._done.items(), SWEPT)):
            if self._topics.get(topic.name) is topic:
                self.drop(topic, queue, through, max(SWEPT - len(gone), 0))
                if 0 < topic.queues[queue].first <= through:
                    return
            del self._done[topic, queue]
        for number, rest in list(islice(self._leaving.items(), SWEPT)):
            while rest:
                seqs = rest[-1].drop_through(rest[-1].last, max(SWEPT - len(gone), 0))
                self._cache.drop(seqs)
                gone += seqs
                if len(rest[-1]):
                    return
                rest.pop()
            del self._leaving[number]
            self._writer.tidy("left", number)
            # A follower of this storage may read messages of the topic until the transaction is written.
            self._writer.after(partial(self._topics.forget, number))

    def drop(self, topic: Topic, queue: int, through: int, limit: int) -> None:
        """Remove the messages of a queue up to a sequence number, at most ``limit``."""
        done = topic.done_through(queue)
        gone = self._topics.drop(topic, queue, through, limit)
        if not gone:
            return
        if topic.groups:
            self.dropped += len(gone) - bisect_right(gone, done)
        self._cache.drop(gone)
        self._writer.batch.gone += gone
        self._writer.note("trim", topic.number, queue, gone[-1])

    def make_room(self, topic: Topic, size: int, *, may_drop: bool) -> bool:
        """Remove the oldest messages of a topic until one more of this size fits; return whether it does."""
        topics = self._topics
        # Remove first what every group has acknowledged: in this topic, then in others.
        for queue in range(len(topic.queues)) if self._done else ():
            through = self._done.get((topic, queue), 0)
            while 0 < topic.queues[queue].first <= through and topics.is_full(topic, size):
                self.drop(topic, queue, through, 1)
        if topics.is_full(topic, size):
            self.sweep()
        while topics.is_full(topic, size):
            if not may_drop or not topic.count:
                return False
            queue = topic.oldest()
            self.drop(topic, queue, topic.queues[queue].first, 1)
        return True
