"""Copies of a hub's storage that are made while it is written, and put in its place."""

import asyncio
import os
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Store
from headwater_host.hub.storage.backup import backup, install
from tests.host.hub_storage import put, queue_ids, store_at, synced


def exported(store: Store) -> str:
    return "\n".join(store.export())


async def test_a_backup_of_a_running_hub_is_one_of_its_states(tmp_path: Path) -> None:
    path, copy = tmp_path / "hub.db", tmp_path / "copy.db"
    states: set[str] = set()
    async with store_at(path) as store:
        store.register("t")
        await synced(store)
        states.add(exported(store))
        working = asyncio.get_running_loop().run_in_executor(None, backup, str(path), str(copy))
        n = 0
        while not working.done() or n < 10:
            n += 1
            put(store, "t", n, b"x" * 10_000)
            store.register(f"t{n}")
            await synced(store)
            states.add(exported(store))
        await working
        last = exported(store)
    assert copy.stat().st_mode & 0o077 == 0
    async with store_at(copy) as store:
        assert exported(store) in states
    # The newest state, put in place of an older one.
    backup(str(path), str(tmp_path / "newest.db"))
    install(str(tmp_path / "newest.db"), str(copy))
    async with store_at(copy) as store:
        assert exported(store) == last
    assert not (tmp_path / "newest.db").exists()


async def test_a_storage_in_use_is_not_replaced(tmp_path: Path) -> None:
    path, copy = tmp_path / "hub.db", tmp_path / "copy.db"
    async with store_at(path) as store:
        store.register("t")
        await synced(store)
        backup(str(path), str(copy))
        with pytest.raises(StorageError, match="in use by another hub"):
            install(str(copy), str(path))
        put(store, "t", 1)
    async with store_at(path) as store:
        assert len(queue_ids(store)) == 1


def test_what_is_no_storage_is_not_copied_and_not_installed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no hub's storage"):
        backup(str(tmp_path / "none.db"), str(tmp_path / "copy.db"))
    assert not (tmp_path / "copy.db").exists()
    (tmp_path / "text").write_bytes(os.urandom(10_000))
    with pytest.raises(StorageError, match="is no hub's storage"):
        backup(str(tmp_path / "text"), str(tmp_path / "copy.db"))
    with pytest.raises(StorageError, match="is no hub's storage"):
        install(str(tmp_path / "text"), str(tmp_path / "hub.db"))
    assert not (tmp_path / "hub.db").exists()
