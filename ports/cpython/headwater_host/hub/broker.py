"""What ties the hub together: who is connected, which frame goes where, and what happens as time passes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.names import TYPES
from headwater_host.hub import consume, frames, login, publish, subscribe
from headwater_host.hub.access import Access, Address
from headwater_host.hub.broadcast import Broadcast
from headwater_host.hub.clients import Client, Will, cost
from headwater_host.hub.config import HubConfig
from headwater_host.hub.errors import (
    KEEP_ALIVE_TIMEOUT,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    RefusedError,
)
from headwater_host.hub.groups import Consuming
from headwater_host.hub.memory import Memory
from headwater_host.hub.metrics import Metrics
from headwater_host.hub.observer import Observer
from headwater_host.hub.rpc import Calls
from headwater_host.hub.storage import Message, Store
from headwater_host.hub.users import Users

if TYPE_CHECKING:
    from headwater_host.hub.connection import Connection

#: So many connections more than there may be are told so, in answer to their AUTH.
TOLD = 100
#: Seconds that a client has to end a connection that is over.
LINGER = 2.0
#: Seconds between looks at the clock.
TICK = 0.1
#: Seconds that clients wait for a storage that cannot be written, until they are told.
PATIENCE = 10.0
#: Seconds between removals of what is too old.
_TRIM = 10.0

_logger = logging.getLogger("headwater.hub")

Handler = Callable[["Broker", "Connection", Frame, bytes], None]


def _on_pingreq(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    connection.send(frames.ack(ident))


def _on_answer(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """ACK, PUBREC or PUBCOMP."""
    client, kind = connection.client, f.head >> 4
    assert client is not None
    code = f.code if kind == spec.ACK else 0
    if kind == spec.ACK and ident == connection.auth_id:
        # The client's word of farewell.
        broker.keep_will(client, None)
        # That it ends is the answer: the will is not in the file any more.
        connection.hold()
        broker.store.after(connection.close)
        return
    known = client.pusher is not None and client.pusher.on_answer(kind, ident, code)
    if kind == spec.ACK and not known and not consume.on_ack(client, ident, code):
        broker.calls.on_ack(client, f, ident)
    elif kind == spec.PUBREC:
        # Behind the disk: once the client forgets the id, so that it would take the message anew, the hub must know.
        broker.store.after(partial(connection.send, frames.bare(spec.PUBREL, ident)))


#: What a client that was accepted may send.
HANDLERS: dict[int, Handler] = {
    spec.AUTH: login.on_auth,
    spec.REGISTER: publish.on_register,
    spec.UNREGISTER: publish.on_unregister,
    spec.PUBLISH: publish.on_publish,
    spec.PUBREL: publish.on_pubrel,
    spec.PINGREQ: _on_pingreq,
    spec.ACK: _on_answer,
    spec.PUBREC: _on_answer,
    spec.PUBCOMP: _on_answer,
    spec.SUBSCRIBE: subscribe.on_subscribe,
    spec.UNSUBSCRIBE: subscribe.on_unsubscribe,
    spec.CONSUME: consume.on_consume,
}


#: Of these, what is to be on the disk before they are answered.
_STORED = {spec.REGISTER, spec.UNREGISTER, spec.PUBLISH, spec.SUBSCRIBE, spec.UNSUBSCRIBE}


class Broker:
    """The hub without its sockets. Everything happens in the event loop's thread."""

    def __init__(self, store: Store, config: HubConfig, observer: Observer | None = None):
        self.loop = asyncio.get_running_loop()
        self.store = store
        self.config = config
        self.observer = observer
        #: Why nobody is let in: the storage could not be written for some time. And since when, by the loop's clock.
        self.unable = ""
        self._failing = 0.0
        #: Up to which change the observer has everything.
        self._observed = 0
        #: Whether nothing is taken from anybody: see ``pause``.
        self.paused = False
        self._held: list[Connection] = []
        self.users = Users(config.users)
        self.access = Access(config.rules, open_=config.is_open)
        self.metrics = Metrics()
        self.received = self.metrics.counter("messages_received_total", "Messages of clients.", "qos")
        self.sent = self.metrics.counter("messages_sent_total", "Messages to clients.", "type")
        self.refused = self.metrics.counter("refused_total", "Requests that were refused.", "type")
        self.malformed = self.metrics.counter("malformed_total", "Frames that were none.")
        self.connections: set[Connection] = set()
        self.metrics.gauge("connections", "Open connections.").call(lambda: len(self.connections))
        self._by_address: dict[Address, int] = {}
        self.memory = Memory(self.connections, config.clients.memory)
        self.metrics.gauge("held_bytes", "Held for connections.").call(lambda: self.memory.held)
        self.metrics.counter("shed_total", "Connections that were cut off because too much was held.").call(
            lambda: self.memory.shed
        )
        #: What all subscriptions cost.
        self.subscribed = 0
        #: Those with a name, connected or with a session that is kept.
        self.clients: dict[str, Client] = {}
        #: Clients that are not connected, oldest first, and when by the loop's clock their session ends.
        self.away: dict[str, float] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.consuming = Consuming(self)
        self.broadcast = Broadcast(self.loop)
        self.calls = Calls(self)
        self.topics = publish.Topics(self)
        self.voice = publish.Voice(self)
        self._ticker = self.loop.call_later(TICK, self._tick)
        self._trimmed = self.loop.time()
        for session in store.sessions.all():
            client = Client(
                session.client, store.sessions.process(session.client), session.about.get("user"), True
            )
            self.clients[client.name] = client
            subscribe.restore(self, client, session.subscriptions)
            self._leave(client)
        for process, will in store.sessions.wills.items():
            # Connected when the hub was killed: nobody has said goodbye.
            self._publish_will(process, Will.restored(will))
        store.on_commit = self._stored

    # -- connections -------------------------------------------------------------------------------------------------

    def opened(self, connection: "Connection") -> None:
        """A connection is there, as long as there are not too many."""
        limits = self.config.clients
        self.connections.add(connection)
        count = self._by_address[connection.peer] = self._by_address.get(connection.peer, 0) + 1
        beyond = max(len(self.connections) - limits.connections, count - limits.connections_per_address)
        connection.unwelcome = beyond > 0
        if beyond > TOLD:
            connection.abort()

    def closed(self, connection: "Connection") -> None:
        """A connection has ended, or is about to: its client is not there any more."""
        client, connection.client = connection.client, None
        if client is None:
            return
        client.connection = None
        self.lost(client)
        if client.will is not None:
            self._publish_will(client.process, client.will)
            client.will = None
        if client.kept:
            self._leave(client)
        else:
            self.end(client)

    def gone(self, connection: "Connection") -> None:
        """The last of a connection; twice is harmless."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self.memory.forget(connection)
        left = self._by_address.get(connection.peer, 0) - 1
        if left > 0:
            self._by_address[connection.peer] = left
        else:
            self._by_address.pop(connection.peer, None)

    def frame(self, connection: "Connection", f: Frame, ident: bytes) -> None:
        """A whole frame has come. Raises RefusedError."""
        kind = f.head >> 4
        handler = HANDLERS.get(kind)
        if connection.client is None and kind != spec.AUTH:
            raise RefusedError(PROTOCOL_ERROR, "nothing is taken before AUTH is accepted")
        if handler is None:
            raise RefusedError(PROTOCOL_ERROR, f"this hub does not take {TYPES[kind]}")
        handler(self, connection, f, ident)
        if kind in _STORED:
            connection.asked = self.store.seq

    def after(self, done: Callable[[], None]) -> None:
        """Call this when everything so far is on the disk, and with the observer: then a message is answered."""
        if self.observer is not None:
            done = self.observer.behind(done)
        self.store.after(done)

    def answer(self, connection: "Connection", data: bytes) -> None:
        """Send this behind ``after``, with all other answers that wait for the same."""
        if self.observer is None:
            self.store.answer(connection.send, data)
        else:
            connection.observed = self.store.seq
            self.store.after(self.observer.behind(partial(self._kept, connection, data, self.store.seq)))

    def _kept(self, connection: "Connection", data: bytes, seq: int) -> None:
        """The observer, too, has everything up to a change."""
        self._observed = seq
        connection.send(data)

    def pause(self, paused: bool) -> None:
        """Take nothing from anybody and let nobody in, or go on: for an observer that cannot keep up."""
        if paused == self.paused:
            return
        self.paused = paused
        # What one of them sends when it is released may be why there is another pause.
        held, self._held = self._held, list(self.connections) if paused else []
        for connection in self._held if paused else held:
            (connection.hold if paused else connection.release)()

    def refusal(self, connection: "Connection") -> str:
        """Why a connection's AUTH is not even looked at, "" when it is."""
        if connection.unwelcome:
            return "there are too many connections"
        if self.paused:
            return "nothing is taken from anybody just now: too much waits for the disk"
        return self.unable

    # -- clients -----------------------------------------------------------------------------------------------------

    def keep_will(self, client: Client, will: Will | None) -> None:
        """What is published when the client vanishes, or the hub. It is on the disk when AUTH is answered."""
        if will is not None:
            self.store.sessions.keep_will(client.process, will.kept())
        elif client.will is not None:
            self.store.sessions.forget_will(client.process)
        client.will = will

    def _publish_will(self, process: int, will: Will) -> None:
        # One transaction: it is published once.
        self.store.sessions.forget_will(process)
        try:
            self.voice.publish(will)
        except RefusedError as error:
            _logger.warning("a will is not published in %r: %s", will.topic, error)

    def _leave(self, client: Client) -> None:
        self.away[client.name] = self.loop.time() + self.config.clients.session

    def end(self, client: Client) -> None:
        """A client is gone for good, and so is its session."""
        self.subscribed -= sum(cost(known.subscription) for known in client.subscriptions.values())
        if self.clients.get(client.name) is client:
            del self.clients[client.name]
        self.away.pop(client.name, None)
        if client.kept:
            self.store.sessions.end(client.name)
        if client.pusher is not None:
            client.pusher.gone()

    def lost(self, client: Client) -> None:
        """A client has no connection any more."""
        consume.lost(client)
        self.calls.lost(client)
        if client.pusher is not None:
            client.pusher.lost()

    def writable(self, client: Client) -> None:
        """A client can be sent more."""
        for consumer in client.consumers.values():
            self.consuming.wake(consumer)
        self.calls.go_on(client)
        if client.pusher is not None:
            client.pusher.go_on()

    # -- what others tell --------------------------------------------------------------------------------------------

    def topic_made(self, name: str) -> None:
        """A topic is there, or has more queues."""
        self.calls.listing.add(name)
        self.consuming.topic_made(name)

    def topic_gone(self, name: str) -> None:
        """A topic is about to be forgotten."""
        self.calls.listing.remove(name)
        consume.topic_gone(self, name)
        self.consuming.topic_gone(name)

    def _stored(self, messages: list[Message]) -> None:
        """Messages are on the disk: whoever is to have them may."""
        for message in messages:
            if message.topic not in self.topics.known and message.topic in self.store.topics:
                self.topics.made(message.topic)
        self.broadcast.stored(messages)
        self.consuming.stored(messages)

    def now_ns(self) -> int:
        """The storage's age time."""
        return self.store.age.now()

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(TICK, self._tick)
        now = self.loop.time()
        for connection in list(self.connections):
            self._look(connection, now)
        self._look_at_storage(now)
        self.consuming.overdue(now)
        consume.overdue(self, now)
        self.calls.overdue(now)
        while self.away and next(iter(self.away.values())) <= now:
            self.end(self.clients[next(iter(self.away))])
        if now - self._trimmed >= _TRIM and not self.store.trim(self.now_ns()):
            self._trimmed = now

    def _look_at_storage(self, now: float) -> None:
        """When it cannot be written for some time, or the observer can keep nothing, end the connections of those who
        wait for that, with the reason. They keep what is not acknowledged, and come back with it."""
        error = self.store.error or (self.observer.failing() if self.observer is not None else "")
        if not error:
            self._failing, self.unable = 0.0, ""
            return
        self._failing = self._failing or now
        if now - self._failing < PATIENCE:
            return
        if not self.unable:
            _logger.error("clients are turned away until the hub can store something again")
        self.unable = f"the hub cannot store anything: {error}"
        for connection in list(self.connections):
            client = connection.client
            if client is not None and not connection.ready:
                # Who was never let in leaves no will.
                self.keep_will(client, None)
                connection.close(QUOTA_EXCEEDED, self.unable)
            elif connection.asked > self.store.durable or connection.observed > self._observed:
                connection.close(QUOTA_EXCEEDED, self.unable)

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Work that is given up when the hub ends."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _look(self, connection: "Connection", now: float) -> None:
        limits = self.config.clients
        if connection.weight:
            self.memory.weigh(connection)
        if connection.closed is not None:
            if now - connection.closed > (limits.stalled if connection.unread else LINGER):
                connection.abort()
            return
        if connection.client is None:
            if now - connection.since > limits.login:
                connection.close(KEEP_ALIVE_TIMEOUT, "no AUTH in time")
        elif connection.stuck is not None and now - connection.stuck > limits.stalled:
            connection.abort()
        elif connection.unfinished and now - connection.heard > limits.stalled:
            connection.close(KEEP_ALIVE_TIMEOUT, "a frame was begun, and nothing more came of it")
        elif connection.patience and now - connection.heard > connection.patience and not connection.held:
            connection.close(KEEP_ALIVE_TIMEOUT)

    def stop(self) -> None:
        """Say goodbye to everybody, and take nothing more."""
        self._ticker.cancel()
        for task in self.tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close(SERVER_SHUTTING_DOWN)
        self.users.close()
