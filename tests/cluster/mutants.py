"""Hubs with one defect of the election, the fence or the answers, to see that the checker finds it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headwater_host.hub.cluster import lease, postgres_lease
from headwater_host.hub.errors import FencedError, StorageError
from headwater_host.hub.storage import postgres, store, writer


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _both(*changes: Callable[[], None]) -> Callable[[], None]:
    def change() -> None:
        for one in changes:
            one()

    return change


@contextlib.contextmanager
def _committing(self: Any) -> Iterator[None]:
    yield


def _at_once(self: Any, done: Callable[[], None]) -> None:
    done()


def _answer_at_once(self: Any, send: Callable[[bytes], None], data: bytes) -> None:
    send(data)


def _lost_reply() -> None:
    before = postgres.PostgresEngine.write

    def write(self: Any, transaction: Any) -> None:
        connected = self._writer is not None
        try:
            before(self, transaction)
        except FencedError:
            raise
        except StorageError:
            if not connected:
                raise

    postgres.PostgresEngine.write = write  # type: ignore[method-assign]


def _renumber(look: Callable[[Any, Any], int]) -> Callable[[], None]:
    """Write transactions under the next numbers that the database has, as if it gave them itself.

    The hub's numbers are the primary key of messages: a message that is written again under its own number is refused,
    so that no mutant could double anything. ``look`` returns the database's turn, after a connection was lost.
    """

    def write(self: Any, transaction: Any) -> None:
        with self._explaining():
            try:
                if self._writer is None:
                    connection = self._connect()
                    turns = look(self, connection) - (transaction.number - 1)
                    (last,) = connection.db.execute("SELECT max(seq) FROM turns").fetchone()
                    self.shift = turns, last - (_first(transaction) - 1)
                self._write(self._writer, _shifted(transaction, *getattr(self, "shift", (0, 0))))
            except BaseException:
                self._drop()
                raise

    return _set(postgres.PostgresEngine, "write", write)


def _shifted(one: Any, turns: int, seqs: int) -> Any:
    return replace(
        one,
        number=one.number + turns,
        last=one.last + seqs,
        messages=[message._replace(seq=message.seq + seqs) for message in one.messages],
        seen=[(seq + seqs, *rest) for seq, *rest in one.seen],
        changes=[(seq + seqs, *rest) for seq, *rest in one.changes],
    )


def _first(transaction: Any) -> int:
    seqs = [
        *(message.seq for message in transaction.messages),
        *(seq for seq, *_ in transaction.seen),
        *(seq for seq, *_ in transaction.changes),
    ]
    return int(min(seqs, default=transaction.last + 1))


def _adopt(engine: Any, connection: Any) -> int:
    engine._epoch, turn = connection.db.execute("SELECT epoch, turn FROM leader").fetchone()
    return int(turn)


_UNFENCED = """UPDATE leader SET turn = turn + 1 + 0 * %(turn)s + 0 * %(epoch)s
    RETURNING 1, current_setting('synchronous_standby_names')"""
_READ_ONLY = "SELECT turn FROM leader WHERE epoch = %s"


def _same_epoch() -> None:
    postgres_lease._TAKE = postgres_lease._TAKE.replace("epoch = epoch + 1,", "epoch = greatest(epoch, 1),")
    before = lease.Lease.took
    lease.Lease.took = lambda self, epoch, asked: before(self, max(epoch - 1, 1), asked)  # type: ignore[method-assign]


def _trusting(self: Any, epoch: int) -> bool:
    return bool(self._lease.epoch == epoch != 0)


def _always(self: Any, *, ended: bool = False) -> bool:
    return self.row is not None and not self.epoch


def _forgetful(self: Any, some: Any) -> None:
    for change in some:
        if change.kind == "message" and change.seq % 20 == 0:
            self._writer.number(change.seq)
            self._writer.discard()
        else:
            _mirror(self, [change])


_mirror = store.Store.mirror


def _no_ids(self: Any, epoch: int | None = None) -> None:
    _lead(self, epoch)
    self._seen.ids.clear()


_lead = store.Store.lead


class Mutant(NamedTuple):
    """One defect: ``install`` makes it in this process, and the checker finds it under ``faults``."""

    install: Callable[[], None]
    faults: Sequence[str]
    #: True if PostgreSQL has a standby.
    standby: bool = False
    #: Seconds of the lease.
    lease: float = 2.0


MUTANTS: dict[str, Mutant] = {
    "answers before the database has it": Mutant(
        _both(_set(writer.Writer, "after", _at_once), _set(writer.Writer, "answer", _answer_at_once)),
        ["kill"],
    ),
    "does not wait for the standby": Mutant(
        _set(postgres, "_SETTINGS", postgres._SETTINGS | {"synchronous_commit": "local"}),
        ["standby away"],
        standby=True,
    ),
    "takes a warning for success": Mutant(
        _set(postgres._Connection, "committing", _committing), ["cancelled wait"], standby=True
    ),
    "takes a lost reply for success": Mutant(_lost_reply, ["request lost"]),
    "writes again after a lost reply": Mutant(
        _renumber(lambda engine, connection: int(engine._probe(connection))), ["reply lost", "kill"]
    ),
    # A leader whose lease has run out acknowledges nothing; PostgreSQL may need longer to start.
    "believes what it finds after a restart": Mutant(
        _set(postgres, "_PROBE", _READ_ONLY), ["restart alone"], standby=True, lease=20.0
    ),
    "does not look for a standby": Mutant(
        _both(
            _set(postgres_lease, "standby_problem", lambda found: ""),
            _set(postgres.PostgresEngine, "_check_standby", lambda self, names: None),
        ),
        ["failover"],
        standby=True,
    ),
    "writes without a fence": Mutant(
        _set(postgres, "_FENCE", _UNFENCED), ["clock stopped, slow takeover"], lease=3.0
    ),
    "takes the epoch that it finds for its own": Mutant(_renumber(_adopt), ["clock stopped"]),
    "begins no epoch": Mutant(_same_epoch, ["kill"]),
    "takes a lease that is held": Mutant(_set(lease.Lease, "may_take", _always), ["calm"]),
    "measures the lease by the wall clock": Mutant(
        _set(postgres_lease, "clock", time.time), ["leader's clock set"]
    ),
    "trusts its lease for ever": Mutant(
        _both(
            _set(postgres_lease.PostgresLease, "holds", _trusting),
            _set(lease.Lease, "trusts", lambda self, now: self.epoch > 0),
        ),
        ["cut off"],
    ),
    "skips changes while it follows": Mutant(_set(store.Store, "mirror", _forgetful), ["kill"]),
    "forgets ids when it begins to lead": Mutant(_set(store.Store, "lead", _no_ids), ["kill, unanswered"]),
}

#: No defect, and the faults of all mutants: nothing may be found.
CONTROL = Mutant(
    lambda: None, sorted({name for mutant in MUTANTS.values() for name in mutant.faults}), standby=True
)
