"""One end of a link: channels with retransmission. It does no I/O and reads no clock.

    link = Link(session)
    channel = link.channels[0]
    channel.open()

    link.feed(buf, 0, n, now_ms)      # received bytes
    link.poll(now_ms)                 # timeouts
    n = link.out()                    # bytes to send: link.out_buf[link.out_at : link.out_at + n]
    link.sent(taken)

``headwater.link.pump`` does this over a raw transport. Nothing here allocates after construction.
"""

from array import array
from errno import ECONNRESET, ENOTCONN

from headwater.link.frames import (
    ACK,
    ASK,
    CHANNELS,
    COUNT_MASK,
    DATA,
    FIN,
    FOREIGN,
    HELLO,
    INIT,
    NAK,
    OK,
    PAYLOAD,
    RESET,
    TRAILER,
    WINDOW,
    Unstuffer,
    check_frame,
    close_frame,
    crc16,
    fill_trailer,
    frame_size,
    stuff,
    stuffed_size,
)
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.link.ring import RingIO
    from headwater.types import Bytes
else:
    try:
        from micropython import RingIO
    except ImportError:
        from headwater.link.ring import RingIO


# States of a channel.
#
# Each end has a session number, a new one for each stream that it opens. A pair of session numbers identifies a stream.
# Its frames carry a key of both numbers, so that no frame of an old stream enters a new one.
#
# IDLE      no stream is wanted. Frames of a stream that the peer still has are answered with RESET.
# OPENING   HELLO is repeated; the peer's session number is unknown.
# HALF      the peer's number is known, and HELLO contains it; whether the peer knows ours is unknown.
# UP        the peer knows our number: its HELLO had it, or a frame with the key of the pair arrived. Data can pass.
# CLOSING   ``close`` was called: FIN follows the last byte and is not acknowledged yet. Received data is dropped.
# ENDED     the peer has closed or restarted, or the line is dead: received data can be read, then the end.
#
# - Data passes in UP and CLOSING only, so both ends agree on the pair before the first byte; sequence numbers start at
#   0.
# - In UP, a HELLO with another session number means that the peer has restarted (CHANGED): the stream has ended. It is
#   not answered before the stream is opened again.
# - In UP, a HELLO without our number is ambiguous: it may be late, or the peer has restarted and chosen its old number.
#   ASK resolves it: an end that has the stream answers ACK, one without it answers RESET.
# - RESET counts only with the key of our own frames. It is never answered.
# - A frame with the key of our own frames is an echo and dropped; so is a HELLO with our own session number.
# - ASK is sent after some silence; after ``dead_ms`` of silence the stream ends (DEAD).
# - Every FIN is acknowledged, in ENDED as well, so that the closing end knows that it has arrived.

IDLE = const(0)
OPENING = const(1)
HALF = const(2)
UP = const(3)
CLOSING = const(4)
ENDED = const(5)

OPEN = const(0)
CLOSE = const(1)
HEARD = const(2)
NAMED = const(3)
CHANGED = const(4)
FINISHED = const(5)
REFUSED = const(6)
DEAD = const(7)
DONE = const(8)
EVENTS = const(9)

#: The next state: ``NEXT[state * EVENTS + event]``.
NEXT = (
    # OPEN CLOSE HEARD NAMED CHANGED FINISHED REFUSED DEAD DONE
    b"\x01\x00\x00\x00\x00\x00\x00\x00\x00"  # IDLE
    b"\x01\x00\x02\x03\x01\x01\x01\x01\x01"  # OPENING
    b"\x02\x00\x02\x03\x02\x02\x02\x01\x02"  # HALF
    b"\x03\x04\x03\x03\x05\x05\x05\x05\x03"  # UP
    b"\x04\x04\x04\x04\x00\x04\x00\x00\x00"  # CLOSING
    b"\x01\x00\x05\x05\x05\x05\x05\x05\x05"  # ENDED
)

