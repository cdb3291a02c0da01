"""What the hub calls. State is in memory; each change is made there at once, and goes into the transaction of this turn
of the event loop; ``after`` calls back when that is on the disk.

    store = Store.open("hub.db")
    store.register("boards/7", queues=4)
    if store.publish("boards/7", ident, process, payload, qos=1, time_ns=store.age.now()):
        store.after(send_ack)

Times are age time (``headwater_host.lifetime``): a clock that is set makes nothing old.

Everything is called in the event loop's thread. Messages are handed out (``take``, ``read``, ``on_commit``) only once
they are on the disk: what a consumer has seen cannot come a second time because the hub lost it.
"""

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from os import PathLike, fspath
from typing import NamedTuple

from headwater_host.hub.errors import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    QUOTA_EXCEEDED,
    TOPIC_NAME_INVALID,
    RefusedError,
    StorageError,
)
from headwater_host.hub.storage import follow, restore
from headwater_host.hub.storage.cache import Cache
from headwater_host.hub.storage.file import File, damaged, explained
from headwater_host.hub.storage.queues import Position, Queue
from headwater_host.hub.storage.records import (
    HELD,
    OVERHEAD,
    STATEMENTS,
    Change,
    Message,
    Seen,
    encoded,
    last_seq,
    row,
    stored_row,
    tags_text,
)
from headwater_host.hub.storage.sessions import Sessions
from headwater_host.hub.storage.topic import DEAD, Limits, Topic
from headwater_host.hub.storage.writer import Batch, Writer
from headwater_host.hub.topics import Names, check_topic
from headwater_host.lifetime import AgeClock, Clocks

_SECOND = 1_000_000_000
#: Seconds after which the age time is written though nothing else is: at a power cut no more of it is lost.
_IDLE = 3600.0
#: Messages that are removed at most in one transaction; those, ids and changes that one call of ``trim`` finds.
_SWEPT = 2_000
_TRIMMED = 20_000


class Delivery(NamedTuple):
    """A message to hand out, and how often it came back so far."""

    message: Message
    tries: int


