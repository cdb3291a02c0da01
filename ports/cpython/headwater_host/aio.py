"""An asyncio MQTT client, in the shape that aiomqtt's users know.

    async with Client("broker.local", identifier="reader", clean_session=False) as client:
        await client.subscribe("boards/#", qos=1)
        async for message in client.messages:
            print(message.topic, message.payload)
            await client.publish("seen", str(message.topic), qos=1)

The session of the core lives in the client object: entering the same client again after a lost connection goes on
with it, so what was published at QoS 1 or 2 and is not acknowledged goes out again.

    while True:
        try:
            async with client:
                ...
        except MqttError as error:
            await asyncio.sleep(5)
"""

import asyncio
import logging
import secrets
import ssl
from collections import deque
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from headwater import errors, reasons
from headwater.mqtt import spec
from headwater.mqtt.transitions import ONLINE
from headwater_host.calls import Inbox
from headwater_host.connection import HOLD_APPLICATION, Connection
from headwater_host.errors import (
    MqttArgumentError,
    MqttConnectionError,
    MqttDisconnectedError,
    MqttError,
    MqttProtocolError,
    MqttPublishError,
    MqttReentrantError,
    MqttRefusedError,
    MqttStoreError,
    MqttSubscribeError,
    MqttTimeoutError,
    MqttTlsError,
    connection_error,
)
from headwater_host.messages import Message, Payload, TooLarge, Will
from headwater_host.outgoing import Outgoing
from headwater_host.properties import Properties
from headwater_host.route import Route, Tls
from headwater_host.rxbuf import MAX_PACKET
from headwater_host.session import GrowingOutbox, HostClientSession5
from headwater_host.topics import Topic, Wildcard, filter_bytes, topic_of
from headwater_host.versions import make_session

if TYPE_CHECKING:
    from os import PathLike

    from headwater.mqtt.decode import Packet
    from headwater_host.store import SqliteOutbox

__all__ = [
    "Client",
    "Message",
    "MqttArgumentError",
    "MqttConnectionError",
    "MqttDisconnectedError",
    "MqttError",
    "MqttProtocolError",
    "MqttPublishError",
    "MqttReentrantError",
    "MqttRefusedError",
    "MqttStoreError",
    "MqttSubscribeError",
    "MqttTimeoutError",
    "MqttTlsError",
    "Tls",
    "Topic",
    "Wildcard",
    "Will",
]

_PINGREQ = bytes((spec.PINGREQ << 4, 0))
# Requests that the session lets wait for their answers at a time.
_REQUESTS = 8


