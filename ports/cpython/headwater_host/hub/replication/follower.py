"""The slave's side of SLAVEOF, without its connection: what it sends, and what it does with what it gets."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from headwater_host.hub.errors import StorageError
from headwater_host.hub.metrics import Metrics
from headwater_host.hub.replication import wire
from headwater_host.hub.replication.lineage import Lineage
from headwater_host.hub.storage import Change, Store

_logger = logging.getLogger("headwater.hub")


class Follower:
    """Keeps a storage equal to that of a leader, over one connection after the other.

    ``begin`` and ``lost`` are the start and the end of a connection. ``installed`` is called when ``incoming`` is a
    complete snapshot, which replaces the storage: this object is not used any more then.
    """

    def __init__(self, store: Store, name: str, incoming: Path, installed: Callable[[], None]):
        self._store = store
        self._name = name
        self._incoming = incoming
        self._installed = installed
        self._send: Callable[[bytes], None] | None = None
        #: The leader's epoch, 0 until it has answered.
        self.epoch = 0
        #: The last change that the leader had on disk, as far as this slave heard.
        self.leader_seq = 0
        self._reserving = False
        self._snapshot: BinaryIO | None = None
        self._missing = 0
        #: Changes of a transaction of which the rest is missing.
        self._partial: list[Change] = []
        #: The last change that the leader has committed, and what waits to be shown until it has.
        self._committed = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        #: When this slave had everything that the leader had.
        self._current = time.monotonic()
        #: Called when a leader is accepted.
        self.on_led: Callable[[], None] = lambda: None
        store.confirm_with(self._durable)

    @property
    def lag(self) -> int:
        """Changes that the leader has and this slave does not, as far as it knows."""
        return max(self.leader_seq - self._store.durable, 0)

    @property
    def lag_seconds(self) -> float:
        """Seconds since this slave had everything that the leader had; it grows without a connection."""
        self._note()
        return time.monotonic() - self._current

    def _note(self) -> None:
        if self.epoch and not self.lag:
            self._current = time.monotonic()

    def measure(self, metrics: Metrics) -> None:
        """Add the metrics of a slave."""
        metrics.gauge("leader_connected", "1 while this slave follows a leader, otherwise 0.").call(
            lambda: float(self.epoch > 0)
        )
        metrics.gauge("lag_changes", "Changes of the leader that this slave does not have on disk.").call(
            lambda: self.lag
        )
        metrics.gauge("lag_seconds", "Seconds since this slave had everything.").call(
            lambda: self.lag_seconds
        )

    def begin(self, send: Callable[[bytes], None]) -> None:
        """Ask for the changes after the last one that this slave has. ``send`` sends a payload."""
        self._send = send
        store = self._store
        follow = {
            "version": wire.VERSION,
            "name": self._name,
            "lineage": lineage(store).text(),
            "seq": store.seq,
            "synced": store.durable,
            "fence": fenced(store).epoch,
        }
        send(wire.control(follow=follow))

    def lost(self) -> None:
        """The connection has ended."""
        self._note()
        self._send = None
        self.epoch = 0
        self._reserving = False
        self._partial.clear()
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def received(self, data: bytes) -> None:
        """Handle a payload. Raises StorageError when it is malformed or does not fit; the connection is to end then."""
        self._note()
        found = wire.unpack(data)
        self.reserve()
        if isinstance(found, wire.Changes):
            self._apply(found)
        elif isinstance(found, bytes):
            self._piece(found)
        else:
            self._control(found)

    def _control(self, found: dict[str, Any]) -> None:
        try:
            if "lead" in found:
                self._led(**found["lead"])
            elif "committed" in found:
                self._commit(int(found["committed"]))
            elif "reserved" in found:
                first, last = found["reserved"]
                self._store.sessions.lend(int(first), int(last))
                self._reserving = False
            elif "snapshot" in found:
                self._missing = int(found["snapshot"])
                self._snapshot = self._incoming.open("wb")
        except (TypeError, KeyError, ValueError) as error:
            raise StorageError(f"a malformed control message of the leader: {error!r}") from error

    def _led(self, epoch: int, history: str, age: int, seq: int) -> None:
        """Accept a leader unless a promotion has fenced its epoch."""
        fence = fenced(self._store)
        begun, own = Lineage.parse(history), lineage(self._store)
        promised = epoch > fence.epoch or own.epoch == fence.epoch or begun.began(epoch, fence.ident)
        if epoch < fence.epoch or not promised:
            raise StorageError(f"the leader has epoch {epoch}; a promotion to epoch {fence.epoch} fences it")
        self.epoch, self.leader_seq = epoch, seq
        self._store.age.follow(age)
        self._acknowledge()
        self.reserve()
        self.on_led()

    def reserve(self) -> None:
        """Ask for process numbers when few are left."""
        if self._send is not None and self.epoch and self._store.sessions.is_short and not self._reserving:
            self._reserving = True
            self._send(wire.control(reserve=True))

    # -- changes -----------------------------------------------------------------------------------------------------

    def _apply(self, found: wire.Changes) -> None:
        if not self.epoch:
            raise StorageError("changes before the leader's answer")
        self._partial += found.changes
        if self._partial and self._partial[-1].seq >= found.turn:
            # All in one turn of the event loop, so that a transaction of the leader is whole in one of this storage.
            for change in self._partial:
                self._store.apply(change)
            self._partial.clear()
        self.leader_seq = max(self.leader_seq, self._store.seq)
        self._commit(found.committed)

    def _durable(self, last: int, done: Callable[[], None]) -> None:
        """A transaction is on disk: acknowledge it; show it when the leader has committed it."""
        self._note()
        self._waiting.append((last, done))
        self._acknowledge()
        self._commit(self._committed)

    def _acknowledge(self) -> None:
        if self._send is not None and self.epoch:
            self._send(wire.control(synced=self._store.durable, epoch=self.epoch))

    def _commit(self, seq: int) -> None:
        self._committed = seq
        found = None
        while self._waiting and self._waiting[0][0] <= seq:
            _, found = self._waiting.popleft()
        if found is not None:
            found()

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _piece(self, data: bytes) -> None:
        if self._snapshot is None or len(data) > self._missing:
            raise StorageError("a piece of a snapshot that was not announced")
        self._snapshot.write(data)
        self._missing -= len(data)
        if not self._missing:
            self._snapshot.flush()
            os.fsync(self._snapshot.fileno())
            self.lost()
            self._installed()


def lineage(store: Store) -> Lineage:
    """Return the history of a storage."""
    return Lineage.parse(str(store.counter("lineage") or ""))


def fenced(store: Store) -> Lineage:
    """Return the last epoch that this slave has promised to follow, as a history of one epoch, or of none."""
    return Lineage.parse(str(store.counter("fence") or ""))
