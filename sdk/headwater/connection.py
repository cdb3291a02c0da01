"""The states, buffers, send path and driver of one connection, for every protocol.

- ``RxBuf`` is the receive buffer; ``RamOutbox`` holds the unacknowledged messages at QoS 1 and 2.
- ``Endpoint`` is the base of every session: state, transmit buffer, outbox, keep-alive. It does no I/O.
- ``Driver`` is the base of every client: it runs a session over a transport by polling.

States of the connection, and the events that lead to them:

- IDLE: no transport.
- CONNECTING (``OPEN``): the transport is open. Only the first packet of the client, or its answer, may arrive.
- ONLINE (``ACCEPT``): the connection is accepted. Every packet that the peer may send can arrive.
- CLOSING (``FINISH``): the last packet is being sent. Received bytes are ignored.
- ERROR (``FAIL``): the session broke the connection. Nothing is sent or parsed until the next ``OPEN``, and the status
  stays.

Losing the transport returns every state except ERROR to IDLE.

States of an outgoing message at QoS 1 or 2, in the outbox: FREE (no message), AT1 and AT2 (by QoS; sent or not), REL
(PUBREC received), DONE (acknowledged). The tables of acknowledgements also have STRAY (no such message in flight) and
WRONG (the wrong acknowledgement for the QoS).

Hot paths are written for MicroPython: module functions, because it looks a method up among the attributes first; few
locals, because a frame over 11 words is heap-allocated (an except clause takes at least 3).
"""

from array import array

from headwater import errors
from headwater.errors import E_CLOSED, E_OFFLINE, E_STATE, E_TIMEOUT, E_UNREACHABLE, HeadwaterError
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from headwater.streaming import Stream
    from headwater.types import Bytes, Dialer, Outbox, ReceivedIds, Session, Transport

# States of the connection.
IDLE = const(0)
CONNECTING = const(1)
ONLINE = const(2)
CLOSING = const(3)
ERROR = const(4)
STATES = const(5)

# Events of the connection.
OPEN = const(0)
ACCEPT = const(1)
FINISH = const(2)
FAIL = const(3)
LOST = const(4)
EVENTS = const(5)

#: The next state: ``NEXT[state * EVENTS + event]``; an event that a state does not know leaves it as it is.
NEXT = (
    # OPEN  ACCEPT FINISH FAIL LOST
    b"\x01\x00\x00\x00\x00"  # IDLE
    b"\x01\x02\x03\x04\x00"  # CONNECTING
    b"\x01\x02\x03\x04\x00"  # ONLINE
    b"\x01\x03\x03\x04\x00"  # CLOSING
    b"\x01\x04\x04\x04\x04"  # ERROR
)

# States of a message.
FREE = const(0)
AT1 = const(1)
AT2 = const(2)
REL = const(3)
DONE = const(4)
STRAY = const(5)
WRONG = const(6)

# The views of a receive buffer.
_VIEWS = const(8)
#: Packet identifiers from here on belong to SUBSCRIBE and UNSUBSCRIBE.
FIRST_REQUEST_ID = const(65281)
# In the first byte of every protocol's PUBLISH.
_DUP = const(8)
# The number of reads in one poll before control returns to the application.
_READS = const(16)
_TURN_MS = const(20)
_ENOMEM = const(12)


