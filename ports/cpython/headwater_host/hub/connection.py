"""A client's connection: bytes into frames, frames into bytes, and its bounds. What frames mean is for ``Events``."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from headwater.errors import E_RX_TOO_LARGE
from headwater.fmq.frames import Frame, decode_fields, decode_header
from headwater.fmq.ids import MORE, id_end
from headwater.fmq.names import TYPES
from headwater.mqtt import spec5
from headwater_host.fmq.usual import usual
from headwater_host.hub import access, frames, requests
from headwater_host.hub.access import Access
from headwater_host.hub.clients import Client
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.leadership import Leadership
from headwater_host.hub.memory import Memory
from headwater_host.hub.metrics import Metric
from headwater_host.hub.observer import Observer

#: The longest body of a frame before AUTH has been accepted.
STRANGERS_FRAME = 64 << 10
#: Frames that are taken from a connection before others get their turn, and seconds.
_FRAMES = 256
_SECONDS = 0.004
#: Bytes to send that do not wait for the end of the event loop's turn.
_ENOUGH = 64 << 10

_logger = logging.getLogger("headwater.hub")


@dataclass
class Shared:
    """Shared objects of all connections of a hub."""

    loop: asyncio.AbstractEventLoop
    limits: ClientLimits
    access: Access
    memory: Memory
    #: Requests that were refused, by type; frames that were malformed.
    refused: Metric
    malformed: Metric
    observer: Observer | None
    leadership: Leadership = field(default_factory=Leadership)
    #: Work in progress, which is cancelled when the hub ends.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a coroutine."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


class Events(Protocol):
    """Events that a connection reports."""

    def opened(self, connection: "Connection") -> None:
        """A connection has been made."""

    def closed(self, connection: "Connection") -> None:
        """A connection has ended or is about to: nothing more is taken from it."""

    def gone(self, connection: "Connection") -> None:
        """The transport has ended. May be called twice."""

    def writable(self, client: Client) -> None:
        """A client can be sent more."""

    def frame(self, connection: "Connection", f: Frame, ident: bytes) -> None:
        """A well-formed frame has come. Raises RefusedError."""


class Connection(asyncio.Protocol):
    """One connection.

    Bytes are collected up to the end of the frame that is coming, whose size is checked first. While the client does
    not read, nothing is read from it and ``writable`` is false. So what is held for it is bounded by ``unread`` and the
    answers to one read; ``memory`` bounds the sum. With a ``context`` the connection begins with a TLS handshake, which
    must finish within the login timeout.
    """

    def __init__(self, shared: Shared, events: Events, context: ssl.SSLContext | None = None):
        self._shared = shared
        self._events = events
        self._context = context
        self._loop = shared.loop
        self._frame = Frame(b"", min(STRANGERS_FRAME, shared.limits.frame))
        self._rest = bytearray()
        # With fewer bytes than that there is nothing new to see.
        self._need = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._holds = 0
        #: Bytes that are held for it, as they were counted.
        self.weight = 0
        self._is_shed = False
        #: True if there are too many connections: its AUTH is refused.
        self.unwelcome = False
        self._transport: asyncio.Transport | None = None
        #: The client, once AUTH is accepted; the id of AUTH, once it has arrived.
        self.client: Client | None = None
        self.auth_id = b""
        self.user: str | None = None
        #: Topics by how they stand in frames: those that it may publish to.
        self.topics: dict[bytes, str] = {}
        #: What looks at its AUTH.
        self.login: asyncio.Task[None] | None = None
        #: The last change that is to be on the disk before it gets all its answers.
        self.asked = 0
        #: The last one of these that the observer is to have as well.
        self.observed = 0
        #: True if its AUTH has been answered.
        self.ready = False
        self.peer: access.Address = ip_address("127.0.0.1")
        #: The same with the port.
        self.address: tuple[str, int] | None = None
        #: Seconds of silence after which it is given up.
        self.patience = 0.0
        #: By the loop's clock: when it began, when something came last, since when nothing can be written, when it was
        #: closed.
        self.since = self.heard = self._loop.time()
        self.stuck: float | None = None
        self.closed: float | None = None
        # The frame that waits for ``move``.
        self._deferred = b""

    # -- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, with a TLS handshake if there is a context."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._shared.limits.unread)
        name = transport.get_extra_info("peername")
        if name:
            self.peer = access.address(name[0])
            self.address = name[:2]
        self._events.opened(self)
        if self._context is not None and self.closed is None:
            # What comes with the end of the handshake waits for ``_secure``.
            self._holds += 1
            self._shared.begin(self._secure(transport, self._context))

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        limits = self._shared.limits
        secured = None
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            secured = await self._loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=limits.login
            )
        if not isinstance(secured, asyncio.Transport) or self.closed is not None:
            self.abort()
            # asyncio does not report the end of a transport that was not made.
            self._events.gone(self)
            return
        self._transport = secured
        secured.set_write_buffer_limits(high=limits.unread)
        self.release()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport has ended."""
        self._end()
        self._events.gone(self)

    def pause_writing(self) -> None:
        """The client does not read: read nothing from it."""
        self.stuck = self._loop.time()
        self.hold()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.stuck = None
        self.release()
        if self.client is not None and self.closed is None:
            self._events.writable(self.client)

    def data_received(self, data: bytes) -> None:
        """Handle the frames that are complete."""
        if self.closed is not None:
            return
        self.heard = self._loop.time()
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                self.weigh()
                return
            data = bytes(self._rest)
            self._rest.clear()
        self._parse(data)
        if self._rest or self.weight:
            self.weigh()

    # -- in ----------------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        f = self._frame
        f.buf = f.value.buf = data
        at, end = 0, len(data)
        need = 0
        left, until = _FRAMES, self._loop.time() + _SECONDS
        while at < end and not self._holds and self.closed is None:
            if not left or (not left & 15 and self._loop.time() > until):
                # Let other connections have their turn.
                self.hold()
                self._loop.call_soon(self.release)
                break
            left -= 1
            stop = usual(f, data, at, end)
            if not stop:
                stop = decode_header(f, at, end)
                if stop == MORE or stop > end:
                    need = 1 + end - at if stop == MORE else stop - at
                    break
                bad = stop if stop < 0 else decode_fields(f)
                if bad:
                    self._malformed(bad, data, at, stop)
                    return
            at = stop
            self._dispatch(f)
        if at < end and self.closed is None:
            self._rest += memoryview(data)[at:]
            self._need = need
        f.buf = f.value.buf = b""

    def _dispatch(self, f: Frame) -> None:
        ident = bytes(f.buf[f.id_at : f.id_end])
        try:
            self._events.frame(self, f, ident)
        except RefusedError as error:
            self.refuse(TYPES[f.head >> 4], ident, error)
        except Exception:
            _logger.exception("a frame of %s could not be handled", self.peer)
            self.close(spec5.UNSPECIFIED_ERROR)

    def refuse(self, kind: str, ident: bytes, error: RefusedError) -> None:
        """Answer a request with a reason code; a protocol error ends the connection."""
        self._shared.refused.add(1, kind)
        if error.reason == spec5.PROTOCOL_ERROR:
            self.close(error.reason, str(error), ident)
        else:
            self.send(frames.refusal(ident, error.reason, str(error)))

    def _malformed(self, bad: int, data: bytes, at: int, end: int) -> None:
        """Answer a malformed frame under its id or that of AUTH, and close. ``end``: the end of its body, if known."""
        reason = spec5.PACKET_TOO_LARGE if bad == E_RX_TOO_LARGE else spec5.MALFORMED_PACKET
        stop = id_end(data, at + 1, len(data))
        self._shared.malformed.add()
        if self._shared.observer is not None and self.client is not None:
            self._shared.observer.broke(self, data[at : end if end > 0 else len(data)])
        self.close(reason, ident=data[at + 1 : stop] if stop > 0 else self.auth_id)

    @property
    def held(self) -> bool:
        """True if its frames are not handled at present."""
        return self._holds > 0

    @property
    def unfinished(self) -> bool:
        """True if the rest of a frame is missing."""
        return bool(self._rest) and not self._holds

    def hold(self) -> None:
        """Handle no more frames until ``release`` is called as often."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None and self.closed is None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Undo one ``hold``."""
        self._holds -= 1
        # The hub did not read, so the client was not silent.
        self.heard = self._loop.time()
        if self._holds or self._transport is None or self.closed is not None:
            return
        self._transport.resume_reading()
        if self._rest:
            data = bytes(self._rest)
            self._rest.clear()
            self._parse(data)

    def may(self, kind: str, topic: str) -> bool:
        """Return whether the rules allow its user a request of this type about a topic, from its address."""
        return self._shared.access.allows(kind, topic, self.user, self.peer)

    def check(self, kind: str, topic: str) -> None:
        """Raise RefusedError unless ``may`` allows it."""
        self._shared.access.check(kind, topic, self.user, self.peer)

    def check_any(self, kind: str) -> None:
        """Raise RefusedError unless the rules allow its user a request of this type that names no topic."""
        self._shared.access.check(kind, None, self.user, self.peer)

    def trust(self) -> None:
        """Allow frames of the full size: AUTH was accepted."""
        self._frame.limit = self._shared.limits.frame

    def defer(self, data: bytes) -> None:
        """Handle a frame only after ``move``; nothing more is taken until then."""
        self.hold()
        self._deferred = data

    def move(self, shared: Shared, events: Events) -> None:
        """Continue with other events, as if it had just been made; the deferred frame comes first."""
        deferred, self._deferred = self._deferred, b""
        self._shared, self._events = shared, events
        self._frame.limit = min(STRANGERS_FRAME, shared.limits.frame)
        self.auth_id = b""
        self.since = self._loop.time()
        events.opened(self)
        if deferred and self.closed is None:
            self._rest[:0] = deferred
            self._need = 0
            self.release()

    # -- out ---------------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """True if it may be sent what can wait."""
        return self.stuck is None and self.closed is None

    @property
    def unread(self) -> int:
        """Bytes that were written and that the client has not read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, data: bytes) -> None:
        """Send a frame at the end of the event loop's turn, unless the connection is closed."""
        if self.closed is not None:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size >= _ENOUGH:
            self._flush()
        elif len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if not self._shared.leadership.leads():
            # What was to be sent may be another hub's to send by now.
            self._out.clear()
            self._out_size = 0
        self._write()

    def _write(self) -> None:
        if self._out and self._transport is not None:
            out, self._out, self._out_size = self._out, [], 0
            self._transport.write(b"".join(out))
            if self._transport.get_write_buffer_size() or self.weight:
                self.weigh()

    def send_always(self, data: bytes) -> None:
        """Send a frame at once, whether this hub leads or not."""
        if self.closed is None:
            self._flush()
            self._out.append(data)
            self._write()

    # -- memory ------------------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Return the bytes that are held for it."""
        if self._is_shed and self.closed is None:
            # It is closed in the next turn, which frees its client's waiting messages. If they still counted, it could
            # be shed again, or another connection in its place.
            return 0
        load = len(self._rest) + self.unread
        return load + self.client.waiting() if self.client is not None else load

    def weigh(self) -> None:
        """Measure what is held for it."""
        self._shared.memory.weigh(self)

    def shed(self) -> None:
        """Close it: the hub holds too much, and most of it for this connection."""
        self._is_shed = True
        self._rest.clear()
        if self.unread and self._transport is not None:
            # A reason would not arrive; ``connection_lost`` does the rest.
            self._transport.abort()
        else:
            self.hold()
            text = "the hub holds too much, and most of it for this client"
            self._loop.call_soon(self.close, spec5.QUOTA_EXCEEDED, text)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, reason: int = 0, text: str = "", ident: bytes = b"") -> None:
        """Close it, with an ACK that has the reason: to its AUTH, unless ``ident`` is given."""
        ident = ident or self.auth_id
        if self.closed is None and self._transport is not None:
            self._flush()
            if reason and ident:
                self.send_always(frames.refusal(ident, reason, text))
            if reason and not self.unread and self._transport.can_write_eof():
                self._linger(self._transport)
            else:
                self._transport.close()
        self._end()

    @staticmethod
    def _linger(transport: asyncio.Transport) -> None:
        """Let the client close first, and drop what it sends: closing with unread bytes would destroy the reason."""
        try:
            transport.write_eof()
        except OSError:
            transport.abort()
        else:
            transport.resume_reading()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.closed is None:
            self.closed = self._loop.time()
            self._out.clear()
            self._rest.clear()
            if self.login is not None:
                self.login.cancel()
            self._events.closed(self)


def on_elect(shared: Shared, connection: Connection, f: Frame, ident: bytes) -> None:
    """Answer ELECT with what this hub knows of the leader. A hub that sends it need not log in. Raises RefusedError."""
    shared.access.check("ELECT", None, connection.user, connection.peer)
    request = requests.elect(f)
    connection.send_always(
        frames.elected(ident, shared.leadership.elect(request.candidate, request.announced))
    )
