"""A broker as a source: topics into the log, acknowledged when on disk, over as many connections as it takes."""

import asyncio
import logging
from typing import TYPE_CHECKING

from headwater import errors
from headwater_host.aio import Client, MqttError, Reconnect
from headwater_host.capture.format import MAX_FRAME
from headwater_host.connection import HOLD_GATE
from headwater_host.gateway.config import BrokerConfig
from headwater_host.gateway.landing import Acknowledgements, Landing
from headwater_host.gateway.source import Source

if TYPE_CHECKING:
    from headwater.fmq.decode import Frame
    from headwater.mqtt.decode import Packet

# For ever, whatever the broker says: who runs it may be mending it.
_RECONNECT = Reconnect(first=0.5, longest=30, refused=30, at_start=True)


class BrokerSource(Source):
    """Subscribes to the topics of ``config`` in a session that the broker keeps, and reconnects for ever."""

    def __init__(self, landing: Landing, config: BrokerConfig):
        route = config.route
        super().__init__(landing, f"mqtt:{route}")
        self._topics = config.topics
        # The client's own words would come twice.
        quiet = logging.getLogger("headwater.gateway.client")
        quiet.propagate = False
        quiet.addHandler(logging.NullHandler())
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
            reconnect=_RECONNECT,
            subscriptions=self._topics,
            logger=quiet,
        )
        self._client.before_attempts = self._before_attempts
        self._client.on_connection = self._on_connection
        session = self._client.session
        session.on_message = self._on_message
        session.sink = Skip(self)
        self._acknowledgements = Acknowledgements(landing, session, self._push, self._flush)
        self._stopping = False
        self._open = asyncio.Event()
        self._open.set()
        landing.on_gate(self._on_gate)

    def _push(self) -> None:
        if self._client.connection is not None:
            self._client.connection.push()

    def _flush(self) -> None:
        if self._client.connection is not None:
            self._client.connection.flush()

    def _on_gate(self, is_open: bool) -> None:
        connection = self._client.connection
        if is_open and not self._stopping:
            self._open.set()
            if connection is not None:
                connection.release(HOLD_GATE)
        else:
            self._open.clear()
            if connection is not None:
                connection.hold(HOLD_GATE)

    def _on_message(self, p: "Packet") -> None:
        number = self.land(p)
        if p.packet_id:
            self._acknowledgements.add(number, p.packet_id, p.qos())

    async def run(self) -> None:
        """Until cancelled: it then says DISCONNECT."""
        async with self._client as client:
            # No message ever comes this way.
            await client.messages.__anext__()

    async def _before_attempts(self) -> None:
        # What cannot be written is not asked for: a new connection would bring the same again.
        await self._open.wait()
        self.began()

    def _on_connection(self, error: MqttError | None) -> None:
        client = self._client
        if error is not None:
            if errors.blame(error.code) == errors.PEER:
                self.land_malformed(client.session)
            self.say("disconnected", str(error), logging.WARNING)
            return
        kept = "it kept our session" if client.session_present else "a new session"
        self.say("connected", f"connected, {kept}")
        if not self._open.is_set():
            self._on_gate(False)
        names = ", ".join(f"{topic} (QoS {qos})" for topic, qos in client.granted.items())
        self.say("subscribed", f"subscribed to {names}")

    def stop_reading(self) -> None:
        """Take nothing more, whatever the gate says."""
        self._stopping = True
        self._on_gate(False)


class Skip:
    """Where messages go that no record of the log can hold: acknowledged, counted and said."""

    def __init__(self, source: Source):
        self._source = source

    def open(self, packet: "Packet | Frame", size: int) -> bool:
        """As of ``headwater.types.Sink``: no."""
        source = self._source
        source.skipped += 1
        topic = packet.topic_text() or "a topic of its own size"
        source.say(source.state, f"skipped a message of {size} bytes on {topic}", logging.WARNING)
        return False

    def write(self, buf: "bytes | bytearray | memoryview", at: int, n: int) -> None:
        """Never called: nothing is taken."""

    def close(self, complete: bool) -> None:
        """Never called: nothing is taken."""