class RxBuf:
    """Receive buffer of ``size`` bytes, for packets of up to ``capacity`` bytes (seven eighths of it).

    ``buf[start:end]`` is received and not yet parsed. ``window()`` prepares ``view`` and ``room``: read at most
    ``room`` bytes to the start of ``view``, and pass their number to the session. The session calls ``join`` if ``gap``
    is not 0, and moves ``end`` and ``start``. After ``size`` bytes, ``buf`` has ``extra`` bytes for other use.
    """

    #: The distance from ``end`` to the start of the view; ``join`` moves the bytes read over it.
    gap = 0

    def __init__(self, size: int, extra: int = 0):
        step = size // _VIEWS
        if step < 2:
            raise ValueError("rx_size %r: need at least 16 bytes" % size)
        self.buf = bytearray(size + extra)
        self.size = size
        self.step = step
        self.capacity = (_VIEWS - 1) * step
        whole = memoryview(self.buf)
        self._views = [whole[i * step :] for i in range(_VIEWS)]
        self.clear()

    def clear(self) -> None:
        """Discard all received bytes, for a new connection."""
        self.start = self.end = self.gap = self._mark = 0
        self.view = self._views[0]
        self.room = self.size

    def window(self) -> int:
        """Make room to read into ``view``. Return ``room``, 0 if the buffer is full of unparsed bytes."""
        end = self.end
        n = end - self.start
        if n == 0:
            self.start = self.end = self.gap = self._mark = 0
            self.view = self._views[0]
            self.room = self.size
            return self.size
        step = self.step
        if n > self.capacity:
            # Only a full transmit buffer leaves this much unparsed: acknowledgements wait for room there.
            self.room = 0
            return 0
        if n <= end - self._mark:
            # The rest is no longer than the bytes of the previous read: move the rest.
            k = (n + step - 1) // step
            if end != k * step:
                end = k * step
                self._move(self.start, end - n, n)
        else:
            # The next read probably brings fewer bytes than the rest: move those instead, in ``join``.
            if end > self.capacity:
                end = n
                self._move(self.start, 0, n)
            k = (end + step - 1) // step
        self.start = end - n
        self.end = self._mark = end
        self.gap = k * step - end
        self.view = self._views[k]
        self.room = self.size - k * step
        return self.room

    def join(self, n: int) -> None:
        """Move the ``n`` bytes just read into ``view`` over the gap, to ``end``."""
        end = self.end
        self._move(end + self.gap, end, n)
        self.gap = 0

    def _move(self, start: int, to: int, n: int) -> None:
        buf = self.buf
        if to < start:
            for i in range(n):
                buf[to + i] = buf[start + i]
        else:
            i = n
            while i:
                i -= 1
                buf[to + i] = buf[start + i]


class RamOutbox:
    """Up to ``slots`` messages in ``size`` bytes of memory. Allocates nothing after construction.

    A packet is built in ``buf`` at the offset from ``reserve`` and becomes an entry with ``commit``. ``head`` is the
    index of the oldest entry and ``count`` the number of entries. ``state[i]``, ``at[i]`` and ``size[i]`` describe
    entry i, which has the packet identifier i + 1. ``next`` is the index of the entry that the next ``commit`` makes,
    ``reserved`` the offset that ``reserve`` returned last. ``fresh`` is true if messages of an earlier outbox may still
    be in flight, unknown to this one.
    """

    #: The QoS 2 packet identifiers restored after a power cut (``types.ReceivedIds``), for an outbox on flash.
    received: "ReceivedIds | None" = None

    def __init__(self, size: int, slots: int):
        if not 0 < slots < FIRST_REQUEST_ID or size < 8:
            raise ValueError(
                "outbox: %r slots, %r bytes: need 1 to 65280 slots and at least 8 bytes" % (slots, size)
            )
        self.buf = bytearray(size)
        # An exported view keeps the length of the buffer fixed, whatever is assigned to a slice.
        self._pin = memoryview(self.buf)
        self.slots = slots
        self.head = 0
        self.count = 0
        self.state = bytearray(slots)
        self.at = array("I", [0] * slots)
        self.size = array("I", [0] * slots)
        self.fresh = True
        self.next = 0
        self._free = 0
        self.reserved = 0

    def reserve(self, n: int) -> int:
        """Return the offset in ``buf`` to build a packet of ``n`` bytes at, or -1 without a free slot or room."""
        if self.count == self.slots:
            return -1
        size = len(self.buf)
        if self.count == 0:
            self._free = 0
            self.reserved = 0
            return 0 if n <= size else -1
        oldest = self.at[self.head]
        free = self._free
        if free > oldest:
            # The used bytes are contiguous: build after them, or before them if the end of the buffer is too near.
            if free + n > size:
                free = 0
                if n > oldest:
                    return -1
        elif free + n > oldest:
            return -1
        self.reserved = free
        return free

    def commit(self, n: int, state: int) -> int:
        """Make the packet of ``n`` bytes at the reserved offset an entry in ``state``. Return its index."""
        i = self.next
        self.state[i] = state
        self.at[i] = self.reserved
        self.size[i] = n
        self._free = self.reserved + n
        self.next = i + 1 if i + 1 < self.slots else 0
        self.count += 1
        return i

    def find(self, packet_id: int) -> int:
        """Return the index of the unacknowledged entry with this packet identifier, or -1."""
        i = packet_id - 1
        return i if 0 <= i < self.slots and FREE != self.state[i] != DONE else -1

    def set(self, i: int, state: int) -> int:
        """Set the delivery state of entry ``i``. Return 0. Acknowledged entries are removed, oldest first."""
        self.state[i] = state
        if state == DONE:
            head = self.head
            while self.count and self.state[head] == DONE:
                self.state[head] = FREE
                head += 1
                if head == self.slots:
                    head = 0
                self.count -= 1
            self.head = head
        return 0

    def settle(self) -> int:
        """Clear ``fresh``: the peer has no state of an earlier session. Return 0."""
        self.fresh = False
        return 0

    def clear(self) -> None:
        """Remove every entry, for a new session."""
        for i in range(self.slots):
            self.state[i] = FREE
        self.head = self.next
        self.count = 0


