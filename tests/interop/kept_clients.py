"""What tests of clients that keep their connection have in common."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from headwater_host.client.mqtt import Client, Reconnect
from headwater_host.errors import ClientError
from tools.broker import HOST, Mosquitto

WAIT_S = 200
QUICK = Reconnect(first=0.02, longest=0.3)


class Told:
    """What ``on_connection`` was told."""

    def __init__(self, client: Client):
        self.said: list[ClientError | None] = []
        self._more = asyncio.Event()
        client.on_connection = self._on_connection

    def _on_connection(self, error: ClientError | None) -> None:
        self.said.append(error)
        self._more.set()

    async def until(self, condition: "Callable[[list[ClientError | None]], bool]") -> None:
        async def wait() -> None:
            while not condition(self.said):
                self._more.clear()
                await self._more.wait()

        await asyncio.wait_for(wait(), WAIT_S)

    async def lost(self) -> None:
        await self.until(lambda said: bool(said) and said[-1] is not None)

    async def back(self, times: int = 1) -> None:
        await self.until(lambda said: said.count(None) >= times)


@contextlib.asynccontextmanager
async def talker(broker: Mosquitto) -> AsyncIterator[Client]:
    async with Client(HOST, broker.port) as one:
        yield one
