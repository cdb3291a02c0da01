"""Hubs as processes: killed leaders, status and handover by command."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater_host.client.fmq import Client, ConnectionOptions, Reconnect
from tests.cluster.hubs import free_port
from tests.host.command import Running, headwater
from tests.waiting import until

pytestmark = pytest.mark.needs_postgresql


class Process:
    """A hub that runs as a process of its own."""

    def __init__(self, directory: Path, url: str, lease: float) -> None:
        self.port = free_port()
        self.name = f"127.0.0.1:{self.port}"
        self.directory = directory
        self.file = directory / "hub.toml"
        self.file.write_text(
            f'[storage]\npath = "{url}"\n[cluster]\nadvertise = "{self.name}"\nlease = {lease}\nstandby = "none"\n'
            f"[[listener]]\nport = {self.port}\n"
        )
        self.start()

    def start(self) -> None:
        self.running = Running(["hub", "--config", "hub.toml"], self.directory, cwd=self.directory)

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()

    async def status(self) -> dict[str, Any]:
        done = await asyncio.to_thread(headwater, "hub", "status", self.file, "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @property
    def takeovers(self) -> int:
        """How often this process began to lead."""
        return self.running.errors.count("leading in epoch")


@asynccontextmanager
async def processes(folder: Path, url: str, n: int, lease: float) -> AsyncIterator[list[Process]]:
    started = []
    for i in range(n):
        (folder / str(i)).mkdir()
        started.append(Process(folder / str(i), url, lease))
    try:
        yield started
        for one in started:
            if one.running.process.poll() is not None:
                continue
            await until(lambda one=one: "listening on" in one.running.errors)  # type: ignore[misc]
            assert await asyncio.to_thread(one.running.end) == 0, one.running.errors
            assert "Traceback" not in one.running.errors, one.running.errors
    finally:
        for one in started:
            if one.running.process.poll() is None:
                one.kill()


def client_of(started: list[Process]) -> Client:
    first, *others = [("127.0.0.1", one.port) for one in started]
    return Client(
        *first,
        identifier="p",
        timeout=60,
        reconnect=Reconnect(first=0.05, longest=0.2, at_start=True),
        connection=ConnectionOptions(more_servers=others),
    )


async def test_killed_leaders_are_replaced_at_once_and_nothing_is_lost(tmp_path: Path, database: str) -> None:
    """The lease is long: only the hint explains the short gaps."""
    gaps = []
    async with processes(tmp_path, database, 3, lease=30.0) as started, client_of(started) as client:
        count = 0
        for _ in range(4):
            for _ in range(20):
                await client.publish("t", b"%d" % count, 1)
                count += 1
            name = client.server
            leader = next(one for one in started if one.name == name)
            others = [one for one in started if one is not leader]
            before = sum(one.takeovers for one in others)
            began = time.monotonic()
            leader.kill()
            await until(lambda others=others, n=before: sum(o.takeovers for o in others) > n)  # type: ignore[misc]
            gaps.append(time.monotonic() - began)
            leader.start()
        print("gaps", [round(gap, 2) for gap in gaps])
        assert min(gaps) < 10, gaps
        found = await started[0].status()
        while found["role"] == "stopped":  # it may be starting again
            await asyncio.sleep(0.1)
            found = await started[0].status()
        assert found["epoch"] >= 5
        assert found["role"] in ("leader", "follower")
        with psycopg.connect(database) as db:
            rows = db.execute("SELECT payload FROM messages ORDER BY seq").fetchall()
        assert [bytes(row[0]) for row in rows] == [b"%d" % n for n in range(count)]


async def test_status_and_handover_by_command(tmp_path: Path, database: str) -> None:
    async with processes(tmp_path, database, 2, lease=5.0) as (one, other):
        await until(lambda: one.takeovers + other.takeovers == 1)
        leader, follower = (one, other) if one.takeovers else (other, one)
        while (found := await follower.status())["position"] is None:
            pass
        assert (found["role"], found["leader"], found["epoch"], found["problem"]) == (
            "follower",
            leader.name,
            1,
            "",
        )
        assert (await leader.status())["role"] == "leader"
        done = await asyncio.to_thread(headwater, "hub", "handover", one.file)
        assert (done.returncode, done.stdout) == (0, f"{follower.name} leads in epoch 2\n".encode()), (
            done.stderr
        )
        text = await asyncio.to_thread(headwater, "hub", "status", other.file)
        assert f"leader: {follower.name}\nepoch: 2\nlag: " in text.stdout.decode()
        leader.kill()
        done = await asyncio.to_thread(headwater, "hub", "status", leader.file)
        assert done.returncode == 1
        assert b"problem: this hub does not run" in done.stdout
        # The other one leads alone, and cannot hand over.
        done = await asyncio.to_thread(headwater, "hub", "handover", one.file)
        assert done.returncode == 1
        assert b"leads again" in done.stderr


def test_status_needs_a_cluster_and_its_database(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("")
    done = headwater("hub", "status", file)
    assert done.returncode == 2
    assert b"has no table [cluster]: this hub runs alone" in done.stderr
    file.write_text(
        '[storage]\npath = "postgresql://x:secret@127.0.0.1:1/x"\n[cluster]\nadvertise = "127.0.0.1:7760"\n'
    )
    for name in ("status", "handover"):
        done = headwater("hub", name, file)
        assert done.returncode == 1
        assert b"the database cannot be asked" in done.stderr
        assert b"secret" not in done.stderr
