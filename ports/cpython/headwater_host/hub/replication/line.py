"""A slave's connection to its leader: FMQ frames over TCP, one connection after the other."""

import asyncio
import contextlib
import itertools
import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from headwater.fmq import spec
from headwater.fmq.frames import Frame, decode_fields, decode_header
from headwater.fmq.ids import MORE
from headwater.mqtt import spec5
from headwater_host.fmq import address
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import encode
from headwater_host.hub import frames, requests
from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication.wire import CHANGES
from headwater_host.timeouts import within

#: Client ids of slaves begin with this; the name of the hub follows. They have no session and no process number.
SLAVE = "$slave/"
#: Seconds between attempts to connect, and for one of them.
RETRY = 1.0
CONNECT = 10.0
#: Seconds between PINGREQs, and of silence after which a connection is given up.
PING = 2.0
SILENCE = 10.0
#: Bytes that a payload may exceed the largest message.
_MORE = 1 << 20

_logger = logging.getLogger("headwater.hub")


class Half(Protocol):
    """One use of a connection: a slave's ``Follower``, or a leader that tells another one of its epoch."""

    def begin(self, send: Callable[[bytes], None]) -> None:
        """The other hub has accepted SLAVEOF."""

    def received(self, data: bytes) -> None:
        """A payload has come. Raises StorageError to end the connection."""

    def lost(self) -> None:
        """The connection has ended."""


class Line(asyncio.Protocol):
    """One connection. ``own`` and ``peer`` are the addresses for SLAVEOF."""

    def __init__(
        self,
        half: Half,
        name: str,
        login: tuple[str, str] | None,
        own: address.Address,
        peer: address.Address,
        limit: int,
    ):
        self._half = half
        self._name = name
        self._login = login
        self._addresses = address.encode(peer) + address.encode(own)
        self._frame = Frame(b"", limit + _MORE)
        self._rest = bytearray()
        self._need = 0
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(time.time_ns())
        # No id of another connection: the thread number is random.
        thread = os.urandom(4)
        self._thread = bytes((4 << 4 | thread[0] & 15,)) + thread
        self._asked = b""
        self._heard = time.monotonic()
        #: Set when it has ended, and why.
        self.ended = asyncio.Event()
        self.why = ""
        #: The address of the leader, if the other hub does not lead and names it.
        self.moved = ""

    def _id(self, kind: int) -> bytes:
        return bytes((kind << 4,)) + self._thread + encode(DateTime(next(self._ids)))

    # -- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Log in."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = time.monotonic()
        user, password = self._login or (None, None)
        self._asked = self._id(spec.AUTH)
        values = (SLAVE + self._name, user, password, int(SILENCE), True)
        transport.write(frames.framed(spec.AUTH << 4, self._asked, b"".join(map(encode, values))))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.why = self.why or (str(exc) if exc else "the other hub closed the connection")
        self._half.lost()
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        """Handle the frames that are complete."""
        self._heard = time.monotonic()
        self._rest += data
        if len(self._rest) < self._need:
            return
        found = bytes(self._rest)
        try:
            at = self._parse(found)
        except StorageError as error:
            self.close(str(error))
            return
        del self._rest[:at]

    def _parse(self, data: bytes) -> int:
        f, at, self._need = self._frame, 0, 0
        f.buf = f.value.buf = data
        while at < len(data) and not self.why:
            stop = decode_header(f, at, len(data))
            if stop == MORE or stop > len(data):
                self._need = 0 if stop == MORE else stop - at
                break
            if stop < 0 or decode_fields(f) < 0:
                raise StorageError("a malformed frame")
            self._handle(f)
            at = stop
        return at

    def _handle(self, f: Frame) -> None:
        kind = f.kind()
        if kind == spec.PUBLISH and requests.topic(f) == CHANGES:
            self._half.received(requests.payload(f))
        elif kind == spec.PINGREQ:
            self._write(frames.ack(bytes(f.buf[f.id_at : f.id_end])))
        elif kind == spec.ACK:
            self._answered(bytes(f.buf[f.id_at : f.id_end]), f)

    def _answered(self, ident: bytes, f: Frame) -> None:
        code = max(f.code, 0)
        if code:
            self.moved = requests.refusal_text(f) if code == spec5.SERVER_MOVED else ""
            self.close(f"refused with 0x{code:02X}: {requests.refusal_text(f)}")
        elif ident == self._asked and ident[0] >> 4 == spec.AUTH:
            self._asked = self._id(spec.SLAVEOF)
            self._write(frames.framed(spec.SLAVEOF << 4, self._asked, self._addresses))
        elif ident == self._asked and ident[0] >> 4 == spec.SLAVEOF:
            self._half.begin(self.send)

    # -- out ---------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send a payload."""
        self._write(frames.publish(self._id(spec.PUBLISH), frames.message(CHANGES, (), data)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self, why: str) -> None:
        """End it."""
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

    async def watch(self) -> None:
        """Wait for its end; end it when the other hub is silent."""
        while not self.ended.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await within(PING, self.ended.wait())
            if time.monotonic() - self._heard > SILENCE:
                self.close(f"the other hub has been silent for {SILENCE:.0f} s")
            self._write(frames.bare(spec.PINGREQ, self._id(spec.PINGREQ)))


async def connect(make: Callable[[], Line], at: str, tls: ssl.SSLContext | None) -> Line:
    """Connect to HOST:PORT, and return the connection when it has ended. Raises OSError."""
    host, _, port = at.rpartition(":")
    loop = asyncio.get_running_loop()
    line = make()
    try:
        try:
            await within(CONNECT, loop.create_connection(lambda: line, host.strip("[]"), int(port), ssl=tls))
        except asyncio.TimeoutError:
            raise OSError(f"no connection to {at} within {CONNECT:.0f} s") from None
        await line.watch()
    finally:
        line.close("this hub ends the connection")
    return line
