"""An asyncio MQTT client, in the shape that aiomqtt's users know.

    async with Client("broker.local", identifier="reader", clean_session=False) as client:
        await client.subscribe("boards/#", qos=1)
        async for message in client.messages:
            print(message.topic, message.payload)
            await client.publish("seen", str(message.topic), qos=1)

The session lives in the client object. Entering the same client again after a lost connection resumes it:
unacknowledged messages at QoS 1 and 2 are retransmitted. With ``reconnect`` the client reconnects automatically
(``headwater_host.client.reconnect``):

    async with Client("broker.local", reconnect=True) as client:
        await client.subscribe("boards/#")
        async for message in client.messages:  # over as many connections as it takes
            ...
"""

import logging
import secrets
import ssl
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING

from headwater import errors
from headwater.mqtt import spec
from headwater_host.arguments import check_whole, seconds_of, servers_of
from headwater_host.client.backlog import Backlog
from headwater_host.client.delivery import Delivery
from headwater_host.client.inbox import Inbox
from headwater_host.client.mqtt.messages import Message
from headwater_host.client.mqtt.session import HostClient, HostClientSession5
from headwater_host.client.mqtt.subscriptions import Filters, Subscribing
from headwater_host.client.mqtt.versions import make_session, open_store, version_of
from headwater_host.client.payload import Payload, Will
from headwater_host.client.receive_path import RECEIVE_MAXIMUM, ReceivePath, TooLarge
from headwater_host.client.reconnect import Reconnect, policy_of
from headwater_host.client.route import Route, Tls
from headwater_host.client.send_path import SendPath, check_limits
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    PublishError,
)
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import topic_of

if TYPE_CHECKING:
    from os import PathLike

    from headwater.mqtt.packets import Packet
    from headwater_host.client.store import SqliteOutbox


