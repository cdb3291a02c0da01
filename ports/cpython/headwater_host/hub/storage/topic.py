"""Topics in memory: their queues, where each group is in them, and what all of them may take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.mqtt import spec5
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage.queues import Position, Queue
from headwater_host.hub.topics import Names, check_topic

#: Dead-letter topics: this, and the name of the topic.
DEAD = "$dead/"


@dataclass(frozen=True)
class Limits:
    """Limits of stored messages and their age; docs/hub.md explains each. Bytes are those of payloads, ids and tags,
    and for each message 64 on disk, or ``records.HELD`` in memory."""

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
    #: When a topic is full of messages that a group has not acknowledged: "refuse" the new one or "drop" the oldest.
    full: str = "refuse"
    #: Number of deliveries of a message before it goes to the dead-letter topic.
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
    #: The number of changes kept for followers.
    changes: int = 100_000


class Topic:
    """A registered topic; ``number`` identifies it in the file and is never reused."""

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
        """True if it is a dead-letter topic."""
        return self.name.startswith(DEAD)

    def drop_through(self, queue: int, seq: int, limit: int) -> list[int]:
        """Remove the messages of a queue up to a sequence number, at most ``limit``; return which they are."""
        before = self.queues[queue].bytes
        gone = self.queues[queue].drop_through(seq, limit)
        self.count -= len(gone)
        self.bytes -= before - self.queues[queue].bytes
        return gone

    def done_through(self, queue: int) -> int:
        """Return the sequence number up to which every group has acknowledged a queue, 0 without groups."""
        return min((positions[queue].floor for positions in self.groups.values()), default=0)

    def oldest(self) -> int:
        """Return the queue with the oldest message; there must be one."""
        return min((queue.first, n) for n, queue in enumerate(self.queues) if queue.first)[1]


class Topics(dict[str, Topic]):
    """All topics by name, within ``limits``."""

    def __init__(self, limits: Limits):
        super().__init__()
        self._limits = limits
        #: The topics by number; deleted ones until that is on the disk with their messages.
        self.numbers: dict[int, Topic] = {}
        self.departed: dict[int, Topic] = {}
        #: The topics, to be found by filter.
        self.names = Names(limits.topics)
        #: Messages of all topics, and their bytes.
        self.count = self.bytes = 0
        #: Queues of all topics, and those that groups are in: each group counts each queue of its topics.
        self.queues = self.places = 0

    def named(self, name: str) -> Topic:
        """Return a topic. Raises RefusedError."""
        topic = self.get(name)
        if topic is None:
            raise RefusedError(spec5.TOPIC_NAME_INVALID, f"there is no topic {name!r}")
        return topic

    def restore(self, number: int, name: str, queues: int) -> None:
        """Take in a topic of the file."""
        self.names.add(name, anyway=True)
        self[name] = self.numbers[number] = Topic(name, number, queues)
        self.queues += queues

    def check_growth(self, name: str, queues: int) -> bool:
        """Return whether a topic is new or grows with this number of queues. Raises RefusedError."""
        check_topic(name)
        topic = self.get(name)
        if not 1 <= queues <= self._limits.queues:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"a topic has 1 to {self._limits.queues} queues")
        before, groups = (len(topic.queues), len(topic.groups)) if topic is not None else (0, 0)
        if queues < before:
            text = f"{name!r} has {before} queues, and cannot have {queues}"
            raise RefusedError(spec5.IMPLEMENTATION_SPECIFIC_ERROR, text)
        if queues == before:
            return False
        self.check_room(queues - before, (queues - before) * groups)
        return True

    def check_room(self, queues: int, places: int) -> None:
        """Raise RefusedError if this number of queues and places of groups cannot be added."""
        if self.queues + queues > self._limits.all_queues:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"there are {self.queues} queues already")
        if self.places + places > self._limits.places:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"groups are in {self.places} queues already")

    def grow(self, name: str, number: int, queues: int) -> Topic:
        """Return a topic with this number of queues; it gets ``number`` if it is new."""
        topic = self.get(name)
        if topic is None:
            # The limit is not checked: there are at most as many dead-letter topics as others.
            self.names.add(name, anyway=True)
            topic = self[name] = self.numbers[number] = Topic(name, number, 0)
        fresh = queues - len(topic.queues)
        topic.queues += [Queue() for _ in range(fresh)]
        self.queues += fresh
        self.places += fresh * len(topic.groups)
        return topic

    def remove(self, name: str) -> Topic | None:
        """Remove a topic, and return it if there was one."""
        topic = self.pop(name, None)
        if topic is not None:
            self.departed[topic.number] = self.numbers.pop(topic.number)
            self.names.remove(name)
            self.count -= topic.count
            self.bytes -= topic.bytes
            self.queues -= len(topic.queues)
            self.places -= len(topic.queues) * len(topic.groups)
        return topic

    def forget(self, number: int) -> None:
        """Forget the name of a deleted topic."""
        self.departed.pop(number, None)

    def is_full(self, topic: Topic, size: int) -> bool:
        """Return whether there is no room in a topic for a message of this size."""
        limits = self._limits
        return (
            topic.count >= limits.topic_messages
            or topic.bytes + size > limits.topic_bytes
            or self.bytes + size > limits.bytes
        )

    def append(self, topic: Topic, queue: int, seq: int, size: int, time_ns: int) -> None:
        """Add a message."""
        topic.queues[queue].append(seq, size, time_ns)
        topic.count += 1
        topic.bytes += size
        self.count += 1
        self.bytes += size

    def extend(
        self, topic: Topic, queue: int, seqs: Sequence[int], sizes: Sequence[int], times: Iterable[int]
    ) -> None:
        """Add messages."""
        size = sum(sizes)
        topic.queues[queue].extend(seqs, sizes, times)
        topic.count += len(seqs)
        topic.bytes += size
        self.count += len(seqs)
        self.bytes += size

    def drop(self, topic: Topic, queue: int, through: int, limit: int) -> list[int]:
        """Remove the messages of a queue up to a sequence number, at most ``limit``; return which they are."""
        before = topic.bytes
        gone = topic.drop_through(queue, through, limit)
        self.count -= len(gone)
        self.bytes -= before - topic.bytes
        return gone
