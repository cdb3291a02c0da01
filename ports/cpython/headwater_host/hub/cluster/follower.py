"""A hub that does not lead: it names the leader to clients, and answers elections."""

import asyncio
import ssl

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.mqtt import spec5
from headwater_host.hub import frames, leadership, requests
from headwater_host.hub.access import Access
from headwater_host.hub.broker import LINGER, TICK, Broker
from headwater_host.hub.clients import Client
from headwater_host.hub.config import HubConfig
from headwater_host.hub.connection import Connection, Shared, on_elect
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.leadership import Leadership
from headwater_host.hub.memory import Memory
from headwater_host.hub.metrics import Metrics


class _Names(Leadership):
    """The leadership that connections of a follower see: they send only the leader's address."""

    def __init__(self, known: Leadership):
        self._known = known
        self.elect = known.elect  # type: ignore[method-assign]

    @property
    def leader(self) -> str | None:
        return self._known.leader


class Follower:
    """Serves the connections of a hub that does not lead. Everything happens in the event loop's thread."""

    def __init__(self, config: HubConfig, known: Leadership):
        self._loop = loop = asyncio.get_running_loop()
        self._limits = limits = config.clients
        self.connections: set[Connection] = set()
        self.metrics = metrics = Metrics()
        metrics.gauge("connections", "Open connections.").call(lambda: len(self.connections))
        self._memory = Memory(self.connections, limits.memory)
        self.shared = Shared(
            loop,
            limits,
            Access(config.rules, open_=config.is_open),
            self._memory,
            metrics.counter("refused_total", "Requests that were refused.", "type"),
            metrics.counter("malformed_total", "Malformed frames."),
            None,
            _Names(known),
        )
        #: True while this hub is about to lead: logins wait for ``move``.
        self.defers = False
        self._stopped = False
        self._ticker = loop.call_later(TICK, self._tick)

    def move(self, broker: Broker) -> None:
        """Have a broker continue with all connections."""
        self.defers = False
        for connection in list(self.connections):
            if connection.closed is None:
                self.gone(connection)
                connection.move(broker.shared, broker)

    def connect(self, context: ssl.SSLContext | None = None) -> Connection:
        """Return a new connection, with TLS if there is a ``context``."""
        return Connection(self.shared, self, context)

    # -- events of connections -------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Add a connection, or close it if there are too many."""
        self.connections.add(connection)
        if self._stopped or len(self.connections) > self._limits.connections:
            connection.abort()

    def closed(self, connection: Connection) -> None:
        """Nothing belongs to a connection here."""

    def gone(self, connection: Connection) -> None:
        """Remove a connection."""
        self.connections.discard(connection)
        self._memory.forget(connection)

    def writable(self, client: Client) -> None:
        """Nothing waits for a client here."""

    def frame(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Handle a frame. Raises RefusedError."""
        kind = f.head >> 4
        if kind == spec.AUTH and self.defers:
            connection.defer(requests.raw(f))
        elif kind == spec.AUTH:
            connection.auth_id = ident
            self.shared.refused.add(1, "AUTH")
            leader = self.shared.leadership.leader
            # While this hub becomes the leader, no other one is.
            connection.close(*leadership.refusal(leader or ""))
        elif kind == spec.ELECT:
            on_elect(self.shared, connection, f, ident)
        elif kind == spec.PINGREQ:
            connection.send(frames.ack(ident))
        else:
            raise RefusedError(spec5.PROTOCOL_ERROR, "AUTH must be accepted first")

    # -- time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK, self._tick)
        now = self._loop.time()
        for connection in list(self.connections):
            if connection.closed is not None:
                if now - connection.closed > LINGER:
                    connection.abort()
            elif now - connection.since > self._limits.login:
                connection.close(spec5.KEEP_ALIVE_TIMEOUT, "AUTH did not arrive in time")

    def stop(self) -> None:
        """Close every connection."""
        self._stopped = True
        self._ticker.cancel()
        for task in self.shared.tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close()