# Why a stream ended: ``Channel.why``.
WHY_NOT = const(0)
WHY_CLOSED = const(1)
WHY_RESET = const(2)
WHY_DEAD = const(3)
WHY_LINE = const(4)

# Retransmission: go-back-N.
#
# Up to ``window`` frames are in flight. The receiver accepts frames in order only, and reports the next sequence number
# and the number of frames that it has room for (credit). After a NAK or a timeout everything unacknowledged is
# retransmitted. The timeout follows the measured round trip (RFC 6298; retransmitted frames are not timed, Karn's rule)
# and doubles while nothing is acknowledged.

_NONE = const(-1)
#: Room in a slot for the overhead of joined small writes.
_JOINS = const(8)
_MIN_RTO = const(40)
_MAX_RTO = const(4000)
_MIN_MARGIN = const(20)
#: The upper limit of a doubled timeout. A line that loses frames is not congested: waiting longer does not help.
_PATIENCE = const(1000)

# Results of ``expired``.
WAIT = const(0)
REPEAT = const(1)
BLOCKED = const(2)


class Sender:
    """A queue of up to ``window`` frames of up to ``payload`` bytes, with the retransmission timer.

    Slot i of ``store`` begins at ``i * slot``: a byte for a delimiter, the stuffed payload up to ``end[i]``, and room
    for the trailer. The ``queued`` frames from sequence number ``una`` on are in the slots from ``_head`` on. The first
    ``flight`` of them were sent at least once, the first ``_sent`` since the sender last went back.
    """

    def __init__(self, window: int, payload: int):
        self.window = window
        self.payload = payload
        self._area = stuffed_size(payload) + _JOINS
        self.slot = frame_size(payload) + _JOINS
        self.store = bytearray(window * self.slot)
        self.end = array("H", bytes(2 * window))
        self.crc = array("H", bytes(2 * window))
        self.size = bytearray(window)
        self.kind = bytearray(window)
        #: The slot that is being sent, which must not change.
        self.busy = _NONE
        # Counters, modulo 2**29.
        self.frames = 0
        self.repeated = 0
        self.timeouts = 0
        self.clear(0)

    def clear(self, rto_ms: int) -> None:
        """Reset for a new stream; ``rto_ms`` is the timeout until a round trip is measured."""
        self._head = self.queued = self.flight = self._sent = 0
        self.una = 0
        self.credit = 0
        #: The maximum payload that the peer accepts, in bytes.
        self.limit = self.payload
        # The number of frames that may be sent: one after a timeout, until it is acknowledged.
        self._burst = self.window
        # Eight times the round trip time, four times its variation, and the timeout computed from them, in ms. ``rto``
        # is the current timeout, which doubles each time it expires.
        self._srtt = self._var = 0
        self._base = self.rto = rto_ms
        # The number of frames from ``una`` on that are timed together (0: none), and the start time.
        self._timed = self._timed_at = 0
        self._timer_at = 0

    def write(self, buf: "Bytes", off: int, n: int, now: int) -> int:
        """Enqueue up to ``n`` bytes of ``buf`` from ``off``. Return their number."""
        taken = 0
        while taken < n:
            k = self._take(buf, off + taken, n - taken, now)
            if k == 0:
                break
            taken += k
        return taken

    def _take(self, buf: "Bytes", off: int, n: int, now: int) -> int:
        """Put bytes into the last frame if it was not sent yet, or into a new one. Return their number."""
        i = (self._head + self.queued - 1) % self.window
        room = self._room(i) if self.queued > self.flight else 0
        if room <= 0:
            i = self.add(DATA, now)
            if i < 0:
                return 0
            room = self._room(i)
        n = min(n, room)
        self.crc[i] = crc16(buf, off, off + n, self.crc[i])
        self.end[i] = stuff(buf, off, n, self.store, self.end[i])
        self.size[i] += n
        return n

    def _room(self, i: int) -> int:
        """Return the free bytes of slot ``i``; joined pieces take more stuffing than one."""
        return min(self.limit - self.size[i], (i * self.slot + 1 + self._area - self.end[i]) * 33 // 34)

    def add(self, kind: int, now: int) -> int:
        """Append an empty frame. Return its slot, or -1 if none is free or the slot is still being sent."""
        i = (self._head + self.queued) % self.window
        if self.queued == self.window or i == self.busy:
            return _NONE
        if self.queued == 0:
            self._timer_at = now
        self.end[i] = i * self.slot + 1
        self.crc[i] = INIT
        self.size[i] = 0
        self.kind[i] = kind
        self.queued += 1
        return i

    def next(self, now: int) -> int:
        """Return the sequence number of the next frame to send, or -1, and set ``busy`` to its slot."""
        sent = self._sent
        if sent >= self.queued or sent >= self._burst:
            return _NONE
        i = (self._head + sent) % self.window
        if sent >= self.credit and self.kind[i] == DATA:
            # FIN needs no credit.
            return _NONE
        if sent == 0:
            self._timer_at = now
        if sent < self.flight:
            self.repeated = self.repeated + 1 & COUNT_MASK
        else:
            self.flight = sent + 1
            self.frames = self.frames + 1 & COUNT_MASK
            if self._timed == 0:
                self._timed = sent + 1
                self._timed_at = now
        self._sent = sent + 1
        self.busy = i
        return self.una + sent & 0xFF

    def acknowledge(self, ack: int, credit: int, now: int) -> None:
        """Apply an acknowledgement: the peer expects ``ack`` next and has room for ``credit`` frames."""
        n = ack - self.una & 0xFF
        if n > self.flight:
            # From a duplicate of an older acknowledgement.
            return
        self.credit = credit
        if n == 0:
            return
        if 0 < self._timed <= n:
            self._measure((now - self._timed_at) & TICKS_MASK)
            self._timed = 0
        else:
            if self._timed:
                self._timed -= n
            # Approach the measured value, but slowly: if the line has become slower, the timeout must exceed the round
            # trip so that one can be measured again.
            self.rto = max(self._base, self.rto - (self.rto >> 2))
        self.una = ack
        self._head = (self._head + n) % self.window
        self.queued -= n
        self.flight -= n
        self._sent = max(0, self._sent - n)
        self._burst = self.window
        self._timer_at = now

    def missed(self) -> None:
        """Go back after the peer missed a frame."""
        self._sent = 0
        self._timed = 0

    def expired(self, now: int) -> int:
        """Check the timeout. Return REPEAT after going back, BLOCKED if the peer has had no room since, else WAIT."""
        if not self.queued or self.left(now) > 0:
            return WAIT
        self._timer_at = now
        self.rto = min(2 * self.rto, max(2 * self._base, _PATIENCE))
        if not self.flight:
            return WAIT if self.credit else BLOCKED
        self.timeouts = self.timeouts + 1 & COUNT_MASK
        self._burst = 1
        self._sent = 0
        self._timed = 0
        return REPEAT

    def left(self, now: int) -> int:
        """Return the milliseconds until the timeout, if a frame is queued."""
        return self.rto - ((now - self._timer_at) & TICKS_MASK)

    def _measure(self, ms: int) -> None:
        """Update the timeout with a round trip (RFC 6298, in whole milliseconds)."""
        if self._srtt == 0:
            self._srtt = 8 * ms
            self._var = 2 * ms
        else:
            off = ms - (self._srtt >> 3)
            self._srtt += off
            self._var += abs(off) - (self._var >> 2)
        self._base = min(max((self._srtt >> 3) + max(self._var, _MIN_MARGIN), _MIN_RTO), _MAX_RTO)
        self.rto = self._base


# Channels. The receiver accepts frames in order, answers a gap with NAK, and delays an acknowledgement a little so that
# it can travel with data.

#: After this number of HELLOs with our session number, assume that the peer has the same and choose another.
_CLASHES = const(4)

# When to send an acknowledgement.
_NEVER = const(0)
_SOON = const(1)
_NOW = const(2)


class Channel:
    """One stream at a time, as a transport: ``open``, ``readinto``, ``write``, ``close``. None of them does I/O.

    ``state`` is one of the states above, ``why`` the reason for the end of the last stream. Counters, modulo 2**29:
    ``streams`` that came up; frames ``received``; ``refused`` (duplicate, after a gap, or no room); ``stale`` (of
    another stream); ``echoes`` of our own frames.
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
        # True if a stream is to be opened after the current one is closed.
        self._again = False
        self.sender = Sender(window, payload)
        # Received bytes that are not read yet.
        self._ring = RingIO(window * payload)
        self._capacity = window * payload
        self._half = (window + 1) // 2
        # The key of a frame to answer with RESET.
        self._reset_key = _NONE
        self.streams = 0
        self.received = 0
        self.refused = 0
        self.stale = 0
        self.echoes = 0
        self._clear()

    def _clear(self) -> None:
        """Reset the state of the stream."""
        self.sender.clear(self._link.rto_ms)
        self.peer = 0
        self._key_out = self._key_in = _NONE
        # True if FIN must follow the written bytes.
        self._fin = False
        self._expected = 0
        self._ack = _NEVER
        self._ack_at = 0
        # Frames received since the last acknowledgement, and the credit sent with it.
        self._unacked = 0
        self._granted = self.window
        # The distance of the last frame from the gap, 0 without a gap.
        self._gap = 0
        # Frames to send at once: NAK, ASK, HELLO.
        self._nak = self._ask = self._hello = False
        self._hello_at = self._heard_at = self._asked_at = self._closed_at = 0
        self._clashes = 0

    # ---- transport ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open a stream, after the end of the current one. It is up once the peer has opened one as well."""
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
        """Read at most ``n`` (1 or more) bytes to the start of ``buf``. Return their number.

        None if there are none now; 0 if the stream has ended and everything was read. Raises OSError (ENOTCONN) without
        a stream.
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
        """Write up to ``n`` bytes of ``buf`` from ``off``. Return their number.

        None if the window is full or the stream is not up yet. Raises OSError: ECONNRESET after the end of the stream,
        ENOTCONN without a stream.
        """
        if off < 0 or n < 0 or off + n > len(buf):
            raise ValueError("off and n exceed the buffer: need 0 <= off, 0 <= n and off + n <= len(buf)")
        state = self.state
        if state == UP:
            return self.sender.write(buf, off, n, self._link.now) or None
        if IDLE < state < UP or self._again:
            return None
        raise OSError(ECONNRESET if state == ENDED else ENOTCONN)

    def close(self) -> None:
        """End the stream after the written bytes, which the peer can still read. Unread bytes are dropped."""
        if self.state == UP:
            self._fin = True
            self._closed_at = self._link.now
        self._again = False
        self._step(CLOSE)
        self._drop_received()

    def waiting(self) -> int:
        """Return the number of unacknowledged frames, the end of the stream included."""
        return self.sender.queued + self._fin

    # ---- sending -----------------------------------------------------------------------------------------------------

    def next(self) -> bool:
        """Put the next frame on the line. Return whether there was one."""
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
        """Put the next frame of the stream on the line. Return whether there was one."""
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
        """Put a control frame on the line, with ``n`` bytes of ``link.names``."""
        link = self._link
        out = link.control
        fill_trailer(link.trailer, kind << 3 | self.number, 0, ack, credit, key, n)
        end = stuff(link.names, 0, n, out, 1)
        link.put(out, 0, close_frame(link.trailer, crc16(link.names, 0, n, INIT), out, end))

    def _acknowledged(self) -> int:
        """Record that an acknowledgement is sent. Return its credit."""
        self._ack = _NEVER
        self._unacked = 0
        self._nak = False
        self._granted = self._grant()
        return self._granted

    def _grant(self) -> int:
        """Return the number of maximum-size frames that fit into the free space."""
        return (self._capacity - self._ring.any()) // self.payload

    def _waited(self) -> bool:
        """Return whether an acknowledgement has waited long enough for data."""
        link = self._link
        return self._unacked >= self._half or (link.now - self._ack_at) & TICKS_MASK >= link.ack_ms

    # ---- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Check the timeouts."""
        if not UP <= self.state <= CLOSING:
            return
        link = self._link
        quiet = (now - self._heard_at) & TICKS_MASK
        if quiet >= link.dead_ms:
            self._over(DEAD, WHY_DEAD)
        elif self.state == CLOSING and (now - self._closed_at) & TICKS_MASK >= link.dead_ms:
            # The peer is alive but does not read. Data to it stops, and ASK is answered with RESET.
            self._step(DONE)
        else:
            if quiet >= link.keep_ms and (now - self._asked_at) & TICKS_MASK >= link.keep_ms:
                self._ask = True
                self._asked_at = now
            if self.sender.expired(now) == BLOCKED:
                self._ask = True

    def due(self, now: int) -> int:
        """Return the milliseconds until the next timeout, at most ``keep_ms``."""
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
        """Handle a frame of this channel: ``n`` bytes of payload in ``buf``, then the trailer."""
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
        """Handle a HELLO."""
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
                # The peer waits for a frame with the key.
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
        elif state == IDLE:
            # Used by an end that opens a channel only after its peer.
            self.peer = session

    def _clash(self) -> None:
        """Handle a HELLO with our session number: an echo, or the peer chose the same number."""
        self.echoes = self.echoes + 1 & COUNT_MASK
        self._clashes += 1
        if self._clashes == _CLASHES and IDLE < self.state < UP:
            self._clashes = 0
            # The clocks of the two ends differ, so they choose different numbers.
            self.session = (self.session + (self._link.now & 0xFF)) % 0xFFFF + 1

    def _take(self, kind: int, buf: bytearray, n: int) -> None:
        """Handle a frame of the stream."""
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
        """Handle a frame with a sequence number: accept it if it is the next one and there is room."""
        ahead = buf[n + 1] - self._expected & 0xFF
        if ahead or (kind == DATA and n > self._capacity - self._ring.any()):
            self.refused = self.refused + 1 & COUNT_MASK
            if ahead == 0 or ahead > 127:
                # No room, or a duplicate because the acknowledgement was lost.
                self._ack = _NOW
            else:
                # Once for each gap, and again if the peer went back and the first frames were lost again.
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
        """End the stream: the line was lost or replaced."""
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
            # From now on frames of this stream are stale. After FIN they are not: each FIN is acknowledged.
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


class Link:
    """One end of a line.

    - ``session``: 1 to 65535. It must differ from those of earlier boots: use a random number, or a counter in flash.
    - ``channels``: streams that share the line, served in rotation.
    - ``window``, ``payload``: frames and bytes per frame that each channel buffers in either direction, about
      ``2 * window * payload`` bytes of memory. The peer may have other values.
    - Times in ms: HELLO is repeated every ``hello_ms``; an acknowledgement waits ``ack_ms`` for data; ``rto_ms`` is the
      timeout before a round trip is measured; ``keep_ms`` of silence lead to an ASK, ``dead_ms`` end the stream.
    """

    def __init__(
        self,
        session: int,
        channels: int = 1,
        window: int = 4,
        payload: int = PAYLOAD,
        *,
        hello_ms: int = 250,
        ack_ms: int = 10,
        rto_ms: int = 500,
        keep_ms: int = 2000,
        dead_ms: int = 10000,
    ):
        if not 0 < session <= 0xFFFF:
            raise ValueError("session %r: need 1 to 65535" % session)
        if not 0 < channels <= CHANNELS or not 0 < window <= WINDOW or not 0 < payload <= PAYLOAD:
            raise ValueError(
                "channels %r, window %r, payload %r: need 1 to 8, 1 to 64 and 1 to 240 bytes"
                % (channels, window, payload)
            )
        self.hello_ms = hello_ms
        self.ack_ms = ack_ms
        self.rto_ms = rto_ms
        self.keep_ms = keep_ms
        self.dead_ms = dead_ms
        self.now = 0
        self._in = Unstuffer(PAYLOAD + TRAILER)
        # Shared by the channels, which build frames in them.
        self.trailer = bytearray(TRAILER)
        self.names = bytearray(4)
        self.control = bytearray(frame_size(4))
        self.scratch = bytearray(16)
        # The bytes to send.
        self.out_buf = self.control
        self.out_at = self.out_end = 0
        self._pause = True
        self._turn = 0
        #: Counters, modulo 2**29: bytes and frames; damaged frames and noise; intact frames of unknown kinds.
        self.bytes_in = self.bytes_out = 0
        self.frames_in = self.frames_out = 0
        self.damaged = self.foreign = 0
        self.channels = [Channel(self, i, session, window, payload) for i in range(channels)]

    def poll(self, now_ms: int) -> None:
        """Set the time and check the timeouts."""
        self.now = now_ms
        for channel in self.channels:
            channel.tick(now_ms)

    def due(self) -> int:
        """Return the milliseconds until ``poll`` and ``out`` have to be called, if nothing arrives."""
        ms = self.keep_ms
        for channel in self.channels:
            left = channel.due(self.now)
            if left < ms:
                ms = left
        return ms

    def feed(self, buf: "Bytes", at: int, n: int, now_ms: int) -> None:
        """Handle ``n`` received bytes at ``buf[at]``. Never raises an exception."""
        self.now = now_ms
        self.bytes_in = self.bytes_in + n & COUNT_MASK
        rx = self._in
        n += at
        while at < n:
            at = rx.take(buf, at, n)
            if rx.size:
                self._frame(rx.buf, rx.size)

    def _frame(self, buf: bytearray, n: int) -> None:
        bad = check_frame(buf, n)
        if bad == OK and buf[n - TRAILER] & 7 >= len(self.channels):
            bad = FOREIGN
        if bad == OK:
            self.frames_in = self.frames_in + 1 & COUNT_MASK
            self.channels[buf[n - TRAILER] & 7].receive(buf, n - TRAILER)
        elif bad == FOREIGN:
            self.foreign = self.foreign + 1 & COUNT_MASK
        else:
            self.damaged = self.damaged + 1 & COUNT_MASK

    def out(self) -> int:
        """Return the number of bytes to send, from ``out_buf[out_at]`` on."""
        n = self.out_end - self.out_at
        if n:
            return n
        channels = self.channels
        for _ in range(len(channels)):
            channel = channels[self._turn]
            self._turn += 1
            if self._turn == len(channels):
                self._turn = 0
            if channel.next():
                return self.out_end - self.out_at
        self._pause = True
        return 0

    def sent(self, n: int) -> None:
        """Record that the line accepted ``n`` bytes."""
        self.out_at += n
        self.bytes_out = self.bytes_out + n & COUNT_MASK
        if self.out_at == self.out_end:
            self._free()

    def lost(self) -> None:
        """End every stream and discard partial frames after the line was lost or replaced."""
        self._in.reset()
        self.out_at = self.out_end = 0
        self._pause = True
        for channel in self.channels:
            channel.lost(WHY_LINE)

    # ---- for the channels --------------------------------------------------------------------------------------------

    def put(self, buf: bytearray, at: int, end: int) -> None:
        """Put ``buf[at:end]`` on the line. Its first byte is a delimiter, which is sent only after a pause.

        The delimiter separates the frame from noise and printed text.
        """
        buf[at] = 0
        self.out_buf = buf
        self.out_at = at if self._pause else at + 1
        self.out_end = end
        self._pause = False
        self.frames_out = self.frames_out + 1 & COUNT_MASK

    def key(self, sender: int, receiver: int) -> int:
        """Return the key of the frames from the end with session number ``sender`` to that with ``receiver``."""
        names = self.names
        names[0] = sender >> 8
        names[1] = sender & 0xFF
        names[2] = receiver >> 8
        names[3] = receiver & 0xFF
        return crc16(names, 0, 4, INIT)

    def _free(self) -> None:
        for channel in self.channels:
            channel.sender.busy = -1
