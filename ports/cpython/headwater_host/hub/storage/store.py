"""The storage as the hub uses it: topics, messages, consumer groups, retained messages, and what outlives the process.

    store = Store.open("hub.db")
    store.register("boards/7", queues=4)
    if store.publish("boards/7", ident, process, payload, qos=1, time_ns=store.age.now()):
        store.after(send_ack)

State is in memory. A change is made there at once and joins the transaction of this turn of the event loop; ``after``
calls back when that is committed. Messages are handed out (``take``, ``read``, ``on_commit``) only once they are
committed: a consumer never sees a message that a crash could undo.

Times are age time (``headwater_host.lifetime``), so setting the clock makes nothing old. Everything is called in the
event loop's thread.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from os import PathLike, fspath
from typing import NamedTuple

from headwater.mqtt import spec5
from headwater_host.hub.errors import BehindError, RefusedError, StorageError
from headwater_host.hub.storage import follow, restore
from headwater_host.hub.storage.cache import Cache
from headwater_host.hub.storage.contract import Engine, Mark, Row
from headwater_host.hub.storage.counters import Counters
from headwater_host.hub.storage.export import export
from headwater_host.hub.storage.follow import Some
from headwater_host.hub.storage.positions import Positions
from headwater_host.hub.storage.records import HELD, OVERHEAD, Change, Message, row, tags_text
from headwater_host.hub.storage.removal import Removal
from headwater_host.hub.storage.replay import Replay
from headwater_host.hub.storage.seen import SeenIds
from headwater_host.hub.storage.sessions import Sessions
from headwater_host.hub.storage.sqlite import SqliteEngine
from headwater_host.hub.storage.topic import DEAD, Limits, Topic, Topics
from headwater_host.hub.storage.writer import Batch, Confirm, Writer
from headwater_host.lifetime import Clocks

#: How URLs of PostgreSQL begin.
POSTGRES = ("postgresql://", "postgres://")

_logger = logging.getLogger("headwater.hub")
_SECOND = 1_000_000_000
#: Seconds after which the age time is written though nothing else is: a power cut loses no more of it.
_IDLE = 3600.0
#: Messages, ids and changes that one call of ``trim`` finds.
_TRIMMED = 20_000
#: Topics that it looks at.
_LOOKED = 2_000
#: Bytes of messages that a follower reads at once.
FOLLOWED = 1 << 20
#: Changes that a hub reads at once when it begins to lead.
_CAUGHT_UP = 10_000


def open_engine(
    where: "str | PathLike[str]", *, group_readable: bool = False, standby: bool = False
) -> Engine:
    """Open a file or a URL of PostgreSQL, without beginning to write. ``standby``: see ``PostgresEngine``. Raises
    StorageError."""
    if not isinstance(where, str) or not where.startswith(POSTGRES):
        return SqliteEngine.open(fspath(where), group_readable=group_readable)
    try:
        from headwater_host.hub.storage.postgres import PostgresEngine
    except ImportError as error:
        raise StorageError(
            f"storage in PostgreSQL needs psycopg: pip install 'headwater[postgres]' ({error})"
        ) from error
    return PostgresEngine(where, standby=standby)


class Delivery(NamedTuple):
    """A message to deliver, and its number of failed deliveries."""

    message: Message
    tries: int


class Store:
    """The hub's storage, made by ``open``. StorageError: the database cannot be used, or not any more.

    A store that is made of an engine holds what the engine's database holds. It writes after ``lead``.
    """

    def __init__(self, engine: Engine, limits: Limits, clocks: Clocks | None = None):
        with engine.snapshot():
            self._make(engine, limits, clocks)

    def _make(self, engine: Engine, limits: Limits, clocks: Clocks | None) -> None:
        self._engine = engine
        self.limits = limits
        self._writer = writer = Writer(engine, engine.last(), self._settle, self._written)
        # The epoch of the transaction that made the last change.
        self._epoch = engine.mark(writer.seq).epoch
        self._cache = Cache(engine, limits.cache)
        #: Topics by name, and to be found by filter.
        self.topics = Topics(limits)
        self.names = self.topics.names
        self._removal = Removal(self.topics, writer, self._cache)
        self._positions = Positions(self.topics, writer, self._removal)
        self._seen = SeenIds(writer, limits.ids)
        self.sessions = Sessions(writer)
        self.retained: dict[str, Message] = {}
        #: Bytes of the retained messages.
        self.retained_bytes = 0
        #: Called after each commit with the messages that can be handed out now.
        self.on_commit: Callable[[list[Message]], None] = lambda stored: None
        #: Topics whose messages' age is to be looked at, while ``trim`` is not done.
        self._aging: Iterator[Topic] | None = None
        #: Messages since the start that were duplicates; that went to a dead-letter topic.
        self.duplicates = self.dead = 0
        # The writer's and the groups' parts of the interface.
        self.after, self.answer, self.written = writer.after, writer.answer, writer.written
        self.share, self.next_turn = writer.share, writer.next_turn
        self.attach, self.detach = self._positions.attach, self._positions.detach
        self.ack, self.rewind = self._positions.ack, self._positions.rewind
        self._counters = counters = Counters(engine, writer, clocks)
        self.start, self.age = counters.start, counters.age
        self.counter, self.count, self.count_locally = counters.get, counters.put, counters.put_locally
        self._load()
        #: Applies a change of a leader that the storage follows.
        self.apply = Replay(
            self.topics,
            writer,
            self._removal,
            self._positions,
            self._seen,
            self.sessions,
            counters,
            self._cache,
            self._put,
            self._retain,
            self._unretain,
        ).apply

    @classmethod
    def open(
        cls,
        where: "str | PathLike[str]",
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        *,
        group_readable: bool = False,
        following: bool = False,
        began: Callable[[Engine], object] = lambda engine: None,
    ) -> "Store":
        """Open the storage in a file or at a URL of PostgreSQL, or make it, and begin to write; ``following``: only
        changes that a leader has written. ``began`` gets the engine first, and may abort it. Raises StorageError."""
        engine = open_engine(where, group_readable=group_readable)
        try:
            began(engine)
            store = cls(engine, limits or Limits(), clocks)
            try:
                (store.follow if following else store.lead)()
            except BehindError:
                # The last writer has removed changes meanwhile. It cannot any more.
                store = cls(engine, limits or Limits(), clocks)
                store.lead()
        except BaseException:
            engine.close()
            raise
        return store

    def lead(self, epoch: int | None = None) -> None:
        """Begin to write, in an epoch that the engine knows, after everything that other hubs have written.

        Raises StorageError; FencedError if the engine does not know the epoch, BehindError as ``catch_up``."""
        turn = self._engine.lead(epoch)
        # The session of a hub that was killed may have committed after this hub read the storage. None can now.
        with self._engine.snapshot():
            last = self._check_mark().last
            while self.seq < last and (changes := self._changes_since(_CAUGHT_UP)):
                self.mirror(changes)
            self._epoch = self._engine.mark(self.seq).epoch
        if last != self.seq:
            raise StorageError(
                f"the hub's storage has changes up to {last}; this hub has read up to {self.seq}"
            )
        self._writer.lead(turn)
        # What was replayed until now is continued.
        self._positions.replayed()

    def catch_up(self, limit: int) -> bool:
        """Apply changes that another hub has written into the same storage, before ``lead``, at most ``limit``; return
        whether these are all that it had written by now. Raises StorageError, BehindError if the storage does not
        continue this store."""

        def read() -> tuple[list[Change], int, int]:
            mark = self._check_mark()
            if mark.last <= self.seq:
                return [], self._epoch, mark.last
            found = self._changes_since(limit)
            return found, self._engine.mark(found[-1].seq if found else self.seq).epoch, mark.last

        changes, epoch, last = self._engine.consistently(read)
        self.mirror(changes)
        self._epoch = epoch
        # The other hub may write all the time: then every look finds something.
        return not changes or self.seq >= last

    def _changes_since(self, limit: int) -> list[Change]:
        """Return the changes after those of this store, at most ``limit``. Only in a snapshot."""
        found = follow.read_changes(self._engine, self._name, self._leave_out, self.seq, limit, FOLLOWED)
        return found.changes

    def _check_mark(self) -> Mark:
        """Return the mark of the storage. Raises BehindError unless the storage continues what this store holds: a
        failover may lose transactions that a follower has seen."""
        mark = self._engine.mark(self.seq)
        if mark.forgotten > self.seq:
            raise BehindError(f"changes up to {mark.forgotten} are not kept any more")
        if mark.epoch != self._epoch:
            raise BehindError(f"the hub's storage has lost change {self.seq}, which this hub has read")
        return mark

    def mirror(self, changes: Iterable[Change]) -> None:
        """Apply changes of the same storage in memory. Raises StorageError."""
        for change in changes:
            self.apply(change)
            self._writer.discard()
        self._cache.shrink()

    def follow(self) -> None:
        """Begin to write what ``apply`` gets, and nothing else. Raises StorageError."""
        self._writer.lead(self._engine.lead(None))
        self.sessions.follow()

    def _load(self) -> None:
        engine, counters = self._engine, self._counters
        self.sessions.last_process = counters.process
        numbers = restore.state(
            engine, counters.renewed, self.topics, self._positions, self._removal, self.sessions
        )
        for found in restore.retained(engine, numbers):
            self.retained[found.topic] = found
            self.retained_bytes += found.held
        self._seen.restore(restore.ids(engine, self.limits.ids), counters.renewed, counters.forgotten)

    async def close(self) -> None:
        """Write what is left and release the file. Raises StorageError when not all of it could be written."""
        try:
            if self._writer.leads and self._counters.is_due and self.error is None:
                self._writer.wake()
            await self._writer.close()
        finally:
            self._engine.close()

    # -- commits -----------------------------------------------------------------------------------------------------

    @property
    def durable(self) -> int:
        """The sequence number up to which everything is on the disk."""
        return self._writer.durable

    @property
    def committed(self) -> int:
        """The sequence number up to which everything may be answered and shown."""
        return self._writer.committed

    def confirm_with(self, confirm: Confirm) -> None:
        """Have transactions committed when ``confirm`` says so, instead of at once."""
        self._writer.confirm = confirm

    @property
    def seq(self) -> int:
        """The sequence number of the last change."""
        return self._writer.seq

    @property
    def waiting(self) -> int:
        """Bytes of messages and changes that are not committed yet."""
        return self._writer.waiting

    @property
    def is_crowded(self) -> bool:
        """True if work that makes many changes is to wait for ``next_turn``."""
        return self._writer.is_crowded or self._positions.is_crowded

    @property
    def error(self) -> Exception | None:
        """Why nothing can be written at present. The hub tries again every second."""
        return self._writer.failure()

    def tell(self, on_error: Callable[[Exception | None], object]) -> None:
        """Have ``on_error(error)`` called when nothing can be written, and ``on_error(None)`` when it can again."""
        self._writer.on_error = on_error

    @property
    def commits(self) -> int:
        """Transactions since the start."""
        return self._writer.commits

    @property
    def damaged(self) -> int:
        """Messages since the start that could not be read as they were written."""
        return self._cache.damaged

    @property
    def dropped(self) -> int:
        """Messages since the start that were dropped before every group had them."""
        return self._removal.dropped

    def _settle(self) -> bool:
        """Complete the transaction; return whether something is left for the next one."""
        self._positions.settle()
        self._removal.sweep()
        self._counters.settle()
        self._seen.settle()
        return self._removal.pending

    def _written(self, batch: Batch) -> None:
        self._cache.shrink()
        if batch.stored:
            self.on_commit(batch.stored)

    # -- topics ------------------------------------------------------------------------------------------------------

    def register(self, name: str, queues: int = 1) -> bool:
        """Create a topic with this number of queues, or let it grow. Return whether it changed. Raises RefusedError."""
        if not self.topics.check_growth(name, queues):
            return False
        self.names.add(name)
        self._register(name, queues)
        return True

    def _register(self, name: str, queues: int) -> Topic:
        topic = self.topics.grow(name, self._writer.seq + 1, queues)
        self._writer.change("register", topic.number, name, queues)
        self._positions.grow(topic)
        return topic

    def unregister(self, name: str) -> bool:
        """Delete a topic and everything in it; return whether there was one."""
        topic = self.topics.remove(name)
        if topic is None:
            return False
        self._removal.mark_topic(topic.number, topic.queues)
        self._unretain(name)
        self._writer.batch.retained.pop(topic.number, None)
        self._writer.change("unregister", topic.number)
        return True

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
        """Store a message under its id, in queue ``process`` mod n; return its sequence number, or 0 for a duplicate.
        Raises RefusedError; nothing is stored then."""
        found = self.topics.get(topic) or self.topics.named(topic)
        writer = self._writer
        if ident in self._seen.ids:
            self.duplicates += 1
            return 0
        size = len(payload) + len(ident) + OVERHEAD + (len(tags_text(tags)) if tags else 0)
        if retain or writer.waiting >= self.limits.waiting or self.topics.is_full(found, size):
            self._check_room(found, size, retain and payload != b"")
        if retain and not payload and topic in self.retained:
            # Followers that do not get the message, because it is trimmed, learn that nothing is retained.
            writer.note("unretain", found.number)
        seq = writer.next()
        queue = process % len(found.queues)
        self._put(found, Message(seq, ident, topic, queue, tags, payload, qos, retain, time_ns), size)
        self._seen.add(seq, ident, time_ns)
        return seq

    def _put(self, topic: Topic, fresh: Message, size: int) -> None:
        writer = self._writer
        batch = writer.batch
        batch.stored.append(fresh)
        batch.numbers.append(topic.number)
        held = fresh.held
        writer.fill(held)
        self.topics.append(topic, fresh.queue, fresh.seq, size, fresh.time_ns)
        self._cache.put(fresh, held)
        if fresh.retain:
            self._retain(topic, fresh)

    def _retain(self, topic: Topic, fresh: Message) -> None:
        self._unretain(topic.name)
        retained = self._writer.batch.retained
        if fresh.payload:
            retained[topic.number] = row(fresh, topic.number)
            self.retained[topic.name] = fresh
            self.retained_bytes += fresh.held
        else:
            retained[topic.number] = None

    def _unretain(self, name: str) -> None:
        before = self.retained.pop(name, None)
        if before is not None:
            self.retained_bytes -= before.held

    def _check_room(self, topic: Topic, size: int, retained: bool) -> None:
        """Make room for a message. Raises RefusedError when there is none."""
        if self._writer.waiting >= self.limits.waiting:
            raise RefusedError(spec5.QUOTA_EXCEEDED, "too much waits for the disk")
        before = self.retained.get(topic.name)
        held = self.retained_bytes + size - OVERHEAD + HELD - (before.held if before else 0)
        if retained and held > self.limits.retained:
            raise RefusedError(spec5.QUOTA_EXCEEDED, "there is no room for more retained messages")
        if self.topics.is_full(topic, size):
            may_drop = not topic.groups or self.limits.full == "drop" or topic.is_dead
            if not self._removal.make_room(topic, size, may_drop=may_drop):
                raise RefusedError(spec5.QUOTA_EXCEEDED, f"there is no room in {topic.name!r}")

    def read(self, topic: str, queue: int, after: int, limit: int) -> list[Message]:
        """Return messages of a queue after a sequence number, at most ``limit``, without a group."""
        seqs = self.topics.named(topic).queues[queue].after(after, limit)
        return self._cache.read(topic, (seq for seq in seqs if seq <= self.committed))

    # -- consumer groups ---------------------------------------------------------------------------------------------

    def take(self, group: str, topic: str, queue: int, limit: int) -> list[Delivery]:
        """Return the next messages for a group: first what came back, then what it has not had. They are unacknowledged
        until ``ack`` or ``give_back``. Raises StorageError when the database does not answer; take them later."""
        position = self._positions.find(group, topic, queue)
        if position is None:
            return []
        messages = self.topics[topic].queues[queue]
        seqs = position.take(messages, limit, self.committed)
        fitting = self._cache.readable(seqs, messages)
        position.untake(seqs[fitting:])
        seqs = seqs[:fitting]
        try:
            read = self._cache.read(topic, seqs)
        except StorageError:
            position.untake(seqs)
            raise
        if len(read) < len(seqs):
            for seq in set(seqs) - {one.seq for one in read}:
                self.ack(group, topic, queue, seq)
        return [Delivery(one, position.tries.get(one.seq, 0)) for one in read]

    def give_back(
        self, group: str, topic: str, queue: int, seqs: Iterable[int], *, time_ns: int
    ) -> list[int]:
        """Have messages redelivered, or after the last try moved to the dead-letter topic; return those that were
        moved."""
        found = self.topics.get(topic)
        dead: list[int] = []
        for seq in seqs if found is not None else ():
            tries = self._positions.give_back(group, topic, queue, seq)
            assert found is not None
            if tries >= self.limits.tries and not found.is_dead and seq in found.queues[queue]:
                # A message that cannot be read now is delivered once more.
                with contextlib.suppress(StorageError):
                    self._bury(found, seq, time_ns)
                    self.ack(group, topic, queue, seq)
                    dead.append(seq)
        return dead

    def _bury(self, topic: Topic, seq: int, time_ns: int) -> None:
        """Put a message into the dead-letter topic, under the id it has. Raises StorageError."""
        for found in self._cache.read(topic.name, [seq]):
            dead = self.topics.get(DEAD + topic.name) or self._register(DEAD + topic.name, 1)
            self._removal.make_room(dead, found.size, may_drop=True)
            again = self._writer.next()
            copy = found._replace(seq=again, topic=dead.name, queue=0, retain=False, time_ns=time_ns)
            self._put(dead, copy, found.size)
            self.dead += 1

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def trim(self, time_ns: int) -> bool:
        """Remove some of what is too old; return whether there is more for another call."""
        self.age.look()
        if self.age.unwritten > _IDLE:
            self._writer.wake()
        more = self.limits.age > 0 and self._age(time_ns - int(self.limits.age * _SECOND))
        if self._removal.pending:
            self._writer.wake()
            self._removal.sweep()
        more |= self._seen.forget_before(time_ns - int(self.limits.ids_age * _SECOND), _TRIMMED)
        more |= self._counters.forget_changes(self.limits.changes, _TRIMMED)
        return more

    def _age(self, oldest: int) -> bool:
        """Have messages removed that are older, of some topics; return whether there is more."""
        if self._aging is None:
            self._aging = iter(list(self.topics.values()))
        room = _TRIMMED
        for topic in islice(self._aging, _LOOKED):
            for n, queue in enumerate(topic.queues) if topic.count else ():
                through = queue.older_than(oldest, room)
                self._removal.mark(topic, n, through)
                room -= len(queue) - queue.behind(through)
            if room <= 0:
                self._aging = chain((topic,), self._aging)
                return True
        following = next(self._aging, None)
        self._aging = chain((following,), self._aging) if following is not None else None
        return following is not None

    def changes(self, after: int, limit: int) -> list[Change]:
        """Return what was written after a sequence number, in order. Raises StorageError, as ``turns_after``."""
        return self.turns_after(after, limit).changes

    def turns_after(self, after: int, limit: int, size: int = FOLLOWED) -> Some:
        """Return what was written after a sequence number, in order, for a follower: at most ``limit`` changes, and
        messages of about ``size`` bytes. BehindError: changes are not kept so far back; the follower needs a copy of
        the storage to begin with."""
        if after < self._counters.followed:
            raise BehindError(f"changes up to {self._counters.followed} are not kept any more")
        return follow.changes(self._engine, self._name, self._leave_out, after, limit, size)

    def _leave_out(self, kind: str, stored: Row) -> None:
        """Count and report a message that a follower cannot get."""
        self._cache.damaged += 1
        ident = stored[1].hex() if isinstance(stored[1], bytes) else stored[1]
        what = "message" if kind == "message" else "retained message"
        _logger.error(
            "%s %d of the hub's storage %s is not what was written: followers do not get it (id %s)",
            what,
            stored[0],
            self._engine.name,
            ident,
        )

    def _name(self, number: int) -> str:
        topics = self.topics
        found = topics.numbers.get(number) or topics.departed.get(number)
        if found is None:
            raise StorageError(f"the hub's storage has messages of the topic {number}, which is not there")
        return found.name

    @property
    def followed(self) -> int:
        """The last change that is not kept for followers any more."""
        return self._counters.followed

    def export(self) -> Iterator[str]:
        """Yield the state that is on the disk as canonical text. Raises StorageError."""
        return export(self._engine)
