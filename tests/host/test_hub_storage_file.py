"""The storage's file: whose it is, what is wrong with it, and when it cannot be written."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Store, Subscription, statistics, writer
from tests.host.hub_storage import ident, ids, put, synced, until, with_store


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with something in every table."""
    path = tmp_path_factory.mktemp("hub") / "hub.db"

    async def fill(store: Store) -> None:
        store.register("t", 2)
        store.attach("g", "t")
        for n in range(100):
            put(store, "t", n, b"payload %d" % n * 20, retain=n == 5)
        store.sessions.process("client")
        store.sessions.save("client", {"user": "me"})
        store.sessions.subscribe("client", Subscription(1, "t"))
        store.sessions.hold("client", "received", ident(3))
        store.sessions.keep_will(1, {"topic": "t"})

    with_store(path)(fill)
    return path


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(good, tmp_path / "hub.db"))


def test_a_file_belongs_to_one_hub(copy: Path) -> None:
    async def run(store: Store) -> None:
        with pytest.raises(StorageError, match="is in use by another hub"):
            Store.open(copy)
        code = f"from headwater_host.hub.storage import Store; Store.open({str(copy)!r})"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert "is in use by another hub" in done.stderr

    with_store(copy)(run)
    with_store(copy)(synced)


def statement(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        db = sqlite3.connect(path)
        with db:
            for one in statements:
                db.execute(one)
        db.close()

    return change


def overwrite(at: float, what: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        where = int(len(data) * at)
        data[where : where + len(what)] = what
        path.write_bytes(data)

    return change


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda path: path.write_bytes(b"something else " * 1000), "is no hub's storage: file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:-6000]), "is damaged"),
        (overwrite(0.5, b"\xff" * 3000), "is damaged"),
        (statement("PRAGMA application_id = 1"), "an SQLite file of something else"),
        (statement("PRAGMA application_id = 0"), "an SQLite file of something else"),
        (statement("PRAGMA user_version = 1"), "is of version 1; this program knows version 2"),
        (statement("DROP TABLE seen"), r"is damaged \(no such table: seen\)"),
        (statement("UPDATE seen SET ids = zeroblob(8)"), "remembered ids are not what was written"),
        (statement("UPDATE seen SET ids = NULL"), "is damaged"),
        (statement("UPDATE counters SET value = value - 1"), "a row of counters is not what was written"),
        (statement("UPDATE topics SET queues = 1"), "a row of topics is not what"),
        (statement("UPDATE positions SET floor = 7 WHERE queue = 1"), "a row of positions is not what"),
        (statement("UPDATE positions SET taken = '[' WHERE queue = 1"), "a row of positions is not what"),
        (statement("UPDATE positions SET taken = NULL WHERE queue = 1"), "a row of positions is not what"),
        (statement("UPDATE clients SET process = 9"), "a row of clients is not what"),
        (statement("UPDATE sessions SET body = '{}'"), "a row of sessions is not what"),
        (statement("UPDATE sessions SET body = x'5b'"), "a row of sessions is not what"),
        (statement("UPDATE subscriptions SET serial = 9"), "a row of subscriptions is not what"),
        (statement("UPDATE handshakes SET id = '00'"), "a row of handshakes is not what"),
        (statement("UPDATE wills SET body = '{}'"), "a row of wills is not what"),
        (statement("UPDATE retained SET payload = x'00'"), "a retained message is not what was written"),
        (statement("DELETE FROM retained", "DELETE FROM topics"), "do not fit together"),
        (statement("UPDATE messages SET queue = 5 WHERE seq = 50"), "do not fit together"),
        (statement("UPDATE messages SET time = 'x' WHERE seq = 50"), "do not fit together"),
        (statement("DELETE FROM sessions"), "do not fit together"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_what_was_written(copy: Path, change: Callable[[Path], None], says: str) -> None:
    change(copy)
    before = copy.read_bytes()
    with pytest.raises(StorageError, match=says) as caught:
        Store.open(copy)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert copy.read_bytes() == before
    # It has been given back.
    shutil.rmtree(copy.parent)


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened: No such file"):
        Store.open(tmp_path / "none" / "hub.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be opened: unable to open"):
        Store.open(tmp_path / "folder")


def test_a_damaged_message_is_left_out_and_counted(copy: Path) -> None:
    statement("UPDATE messages SET payload = x'00' WHERE seq = 50")(copy)

    async def run(store: Store) -> None:
        got = [one.message.seq for one in store.take("g", "t", 1, 1000)]
        assert len(got) == 99
        assert 50 not in got
        assert store.damaged == 1
        for seq in got:
            store.ack("g", "t", 1, seq)
        await synced(store)
        assert not store.topics["t"].count
        await store.close()
        with pytest.raises(StorageError, match="closed"):
            store.register("x")

    with_store(copy)(run)


def pages(store: Store, limit: int) -> None:
    """The file cannot grow beyond this, as on a full disk."""
    assert store._file.writer is not None
    store._file.writer.execute(f"PRAGMA max_page_count = {limit}")


def test_a_full_disk_holds_every_answer_back_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)

    async def first(store: Store) -> None:
        store.register("t")
        await synced(store)
        answered: list[int] = []
        pages(store, 1)
        for n in range(20):
            put(store, "t", n, b"x" * 5000)
            store.after(lambda n=n: answered.append(n))  # type: ignore[misc]
            await asyncio.sleep(0)
        await until(lambda: store.error)
        assert "full" in str(store.error)
        put(store, "t", 20)
        assert not answered
        assert not store.read("t", 0, 0, 100)
        pages(store, 1_000_000)
        await synced(store)
        assert answered == list(range(20))
        assert store.error is None

    async def second(store: Store) -> None:
        assert ids(store.read("t", 0, 0, 100)) == [ident(n) for n in range(21)]

    with_store(tmp_path / "hub.db")(first)
    with_store(tmp_path / "hub.db")(second)


def test_a_transaction_that_fails_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)

    async def run(store: Store) -> None:
        store.register("t")
        await synced(store)
        db = store._file.writer
        assert db is not None
        # The messages are in the table by then.
        db.execute("CREATE TRIGGER stop BEFORE INSERT ON seen BEGIN SELECT RAISE(ABORT, 'not today'); END")
        for n in range(5):
            put(store, "t", n)
        await until(lambda: store.error)
        assert "not today" in str(store.error)
        assert store._reader.execute("SELECT count(*) FROM messages").fetchall() == [(0,)]
        assert statistics(store)["write_error"] == 1
        await until(lambda: not store._writer._running)
        db.execute("DROP TRIGGER stop")
        await synced(store)
        assert ids(store.read("t", 0, 0, 100)) == [ident(n) for n in range(5)]

    with_store(tmp_path / "hub.db")(run)


def test_ending_while_the_disk_is_full_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store.open(tmp_path / "hub.db")
        store.register("t")
        await synced(store)
        pages(store, 1)
        put(store, "t", 1, b"x" * 5000)
        with pytest.raises(StorageError, match="is not up to date: database or disk is full"):
            await store.close()
        with_free = Store.open(tmp_path / "hub.db")  # it has been given back
        assert "t" in with_free.topics
        await with_free.close()

    asyncio.run(run())
