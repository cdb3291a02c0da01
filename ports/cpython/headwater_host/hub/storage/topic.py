"""A topic in memory: its queues, and where each group is in them; and what is allowed in all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater_host.hub.storage.queues import Position, Queue

#: Where messages go that nobody would acknowledge: this, and the name of their topic.
DEAD = "$dead/"


@dataclass(frozen=True)
class Limits:
    """What is kept, and for how long. Bytes are those of payloads, ids and tags, and for each message 64 on disk, or
    ``records.HELD`` in memory."""

    topics: int = 100_000
    #: Of one topic, and of all of them.
    queues: int = 1024
    all_queues: int = 200_000
    #: Queues that groups are in: each group counts each queue of its topics.
    places: int = 200_000
    topic_messages: int = 1_000_000
    topic_bytes: int = 1 << 30
    #: Of all topics.
    bytes: int = 8 << 30
    #: Seconds that a message is kept at most, acknowledged or not; 0 for ever.
    age: float = 7 * 86400.0
    #: What happens when a topic is full of messages that somebody is still to have: "refuse" or "drop", the oldest.
    full: str = "refuse"
    #: How often a message is handed out, until it goes to the dead-letter topic.
    tries: int = 10
    #: How many ids, and for how many seconds, are remembered to find duplicates: whichever comes first.
    ids: int = 100_000
    ids_age: float = 86400.0
    #: Bytes of messages held in memory, so that they need not be read.
    cache: int = 64 << 20
    #: Bytes of all retained messages, which are held in memory.
    retained: int = 64 << 20
    #: Bytes of messages that may wait for the disk.
    waiting: int = 64 << 20
    #: How many changes a follower may be behind.
    changes: int = 100_000


class Topic:
    """A registered topic; ``number`` is what it is called in the file, and never another topic's."""

    __slots__ = ("bytes", "count", "groups", "name", "number", "queues")

    def __init__(self, name: str, number: int, queues: int):
        self.name = name
        self.number = number
        self.queues = [Queue() for _ in range(queues)]
        #: For each group, its place in each queue.
        self.groups: dict[str, list[Position]] = {}
        self.count = 0
        self.bytes = 0

    @property
    def is_dead(self) -> bool:
        """Whether messages are here because nobody acknowledged them."""
        return self.name.startswith(DEAD)

    def append(self, queue: int, seq: int, size: int, time_ns: int) -> None:
        """A message behind all others of a queue."""
        self.queues[queue].append(seq, size, time_ns)
        self.count += 1
        self.bytes += size

    def extend(self, queue: int, seqs: Sequence[int], sizes: Sequence[int], times: Iterable[int]) -> None:
        """Messages behind all others of a queue."""
        self.queues[queue].extend(seqs, sizes, times)
        self.count += len(seqs)
        self.bytes += sum(sizes)

    def drop_through(self, queue: int, seq: int, limit: int) -> list[int]:
        """Forget the messages of a queue up to a sequence number, at most ``limit``: which they are."""
        before = self.queues[queue].bytes
        gone = self.queues[queue].drop_through(seq, limit)
        self.count -= len(gone)
        self.bytes -= before - self.queues[queue].bytes
        return gone

    def done_through(self, queue: int) -> int:
        """The sequence number up to which every group has acknowledged a queue; 0 without groups."""
        return min((positions[queue].floor for positions in self.groups.values()), default=0)

    def oldest(self) -> int:
        """The queue with the oldest message; there must be one."""
        return min((queue.first, n) for n, queue in enumerate(self.queues) if queue.first)[1]
