"""Decide which slave a promotion takes, and what it may lose."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication.lineage import Lineage, new_ident


class Plan(NamedTuple):
    """The slaves to fence for a new epoch, and what may be lost although they are, "" for nothing."""

    epoch: int
    ident: str
    slaves: tuple[str, ...]
    risk: str


def plan(found: Mapping[str, Mapping[str, Any]], hubs: int, sync: int, *, force: bool = False) -> Plan:
    """Return the plan of a promotion. Raises StorageError unless it is safe, or ``force`` is given.

    ``found``: the status of each hub that answers. ``hubs``: how many there are. ``sync``: how many slaves confirm. A
    committed transaction is on ``sync`` of the N = ``hubs`` - 1 slaves of the leader. So N - ``sync`` + 1 slaves are
    fenced: one of them has it, and fewer than ``sync`` are left that could confirm what the old leader still writes.
    """
    last = max((int(status["epoch"]) for status in found.values()), default=0)
    leaders = [name for name, one in found.items() if one["role"] == "leader" and one["epoch"] == last]
    slaves = tuple(name for name, one in found.items() if one["role"] == "slave")
    needed = hubs - 1 - sync + 1
    if leaders and not force:
        raise StorageError(f"{leaders[0]!r} leads epoch {last}: stop it first")
    if not slaves:
        raise StorageError("no slave answers")
    risk = ""
    if sync == 0:
        risk = (
            "sync = 0: the leader may have acknowledged messages that no slave has, and it may still lead; "
            "what it has acknowledged since then is lost"
        )
    elif len(slaves) < needed:
        risk = (
            f"{needed} slaves must be fenced, {len(slaves)} answer: the others may have acknowledged messages that "
            "these do not have, and may still confirm what the old leader writes; both are lost"
        )
    if risk and not force:
        raise StorageError(f"{risk}. To accept that, use --force")
    epoch = 1 + max(max(int(one["epoch"]), int(one["fence"])) for one in found.values())
    return Plan(epoch, new_ident(), slaves, risk)


def most_advanced(fenced: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the slave with the newest state, after all of them were fenced.

    A hub that another promotion has made a leader in the meantime does not count: the fence has ended its leadership.
    """
    histories = {
        name: Lineage.parse(str(one["lineage"])) for name, one in fenced.items() if one["role"] == "slave"
    }

    def newness(name: str) -> tuple[int, int, int]:
        own = histories[name]
        # A history that continues the others has their last starts.
        continued = sum(not other or other[-1] in own for other in histories.values())
        return own.epoch, continued, int(fenced[name]["seq"])

    return max(sorted(histories), key=newness)
