"""Assembles the hub without its sockets: its parts, the handler of each request, and periodic work."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.names import TYPES
from headwater.mqtt import spec5
from headwater_host.hub import frames, requests
from headwater_host.hub.access import Access, Address
from headwater_host.hub.broadcast import Broadcasts
from headwater_host.hub.clients import Client, Clients
from headwater_host.hub.config import HubConfig
from headwater_host.hub.connection import Connection, Shared, on_elect
from headwater_host.hub.consume import Consumers
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.groups import Groups
from headwater_host.hub.leadership import Leadership, refusal
from headwater_host.hub.login import Login
from headwater_host.hub.memory import Memory
from headwater_host.hub.metrics import Metrics, Traffic
from headwater_host.hub.observer import Durable, Observer
from headwater_host.hub.publish import Publishing
from headwater_host.hub.registry import Registry
from headwater_host.hub.replication.serving import Serving
from headwater_host.hub.replication.slaves import Slaves
from headwater_host.hub.rpc import Calls, Procedure
from headwater_host.hub.storage import Message, Store, backlog
from headwater_host.hub.storage.statistics import STATISTICS
from headwater_host.hub.subscribe import Subscriptions, read_subscription
from headwater_host.hub.time_service import TIME, time_service
from headwater_host.hub.topic_list import NAME, TopicList
from headwater_host.hub.turns import Turns
from headwater_host.hub.users import Users
from headwater_host.hub.wills import OwnIds, SlaveIds, Wills

#: Connections above the limit whose AUTH is answered with a reason; further ones are closed at once.
TOLD = 100
#: Seconds that a client has to close a connection after the hub's last frame.
LINGER = 2.0
#: Seconds between checks of the clock.
TICK = 0.1
#: Seconds that clients wait for an unwritable storage before they are refused.
PATIENCE = 10.0
#: Seconds between removals of expired messages.
_TRIM = 10.0

_logger = logging.getLogger("headwater.hub")

Handler = Callable[[Connection, Frame, bytes], None]

#: Requests that need no AUTH before them.
_STRANGERS = {spec.AUTH, spec.ELECT}
#: Requests that a slave refuses.
_LEADERS = {spec.REGISTER, spec.UNREGISTER, spec.PUBLISH, spec.PUBREL, spec.SLAVEOF}
#: Requests that are answered only after their changes are on disk.
_STORED = {spec.REGISTER, spec.UNREGISTER, spec.PUBLISH, spec.SUBSCRIBE, spec.UNSUBSCRIBE}


class Broker:
    """The hub without its sockets. Everything happens in the event loop's thread."""

    def __init__(
        self,
        store: Store,
        config: HubConfig,
        observer: Observer | None = None,
        leadership: Leadership | None = None,
        slaves: Slaves | None = None,
        procedures: Mapping[str, Procedure] | None = None,
    ):
        self.loop = loop = asyncio.get_running_loop()
        self.store = store
        self.connections: set[Connection] = set()
        #: The reason why logins are refused, an unwritable storage; and the start of that state, by the loop's clock.
        self.unable = ""
        self._failing = 0.0
        self._stopped = False
        #: True if no client is read: see ``pause``.
        self.paused = False
        self._held: list[Connection] = []
        self._by_address: dict[Address, int] = {}
        self._limits = limits = config.clients
        self.memory = Memory(self.connections, limits.memory)
        self._measure()
        self.shared = Shared(
            loop,
            limits,
            Access(config.rules, open_=config.is_open),
            self.memory,
            self.metrics.counter("refused_total", "Requests that were refused.", "type"),
            self.metrics.counter("malformed_total", "Malformed frames."),
            observer,
            leadership or Leadership(),
        )
        turns = Turns(loop)
        self.durable = Durable(store, observer)
        self._leadership = self.shared.leadership
        #: True if this hub is a slave, which serves only what writes nothing.
        self._is_slave = self._leadership.leader is not None
        ids = SlaveIds() if self._is_slave else OwnIds(store)
        self._serving = Serving(slaves, ids.make)
        self.registry = Registry(
            store,
            automatic=config.auto_register and not self._is_slave,
            made=self._topic_made,
            gone=self._topic_gone,
        )
        self._wills = Wills(store, self.registry, ids, observer)
        self._topic_list = TopicList(store, loop, ids.make)
        self.groups = Groups(store, loop, turns)
        self.broadcasts = Broadcasts(store, self.groups, turns, limits, self._traffic.sent)
        #: The hub's own remote procedures.
        self._procedures: dict[str, Procedure] = {
            NAME: self._topic_list.on_call,
            TIME: time_service(ids.make),
            **(procedures or {}),
        }
        self.calls = Calls(
            limits,
            loop.time,
            self.durable,
            ids.make,
            self._traffic,
            self.metrics,
            self._procedures,
        )
        self._consumers = Consumers(
            self.groups,
            self.registry,
            limits,
            self._traffic.sent,
            loop,
            partial(read_subscription, self.registry),
            self.calls.on_call,
        )
        self._subscriptions = Subscriptions(
            store, self.registry, limits, turns, self.groups, self.broadcasts, self._consumers, self.calls
        )
        self.clients = Clients(store.sessions, limits, loop.time, self._subscriptions.end)
        self._users = Users(config.users)
        login = Login(
            self.shared,
            self._users,
            self.clients,
            self._wills,
            self._refusal,
            store.after,
            self._accepted,
            self._moved,
        )
        publishing = Publishing(
            store,
            self.registry,
            self.durable,
            observer,
            self.broadcasts,
            self._traffic.received,
            limits.frame,
            self.calls.on_reply,
        )
        #: The frames that a client may send; before AUTH is accepted only AUTH.
        self._handlers: dict[int, Handler] = {
            spec.AUTH: login.on_auth,
            spec.ELECT: partial(on_elect, self.shared),
            spec.REGISTER: publishing.on_register,
            spec.UNREGISTER: publishing.on_unregister,
            spec.PUBLISH: publishing.on_publish,
            spec.PUBREL: publishing.on_pubrel,
            spec.PINGREQ: _on_pingreq,
            spec.ACK: self._on_answer,
            spec.PUBREC: self._on_answer,
            spec.PUBCOMP: self._on_answer,
            spec.SUBSCRIBE: self._subscriptions.on_subscribe,
            spec.UNSUBSCRIBE: self._subscriptions.on_unsubscribe,
            spec.CONSUME: self._consumers.on_consume,
            spec.SLAVEOF: self._serving.on_slaveof,
        }
        self._ticker = loop.call_later(TICK, self._tick)
        self._trimmed = loop.time()
        if not self._is_slave:
            for client, subscriptions in self.clients.restore():
                self._subscriptions.restore(client, subscriptions)
            self._wills.restore()
        store.on_commit = self._stored

    def _measure(self) -> None:
        """Create the metrics."""
        self.metrics = metrics = Metrics()
        self._traffic = Traffic(
            metrics.counter("messages_received_total", "Messages received from clients.", "qos"),
            metrics.counter("messages_sent_total", "Messages sent to clients.", "type"),
        )
        metrics.gauge("connections", "Open connections.").call(lambda: len(self.connections))
        metrics.gauge("held_bytes", "Memory held for connections.").call(lambda: self.memory.held)
        metrics.counter("shed_total", "Connections closed because too much memory was held.").call(
            lambda: self.memory.shed
        )
        for name, (text, ask) in STATISTICS.items():
            make = metrics.counter if name.endswith("_total") else metrics.gauge
            make(f"storage_{name}", text).call(partial(ask, self.store))
        metrics.gauge("backlog", "Messages that a group has not acknowledged.", "topic", "group").call(
            partial(backlog, self.store)
        )

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(self, context: ssl.SSLContext | None = None) -> Connection:
        """Return a new connection, with TLS if there is a ``context``."""
        return Connection(self.shared, self, context)

    def opened(self, connection: Connection) -> None:
        """Add a connection, or close it if there are far too many."""
        if self._stopped:
            # It was accepted in the turn in which the hub stopped to lead.
            connection.abort()
            return
        limits = self._limits
        self.connections.add(connection)
        count = self._by_address[connection.peer] = self._by_address.get(connection.peer, 0) + 1
        beyond = max(len(self.connections) - limits.connections, count - limits.connections_per_address)
        connection.unwelcome = beyond > 0
        if beyond > TOLD:
            connection.abort()

    def closed(self, connection: Connection) -> None:
        """Detach a closed connection from its client."""
        self._serving.closed(connection)
        client, connection.client = connection.client, None
        if client is None:
            return
        client.connection = None
        for part in (self._consumers, self.calls, self.broadcasts):
            part.lost(client)
        self._wills.publish(client)
        self.clients.leave(client)

    def gone(self, connection: Connection) -> None:
        """Remove a connection."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self.memory.forget(connection)
        left = self._by_address.get(connection.peer, 0) - 1
        if left > 0:
            self._by_address[connection.peer] = left
        else:
            self._by_address.pop(connection.peer, None)

    def writable(self, client: Client) -> None:
        """Send waiting messages to a client."""
        if isinstance(client.connection, Connection):
            self._serving.writable(client.connection)
        for part in (self._consumers, self.calls, self.broadcasts):
            part.writable(client)

    def frame(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Handle a frame. Raises RefusedError."""
        kind = f.head >> 4
        handler = self._handlers.get(kind)
        if connection.client is None and kind not in _STRANGERS:
            raise RefusedError(spec5.PROTOCOL_ERROR, "AUTH must be accepted first")
        if handler is None:
            raise RefusedError(spec5.PROTOCOL_ERROR, f"this hub does not support {TYPES[kind]}")
        if self._is_slave and self._writes(kind, f):
            # A refusal of a message would make its client forget it.
            connection.close(*refusal(self._leadership.leader or ""))
            return
        if kind == spec.PUBLISH and self._serving.has(connection):
            handler = self._serving.on_payload
        handler(connection, f, ident)
        if kind in _STORED:
            connection.asked = self.store.seq

    def _writes(self, kind: int, f: Frame) -> bool:
        """Return whether a request is one that only the leader can handle."""
        if kind == spec.SUBSCRIBE:
            return requests.subscribe(f).group != ""
        if kind == spec.CONSUME:
            return not f.head & spec.ONCE or requests.subscribe(f).topic not in self._procedures
        return kind in _LEADERS

    def _moved(self, writes: bool) -> str | None:
        return self._leadership.leader if self._is_slave and writes else None

    def _on_answer(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Handle ACK, PUBREC or PUBCOMP by the kind of message that it answers."""
        client, kind = connection.client, f.head >> 4
        assert client is not None
        code = f.code if kind == spec.ACK else 0
        if kind == spec.ACK and ident == connection.auth_id:
            # The client disconnects: its will is not published. The end of the connection is the answer.
            self._wills.keep(client, None)
            connection.hold()
            self.store.after(connection.close)
            return
        known = self.broadcasts.on_answer(client, kind, ident, code)
        if kind == spec.ACK and not known and not self._consumers.on_ack(client, ident, code):
            self.calls.on_ack(client, f, ident)
        elif kind == spec.PUBREC:
            # The client then releases the id and would accept a duplicate, so the hub stores the handshake first.
            self.store.after(partial(connection.send, frames.bare(spec.PUBREL, ident)))

    def _refusal(self, connection: Connection) -> str:
        """Return why a login over this connection is refused at present, or ""."""
        if connection.unwelcome:
            return "there are too many connections"
        if self.paused:
            return "too much waits for the disk"
        return self.unable

    def _accepted(self, client: Client) -> None:
        """Continue the session of a connected client."""
        self.calls.resume(client)
        self.broadcasts.resume(client)

    def pause(self, paused: bool) -> None:
        """Stop reading from all clients and refuse logins, or continue: for an observer that cannot keep up."""
        if paused == self.paused:
            return
        self.paused = paused
        # Resuming a connection may cause another pause.
        held, self._held = self._held, list(self.connections) if paused else []
        for connection in self._held if paused else held:
            (connection.hold if paused else connection.release)()

    # -- topics and messages -----------------------------------------------------------------------------------------

    def _topic_made(self, name: str) -> None:
        self._topic_list.add(name)
        self.groups.topic_made(name)

    def _topic_gone(self, name: str) -> None:
        self._topic_list.remove(name)
        self._consumers.topic_gone(name)
        self.groups.topic_gone(name)

    def _stored(self, messages: list[Message]) -> None:
        """Deliver messages that are on disk."""
        known = self.registry.known
        for message in messages:
            if message.topic not in known:
                self.registry.notice(message.topic)
        self.broadcasts.stored(messages)
        self.groups.stored(messages)

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(TICK, self._tick)
        now = self.loop.time()
        for connection in list(self.connections):
            self._look(connection, now)
        self._look_at_storage(now)
        for part in (self.groups, self._consumers, self.calls):
            part.overdue(now)
        self.clients.expire(now)
        # A slave trims when its leader does.
        if not self._is_slave and now - self._trimmed >= _TRIM and not self.store.trim(self.store.age.now()):
            self._trimmed = now

    def _look(self, connection: Connection, now: float) -> None:
        """Close a connection that has reached its deadline."""
        limits = self._limits
        if connection.weight:
            self.memory.weigh(connection)
        if connection.closed is not None:
            if now - connection.closed > (limits.stalled if connection.unread else LINGER):
                connection.abort()
            return
        if connection.client is None:
            if now - connection.since > limits.login:
                late = "the password was not checked" if connection.auth_id else "AUTH did not arrive"
                connection.close(spec5.KEEP_ALIVE_TIMEOUT, f"{late} in time")
        elif connection.stuck is not None and now - connection.stuck > limits.stalled:
            connection.abort()
        elif connection.unfinished and now - connection.heard > limits.stalled:
            connection.close(spec5.KEEP_ALIVE_TIMEOUT, "the rest of a frame did not arrive in time")
        elif connection.patience and now - connection.heard > connection.patience and not connection.held:
            connection.close(spec5.KEEP_ALIVE_TIMEOUT)

    def _look_at_storage(self, now: float) -> None:
        """Close connections whose answers have waited too long for the disk. Their clients keep unacknowledged messages
        and retransmit them after reconnecting."""
        error = self.durable.failure()
        if not error:
            self._failing, self.unable = 0.0, ""
            return
        self._failing = self._failing or now
        if now - self._failing < PATIENCE:
            return
        if not self.unable:
            _logger.error("logins are refused until the hub can store something again")
        self.unable = f"the hub cannot store anything: {error}"
        for connection in list(self.connections):
            client = connection.client
            if client is not None and not connection.ready:
                # Its login was never accepted, so its will is not published.
                self._wills.keep(client, None)
                connection.close(spec5.QUOTA_EXCEEDED, self.unable)
            elif self.durable.keeps_waiting(connection):
                connection.close(spec5.QUOTA_EXCEEDED, self.unable)

    def stop(self, reason: int = spec5.SERVER_SHUTTING_DOWN, text: str = "") -> None:
        """Stop reading requests, and disconnect every client with a reason."""
        self._stopped = True
        self._ticker.cancel()
        for task in self.shared.tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close(reason, text)
        self._users.close()


def _on_pingreq(connection: Connection, f: Frame, ident: bytes) -> None:
    connection.send(frames.ack(ident))
