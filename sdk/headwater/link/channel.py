"""One channel of the link: a reliable, ordered byte stream each way, as a transport.

``headwater.link.transitions`` has its states and their rules, ``headwater.link.sender`` its sending half. The
receiving half takes frames in order, answers a gap with NAK, and lets an acknowledgement wait a little for data that
it can travel with.
"""

from errno import ECONNRESET, ENOTCONN

from headwater.link.cobs import stuff
from headwater.link.crc16 import INIT, crc16
from headwater.link.frame import ACK, ASK, COUNT_MASK, DATA, FIN, HELLO, NAK, RESET, close_frame, fill_trailer
from headwater.link.sender import BLOCKED, Sender
from headwater.link.transitions import (
    CHANGED,
    CLOSE,
    CLOSING,
    DEAD,
    DONE,
    ENDED,
    EVENTS,
    FINISHED,
    HALF,
    HEARD,
    IDLE,
    NAMED,
    NEXT,
    OPEN,
    REFUSED,
    UP,
    WHY_CLOSED,
    WHY_DEAD,
    WHY_NOT,
    WHY_RESET,
)
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.link.link import Link
    from headwater.link.ring import RingIO
    from headwater.types import Bytes
else:
    try:
        from micropython import RingIO
    except ImportError:
        from headwater.link.ring import RingIO

_NONE = const(-1)
#: How many of our own HELLOs come back before we take it that the other end has our session number.
_CLASHES = const(4)

# When an acknowledgement is to go out.
_NEVER = const(0)
_SOON = const(1)
_NOW = const(2)


