"""The asyncio MQTT client.

    async with Client("broker.local", identifier="reader") as client:
        await client.subscribe("boards/#", qos=1)
        async for message in client.messages:
            print(message.topic, message.payload)
            await client.publish("seen", str(message.topic), qos=1)

The session lives in the client object. Entering the same client again after a lost connection resumes it:
unacknowledged messages at QoS 1 and 2 are retransmitted. With ``reconnect=True`` the client reconnects automatically,
and ``messages`` continues over all connections.
"""

import logging
import ssl
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater import errors
from headwater.mqtt import spec
from headwater_host.client.base import check_client, open_store, routes_of
from headwater_host.client.mqtt.messages import Message
from headwater_host.client.mqtt.options import Limits, ProtocolLevel, SessionOptions, Version
from headwater_host.client.mqtt.session import HostClientSession
from headwater_host.client.mqtt.subscriptions import Subscribing
from headwater_host.client.mqtt.versions import make_session, version_of
from headwater_host.client.options import ConnectionOptions
from headwater_host.client.payload import Will
from headwater_host.client.receive_path import RECEIVE_MAXIMUM
from headwater_host.client.reconnect import Reconnect
from headwater_host.client.route import Route, Tls
from headwater_host.client.session_config import session_config
from headwater_host.errors import ArgumentError, PublishError
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import topic_of

if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

#: The default of ``Limits.in_flight``: mosquitto closes a connection with more at QoS 2.
IN_FLIGHT = 20


class Client(Subscribing):
    """An MQTT client: a connection for the time of ``async with``, and a session that outlives it.

    - ``host``, ``port``: the broker. The default port is 1883, with TLS 8883, with WebSocket 80 or 443.
    - ``tls``: True to trust the CA certificates of the operating system, or a ``Tls``, or an ``ssl.SSLContext``.
      Certificate and host name are verified unless one of these says otherwise.
    - ``protocol``: the version, "3.1", "3.1.1" or "5.0"; or the protocol level, 3, 4 or 5.
    - ``identifier``: the client identifier; None for a random one. With ``""`` a broker of MQTT 5.0 assigns one: it is
      in the attribute ``identifier`` then, and used for reconnects. One that is assigned although an identifier was
      given is ignored, and logged as a warning.
    - ``username``, ``password``: the credentials.
    - ``will``: the message that the broker publishes if the client disconnects unexpectedly.
    - ``timeout``: how many seconds connecting, and each call, may take.
    - ``reconnect``: True, or a ``Reconnect``, to reconnect automatically. The client then subscribes again when the
      broker has lost the session, and ``messages`` continues. Calls wait for a connection for up to their ``timeout``;
      messages at QoS 1 and 2 are enqueued without one. When the client gives up, every waiting call raises the last
      error.
    - ``connection``: keep-alive, further brokers, WebSocket.
    - ``session``: whether broker and client keep the session, what to subscribe to, who acknowledges.
    - ``limits``: bounds of queues and packets, and what happens when there is no room.
    - ``logger``: by default the logger "headwater.client".

    The handlers ``on_connection`` and ``on_subscription_refused`` are attributes. Errors are ``ClientError`` and its
    subclasses (``headwater_host.errors``). A client must not be used from several threads; see
    ``headwater_host.client.blocking``.
    """

    session: HostClientSession

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        tls: Tls | ssl.SSLContext | bool | None = None,
        protocol: Version | ProtocolLevel = "3.1.1",
        identifier: str | None = None,
        username: str | None = None,
        password: str | bytes | None = None,
        will: Will | None = None,
        timeout: float = 10,
        reconnect: Reconnect | bool | None = None,
        connection: ConnectionOptions = ConnectionOptions(),
        session: SessionOptions = SessionOptions(),
        limits: Limits = Limits(),
        logger: logging.Logger | None = None,
    ):
        name = check_client(connection, session, limits, (SessionOptions, Limits), identifier, timeout)
        version = version_of(protocol)
        routes = routes_of(host, port, connection, lambda h, p: Route(h, p, tls, connection.websocket))
        store = open_store(session, identifier, version, limits.queued_outgoing)
        config = session_config(
            name, username, password, will, connection, session, limits, IN_FLIGHT, timeout, store
        )
        made = make_session(version, config, will, session, limits)
        super().__init__(made, routes, name, session, limits, timeout, reconnect, store, logger)
        self.protocol = version
        made.on_message = self._on_message
        if made.v5 is not None:
            made.v5.on_refused = self._on_refused
            made.v5.on_reason = self._send_path.reason
            made.on_message = self._on_message5
        #: The properties of CONNACK (MQTT 5.0).
        self.server_properties: Properties = {}
        #: Properties to send with DISCONNECT (MQTT 5.0).
        self.disconnect_properties: Properties | None = None
        # With ``auto_ack=False``: messages that the program has not acknowledged, oldest first.
        self._unacknowledged: deque[Message] = deque()

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_begin(self, session_present: bool) -> None:
        self.server_properties = self.session.said()
        self._take_identifier(self.server_properties.get("assigned_client_identifier"))
        if session_present:
            # The broker retransmits unacknowledged messages at QoS 1.
            epoch = self.session.epoch
            self.messages.forget(lambda m: m.qos == 1 and not m.acknowledged and m.epoch != epoch)
        # The broker retransmits messages at QoS 1; without a session it has forgotten those at QoS 2 as well.
        self._unacknowledged = deque(m for m in self._unacknowledged if m.qos == 2 and session_present)
        super()._on_begin(session_present)

    def _take_identifier(self, assigned: str | None) -> None:
        if not self.identifier:
            self.identifier = bytes(self.session.client_id).decode()
        elif assigned is not None and assigned != self.identifier:
            self.logger.warning(
                "the server assigned the client identifier %r; the client keeps %r", assigned, self.identifier
            )

    def _farewell(self) -> None:
        self.session.leave(self.disconnect_properties)

    # -- publishing ------------------------------------------------------------------------------------------------

    def _extra(self, properties: Properties | None, tags: Sequence[str]) -> Properties | None:
        if tags:
            raise ArgumentError("MQTT has no tags")
        return properties

    def _on_refused(self, packet_id: int, code: int) -> None:
        # The session refuses a message that exceeds a limit of CONNACK. There is no reason string then.
        why = "" if self.session.packet.head >> 4 == spec.CONNACK else self.session.why()
        error = PublishError(code, why)
        self.logger.warning("%s", error)
        self._send_path.delivered(packet_id, error=error)

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
            if self._receive_path.withholds and not self._receive_path.has_room(self.messages):
                return message
        elif self.session.auto_ack:
            message = Message(topic, payload, p.head, p.packet_id, epoch)
        else:
            message = Message(topic, payload, p.head, p.packet_id, epoch, self._acknowledge)
            waiting = self._receive_path.withheld if self.auto_ack else self._unacknowledged
            waiting.append(message)
            if len(waiting) > RECEIVE_MAXIMUM:
                self.session.fail(errors.E_RX_WINDOW)
        self.messages.put(message)
        return message

    def _on_message5(self, p: "Packet") -> None:
        # The waiting reader runs after the properties are set.
        self._on_message(p).properties = self.session.said()

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
        # The acknowledgement counts when the store has it.
        await self._send_path.stored()
