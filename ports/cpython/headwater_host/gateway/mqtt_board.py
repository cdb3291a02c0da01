"""A board on a serial line that speaks MQTT: the server's end of it, publications into the log.

The board publishes; what it subscribes to is refused and logged, since nothing is routed here yet. Its session is kept
as long as the gateway runs, so QoS 2 goes into the log once, however often the line breaks.
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
from headwater_host.gateway.recording import Acknowledgements, Landing
from headwater_host.gateway.serial_line import Line
from headwater_host.gateway.serial_port import ticks_ms

if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect

# What a board may still send when the gate is closed, so that its pings are heard. At QoS 1 and 2 its window ends it.
_ALLOWANCE = 1 << 16
# How many filters of a board are logged as refused.
_REFUSED = 100


class Board(Line):
    """The board at ``config.port``, which may come and go."""

    def __init__(self, landing: Landing, config: SerialConfig):
        super().__init__(landing, config)
        self._session = session = HostServerSession(max_packet=MAX_FRAME)
        session.auto_ack = False
        session.on_connect = self._on_connect
        session.on_subscribe = self._on_subscribe
        session.on_message = self._on_message
        self._client_id: bytes | None = None
        # Which board has connected, and which of its filters were refused, and logged.
        self._board = b""
        self._refused: set[bytes] = set()
        self._acknowledgements = Acknowledgements(landing, session, self.work, self.work, self.receipts)
        landing.on_gate(self._on_gate)
        self._is_open = True
        self._taken = 0
        self._up = False

    def move(self) -> None:
        """Between the stream and the session."""
        channel = self.channel
        session = self._session
        if not self._up:
            if channel.state != UP:
                return
            self._up = True
            self.began()
            session.listen(ticks_ms())
        session.now = ticks_ms()
        status = self._read()
        if status == 0:
            status = session.poll(ticks_ms())
        if status == 0:
            self._write()
            if session.state == CLOSING and not session.out():
                self.drop("said goodbye" if session.graceful else "was refused")
        elif status == errors.E_CLOSED:
            if session.graceful:
                self.drop("said goodbye")
            else:
                self.drop("the link was lost", logging.WARNING)
        else:
            if errors.blame(status) == errors.PEER:
                self.land_malformed(session)
            self.drop(f"given up: {reasons.describe(status)}", logging.WARNING)

    def _read(self) -> int:
        """Take what has come: 0, or why the connection is over; E_CLOSED when the stream is."""
        session = self._session
        rx = session.rx
        while True:
            if session.stalled:
                self._write()
                status = session.feed(0)
                if status or session.stalled:
                    return status
            if self._held():
                # Who does not listen cannot say that the board is silent.
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
        """Hand the stream what the session has to say, as far as it takes it now."""
        session = self._session
        n = session.out()
        while n > 0:
            try:
                k = self.channel.write(session.out_buf, session.out_at, n)
            except OSError:
                # The stream has ended; reading it says so.
                return
            if not k:
                return
            session.sent(k)
            n = session.out()

    def end_stream(self) -> None:
        """The session goes on without it."""
        if self._up:
            self._up = False
            self._session.lost()

    def _on_connect(self, connect: "Connect", p: "Packet") -> int:
        client_id = bytes(p.buf[connect.client_id_at : connect.client_id_end])
        # One port, one board: another one that is plugged in has a session of its own.
        kept = not connect.clean() and client_id == self._client_id
        if client_id != self._board:
            self._board = client_id
            self._refused.clear()
        self._client_id = None if connect.clean() else client_id
        self.receipts.began(kept)
        name = client_id.decode() or "a board without a client id"
        self.say("connected", f"{name} connected{', its session was kept' if kept else ''}")
        return SESSION_PRESENT if kept else 0

    def _on_subscribe(self, p: "Packet", qos: int) -> int:
        topic_filter = p.topic_bytes()
        if topic_filter not in self._refused and len(self._refused) < _REFUSED:
            self._refused.add(topic_filter)
            name = topic_filter.decode(errors="replace")
            text = (
                f"the subscription to {name} is refused: the gateway sends boards on MQTT lines no messages"
            )
            self.say(self.state, text, logging.WARNING)
        return spec.SUBSCRIBE_FAILED

    def _on_message(self, p: "Packet") -> None:
        number = self.land(p)
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
        """Whether there are answers that the board has not got yet."""
        return self._up and (self._session.out() > 0 or self.channel.waiting() > 0)

    def status(self) -> dict[str, object]:
        """As of a line, with what came again."""
        return super().status() | {"duplicates": self._session.duplicates}
