"""MQTT broker as a source: record its topics, acknowledge messages when on disk, reconnect for ever."""

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater import errors
from headwater.mqtt import spec, spec5
from headwater_host.capture.format import MAX_FRAME
from headwater_host.client.mqtt import Client, ConnectionOptions, Limits, SessionOptions, Version
from headwater_host.client.reconnect import Pauses
from headwater_host.errors import ClientError, ConnectRefusedError
from headwater_host.gateway.client_source import QUIET, RECONNECT, ClientSource, Skip
from headwater_host.gateway.config import BrokerConfig
from headwater_host.gateway.duplicates import ReceivedIds
from headwater_host.gateway.full_window import FullWindow
from headwater_host.gateway.recording import Acknowledgements, Recorder

if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

#: The version that is tried first, and the one for brokers that refuse it.
FIRST: Version = "5.0"
FALLBACK: Version = "3.1.1"
# How a broker refuses each version.
_REFUSALS = {FIRST: spec5.UNSUPPORTED_PROTOCOL_VERSION, FALLBACK: spec.BAD_LEVEL}
# What each version means for a burst.
_LIMITS = {
    FIRST: "where receive_maximum limits what is in flight",
    FALLBACK: "where its own settings limit what is in flight",
}
# What to change when a broker waits for acknowledgements.
_WINDOWS = {
    FIRST: "raise receive_maximum",
    FALLBACK: "raise its limits (mosquitto: max_inflight_messages, max_queued_messages), or use MQTT 5.0",
}
# A broker that closes this number of consecutive connections without answering CONNECT may not know the version.
_UNANSWERED = 2
# 65,535 is announced by leaving it out, and mosquitto then has 20 messages in flight.
_ANNOUNCED = 65534
# A broker that keeps a session for less does not keep it for ever, as CONNECT asks.
_YEAR_S = 365 * 86400
# Mosquitto 2.0.11 exceeds the receive maximum. What that costs is bounded by the gate.
_RECEIVE_LIMIT = 65535


