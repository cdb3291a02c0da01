"""Run a session of the core over an asyncio transport.

Received bytes are read into the session's buffer and parsed there (``asyncio.BufferedProtocol``). All answers to one
read leave in one write, as do the packets that a program sends within one turn of the event loop. The first packet of a
turn leaves at once.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from headwater.connection import CLOSING, ONLINE
from headwater.errors import E_CLOSED, E_STORE

if TYPE_CHECKING:
    from headwater.connection import RxBuf
    from headwater.types import Bytes, Outbox

#: The longest time in seconds between two checks of the clock.
TICK = 0.5
# Seconds to wait, after the last packet, for the server to close the connection.
_FAREWELL_S = 1.0
# How many bytes a connection that has ended reads at once, to ignore them.
_IGNORED = 4096
# With more unsent bytes reading pauses, because received packets cause answers.
_BACKLOG = 1 << 20
# How many bytes may wait for the end of the turn.
_BURST = 1 << 16

#: Reasons to pause reading: the application's queue is full; the peer does not read; the gateway's log is full.
HOLD_APPLICATION = 1
HOLD_BACKLOG = 2
HOLD_GATE = 4


#: Packets that wait for the transport.
Chunks = list[bytes | bytearray | memoryview]


class Store(Protocol):
    """An outbox that outlives the process (``headwater_host.client.store.SqliteOutbox``)."""

    position: int
    durable: int

    @property
    def unsynced(self) -> bool:
        """True if a change is not committed yet."""
        ...

    def begin_commit(self, done: Callable[[int], object], /) -> None:
        """Commit all changes so far; then call ``done(0)`` or ``done(E_STORE)`` on the event loop."""
        ...


class Driven(Protocol):
    """A session as a connection uses it; the methods are those of ``headwater.connection.Endpoint``."""

    state: int
    status: int
    #: Seconds, 0 for none; whether a ping is unanswered.
    keep_alive: int
    pinged: bool
    now: int
    rx_time: int
    tx_time: int
    stalled: bool
    rx: "RxBuf"
    outbox: "Outbox"
    out_buf: "Bytes"
    out_at: int
    #: Takes whole packets that can leave at once.
    frames: Chunks | None

    def feed(self, n: int, /) -> int:
        """Decode ``n`` more bytes. Returns 0, or the error that ended the connection."""
        ...

    def poll(self, now_ms: int, /) -> int:
        """Check the timeouts. Returns 0 or E_TIMEOUT."""
        ...

    def fail(self, code: int, /) -> int:
        """End the connection with an error. Returns ``code``."""
        ...

    def lost(self) -> None:
        """Record that the transport is closed."""
        ...

    def out(self) -> int:
        """Return how many bytes to send from ``out_buf[out_at]`` on."""
        ...

    def sent(self, k: int, /) -> int:
        """Record that the transport took ``k`` bytes. Returns as ``out``."""
        ...


#: The start of a TLS 1.x alert, with which a server that expects TLS refuses other bytes.
_ALERT = b"\x15\x03"


class Connection(asyncio.BufferedProtocol):
    """One connection of ``session``; create one for each.

    ``on_lost(status, detail)`` is called once, when the session has lost the connection: with the session's status
    (E_CLOSED when either end closed) and the transport's error. ``on_tick(now)`` is called about every ``TICK`` seconds
    with the loop's time.

    ``probe`` returns the packet that keeps a client's connection alive while reading is paused; its answer is not
    awaited.
    """

    def __init__(
        self,
        session: Driven,
        on_lost: Callable[[int, str], object],
        on_tick: Callable[[float], object] | None = None,
        probe: Callable[[], bytes] | None = None,
    ):
        self.session = session
        self.transport: asyncio.Transport | None = None
        #: True if the write buffer of the transport is full.
        self.paused = False
        #: Called when it has room again.
        self.on_writable: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._over = False
        # True if the peer has sent nothing yet, and whether the transport uses TLS.
        self._silent = True
        self._secure = False
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._probe = probe
        self._writable: deque[asyncio.Future[None]] = deque()
        # Bytes must not be sent before the store (``headwater_host.client.store``) has synced them: the writes that
        # wait, each with the store position it needs, their total size, and the last position that was requested.
        box: Any = session.outbox
        self._store: Store | None = box if hasattr(box, "begin_commit") else None
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._asked = 0
        self._all_sent: asyncio.Future[None] | None = None
        self._transport_paused = False
        self._chunks: Chunks = []
        self._burst = 0
        session.frames = self._chunks
        self._turn = False
        self._holds = 0
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """Return the loop's time in milliseconds."""
        return int(self._loop.time() * 1000)

    # -- what asyncio calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock; the caller begins the session."""
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self._secure = transport.get_extra_info("sslcontext") is not None
        if self._over:
            self.transport.abort()
            return
        self._timer = self._loop.call_later(TICK, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the free part of the session's receive buffer."""
        if self._over:
            # The session may have another connection by now.
            return memoryview(bytearray(_IGNORED))
        rx = self.session.rx
        rx.window()
        return rx.view

    def buffer_updated(self, nbytes: int) -> None:
        """Parse ``nbytes`` received bytes, and send the answers."""
        if self._over:
            return
        session = self.session
        session.now = self.now_ms()
        if self._silent:
            self._silent = False
            if not self._secure and bytes(session.rx.view[: min(nbytes, 2)]) == _ALERT:
                self._finish("the server speaks TLS on this port")
                self._close_transport()
                return
        status = session.feed(nbytes)
        while status == 0 and session.stalled:
            self._send()
            status = session.feed(0)
        # A change of the store that only completes a message is committed by the next tick.
        self._send()
        if status:
            self.drop(status)
        elif session.state == CLOSING and not self._held:
            self._finish()
            self._close_transport()
        elif self.paused and self.transport and self.transport.get_write_buffer_size() > _BACKLOG:
            self.hold(HOLD_BACKLOG)

    def eof_received(self) -> None:
        """Close, because the peer has closed its direction."""

    def pause_writing(self) -> None:
        """Pause: the write buffer of the transport is full."""
        self.paused = self._transport_paused = True

    def resume_writing(self) -> None:
        """Resume: the transport has room again."""
        self._transport_paused = False
        if self._held_bytes > _BACKLOG:
            return
        self.paused = False
        self.release(HOLD_BACKLOG)
        self._wake()
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the transport."""
        self.transport = None
        why = str(exc) if exc else ""
        if self._silent and not self._secure:
            said = f" ({why})" if why else ""
            why = f"the server gave no answer{said}; it may want TLS on this port, or speak another protocol"
        self._finish(why)
        if not self._closed.done():
            self._closed.set_result(None)

    def _finish(self, detail: str = "") -> None:
        """Detach the session from this connection, and report the loss."""
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._chunks.clear()
        self._held.clear()
        self._held_bytes = 0
        if self._all_sent is not None and not self._all_sent.done():
            self._all_sent.set_result(None)
        self.paused = False
        status = self.session.status
        self.session.lost()
        self._wake()
        self._on_lost(status or E_CLOSED, detail)

    # -- sending ---------------------------------------------------------------------------------------------------

    def write(self, frame: bytes) -> None:
        """Send a packet that the session has not queued, together with the other packets of this turn."""
        self._chunks.append(frame)
        self._burst += len(frame)
        if self._burst > _BURST:
            self.flush()
        else:
            self.push()

    def push(self) -> None:
        """Send the session's packets: the first of a turn at once, the others at its end."""
        if not self._turn:
            self._turn = True
            self.flush()
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn = False
        self.flush()

    def flush(self) -> None:
        """Send all packets that can leave, in one write, and commit the changes of the store."""
        self._send()
        if self._store is not None and self._store.unsynced:
            self._commit(self._store)

    def _send(self) -> None:
        if self._over:
            return
        chunks = self._chunks
        take(self.session, chunks)
        if not chunks:
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._burst = 0
        store = self._store
        if store is None or not (self._held or store.unsynced):
            self._write(data)
            return
        self._held.append((store.position, bytes(data)))
        self._held_bytes += len(data)
        if self._held_bytes > _BACKLOG:
            self.paused = True
        self._commit(store)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        self.session.tx_time = self.session.now
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def _commit(self, store: Store) -> None:
        """Commit the changes of the store, once for each change."""
        if not self._over and store.position > self._asked:
            self._asked = store.position
            store.begin_commit(self._committed)

    def _committed(self, status: int) -> None:
        """Send the packets that waited for the commit; end the connection if it failed."""
        if self._over or self._store is None:
            return
        if status:
            self._asked = 0
            self.drop(E_STORE)
            return
        ready: list[bytes] = []
        while self._held and self._held[0][0] <= self._store.durable:
            ready.append(self._held.popleft()[1])
        if ready:
            data = b"".join(ready)
            was_paused = self._held_bytes > _BACKLOG
            self._held_bytes -= len(data)
            self._write(data)
            if was_paused and self._held_bytes <= _BACKLOG and not self._transport_paused:
                self.resume_writing()
        if not self._held and self._all_sent is not None and not self._all_sent.done():
            self._all_sent.set_result(None)

    async def writable(self, timeout: float) -> bool:
        """Wait until the transport has room or the connection has ended. Returns False after ``timeout`` seconds."""
        deadline = self._loop.time() + timeout
        while self.paused:
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._writable.append(waiter)
            try:
                await asyncio.wait({waiter}, timeout=left)
            finally:
                waiter.cancel()
        return True

    def _wake(self) -> None:
        while self._writable:
            waiter = self._writable.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def hold(self, why: int) -> None:
        """Pause reading until ``release``. Messages that were read already are still delivered."""
        if not self._holds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds |= why

    def release(self, why: int) -> None:
        """Remove a reason to pause reading."""
        if self._holds & why:
            self._holds &= ~why
            if not self._holds and self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    @property
    def held(self) -> bool:
        """True if reading is paused."""
        return self._holds != 0

    # -- time and the end ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        session = self.session
        transport = self.transport
        if transport is None or self._over:
            return
        now = session.now = self.now_ms()
        unsent = transport.get_write_buffer_size()
        if unsent < self._unsent:
            # The peer reads, so it is alive. A probe would only wait for a large message to be sent.
            session.rx_time = session.tx_time = now
        self._unsent = unsent
        if self._holds:
            # Without reading, silence of the peer proves nothing.
            session.rx_time = now
            if self._probe is not None and self._left(now) <= 0:
                self.write(self._probe())
        status = session.poll(now)
        self.flush()
        if status:
            self.drop(status)
            return
        delay = TICK
        if self._probe is not None and (left := self._left(now)) > 0:
            # A millisecond more, because ``now`` is rounded down.
            delay = min(delay, left / 1000 + 0.001)
        self._timer = self._loop.call_later(delay, self._tick)
        if self._on_tick is not None:
            self._on_tick(now / 1000)

    def _left(self, now: int) -> float:
        """Return the milliseconds until a client has to send a packet to keep the connection alive.

        While reading is paused this is half of the keep-alive; otherwise three quarters, as in the session
        (``headwater.connection``).
        """
        session = self.session
        if not session.keep_alive or session.state != ONLINE:
            return math.inf
        if self._holds:
            return session.tx_time + session.keep_alive * 500 - now
        since = session.tx_time if session.pinged else min(session.tx_time, session.rx_time)
        return since + session.keep_alive * 750 - now

    def drop(self, status: int) -> None:
        """End the connection at once with an error."""
        if not self._over:
            if not self.session.status:
                self.session.fail(status)
            self._finish(str(getattr(self.session.outbox, "error", "")) if status == E_STORE else "")
        if self.transport is not None:
            self.transport.abort()

    def _close_transport(self) -> None:
        if self.transport is not None:
            self.transport.close()

    async def _end_sending(self, timeout: float) -> None:
        """Close the direction to the server, and wait until the server has closed its own.

        What a server sends to a closed socket resets the connection: it would not read the last acknowledgements.
        """
        transport = self.transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            if self._holds:
                transport.resume_reading()
            try:
                transport.write_eof()
            except OSError:  # the server has closed already
                return
            await asyncio.wait({self._closed}, timeout=timeout)

    async def close(self, timeout: float) -> None:
        """Send all waiting packets and close; abort after ``timeout`` seconds.

        When this returns, the session is free for another connection; without a store it is so at once.
        """
        self.flush()
        if self._held and not self._over:
            self._all_sent = self._loop.create_future()
            try:
                await asyncio.wait({self._all_sent}, timeout=timeout)
            except BaseException:
                self.drop(E_CLOSED)
                raise
        self._finish()
        try:
            await self._end_sending(min(timeout, _FAREWELL_S))
            self._close_transport()
            if self.transport is not None:
                await asyncio.wait({self._closed}, timeout=timeout)
        finally:
            if self.transport is not None:
                self.transport.abort()


def take(session: Driven, chunks: Chunks) -> None:
    """Append a copy of everything that the session can send, which then counts as sent."""
    n = session.out()
    while n > 0:
        at = session.out_at
        chunks.append(session.out_buf[at : at + n])
        n = session.sent(n)
