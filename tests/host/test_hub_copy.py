"""A storage is copied into another engine and back, and equals what it was."""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Limits, Store
from headwater_host.hub.storage import copy as copying
from headwater_host.hub.storage.contract import Transaction
from headwater_host.hub.storage.copy import copy
from headwater_host.hub.storage.sqlite import SqliteEngine
from headwater_host.hub.storage.store import open_engine
from tests.host.command import headwater_here
from tests.host.hub_changes import Changes
from tests.host.hub_storage import Place, put, queue_ids, store_at, synced
from tests.host.test_hub_replay import exported, live

LIMITS = Limits(ids=200, topic_messages=100, tries=3, full="drop")


async def filled(place: Place) -> tuple[str, object]:
    """Fill a storage; return its export and its state in memory."""
    store = Store.open(place, LIMITS)
    changes = Changes(store, random.Random(7))
    for n in range(2_000):
        changes.step()
        if n % 50 == 0:
            await synced(store)
            changes.take()
    # The last change is no message.
    store.sessions.process("the last one")
    await synced(store)
    await store.close()
    store = Store.open(place, LIMITS)
    found = exported(store), live(store)
    await store.close()
    return found


async def test_a_copy_equals_the_storage_in_either_engine(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_AT_ONCE", 7)
    wanted, state = await filled(tmp_path / "hub.db")
    for source, target in ((tmp_path / "hub.db", database), (database, tmp_path / "back.db")):
        done = headwater_here("hub", "copy", source, target)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"copied " in done.stdout
    for place in (database, tmp_path / "back.db"):
        assert headwater_here("hub", "export", place).stdout.decode().splitlines() == wanted.splitlines()
        async with store_at(place, LIMITS) as store:
            assert live(store) == state
            # It goes on after the last change, and knows what it has stored.
            seq = store.seq
            store.register("new")
            assert put(store, "new", 0) == seq + 2
            assert put(store, "new", 0) == 0
            await synced(store)
            assert len(queue_ids(store, "new")) == 1


async def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path / "hub.db")
    async with store_at(tmp_path / "other.db") as store:
        store.register("t")
    for target in ("other.db", "hub.db"):
        done = headwater_here("hub", "copy", tmp_path / "hub.db", tmp_path / target)
        assert done.returncode == 1
        assert b"is not empty" in done.stderr or b"is in use by another hub" in done.stderr
    done = headwater_here("hub", "copy", tmp_path / "none.db", tmp_path / "new.db")
    assert (done.returncode, (tmp_path / "none.db").exists()) == (2, False)
    with closing(open_engine(tmp_path / "empty.db")):
        pass
    done = headwater_here("hub", "copy", tmp_path / "empty.db", tmp_path / "new.db")
    assert done.returncode == 1
    assert b"there is nothing to copy" in done.stderr


def test_backups_of_postgresql_are_copies(tmp_path: Path) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/x"
    for command, says in (("backup", b"hub copy URL"), ("restore", b"hub copy")):
        done = headwater_here("hub", command, url, tmp_path / "copy.db")
        assert done.returncode == 2
        assert says in done.stderr
        assert b"secret" not in done.stderr


@pytest.mark.parametrize("written", [1, 3, 20])
async def test_no_hub_uses_a_copy_that_was_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    monkeypatch.setattr(copying, "_AT_ONCE", 10)
    await filled(tmp_path / "hub.db")
    write: Callable[[SqliteEngine, Transaction], None] = SqliteEngine.write
    done: list[Transaction] = []

    def some(engine: SqliteEngine, transaction: Transaction) -> None:
        if len(done) == written:
            raise StorageError("the disk is full")
        write(engine, transaction)
        done.append(transaction)

    monkeypatch.setattr(SqliteEngine, "write", some)
    with (
        closing(open_engine(tmp_path / "hub.db")) as source,
        closing(open_engine(tmp_path / "new.db")) as target,
        pytest.raises(StorageError, match="the disk is full"),
    ):
        copy(source, target)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="is an incomplete copy"):
        Store.open(tmp_path / "new.db")
    assert b"is not empty" in headwater_here("hub", "copy", tmp_path / "hub.db", tmp_path / "new.db").stderr
