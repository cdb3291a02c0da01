"""Copies of a hub's storage that are made while it is written, and put in its place."""

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Store
from headwater_host.hub.storage import backup as backups
from headwater_host.hub.storage.backup import backup, install
from tests.host.command import headwater_here
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


async def test_a_writer_does_not_make_a_backup_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_PAGES", 1)
    path, copy = tmp_path / "hub.db", tmp_path / "copy.db"
    async with store_at(path) as store:
        store.register("t")
        put(store, "t", 0, bytes(400_000))
        await synced(store)
        before, loop, steps = exported(store), asyncio.get_running_loop(), itertools.count(1)

        async def write(n: int) -> None:
            put(store, "t", n, bytes(5000))
            await synced(store)

        def proceed() -> None:
            assert asyncio.run_coroutine_threadsafe(write(next(steps)), loop).result(200) is None

        await asyncio.to_thread(backup, str(path), str(copy), proceed)
    assert 100 < next(steps) < 250
    async with store_at(copy) as store:
        assert exported(store) == before


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


def test_a_backup_that_fails_leaves_no_file_and_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(os.urandom(10_000))
    with pytest.raises(StorageError, match="is no hub's storage"):
        backup(str(tmp_path / "text"), str(tmp_path / "copy.db"))
    with pytest.raises(FileNotFoundError, match=r"none/copy\.db"):
        backup(str(tmp_path / "text"), str(tmp_path / "none" / "copy.db"))
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(FileExistsError):
        backup(str(tmp_path / "text"), str(tmp_path / "copy.db"))
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_the_command_names_the_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "hub.db").write_bytes(os.urandom(10_000))
    for copy, says in (
        (tmp_path / "none" / "copy.db", f"{tmp_path}/none/copy.db: No such file or directory"),
        (tmp_path / "hub.db", f"{tmp_path}/hub.db exists already"),
    ):
        done = headwater_here("hub", "backup", tmp_path / "hub.db", copy)
        assert done.returncode != 0
        assert says in done.stderr.decode()


async def test_a_restore_names_the_place_that_there_is_not(tmp_path: Path) -> None:
    async with store_at(tmp_path / "copy.db") as store:
        await synced(store)
    done = headwater_here("hub", "restore", tmp_path / "none" / "hub.db", tmp_path / "copy.db")
    assert done.returncode == 1
    assert done.stderr.decode() == f"headwater: {tmp_path}/none/hub.db: No such file or directory\n"
    assert (tmp_path / "copy.db").exists()