#: A value of ``ready`` that is no topic of any caller.
NO_TOPIC = bytearray(0)


class Endpoint:
    """Base of all sessions: transmit buffer, outbox, state and keep-alive.

    ``on_delivered(number)`` is called when a message at QoS 1 or 2 is completely acknowledged.
    """

    #: Keep-alive in seconds; 0 disables it.
    keep_alive: int
    #: Received messages that the application has not acknowledged yet.
    unanswered = 0
    #: The packet types that each state accepts, one bit for each type.
    takes: "Sequence[int]"
    #: Parses received bytes for ``feed``; a port may replace it. ``take_packets(session, at, end)`` returns the offset
    #: after the last packet handled, or a negative number if the connection has ended.
    take_packets: "Callable[[Any, int, int], int]"

    def __init__(self, rx: RxBuf, tx_size: int, outbox: "Outbox", window: int, response_ms: int):
        self.rx = rx
        #: True if received packets wait for room in the transmit buffer; ``feed(0)`` continues after a send.
        self.stalled = False
        #: Set by ``feed`` and cleared by its caller, which thus detects a call from a handler.
        self.feeding = False
        self.on_message: Callable[[Any], object] | None = None
        #: Passes messages larger than the receive buffer to a sink.
        self.stream: Stream | None = None
        #: Bytes still to receive of the current large message.
        self.large_left = 0
        #: Large messages that were skipped, and duplicates at QoS 2 that were not delivered.
        self.skipped = self.duplicates = 0
        self.tx = bytearray(tx_size)
        self.tx_end = 0
        # An exported view keeps the length of the buffer fixed, whatever is assigned to a slice.
        self._pin = memoryview(self.tx)
        self.tx_size = tx_size
        self.outbox = outbox
        self.window = window
        #: An immutable topic that has passed the check.
        self.known_topic: Bytes | None = None
        #: The topic of the prepared packet: the last PUBLISH at QoS 0 at the start of ``tx``; and the offset of its
        #: payload. While ``tx`` still begins with it and the connection is the same, ``rewrite`` sends it with another
        #: payload.
        self.ready: Bytes = NO_TOPIC
        self.ready_at = 0
        self.state = IDLE
        #: Counts changes of ``state``: anything cached about the connection is valid while this is the same.
        self.epoch = 0
        self.status = 0
        #: Milliseconds that the peer may take to answer, or the transport to accept bytes.
        self.response_ms = response_ms
        self.now = self.rx_time = self.tx_time = 0
        #: True while a PINGREQ is unanswered; and when it was sent.
        self.pinged = False
        self.ping_time = 0
        # When the transport stopped accepting bytes; None if it accepts them or nothing waits.
        self._stuck: int | None = None
        self.on_delivered: Callable[[int], object] | None = None
        #: Acknowledgements of messages that are not in flight.
        self.strays = 0
        # The chunk being sent, part of ``tx`` or of the outbox, which both stay in place meanwhile; then the entries
        # that this connection has not sent yet.
        self.out_buf: Bytes = self.tx
        self.out_at = 0
        self.out_n = 0
        self._entry = outbox.head
        self._unsent = 0
        # Not 0 if packets must be sent before these entries (``_put_ahead``).
        self._ahead = 0
        self.in_flight = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def event(self, event: int) -> None:
        """Apply ``event`` to the state of the connection (table ``NEXT``)."""
        self.state = NEXT[self.state * EVENTS + event]
        self.epoch += 1
        self.ready = NO_TOPIC

    def begin(self, now_ms: int) -> None:
        """Start a connection over a new transport: discard partly received and partly sent packets."""
        self._stop()
        self.rx.clear()
        self.status = 0
        self.pinged = False
        self.now = self.rx_time = self.tx_time = now_ms

    def lost(self) -> None:
        """Handle the loss of the transport. Unacknowledged messages wait for the next connection."""
        self.event(LOST)
        self._stop()

    def fail(self, code: int) -> int:
        """Break the connection with the error ``code``, which stays in ``status``. Return ``code``."""
        self.status = code
        self.event(FAIL)
        self._stop()
        return code

    def _stop(self) -> None:
        if self.out_n and self.out_buf is not self.tx:
            # The peer may have received part of it.
            self.outbox.buf[self.outbox.at[self._entry]] |= _DUP
        self.tx_end = self.out_n = self._unsent = self._ahead = 0
        # A running handler may have reserved room for an answer, which is no longer needed.
        self.tx_size = len(self.tx)
        self._stuck = None
        self.stalled = self.feeding = False
        self.large_left = 0
        if self.stream is not None:
            # Last, because a sink may raise an exception.
            self.stream.close(False)

    def is_half_sent(self) -> bool:
        """Return whether the transport has accepted part of the current packet or of the transmit buffer."""
        return self.out_n > 0 and self.out_at != (
            0 if self.out_buf is self.tx else self.outbox.at[self._entry]
        )

    def poll(self, now_ms: int) -> int:
        """Check the timeouts; call this a few times a second. Return 0, or the status of a broken connection.

        ``now_ms`` is in milliseconds and wraps at 2**30 or a multiple of it. Returns E_TIMEOUT if for ``response_ms``
        the transport accepts no bytes or the connection is not accepted, and if the keep-alive finds the peer silent.
        """
        self.now = now_ms
        if self.status:
            return self.status
        if not self.out_n and not self.tx_end:
            self._stuck = None
        elif self._stuck is None:
            self._stuck = now_ms
        elif (now_ms - self._stuck) & TICKS_MASK >= self.response_ms:
            return self.fail(errors.E_TIMEOUT)
        if self.state == CONNECTING:
            # Since CONNECT was sent or could have arrived. Single bytes do not extend the limit.
            late = (now_ms - self.tx_time) & TICKS_MASK >= self.response_ms
        else:
            late = self.state == ONLINE and self.keep_alive > 0 and self._is_silent(now_ms)
        return self.fail(errors.E_TIMEOUT) if late else 0

    def _is_silent(self, now_ms: int) -> bool:
        """Return whether the peer has been silent for too long; a client sends PINGREQ if needed.

        PINGREQ is sent if nothing was sent, or nothing received, for three quarters of the keep-alive.
        """
        interval = self.keep_alive * 750
        quiet = (now_ms - self.rx_time) & TICKS_MASK
        if self.tx_end:
            # Bytes that wait to be sent serve as a ping. If they are one, its time starts when they are sent.
            self.ping_time = now_ms
        elif self.pinged and quiet >= self.response_ms <= (now_ms - self.ping_time) & TICKS_MASK:
            return True
        elif (now_ms - self.tx_time) & TICKS_MASK >= interval or (quiet >= interval and not self.pinged):
            # Also while a ping is unanswered, because its answer may be queued after a large packet: the server
            # expects a packet in every interval.
            self.ping()
        return False

    def ping(self) -> int:
        """Queue PINGREQ on an accepted connection. Return 0, or E_AGAIN if the transmit buffer is full."""
        if self.queue_packet(self._put_ping()):
            return errors.E_AGAIN
        if not self.pinged:
            self.pinged = True
            self.ping_time = self.now
        return 0

    def _put_ping(self) -> int:
        """Write PINGREQ at the end of the transmit buffer. Return the new end, or E_TOO_LARGE."""
        raise NotImplementedError

    def awaits(self) -> bool:
        """Return whether the peer owes an acknowledgement or an answer."""
        return self.outbox.count > 0 or self.state == CONNECTING

    # -- sending -------------------------------------------------------------------------------------------------------

    def out(self) -> int:
        """Return the number of bytes to send now, at ``out_buf[out_at]``; or the status of a broken connection."""
        n = self.out_n
        if n:
            return n
        n = self.tx_end
        if not n and self._ahead:
            n = self._put_ahead()
            if n < 0:
                return 0
        if n:
            self.out_buf = self.tx
            self.out_at = 0
            self.out_n = n
            return n
        if self.state == ONLINE and self._unsent and self.in_flight < self.window:
            box = self.outbox
            self.out_buf = box.buf
            self.out_at = box.at[self._entry]
            self.out_n = n = box.size[self._entry]
            return n
        return self.status

    def _put_ahead(self) -> int:
        """Write packets that must precede the messages in the outbox into the empty transmit buffer.

        Return the number of bytes, or -1 if no message may be sent now.
        """
        return 0

    def sent(self, k: int) -> int:
        """Record that the transport accepted ``k`` of the bytes from ``out``. Return what ``out`` returns next."""
        self.tx_time = self.now
        self._stuck = None
        k += self.out_at
        n = self.out_at + self.out_n - k
        self.out_at = k
        if n == 0:
            if self.out_buf is self.tx:
                n = self.tx_end - k
                if n == 0:
                    self.tx_end = 0
            else:
                # A later transmission of this entry is a retransmission.
                self.outbox.buf[self.outbox.at[self._entry]] |= _DUP
                self.in_flight += 1
                if self._unsent == 1:
                    # The usual case: no other entry waits.
                    self._entry = self._entry + 1 if self._entry + 1 < self.outbox.slots else 0
                    self._unsent = 0
                else:
                    go_behind(self, self._entry, self._unsent)
        self.out_n = n
        return n or (self.out() if self.tx_end or self._unsent else 0)

    def send_whole(self, at: int, is_allowed: bool) -> bool:
        """Count the entry just committed at offset ``at`` of the outbox as sent or as waiting for ``out``.

        Return True if ``is_allowed`` and it can be sent now: the port passes it to its transport.
        """
        if (
            not is_allowed
            or self._unsent
            or self.in_flight >= self.window
            or self.state != ONLINE
            or self.out_n
        ):
            self._unsent += 1
            return False
        self.outbox.buf[at] |= _DUP
        self.in_flight += 1
        self._entry = self.outbox.next
        return True

    def feed(self, n: int) -> int:
        """Decode ``n`` more bytes, just read into ``rx.view``. Return 0, or the error that ended the connection.

        Whole packets are handled in place; an incomplete one waits. Stops early and sets ``stalled`` if the transmit
        buffer has no room for an answer.
        """
        rx = self.rx
        if n:
            self.rx_time = self.now
            if rx.gap:
                rx.join(n)
        # From here on ``n`` is the end of the received bytes.
        n += rx.end
        rx.end = n
        if self.status:
            return self.status
        self.stalled = False
        self.feeding = True
        i = rx.start
        if not self.takes[self.state]:
            # CLOSING, or no connection: ignore received bytes.
            i = n
        take = self.take_packets
        # If a handler ends the connection or starts another, ``epoch`` changes and these locals are stale.
        epoch = self.epoch
        while i < n:
            at = i
            i = take(self, i, n)
            if i < 0 or self.epoch != epoch:
                return self.feed(0)
            if i == at:
                break
        rx.start = i
        return self._check_limit() if self.unanswered else 0

    def _check_limit(self) -> int:
        """Check the number of unacknowledged received messages. Return 0, or the error that ends the connection."""
        return 0

    def queue_packet(self, end: int) -> int:
        """Extend ``tx`` to the encoder's result ``end``. Return 0 or its error; E_AGAIN if it may fit later."""
        if end < 0:
            return errors.E_AGAIN if end == errors.E_TOO_LARGE and self.tx_end else end
        self.tx_end = end
        return 0


