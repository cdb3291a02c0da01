"""A client's store on a disk that is slow or full: the event loop goes on, and nothing is sent before it is kept."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater_host.client.mqtt import Client, Reconnect, SessionOptions
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import StoreError
from tests.host.mqtt_server import HOST, serve


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SqliteOutbox]:
    """A store, which the test leaves with everything in its file."""
    box = SqliteOutbox(tmp_path / "store.db", "c", slots=300)
    db = box.commits.db
    yield box
    assert not box.unsynced
    box.commits.db = db
    box.close()


@asynccontextmanager
async def client_of(box: SqliteOutbox, arrived: list[bytes], **more: Any) -> AsyncIterator[Client]:
    """A client, which its caller enters, of a server that collects the payloads of messages."""

    def prepare(session: HostServerSession) -> None:
        session.on_message = lambda packet: arrived.append(packet.payload_bytes())

    async with serve(prepare) as server:
        session = SessionOptions(clean_start=False, store=box)
        yield Client(HOST, server.port, identifier="c", session=session, timeout=60, **more)


class Committing:
    """The connection of a store, with a call before each COMMIT."""

    def __init__(self, box: SqliteOutbox, call: Callable[[], object]) -> None:
        self._db, self._call = box.commits.db, call
        box.commits.db = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == "COMMIT":
            self._call()
        return self._db.execute(statement, *values)


async def test_the_event_loop_never_waits_for_the_disk(box: SqliteOutbox) -> None:
    """A disk that takes as long as the test wants: meanwhile the loop turns, and nothing leaves that is not kept."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert threading.current_thread() is not threading.main_thread()
        assert go_on.wait(60)

    arrived: list[bytes] = []
    async with client_of(box, arrived) as client, client:
        Committing(box, wait)
        posting = asyncio.ensure_future(client.post("t", b"first", 1))
        while not begun.is_set():
            await asyncio.sleep(0)
        publishing = [asyncio.ensure_future(client.publish("t", b"%d" % n, 1 + n % 2)) for n in range(10)]
        after = asyncio.ensure_future(client.publish("t", b"after", 0))
        for _ in range(100):
            await asyncio.sleep(0)
        # What arrived so far, if anything, is CONNECT.
        assert not posting.done()
        assert arrived == []
        assert box.position > box.durable
        go_on.set()
        await (await posting)
        await asyncio.gather(*publishing, after)
        while arrived[-1:] != [b"after"]:
            await asyncio.sleep(0)
        assert arrived == [b"first", *(b"%d" % n for n in range(10)), b"after"]


async def test_what_changes_during_a_commit_goes_with_the_next(box: SqliteOutbox) -> None:
    commits: list[int] = []
    async with client_of(box, []) as client, client:
        Committing(box, lambda: commits.append(1))
        await asyncio.gather(*(client.post("t", b"x", 1) for _ in range(200)))
        posted = len(commits)
        await client.drain()
    # The first one, and all others together.
    assert 1 <= posted <= 2


async def test_what_cannot_be_committed_is_not_said_to_be_kept(box: SqliteOutbox) -> None:
    """The disk is full when it comes to COMMIT, and has room again later."""
    full = True

    def fail() -> None:
        if full:
            raise sqlite3.OperationalError("database or disk is full")

    arrived: list[bytes] = []
    async with client_of(box, arrived, reconnect=Reconnect(first=0.001, longest=0.01)) as client, client:
        Committing(box, fail)
        with pytest.raises(StoreError, match="disk is full; what it does not have yet stays in memory"):
            await client.post("t", b"kept in memory", 1)
        assert arrived == []
        full = False
        await client.drain()
        assert arrived == [b"kept in memory"]


@pytest.mark.parametrize("commit_ends", ["before the next loop", "in the next loop", "in close"])
def test_an_event_loop_that_ends_during_a_commit(commit_ends: str, tmp_path: Path) -> None:
    """A program that fails without leaving its client: the store goes on with the next loop, and can be closed."""
    go_on = threading.Event()
    box = SqliteOutbox(tmp_path / "ended.db", "c")

    def wait() -> None:
        if threading.current_thread() is not threading.main_thread():
            assert go_on.wait(60)

    async def fails() -> None:
        async with client_of(box, []) as client:
            await client.__aenter__()
            Committing(box, wait)
            client.post_nowait("t", b"1", 1)
            while box.commits.running is None:
                await asyncio.sleep(0)
            # Waits for the next commit.
            client.post_nowait("t", b"2", 1)
            await asyncio.sleep(0)

    async def goes_on() -> None:
        arrived: list[bytes] = []
        async with client_of(box, arrived) as client:
            entering = asyncio.ensure_future(client.__aenter__())
            await asyncio.sleep(0)
            go_on.set()
            await entering
            await client.publish("t", b"3", 1)
            await client.drain()
            await client.__aexit__(None, None, None)
        assert arrived == [b"1", b"2", b"3"]

    asyncio.run(fails())
    assert box.unsynced
    if commit_ends == "before the next loop":
        go_on.set()
        assert box.commits.running is not None
        box.commits.running.result()
    if commit_ends != "in close":
        asyncio.run(goes_on())
    go_on.set()
    box.close()
    with SqliteOutbox(tmp_path / "ended.db", "c") as again:
        assert again.count == (2 if commit_ends == "in close" else 0)