class BrokerSource(ClientSource):
    """Subscribes to the topics of ``config`` in a session that the broker keeps, and reconnects for ever.

    ``config`` may set the version of MQTT. Otherwise the source speaks 5.0, where its Receive Maximum limits the
    messages in flight, or 3.1.1 to a broker that refuses 5.0, where the broker's settings limit them.
    """

    _client: Client

    def __init__(self, recorder: Recorder, config: BrokerConfig):
        super().__init__(recorder, f"mqtt:{config.route}")
        self._config = config
        self._change = asyncio.Event()
        self._pauses = Pauses(RECONNECT)
        # Versions for which the log has said that they are tried.
        self._told: set[str] = set()
        self._full_window = FullWindow()
        self._told_full_window = False
        # For how many seconds the broker keeps the session, if it limits that: what the log has said.
        self._told_expiry = -1
        self._use(config.protocol or FIRST)

    def _use(self, protocol: Version) -> None:
        """Start with a version of MQTT: a new client, and a new session object."""
        config = self._config
        limits = Limits(queued_incoming=None, queued_outgoing=1)
        if protocol == FIRST:
            limits = replace(
                limits, receive_maximum=min(config.receive_maximum, _ANNOUNCED), receive_limit=_RECEIVE_LIMIT
            )
        self.protocol = protocol
        # For this version: how many consecutive CONNECTs got no answer, and whether the broker has accepted one.
        self._unanswered = 0
        self._accepted = False
        self._client = Client(
            config.host,
            config.port,
            protocol=protocol,
            tls=config.tls,
            identifier=config.client_id,
            username=config.username,
            password=config.password,
            timeout=config.timeout,
            reconnect=RECONNECT,
            connection=ConnectionOptions(keepalive=config.keepalive, websocket=config.websocket),
            session=SessionOptions(clean_start=False, auto_ack=False, subscriptions=config.topics),
            limits=limits,
            logger=QUIET,
        )
        self._client.before_attempts = self._before_attempts
        self._client.on_connection = self._on_connection
        self._client.on_subscription_refused = lambda error: self.report(
            "refused", str(error), logging.WARNING
        )
        session = self._client.session
        # Not announced as the maximum packet size: the broker would drop larger messages, and nothing would count them.
        session.rx.capacity = MAX_FRAME
        session.on_message = self._on_message
        session.sink = Skip(self)
        self._epoch = session.epoch
        # A new session object does not know what the session before has received.
        self.received = received = ReceivedIds()
        connected = session.on_online

        def on_online(session_present: bool) -> None:
            # Called before the first message of the connection.
            received.began(session_present)
            if connected is not None:
                connected(session_present)

        session.on_online = on_online
        self._acknowledgements = Acknowledgements(self.recorder, session, self._push, self._flush, received)

    def _on_message(self, p: "Packet") -> None:
        number = self.record_publish(p)
        if p.packet_id:
            self._full_window.arrived()
            self._acknowledgements.add(number, p.packet_id, p.qos())

    def _push(self) -> None:
        super()._push()
        if self._full_window.acknowledged() and not self._told_full_window:
            self._told_full_window = True
            self.report(
                self.state,
                f"the broker sends nothing until messages are acknowledged, which takes the disk "
                f"{self._full_window.seconds * 1000:.0f} ms for {self._full_window.messages} messages; "
                f"it may drop messages meanwhile: {_WINDOWS[self.protocol]}",
                logging.WARNING,
            )

    def _on_gate(self, is_open: bool) -> None:
        self._full_window.reset()
        super()._on_gate(is_open)

    async def run(self) -> None:
        """Serve until cancelled; then send DISCONNECT."""
        while True:
            serving = asyncio.ensure_future(self._serve())
            changing = asyncio.ensure_future(self._change.wait())
            try:
                await asyncio.wait({serving, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changing.cancel()
                serving.cancel()
                await asyncio.gather(serving, changing, return_exceptions=True)
            if not self._change.is_set():
                serving.result()
            self._change.clear()
            # Do not connect without a pause to a server that closes every connection.
            await asyncio.sleep(self._pauses.failed(ClientError()))
            self._use(self._other())

    def _other(self) -> Version:
        """Return the version that is not in use."""
        return FALLBACK if self.protocol == FIRST else FIRST

    async def _serve(self) -> None:
        async with self._client as client:
            # Never returns a message: `_on_message` gets them all.
            await client.messages.__anext__()

    async def _before_attempts(self) -> None:
        await super()._before_attempts()
        self._epoch = self._client.session.epoch

    def _on_connection(self, error: ClientError | None) -> None:
        client = self._client
        if error is not None:
            if errors.blame(error.code) == errors.PEER:
                self.record_malformed(client.session)
            self.report("disconnected", str(error), logging.WARNING)
            self._full_window.reset()
            self._judge(error)
            return
        self._accepted = True
        self._pauses = Pauses(RECONNECT)
        session = "a kept session" if client.session_present else "a new session"
        self._connected(f"connected, {session}, MQTT {self.protocol}")
        self._tell_expiry()
        names = ", ".join(f"{topic} (QoS {qos})" for topic, qos in client.granted.items())
        self.report("subscribed", f"subscribed to {names}")

    def _judge(self, error: ClientError) -> None:
        """Try the other version when the broker refuses this one, or closes connections without an answer."""
        if self._config.protocol:
            return
        if isinstance(error, ConnectRefusedError):
            if error.return_code == _REFUSALS[self.protocol]:
                self._tell("refuses")
                self._change.set()
            return
        # Otherwise there was no connection at all.
        connected = self._client.session.epoch != self._epoch
        if self._accepted or not connected or error.code != errors.E_CLOSED:
            self._unanswered = 0
            return
        self._unanswered += 1
        if self._unanswered == _UNANSWERED:
            self._tell("does not answer")
            self._change.set()

    def _tell(self, what: str) -> None:
        other = self._other()
        if other not in self._told:
            self._told.add(other)
            self.report(
                self.state,
                f"the broker {what} MQTT {self.protocol}: trying {other}, {_LIMITS[other]}",
                logging.WARNING,
            )

    def _tell_expiry(self) -> None:
        """Log once for how long the broker keeps the session if that is less than CONNECT asks for."""
        session = self._client.session
        if session.v5 is None:
            return
        seconds = session.v5.limits[spec5.SESSION_EXPIRY_INTERVAL]
        if seconds == self._told_expiry or not 0 <= seconds < _YEAR_S:
            return
        self._told_expiry = seconds
        self.report(
            self.state,
            f"the broker keeps the session for only {seconds} s: messages are lost when the gateway is disconnected "
            "for longer; raise the broker's limit of the session expiry, or set protocol to 3.1.1",
            logging.WARNING,
        )

    def status(self) -> dict[str, Any]:
        """Return the source's statistics, with the MQTT version and the number of cycles that the broker waited."""
        return super().status() | {"protocol": self.protocol, "full_windows": self._full_window.cycles}