def was_sent(s: Endpoint, i: int) -> bool:
    """Return whether this connection has sent all of entry ``i``; otherwise it cannot be acknowledged."""
    box = s.outbox
    i -= box.head
    if i < 0:
        i += box.slots
    return i < box.count - s._unsent


def go_behind(s: Endpoint, i: int, n: int) -> None:
    """Advance to the next entry to send, after entry ``i``, the first of the last ``n``.

    Acknowledged entries are skipped: they may leave the outbox at any time.
    """
    box = s.outbox
    while True:
        i = i + 1 if i + 1 < box.slots else 0
        n -= 1
        if not n or box.state[i] <= AT2:
            break
    s._entry = i
    s._unsent = n


class Driver:
    """Base of all clients: runs a session over a transport by polling. The session survives the connection.

    Only ``connect`` and ``flush`` raise exceptions of their own. ``poll`` and ``wait`` pass on the exceptions of
    handlers, and raise E_REFUSED for a refused subscription without a handler.
    """

    #: True if the last poll stopped before it received everything.
    behind = False

    #: The session's class; takes a client identifier and options.
    make_session: "Callable[..., Any]"

    def __init__(
        self,
        dialer: "Dialer",
        client_id: "Bytes" = b"",
        session: "Any" = None,
        **options: "object",
    ):
        self.dialer = dialer
        self.session: Session = session or self.make_session(client_id, **options)
        self._ticks = dialer.ticks_ms
        # Bound once, because binding allocates; MicroPython also finds an attribute faster than a method.
        self._out = self.session.out
        self._sent = self.session.sent
        self._window = self.session.rx.window
        self._feed = self.session.feed
        self._enqueue: Callable[..., int] = self.session.enqueue
        self._transport: Transport | None = None
        self._dialing = False
        self._readinto: Callable[[bytearray | memoryview, int], int | None] = _nothing
        self._write: Callable[[Bytes, int, int], int | None] = _nothing
        #: Why the last connection ended: a code of ``headwater.errors``.
        self.status = 0
        #: The dialer's error number if ``status`` is E_UNREACHABLE.
        self.errno = 0
        #: Set to False to leave messages in the transport, which slows down the server. Silence then does not count as
        #: a lost connection. Messages in the receive buffer are still delivered. While an acknowledgement or an answer
        #: is due, the messages before it are received and delivered too, one read per poll.
        self.reading = True

    @property
    def connected(self) -> bool:
        """True if the server has accepted this connection and it has not ended."""
        return self.session.state == ONLINE

    def connect(self) -> bool:
        """Open the transport and connect. Return whether the server has kept the session.

        Raises OSError if the transport cannot be opened, and HeadwaterError: E_REFUSED (see
        ``session.return_code``), E_TIMEOUT after the session's ``response_ms``, E_CLOSED, E_ARGUMENT or E_TOO_LARGE
        (CONNECT cannot be encoded), or the error in the server's answer.
        """
        self.close()
        session = self.session
        bad = _begin(self, self.dialer.open())
        if bad == 0:
            bad = self.poll()
        while bad == 0 and session.state != ONLINE:
            idle(self, _TURN_MS)
            bad = self.poll()
        if bad < 0:
            self.close()
            self.status = bad
            # A dialer whose transports open in their first write, such as TLS, has a more specific error.
            raise getattr(self.dialer, "error", None) or HeadwaterError(bad)
        return self.session_present

    def begin_connect(self) -> int:
        """Start to connect; ``poll`` continues until ``connected`` is true or it returns an error.

        Blocks only where the dialer does: for name resolution, and for the whole attempt if it has no ``ready``
        (``headwater.types.PollDialer``). Returns 0 or, like ``poll``: E_UNREACHABLE (see ``errno``), E_ARGUMENT or
        E_TOO_LARGE (CONNECT cannot be encoded), E_REFUSED, E_TIMEOUT, E_CLOSED, or the error in the server's answer.
        """
        self.close()
        self.status = 0
        self._dialing = True
        return _dial(self)

    @property
    def on_message(self) -> "Any":
        """Called with the reusable cursor of each message that arrives."""
        return self.session.on_message

    @on_message.setter
    def on_message(self, handler: "Any") -> None:
        self.session.on_message = handler

    @property
    def on_delivered(self) -> "Callable[[int], object] | None":
        """Called with the number (MQTT: packet identifier) of each completely acknowledged message."""
        return self.session.on_delivered

    @on_delivered.setter
    def on_delivered(self, handler: "Callable[[int], object] | None") -> None:
        self.session.on_delivered = handler

    @property
    def session_present(self) -> bool:
        """True if the server had a stored session when it accepted this connection."""
        return self.session.session_present

    @property
    def transport(self) -> "Transport | None":
        """The transport of the connection; None without one."""
        return self._transport

    @property
    def pinged(self) -> bool:
        """True while a PINGREQ is unanswered."""
        return self.session.pinged

    def ping(self) -> int:
        """Send PINGREQ now, besides those of the keep-alive. Return 0, E_OFFLINE, or E_AGAIN (no room for now)."""
        if self.session.state != ONLINE:
            return E_OFFLINE
        return self.session.ping() or send_out(self)

    def poll(self) -> int:
        """Receive, check the timeouts and send. Never blocks.

        Returns 0, the negative status with which the connection ended, or E_OFFLINE without a connection. Called by a
        handler, it receives nothing until the handler has returned.
        """
        transport = self._transport
        if transport is None:
            return _dial(self) if self._dialing else self.status or E_OFFLINE
        session = self.session
        session.now = self._ticks()
        n = 0
        if session.feeding or not (self.reading or session.awaits()):
            # Received bytes may wait in the transport, so silence is no sign of a lost connection.
            session.rx_time = session.now
        else:
            for _ in range(_READS):
                self.behind = False
                if session.stalled:
                    n = _take(self, 0)
                    if n or self._transport is not transport:
                        break
                n = self._window()
                if n:
                    n = _receive(self, n)
                if n <= 0:
                    break
                self.behind = n == session.rx.room
                n = _take(self, n)
                if n or self._transport is not transport or not (self.behind and self.reading):
                    break
                # More can be read. The answers to one read are sent together.
                n = send_out(self)
                if n:
                    break
            if self._transport is not transport:
                # A handler has closed this connection or opened another.
                return self.status
            if n < 0:
                return _drop(self, n)
        if session.out_n:
            # Try to send before the clock is checked: the transport may accept bytes again.
            n = send_out(self)
            if n:
                return n
        # The awaited answer may have been in the transport, so timeouts are checked after reading.
        n = session.poll(session.now)
        return _drop(self, n) if n else send_out(self)

    def wait(self, ms: int) -> int:
        """Poll for ``ms`` milliseconds, idle in between. Return 0, or the status with which the connection ended."""
        begin = self._ticks()
        while True:
            status = self.poll()
            left = ms - ((self._ticks() - begin) & TICKS_MASK)
            if status or left <= 0:
                return status
            idle(self, min(left, _TURN_MS))

    def flush(self, timeout_ms: int) -> None:
        """Poll until all messages at QoS 1 and 2 are acknowledged and everything else is sent.

        Raises HeadwaterError: E_TIMEOUT; E_STATE if a handler calls this, because acknowledgements are read only after
        it returns; or the status with which the connection ended.
        """
        session = self.session
        begin = self._ticks()
        while True:
            status = self.poll()
            if status == 0:
                if not session.outbox.count and not session.out():
                    return
                if session.feeding and session.outbox.count:
                    status = E_STATE
                elif (self._ticks() - begin) & TICKS_MASK >= timeout_ms:
                    status = E_TIMEOUT
            if status:
                raise HeadwaterError(status)
            idle(self, _TURN_MS)

    def disconnect(self) -> None:
        """Send DISCONNECT, as far as the transport accepts it at once, and close."""
        if self._transport is not None and send_out(self) == 0 and self.session.disconnect() == 0:
            send_out(self)
        self.close()

    def close(self) -> None:
        """Close the transport without DISCONNECT: the server then publishes the will."""
        transport = self._transport
        if (transport is not None or self._dialing) and hasattr(self.dialer, "hang_up"):
            self.dialer.hang_up()
        self._dialing = False
        if transport is not None:
            self._transport = None
            self._readinto = self._write = _nothing
            try:
                self.session.lost()
            finally:
                # Close the transport even if a sink raises an exception in ``lost``.
                try:
                    transport.close()
                except OSError:
                    # The transport is discarded anyway.
                    pass


