"""An endpoint of the core over an asyncio transport: what arrives goes in, what is to be sent goes out, time passes.

What is read lands in the session's own buffer and is parsed there (``asyncio.BufferedProtocol``). What one read makes
the session answer leaves in one write, and so does what a program sends within one turn of the event loop; the first
packet of a turn does not wait for the others.
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

#: How often, in seconds, a connection looks at the clock at least.
TICK = 0.5
# From how many unsent bytes on nothing more is read, because reading makes answers.
_BACKLOG = 1 << 20
# How many bytes may wait for the end of the turn.
_BURST = 1 << 16

#: Why reading is held: the application has enough to do; the peer does not take our answers; the gateway's log is full.
HOLD_APPLICATION = 1
HOLD_BACKLOG = 2
HOLD_GATE = 4


#: What waits to be handed to the transport.
Chunks = list[bytes | bytearray | memoryview]


class Store(Protocol):
    """An outbox that outlives the process, as of ``headwater_host.client.store.SqliteOutbox``."""

    position: int
    durable: int

    @property
    def unsynced(self) -> bool:
        """Whether something is not in the file yet."""
        ...

    def begin_commit(self, done: Callable[[int], object], /) -> None:
        """Commit everything so far, and say so on the event loop: 0 or E_STORE."""
        ...


class Driven(Protocol):
    """What a connection drives: one end of a protocol, whose states have the numbers of MQTT's."""

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
        """As of ``headwater.types.Session``, and so is ``poll``."""
        ...

    def poll(self, now_ms: int, /) -> int:
        """Tell the time."""
        ...

    def fail(self, code: int, /) -> int:
        """End the connection for a reason."""
        ...

    def lost(self) -> None:
        """The transport is gone."""
        ...

    def out(self) -> int:
        """As of ``headwater.connection.Endpoint``, and so is ``sent``."""
        ...

    def sent(self, k: int, /) -> int:
        """The transport took ``k`` bytes."""
        ...


#: How a server that expects TLS refuses what is none: a record that is an alert, of TLS 1.x.
_ALERT = b"\x15\x03"


class Connection(asyncio.BufferedProtocol):
    """One connection of ``session``; make one for each.

    ``on_lost(status, detail)`` is called once, when the connection is over for the session: with the session's status,
    E_CLOSED when the peer or we closed, and with what the transport said. ``on_tick(now)`` is called about every
    ``TICK`` seconds, with the loop's time.

    A client gives a ``probe``, a packet that is sent while reading is held, to keep the connection alive: nobody waits
    for its answer. The clock is then also looked at when the keep-alive asks for a packet.
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
        #: Whether the transport has more to send than it likes.
        self.paused = False
        #: Called when it has room again.
        self.on_writable: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._over = False
        # Whether the peer has sent nothing yet, and whether TLS would say why.
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
        """The loop's time in milliseconds."""
        return int(self._loop.time() * 1000)

    # -- what asyncio calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there; whoever made it begins the session."""
        # uvloop's transports have asyncio's methods and are no subclasses.
        self.transport = cast(asyncio.Transport, transport)
        self._secure = transport.get_extra_info("sslcontext") is not None
        if self._over:
            self.transport.abort()
            return
        self._timer = self._loop.call_later(TICK, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport is to read to."""
        rx = self.session.rx
        rx.window()
        return rx.view

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` have been read: parse them, and send what they make us answer."""
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
        # What only ends a message can wait for the tick.
        self._send()
        if status:
            self.drop(status)
        elif session.state == CLOSING and not self._held:
            self._finish()
            self._close_transport()
        elif self.paused and self.transport and self.transport.get_write_buffer_size() > _BACKLOG:
            self.hold(HOLD_BACKLOG)

    def eof_received(self) -> None:
        """The peer has closed its direction: so do we."""

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self.paused = self._transport_paused = True

    def resume_writing(self) -> None:
        """The transport has room again, and the store is not behind."""
        self._transport_paused = False
        if self._held_bytes > _BACKLOG:
            return
        self.paused = False
        self.release(HOLD_BACKLOG)
        self._wake()
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        self.transport = None
        why = str(exc) if exc else ""
        if self._silent and not self._secure:
            said = f" ({why})" if why else ""
            why = f"the server gave no answer{said}; it may want TLS on this port, or speak another protocol"
        self._finish(why)
        if not self._closed.done():
            self._closed.set_result(None)

    def _finish(self, detail: str = "") -> None:
        """The session has nothing to do with this connection any more."""
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
        """Send a packet that the session does not know of; soon, together with what else this turn brings."""
        self._chunks.append(frame)
        self._burst += len(frame)
        if self._burst > _BURST:
            self.flush()
        else:
            self.push()

    def push(self) -> None:
        """The session has something to send: at once, or, when this turn has sent already, at its end."""
        if not self._turn:
            self._turn = True
            self.flush()
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn = False
        self.flush()

    def flush(self) -> None:
        """Hand everything that can be sent to the transport, in one write; a store keeps what has to wait as well."""
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
        """Let the store keep what has changed, once for each change."""
        if not self._over and store.position > self._asked:
            self._asked = store.position
            store.begin_commit(self._committed)

    def _committed(self, status: int) -> None:
        """The store has kept what was asked for: send what waits for it. Or it could not."""
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
        """Wait until the transport has room or the connection is over; False after ``timeout`` seconds."""
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
        """Read nothing more until ``release``; what has been read already is still delivered."""
        if not self._holds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds |= why

    def release(self, why: int) -> None:
        """The reason ``why`` not to read is gone."""
        if self._holds & why:
            self._holds &= ~why
            if not self._holds and self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    @property
    def held(self) -> bool:
        """Whether nothing is being read."""
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
            # The peer's side takes what we send: it lives, and behind a large message a probe would only wait.
            session.rx_time = session.tx_time = now
        self._unsent = unsent
        if self._holds:
            # Who does not listen cannot say that the peer is silent.
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
        """Milliseconds until a client has to send a packet that keeps the connection alive.

        That is half of the keep-alive while reading is held, and otherwise when the session asks for it, at three
        quarters (``headwater.connection``).
        """
        session = self.session
        if not session.keep_alive or session.state != ONLINE:
            return math.inf
        if self._holds:
            return session.tx_time + session.keep_alive * 500 - now
        since = session.tx_time if session.pinged else min(session.tx_time, session.rx_time)
        return since + session.keep_alive * 750 - now

    def drop(self, status: int) -> None:
        """End the connection at once, for a reason."""
        if not self._over:
            if not self.session.status:
                self.session.fail(status)
            self._finish(str(getattr(self.session.outbox, "error", "")) if status == E_STORE else "")
        if self.transport is not None:
            self.transport.abort()

    def _close_transport(self) -> None:
        if self.transport is not None:
            self.transport.close()

    async def close(self, timeout: float) -> None:
        """Send what waits and close: the transport is gone when this returns, after ``timeout`` seconds by force.

        The session is free for another connection when this returns; without a store, at once.
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
        self._close_transport()
        if self.transport is not None:
            try:
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
