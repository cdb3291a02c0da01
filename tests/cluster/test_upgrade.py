"""The steps of docs/hub-cluster.md for an upgrade without a stop, with hubs as processes and publishers at work."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from headwater_host.client.fmq import Client, ConnectionOptions, Reconnect
from tests.cluster.test_processes import client_of, processes
from tests.host.command import headwater
from tests.host.test_hub_site_commands import Hubs
from tests.host.test_hub_site_commands import headwater as command
from tests.waiting import until


class Publisher:
    """Publishes one message after the other; a message that is refused ends the test."""

    def __init__(self, client: Client):
        self._client = client
        self.count = 0
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await self._client.publish("t", b"%d" % self.count, 1)
            self.count += 1

    async def more(self) -> None:
        """Some more are acknowledged."""
        wanted = self.count + 20
        await until(lambda: self.count >= wanted or self.running.done())
        assert not self.running.done(), self.running


@contextlib.asynccontextmanager
async def publishing(client: Client) -> AsyncIterator[Publisher]:
    async with client:
        publisher = Publisher(client)
        try:
            yield publisher
        finally:
            publisher.running.cancel()
            await asyncio.gather(publisher.running, return_exceptions=True)


@pytest.mark.needs_postgresql
async def test_a_cluster_is_upgraded_without_a_refused_message(tmp_path: Path, database: str) -> None:
    async with processes(tmp_path, database, 2, lease=5.0) as started:
        await until(lambda: sum(one.takeovers for one in started) == 1)
        leader = next(one for one in started if one.takeovers)
        (follower,) = (one for one in started if one is not leader)
        async with publishing(client_of(started)) as publisher:
            await publisher.more()
            assert await asyncio.to_thread(follower.running.end) == 0
            follower.start()
            await publisher.more()
            while (await follower.status())["position"] is None:
                await asyncio.sleep(0.05)
            done = await asyncio.to_thread(headwater, "hub", "handover", leader.file)
            assert (done.returncode, done.stdout) == (0, f"{follower.name} leads in epoch 2\n".encode())
            await publisher.more()
            assert await asyncio.to_thread(leader.running.end) == 0
            leader.start()
            await publisher.more()
            while (await leader.status())["role"] != "follower":
                await asyncio.sleep(0.05)
            count = publisher.count
        with psycopg.connect(database) as db:
            rows = db.execute("SELECT payload FROM messages ORDER BY seq").fetchall()
        # The last one may be stored without an answer.
        assert [bytes(row[0]) for row in rows][:count] == [b"%d" % n for n in range(count)]
        assert len(rows) <= count + 2


async def test_a_leader_and_its_slaves_are_upgraded_one_after_the_other(tmp_path: Path) -> None:
    hubs = Hubs(tmp_path)
    first, *others = [("127.0.0.1", hubs.ports[name]) for name in "abc"]
    client = Client(
        *first,
        identifier="p",
        timeout=200,
        reconnect=Reconnect(first=0.05, longest=0.2, at_start=True),
        connection=ConnectionOptions(more_servers=others),
    )
    try:
        for name in "abc":
            await asyncio.to_thread(hubs.start, name)
        async with publishing(client) as publisher:
            await publisher.more()
            for name in "bc":
                await asyncio.to_thread(hubs.stop, name)
                await asyncio.to_thread(hubs.start, name)
                await publisher.more()
                # It follows, with exit code 0.
                while (
                    await asyncio.to_thread(command, tmp_path, "hub", "status", f"{name}.toml", check=False)
                ).returncode:
                    await asyncio.sleep(0.1)
            await asyncio.to_thread(hubs.stop, "a")
            done = await asyncio.to_thread(command, tmp_path, "hub", "promote", "--config", "b.toml")
            found = re.search(r"^([bc]) leads epoch 2$", done.stdout, re.MULTILINE)
            assert found, done
            rejoined = await asyncio.to_thread(
                command, tmp_path, "hub", "rejoin", "--config", "a.toml", found[1]
            )
            print(rejoined.stdout)
            await asyncio.to_thread(hubs.start, "a")
            await publisher.more()
            count = publisher.count
        for name in list(hubs.processes):
            hubs.stop(name)
        text = hubs.exported(found[1])
        stored = re.findall(
            r'^\["message",\d+,"\w+",\d+,\d+,\d+,-?\d+,"[^"]*","(\w+)"\]$', text, re.MULTILINE
        )
        payloads = [bytes.fromhex(one) for one in stored]
        assert payloads[:count] == [b"%d" % n for n in range(count)]
        assert len(payloads) <= count + 2
        assert hubs.exported("a") == text
    finally:
        for process in hubs.processes.values():
            process.kill()
            process.wait()