class Client(Subscribing):
    """A connection to a server, from ``async with`` to its end, and the session that outlives it.

    - ``port``: 1883, with TLS 8883, with WebSocket 80 or 443.
    - ``protocol``: "3.1", "3.1.1" or "5.0"; or the protocol level, 3, 4 or 5.
    - ``tls``: True for the operating system's authorities, or a ``Tls`` (``headwater_host.client.route``), or an
      ``ssl.SSLContext``. Certificate and name are checked unless one of these says otherwise.
    - ``websocket``: the path, such as ``"/mqtt"``, where the server speaks MQTT over WebSocket.
    - ``identifier``: the client id; without one, a random one is made. A kept session (``clean_session=False``)
      needs one. With ``""`` a server of MQTT 5.0 assigns one, which the attribute ``identifier`` shows and reconnects
      use; one that it assigns although an id was given is ignored, and logged as a warning.
    - ``session_expiry``: how many seconds a server of MQTT 5.0 keeps the session when the connection is over; without
      it, for ever, or with ``clean_session`` not at all. ``properties`` are CONNECT's
      (``headwater_host.mqtt_properties``).
    - ``receive_maximum``: how many QoS 1 and 2 messages a server of MQTT 5.0 may send before the first of them is
      acknowledged, 1 to 65535, which is the default. A server that sends more breaks the protocol: it gets DISCONNECT
      with reason code 0x93. With ``auto_ack`` a QoS 1 message is acknowledged at once, while ``messages`` has room.
    - ``receive_limit``: how many such messages are taken before that happens; by default ``receive_maximum``. A larger
      one is for servers that exceed the receive maximum, as mosquitto 2.0.11 does once it gets an acknowledgement.
    - ``topic_aliases``: how many topic aliases a server of MQTT 5.0 may use. The client keeps these topics in memory.
      ``outgoing_topic_aliases``: how many topic aliases the client uses at QoS 0, within the server's maximum.
    - ``timeout``: seconds that connecting, and each call, may take. ``keepalive``: seconds, 0 for none.
    - ``max_queued_incoming_messages``: when ``messages`` holds this many, reading pauses until half of them are taken;
      what the last read returned is queued as well. While a message or request of the client is unanswered, reading
      continues: further messages at QoS 1 and 2 are queued and acknowledged when they are taken, and those at QoS 0 are
      dropped and counted in ``dropped_incoming``. None: no limit.
    - ``max_queued_outgoing_messages``: how many QoS 1 and 2 messages may be unacknowledged or waiting; ``publish``
      then waits. ``max_inflight_messages`` of them are sent without an acknowledgement; mosquitto hangs up on a client
      that has more than its own ``max_inflight_messages``, 20, under way at QoS 2.
    - ``when_full``: how to publish a message when there is no room for it, or at QoS 0 no connection. "block": the call
      waits. "refuse": the call raises. "drop_oldest": the message is queued, at every QoS; when
      ``max_queued_outgoing_messages`` unsent messages are queued, the oldest is dropped and counted in ``dropped``.
    - ``max_packet_size``: the largest packet to receive, in bytes, at least 16; by default MQTT's largest. At MQTT 5.0
      it is announced, and a server that sends a larger packet gets DISCONNECT with reason code 0x95. In earlier
      versions larger messages are skipped: acknowledged, counted in ``skipped``, and logged as a warning.
    - ``store``: the path of a file that keeps the session over the end of the process and of the machine's power, or a
      ``SqliteOutbox`` (``headwater_host.client.store``). It needs an identifier, and one file for each.
    - ``auto_ack=False``: QoS 1 and 2 messages are acknowledged by ``message.ack()`` only.
    - ``puback_ends_qos_2=True``: for servers that know no QoS 2 and answer its messages with PUBACK, as RabbitMQ does:
      they arrive at least once. Otherwise every such PUBACK closes the connection, as MQTT requires.
    - ``reconnect``: True, or a ``Reconnect`` (``headwater_host.client.reconnect``). It reconnects automatically,
      subscribes again when the server has lost the session, and ``messages`` continues. Calls wait for a connection for
      up to their ``timeout``; messages at QoS 1 and 2 are enqueued without one. ``on_connection(error)`` is called on
      each change, and ``on_subscription_refused(error)`` for each filter that the server refuses when the client
      subscribes again. When the client gives up, every waiting call raises the last error.
    - ``more_servers``: hosts and ports to try in turn when the first server cannot be reached.
    - ``subscriptions``: filters, each with its QoS or at QoS 0, to subscribe to when the client is entered.

    Errors are ``ClientError`` and its subclasses (``headwater_host.errors``). Not for use from several threads.
    """

    session: HostClient

    def __init__(
        self,
        hostname: str,
        port: int | None = None,
        *,
        protocol: str | float = "3.1.1",
        tls: Tls | ssl.SSLContext | bool | None = None,
        websocket: str | None = None,
        identifier: str | None = None,
        username: str | None = None,
        password: str | bytes | None = None,
        will: Will | None = None,
        clean_session: bool = True,
        session_expiry: int | None = None,
        properties: Properties | None = None,
        receive_maximum: int | None = None,
        receive_limit: int | None = None,
        topic_aliases: int = 0,
        outgoing_topic_aliases: int = 0,
        keepalive: int = 60,
        timeout: float = 10,
        max_queued_incoming_messages: int | None = 10_000,
        max_queued_outgoing_messages: int = 1024,
        max_inflight_messages: int = 20,
        when_full: str = "block",
        max_packet_size: int | None = None,
        auto_ack: bool = True,
        store: "SqliteOutbox | str | PathLike[str] | None" = None,
        puback_ends_qos_2: bool = False,
        reconnect: Reconnect | bool | None = None,
        more_servers: Sequence[tuple[str, int | None] | str] = (),
        subscriptions: "Filters" = (),
        logger: logging.Logger | None = None,
    ):
        if not clean_session and not identifier:
            raise ArgumentError("a session that the server is to keep needs an identifier")
        check_whole("keepalive", keepalive, 0, 65535)
        protocol = version_of(protocol)
        policy = policy_of(reconnect)
        if max_queued_incoming_messages is not None:
            check_whole("max_queued_incoming_messages", max_queued_incoming_messages, 0, 1 << 62)
        check_limits(timeout, max_queued_outgoing_messages, max_inflight_messages, when_full)
        servers = servers_of(hostname, port, more_servers)
        routes = [Route(host, number, tls, websocket) for host, number in servers]
        self.hostname = hostname
        self.port = routes[0].port
        self.identifier = "headwater-" + secrets.token_hex(6) if identifier is None else identifier
        self.protocol = protocol
        self.auto_ack = auto_ack
        box = open_store(store, identifier, protocol, max_queued_outgoing_messages)
        session = make_session(
            protocol,
            self.identifier,
            username,
            password,
            will,
            properties,
            {
                "session_expiry": session_expiry,
                "receive_maximum": receive_maximum,
                "max_packet_size": max_packet_size,
                "topic_aliases": topic_aliases or None,
            },
            outgoing_topic_aliases,
            receive_limit,
            keep_alive=keepalive,
            clean=clean_session,
            slots=max_queued_outgoing_messages,
            window=max_inflight_messages,
            response_ms=int(timeout * 1000),
            puback_ends_qos_2=puback_ends_qos_2,
            outbox=box,
        )
        super().__init__(
            subscriptions,
            session,
            routes,
            policy,
            timeout,
            logger or logging.getLogger("headwater.mqtt.client"),
        )
        session.auto_ack = auto_ack
        session.on_message = self._on_message
        #: What the server said of itself in CONNACK (MQTT 5.0).
        self.server_properties: Properties = {}
        #: What DISCONNECT is to say besides (MQTT 5.0).
        self.disconnect_properties: Properties | None = None
        self._outgoing = SendPath(
            session,
            self._current,
            self._reached,
            self._read_on,
            Backlog() if box is None else box.backlog,
            max_queued_outgoing_messages,
            when_full,
            self.logger,
        )
        session.on_delivered = self._outgoing.delivered
        if isinstance(session, HostClientSession5):
            session.on_refused = self._on_refused
            session.on_reason = self._outgoing.reason
            session.on_message = self._on_message5
        session.sink = TooLarge(self.logger)
        self._unacknowledged: deque[Message] = deque()
        self._incoming: ReceivePath[Message] = ReceivePath(
            max_queued_incoming_messages,
            lambda: self.connection,
            lambda: self._outgoing.is_awaited or bool(self._answers),
            self._withhold,
            self._answer_message,
            self.logger,
        )
        self.messages: Inbox[Message] = Inbox(
            self._current, max_queued_incoming_messages, self._incoming.look
        )
        self._incoming.queues.append(self.messages)

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_begin(self, session_present: bool) -> None:
        self.server_properties = self.session.said()
        self._take_identifier(self.server_properties.get("assigned_client_identifier"))
        if session_present:
            # The server retransmits unacknowledged messages at QoS 1.
            epoch = self.session.epoch
            self.messages.forget(lambda m: m.qos == 1 and not m.acknowledged and m.epoch != epoch)
        # The server retransmits messages at QoS 1; without a session it has forgotten those at QoS 2 as well.
        self._unacknowledged = deque(m for m in self._unacknowledged if m.qos == 2 and session_present)
        self._incoming.begin()
        if self.connection is not None:
            self.connection.on_writable = self._outgoing.begin
        self._outgoing.begin()

    def _take_identifier(self, assigned: str | None) -> None:
        if not self.identifier:
            self.identifier = bytes(self.session.client_id).decode()
        elif assigned is not None and assigned != self.identifier:
            self.logger.warning(
                "the server assigned the client identifier %r; the client keeps %r", assigned, self.identifier
            )

    def _farewell(self) -> None:
        self.session.leave(self.disconnect_properties)

    def _on_interrupted(self, error: ClientError) -> None:
        self._lose_answers()
        self._answers.fail(error)
        self._outgoing.interrupt(error)

    def _on_over(self, error: ClientError) -> None:
        self._lose_answers()
        self._answers.fail(error)
        self._outgoing.end(error)
        self.messages.end()
        self._begin_requests()

    def _on_tick(self, now: float) -> None:
        self._answers.expire(now)
        self._outgoing.answers.expire(now)
        self._incoming.look()

    def _acknowledged(self) -> int:
        return self._outgoing.acknowledged

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
    ) -> Coroutine[None, None, int]:
        """Publish, and wait until the message is written to the connection (QoS 0) or completely acknowledged (1, 2).

        The result is the reason code of the server's answer: 0, or with MQTT 5.0 0x10 when there are no subscribers.

        Several calls may run at a time (``asyncio.gather``); messages leave in the order of the calls. Waits while the
        connection takes no more, and while too many messages are unacknowledged.

        Raises ArgumentError and QueueFullError (nothing was sent), TimedOutError and NotConnectedError. After
        one of the latter two at QoS 1 or 2, and when the call is cancelled, a message that was enqueued stays in the
        session: it is still sent, now or over the next connection of this client. With MQTT 5.0 also PublishError:
        the server refused the message. ``properties``: see ``headwater_host.mqtt_properties``.
        """
        return self._outgoing.publish(
            topic, payload, qos, retain, seconds_of(timeout, self.timeout), properties
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
    ) -> Coroutine[None, None, Delivery]:
        """Enqueue a message (with a store: on disk) and return, so that many messages can be in flight.

        The result is the message's ``Delivery`` (``headwater_host.client.delivery``): it can be awaited, calls
        back when it is done, and has the packet id and the reason code. ``drain`` waits for all deliveries.
        Errors: see ``publish``.
        """
        return self._outgoing.post(topic, payload, qos, retain, seconds_of(timeout, self.timeout), properties)

    def post_nowait(
        self,
        topic: str,
        payload: Payload = None,
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties | None = None,
    ) -> Delivery:
        """Enqueue a message without waiting: for handlers.

        Raises QueueFullError when there is no room for the message, and NotConnectedError at QoS 0 without a
        connection, unless ``when_full`` is "drop_oldest".

        Acknowledgements are read in later turns of the event loop, so a program that posts many messages has to await
        something meanwhile.
        """
        return self._outgoing.post_nowait(topic, payload, qos, retain, properties)

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until every published message is acknowledged.

        Raises TimedOutError, and NotConnectedError: then the messages wait for the next connection.
        """
        await self._outgoing.drain(seconds_of(timeout, self.timeout))

    @property
    def dropped(self) -> int:
        """How many messages were dropped, never sent, with ``when_full="drop_oldest"``."""
        return self._outgoing.dropped

    @property
    def dropped_incoming(self) -> int:
        """How many received messages at QoS 0 were dropped because ``max_queued_incoming_messages`` waited."""
        return self._incoming.dropped

    @property
    def skipped(self) -> int:
        """How many messages were skipped, because they were larger than ``max_packet_size``."""
        return self.session.skipped

    def _on_refused(self, packet_id: int, code: int) -> None:
        # Refused without a word of the server: by limits that it has announced in CONNACK.
        why = "" if self.session.packet.head >> 4 == spec.CONNACK else self.session.why()
        error = PublishError(code, why)
        self.logger.warning("%s", error)
        self._outgoing.delivered(packet_id, error=error)

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
        if p.head & 6 == 0:
            message = Message(topic, payload, p.head, p.packet_id, epoch)
            if self._incoming.withholds and not self._incoming.has_room(self.messages):
                return message
        elif self.session.auto_ack:
            message = Message(topic, payload, p.head, p.packet_id, epoch)
        else:
            message = Message(topic, payload, p.head, p.packet_id, epoch, self._acknowledge)
            waiting = self._incoming.withheld if self.auto_ack else self._unacknowledged
            waiting.append(message)
            if len(waiting) > RECEIVE_MAXIMUM:
                self.session.fail(errors.E_RX_WINDOW)
        self.messages.put(message)
        return message

    def _on_message5(self, p: "Packet") -> None:
        # The waiting reader runs after the properties are set.
        self._on_message(p).properties = self.session.said()

    def _withhold(self, value: bool) -> None:
        self.session.auto_ack = self.auto_ack and not value
        self.messages.on_taken = self._incoming.taken if value else None

    def _read_on(self) -> None:
        self._incoming.read_on()

    def _answer_message(self, message: Message) -> None:
        connection = self.connection
        status = self.session.acknowledge(message.mid, message.qos, message.epoch)
        if connection is not None:
            if status == errors.E_AGAIN:
                connection.flush()
                self.session.acknowledge(message.mid, message.qos, message.epoch)
            connection.push()

    async def _acknowledge(self, message: Message) -> None:
        message.acknowledged = True
        queue = self._unacknowledged
        connection = self.connection
        while queue and queue[0].acknowledged:
            self._answer_message(queue.popleft())
        if connection is not None and connection.paused:
            await connection.writable(self.timeout)
        # It is acknowledged when it is in the store.
        await self._outgoing.stored()