class Store:
    """The hub's storage. ``open`` makes one. StorageError: the file cannot be used, or not any more."""

    def __init__(self, file: File, limits: Limits, clocks: Clocks | None = None):
        assert file.writer is not None
        assert file.reader is not None
        self._file = file
        self._reader = file.reader
        self.limits = limits
        self._writer = Writer(file.writer, last_seq(file.reader), self._settle, self._written)
        #: A sender has published so many bytes: whether it has had its share of this transaction.
        self.share = self._writer.share
        self.sessions = Sessions(self._writer)
        self.topics: dict[str, Topic] = {}
        #: The topics, to be found by filter.
        self.names = Names(limits.topics)
        self.retained: dict[str, Message] = {}
        #: Called after each commit with the messages that can be handed out now.
        self.on_commit: Callable[[list[Message]], None] = lambda stored: None
        #: All messages; their bytes, and those of the retained ones.
        self.count = self.bytes = self.retained_bytes = 0
        #: Since the start: messages that were dropped though somebody was still to have them; that came a second time;
        #: that went to a dead-letter topic.
        self.dropped = self.duplicates = self.dead = 0
        self._ids: set[bytes] = set()
        self._order: deque[Seen] = deque()
        self._cache = Cache(file.reader, file.path, limits.cache)
        #: The groups' places that changed in this turn: (topic, queue, group).
        self._moved: dict[tuple[Topic, int, str], None] = {}
        #: The last id that was forgotten in this turn; the last change that is not kept any more.
        self._forgotten = self._followed = 0
        self._queues = self._places = 0
        #: How often the storage was opened to be served from.
        self._starts = 0
        #: What came up to this change had its time by the wall clock; it counts as of this age time.
        self._renewed = (0, 0)
        self._is_aged = False
        self.age: AgeClock
        self._clocks = clocks
        #: What is to be removed bit by bit: from queues, up to a sequence number; all queues of topics that are gone.
        self._done: dict[tuple[Topic, int], int] = {}
        self._leaving: dict[int, list[Queue]] = {}
        self._load()

    @classmethod
    def open(
        cls,
        path: "str | PathLike[str]",
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        *,
        group_readable: bool = False,
    ) -> "Store":
        """The storage in a file, with what that holds; made when it is not there. Raises StorageError."""
        file = File(fspath(path), group_readable=group_readable)
        try:
            return cls(file, limits or Limits(), clocks)
        except sqlite3.Error as error:
            file.close()
            raise explained(file.path, error) from error
        except BaseException:
            file.close()
            raise

    async def close(self) -> None:
        """Write what is left and give the file back. Raises StorageError when not all of it could be written."""
        try:
            if (self.age.is_due or not self._is_aged) and self.error is None:
                self._writer.wake()
            await self._writer.close()
        finally:
            self._file.close()

    def _load(self) -> None:
        file = self._file
        kept, renewed = "", ""
        names: dict[int, str] = {}
        for name, value in restore.rows(file, "counter"):
            if name == "process":
                self.sessions.last_process = value
            elif name == "followed":
                self._followed = value
            elif name == "starts":
                self._starts = value
            elif name == "age":
                kept = value
            elif name == "renewed":
                renewed = value
        try:
            self.age = AgeClock(kept, self._clocks)
            self._is_aged = bool(kept)
            if renewed:
                last, at = json.loads(renewed)
                self._renewed = last, at
            elif not kept:
                self._renewed = self._writer.seq, self.age.now()
        except (TypeError, ValueError) as error:
            raise damaged(file.path, str(error)) from error
        last, at = self._renewed
        for number, name, queues in restore.rows(file, "register"):
            names[number] = name
            self.names.add(name, anyway=True)
            self.topics[name] = Topic(name, number, queues)
            self._queues += queues
        try:
            self._leaving = {number: [] for number in restore.leaving(self._reader)}
            if not self._leaving.keys().isdisjoint(names):
                raise LookupError("a topic that is gone is there")
            for number, queue, seqs, sizes, times in restore.index(self._reader):
                if number in self._leaving:
                    # Each piece as a queue of its own: those of several are not in order.
                    self._leaving[number].append(Queue())
                    self._leaving[number][-1].extend(seqs, sizes, times)
                    continue
                if seqs[0] <= last:
                    times = [one if seq > last else at for seq, one in zip(seqs, times, strict=True)]
                self.topics[names[number]].extend(queue, seqs, sizes, times)
                self.count += len(seqs)
                self.bytes += sum(sizes)
            opened: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
            for group, number, queue, seq, tries in restore.rows(file, "open"):
                opened.setdefault((group, number, queue), []).append((seq, tries))
            for group, number, queue, through in restore.rows(file, "position"):
                topic = self.topics[names[number]]
                places = topic.groups.setdefault(group, [Position(0) for _ in topic.queues])
                self._places += 1
                places[queue] = Position(through)
                places[queue].restore(opened.pop((group, number, queue), ()))
            if opened:
                raise LookupError("messages of groups that are not there")
            for kind in ("client", "session", "subscribe", "hold", "will"):
                for values in restore.rows(file, kind):
                    self.sessions.restore(kind, values)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise damaged(file.path, f"its tables do not fit together: {error!r}") from error
        for found in restore.retained(file, names):
            self.retained[found.topic] = found
            self.retained_bytes += found.held
        for topic in self.topics.values():
            for queue in range(len(topic.queues)) if topic.groups else ():
                self._leave(topic, queue, topic.done_through(queue))
        for seq, ident, time_ns in restore.ids(file, self.limits.ids):
            self._order.append((seq, ident, time_ns if seq > last else at))
            self._ids.add(ident)

    def start(self) -> int:
        """A number that no other start of a hub with this file has."""
        self._starts += 1
        self._writer.change("counter", "starts", self._starts)
        return self._starts

    # -- commits -----------------------------------------------------------------------------------------------------

    def after(self, done: Callable[[], None]) -> None:
        """Call this when every change so far is on the disk; at once when all are."""
        self._writer.after(done)

    def answer(self, send: Callable[[bytes], None], data: bytes) -> None:
        """Have ``send`` called as ``after`` does, once for everything that waits for it."""
        self._writer.answer(send, data)

    @property
    def durable(self) -> int:
        """The sequence number up to which everything is on the disk."""
        return self._writer.durable

    @property
    def seq(self) -> int:
        """The sequence number of the last change."""
        return self._writer.seq

    @property
    def waiting(self) -> int:
        """Bytes of messages and changes that are not on the disk yet."""
        return self._writer.waiting

    @property
    def error(self) -> Exception | None:
        """Why nothing can be written just now; it is tried again every second."""
        return self._writer.error

    def tell(self, on_error: Callable[[Exception | None], object]) -> None:
        """``on_error(error)`` when nothing can be written any more, ``on_error(None)`` when it can again."""
        self._writer.on_error = on_error

    @property
    def commits(self) -> int:
        """Transactions since the start."""
        return self._writer.commits

    @property
    def damaged(self) -> int:
        """Messages since the start that could not be read as they were written."""
        return self._cache.damaged

    def next_turn(self, done: Callable[[], None]) -> None:
        """Call this when another transaction begins to collect changes."""
        self._writer.next_turn(done)

    def _settle(self) -> bool:
        """Complete the transaction: where groups are now, and what all of them are done with. True: some of that is
        left for the next one."""
        moved, self._moved = self._moved, {}
        queues: dict[tuple[Topic, int], None] = {}
        for topic, queue, group in moved:
            positions = topic.groups.get(group)
            if positions is not None and self.topics.get(topic.name) is topic:
                self._place(group, topic.number, queue, positions[queue])
                queues[topic, queue] = None
        for topic, queue in queues:
            self._leave(topic, queue, topic.done_through(queue))
        self._sweep()
        if self.age.is_due or not self._is_aged:
            self._keep_age()
        if self._forgotten:
            self._writer.batch.statements.append(("DELETE FROM seen WHERE seq <= ?", (self._forgotten,)))
            self._forgotten = 0
        return bool(self._done or self._leaving)

    def _leave(self, topic: Topic, queue: int, through: int) -> None:
        """The messages of a queue up to a sequence number are not wanted any more."""
        if 0 < topic.queues[queue].first <= through:
            self._done[topic, queue] = max(through, self._done.get((topic, queue), 0))

    def _sweep(self) -> None:
        """Remove some of what is not wanted any more."""
        gone = self._writer.batch.gone
        for (topic, queue), through in list(islice(self._done.items(), _SWEPT)):
            if self.topics.get(topic.name) is topic:
                self._drop(topic, queue, through, max(_SWEPT - len(gone), 0))
                if 0 < topic.queues[queue].first <= through:
                    return
            del self._done[topic, queue]
        for number, rest in list(islice(self._leaving.items(), _SWEPT)):
            while rest:
                seqs = rest[-1].drop_through(rest[-1].last, max(_SWEPT - len(gone), 0))
                self._cache.drop(seqs)
                gone += seqs
                if len(rest[-1]):
                    return
                rest.pop()
            del self._leaving[number]
            self._writer.batch.statements.append(("DELETE FROM leaving WHERE topic = ?", (number,)))

    def _place(self, group: str, topic: int, queue: int, position: Position) -> None:
        moved, opened, closed = position.settle()
        change = self._writer.change
        if moved:
            change("position", group, topic, queue, position.through)
        for seq, tries in opened:
            change("open", group, topic, queue, seq, tries)
        if closed:
            change("close", group, topic, queue, closed)

    def _keep_age(self) -> None:
        """Have the age time written. It is no change: who follows has a clock of his own."""
        values = [("age", self.age.kept())]
        if not self._is_aged:
            values.append(("renewed", encoded(self._renewed)))
        self._is_aged = True
        for value in values:
            self._writer.batch.statements.append(
                (STATEMENTS["counter"][0], stored_row("counter", value, encoded(value)))
            )

    def _written(self, batch: Batch) -> None:
        self._cache.shrink()
        if batch.stored:
            self.on_commit(batch.stored)

    # -- topics ------------------------------------------------------------------------------------------------------

    def register(self, name: str, queues: int = 1) -> bool:
        """Have a topic with so many queues: whether that changed anything. It grows, but never shrinks. Raises
        RefusedError."""
        check_topic(name)
        topic = self.topics.get(name)
        if not 1 <= queues <= self.limits.queues:
            raise RefusedError(QUOTA_EXCEEDED, f"a topic has 1 to {self.limits.queues} queues")
        if topic is not None and queues < len(topic.queues):
            text = f"{name!r} has {len(topic.queues)} queues, and cannot have {queues}"
            raise RefusedError(IMPLEMENTATION_SPECIFIC_ERROR, text)
        if topic is not None and queues == len(topic.queues):
            return False
        before, groups = (len(topic.queues), len(topic.groups)) if topic else (0, 0)
        self._check_many(queues - before, (queues - before) * groups)
        self.names.add(name)
        self._register(name, queues)
        return True

    def _check_many(self, queues: int, places: int) -> None:
        if self._queues + queues > self.limits.all_queues:
            raise RefusedError(QUOTA_EXCEEDED, f"there are {self._queues} queues already")
        if self._places + places > self.limits.places:
            raise RefusedError(QUOTA_EXCEEDED, f"groups are in {self._places} queues already")

    def _register(self, name: str, queues: int) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            # A dead-letter topic needs nobody's leave: there are no more of them than of others.
            self.names.add(name, anyway=True)
            topic = self.topics[name] = Topic(name, self._writer.seq + 1, 0)
        fresh = Topic(name, 0, queues).queues[len(topic.queues) :]
        topic.queues += fresh
        self._queues += len(fresh)
        self._places += len(fresh) * len(topic.groups)
        self._writer.change("register", topic.number, name, queues)
        for group, positions in topic.groups.items():
            while len(positions) < queues:
                self._moved[topic, len(positions), group] = None
                positions.append(Position(0))
        return topic

    def unregister(self, name: str) -> bool:
        """Forget a topic and everything in it: whether there was one."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return False
        self.names.remove(name)
        self._leaving[topic.number] = topic.queues
        self.count -= topic.count
        self.bytes -= topic.bytes
        self._queues -= len(topic.queues)
        self._places -= len(topic.queues) * len(topic.groups)
        self._unretain(name)
        self._writer.batch.retained.pop(topic.number, None)
        self._writer.change("unregister", topic.number)
        return True

    def _topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise RefusedError(TOPIC_NAME_INVALID, f"there is no topic {name!r}")
        return topic

    # -- messages ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        ident: bytes,
        process: int,
        payload: bytes,
        *,
        tags: tuple[str, ...] = (),
        qos: int = 0,
        retain: bool = False,
        time_ns: int,
    ) -> int:
        """Store a message under its id: its sequence number, or 0 when it is stored already. It is in queue
        ``process`` mod n. Raises RefusedError; nothing is stored then."""
        found = self.topics.get(topic) or self._topic(topic)
        ids, writer = self._ids, self._writer
        if ident in ids:
            self.duplicates += 1
            return 0
        size = len(payload) + len(ident) + OVERHEAD + (len(tags_text(tags)) if tags else 0)
        if retain or writer.waiting >= self.limits.waiting or self._is_full(found, size):
            self._check_room(found, size, retain and payload != b"")
        seq = writer.next()
        queue = process % len(found.queues)
        self._put(found, Message(seq, ident, topic, queue, tags, payload, qos, retain, time_ns), size)
        seen = seq, ident, time_ns
        ids.add(ident)
        self._order.append(seen)
        writer.batch.seen.append(seen)
        while len(ids) > self.limits.ids:
            self._forget_id()
        return seq

    def _put(self, topic: Topic, fresh: Message, size: int) -> None:
        writer = self._writer
        batch = writer.batch
        batch.stored.append(fresh)
        batch.numbers.append(topic.number)
        held = fresh.held
        writer.fill(held)
        topic.append(fresh.queue, fresh.seq, size, fresh.time_ns)
        self.count += 1
        self.bytes += size
        self._cache.put(fresh, held)
        if fresh.retain:
            values = row(fresh, topic.number)
            self._unretain(topic.name)
            batch.retained[topic.number] = values if fresh.payload else None
            if fresh.payload:
                self.retained[topic.name] = fresh
                self.retained_bytes += held

    def _unretain(self, name: str) -> None:
        before = self.retained.pop(name, None)
        if before is not None:
            self.retained_bytes -= before.held

    def _check_room(self, topic: Topic, size: int, retained: bool) -> None:
        """Raises RefusedError when there is no room; what may be, is removed."""
        if self._writer.waiting >= self.limits.waiting:
            raise RefusedError(QUOTA_EXCEEDED, "too much waits for the disk")
        before = self.retained.get(topic.name)
        held = self.retained_bytes + size - OVERHEAD + HELD - (before.held if before else 0)
        if retained and held > self.limits.retained:
            raise RefusedError(QUOTA_EXCEEDED, "there is no room for more retained messages")
        if self._is_full(topic, size) and not self._make_room(topic, size):
            raise RefusedError(QUOTA_EXCEEDED, f"there is no room in {topic.name!r}")

    def _is_full(self, topic: Topic, size: int) -> bool:
        limits = self.limits
        return (
            topic.count >= limits.topic_messages
            or topic.bytes + size > limits.topic_bytes
            or self.bytes + size > limits.bytes
        )

    def _make_room(self, topic: Topic, size: int) -> bool:
        """Remove the oldest messages of a topic, where that is allowed, until one more fits: whether it does."""
        limits = self.limits
        # What everybody is done with goes first: of this topic, then of others.
        for queue in range(len(topic.queues)) if self._done else ():
            through = self._done.get((topic, queue), 0)
            while 0 < topic.queues[queue].first <= through and self._is_full(topic, size):
                self._drop(topic, queue, through, 1)
        if self._is_full(topic, size):
            self._sweep()
        keep = topic.groups and limits.full == "refuse" and not topic.is_dead
        while self._is_full(topic, size):
            if keep or not topic.count:
                return False
            queue = topic.oldest()
            self._drop(topic, queue, topic.queues[queue].first, 1)
        return True

    def _drop(self, topic: Topic, queue: int, through: int, limit: int) -> None:
        """Remove the messages of a queue up to a sequence number, at most ``limit``."""
        before = topic.bytes
        done = topic.done_through(queue)
        gone = topic.drop_through(queue, through, limit)
        if not gone:
            return
        if topic.groups:
            self.dropped += sum(seq > done for seq in gone)
        self.count -= len(gone)
        self.bytes -= before - topic.bytes
        self._cache.drop(gone)
        self._writer.batch.gone += gone
        self._writer.note("trim", topic.number, queue, gone[-1])

    def read(self, topic: str, queue: int, after: int, limit: int) -> list[Message]:
        """The messages of a queue behind a sequence number, at most ``limit`` of them, for nobody in particular."""
        found = self._topic(topic)
        return self._read(
            found, (seq for seq in found.queues[queue].after(after, limit) if seq <= self.durable)
        )

    def _read(self, topic: Topic, seqs: Iterable[int]) -> list[Message]:
        """Those of the messages that can be read."""
        return self._cache.read(topic.name, seqs)

    # -- consumer groups ---------------------------------------------------------------------------------------------

    def attach(self, group: str, topic: str, *, from_now: bool = False) -> bool:
        """Have a group consume a topic, from its oldest message or from now: whether that is new. Raises
        RefusedError."""
        found = self._topic(topic)
        if group in found.groups:
            return False
        self._check_many(0, len(found.queues))
        self._places += len(found.queues)
        floor = self._writer.seq if from_now else 0
        found.groups[group] = [Position(floor) for _ in found.queues]
        for queue in range(len(found.queues)):
            self._moved[found, queue, group] = None
        self._writer.wake()
        return True

    def detach(self, group: str, topic: str) -> bool:
        """Forget where a group was in a topic: whether it was anywhere."""
        found = self.topics.get(topic)
        if found is None or found.groups.pop(group, None) is None:
            return False
        self._places -= len(found.queues)
        self._writer.change("detach", group, found.number)
        if found.groups:
            for queue in range(len(found.queues)):
                self._leave(found, queue, found.done_through(queue))
            self._sweep()
        return True

    def _position(self, group: str, topic: str, queue: int) -> Position | None:
        found = self.topics.get(topic)
        positions = found.groups.get(group) if found else None
        return positions[queue] if positions and 0 <= queue < len(positions) else None

    def take(self, group: str, topic: str, queue: int, limit: int) -> list[Delivery]:
        """The next messages for a group: what came back first, then what it has not had. They are open until ``ack``
        or ``give_back``."""
        position = self._position(group, topic, queue)
        if position is None:
            return []
        found = self.topics[topic]
        seqs = position.take(found.queues[queue], limit, self.durable)
        read = self._read(found, seqs)
        if len(read) < len(seqs):
            for seq in set(seqs) - {one.seq for one in read}:
                self.ack(group, topic, queue, seq)
        return [Delivery(one, position.tries.get(one.seq, 0)) for one in read]

    def ack(self, group: str, topic: str, queue: int, seq: int) -> bool:
        """A message is done with: whether it was open. What every group is done with is removed."""
        position = self._position(group, topic, queue)
        if position is None or not position.ack(seq):
            return False
        self._moved[self.topics[topic], queue, group] = None
        self._writer.wake()
        return True

    def give_back(
        self, group: str, topic: str, queue: int, seqs: Iterable[int], *, time_ns: int
    ) -> list[int]:
        """Messages were not acknowledged: they go out again, or, after the last try, to the dead-letter topic. Those
        that went there are returned."""
        position = self._position(group, topic, queue)
        dead: list[int] = []
        if position is None:
            return dead
        found = self.topics[topic]
        for seq in seqs:
            tries = position.give_back(seq)
            if tries:
                self._moved[found, queue, group] = None
                self._writer.wake()
            if tries >= self.limits.tries and not found.is_dead and seq in found.queues[queue]:
                self._bury(found, seq, time_ns)
                position.ack(seq)
                dead.append(seq)
        return dead

    def rewind(self, group: str, topic: str, queue: int) -> None:
        """Another consumer goes on with a queue: what is open goes out again, and nobody failed."""
        position = self._position(group, topic, queue)
        if position is not None:
            position.rewind()

    def _bury(self, topic: Topic, seq: int, time_ns: int) -> None:
        """Put a message into the dead-letter topic, under the id it has."""
        for found in self._read(topic, [seq]):
            dead = self.topics.get(DEAD + topic.name) or self._register(DEAD + topic.name, 1)
            self._make_room(dead, found.size)
            again = self._writer.next()
            copy = found._replace(seq=again, topic=dead.name, queue=0, retain=False, time_ns=time_ns)
            self._put(dead, copy, found.size)
            self.dead += 1

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def trim(self, time_ns: int) -> bool:
        """Remove what is too old: to be called now and then. True: there is more, which another call removes."""
        room = _TRIMMED
        self.age.look()
        if self.age.unwritten > _IDLE:
            self._writer.wake()
        if self.limits.age:
            oldest = time_ns - int(self.limits.age * _SECOND)
            for topic in self.topics.values():
                for n, queue in enumerate(topic.queues) if topic.count and room > 0 else ():
                    through = queue.older_than(oldest, room)
                    self._leave(topic, n, through)
                    room -= len(queue) - queue.behind(through)
        if self._done or self._leaving:
            self._writer.wake()
            self._sweep()
        forgotten = time_ns - int(self.limits.ids_age * _SECOND)
        ids = _TRIMMED
        while ids > 0 and self._order and self._order[0][2] < forgotten:
            self._forget_id()
            ids -= 1
        too_many = self._writer.seq - self.limits.changes - self._followed
        if too_many > self.limits.changes // 10:
            followed = self._followed = self._followed + min(too_many, _TRIMMED)
            self._writer.change("counter", "followed", followed)
            self._writer.batch.statements.append(("DELETE FROM changes WHERE seq <= ?", (followed,)))
        return room <= 0 or ids <= 0 or too_many > _TRIMMED

    def _forget_id(self) -> None:
        seq, ident, _ = self._order.popleft()
        self._ids.discard(ident)
        self._forgotten = seq
        self._writer.wake()

    def changes(self, after: int, limit: int) -> list[Change]:
        """What was written behind a sequence number, in order, for somebody who follows. StorageError: that is too
        long ago; a copy of the file is needed to begin with."""
        if after < self._followed:
            raise StorageError(f"changes up to {self._followed} are not kept any more")
        names = {topic.number: topic.name for topic in self.topics.values()}
        return follow.changes(self._reader, names, after, limit)
