"""Begin to lead: the storage's history gets a start, and its transactions wait for slaves."""

from collections.abc import Callable
from typing import BinaryIO

from headwater_host.hub.replication.follower import lineage
from headwater_host.hub.replication.lineage import Lineage, new_ident
from headwater_host.hub.replication.quorum import Quorum
from headwater_host.hub.replication.slaves import Ending, Slaves
from headwater_host.hub.storage import Store


def lead(
    store: Store,
    names: tuple[str, ...],
    need: int,
    backup: Callable[[Ending], BinaryIO],
    deposed: Callable[[int], None] = lambda epoch: None,
    promised: tuple[int, str] | None = None,
) -> Slaves:
    """Return the slaves of this leader; ``need`` of ``names`` confirm each transaction.

    Nothing that the storage holds counts as committed until they have confirmed it since this start. ``promised``: the
    epoch that a promotion begins, and its id.
    """
    history = lineage(store)
    history = begin(store, history, *(promised or (max(history.epoch, 1), new_ident())))
    slaves = Slaves(store, history, Quorum(names, need), backup, deposed)
    store.confirm_with(slaves.confirm)
    return slaves


def begin(store: Store, history: Lineage, epoch: int, ident: str) -> Lineage:
    """Write a start into a storage, after its last change."""
    history = history.followed_by(epoch, ident, store.seq)
    store.count("lineage", history.text())
    return history
