"""MQTT over WebSocket (MQTT 3.1.1 and 5.0, chapter 6): stands between a connection and its socket.

The frames are made and parsed by websockets' protocol without I/O, so that a connection writes, pauses and closes as
it does on a plain socket: no task, no queue of its own.
"""

import asyncio
import contextlib
import logging
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from headwater_host.client.rxbuf import MAX_PACKET
from headwater_host.errors import NotConnectedError

_MQTT = Subprotocol("mqtt")
# Frames of several packets are allowed; above that, no server means well.
_MAX_FRAME = MAX_PACKET + (1 << 16)
# How long the server may take to answer our close frame.
_CLOSE_S = 2.0
# Its debugging would show every frame, and so the password in CONNECT.
_quiet = logging.getLogger("headwater.client.websocket")
_quiet.setLevel(logging.WARNING)


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """The transport of ``inner``, and the protocol of a socket. ``opened`` is done when ``inner`` has its transport."""

    def __init__(self, inner: asyncio.BufferedProtocol, uri: str):
        super().__init__()
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._frames = ClientProtocol(
            parse_uri(uri), subprotocols=[_MQTT], max_size=_MAX_FRAME, logger=_quiet
        )
        self._net: asyncio.Transport | None = None
        self._connected = False
        self._closing = False
        self._why: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- what the socket's transport calls -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for WebSocket."""
        # uvloop's transports are no subclasses of asyncio's.
        self._net = cast(asyncio.Transport, transport)
        self._frames.send_request(self._frames.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        """Frames, or the answer to our request."""
        self._frames.receive_data(data)
        self._take()

    def eof_received(self) -> None:
        """The server has closed its direction: so do we."""
        self._frames.receive_eof()
        self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._net = None
        if self._timer is not None:
            self._timer.cancel()
        if self._connected:
            self._inner.connection_lost(exc or self._why)
        elif not self.opened.done():
            self.opened.set_exception(exc or NotConnectedError("the server hung up"))

    def pause_writing(self) -> None:
        """The socket has enough to send."""
        if self._connected:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The socket has room again."""
        if self._connected:
            self._inner.resume_writing()

    def _take(self) -> None:
        """Pass on what has arrived, and send what it makes us answer."""
        for event in self._frames.events_received():
            if not isinstance(event, Frame):
                if self._frames.state is OPEN:
                    self._accepted()
            elif event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._feed(memoryview(event.data))
            elif event.opcode is Opcode.TEXT:
                self._frames.fail(CloseCode.UNSUPPORTED_DATA)
                self._why = NotConnectedError("the server sent text over WebSocket")
                break
        if self._frames.parser_exc is not None and self._connected:
            self._why = self._why or NotConnectedError("the server broke WebSocket's protocol")
        self._send()
        if self._why is not None and self._net is not None:
            self._closing = True
            self._net.close()
        if self._frames.handshake_exc is not None and not self.opened.done():
            self._not_accepted(self._frames.handshake_exc)
        if self._frames.close_expected():
            self._expect_the_end()

    def _accepted(self) -> None:
        if self._frames.subprotocol != _MQTT:
            self._not_accepted(None)
        elif not self.opened.done():
            self._connected = True
            self.opened.set_result(None)
            self._inner.connection_made(self)

    def _not_accepted(self, error: Exception | None) -> None:
        why = "it does not speak MQTT there"
        if isinstance(error, InvalidStatus):
            why = f"HTTP status {error.response.status_code}"
        elif isinstance(error, EOFError) or (error is not None and isinstance(error.__cause__, EOFError)):
            why = "it hung up"
        elif error is not None:
            why = "its answer is none of WebSocket's"
        self.opened.set_exception(NotConnectedError(f"the server refuses WebSocket: {why}"))
        self.abort()

    def _feed(self, data: memoryview) -> None:
        while data and self._connected and self._net is not None and not self._net.is_closing():
            # Let go before it is parsed: the buffer may have to grow.
            with memoryview(self._inner.get_buffer(len(data))) as room:
                n = min(len(room), len(data))
                room[:n] = data[:n]
            self._inner.buffer_updated(n)
            data = data[n:]

    def _send(self) -> None:
        net = self._net
        for data in self._frames.data_to_send():
            if net is None or net.is_closing():
                return
            if data:
                net.write(data)
            elif net.can_write_eof():
                # The socket may be gone already.
                with contextlib.suppress(OSError):
                    net.write_eof()
            else:
                net.close()

    def _expect_the_end(self) -> None:
        """The server is to close the socket; it is not waited for it for ever."""
        if self._timer is None and self._net is not None:
            self._timer = self._loop.call_later(_CLOSE_S, self.abort)

    # -- what the connection calls ---------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a binary frame (6.0.0-1); frames and packets need not agree."""
        if not self._closing and self._frames.state is OPEN:
            self._frames.send_binary(bytes(data))
            self._send()

    def close(self) -> None:
        """Send what waits, and close by both sides' close frames."""
        if self._closing:
            return
        self._closing = True
        if self._frames.state is OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
            self._expect_the_end()
        elif self._net is not None:
            self._net.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._closing = True
        if self._net is not None:
            self._net.abort()

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self._closing or self._net is None or self._net.is_closing()

    def pause_reading(self) -> None:
        """Read nothing more from the socket."""
        if self._net is not None:
            self._net.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self._net is not None:
            self._net.resume_reading()

    def get_write_buffer_size(self) -> int:
        """How many bytes wait to be sent."""
        return 0 if self._net is None else self._net.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What the socket's transport knows."""
        return default if self._net is None else self._net.get_extra_info(name, default)
