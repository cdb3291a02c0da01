"""A hub as a process of its own, its memory, and a pair of clients that is not to be disturbed by others."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.host.command import Running
from tests.host.hub_client import Peer

#: What a page of the process's memory may be besides what the limits name: the interpreter's, SQLite's.
SLACK = 48 << 20


class HubProcess:
    """A hub that runs."""

    def __init__(self, running: Running, addresses: list[tuple[str, int]]):
        self.running = running
        self.addresses = addresses

    @property
    def address(self) -> tuple[str, int]:
        return self.addresses[0]

    def memory(self) -> int:
        """Bytes that the process has in memory."""
        status = Path(f"/proc/{self.running.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    async def login(self, name: str = "", **more: Any) -> Peer:
        return await Peer.login(self.address, name, **more)

    async def open(self) -> Peer:
        return await Peer.open(self.address)


@contextlib.asynccontextmanager
async def hub_process(directory: Path, settings: str = "") -> AsyncIterator[HubProcess]:
    """A hub with such a file; it ends in good order, and has said nothing that is an error."""
    (directory / "hub.toml").write_text(settings)
    arguments = ["hub", "--config", "hub.toml", "--storage", "hub.db"]
    if "[[listener]]" not in settings:
        arguments += ["--port", "0"]
    running = Running(arguments, directory, cwd=directory)
    try:
        listeners = max(settings.count("[[listener]]"), 1)
        await asyncio.to_thread(running.wait_for_count, "listening on", listeners)
        found = re.findall(r"listening on (\S+), port (\d+)", running.errors)
        yield HubProcess(running, [(host, int(port)) for host, port in found])
        assert await asyncio.to_thread(running.end) == 0, running.errors
        assert "Traceback" not in running.errors, running.errors
        assert " ERROR " not in running.errors, running.errors
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


class Pair:
    """Two clients that exchange messages, and notice when one is lost, doubled or refused, or a connection ends."""

    def __init__(self, talker: Peer, listener: Peer):
        self._talker = talker
        self._listener = listener
        self.exchanged = 0

    async def exchange(self) -> None:
        """One message after the other, for ever: at QoS 1 to a subscription, and through a group."""
        while True:
            payload = b"%d" % self.exchanged
            await self._talker.send_message("pair", payload)
            for _ in range(2):
                got = await self._listener.next()
                assert got.code == 0, got
                assert got.payload == payload
                self._listener.ack(got.id)
            self.exchanged += 1

    async def more(self, count: int = 10) -> None:
        """So many are exchanged from now on."""
        wanted = self.exchanged + count
        while self.exchanged < wanted:
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def undisturbed(hub: HubProcess, **more: Any) -> AsyncIterator[Pair]:
    """While others do what they like, a pair exchanges messages; in the end it still does."""
    listener, talker = await hub.login(**more), await hub.login(**more)
    listener.consume(await listener.subscribe("pair", group="pair"))
    await listener.subscribe("pair")
    pair = Pair(talker, listener)
    exchange = asyncio.create_task(pair.exchange())

    try:
        yield pair
        await _first(exchange, asyncio.create_task(pair.more()))
    finally:
        exchange.cancel()
        for peer in (talker, listener):
            peer.abort()


async def _first(exchange: "asyncio.Task[None]", more: "asyncio.Task[None]") -> None:
    await asyncio.wait([exchange, more], return_when=asyncio.FIRST_COMPLETED)
    if exchange.done():
        more.cancel()
        exchange.result()
