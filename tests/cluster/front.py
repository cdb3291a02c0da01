"""A hub that does not lead, over a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headwater_host.hub.cluster.follower import Follower
from headwater_host.hub.config import HubConfig
from headwater_host.hub.leadership import Leadership


class Told(Leadership):
    """A hub that knows this leader."""

    def __init__(self, leader: str):
        self.told = leader

    @property
    def leader(self) -> str:
        return self.told

    def elect(self, candidate: tuple[str, int], announced: bool) -> tuple[tuple[str, int], int] | None:
        if not self.told:
            return None
        host, _, port = self.told.rpartition(":")
        return (host, int(port)), 7 << 48 | 5


class Front:
    """``address`` names ``leader`` to everybody; ``logins`` counts."""

    def __init__(self, follower: Follower, told: Told, address: tuple[str, int]):
        self.follower = follower
        self.told = told
        self.address = address

    @property
    def name(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def logins(self) -> float:
        (line,) = [
            one for one in self.follower.metrics.lines() if one.startswith("headwater_hub_refused_total{")
        ] or ["x 0"]
        return float(line.split()[-1])


@contextlib.asynccontextmanager
async def front(leader: str, config: HubConfig | None = None) -> AsyncIterator[Front]:
    """A follower that names ``leader``, an address or "", on a free port."""
    told = Told(leader)
    follower = Follower(config or HubConfig(), told)
    server = await asyncio.get_running_loop().create_server(follower.connect, "127.0.0.1", 0)
    try:
        yield Front(follower, told, server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        follower.stop()