class Channel:
    """A transport: ``readinto``, ``write``, ``close``; and ``open``, which begins a stream. None of them does I/O.

    ``state`` and ``why`` (the last stream ended) are values of ``headwater.link.transitions``. ``streams`` counts
    those that came up; ``received`` the frames taken, ``refused`` those that came twice, or behind a gap, or when
    there was no room; ``stale`` the frames of no stream of ours; ``echoes`` our own. Counters are modulo 2**29.
    """

    def __init__(self, link: "Link", number: int, session: int, window: int, payload: int):
        self._link = link
        self.number = number
        self.window = window
        self.payload = payload
        self.session = session
        self.state = IDLE
        self.why = WHY_NOT
        self._opened = False
        # Whether a stream is to follow the one that is being closed.
        self._again = False
        self.sender = Sender(window, payload)
        # What was received and not yet read.
        self._ring = RingIO(window * payload)
        self._capacity = window * payload
        self._half = (window + 1) // 2
        # The key of a frame that is to be answered with RESET.
        self._reset_key = _NONE
        self.streams = 0
        self.received = 0
        self.refused = 0
        self.stale = 0
        self.echoes = 0
        self._clear()

    def _clear(self) -> None:
        """Forget the stream."""
        self.sender.clear(self._link.rto_ms)
        self.peer = 0
        self._key_out = self._key_in = _NONE
        # FIN has still to be put behind what was written.
        self._fin = False
        self._expected = 0
        self._ack = _NEVER
        self._ack_at = 0
        # Frames taken since the last acknowledgement, and the credit that went with that.
        self._unacked = 0
        self._granted = self.window
        # How far beyond the gap the last frame was, 0 when there is none.
        self._gap = 0
        # Due at once: NAK, ASK, HELLO.
        self._nak = self._ask = self._hello = False
        self._hello_at = self._heard_at = self._asked_at = self._closed_at = 0
        self._clashes = 0

    # ---- for its user ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin a stream, after the end of the one there is; it is up when the other end has opened one as well."""
        if self.state == UP:
            self.close()
        if self.state == CLOSING:
            self._again = True
        elif self.state == IDLE or self.state == ENDED:
            if self._opened:
                self.session = self.session % 0xFFFF + 1
            self._opened = True
            self._clear()
            self._drop_received()
            self._hello = True
            self.why = WHY_NOT
            self._step(OPEN)

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """Place at most ``n`` (1 or more) bytes at the start of ``buf``: their number, None if none now.

        0 when the stream has ended and everything was read. Raises OSError (ENOTCONN) when there is no stream.
        """
        ring = self._ring
        if ring.any():
            n = ring.readinto(buf, n)
            if self.state == UP and self._grant() - self._granted >= self._half:
                self._ack = _NOW
            return n or None
        state = self.state
        if IDLE < state <= UP or self._again:
            return None
        if state == ENDED:
            return 0
        raise OSError(ENOTCONN)

    def write(self, buf: "Bytes", off: int, n: int) -> int | None:
        """Take up to ``n`` bytes of ``buf`` from ``off``: their number, None if none now.

        None says that the window is full, or that the stream is not up yet. Raises OSError: ECONNRESET when the stream
        has ended, ENOTCONN when there is none.
        """
        if off < 0 or n < 0 or off + n > len(buf):
            raise ValueError("the range is not in the buffer")
        state = self.state
        if state == UP:
            return self.sender.write(buf, off, n, self._link.now) or None
        if IDLE < state < UP or self._again:
            return None
        raise OSError(ECONNRESET if state == ENDED else ENOTCONN)

    def close(self) -> None:
        """End the stream behind what was written: the other end reads that, and then the end.

        What was not read is dropped.
        """
        if self.state == UP:
            self._fin = True
            self._closed_at = self._link.now
        self._again = False
        self._step(CLOSE)
        self._drop_received()

    def waiting(self) -> int:
        """How many frames are not yet acknowledged, the end of the stream included."""
        return self.sender.queued + self._fin

    # ---- sending -----------------------------------------------------------------------------------------------------

    def next(self) -> bool:
        """Put the frame that is to go out now on the line, if there is one."""
        if self._reset_key >= 0:
            self._control(RESET, 0, 0, 0, self._reset_key)
            self._reset_key = _NONE
            return True
        if self.state < UP:
            return self.state != IDLE and self._send_hello()
        if self._nak:
            self._answer(NAK)
        elif self.state != ENDED and self._send():
            pass
        elif self._ask:
            self._ask = False
            self._answer(ASK)
        elif self._ack == _NOW or (self._ack == _SOON and self._waited()):
            self._answer(ACK)
        else:
            return False
        return True

    def _send_hello(self) -> bool:
        link = self._link
        if not self._hello and (link.now - self._hello_at) & TICKS_MASK < link.hello_ms:
            return False
        self._hello = False
        self._hello_at = link.now
        link.names[0] = self.peer >> 8
        link.names[1] = self.peer & 0xFF
        link.names[2] = self.payload
        self._control(HELLO, 3, 0, self.window, self.session)
        return True

    def _send(self) -> bool:
        """Put the next frame of the stream on the line, if there is one and it may go."""
        link = self._link
        sender = self.sender
        if self._fin and sender.add(FIN, link.now) >= 0:
            self._fin = False
        seq = sender.next(link.now)
        if seq < 0:
            return False
        i = sender.busy
        trailer = link.trailer
        credit = self._acknowledged()
        kind = sender.kind[i] << 3 | self.number
        fill_trailer(trailer, kind, seq, self._expected, credit, self._key_out, sender.size[i])
        end = close_frame(trailer, sender.crc[i], sender.store, sender.end[i])
        link.put(sender.store, i * sender.slot, end)
        return True

    def _answer(self, kind: int) -> None:
        self._control(kind, 0, self._expected, self._acknowledged(), self._key_out)

    def _control(self, kind: int, n: int, ack: int, credit: int, key: int) -> None:
        """Put a frame that is not of the stream on the line, with ``n`` bytes of ``link.names``."""
        link = self._link
        out = link.control
        fill_trailer(link.trailer, kind << 3 | self.number, 0, ack, credit, key, n)
        end = stuff(link.names, 0, n, out, 1)
        link.put(out, 0, close_frame(link.trailer, crc16(link.names, 0, n, INIT), out, end))

    def _acknowledged(self) -> int:
        """Note that a frame with our acknowledgement goes out; returns the credit that goes with it."""
        self._ack = _NEVER
        self._unacked = 0
        self._nak = False
        self._granted = self._grant()
        return self._granted

    def _grant(self) -> int:
        """How many frames of any size there is room for."""
        return (self._capacity - self._ring.any()) // self.payload

    def _waited(self) -> bool:
        """Whether an acknowledgement has waited long enough for data to travel with."""
        link = self._link
        return self._unacked >= self._half or (link.now - self._ack_at) & TICKS_MASK >= link.ack_ms

    # ---- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due at this time."""
        if not UP <= self.state <= CLOSING:
            return
        link = self._link
        quiet = (now - self._heard_at) & TICKS_MASK
        if quiet >= link.dead_ms:
            self._over(DEAD, WHY_DEAD)
        elif self.state == CLOSING and (now - self._closed_at) & TICKS_MASK >= link.dead_ms:
            # The other end lives and does not read: it gets no more, and RESET when it asks.
            self._step(DONE)
        else:
            if quiet >= link.keep_ms and (now - self._asked_at) & TICKS_MASK >= link.keep_ms:
                self._ask = True
                self._asked_at = now
            if self.sender.expired(now) == BLOCKED:
                self._ask = True

    def due(self, now: int) -> int:
        """In how many milliseconds there is something to do, if nothing arrives; at most ``keep_ms``."""
        link = self._link
        state = self.state
        if IDLE < state < UP:
            left = 0 if self._hello else link.hello_ms - ((now - self._hello_at) & TICKS_MASK)
        else:
            left = link.keep_ms
            if UP <= state <= CLOSING:
                left -= min((now - self._asked_at) & TICKS_MASK, (now - self._heard_at) & TICKS_MASK)
                if self.sender.queued:
                    left = min(left, self.sender.left(now))
            if self._ack != _NEVER:
                left = min(left, link.ack_ms - ((now - self._ack_at) & TICKS_MASK))
        return max(0, left)

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, buf: bytearray, n: int) -> None:
        """Take a whole frame for this channel: ``n`` bytes of payload in ``buf``, and the trailer behind them."""
        kind = buf[n] >> 3 & 7
        key = buf[n + 4] << 8 | buf[n + 5]
        if kind == HELLO:
            self._hear(key, buf, n)
        elif kind == RESET:
            if key == self._key_out:
                self._over(REFUSED, WHY_RESET)
        elif key == self._key_in:
            self._heard_at = self._link.now
            if self.state == HALF:
                self._up()
            self._take(kind, buf, n)
        elif key == self._key_out:
            self.echoes = self.echoes + 1 & COUNT_MASK
        else:
            self.stale = self.stale + 1 & COUNT_MASK
            self._reset_key = key

    def _hear(self, session: int, buf: bytearray, n: int) -> None:
        """Take a HELLO."""
        link = self._link
        window = buf[n + 3]
        if n < 3 or session == 0 or window == 0 or buf[2] == 0:
            link.foreign = link.foreign + 1 & COUNT_MASK
            return
        if session == self.session:
            self._clash()
            return
        named = buf[0] << 8 | buf[1] == self.session
        state = self.state
        if IDLE < state < UP:
            self.peer = session
            self._key_out = link.key(self.session, session)
            self._key_in = link.key(session, self.session)
            self.sender.credit = window
            self.sender.limit = min(self.payload, buf[2])
            if named:
                # It waits to hear that we know it.
                self._up()
                self._ack = _NOW
            else:
                self._hello = True
                self._step(HEARD)
        elif UP <= state <= CLOSING:
            if session != self.peer:
                self._over(CHANGED, WHY_RESET)
            elif named:
                self._ack = _NOW
            else:
                self._ask = True

    def _clash(self) -> None:
        """Our own session number came in: an echo, or the other end has the same one; after some, take another."""
        self.echoes = self.echoes + 1 & COUNT_MASK
        self._clashes += 1
        if self._clashes == _CLASHES and IDLE < self.state < UP:
            self._clashes = 0
            # The clocks of the two ends do not go together, so they part here.
            self.session = (self.session + (self._link.now & 0xFF)) % 0xFFFF + 1

    def _take(self, kind: int, buf: bytearray, n: int) -> None:
        """Take a frame of the stream."""
        sender = self.sender
        sender.acknowledge(buf[n + 2], buf[n + 3], self._link.now)
        if self.state == CLOSING and not sender.queued and not self._fin:
            self._step(DONE)
        elif DATA <= kind <= FIN:
            self._take_data(kind, buf, n)
        elif kind == NAK:
            sender.missed()
        elif kind == ASK:
            self._ack = _NOW

    def _take_data(self, kind: int, buf: bytearray, n: int) -> None:
        """Take a frame with a sequence number, if it is the next one and there is room."""
        ahead = buf[n + 1] - self._expected & 0xFF
        if ahead or (kind == DATA and n > self._capacity - self._ring.any()):
            self.refused = self.refused + 1 & COUNT_MASK
            if ahead == 0 or ahead > 127:
                # No room, or it has come before and our acknowledgement was lost.
                self._ack = _NOW
            else:
                # Once for a gap, and again when the other end has gone back and the first frames were lost again.
                if self._gap == 0 or ahead <= self._gap:
                    self._nak = True
                self._gap = ahead
            return
        if self.state == ENDED:
            return
        if self.state == UP and kind == DATA:
            self._ring.write(buf, 0, n)
        self.received = self.received + 1 & COUNT_MASK
        self._expected = self._expected + 1 & 0xFF
        self._gap = 0
        self._nak = False
        self._unacked += 1
        if self._ack == _NEVER:
            self._ack = _SOON
            self._ack_at = self._link.now
        if kind == FIN:
            self._ack = _NOW
            self._over(FINISHED, WHY_CLOSED)

    # ---- states ------------------------------------------------------------------------------------------------------

    def lost(self, why: int) -> None:
        """The line was lost, or another one takes its place: the stream has ended."""
        self.sender.busy = _NONE
        self._over(DEAD, why)

    def _up(self) -> None:
        self._heard_at = self._asked_at = self._link.now
        self.streams = self.streams + 1 & COUNT_MASK
        self._step(NAMED)

    def _over(self, event: int, why: int) -> None:
        if self.state == UP:
            self.why = why
        self._step(event)

    def _step(self, event: int) -> None:
        state = NEXT[self.state * EVENTS + event]
        self.state = state
        if state == IDLE or (state == ENDED and event != FINISHED):
            # Frames of the stream are strangers from now on. After a FIN they are not: it is acknowledged whenever
            # it comes.
            self._key_in = self._key_out = _NONE
            self._ack = _NEVER
            self._nak = self._ask = False
            if state == IDLE and self._again:
                self._again = False
                self.open()

    def _drop_received(self) -> None:
        ring = self._ring
        scratch = self._link.scratch
        while ring.any():
            ring.readinto(scratch, len(scratch))
