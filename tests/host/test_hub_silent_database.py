"""A hub whose PostgreSQL is silent ends when it is told to."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.command import running
from tests.host.hub_client import Peer
from tests.host.test_hub_commands import listening
from tools.postgres import PostgreSql

pytestmark = pytest.mark.needs_postgresql


async def test_one_signal_ends_a_hub_whose_database_is_silent(
    postgresql: Callable[..., PostgreSql], tmp_path: Path
) -> None:
    server = postgresql()
    with running("hub", "--storage", server.url(), "--port", 0, directory=tmp_path) as hub:
        peer = await Peer.login(await asyncio.to_thread(listening, hub))
        await peer.send_message("t", b"1")
        server.pause()
        try:
            peer.publish("t", b"2", 1)
            await peer.ping()
            peer.abort()
            assert await asyncio.to_thread(hub.end, signal.SIGTERM) == 1
        finally:
            server.resume()
        assert "the hub's storage is not up to date" in hub.errors
        assert "Traceback" not in hub.errors
    assert server.sql("SELECT convert_from(payload, 'UTF8') FROM messages").splitlines()[0] == "1"


async def test_a_hub_that_waits_for_a_missing_standby_ends_and_the_next_one_says_why(
    postgresql: Callable[..., PostgreSql], tmp_path: Path
) -> None:
    server = postgresql()
    with running("hub", "--storage", server.url(), "--port", 0, directory=tmp_path) as hub:
        peer = await Peer.login(await asyncio.to_thread(listening, hub))
        server.configure(synchronous_standby_names="absent")
        peer.publish("t", b"1", 1)
        await peer.ping()
        peer.abort()
        assert await asyncio.to_thread(hub.end, signal.SIGTERM) == 1
    # The server keeps the session, and its lock.
    with running("hub", "--storage", server.url(), "--port", 0, directory=tmp_path) as hub:
        assert await asyncio.to_thread(hub.wait) == 1
        assert "the hub cannot start" in hub.errors
        assert "one that has ended: its session waits for a synchronous standby" in hub.errors
