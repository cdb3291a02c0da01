"""What the tests of the hub's storage share."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headwater_host.hub.storage import Limits, Message, Store
from headwater_host.hub.storage.file import File
from headwater_host.hub.storage.sqlite import SqliteEngine

#: A file, or a database's URL.
Place = str | Path

#: Runs the tests of a module with each engine. They use the fixture ``place``, or ``store``.
BOTH_ENGINES = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)

SECOND = 1_000_000_000
#: A time, for tests that do not care which.
NOW = 1_800_000_000 * SECOND


async def synced(store: Store) -> None:
    """Every change so far is on the disk."""
    done = asyncio.Event()
    store.after(done.set)
    await asyncio.wait_for(done.wait(), 200)


@contextlib.asynccontextmanager
async def store_at(place: Place, limits: Limits | None = None) -> AsyncIterator[Store]:
    """The store at a place, which is closed at the end."""
    store = Store.open(place, limits)
    try:
        yield store
    finally:
        await store.close()


def ident(n: int, process: int = 1) -> bytes:
    return b"%d.%d" % (process, n)


def put(store: Store, topic: str, n: int, payload: bytes = b"", process: int = 1, **more: Any) -> int:
    """Publish message ``n`` of a process."""
    return store.publish(topic, ident(n, process), process, payload, **{"time_ns": NOW} | more)


def ids(messages: list[Message]) -> list[bytes]:
    return [message.id for message in messages]


def taken(store: Store, group: str = "g", topic: str = "t", queue: int = 0, limit: int = 100) -> list[int]:
    return [one.message.seq for one in store.take(group, topic, queue, limit)]


def queue_ids(store: Store, topic: str = "t", queue: int = 0) -> list[bytes]:
    return ids(store.read(topic, queue, 0, 1000))


def file_of(store: Store) -> File:
    """The file of a store in SQLite."""
    assert isinstance(store._engine, SqliteEngine)
    return store._engine.file


def writing(store: Store) -> sqlite3.Connection:
    """The connection that writes the file."""
    return file_of(store).writer


def rows_in(store: Store, table: str) -> int:
    """The number of a table's rows on the disk."""
    with store._engine.snapshot():
        if table == "messages":
            return sum(map(len, store._engine.index()))
        return len(store._engine.leaving() if table == "leaving" else list(store._engine.rows(table)))
