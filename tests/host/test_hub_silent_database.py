"""SIGTERM ends a hub whose PostgreSQL does not answer."""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psycopg
import pytest

from headwater_host.hub.storage import Store
from tests.cluster.hubs import free_port
from tests.host.command import Running, running
from tests.host.hub_client import Peer
from tests.host.test_hub_commands import listening
from tests.waiting import wait_until
from tools.postgres import PostgreSql

pytestmark = pytest.mark.needs_postgresql
_LOCKED = """SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'headwater hub reader' AND wait_event_type = 'Lock'"""
#: A hub that waits for half a second for its database when it ends.
_QUICK = """
from headwater_host.cli.main import main
from headwater_host.hub.storage import writer

writer.ENDING = 0.5
raise SystemExit(main())
"""


def quick(server: PostgreSql, directory: Path) -> AbstractContextManager[Running]:
    command = [sys.executable, "-c", _QUICK]
    return running("hub", "--storage", server.url(), "--port", 0, directory=directory, command=command)


async def test_one_signal_ends_a_hub_whose_database_is_silent(
    postgresql: Callable[..., PostgreSql], tmp_path: Path
) -> None:
    server = postgresql()
    with quick(server, tmp_path) as hub:
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


@pytest.mark.parametrize("what", ["cluster", "alone", "gateway"])
async def test_a_hub_ends_while_it_reads_the_storage(
    postgresql: Callable[..., PostgreSql], tmp_path: Path, what: str
) -> None:
    server = postgresql()
    await Store.open(server.url()).close()
    port = free_port()
    command: list[object] = ["hub", "--storage", server.url(), "--port", port]
    if what == "cluster":
        command += ["--advertise", f"127.0.0.1:{port}", "--standby", "none"]
    elif what == "gateway":
        (tmp_path / "hub.toml").write_text(f'[storage]\npath = "{server.url()}"\n')
        (tmp_path / "gateway.toml").write_text(f'[hub]\nconfig = "{tmp_path / "hub.toml"}"\n')
        command = ["gateway", "--config", tmp_path / "gateway.toml", "--capture", tmp_path / "log"]
    with psycopg.connect(server.url()) as other:
        other.execute("LOCK TABLE messages")
        with running(*command, directory=tmp_path) as hub:
            await asyncio.to_thread(
                wait_until, lambda: server.sql(_LOCKED) == "1" or hub.process.poll() is not None
            )
            server.pause()
            try:
                hub.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(hub.wait, 60) == 0
            finally:
                server.resume()
            assert "Traceback" not in hub.errors


async def test_a_hub_ends_while_it_waits_for_the_lock_or_for_a_connection(
    postgresql: Callable[..., PostgreSql], tmp_path: Path
) -> None:
    server = postgresql()
    locked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
    with quick(server, tmp_path) as first:
        await asyncio.to_thread(listening, first)
        with quick(server, tmp_path) as second:
            await asyncio.to_thread(wait_until, lambda: server.sql(locked) == "1")
            server.pause()
            try:
                second.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(second.wait, 60) == 0
                with quick(server, tmp_path) as third:
                    # It handles signals when it begins to connect.
                    await asyncio.to_thread(wait_until, lambda: connecting(third, server.port))
                    third.process.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(third.wait, 60) == 0
            finally:
                server.resume()
            assert "Traceback" not in second.errors + third.errors
        assert await asyncio.to_thread(first.end, signal.SIGTERM) == 0


def connecting(hub: Running, port: int) -> bool:
    """Return whether a process has a TCP connection to a port."""
    lines = Path(f"/proc/{hub.process.pid}/net/tcp").read_text().splitlines()[1:]
    inodes = {fields[9] for line in lines if (fields := line.split())[2].endswith(f":{port:04X}")}
    held: set[str] = set()
    for fd in Path(f"/proc/{hub.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            held.add(str(fd.readlink()))
    return any(f"socket:[{inode}]" in held for inode in inodes)


async def test_a_hub_that_waits_for_a_missing_standby_ends_and_the_next_one_says_why(
    postgresql: Callable[..., PostgreSql], tmp_path: Path
) -> None:
    server = postgresql()
    with quick(server, tmp_path) as hub:
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
