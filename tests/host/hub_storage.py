"""What the tests of the hub's storage share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from headwater_host.hub.storage import Limits, Message, Store

SECOND = 1_000_000_000
#: A time, for tests that do not care which.
NOW = 1_800_000_000 * SECOND


async def synced(store: Store) -> None:
    """Every change so far is on the disk."""
    done = asyncio.Event()
    store.after(done.set)
    await asyncio.wait_for(done.wait(), 200)


@contextlib.asynccontextmanager
async def store_at(path: Path, limits: Limits | None = None) -> AsyncIterator[Store]:
    """The store in a file, which is closed at the end."""
    store = Store.open(path, limits)
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
