"""Tell the operator of a cluster who leads, and have another hub lead (``headwater hub status``, ``handover``)."""

import asyncio
import time
from typing import Any

import psycopg

from headwater_host.hub.cluster import election
from headwater_host.hub.cluster.address import address_of, split_address
from headwater_host.hub.cluster.postgres_lease import (
    STANDBYS,
    ask_for_handover,
    promoted,
    standby_problem,
)
from headwater_host.hub.config import ClusterConfig
from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.libpq import first_line

#: Seconds for connections and answers.
_PATIENCE = 5.0
_POSITION = (1 << 48) - 1
_ROW = "SELECT epoch, holder, length_ms FROM leader"
_LAST = "SELECT greatest((SELECT max(seq) FROM messages), (SELECT max(seq) FROM changes), 0)"
_DEPOSED = "SELECT value FROM counters WHERE name = 'deposed'"
_REPLICAS = "SELECT application_name, state, sync_state FROM pg_stat_replication ORDER BY 1"


def _connect(url: str) -> "psycopg.Connection[Any]":
    more = {"connect_timeout": "5", "application_name": "headwater hub status"}
    if "target_session_attrs" not in psycopg.conninfo.conninfo_to_dict(url):
        more["target_session_attrs"] = "read-write"
    return psycopg.connect(url, autocommit=True, **more)  # type: ignore[arg-type]


def status(url: str, cluster: ClusterConfig) -> dict[str, Any]:
    """Return the state of this hub and its cluster, as JSON can hold it. Raises StorageError."""
    try:
        with _connect(url) as db:
            row = db.execute(_ROW).fetchone()
            last = db.execute(_LAST).fetchone()
            standbys = db.execute(STANDBYS).fetchone()
            replicas = db.execute(_REPLICAS).fetchall()
            deposed = db.execute(_DEPOSED).fetchone()
    except psycopg.Error as error:
        raise StorageError(f"the database cannot be asked: {first_line(error)}") from error
    if row is None or last is None or standbys is None:
        raise StorageError("the database holds no hub's storage")
    epoch, holder, length_ms = row
    leader = address_of(holder) if length_ms else ""
    role, position = _ask(cluster, epoch, leader)
    problem = promoted(int(deposed[0])) if deposed is not None else ""
    if cluster.standby == "required":
        problem = problem or standby_problem(standbys)
    if not leader:
        problem = problem or "no hub leads"
    elif role == "stopped":
        problem = problem or f"this hub does not run: nothing listens at {cluster.advertise}"
    return {
        "role": role,
        "leader": leader,
        "epoch": epoch,
        "position": position,
        "last": last[0],
        "lag": None if position is None else max(last[0] - position, 0),
        "standby": cluster.standby,
        "synchronous_standby_names": standbys[0],
        "standbys": [
            {"name": name, "state": state, "sync_state": sync_state} for name, state, sync_state in replicas
        ],
        "problem": problem,
    }


def _ask(cluster: ClusterConfig, epoch: int, leader: str) -> tuple[str, int | None]:
    """Return the role of this hub, and the last change that it has, if it says so."""
    hub = split_address(cluster.advertise)
    # No hub has this address.
    asked = election.elect(
        hub, ("0.0.0.0", 0), election.version(epoch, 0), timeout=_PATIENCE, tls=cluster.context()
    )
    answer = asyncio.run(asked)
    if not answer.listens:
        return "stopped", None
    role = "leader" if leader == cluster.advertise else "follower"
    return role, answer.leader[1] & _POSITION if answer.leader is not None else None


def text(found: dict[str, Any]) -> str:
    """Return a state as lines of text."""
    lag = "unknown" if found["lag"] is None else f"{found['lag']} changes"
    names = found["synchronous_standby_names"] or "none"
    lines = [
        f"role: {found['role']}",
        f"leader: {found['leader'] or 'none'}",
        f"epoch: {found['epoch']}",
        f"lag: {lag}",
        f"synchronous standbys: {names}",
        *(f"standby {one['name']}: {one['state']}, {one['sync_state']}" for one in found["standbys"]),
        *([f"problem: {found['problem']}"] if found["problem"] else []),
    ]
    return "".join(line + "\n" for line in lines)


def hand_over(url: str, seconds: float) -> tuple[str, str, int]:
    """Have another hub lead; return the addresses of the former leader and of the new one, and its epoch.

    Raises StorageError if no hub leads, or if the leader does not react in time.
    """
    try:
        with _connect(url) as db:
            epoch, former = _leader(db)
            if not former:
                raise StorageError("no hub leads")
            ask_for_handover(url, epoch)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                found, address = _leader(db)
                if found > epoch and address:
                    return former, address, found
                time.sleep(0.05)
    except psycopg.Error as error:
        raise StorageError(f"the database cannot be asked: {first_line(error)}") from error
    raise StorageError(
        f"{former} still leads in epoch {epoch}, or no other hub is ready, after {seconds:g} s"
    )


def _leader(db: "psycopg.Connection[Any]") -> tuple[int, str]:
    row = db.execute(_ROW).fetchone()
    if row is None:
        raise StorageError("the database holds no hub's storage")
    return row[0], address_of(row[1]) if row[2] else ""
