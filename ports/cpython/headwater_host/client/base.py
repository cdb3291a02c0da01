"""The base of the asyncio clients."""

import asyncio
import logging
import secrets
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headwater_host.arguments import check_seconds, seconds_of, servers_of
from headwater_host.client.backlog import Backlog
from headwater_host.client.delivery import Delivery
from headwater_host.client.inbox import Inbox
from headwater_host.client.lifecycle import Lifecycle, LifecycleSession
from headwater_host.client.options import ConnectionOptions, Limits, SessionOptions, check_options
from headwater_host.client.payload import Payload
from headwater_host.client.receive_path import ReceivePath, SkipLarge
from headwater_host.client.reconnect import Reconnect, policy_of
from headwater_host.client.route import Route
from headwater_host.client.send_path import Publisher, SendPath
from headwater_host.client.waiting import Answers
from headwater_host.errors import ArgumentError, ClientError
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import Topic

if TYPE_CHECKING:
    from headwater_host.client.store import SqliteOutbox


class Received(Protocol):
    """A message that arrived."""

    topic: Topic
    qos: int
    acknowledged: bool

    def ack(self) -> Coroutine[Any, Any, None]:
        """Acknowledge it."""
        ...


_Extra = TypeVar("_Extra")
_Message = TypeVar("_Message", bound=Received)
_Answer = TypeVar("_Answer")


class ClientSession(LifecycleSession, Publisher[_Extra], Protocol[_Extra]):
    """The client's session of a protocol."""

    auto_ack: bool
    skipped: int
    on_delivered: Callable[[int], object] | None
    sink: Any


