"""Hubs of [replication] on loopback, each with its own storage."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from headwater_host.client.fmq import Client
from headwater_host.hub.config import HubConfig, ReplicationConfig
from headwater_host.hub.connection import Connection
from headwater_host.hub.replication.administration import REPLICATION
from headwater_host.hub.site import Site
from headwater_host.hub.storage import Limits
from tests.waiting import until


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _connect(site: Site) -> Connection:
    return site.front.connect(None)


class Sites:
    """Hubs by name. ``a`` leads at first."""

    def __init__(
        self, folder: Path, names: str = "abc", sync: int | None = None, limits: Limits | None = None
    ):
        self.folder = folder
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.sync = sync
        self.limits = limits or Limits()
        self.sites: dict[str, Site] = {}
        self._servers: dict[str, asyncio.Server] = {}

    def __getitem__(self, name: str) -> Site:
        return self.sites[name]

    def at(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    def config(self, name: str) -> tuple[HubConfig, ReplicationConfig]:
        hubs = {one: self.at(one) for one in self.ports}
        return HubConfig(self.path(name), limits=self.limits), ReplicationConfig(name, hubs, "a", self.sync)

    async def start(self, *names: str) -> None:
        for name in names or self.ports:
            site = Site(*self.config(name), ("127.0.0.1", self.ports[name]))
            site.start()
            self.sites[name] = site
            loop = asyncio.get_running_loop()
            connect = partial(_connect, site)
            self._servers[name] = await loop.create_server(connect, "127.0.0.1", self.ports[name])

    async def stop(self, *names: str) -> None:
        for name in names or list(self.sites):
            self._servers.pop(name).close()
            await self.sites.pop(name).stop()

    async def call(self, name: str, **asked: Any) -> dict[str, Any]:
        """Call the procedure of operators at a hub."""
        async with Client("127.0.0.1", self.ports[name], identifier="$slave/operator") as client:
            found = await client.call(REPLICATION, json.dumps(asked).encode(), timeout=20)
        answer = json.loads(found)
        assert isinstance(answer, dict)
        return answer

    async def connected(self, leader: str, *names: str) -> None:
        """Wait until a hub leads, and others follow it."""

        def follow() -> bool:
            return self[leader].is_leader and set(names) <= set(self[leader].status()["connected"])

        await until(follow)

    async def equal(self, leader: str, *names: str) -> None:
        """Wait until slaves have everything; compare their exports with the leader's."""
        await until(lambda: all(self[name].store.durable == self[leader].store.seq for name in names))
        wanted = list(self[leader].store.export())
        for name in names:
            assert list(self[name].store.export()) == wanted


@contextlib.asynccontextmanager
async def sites(folder: Path, names: str = "abc", **more: Any) -> AsyncIterator[Sites]:
    found = Sites(folder, names, **more)
    try:
        yield found
    finally:
        await found.stop()
