"""Hubs with one defect of the election, the fence or the answers, to see that the checker finds it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from headwater_host.hub.cluster import lease, member, postgres_lease
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


def _local() -> None:
    before = postgres._Connection._set

    def set_(self: Any, name: str, value: str) -> None:
        before(self, name, "local" if name == "synchronous_commit" else value)

    postgres._Connection._set = set_  # type: ignore[method-assign]


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


def _resubmit() -> None:
    before = postgres.PostgresEngine.write

    def write(self: Any, transaction: Any) -> None:
        if self._writer is None:
            self._connect()
        before(self, transaction)

    postgres.PostgresEngine.write = write  # type: ignore[method-assign]
    postgres._FENCE = postgres._FENCE.replace(" AND turn = %(turn)s - 1", "")


_FENCE = "SELECT 1 / (1 + 0 * %(turn)s + 0 * %(epoch)s), current_setting('synchronous_standby_names')"
_ANY_EPOCH = postgres._FENCE.replace("epoch = %(epoch)s AND turn = %(turn)s - 1", "%(epoch)s > 0")
_READ_ONLY = "SELECT turn FROM leader WHERE epoch = %s"


def _trusting(self: Any, epoch: int) -> bool:
    return bool(self._lease.epoch == epoch != 0)


def _always(self: Any, *, ended: bool = False) -> bool:
    return self.row is not None and not self.epoch


def _forgetful(self: Any, some: Any) -> None:
    changes = list(some)
    _mirror(self, [change for change in changes if change.seq % 20])


_mirror = store.Store.mirror


def _no_ids(self: Any, epoch: int | None = None) -> None:
    _lead(self, epoch)
    self._seen.ids.clear()


_lead = store.Store.lead


async def _stays(self: Any) -> None:
    """A leader that does not look at its lease."""
    if self._handing is None and self.broker is None:
        await _look(self)


_look = member.Member._look


#: Name, and the function that installs the defect in this process.
MUTANTS: dict[str, Callable[[], None]] = {
    "answers before the database has it": _both(
        _set(writer.Writer, "after", _at_once), _set(writer.Writer, "answer", _answer_at_once)
    ),
    "does not wait for the standby": _local,
    "takes a warning for success": _set(postgres._Connection, "committing", _committing),
    "takes a lost reply for success": _lost_reply,
    "writes again after a lost reply": _resubmit,
    "believes what it finds after a restart": _set(postgres, "_PROBE", _READ_ONLY),
    "does not look for a standby": _both(
        _set(postgres_lease, "standby_problem", lambda found: ""),
        _set(postgres.PostgresEngine, "_check_standby", lambda self, names: None),
    ),
    "writes without a fence": _set(postgres, "_FENCE", _FENCE),
    "accepts a former epoch": _both(
        _set(postgres, "_FENCE", _ANY_EPOCH),
        _set(postgres, "_PROBE", "UPDATE leader SET turn = turn WHERE %s > 0 RETURNING turn"),
    ),
    "begins no epoch": _set(
        postgres_lease, "_TAKE", postgres_lease._TAKE.replace("epoch = epoch + 1, ", "epoch = epoch, ")
    ),
    "takes a lease that is held": _set(lease.Lease, "may_take", _always),
    "measures the lease by the wall clock": _set(postgres_lease, "clock", time.time),
    "trusts its lease for ever": _both(
        _set(postgres_lease.PostgresLease, "holds", _trusting),
        _set(lease.Lease, "trusts", lambda self, now: self.epoch > 0),
    ),
    "skips changes while it follows": _set(store.Store, "mirror", _forgetful),
    "forgets ids when it begins to lead": _set(store.Store, "lead", _no_ids),
}

#: The faults under which each is found.
FAULTS: dict[str, list[str]] = {
    "answers before the database has it": ["kill"],
    "does not wait for the standby": ["standby away", "failover"],
    "takes a warning for success": ["cancelled wait"],
    "takes a lost reply for success": ["ambiguous"],
    "writes again after a lost reply": ["ambiguous"],
    "believes what it finds after a restart": ["restart alone"],
    "does not look for a standby": ["failover"],
    "writes without a fence": ["pause", "cut off, requests"],
    "accepts a former epoch": ["pause", "cut off, requests"],
    "begins no epoch": ["kill"],
    "takes a lease that is held": ["clocks"],
    "measures the lease by the wall clock": ["clocks"],
    "trusts its lease for ever": ["cut off"],
    "skips changes while it follows": ["kill"],
    "forgets ids when it begins to lead": ["kill"],
}
