"""SLAVEOF at the leader: connections of slaves, and payloads in PUBLISH frames (docs/hub-cluster.md)."""

from collections.abc import Callable

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.mqtt import spec5
from headwater_host.fmq.values import encode
from headwater_host.hub import frames, requests
from headwater_host.hub.connection import Connection
from headwater_host.hub.errors import RefusedError, StorageError
from headwater_host.hub.replication.slaves import Slaves
from headwater_host.hub.replication.wire import CHANGES


class SlaveLine:
    """The connection of a slave. ``address`` is where the slave can be reached, as it is encoded."""

    def __init__(self, connection: Connection, address: bytes, make_id: Callable[[], bytes]):
        self._connection = connection
        self.address = address
        self._make_id = make_id

    @property
    def writable(self) -> bool:
        """True if the slave reads what it is sent."""
        return self._connection.writable

    def payload(self, data: bytes) -> None:
        """Send a payload."""
        self._connection.send(frames.publish(self._make_id(), frames.message(CHANGES, (), data)))

    def refuse(self, text: str) -> None:
        """End the connection with a reason."""
        self._connection.close(spec5.IMPLEMENTATION_SPECIFIC_ERROR, text)


class Serving:
    """Handlers of SLAVEOF and of what slaves publish. Without ``slaves`` this hub has none."""

    def __init__(self, slaves: Slaves | None, make_id: Callable[[], bytes]):
        self._slaves = slaves
        self._make_id = make_id
        self._lines: dict[Connection, SlaveLine] = {}

    def on_slaveof(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Register a slave, or list the slaves. Raises RefusedError."""
        connection.check_any("SLAVEOF")
        slaves = self._slaves
        if slaves is None:
            raise RefusedError(spec5.PROTOCOL_ERROR, "this hub has no [replication]: it takes no slaves")
        if f.head & spec.REG:
            known = (line.address for line in self._lines.values() if slaves.knows(line))
            connection.send(frames.framed(spec.ACK << 4, ident, encode(0) + b"".join(known)))
            return
        if connection not in self._lines:
            self._lines[connection] = SlaveLine(connection, requests.slave(f), self._make_id)
        connection.send(frames.ack(ident))

    def has(self, connection: Connection) -> bool:
        """Return whether a connection is a slave's."""
        return connection in self._lines

    def on_payload(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Handle what a slave publishes to ``CHANGES``. Raises RefusedError."""
        line = self._lines.get(connection)
        if line is None or self._slaves is None:
            raise RefusedError(spec5.PROTOCOL_ERROR, "SLAVEOF must be accepted first")
        try:
            self._slaves.received(line, requests.payload(f))
        except StorageError as error:
            raise RefusedError(spec5.PROTOCOL_ERROR, str(error)) from error

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        line = self._lines.pop(connection, None)
        if line is not None and self._slaves is not None:
            self._slaves.lost(line)

    def writable(self, connection: Connection) -> None:
        """Send a slave more."""
        if connection in self._lines and self._slaves is not None:
            self._slaves.wake()
