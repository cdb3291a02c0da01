"""The storage's file: whose it is, what is wrong with it, and when it cannot be written."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Store, Subscription, statistics, writer
from tests.host.hub_storage import NOW, ident, ids, put, synced, taken, until, with_store


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with something in every table."""
    path = tmp_path_factory.mktemp("hub") / "hub.db"

    async def fill(store: Store) -> None:
        store.register("t", 2)
        store.attach("g", "t")
        for n in range(100):
            put(store, "t", n, b"payload %d" % n * 20, retain=n == 5)
        await synced(store)
        (one,) = store.take("g", "t", 1, 1)
        store.give_back("g", "t", 1, [one.message.seq], time_ns=NOW)
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
        (statement("PRAGMA application_id = 1"), "an SQLite file, but not a hub's storage"),
        (statement("PRAGMA application_id = 0"), "an SQLite file, but not a hub's storage"),
        (statement("PRAGMA user_version = 1"), "is of version 1; this program knows versions up to 3"),
        (statement("DROP TABLE seen"), r"is damaged \(no such table: seen\)"),
        (statement("UPDATE seen SET ids = zeroblob(8)"), "remembered ids are not what was written"),
        (statement("UPDATE seen SET ids = NULL"), "is damaged"),
        (statement("UPDATE counters SET value = value - 1"), "a row of counters is not what was written"),
        (statement("UPDATE topics SET queues = 1"), "a row of topics is not what"),
        (statement("UPDATE positions SET through = 7 WHERE queue = 1"), "a row of positions is not what"),
        (statement("UPDATE positions SET through = NULL WHERE queue = 1"), "a row of positions is not what"),
        (statement("UPDATE opened SET tries = 9"), "a row of opened is not what"),
        (statement("DELETE FROM positions"), "do not fit together"),
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


def version_2(path: Path, *places: tuple[str, int, int, int, str, str]) -> None:
    """Make a file what version 2 wrote: a group's place in a queue is one row."""
    db = sqlite3.connect(path)
    with db:
        db.execute("DROP TABLE positions")
        db.execute("DROP TABLE opened")
        db.execute(
            "CREATE TABLE positions (consumers TEXT, topic INTEGER, queue INTEGER, floor INTEGER, taken TEXT,"
            " tries TEXT, crc INTEGER, PRIMARY KEY (consumers, topic, queue)) WITHOUT ROWID"
        )
        for place in places:
            text = f'["{place[0]}",{place[1]},{place[2]},{place[3]},{place[4]},{place[5]}]'
            db.execute(
                "INSERT INTO positions VALUES (?, ?, ?, ?, ?, ?, ?)", (*place, zlib.crc32(text.encode()))
            )
        db.execute("PRAGMA user_version = 2")
    db.close()


def test_a_file_of_the_version_before_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    seqs: list[int] = []

    async def fill(store: Store) -> None:
        store.register("t", 2)
        store.attach("g", "t")
        seqs.extend(put(store, "t", n, process=0) for n in range(6))

    with_store(path)(fill)
    taken_there = f"[{seqs[1]},{seqs[4]}]"
    tries = f'{{"{seqs[2]}":2,"{seqs[5]}":3}}'
    version_2(path, ("g", 1, 0, seqs[0], taken_there, tries), ("g", 1, 1, 0, "[]", "{}"))

    async def first(store: Store) -> None:
        with pytest.raises(StorageError, match=f"changes up to {store.seq - 1} are not kept"):
            store.changes(0, 1)
        assert [change.values for change in store.changes(store.seq - 1, 9)] == [("followed", store.seq - 1)]
        found = [(one.message.seq, one.tries) for one in store.take("g", "t", 0, 9)]
        assert found == [(seqs[2], 2), (seqs[3], 0), (seqs[5], 3)]
        assert put(store, "t", 6, process=1) == store.seq > seqs[5]
        store.ack("g", "t", 0, seqs[3])
        await synced(store)

    async def second(store: Store) -> None:
        assert taken(store) == [seqs[2], seqs[5]]
        assert len(taken(store, queue=1)) == 1
        for seq in (seqs[2], seqs[5]):
            store.ack("g", "t", 0, seq)
        await synced(store)
        assert not len(store.topics["t"].queues[0])
        assert store._reader.execute("SELECT count(*) FROM opened").fetchone() == (0,)

    with_store(path)(first)
    with_store(path)(second)


def test_a_damaged_file_of_the_version_before_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"

    async def fill(store: Store) -> None:
        store.register("t")
        store.attach("g", "t")

    with_store(path)(fill)
    for what in ("taken = '['", "taken = NULL", "floor = 7", "tries = '[]'"):
        version_2(path, ("g", 1, 0, 0, "[]", "{}"))
        statement(f"UPDATE positions SET {what}")(path)
        before = path.read_bytes()
        with pytest.raises(StorageError, match="a row of positions is not what was written"):
            Store.open(path)
        assert path.read_bytes() == before
        statement("CREATE TABLE opened (x)")(path)


def test_opening_a_file_takes_no_call_for_each_message(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"

    async def fill(store: Store) -> None:
        assert store._file.writer is not None
        store._file.writer.execute("PRAGMA synchronous = OFF")
        for topic in "abc":
            store.register(topic, 4)
        for n in range(20_000):
            put(store, "abc"[n % 3], n, process=n)

    with_store(path)(fill)
    calls = [0]

    def count(frame: object, event: str, argument: object) -> None:
        calls[0] += event == "call"

    async def read(store: Store) -> None:
        assert [store.topics[topic].count for topic in "abc"] == [6667, 6667, 6666]
        for n in range(3):
            seqs = store.topics["abc"[n]].queues[1].after(0, 10_000)
            assert seqs == sorted(seqs)
            assert len(seqs) in (1666, 1667)

    sys.setprofile(count)
    try:
        with_store(path)(read)
    finally:
        sys.setprofile(None)
    assert calls[0] < 5000


def test_what_is_consumed_leaves_little_in_the_file(tmp_path: Path) -> None:
    """Each message is stored, handed out and acknowledged in transactions of its own."""
    path = tmp_path / "hub.db"

    async def run(store: Store) -> None:
        assert store._file.writer is not None
        store._file.writer.execute("PRAGMA synchronous = OFF")
        store.register("t")
        store.attach("g", "t")
        for n in range(1500):
            put(store, "t", n, b"1234")
            await synced(store)
            for seq in taken(store):
                store.ack("g", "t", 0, seq)
            await synced(store)
        size = sum(one.stat().st_size for one in tmp_path.glob("hub.db*"))
        assert size < 8 << 20
        await store.close()
        assert path.stat().st_size < 1500 * 200

    with_store(path)(run)


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