class Client:
    """A connection to a server, from ``async with`` to its end, and the session that outlives it.

    - ``port``: 1883, with TLS 8883, with WebSocket 80 or 443.
    - ``protocol``: "3.1", "3.1.1" or "5.0".
    - ``tls``: True for the operating system's authorities, or a ``Tls`` (``headwater_host.route``), or an
      ``ssl.SSLContext``. Certificate and name are checked unless one of these says otherwise.
    - ``websocket``: the path, such as ``"/mqtt"``, where the server speaks MQTT over WebSocket.
    - ``identifier``: the client id; without one, a random one is made. A kept session (``clean_session=False``)
      needs one.
    - ``session_expiry``: how many seconds a server of MQTT 5.0 keeps the session when the connection is over; without
      it, for ever, or with ``clean_session`` not at all. ``properties`` (``headwater_host.properties``) are CONNECT's.
    - ``timeout``: seconds that connecting, and each call, may take. ``keepalive``: seconds, 0 for none.
    - ``max_queued_incoming_messages``: when more than this many wait in ``messages``, reading pauses until half of them
      are taken. What one read brought comes on top; and while a call waits for its answer, reading goes on, since the
      answer stands behind the messages. None: no bound.
    - ``max_queued_outgoing_messages``: how many QoS 1 and 2 messages may be unacknowledged or waiting; ``publish``
      then waits. ``max_inflight_messages`` of them are sent without an acknowledgement; mosquitto hangs up on a client
      that has more than its own ``max_inflight_messages``, 20, under way at QoS 2.
    - ``max_packet_size``: larger messages are skipped: acknowledged, and logged as a warning.
    - ``store``: the path of a file that keeps the session over the end of the process and of the machine's power, or a
      ``SqliteOutbox`` (``headwater_host.store``). It needs an identifier, and one file for each.
    - ``auto_ack=False``: QoS 1 and 2 messages are acknowledged by ``message.ack()`` only.

    Errors are ``MqttError`` and its subclasses (``headwater_host.errors``). Not for use from several threads.
    """

    def __init__(
        self,
        hostname: str,
        port: int | None = None,
        *,
        protocol: str = "3.1.1",
        tls: Tls | ssl.SSLContext | bool | None = None,
        websocket: str | None = None,
        identifier: str | None = None,
        username: str | None = None,
        password: str | bytes | None = None,
        will: Will | None = None,
        clean_session: bool = True,
        session_expiry: int | None = None,
        properties: Properties | None = None,
        keepalive: int = 60,
        timeout: float = 10,
        max_queued_incoming_messages: int | None = 10_000,
        max_queued_outgoing_messages: int = 1024,
        max_inflight_messages: int = 20,
        max_packet_size: int = MAX_PACKET,
        auto_ack: bool = True,
        store: "SqliteOutbox | str | PathLike[str] | None" = None,
        logger: logging.Logger | None = None,
    ):
        if not clean_session and not identifier:
            raise MqttArgumentError("a session that the server is to keep needs an identifier")
        if not 0 <= keepalive <= 65535:
            raise MqttArgumentError("keepalive is 0 to 65535 seconds")
        if timeout <= 0:
            raise MqttArgumentError("timeout is a number of seconds above 0")
        if not 0 < max_queued_outgoing_messages <= 65280 or max_inflight_messages < 1:
            raise MqttArgumentError(
                "1 to 65280 messages can wait to go out, and at least one can be in flight"
            )
        self._route = Route(hostname, port, tls, websocket)
        self.hostname = hostname
        self.port = self._route.port
        self.identifier = "headwater-" + secrets.token_hex(6) if identifier is None else identifier
        self.protocol = protocol
        self.timeout = timeout
        self.auto_ack = auto_ack
        self.logger = logger or logging.getLogger("headwater.client")
        #: The core's session, for programs that go below this face.
        self.session = session = make_session(
            protocol,
            self.identifier,
            username,
            password,
            will,
            session_expiry,
            properties,
            keep_alive=keepalive,
            clean=clean_session,
            max_packet=max_packet_size,
            slots=max_queued_outgoing_messages,
            window=max_inflight_messages,
            response_ms=int(timeout * 1000),
            outbox=self._open_store(store, identifier, max_queued_outgoing_messages),
        )
        #: What the server said of itself in CONNACK (MQTT 5.0).
        self.server_properties: Properties = {}
        #: What DISCONNECT is to say besides (MQTT 5.0).
        self.disconnect_properties: Properties | None = None
        session.auto_ack = auto_ack
        session.on_message = self._on_message
        self._outgoing = Outgoing(session, self._current, self._release_for_answer)
        session.on_delivered = self._outgoing.delivered
        if isinstance(session, HostClientSession5):
            session.on_refused = self._on_refused
            session.on_message = self._on_message5
        session.on_answer = self._on_answer
        session.on_online = self._on_online
        session.sink = TooLarge(self.logger)
        self._limit = max_queued_incoming_messages
        self._entered = False
        self._opening: Connection | None = None
        self._online: asyncio.Future[bool] | None = None
        #: The connection while there is one, for programs that go below this face.
        self.connection: Connection | None = None
        self._error = MqttConnectionError("the client is not connected", errors.E_OFFLINE)
        self._answers = self._outgoing.answers
        self._requests = asyncio.Semaphore(_REQUESTS)
        self._unacknowledged: deque[Message] = deque()
        self.messages = Inbox(self._current, max_queued_incoming_messages, self._hold_or_release)

    def _open_store(
        self, store: "SqliteOutbox | str | PathLike[str] | None", identifier: str | None, slots: int
    ) -> "SqliteOutbox | None":
        if store is None:
            return None
        # Not everybody has a store, and some Pythons have no SQLite.
        from headwater_host.store import SqliteOutbox

        if not identifier:
            raise MqttArgumentError("a store needs the identifier whose session it keeps")
        if not isinstance(store, SqliteOutbox):
            return SqliteOutbox(store, identifier, slots=slots)
        if store.identifier != identifier:
            raise MqttArgumentError(f"the store is of the client {store.identifier!r}")
        return store

    # -- the connection --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Client":
        """Connect.

        Raises MqttConnectionError (there is no way to the server, or it hung up), MqttRefusedError, MqttProtocolError,
        MqttTimeoutError; MqttReentrantError when the client is in use already.
        """
        if self._entered:
            raise MqttReentrantError("the client is in use already: one `async with` at a time")
        self._entered = True
        connection = self._opening = Connection(
            self.session, self._on_lost, self._on_tick, _PINGREQ, self.session.keep_alive * 500
        )
        try:
            await self._connect(connection)
        except BaseException:
            self._entered = False
            self.connection = None
            if self._online is not None:
                self._online.cancel()
            connection.drop(errors.E_TIMEOUT)
            raise
        finally:
            self._opening = None
        return self

    async def _connect(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        online = self._online = loop.create_future()
        await self._route.open(connection, self.timeout)
        if connection.transport is None:
            # The server did not want us: with TLS 1.3 it says so only now.
            online.result()
        self._requests = asyncio.Semaphore(_REQUESTS)
        bad = self.session.connect(connection.now_ms())
        if bad:
            raise MqttArgumentError(f"CONNECT cannot be built: {reasons.describe(bad)}", bad)
        connection.push()
        await asyncio.wait({online}, timeout=max(0.0, deadline - loop.time()))
        if not online.done():
            raise MqttTimeoutError(f"{self._route} did not answer CONNECT within {self.timeout:g} s")
        online.result()
        # It may have come and gone.
        self._current()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say DISCONNECT, so that the will is not published, and close."""
        self._entered = False
        connection = self.connection
        if connection is None:
            return
        self._end(MqttConnectionError("the client has disconnected", errors.E_OFFLINE))
        connection.flush()
        try:
            self.session.leave(self.disconnect_properties)
        finally:
            await connection.close(self.timeout)

    @property
    def connected(self) -> bool:
        """Whether messages can pass now."""
        return self.connection is not None and self.session.state == ONLINE

    @property
    def session_present(self) -> bool:
        """Whether the server had kept the session when it accepted the last connection."""
        return self.session.session_present

    def _on_online(self, session_present: bool) -> None:
        self.connection = self._opening
        self.server_properties = self.session.said()
        if session_present:
            self.messages.forget_repeated(self.session.epoch)
        # At QoS 1 the server sends again what it keeps; without a session it knows nothing of either.
        self._unacknowledged = deque(m for m in self._unacknowledged if m.qos == 2 and session_present)
        if self._online is not None and not self._online.done():
            self._online.set_result(session_present)

    def _on_lost(self, status: int, detail: str) -> None:
        error = self._ending(status, detail)
        if self.connection is not None:
            self.logger.warning("%s:%d: %s", self.hostname, self.port, error)
            self._end(error)
        elif self._online is not None and not self._online.done():
            self._online.set_exception(error)

    def _ending(self, status: int, detail: str) -> MqttConnectionError:
        if status == errors.E_REFUSED:
            return MqttRefusedError(self.session.return_code, self.session.said().get("reason_string", ""))
        if status == errors.E_DISCONNECTED:
            return MqttDisconnectedError(
                self.session.return_code, self.session.said().get("reason_string", "")
            )
        return connection_error(status, detail)

    def _end(self, error: MqttConnectionError) -> None:
        """The connection is over for the program: whoever waits hears why."""
        self.connection = None
        self._error = error
        self._outgoing.end(error)
        self.messages.end()

    def _on_tick(self, now: float) -> None:
        self._answers.expire(now)
        self._hold_or_release()

    def _current(self) -> Connection:
        if self.connection is None:
            raise self._error.with_traceback(None)
        return self.connection

    # -- publishing and subscribing --------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        timeout: float | None = None,
        properties: Properties | None = None,
    ) -> Coroutine[None, None, None]:
        """Publish; returns when the message is handed to the connection (QoS 0), or acknowledged to its end (1, 2).

        Several calls may run at a time (``asyncio.gather``); messages leave in the order of the calls. Waits while the
        connection takes no more, and while too many messages are unacknowledged.

        Raises MqttArgumentError (nothing was sent), MqttTimeoutError and MqttConnectionError. After one of the latter
        two at QoS 1 or 2, and when the call is cancelled, a message that was handed in stays in the session: it is
        still sent, now or over the next connection of this client. With MQTT 5.0 also MqttPublishError: the server
        refused it; ``properties`` are of ``headwater_host.properties``.
        """
        return self._outgoing.publish(
            topic, payload, qos, retain, self.timeout if timeout is None else timeout, properties
        )

    def post(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        timeout: float | None = None,
        properties: Properties | None = None,
    ) -> Coroutine[None, None, None]:
        """As ``publish``, but returns when the message is handed in, at every QoS: so that many are under way.

        ``drain`` waits for their acknowledgements.
        """
        return self._outgoing.post(
            topic, payload, qos, retain, self.timeout if timeout is None else timeout, properties
        )

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until no message of ours is unacknowledged.

        Raises MqttTimeoutError, and MqttConnectionError: then the messages wait for the next connection.
        """
        await self._outgoing.drain(self.timeout if timeout is None else timeout)

    def _on_refused(self, packet_id: int, code: int) -> None:
        self.logger.warning("the server refused a message: %s", MqttPublishError(code))
        self._outgoing.delivered(packet_id, code)

    def _on_answer(self, packet_id: int, code: int) -> None:
        self._answers.settle(packet_id, code)

    async def _answer(self, packet_id: int, deadline: float) -> int:
        self._release_for_answer()
        return await self._answers.wait(packet_id, deadline)

    async def subscribe(
        self,
        topic: str | Sequence[tuple[str, int]],
        qos: int = 0,
        *,
        timeout: float | None = None,
        options: int = 0,
        properties: Properties | None = None,
    ) -> tuple[int, ...]:
        """Subscribe to a filter, or to several with a QoS each: the QoS that the server granted, for each.

        With MQTT 5.0, ``options`` are ``headwater.mqtt.spec5``'s (NO_LOCAL and so on; 3.8.3.1), for each of them, and
        ``properties`` may have a ``subscription_identifier``.

        Raises MqttSubscribeError when it refuses one, MqttArgumentError, MqttTimeoutError, MqttConnectionError.
        """
        wanted = [(topic, qos)] if isinstance(topic, str) else list(topic)
        patterns = [(filter_bytes(name), level) for name, level in wanted]
        for _, level in patterns:
            if level not in (0, 1, 2):
                raise MqttArgumentError(f"QoS is 0, 1 or 2, not {level!r}", errors.E_QOS)
        if options and self.protocol != "5.0":
            raise MqttArgumentError("options of a subscription need MQTT 5.0")
        deadline = self._deadline(timeout)
        codes = await asyncio.gather(
            *(self._request(pattern, level | options, deadline, properties) for pattern, level in patterns)
        )
        for (name, _), code in zip(wanted, codes, strict=True):
            if code >= spec.SUBSCRIBE_FAILED:
                raise MqttSubscribeError(name, code)
        return tuple(codes)

    async def unsubscribe(
        self,
        topic: str | Sequence[str],
        *,
        timeout: float | None = None,
        properties: Properties | None = None,
    ) -> None:
        """Take one subscription back, or several. Raises MqttArgumentError, MqttTimeoutError, MqttConnectionError."""
        patterns = [filter_bytes(name) for name in ([topic] if isinstance(topic, str) else topic)]
        deadline = self._deadline(timeout)
        await asyncio.gather(*(self._request(pattern, -1, deadline, properties) for pattern in patterns))

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + (self.timeout if timeout is None else timeout)

    async def _request(
        self, pattern: bytes, options: int, deadline: float, properties: Properties | None = None
    ) -> int:
        async with self._requests:
            connection = self._current()
            connection.flush()
            status = self.session.ask(pattern, options, properties)
            if status < 0:
                raise MqttError(f"not sent: {reasons.describe(status)}", status)
            connection.push()
            return await self._answer(status, deadline)

    # -- receiving -------------------------------------------------------------------------------------------------

    def _on_message(self, p: "Packet") -> Message:
        buf = p.buf
        if type(buf) is not bytes:
            # A view, because a slice would be a second copy.
            view = memoryview(buf)
            payload = bytes(view[p.payload_at : p.end])
            topic = topic_of(bytes(view[p.topic_at : p.topic_end]))
        else:
            payload = buf[p.payload_at : p.end]
            topic = topic_of(buf[p.topic_at : p.topic_end])
        epoch = self.session.epoch
        if self.auto_ack or p.head & 6 == 0:
            message = Message(topic, payload, p.head, p.packet_id, epoch)
        else:
            message = Message(topic, payload, p.head, p.packet_id, epoch, self._acknowledge)
            self._unacknowledged.append(message)
        self.messages.put(message)
        return message

    def _on_message5(self, p: "Packet") -> None:
        # Who is woken for the message looks at it later.
        self._on_message(p).properties = self.session.said()

    def _hold_or_release(self) -> None:
        connection = self.connection
        if connection is None or self._limit is None:
            return
        if len(self.messages) <= self._limit // 2:
            connection.release(HOLD_APPLICATION)
        elif len(self.messages) > self._limit and not self._outgoing.is_awaited:
            connection.hold(HOLD_APPLICATION)

    def _release_for_answer(self) -> None:
        """An answer stands behind the messages that are not being read."""
        if self.connection is not None:
            self.connection.release(HOLD_APPLICATION)

    async def _acknowledge(self, message: Message) -> None:
        message.acknowledged = True
        queue = self._unacknowledged
        connection = self.connection
        while queue and queue[0].acknowledged:
            first = queue.popleft()
            if connection is not None:
                # There must be room for the answer.
                connection.flush()
            self.session.acknowledge(first.mid, first.qos, first.epoch)
        if connection is not None:
            connection.push()
            if connection.paused:
                await connection.writable(self.timeout)
        box = self.session.outbox
        if getattr(box, "unsynced", False):
            # It is acknowledged when it is in the store, together with what else this turn brings.
            await asyncio.sleep(0)
            box.sync()
