"""MQTT board on a serial line: the server's end of its session; records what the board publishes.

Subscriptions are refused and logged. The session is kept as long as the gateway runs, so a message at QoS 2 is recorded
once, even if the line breaks.
"""

import logging
from typing import TYPE_CHECKING

from headwater import errors, reasons
from headwater.connection import CLOSING
from headwater.link.link import UP
from headwater.mqtt import spec
from headwater.mqtt.server import SESSION_PRESENT
from headwater_host.capture.format import MAX_FRAME
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.recording import Acknowledgements, Recorder
from headwater_host.gateway.serial_line import SerialLine
from headwater_host.gateway.serial_port import ticks_ms

if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect

# Bytes that a board may send while the gate is closed, so that its pings are read. At QoS 1 and 2 its window stops it.
_ALLOWANCE = 1 << 16
# Maximum number of refused filters to log.
_REFUSED = 100


class MqttBoard(SerialLine):
    """The MQTT board at ``config.port``."""

    def __init__(self, recorder: Recorder, config: SerialConfig):
        super().__init__(recorder, config)
        self._session = session = HostServerSession(max_packet=MAX_FRAME)
        session.acks.automatic = False
        session.on_connect = self._on_connect
        session.on_subscribe = self._on_subscribe
        session.on_message = self._on_message
        self._client_id: bytes | None = None
        # The connected board, and its refused filters that are logged.
        self._board = b""
        self._refused: set[bytes] = set()
        self._acknowledgements = Acknowledgements(recorder, session, self.work, self.work, self.received)
        recorder.on_gate(self._on_gate)
        self._is_open = True
        self._taken = 0
        self._up = False

    def move(self) -> None:
        """Transfer data between the stream and the session."""
        channel = self.channel
        session = self._session
        if not self._up:
            if channel.state != UP:
                return
            self._up = True
            self.begin_connection()
            session.listen(ticks_ms())
        session.now = ticks_ms()
        status = self._read()
        if status == 0:
            status = session.poll(ticks_ms())
        if status == 0:
            self._write()
            if session.state == CLOSING and not session.out():
                self.drop("disconnected" if session.graceful else "was refused")
        elif status == errors.E_CLOSED:
            if session.graceful:
                self.drop("disconnected")
            else:
                self.drop("the link was lost", logging.WARNING)
        else:
            if errors.blame(status) == errors.PEER:
                self.record_malformed(session)
            self.drop(f"connection ended: {reasons.describe(status)}", logging.WARNING)

    def _read(self) -> int:
        """Read what has arrived. Return 0, or a code for why the connection ends: E_CLOSED when the stream ended."""
        session = self._session
        rx = session.rx
        while True:
            if session.stalled:
                self._write()
                status = session.feed(0)
                if status or session.stalled:
                    return status
            if self._held():
                # While nothing is read, the keep-alive timer must not expire.
                session.rx_time = session.now
                return 0
            room = rx.window()
            if not room:
                return 0
            n = self.channel.readinto(rx.view, room)
            if n is None:
                return 0
            if n == 0:
                return errors.E_CLOSED
            status = session.feed(n)
            if status:
                return status

    def _held(self) -> bool:
        return self.stopping or (not self._is_open and self._taken > _ALLOWANCE)

    def _write(self) -> None:
        """Write the session's output to the stream, as far as possible now."""
        session = self._session
        n = session.out()
        while n > 0:
            try:
                k = self.channel.write(session.out_buf, session.out_at, n)
            except OSError:
                # The stream has ended. Reading reports it.
                return
            if not k:
                return
            session.sent(k)
            n = session.out()

    def end_stream(self) -> None:
        """End the connection; keep the session."""
        if self._up:
            self._up = False
            self._session.lost()

    def _on_connect(self, connect: "Connect", p: "Packet") -> int:
        client_id = bytes(p.buf[connect.client_id_at : connect.client_id_end])
        # A board with another client identifier gets a new session.
        kept = not connect.clean_start() and client_id == self._client_id
        if client_id != self._board:
            self._board = client_id
            self._refused.clear()
        self._client_id = None if connect.clean_start() else client_id
        self.received.began(kept)
        name = client_id.decode() or "a board without a client identifier"
        self.report("connected", f"{name} connected{', with a kept session' if kept else ''}")
        return SESSION_PRESENT if kept else 0

    def _on_subscribe(self, p: "Packet", qos: int) -> int:
        topic_filter = p.topic_bytes()
        if topic_filter not in self._refused and len(self._refused) < _REFUSED:
            self._refused.add(topic_filter)
            name = topic_filter.decode(errors="replace")
            text = (
                f"the subscription to {name} is refused: the gateway sends boards on MQTT lines no messages"
            )
            self.report(self.state, text, logging.WARNING)
        return spec.SUBSCRIBE_FAILED

    def _on_message(self, p: "Packet") -> None:
        number = self.record_publish(p)
        if not self._is_open:
            self._taken += p.end - p.topic_at
        if p.packet_id:
            self._acknowledgements.add(number, p.packet_id, p.qos())

    def _on_gate(self, is_open: bool) -> None:
        self._is_open = is_open
        self._taken = 0
        if is_open:
            self.loop.call_soon(self.work)

    def unsent(self) -> bool:
        """Return whether answers for the board are unsent."""
        return self._up and (self._session.out() > 0 or self.channel.waiting() > 0)

    def status(self) -> dict[str, object]:
        """Return the line's statistics, with the duplicates at QoS 2, which are not recorded."""
        return super().status() | {"duplicates": self._session.duplicates}