class BaseClient(Lifecycle, Generic[_Extra, _Message, _Answer]):
    """The client of a protocol. ``_Extra`` is what it publishes besides the payload: properties or tags.

    ``messages`` has the received messages, ``_answers`` the calls that wait for an answer to a request.
    """

    def __init__(
        self,
        session: ClientSession[_Extra],
        routes: Sequence[Route],
        identifier: str,
        options: SessionOptions,
        limits: Limits,
        timeout: float,
        reconnect: Reconnect | bool | None,
        store: "SqliteOutbox | None",
        logger: logging.Logger | None,
    ):
        super().__init__(
            session, routes, policy_of(reconnect), timeout, logger or logging.getLogger("headwater.client")
        )
        self._session = session
        #: The host and port of the first server.
        self.host = routes[0].host
        self.port = routes[0].port
        #: The client identifier.
        self.identifier = identifier
        #: True if received messages are acknowledged automatically.
        self.auto_ack = session.auto_ack = options.auto_ack
        self._answers: Answers[_Answer] = Answers()
        self._send_path: SendPath[_Extra] = SendPath(
            session,
            self._current,
            self._reached,
            self._read_on,
            Backlog() if store is None else store.backlog,
            limits,
            timeout,
            self.logger,
        )
        session.on_delivered = self._send_path.delivered
        session.sink = SkipLarge(self.logger)
        self._receive_path: ReceivePath[_Message] = ReceivePath(
            limits.queued_incoming,
            lambda: self.connection,
            lambda: bool(self._answers) or self._send_path.is_awaited,
            self._withhold,
            self._answer_message,
            self.logger,
        )
        self._limit = limits.queued_incoming
        #: The received messages: ``async for message in client.messages``.
        self.messages: Inbox[_Message] = self._inbox()

    def _inbox(self) -> Inbox[Any]:
        """Return a new queue whose length counts against ``queued_incoming``."""
        inbox: Inbox[Any] = Inbox(self._current, self._limit, self._receive_path.look)
        self._receive_path.queues.append(inbox)
        return inbox

    # -- publishing ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _extra(self, properties: Properties | None, tags: Sequence[str]) -> _Extra:
        """Return what the protocol sends with a message. Raises ArgumentError for what it does not have."""

    def publish(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        timeout: float | None = None,
        properties: Properties | None = None,
        tags: Sequence[str] = (),
    ) -> Coroutine[None, None, int]:
        """Publish, and wait until the message is written to the connection (QoS 0) or completely acknowledged (1, 2).

        ``properties`` are those of MQTT 5.0 (``headwater_host.mqtt_properties``); subscriptions of FMQ can filter by
        ``tags``. Returns the reason code of the server's answer: 0, or with MQTT 5.0 0x10 when there are no
        subscribers.

        Several calls may run concurrently (``asyncio.gather``); messages leave in the order of the calls. A call waits
        while the connection is not writable, and while too many messages are unacknowledged.

        Raises ArgumentError and QueueFullError (nothing was sent), TimedOutError and NotConnectedError. After one of
        the latter two at QoS 1 or 2, and when the call is cancelled, a message that was enqueued stays in the session:
        it is still sent, over this or the next connection. With MQTT 5.0 and FMQ also PublishError: the server refused
        the message, which is not retransmitted.
        """
        message = (topic, payload, qos, retain, self._extra(properties, tags))
        return self._send_path.publish(message, timeout)

    def post(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        timeout: float | None = None,
        properties: Properties | None = None,
        tags: Sequence[str] = (),
    ) -> Coroutine[None, None, Delivery]:
        """Enqueue a message (with a store: on disk) and return its ``Delivery``, so that many can be in flight.

        The ``Delivery`` can be awaited, calls back when it is done, and has the packet identifier and the reason code.
        ``drain`` waits for all deliveries. A refusal of the server is also logged. For errors see ``publish``.
        """
        message = (topic, payload, qos, retain, self._extra(properties, tags))
        return self._send_path.post(message, timeout)

    def post_nowait(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties | None = None,
        tags: Sequence[str] = (),
    ) -> Delivery:
        """Enqueue a message without waiting: for handlers.

        Raises QueueFullError when there is no room for the message, and NotConnectedError at QoS 0 without a
        connection, unless ``when_full`` is "drop_oldest".

        Acknowledgements are read in later turns of the event loop, so a program that posts many messages must await
        something in between.
        """
        return self._send_path.post_nowait((topic, payload, qos, retain, self._extra(properties, tags)))

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until every published message is acknowledged.

        Raises TimedOutError after ``timeout`` seconds (default: the client's), and NotConnectedError. The messages then
        wait for the next connection.
        """
        await self._send_path.drain(timeout)

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped unsent, with ``when_full="drop_oldest"``."""
        return self._send_path.dropped

    @property
    def dropped_incoming(self) -> int:
        """The number of received messages without acknowledgement that were dropped because the queue was full."""
        return self._receive_path.dropped

    @property
    def skipped(self) -> int:
        """The number of messages that were skipped because they exceeded ``packet_size``."""
        return self._session.skipped

    # -- receiving -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _answer_message(self, message: _Message) -> None:
        """Acknowledge a message."""

    def _withhold(self, value: bool) -> None:
        self._session.auto_ack = self.auto_ack and not value
        self.messages.on_taken = self._receive_path.taken if value else None

    def _read_on(self) -> None:
        """Resume reading for a call that waits: its answer follows unread messages."""
        self._receive_path.read_on()

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_begin(self, session_present: bool) -> None:
        self._receive_path.begin()
        if self.connection is not None:
            self.connection.on_writable = self._send_path.begin
        self._send_path.begin()

    def _on_interrupted(self, error: ClientError) -> None:
        self._answers.fail(error)
        self._send_path.interrupt(error)

    def _on_over(self, error: ClientError) -> None:
        self._answers.fail(error)
        self._send_path.end(error)
        self.messages.end()

    def _on_tick(self, now: float) -> None:
        self._answers.expire(now)
        self._send_path.answers.expire(now)
        self._receive_path.look()

    def _acknowledged(self) -> int:
        return self._send_path.acknowledged

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + seconds_of(timeout, self.timeout)


def routes_of(
    host: object, port: object, options: ConnectionOptions, make: Callable[[str, int | None], Route]
) -> list[Route]:
    """Return the routes to the servers, each made by ``make(host, port)``. Raises ArgumentError."""
    return [make(*server) for server in servers_of(host, port, options.more_servers)]


def check_client(
    connection: ConnectionOptions,
    session: SessionOptions,
    limits: Limits,
    kinds: tuple[type[SessionOptions], type[Limits]],
    identifier: str | None,
    timeout: float,
) -> str:
    """Return the client identifier, a random one if none is given.

    Raises ArgumentError for options of another class than ``kinds``, and for options that contradict each other.
    """
    check_options("connection", connection, ConnectionOptions)
    check_options("session", session, kinds[0])
    check_options("limits", limits, kinds[1])
    check_seconds("timeout", timeout)
    if not session.clean_start and not identifier:
        raise ArgumentError("a session that the server is to keep needs an identifier")
    return "headwater-" + secrets.token_hex(6) if identifier is None else identifier


def open_store(
    options: SessionOptions, identifier: str | None, protocol: str, slots: int
) -> "SqliteOutbox | None":
    """Return the store of a client. Raises StoreError, and ArgumentError when it belongs to another client."""
    store = options.store
    if store is None:
        return None
    # Imported only where a store is used, because some builds of Python have no SQLite.
    from headwater_host.client.store import SqliteOutbox, protocol_name

    if not identifier:
        raise ArgumentError("a store needs the identifier whose messages it keeps")
    if not isinstance(store, SqliteOutbox):
        return SqliteOutbox(store, identifier, protocol=protocol, slots=slots)
    if store.protocol != protocol:
        raise ArgumentError(
            f"the store is for {protocol_name(store.protocol)}, not {protocol_name(protocol)}"
        )
    if store.identifier != identifier:
        raise ArgumentError(f"the store is of the client {store.identifier!r}")
    return store
