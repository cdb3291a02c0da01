"""A board on a serial line as a source: the link's bytes, MQTT's server end over them, publications into the log.

The board publishes; what it subscribes to is refused, since nothing is routed here yet. Its session is kept as long as
the gateway runs, so QoS 2 goes into the log once, however often the line breaks.
"""

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from headwater import errors, reasons
from headwater.link.link import Link
from headwater.link.pump import Pump
from headwater.link.transitions import CLOSING as LINK_CLOSING
from headwater.link.transitions import UP
from headwater.mqtt import spec
from headwater.mqtt.server import SESSION_PRESENT
from headwater.mqtt.transitions import CLOSING
from headwater_host.capture.format import MAX_FRAME
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.landing import Acknowledgements, Landing
from headwater_host.gateway.source import Source
from headwater_host.serial_port import SerialPort, new_session, ticks_ms
from headwater_host.session import HostServerSession

if TYPE_CHECKING:
    from headwater.mqtt.decode import Packet
    from headwater.mqtt.decode_server import Connect

# How often a port that is not there is tried.
_RETRY_S = 1.0
# How often the session looks at the clock.
_TICK_S = 0.5
_WINDOW = 32
_CHUNK = 4096
# What a board may still send when the gate is closed, so that its pings are heard. At QoS 1 and 2 its window ends it.
_ALLOWANCE = 1 << 16


class Board(Source):
    """The board at ``config.port``, which may come and go."""

    def __init__(self, landing: Landing, config: SerialConfig):
        super().__init__(landing, f"serial:{config.port}")
        self._config = config
        self._session = session = HostServerSession(max_packet=MAX_FRAME)
        session.auto_ack = False
        session.on_connect = self._on_connect
        session.on_subscribe = lambda packet, qos: spec.SUBSCRIBE_FAILED
        session.on_message = self._on_message
        self._client_id: bytes | None = None
        self._acknowledgements = Acknowledgements(landing, session, self._push, self._push)
        landing.on_gate(self._on_gate)
        self._is_open = True
        self._stopping = False
        self._taken = 0
        self._up = False
        self._loop = asyncio.get_running_loop()
        self._port: SerialPort | None = None
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._link = Link(new_session())
        self._channel = self._link.channels[0]
        self._pump: Pump | None = None

    # -- the port --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Raises ImportError when pyserial is missing."""
        while True:
            try:
                port = SerialPort(self._config.port, self._config.baud)
            except OSError as error:
                self.say("absent", f"cannot be opened: {_text(error)}; trying again", logging.WARNING)
                await asyncio.sleep(_RETRY_S)
                continue
            self.say("open", "open, waiting for the board")
            try:
                await self._serve(port)
            except OSError as error:
                self.say("absent", f"the port is gone: {_text(error)}", logging.WARNING)
            finally:
                self._release()
            await asyncio.sleep(_RETRY_S)

    async def _serve(self, port: SerialPort) -> None:
        """Until the port breaks: raises OSError."""
        self._port = port
        self._broken = self._loop.create_future()
        self._link = Link(new_session(), window=_WINDOW)
        self._channel = self._link.channels[0]
        self._pump = Pump(port, self._link, ticks_ms, _CHUNK)
        self._channel.open()
        self._loop.add_reader(port.fileno(), self._work)
        self._work()
        await self._broken

    def _release(self) -> None:
        """Give the port back."""
        if self._timer is not None:
            self._timer.cancel()
        self._end_stream()
        port, self._port = self._port, None
        self._pump = None
        if port is not None:
            self._loop.remove_reader(port.fileno())
            self._loop.remove_writer(port.fileno())
            self._writing = False
            port.close()

    def _work(self) -> None:
        """Move what can be moved: the port has bytes or room, time has come, or there is an answer."""
        pump = self._pump
        if pump is None or self._port is None or self._broken.done():
            return
        try:
            pump.pump()
            self._move()
            pump.pump()
            if pump.error is not None:
                raise pump.error
        except Exception as error:
            # Of the port: it is waited for. Anything else is a fault of ours, and ends the gateway in order.
            self._broken.set_exception(error)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(min(_TICK_S, self._link.due() / 1000), self._work)
        writing = self._link.out_end > self._link.out_at
        if writing != self._writing:
            self._writing = writing
            if writing:
                self._loop.add_writer(self._port.fileno(), self._work)
            else:
                self._loop.remove_writer(self._port.fileno())

    def _push(self) -> None:
        self._work()

    # -- the stream and the session over it ------------------------------------------------------------------------

    def _move(self) -> None:
        """Between the stream and the session."""
        channel = self._channel
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
                self._drop("said goodbye" if session.graceful else "was refused")
        elif status == errors.E_CLOSED:
            if session.graceful:
                self._drop("said goodbye")
            else:
                self._drop("the link was lost", logging.WARNING)
        else:
            if errors.blame(status) == errors.PEER:
                self.land_malformed(session)
            self._drop(f"given up: {reasons.describe(status)}", logging.WARNING)

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
            n = self._channel.readinto(rx.view, room)
            if n is None:
                return 0
            if n == 0:
                return errors.E_CLOSED
            status = session.feed(n)
            if status:
                return status

    def _held(self) -> bool:
        return self._stopping or (not self._is_open and self._taken > _ALLOWANCE)

    def _write(self) -> None:
        """Hand the stream what the session has to say, as far as it takes it now."""
        session = self._session
        n = session.out()
        while n > 0:
            try:
                k = self._channel.write(session.out_buf, session.out_at, n)
            except OSError:
                # The stream has ended; reading it says so.
                return
            if not k:
                return
            session.sent(k)
            n = session.out()

    def _drop(self, text: str, level: int = logging.INFO) -> None:
        """The connection is over; wait for the next."""
        self.say("open", text, level)
        self._end_stream()
        self._channel.open()

    def _end_stream(self) -> None:
        if self._up:
            self._up = False
            self._session.lost()

    def _on_connect(self, connect: "Connect", p: "Packet") -> int:
        client_id = bytes(p.buf[connect.client_id_at : connect.client_id_end])
        # One port, one board: another one that is plugged in has a session of its own.
        kept = not connect.clean() and client_id == self._client_id
        self._client_id = None if connect.clean() else client_id
        name = client_id.decode() or "a board without a client id"
        self.say("connected", f"{name} connected{', its session was kept' if kept else ''}")
        return SESSION_PRESENT if kept else 0

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
            self._loop.call_soon(self._work)

    # -- the end ---------------------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Take nothing more, whatever the gate says."""
        self._stopping = True

    async def finish(self, seconds: float) -> None:
        """Send the answers that are due and end the stream: returns when the board has all that, or time is up."""
        deadline = self._loop.time() + seconds
        session = self._session
        channel = self._channel
        while self._up and (session.out() > 0 or channel.waiting()) and self._loop.time() < deadline:
            self._work()
            await asyncio.sleep(0.01)
        if not self._up:
            return
        self._end_stream()
        channel.close()
        while channel.state == LINK_CLOSING and not self._broken.done() and self._loop.time() < deadline:
            self._work()
            await asyncio.sleep(0.01)

    def status(self) -> dict[str, object]:
        """As of a source, with what the link counted."""
        link = self._link
        return super().status() | {
            "duplicates": self._session.duplicates,
            "link": {"damaged": link.damaged, "frames_in": link.frames_in, "frames_out": link.frames_out},
        }


def _text(error: OSError) -> str:
    # pyserial puts a sentence of its own around the system's.
    return os.strerror(error.errno) if error.errno else str(error)
