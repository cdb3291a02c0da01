"""The leader's side of SLAVEOF: slaves register, get every change in order, and say what they have on disk."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from headwater_host.hub.errors import BehindError, StorageError
from headwater_host.hub.metrics import Metrics, Values
from headwater_host.hub.replication import wire
from headwater_host.hub.replication.lineage import Lineage
from headwater_host.hub.replication.quorum import Quorum
from headwater_host.hub.storage import Store

#: Changes, and bytes of messages, of one payload.
SOME = 500
SOME_BYTES = 1 << 18
#: Payload bytes that a slave may be sent before it has acknowledged them.
WINDOW = 8 << 20
#: Bytes of a piece of a snapshot.
PIECE = 1 << 18
#: Seconds until changes that could not be read are read again.
AGAIN = 1.0
#: Process numbers that a slave reserves at once.
RESERVED = 1000

_logger = logging.getLogger("headwater.hub")


class Ending:
    """Ends work in a thread early: the work calls ``proceed`` again and again, or says what aborts it."""

    def __init__(self) -> None:
        self.is_due = False
        self._calls: list[Callable[[], object]] = []

    @contextmanager
    def aborts(self, abort: Callable[[], object]) -> Iterator[None]:
        """Call a function if the end comes within the context, or has come."""
        self._calls.append(abort)
        try:
            if self.is_due:
                abort()
            yield
        finally:
            self._calls.remove(abort)

    def proceed(self) -> None:
        """Raise StorageError if the end has come."""
        if self.is_due:
            raise StorageError("this hub is stopping")

    def end(self) -> None:
        """Abort the work."""
        self.is_due = True
        for abort in list(self._calls):
            abort()


class Line(Protocol):
    """The connection to a slave, as this module uses it."""

    @property
    def writable(self) -> bool:
        """True if the slave reads what it is sent."""

    def payload(self, data: bytes) -> None:
        """Send a payload."""

    def refuse(self, text: str) -> None:
        """End the connection with a reason."""


@dataclass(eq=False)
class Slave:
    """A slave that is connected. ``position``: the last change it was sent; ``synced``: the last one on its disk."""

    line: Line
    name: str
    position: int
    synced: int
    #: Sent payloads that are not acknowledged: their last change and size.
    unread: list[tuple[int, int]] = field(default_factory=list)
    unread_bytes: int = 0
    #: The end of the transaction that ``position`` is in. A slave acknowledges whole transactions.
    turn: int = 0
    #: The snapshot that it is sent; True while that is being made.
    snapshot: BinaryIO | None = None
    copying: bool = False
    scheduled: bool = False
    committed: int = -1
    #: Why its changes could not be read the last time.
    failure: str = ""


class Slaves:
    """All slaves of one leader, in one epoch.

    ``backup`` returns a copy of the storage as an open file, and is called in a thread; its argument ends it early.
    ``deposed`` is called when a slave knows of a later epoch.
    """

    def __init__(
        self,
        store: Store,
        lineage: Lineage,
        quorum: Quorum,
        backup: Callable[[Ending], BinaryIO],
        deposed: Callable[[int], None] = lambda epoch: None,
    ):
        self._store = store
        self.lineage = lineage
        self.quorum = quorum
        self._backup = backup
        self._ending = Ending()
        self._deposed = deposed
        #: By name. A slave that connects again replaces its earlier connection.
        self.slaves: dict[str, Slave] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Snapshots that were sent since the start.
        self.snapshots = 0
        #: The last change that each slave has on disk, as far as this leader knows; when it had everything.
        self._synced = dict.fromkeys(quorum.synced, 0)
        self._current = dict.fromkeys(quorum.synced, self._loop.time())
        self._durable = store.durable

    def confirm(self, last: int, done: Callable[[], None]) -> None:
        """Commit a transaction when enough slaves have it. The storage's writer calls this when it is durable."""
        for name, synced in self._synced.items():
            if synced >= self._durable:
                self._current[name] = self._loop.time()
        self._durable = last
        self.quorum.confirm(last, done)
        self.wake()

    def wake(self, slaves: Iterable[Slave] | None = None) -> None:
        """Send slaves what they do not have, from the event loop's next turn on."""
        for slave in self.slaves.values() if slaves is None else slaves:
            if not slave.scheduled:
                slave.scheduled = True
                self._loop.call_soon(self._send, slave)

    # -- what others see ---------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the slaves, as ``headwater hub status`` prints them."""
        return {"slaves": dict(self._synced), "connected": sorted(self.slaves)}

    def problem(self) -> str:
        """Return why nothing is committed, or ""."""
        missing = self._missing()
        if not missing:
            return ""
        return f"{missing} of the {self.quorum.need} slaves that confirm are not connected: nothing is acknowledged"

    def _missing(self) -> int:
        return max(self.quorum.need - sum(name in self.quorum.synced for name in self.slaves), 0)

    def measure(self, metrics: Metrics) -> None:
        """Add the metrics of replication."""
        store = self._store

        def by_name(value: Callable[[str], float]) -> Callable[[], Values]:
            return lambda: [((name,), float(value(name))) for name in self._synced]

        def behind(name: str) -> float:
            return max(store.durable - self._synced[name], 0)

        metrics.gauge("slave_connected", "1 while a slave is connected, otherwise 0.", "slave").call(
            by_name(lambda name: name in self.slaves)
        )
        metrics.gauge("slave_position", "The last change that a slave has on disk.", "slave").call(
            by_name(lambda name: self._synced[name])
        )
        metrics.gauge("slave_lag_changes", "Changes that a slave does not have on disk.", "slave").call(
            by_name(behind)
        )
        metrics.gauge("slave_lag_seconds", "Seconds since a slave had everything.", "slave").call(
            by_name(lambda name: self._loop.time() - self._current[name] if behind(name) else 0)
        )
        metrics.gauge("sync_missing", "Connected slaves missing until transactions are confirmed.").call(
            lambda: self._missing()
        )
        metrics.gauge("unconfirmed_changes", "Changes that too few slaves have on disk.").call(
            lambda: store.durable - store.committed
        )

    # -- what slaves send --------------------------------------------------------------------------------------------

    def received(self, line: Line, data: bytes) -> None:
        """Handle a payload of a registered connection. Raises StorageError for a malformed one."""
        found = wire.unpack(data)
        try:
            if isinstance(found, dict) and "follow" in found:
                self._follow(line, **found["follow"])
            elif isinstance(found, dict) and "synced" in found:
                self._acknowledged(line, int(found["epoch"]), int(found["synced"]))
            elif isinstance(found, dict) and "reserve" in found:
                self._reserve(line)
            else:
                raise StorageError("a slave sends no changes")
        except (TypeError, KeyError, ValueError) as error:
            raise StorageError(f"a malformed control message of a slave: {error!r}") from error

    def _follow(
        self, line: Line, version: int, name: str, lineage: str, seq: int, synced: int, fence: int
    ) -> None:
        history = Lineage.parse(lineage)
        if version != wire.VERSION:
            line.refuse(f"the stream is of version {version}, this hub's of version {wire.VERSION}")
            return
        newer = max(history.epoch, fence)
        if newer > self.lineage.epoch:
            line.refuse(f"this hub led epoch {self.lineage.epoch}; epoch {newer} has begun")
            self._deposed(newer)
            return
        shared = self.lineage.fork(history, seq)
        if shared is None:
            line.refuse("the slave holds another hub's state; give it an empty storage")
            return
        if shared < seq:
            text = f"the slave has changes {shared + 1} to {seq}, which this leader does not have"
            line.refuse(f"{text}; `headwater hub rejoin` saves them to a file")
            return
        if seq > self._store.durable:
            line.refuse(
                f"the slave has change {seq}, the leader only {self._store.durable}: promote the slave"
            )
            return
        before = self.slaves.get(name)
        if before is not None:
            before.line.refuse("the slave has another connection")
            self._forget(before)
        slave = self.slaves[name] = Slave(line, name, seq, synced)
        line.payload(
            wire.control(
                lead={
                    "epoch": self.lineage.epoch,
                    "history": self.lineage.text(),
                    "age": self._store.age.now(),
                    "seq": self._store.durable,
                }
            )
        )
        _logger.info("slave %s follows from change %d", name, seq)
        self._count(name, synced)
        self.wake([slave])

    def _acknowledged(self, line: Line, epoch: int, seq: int) -> None:
        slave = self._of(line)
        if slave is None:
            return
        if epoch != self.lineage.epoch or seq > slave.position:
            line.refuse(f"the slave acknowledges change {seq} of epoch {epoch}, which it was not sent")
            self._forget(slave)
            return
        slave.synced = seq
        done = 0
        for last, size in slave.unread:
            if last > seq:
                break
            slave.unread_bytes -= size
            done += 1
        del slave.unread[:done]
        self._count(slave.name, seq)
        self.wake([slave])

    def _count(self, name: str, seq: int) -> None:
        """Count what a slave has, and tell all slaves when that commits something."""
        before = self._store.committed
        self._synced[name] = seq
        self._current.setdefault(name, self._loop.time())
        self.quorum.acknowledge(name, seq)
        if self._store.committed != before:
            self.wake()

    def _reserve(self, line: Line) -> None:
        sessions = self._store.sessions
        first = sessions.reserve(RESERVED)
        self._store.after(lambda: line.payload(wire.control(reserved=[first, first + RESERVED - 1])))

    def lost(self, line: Line) -> None:
        """A connection has ended."""
        slave = self._of(line)
        if slave is not None:
            _logger.info("slave %s is gone; it has change %d", slave.name, slave.synced)
            self._forget(slave)

    def knows(self, line: Line) -> bool:
        """Return whether a connection is a slave's that follows."""
        return self._of(line) is not None

    def _of(self, line: Line) -> Slave | None:
        return next((slave for slave in self.slaves.values() if slave.line is line), None)

    def _forget(self, slave: Slave) -> None:
        if slave.snapshot is not None:
            slave.snapshot.close()
        if self.slaves.get(slave.name) is slave:
            del self.slaves[slave.name]

    # -- what slaves are sent ----------------------------------------------------------------------------------------

    def _send(self, slave: Slave) -> None:
        """Send some, and come back in the next turn if there is more."""
        slave.scheduled = False
        if self.slaves.get(slave.name) is not slave or slave.copying or not slave.line.writable:
            return
        if slave.snapshot is not None:
            self._send_piece(slave)
            return
        store = self._store
        is_full = slave.unread_bytes >= WINDOW and slave.position >= slave.turn
        if slave.position >= store.durable or is_full:
            self._tell(slave)
            return
        try:
            found, turn = store.turns_after(slave.position, SOME, SOME_BYTES)
        except BehindError:
            self._begin_snapshot(slave)
            return
        except StorageError as error:
            # A database may not answer at present.
            if str(error) != slave.failure:
                _logger.error("changes for slave %s: %s; trying again", slave.name, error)
            slave.failure = str(error)
            slave.scheduled = True
            self._loop.call_later(AGAIN, self._send, slave)
            return
        slave.failure = ""
        if turn > store.durable:
            # A database shows transactions that its standby does not have yet.
            turn = store.durable
            found = [change for change in found if change.seq <= turn]
        if found:
            data = wire.pack(store.committed, turn, found)
            slave.committed = store.committed
            slave.position, slave.turn = found[-1].seq, turn
            slave.unread.append((slave.position, len(data)))
            slave.unread_bytes += len(data)
            slave.line.payload(data)
            self.wake([slave])

    def _tell(self, slave: Slave) -> None:
        """Tell a slave that has everything what is committed."""
        if slave.committed < self._store.committed:
            slave.committed = self._store.committed
            slave.line.payload(wire.control(committed=slave.committed))

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _begin_snapshot(self, slave: Slave) -> None:
        slave.copying = True
        task = self._loop.create_task(self._copy(slave))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _copy(self, slave: Slave) -> None:
        """Copy the storage, and begin to send the copy."""
        try:
            copy = await self._loop.run_in_executor(None, self._backup, self._ending)
        except (OSError, StorageError) as error:
            _logger.error("a snapshot for slave %s failed: %s", slave.name, error)
            slave.line.refuse(f"a snapshot failed: {error}")
            self._forget(slave)
            return
        if self.slaves.get(slave.name) is not slave:
            copy.close()
            return
        slave.copying, slave.snapshot = False, copy
        self.snapshots += 1
        size = os.fstat(copy.fileno()).st_size
        _logger.info("slave %s gets a snapshot of %d bytes", slave.name, size)
        slave.line.payload(wire.control(snapshot=size))
        self.wake([slave])

    def _send_piece(self, slave: Slave) -> None:
        """Send the next piece. After the last one the slave connects again, at the snapshot's position."""
        assert slave.snapshot is not None
        data = slave.snapshot.read(PIECE)
        if data:
            slave.line.payload(wire.piece(data))
            self.wake([slave])

    async def close(self) -> None:
        """End the work in progress. A snapshot that is being made fails soon."""
        self._ending.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slave in list(self.slaves.values()):
            self._forget(slave)
