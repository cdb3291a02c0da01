"""Turn a leader that another one has replaced into a slave, and keep what only it has."""

import base64
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication.follower import lineage
from headwater_host.hub.replication.lineage import Lineage
from headwater_host.hub.storage import Change, Limits, Message, Store
from headwater_host.hub.storage.store import open_engine
from headwater_host.private import opened

#: Changes that are read at once.
_AT_ONCE = 500
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@dataclass
class Lost:
    """The changes that only the old leader has: in ``tail``, unless there are none. ``before``: its whole storage."""

    changes: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    #: Changes that were not kept any more, so that ``tail`` does not have them.
    unknown: int = 0
    tail: Path | None = None
    before: Path | None = None


async def rejoin(path: Path, leader: str, history: Lineage) -> Lost:
    """Make the storage of a stopped hub that of a slave of ``leader``, whose history is given. Raises StorageError.

    What the leader does not have is written into a file, and the old storage is kept beside it. A storage that the
    leader's continues is left as it is.
    """
    engine = open_engine(path)
    try:
        store = Store(engine, Limits())
    except BaseException:
        engine.close()
        raise
    try:
        own, seq = lineage(store), store.seq
        if history.epoch < own.epoch:
            raise StorageError(
                f"{leader!r} has epoch {history.epoch}, this hub {own.epoch}: it is the newer leader"
            )
        fork = history.fork(own, seq)
        if fork is None:
            raise StorageError(f"{path} is not of the same hubs as {leader!r}: start with an empty storage")
        lost = Lost()
        if fork < seq:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            lost.tail = path.with_name(f"{path.name}-lost-{stamp}.jsonl")
            lost.before = path.with_name(f"{path.name}-before-rejoin-{stamp}")
            _write(store, fork, lost, lost.tail)
        store.follow()
        if lost.before is None:
            store.count_locally("leads", leader)
        fence = store.counter("fence")
    finally:
        await store.close()
    if lost.before is not None:
        path.rename(lost.before)
        await _empty(path, leader, fence)
    return lost


async def _empty(path: Path, leader: str, fence: Any) -> None:
    """Make an empty storage, for the leader's snapshot."""
    store = Store.open(path, following=True)
    store.count_locally("leads", leader)
    if fence:
        store.count_locally("fence", fence)
    await store.close()


def _write(store: Store, fork: int, lost: Lost, tail: Path) -> None:
    after = max(fork, store.followed)
    lost.unknown = after - fork
    with open(opened(tail, _NEW), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        while found := store.changes(after, _AT_ONCE):
            for change in found:
                file.write(json.dumps(_line(change)) + "\n")
                lost.changes += 1
                if isinstance(change.values[0], Message):
                    lost.messages[change.values[0].topic] += 1
            after = found[-1].seq
        file.flush()
        os.fsync(file.fileno())


def _line(change: Change) -> dict[str, Any]:
    """Return a change as a line of the file: of a message its fields, of others their values."""
    first = change.values[0]
    if isinstance(first, Message):
        fields = first._asdict() | {"id": first.id.hex(), "payload": base64.b64encode(first.payload).decode()}
        return {"seq": change.seq, "kind": change.kind, **fields}
    values = [value.hex() if isinstance(value, bytes) else value for value in change.values]
    return {"seq": change.seq, "kind": change.kind, "values": values}
