"""MQTT over WebSocket (MQTT 3.1.1 and 5.0, chapter 6): a transport between a connection and its socket.

The package websockets encodes and decodes the frames without I/O, so a connection writes, pauses and closes as on a
plain socket, without a task or queue in between.
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
# A frame may contain several packets. A larger one is an error of the server.
_MAX_FRAME = MAX_PACKET + (1 << 16)
# How long, in seconds, the server may take to answer a close frame.
_CLOSE_S = 2.0
# Debug messages of websockets would show each frame, and so the password in CONNECT.
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
        """Send the opening handshake."""
        # uvloop's transports are no subclasses of asyncio's.
        self._net = cast(asyncio.Transport, transport)
        self._frames.send_request(self._frames.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        """Process frames, or the answer to the handshake."""
        self._frames.receive_data(data)
        self._take()

    def eof_received(self) -> None:
        """Close, because the server has closed its direction."""
        self._frames.receive_eof()
        self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the socket."""
        self._net = None
        if self._timer is not None:
            self._timer.cancel()
        if self._connected:
            self._inner.connection_lost(exc or self._why)
        elif not self.opened.done():
            self.opened.set_exception(exc or NotConnectedError("the server closed the connection"))

    def pause_writing(self) -> None:
        """Pause the connection: the socket's write buffer is full."""
        if self._connected:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Resume the connection: the socket's write buffer has room."""
        if self._connected:
            self._inner.resume_writing()

    def _take(self) -> None:
        """Forward received packets, and send the frames that answer them."""
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

    def can_write_eof(self) -> bool:
        """Return False: a close frame ends both directions."""
        return False

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
            why = "it closed the connection"
        elif error is not None:
            why = "its answer is not WebSocket"
        self.opened.set_exception(NotConnectedError(f"the server refuses WebSocket: {why}"))
        self.abort()

    def _feed(self, data: memoryview) -> None:
        while data and self._connected and self._net is not None and not self._net.is_closing():
            # Release the view before parsing, because the buffer may have to grow.
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
                # The socket may have ended already.
                with contextlib.suppress(OSError):
                    net.write_eof()
            else:
                net.close()

    def _expect_the_end(self) -> None:
        """Abort if the server does not close the socket in time."""
        if self._timer is None and self._net is not None:
            self._timer = self._loop.call_later(_CLOSE_S, self.abort)

    # -- what the connection calls ---------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a binary frame (6.0.0-1); frames and packets need not agree."""
        if not self._closing and self._frames.state is OPEN:
            self._frames.send_binary(bytes(data))
            self._send()

    def close(self) -> None:
        """Send what is buffered, and close by the closing handshake."""
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
        """Return whether the transport is closing or closed."""
        return self._closing or self._net is None or self._net.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self._net is not None:
            self._net.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the socket."""
        if self._net is not None:
            self._net.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return 0 if self._net is None else self._net.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return information of the socket's transport."""
        return default if self._net is None else self._net.get_extra_info(name, default)
