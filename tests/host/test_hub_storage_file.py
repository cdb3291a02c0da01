"""The storage's file: whose it is, what is wrong with it, and when it cannot be written."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage import Store, Subscription, statistics, writer
from tests.host.command import environment
from tests.host.hub_storage import NOW, ident, ids, put, rows_in, store_at, synced, taken, writing
from tests.host.sql import execute
from tests.rows import each_row
from tests.waiting import until


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with something in every table."""
    path = tmp_path_factory.mktemp("hub") / "hub.db"

    async def fill() -> None:
        async with store_at(path) as store:
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

    asyncio.run(fill())
    return path


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(good, tmp_path / "hub.db"))


async def test_a_file_belongs_to_one_hub(copy: Path) -> None:
    async with store_at(copy):
        with pytest.raises(StorageError, match="is in use by another hub"):
            Store.open(copy)
        code = f"from headwater_host.hub.storage import Store; Store.open({str(copy)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=100
        )
        assert "is in use by another hub" in done.stderr
    async with store_at(copy) as store:
        await synced(store)


@each_row(
    "damage, says",
    [
        (lambda data: b"something else " * 1000, "is no hub's storage: file is not a database"),
        (lambda data: data[:-6000], "is damaged"),
        (lambda data: data[: len(data) // 2] + b"\xff" * 3000 + data[len(data) // 2 + 3000 :], "is damaged"),
        ("PRAGMA application_id = 1", "an SQLite file, but not a hub's storage"),
        ("PRAGMA application_id = 0", "an SQLite file, but not a hub's storage"),
        ("PRAGMA user_version = 1", "is of version 1; this program knows versions up to 4"),
        ("PRAGMA user_version = 5", "is of version 5; this program knows versions up to 4"),
        ("DROP TABLE seen", r"is damaged \(no such table: seen\)"),
        ("UPDATE seen SET ids = zeroblob(8)", "remembered ids are not what was written"),
        ("UPDATE seen SET ids = NULL", "is damaged"),
        ("UPDATE counters SET value = value - 1", "a row of counters is not what was written"),
        ("UPDATE topics SET queues = 1", "a row of topics is not what"),
        ("UPDATE positions SET through = 7 WHERE queue = 1", "a row of positions is not what"),
        ("UPDATE positions SET through = NULL WHERE queue = 1", "a row of positions is not what"),
        ("UPDATE opened SET tries = 9", "a row of opened is not what"),
        ("DELETE FROM positions", "do not fit together"),
        ("UPDATE clients SET process = 9", "a row of clients is not what"),
        ("UPDATE sessions SET body = '{}'", "a row of sessions is not what"),
        ("UPDATE sessions SET body = x'5b'", "a row of sessions is not what"),
        ("UPDATE subscriptions SET serial = 9", "a row of subscriptions is not what"),
        ("UPDATE handshakes SET id = '00'", "a row of handshakes is not what"),
        ("UPDATE wills SET body = '{}'", "a row of wills is not what"),
        ("UPDATE retained SET payload = x'00'", "a retained message is not what was written"),
        ("DELETE FROM retained; DELETE FROM topics", "do not fit together"),
        ("UPDATE messages SET queue = 5 WHERE seq = 50", "do not fit together"),
        ("UPDATE messages SET time = 'x' WHERE seq = 50", "do not fit together"),
        ("DELETE FROM sessions", "do not fit together"),
        ("DELETE FROM leader", "the table leader has 0 rows"),
        ("INSERT INTO leader SELECT * FROM leader", "the table leader has 2 rows"),
    ],
)
def test_a_file_that_is_not_what_was_written(
    good: Path, tmp_path: Path, damage: str | Callable[[bytes], bytes], says: str
) -> None:
    path = Path(shutil.copy(good, tmp_path / "hub.db"))
    if isinstance(damage, str):
        execute(path, *damage.split("; "))
    else:
        path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(StorageError, match=says) as caught:
        Store.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    # It has been given back.
    shutil.rmtree(tmp_path)


async def test_opening_a_file_takes_no_call_for_each_message(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with store_at(path) as store:
        writing(store).execute("PRAGMA synchronous = OFF")
        for topic in "abc":
            store.register(topic, 4)
        for n in range(20_000):
            put(store, "abc"[n % 3], n, process=n)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        store = Store.open(path)
        assert [store.topics[topic].count for topic in "abc"] == [6667, 6667, 6666]
        for n in range(3):
            seqs = store.topics["abc"[n]].queues[1].after(0, 10_000)
            assert seqs == sorted(seqs)
            assert len(seqs) in (1666, 1667)
        await store.close()
    finally:
        sys.setprofile(None)
    assert calls < 5000


async def test_what_is_consumed_leaves_little_in_the_file(tmp_path: Path) -> None:
    """Each message is stored, handed out and acknowledged in transactions of its own."""
    path = tmp_path / "hub.db"
    async with store_at(path) as store:
        writing(store).execute("PRAGMA synchronous = OFF")
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


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened: No such file"):
        Store.open(tmp_path / "none" / "hub.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be opened: unable to open"):
        Store.open(tmp_path / "folder")


async def test_a_damaged_message_is_left_out_and_counted(copy: Path) -> None:
    execute(copy, "UPDATE messages SET payload = x'00' WHERE seq = 50")
    async with store_at(copy) as store:
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


def pages(store: Store, limit: int) -> None:
    """The file cannot grow beyond this, as on a full disk."""
    writing(store).execute(f"PRAGMA max_page_count = {limit}")


async def test_a_full_disk_holds_every_answer_back_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)
    async with store_at(tmp_path / "hub.db") as store:
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
    async with store_at(tmp_path / "hub.db") as store:
        assert ids(store.read("t", 0, 0, 100)) == [ident(n) for n in range(21)]


async def test_a_transaction_that_fails_in_the_middle_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)
    store.register("t")
    await synced(store)
    db = writing(store)
    # The messages are in the table by then.
    db.execute("CREATE TRIGGER stop BEFORE INSERT ON seen BEGIN SELECT RAISE(ABORT, 'not today'); END")
    for n in range(5):
        put(store, "t", n)
    await until(lambda: store.error)
    assert "not today" in str(store.error)
    assert rows_in(store, "messages") == 0
    assert statistics(store)["write_error"] == 1
    await until(lambda: not store._writer._running)
    db.execute("DROP TRIGGER stop")
    await synced(store)
    assert ids(store.read("t", 0, 0, 100)) == [ident(n) for n in range(5)]


async def test_ending_while_the_disk_is_full_is_said(tmp_path: Path) -> None:
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
