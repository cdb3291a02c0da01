"""The hub as a process: its storage, its listeners, start and stop."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from headwater_host.daemon import serving
from headwater_host.exits import FAILED, OK, CommandError
from headwater_host.hub import metrics
from headwater_host.hub.broker import Broker
from headwater_host.hub.cluster.address import split_address
from headwater_host.hub.cluster.follower import Follower
from headwater_host.hub.config import HubConfig
from headwater_host.hub.connection import Connection
from headwater_host.hub.errors import StorageError
from headwater_host.hub.observer import Observer
from headwater_host.hub.site import Site
from headwater_host.hub.storage import Store
from headwater_host.hub.storage.contract import Engine
from headwater_host.timeouts import within

if TYPE_CHECKING:
    from headwater_host.hub.cluster.member import Member

#: Seconds that clients have to read what was sent before the hub ends.
FAREWELL = 2.0

_logger = logging.getLogger("headwater.hub")


class Hub:
    """One hub: ``start``, then ``stop``. It listens on ``addresses``; ``observer`` gets what it accepts."""

    def __init__(self, config: HubConfig, observer: Observer | None = None):
        self.config = config
        self._observer = observer
        self.addresses: list[tuple[str, int]] = []
        self._broker: Broker | None = None
        self._store: Store | None = None
        #: The engine of a storage that is being opened.
        self._engine: Engine | None = None
        self._given_up = False
        #: This hub's part in a cluster.
        self.member: Member | Site | None = None
        self._servers: list[asyncio.AbstractServer] = []

    async def start(self) -> None:
        """Open the storage and listen. Raises StorageError, and OSError for a listener."""
        loop = asyncio.get_running_loop()
        config = self.config
        if config.cluster is not None:
            # It imports psycopg.
            from headwater_host.hub.cluster.member import Member

            own = await _resolved(config.cluster.advertise)
            self.member = Member(config, config.cluster, own, self._observer, _say)
        elif config.replication is not None:
            named = config.replication.hubs[config.replication.name]
            self.member = Site(config, config.replication, await _resolved(named), self._observer, _say)
        else:
            store = await self._open()
            try:
                self._broker = Broker(store, self.config, self._observer)
            except BaseException:
                await store.close()
                raise
            self._store = store
        try:
            for listener in self.config.listeners:
                at = listener.host, listener.port
                context = listener.context()
                with _named(*at):
                    server = await loop.create_server(partial(self._connect, context), *at)
                self._servers.append(server)
                self.addresses += [one.getsockname()[:2] for one in server.sockets]
            if self.config.metrics is not None:
                with _named(*self.config.metrics):
                    self._servers.append(
                        await metrics.serve(*self.config.metrics, lambda: self._front.metrics, self.health)
                    )
            if self.member is not None:
                self.member.start()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> Store:
        """Open the storage in a thread, since a database may not answer."""

        def began(engine: Engine) -> None:
            self._engine = engine
            if self._given_up:
                engine.abort()

        config = self.config
        store = await asyncio.to_thread(
            Store.open, config.storage, config.limits, group_readable=config.group_readable, began=began
        )
        self._engine = None
        if self._given_up:
            with contextlib.suppress(StorageError):
                await store.close()
            raise StorageError("the hub is stopping")
        return store

    def give_up(self) -> None:
        """Let ``start`` fail soon if it opens the storage."""
        self._given_up = True
        if self._engine is not None:
            self._engine.abort()

    @property
    def broker(self) -> Broker:
        """The broker of a hub that leads."""
        broker = self.member.broker if self.member is not None else self._broker
        assert broker is not None, "this hub does not lead"
        return broker

    @property
    def _front(self) -> Broker | Follower:
        return self.member.front if self.member is not None else self.broker

    def _connect(self, context: ssl.SSLContext | None) -> Connection:
        return self._front.connect(context)

    async def stop(self) -> None:
        """Store what has come, answer it, and close everything. Raises StorageError when not all of it is stored."""
        if self.member is not None:
            # A hub that is asked about the leader has to answer as long as it holds the lease.
            await self.member.stop()
        for server in self._servers:
            server.close()
        try:
            if self._store is not None:
                # Answers leave before the connections end.
                await self._settled()
                self.broker.stop()
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(FAREWELL, self._alone())
                for connection in list(self.broker.connections):
                    connection.abort()
        finally:
            if self._store is not None:
                await self._store.close()

    def health(self) -> str:
        """Return what is wrong with the hub, or ""."""
        return self.broker.durable.failure() if self.member is None else self.member.health()

    async def _settled(self) -> None:
        done = asyncio.Event()
        self.broker.durable.after(done.set)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(FAREWELL, done.wait())
        await asyncio.sleep(0)

    async def _alone(self) -> None:
        while self.broker.connections:
            await asyncio.sleep(0.01)


async def _resolved(address: str) -> tuple[str, int]:
    """Return the IP address and the port of HOST:PORT. Raises OSError."""
    host, port = split_address(address)
    with _named(host, port, "cannot find"):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0]), port


@contextlib.contextmanager
def _named(host: str, port: int, what: str = "cannot listen on") -> Iterator[None]:
    """Put the address into errors of listening, whose texts are for programmers."""
    try:
        yield
    except UnicodeError as error:
        raise OSError(f"{what} {host}, port {port}: that is no host's name") from error
    except OSError as error:
        number = error.errno or 0  # not the operating system's when a name is not found
        why = os.strerror(number) if number > 0 else error.strerror
        raise OSError(f"{what} {host}, port {port}: {why}") from error


def _say(error: Exception | None) -> None:
    if error is None:
        _logger.info("the hub's storage can be written again")
    else:
        _logger.error("the hub's storage: nothing is acknowledged: %s; trying again", error)


async def serve(config: HubConfig) -> int:
    """Run a hub until SIGTERM or SIGINT: the exit code. A second signal ends it at once. Raises CommandError."""
    ending = asyncio.Event()
    hub = Hub(config)

    def end() -> None:
        ending.set()
        hub.give_up()

    with serving(end):
        try:
            await hub.start()
        except (StorageError, OSError) as error:
            if ending.is_set():
                _logger.info("stopped before the storage was open: %s", error)
                return OK
            raise CommandError(f"the hub cannot start: {error}", FAILED) from error
        for host, port in hub.addresses:
            _logger.info("listening on %s, port %d; storage in %s", host, port, config.storage_name)
        if hub.member is None:
            hub.broker.store.tell(_say)
        # The state that the file holds is long-lived: collecting garbage among it would pause all clients.
        gc.collect()
        gc.freeze()
        await ending.wait()
        _logger.info("stopping")
        try:
            await hub.stop()
        except StorageError as error:
            _logger.error("%s", error)
            return FAILED
    return OK
