"""The hub as a process: its storage, its listeners, and an end in good order."""

import asyncio
import contextlib

from headwater_host.hub.broker import Broker
from headwater_host.hub.config import HubConfig
from headwater_host.hub.connection import Connection
from headwater_host.hub.storage import Store

#: Seconds that clients have to take what was sent to them before the end.
FAREWELL = 2.0


class Hub:
    """One hub: ``start``, then ``stop``. ``addresses`` are where it listens."""

    def __init__(self, config: HubConfig):
        self.config = config
        self.addresses: list[tuple[str, int]] = []
        self.broker: Broker
        self._store: Store | None = None
        self._servers: list[asyncio.AbstractServer] = []

    async def start(self) -> None:
        """Open the storage and listen. Raises StorageError, and OSError for a listener."""
        loop = asyncio.get_running_loop()
        store = self._store = Store.open(self.config.storage, self.config.limits)
        self.broker = broker = Broker(store, self.config)
        try:
            for listener in self.config.listeners:
                server = await loop.create_server(
                    lambda: Connection(broker), listener.host, listener.port, ssl=listener.context()
                )
                self._servers.append(server)
                self.addresses += [socket.getsockname()[:2] for socket in server.sockets]
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close everything; what was taken is on the disk then. Raises StorageError when it is not."""
        for server in self._servers:
            server.close()
        try:
            if self._store is not None:
                # Answers to what has come leave before the farewell.
                await self._settled(self._store)
                self.broker.stop()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._alone(), FAREWELL)
                for connection in list(self.broker.connections):
                    connection.abort()
        finally:
            if self._store is not None:
                await self._store.close()

    async def _settled(self, store: Store) -> None:
        done = asyncio.Event()
        store.after(done.set)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(done.wait(), FAREWELL)
        await asyncio.sleep(0)

    async def _alone(self) -> None:
        while self.broker.connections:
            await asyncio.sleep(0.01)
