"""A broker as a source: topics into the log, acknowledged when on disk, over as many connections as it takes."""

import logging
from typing import TYPE_CHECKING

from headwater import errors
from headwater_host.aio import Client, MqttError
from headwater_host.capture.format import MAX_FRAME
from headwater_host.gateway.client import QUIET, RECONNECT, ClientSource, Skip
from headwater_host.gateway.config import BrokerConfig
from headwater_host.gateway.landing import Acknowledgements, Landing

if TYPE_CHECKING:
    from headwater.mqtt.decode import Packet


class BrokerSource(ClientSource):
    """Subscribes to the topics of ``config`` in a session that the broker keeps, and reconnects for ever."""

    _client: Client

    def __init__(self, landing: Landing, config: BrokerConfig):
        route = config.route
        super().__init__(landing, f"mqtt:{route}")
        self._topics = config.topics
        self._client = Client(
            config.host,
            config.port,
            tls=config.tls,
            websocket=config.websocket,
            identifier=config.client_id,
            username=config.username,
            password=config.password,
            clean_session=False,
            keepalive=config.keepalive,
            timeout=config.timeout,
            max_queued_incoming_messages=None,
            max_queued_outgoing_messages=1,
            max_packet_size=MAX_FRAME,
            auto_ack=False,
            reconnect=RECONNECT,
            subscriptions=self._topics,
            logger=QUIET,
        )
        self._client.before_attempts = self._before_attempts
        self._client.on_connection = self._on_connection
        self._client.on_subscription_refused = lambda error: self.say("refused", str(error), logging.WARNING)
        session = self._client.session
        session.on_message = self._on_message
        session.sink = Skip(self)
        self._acknowledgements = Acknowledgements(landing, session, self._push, self._flush)

    def _on_message(self, p: "Packet") -> None:
        number = self.land(p)
        if p.packet_id:
            self._acknowledgements.add(number, p.packet_id, p.qos())

    async def run(self) -> None:
        """Until cancelled: it then says DISCONNECT."""
        async with self._client as client:
            # No message ever comes this way.
            await client.messages.__anext__()

    def _on_connection(self, error: MqttError | None) -> None:
        client = self._client
        if error is not None:
            if errors.blame(error.code) == errors.PEER:
                self.land_malformed(client.session)
            self.say("disconnected", str(error), logging.WARNING)
            return
        kept = "it kept our session" if client.session_present else "a new session"
        self._connected(f"connected, {kept}")
        names = ", ".join(f"{topic} (QoS {qos})" for topic, qos in client.granted.items())
        self.say("subscribed", f"subscribed to {names}")
