"""The hub's storage: epochs and turns, what a failed COMMIT comes to, and what is durable but not committed."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater_host.hub.errors import FencedError, StorageError
from headwater_host.hub.storage import Message, Store, writer
from tests.host.hub_storage import NOW, file_of, ident, ids, put, queue_ids, rows_in, store_at, synced, taken
from tests.host.sql import execute
from tests.waiting import until


async def test_each_transaction_moves_the_turn(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with store_at(path) as store:
        first = store._engine.leader()
        assert first[:2] == (1, 0)
        store.register("t")
        await synced(store)
        put(store, "t", 1)
        await synced(store)
        assert store._engine.leader() == first._replace(turn=store.commits)
    async with store_at(path) as store:
        begin = store._engine.leader().turn
        assert store._engine.leader().lineage == first.lineage
        put(store, "t", 2)
        await synced(store)
        assert store._engine.leader().turn == begin + 1
    async with store_at(tmp_path / "other.db") as other:
        assert other._engine.leader().lineage != first.lineage


@pytest.mark.parametrize("change", ["epoch = epoch + 1", "turn = turn + 1", "turn = turn - 1"])
async def test_nothing_is_written_when_another_hub_writes(tmp_path: Path, change: str) -> None:
    path = tmp_path / "hub.db"
    store = Store.open(path)
    said: list[Exception | None] = []
    store.tell(said.append)
    store.register("t")
    await synced(store)
    execute(path, f"UPDATE leader SET {change}")
    answered: list[int] = []
    put(store, "t", 1)
    store.after(lambda: answered.append(1))
    await until(lambda: said)
    (error,) = said
    assert isinstance(error, FencedError)
    assert "was written by another hub" in str(error)
    # It is not tried again.
    await until(lambda: not store._writer._running)
    put(store, "t", 2)
    await asyncio.sleep(0.05)
    assert store._writer._running is None
    assert not answered
    assert not store.read("t", 0, 0, 10)
    assert rows_in(store, "messages") == 0
    with pytest.raises(StorageError, match=r"is not up to date: .* was written by another hub"):
        await store.close()
    assert execute(path, "SELECT count(*) FROM messages") == [(0,)]


async def test_an_epoch_that_the_file_is_not_in(tmp_path: Path) -> None:
    async with store_at(tmp_path / "hub.db") as store:
        with pytest.raises(FencedError, match="is in epoch 1, not in 7"):
            store.lead(7)


class Unclear:
    """A connection whose COMMIT fails once, after or before it is done."""

    def __init__(self, db: sqlite3.Connection, *, done: bool):
        self._db = db
        self._done = done
        self.failed = 0

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and not self.failed:
            self.failed += 1
            if self._done:
                self._db.execute(statement)
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(statement, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


@pytest.mark.parametrize("done", [True, False])
async def test_a_commit_that_fails_is_looked_up_and_not_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)
    store.register("t")
    await synced(store)
    unclear = Unclear(file_of(store).writer, done=done)
    monkeypatch.setattr(file_of(store), "writer", unclear)
    shown: list[list[Message]] = []
    store.on_commit = shown.append
    put(store, "t", 1)
    await synced(store)
    put(store, "t", 2)
    await synced(store)
    assert unclear.failed == 1
    assert store.error is None
    assert [ids(some) for some in shown] == [[ident(1)], [ident(2)]]
    assert queue_ids(store) == [ident(1), ident(2)]
    assert rows_in(store, "messages") == 2


async def test_what_is_durable_is_shown_when_it_is_confirmed(store: Store) -> None:
    waiting: list[tuple[int, Callable[[], None]]] = []
    store.register("t")
    store.attach("g", "t")
    await synced(store)
    store.confirm_with(lambda last, done: waiting.append((last, done)))
    order: list[str] = []
    shown: list[list[Message]] = []
    store.on_commit = shown.append
    for n in range(3):
        put(store, "t", n, b"x" * 10)
        store.after(lambda n=n: order.append(f"after {n}"))  # type: ignore[misc]
        store.answer(lambda data: order.append(data.decode()), b"answer %d" % n)
        # The next transaction is written while this one waits.
        await until(lambda n=n: len(waiting) == n + 1)  # type: ignore[misc]
    assert [last for last, _ in waiting] == [store.seq - 2, store.seq - 1, store.seq]
    assert store.durable == store.seq
    assert store.committed == store.seq - 3
    assert store.waiting
    assert rows_in(store, "messages") == 3
    assert not order
    assert not shown
    assert not taken(store)
    assert not store.read("t", 0, 0, 9)
    # Nothing is in the current transaction: this waits for the last one.
    store.after(lambda: order.append("last"))
    # Confirming one confirms those before it, once.
    waiting[1][1]()
    waiting[0][1]()
    assert order == ["after 0", "answer 0", "after 1", "answer 1"]
    assert [ids(some) for some in shown] == [[ident(0)], [ident(1)]]
    assert len(taken(store)) == 2
    assert store.committed == store.seq - 1
    waiting[2][1]()
    assert order[4:] == ["after 2", "last", "answer 2"]
    assert store.committed == store.durable == store.seq
    assert store.waiting == 0
    assert taken(store) == [store.seq]
    assert store.read("t", 0, 0, 9)[0].time_ns == NOW