def _dial(client: Driver) -> int:
    """Continue to open the transport. Start the session once it is open."""
    dialer = client.dialer
    try:
        if hasattr(dialer, "ready") and not dialer.ready():
            return 0
        transport = dialer.open()
    except (OSError, MemoryError) as e:
        # TLS on a board needs two large blocks of memory; a later attempt may find them.
        client.close()
        client.errno = e.errno or 0 if isinstance(e, OSError) else _ENOMEM
        client.status = E_UNREACHABLE
        return E_UNREACHABLE
    return _begin(client, transport)


def _begin(client: Driver, transport: "Transport") -> int:
    """Start the session over a new transport. Return 0, or the error if CONNECT cannot be encoded."""
    client._dialing = False
    client._transport = transport
    client._readinto = transport.readinto
    client._write = transport.write
    client.status = 0
    bad = client.session.connect(client._ticks())
    return _drop(client, bad) if bad else 0


def idle(client: Driver, ms: int) -> None:
    """Wait for received bytes for at most ``ms`` milliseconds.

    If the client does not read now, sleep instead: the dialer's ``wait`` would return at once while bytes are there.
    """
    session = client.session
    if (session.stalled or session.feeding or not (client.reading or session.awaits())) and hasattr(
        client.dialer, "sleep"
    ):
        client.dialer.sleep(ms)
    else:
        client.dialer.wait(ms)


def send_ready(client: Driver, n: "int | None") -> int:
    """Send the ``n`` bytes of the transmit buffer if nothing else waits. Return 0 or E_CLOSED."""
    try:
        n = client._write(client.session.tx, 0, n)  # type: ignore[arg-type]  # it is a number until here
    except OSError:
        return _drop(client, E_CLOSED)
    if n == client.session.tx_end:
        client.session.tx_end = 0
        client.session.tx_time = client.session.now
    elif n:
        client.session.out()
        client.session.sent(n)
        return send_out(client)
    return 0


def send_out(client: Driver) -> int:
    """Send as much as the transport accepts now. Return 0, or the status with which the connection ended."""
    n: int | None = client._out()
    while n > 0:  # type: ignore[operator]  # None has returned
        try:
            n = client._write(client.session.out_buf, client.session.out_at, n)  # type: ignore[arg-type]
        except OSError:
            return _drop(client, E_CLOSED)
        if not n:
            if n == 0:
                # A handshake is in progress; it has a timeout of its own.
                client._sent(0)
            return 0
        n = client._sent(n)
    return _drop(client, n) if n else 0


def send_request(client: Driver, status: int) -> int:
    """Send what waits if ``status`` is not negative. Return ``status``."""
    if status >= 0:
        send_out(client)
    return status


def _receive(client: Driver, n: "int | None") -> int:
    """Read at most ``n`` bytes. Return their number, 0 if there are none now, or E_CLOSED."""
    try:
        n = client._readinto(client.session.rx.view, n)  # type: ignore[arg-type]  # it is a number until here
    except OSError:
        return E_CLOSED
    return 0 if n is None else n or E_CLOSED


def _take(client: Driver, n: int) -> int:
    """Parse ``n`` bytes just read. Return the session's status. If a handler raises, the next poll continues."""
    try:
        n = client._feed(n)
    except BaseException:
        client.session.feeding = False
        client.session.stalled = True
        raise
    client.session.feeding = False
    return n


def _drop(client: Driver, status: int) -> int:
    """Close the connection that ended with ``status``. Return the final status."""
    if client.session.state == CLOSING:
        status = E_CLOSED
    elif client.session.state == ERROR:
        _last_word(client)
    client.close()
    client.status = status
    return status


def _last_word(client: Driver) -> None:
    """Send the final packet of a broken session (such as DISCONNECT of MQTT 5.0), if the protocol has one."""
    n = client._out()
    if n > 0:
        try:
            client._write(client.session.out_buf, client.session.out_at, n)
        except OSError:
            pass


def _nothing(*_: object) -> None:
    """Replace the transport's methods while there is no transport."""
