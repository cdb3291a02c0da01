"""One connection, whatever its protocol: its states, its buffers, the send path of a session, and the driver.

- ``RxBuf`` is the receive buffer, ``RamOutbox`` the messages at QoS 1 and 2 that are not acknowledged yet.
- ``Endpoint`` is the base of every session: state, transmit buffer, outbox, keep-alive. It does no I/O.
- ``Driver`` is the base of every client: it runs a session over a transport, by polling.

States of the connection:

- IDLE: there is no transport. ``OPEN``: there is one; the client sends its first packet, the server waits for it.
- CONNECTING: only the first packet or its answer may arrive. ``ACCEPT`` follows, or the end.
- ONLINE: every packet that the peer may send can arrive.
- CLOSING: ``FINISH``: the last packet is being sent; what arrives is not parsed.
- ERROR: ``FAIL``: the session broke the connection. Nothing is sent or parsed until the next ``OPEN``, and the status
  stays.

Losing the transport returns every state except ERROR to IDLE.

States of a message of ours at QoS 1 or 2, in the outbox: FREE (no message), AT1 and AT2 (by QoS; sent or not), REL
(PUBREC has arrived), DONE (acknowledged). Tables of acknowledgements have STRAY (no such message in flight) and WRONG
(the wrong acknowledgement for the QoS) as well.

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
# How often one poll reads before it lets the application have its turn.
_READS = const(16)
_TURN_MS = const(20)
_ENOMEM = const(12)


class RxBuf:
    """``size`` bytes; packets up to ``capacity`` bytes (seven eighths of it) can be held whole.

    ``buf[start:end]`` is what was read and not yet parsed. ``window()`` makes ``view`` and ``room`` ready: read at most
    ``room`` bytes to the start of ``view``, and hand their number to the session. It calls ``join`` when ``gap`` is
    not 0, and moves ``end`` and ``start``. Behind it, ``buf`` has ``extra`` bytes that are nobody's business here.
    """

    #: How far behind ``end`` the view begins: what was read is to be joined with what was there.
    gap = 0

    def __init__(self, size: int, extra: int = 0):
        step = size // _VIEWS
        if step < 2:
            raise ValueError("the receive buffer needs at least 16 bytes")
        self.buf = bytearray(size + extra)
        self.size = size
        self.step = step
        self.capacity = (_VIEWS - 1) * step
        whole = memoryview(self.buf)
        self._views = [whole[i * step :] for i in range(_VIEWS)]
        self.clear()

    def clear(self) -> None:
        """Forget what was read: for a new connection."""
        self.start = self.end = self.gap = self._mark = 0
        self.view = self._views[0]
        self.room = self.size

    def window(self) -> int:
        """Make room to read into ``view``; returns ``room``, 0 when the buffer is full of unparsed bytes."""
        end = self.end
        n = end - self.start
        if n == 0:
            self.start = self.end = self.gap = self._mark = 0
            self.view = self._views[0]
            self.room = self.size
            return self.size
        step = self.step
        if n > self.capacity:
            # Only what cannot be parsed yet for want of room elsewhere (acknowledgements to be sent) can be this much.
            self.room = 0
            return 0
        if n <= end - self._mark:
            # The rest is no longer than what the read before brought: it moves.
            k = (n + step - 1) // step
            if end != k * step:
                end = k * step
                self._move(self.start, end - n, n)
        else:
            # The next read is likely to bring less than there is already: what it brings will move.
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
        """Move ``n`` bytes, just read into ``view``, to where ``end`` is: over the gap."""
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
    """Up to ``slots`` messages in ``size`` bytes of memory; allocates nothing after construction.

    A packet is built in ``buf`` at the offset that ``reserve`` gives and becomes an entry with ``commit``.
    ``head`` is the oldest entry's index, ``count`` how many there are from it on; ``state[i]``, ``at[i]`` and
    ``size[i]`` describe entry i, whose packet id is i + 1. ``next`` is the index of the entry that the next ``commit``
    makes, ``reserved`` the offset that ``reserve`` gave last. ``fresh``: nothing is known of what was under way before
    this was made.
    """

    #: What outlives a power cut brings the QoS 2 ids that were open when it came (``types.ReceivedIds``).
    received: "ReceivedIds | None" = None

    def __init__(self, size: int, slots: int):
        if not 0 < slots < FIRST_REQUEST_ID or size < 8:
            raise ValueError("an outbox needs 1 to 65280 slots, and at least 8 bytes")
        self.buf = bytearray(size)
        # Whatever a slice is given, the buffer keeps its length.
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
        """Where in ``buf`` the next packet of ``n`` bytes may be built, or -1 when there is no slot or no room."""
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
            # Used bytes lie in one piece: behind them, or before them when the end is too near.
            if free + n > size:
                free = 0
                if n > oldest:
                    return -1
        elif free + n > oldest:
            return -1
        self.reserved = free
        return free

    def commit(self, n: int, state: int) -> int:
        """Make the packet of ``n`` bytes built at the reserved offset an entry; returns its index."""
        i = self.next
        self.state[i] = state
        self.at[i] = self.reserved
        self.size[i] = n
        self._free = self.reserved + n
        self.next = i + 1 if i + 1 < self.slots else 0
        self.count += 1
        return i

    def find(self, packet_id: int) -> int:
        """The index of the entry with this packet id, or -1."""
        i = packet_id - 1
        return i if 0 <= i < self.slots and FREE != self.state[i] != DONE else -1

    def set(self, i: int, state: int) -> int:
        """Change an entry's delivery state: 0. Acknowledged entries leave from the oldest on."""
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
        """The other end holds nothing of an earlier life any more: ``fresh`` is over. 0."""
        self.fresh = False
        return 0

    def clear(self) -> None:
        """Forget every entry: for a session that begins anew."""
        for i in range(self.slots):
            self.state[i] = FREE
        self.head = self.next
        self.count = 0


#: No caller has this object as a topic.
NO_TOPIC = bytearray(0)


class Endpoint:
    """What a session sends with, and knows of time. ``on_delivered(number)`` is called when a message of ours at QoS 1
    or 2 has been acknowledged to its end."""

    #: Seconds; 0 is none.
    keep_alive: int
    #: Received messages that the application has to acknowledge.
    unanswered = 0
    #: The packet types that a state accepts, a bit each.
    takes: "Sequence[int]"
    #: Parses what was received, for ``feed``; a port may bring its own. ``take_packets(session, at, end)`` returns the
    #: offset reached: that of a packet that has to wait, or a negative number when the connection has ended.
    take_packets: "Callable[[Any, int, int], int]"

    def __init__(self, rx: RxBuf, tx_size: int, outbox: "Outbox", window: int, response_ms: int):
        self.rx = rx
        #: Whether received bytes wait for room to answer them; ``feed(0)`` continues once something was sent.
        self.stalled = False
        #: Set by ``feed``; its caller clears it, so that it notices when a handler calls it again.
        self.feeding = False
        self.on_message: Callable[[Any], object] | None = None
        #: Passes messages larger than the receive buffer to a sink.
        self.stream: Stream | None = None
        #: Bytes still to come of the large message under way.
        self.large_left = 0
        #: Large messages that were skipped, and duplicates at QoS 2 that were not delivered.
        self.skipped = self.duplicates = 0
        self.tx = bytearray(tx_size)
        self.tx_end = 0
        # Whatever a slice is given, the buffer keeps its length.
        self._pin = memoryview(self.tx)
        self.tx_size = tx_size
        self.outbox = outbox
        self.window = window
        #: A topic that has been checked, and cannot change.
        self.known_topic: Bytes | None = None
        #: The topic of the prepared packet, the last PUBLISH at QoS 0 that was put at the start of ``tx``, and the
        #: offset of its payload. While ``tx`` begins with its first byte and the connection is the same, ``rewrite``
        #: sends it again with another payload.
        self.ready: Bytes = NO_TOPIC
        self.ready_at = 0
        self.state = IDLE
        #: Counts the changes of ``state``: what was known of the connection holds as long as this is the same.
        self.epoch = 0
        self.status = 0
        #: How long the other end, or the transport, may take to answer.
        self.response_ms = response_ms
        self.now = self.rx_time = self.tx_time = 0
        #: Whether a PINGREQ is unanswered, and since when.
        self.pinged = False
        self.ping_time = 0
        # Since when the transport has taken nothing of what is to be sent; None when it has, or there is nothing.
        self._stuck: int | None = None
        self.on_delivered: Callable[[int], object] | None = None
        #: Acknowledgements of what is not under way.
        self.strays = 0
        # The chunk under way, a piece of ``tx`` or of the outbox, neither of which is replaced meanwhile; then the
        # entries that this connection has not sent yet.
        self.out_buf: Bytes = self.tx
        self.out_at = 0
        self.out_n = 0
        self._entry = outbox.head
        self._unsent = 0
        # Not 0: something is to be sent ahead of these (``_put_ahead``).
        self._ahead = 0
        self.in_flight = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def event(self, event: int) -> None:
        """Move the connection along its table (``transitions.NEXT``)."""
        self.state = NEXT[self.state * EVENTS + event]
        self.epoch += 1
        self.ready = NO_TOPIC

    def begin(self, now_ms: int) -> None:
        """There is a transport: forget what the previous connection left half read and half sent."""
        self._stop()
        self.rx.clear()
        self.status = 0
        self.pinged = False
        self.now = self.rx_time = self.tx_time = now_ms

    def lost(self) -> None:
        """The transport is gone: what is unacknowledged waits for the next connection."""
        self.event(LOST)
        self._stop()

    def fail(self, code: int) -> int:
        """End the connection for a reason; returns ``code``, which stays in ``status``."""
        self.status = code
        self.event(FAIL)
        self._stop()
        return code

    def _stop(self) -> None:
        if self.out_n and self.out_buf is not self.tx:
            # Who knows how much of it arrived.
            self.outbox.buf[self.outbox.at[self._entry]] |= _DUP
        self.tx_end = self.out_n = self._unsent = self._ahead = 0
        # A handler that is running may hold room for its answer, which nobody waits for now.
        self.tx_size = len(self.tx)
        self._stuck = None
        self.stalled = self.feeding = False
        self.large_left = 0
        if self.stream is not None:
            # Last, because a sink may raise.
            self.stream.close(False)

    def is_half_sent(self) -> bool:
        """Return whether the transport has taken a part of a packet, or of the packets in the transmit buffer."""
        return self.out_n > 0 and self.out_at != (
            0 if self.out_buf is self.tx else self.outbox.at[self._entry]
        )

    def poll(self, now_ms: int) -> int:
        """Tell the time, a few times a second: 0, or the status of a broken connection. ``now_ms`` wraps at 2**30 or a
        multiple of it.

        E_TIMEOUT when for ``response_ms`` the transport has taken nothing of what is to be sent, or the connection was
        not accepted; and when the other end is silent for too long.
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
            # Since the greeting left, or could have come: a byte now and then does not hold the connection open.
            late = (now_ms - self.tx_time) & TICKS_MASK >= self.response_ms
        else:
            late = self.state == ONLINE and self.keep_alive > 0 and self._is_silent(now_ms)
        return self.fail(errors.E_TIMEOUT) if late else 0

    def _is_silent(self, now_ms: int) -> bool:
        """Whether the other end has been silent for too long; a client keeps the connection alive.

        PINGREQ goes out when nothing was sent, or nothing received, for three quarters of the keep-alive.
        """
        interval = self.keep_alive * 750
        quiet = (now_ms - self.rx_time) & TICKS_MASK
        if self.tx_end:
            # What waits to be sent is as good as a ping, or is one: then its time has not begun.
            self.ping_time = now_ms
        elif self.pinged and quiet >= self.response_ms <= (now_ms - self.ping_time) & TICKS_MASK:
            return True
        elif (now_ms - self.tx_time) & TICKS_MASK >= interval or (quiet >= interval and not self.pinged):
            # Also when a ping is unanswered, because the answer is queued behind something large: the server wants to
            # hear from us in every interval.
            self.ping()
        return False

    def ping(self) -> int:
        """Queue PINGREQ, on a connection that was accepted: 0, or E_AGAIN when the transmit buffer is full for now."""
        if self.queue_packet(self._put_ping()):
            return errors.E_AGAIN
        if not self.pinged:
            self.pinged = True
            self.ping_time = self.now
        return 0

    def _put_ping(self) -> int:
        """Write PINGREQ behind what is to be sent: where it ends, or E_TOO_LARGE."""
        raise NotImplementedError

    def awaits(self) -> bool:
        """Whether something is due from the other end: an acknowledgement, or an answer."""
        return self.outbox.count > 0 or self.state == CONNECTING

    # -- sending -------------------------------------------------------------------------------------------------------

    def out(self) -> int:
        """How many bytes are to be sent now, from ``out_buf[out_at]`` on; or the status of a broken connection."""
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
        """Put what is to be sent ahead of the messages in the outbox into the empty transmit buffer: how many bytes; or
        -1 when no message may leave for now."""
        return 0

    def sent(self, k: int) -> int:
        """The transport took ``k`` of the bytes that ``out`` offered. Returns what ``out`` offers now."""
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
                # Its next sending, if there is one, is a repetition.
                self.outbox.buf[self.outbox.at[self._entry]] |= _DUP
                self.in_flight += 1
                if self._unsent == 1:
                    # Mostly: there is no other.
                    self._entry = self._entry + 1 if self._entry + 1 < self.outbox.slots else 0
                    self._unsent = 0
                else:
                    go_behind(self, self._entry, self._unsent)
        self.out_n = n
        return n or (self.out() if self.tx_end or self._unsent else 0)

    def send_whole(self, at: int, is_allowed: bool) -> bool:
        """Count the entry that was just committed at offset ``at`` of the outbox: as sent, if ``is_allowed`` and it can
        leave now (True: the port hands it to its transport); otherwise as waiting for ``out``."""
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
        """Decode ``n`` more bytes, just read into ``rx.view``: 0, or the error that ended the connection.

        Whole packets are handled where they lie; the rest waits. Stops early, with ``stalled`` set, when an answer has
        no room in the transmit buffer.
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
            # CLOSING, or no connection: received bytes are ignored.
            i = n
        take = self.take_packets
        # When a handler ends the connection or begins another one, ``epoch`` changes and nothing known here holds.
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
        """Check the number of unanswered messages: 0, or the error that ends the connection."""
        return 0

    def queue_packet(self, end: int) -> int:
        """Take what an encoder wrote behind the control bytes: 0 or its error, E_AGAIN when it may fit later."""
        if end < 0:
            return errors.E_AGAIN if end == errors.E_TOO_LARGE and self.tx_end else end
        self.tx_end = end
        return 0


def was_sent(s: Endpoint, i: int) -> bool:
    """Return whether this connection has sent all of entry ``i``; only then it can be acknowledged."""
    box = s.outbox
    i -= box.head
    if i < 0:
        i += box.slots
    return i < box.count - s._unsent


def go_behind(s: Endpoint, i: int, n: int) -> None:
    """Of the ``n`` last entries, the first of which is ``i``, go on to the first behind it that is to be sent.

    One that is acknowledged may leave the outbox at any time.
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
    """One connection, and the session that outlives it. Only ``connect`` and ``flush`` raise, and ``poll`` and ``wait``
    what a handler raises, or E_REFUSED for a subscription that the server refuses and no handler is told of."""

    #: Whether the last poll left off receiving before it had everything.
    behind = False

    #: Makes the session from a client identifier and options: the protocol's class.
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
        # Bound once, because binding allocates; and an attribute is found faster than a method.
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
        #: The error number of the dialer, where that is E_UNREACHABLE.
        self.errno = 0
        #: With False messages wait in the transport, and so does the server: for a program that has enough to do. The
        #: silence is then no sign of a dead line. What is in the receive buffer is delivered all the same. While an
        #: acknowledgement or an answer is due, what lies before it is received and delivered as well, one read a poll.
        self.reading = True

    @property
    def connected(self) -> bool:
        """Whether the server has accepted this connection and it has not ended."""
        return self.session.state == ONLINE

    def connect(self) -> bool:
        """Open the transport, greet the server and wait for the answer: whether the server had kept the session.

        Raises OSError when the transport cannot be opened, and HeadwaterError: E_REFUSED
        (``session.return_code`` says why), E_TIMEOUT after the session's ``response_ms``, E_CLOSED,
        E_ARGUMENT or E_TOO_LARGE (the greeting cannot be built), or what was wrong with the server's answer.
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
            # A dialer whose transports open in their first write, such as TLS, knows better than E_CLOSED.
            raise getattr(self.dialer, "error", None) or HeadwaterError(bad)
        return self.session_present

    def begin_connect(self) -> int:
        """Begin to connect, and let ``poll`` go on with it until ``connected``, or until it returns why not.

        Waits only where the dialer does: for a name, and for everything where it has no ``ready``
        (``headwater.types.PollDialer``). 0, or as ``poll``: E_UNREACHABLE (``errno`` says why), E_ARGUMENT or
        E_TOO_LARGE (the greeting cannot be built), E_REFUSED, E_TIMEOUT, E_CLOSED, or what was wrong with the answer.
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
        """Called with the number (of MQTT: the packet id) of each message of ours that was acknowledged to its end."""
        return self.session.on_delivered

    @on_delivered.setter
    def on_delivered(self, handler: "Callable[[int], object] | None") -> None:
        self.session.on_delivered = handler

    @property
    def session_present(self) -> bool:
        """Whether the server had kept the session when it accepted this connection."""
        return self.session.session_present

    @property
    def transport(self) -> "Transport | None":
        """What the connection runs over, None without one."""
        return self._transport

    @property
    def pinged(self) -> bool:
        """Whether a PINGREQ is unanswered."""
        return self.session.pinged

    def ping(self) -> int:
        """Send PINGREQ now, besides those of the keep-alive: 0, E_OFFLINE, or E_AGAIN (no room to send it for now)."""
        if self.session.state != ONLINE:
            return E_OFFLINE
        return self.session.ping() or send_out(self)

    def poll(self) -> int:
        """Receive what has arrived, check the timeouts, send what waits; never blocks.

        0, or the negative status with which the connection ended; E_OFFLINE when there is none. Called by a handler,
        it receives nothing: what has arrived waits for the handler to return.
        """
        transport = self._transport
        if transport is None:
            return _dial(self) if self._dialing else self.status or E_OFFLINE
        session = self.session
        session.now = self._ticks()
        n = 0
        if session.feeding or not (self.reading or session.awaits()):
            # What has arrived waits as well: silence is no sign of a dead connection.
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
                # There is more to read. Answers leave together, one write for all that a read brought.
                n = send_out(self)
                if n:
                    break
            if self._transport is not transport:
                # A handler has closed this connection, or has opened another.
                return self.status
            if n < 0:
                return _drop(self, n)
        if session.out_n:
            # The transport may take now what was stuck: only if it does not, the clock counts.
            n = send_out(self)
            if n:
                return n
        # The answer that a timeout waits for may have been in the transport: only now is silence silence.
        n = session.poll(session.now)
        return _drop(self, n) if n else send_out(self)

    def wait(self, ms: int) -> int:
        """Poll for ``ms`` milliseconds, idle in between: 0, or the status with which the connection ended."""
        begin = self._ticks()
        while True:
            status = self.poll()
            left = ms - ((self._ticks() - begin) & TICKS_MASK)
            if status or left <= 0:
                return status
            idle(self, min(left, _TURN_MS))

    def flush(self, timeout_ms: int) -> None:
        """Poll until everything published at QoS 1 and 2 is acknowledged and everything else is sent.

        Raises HeadwaterError: E_TIMEOUT; E_STATE when a handler waits for acknowledgements, which cannot come before
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
        """Say goodbye, as far as the transport takes it at once, and close."""
        if self._transport is not None and send_out(self) == 0 and self.session.disconnect() == 0:
            send_out(self)
        self.close()

    def close(self) -> None:
        """Close the transport without a word: the server then publishes the will."""
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
                # Also when a sink raises that is told of it.
                try:
                    transport.close()
                except OSError:
                    # It was to be given up, and now it is.
                    pass


def _dial(client: Driver) -> int:
    """Go on with opening the transport, and begin the session when it is open."""
    dialer = client.dialer
    try:
        if hasattr(dialer, "ready") and not dialer.ready():
            return 0
        transport = dialer.open()
    except (OSError, MemoryError) as e:
        # TLS on a board needs two large pieces of memory, and the next attempt may well find them.
        client.close()
        client.errno = e.errno or 0 if isinstance(e, OSError) else _ENOMEM
        client.status = E_UNREACHABLE
        return E_UNREACHABLE
    return _begin(client, transport)


def _begin(client: Driver, transport: "Transport") -> int:
    """There is a transport: let the session greet. 0, or why it cannot be built."""
    client._dialing = False
    client._transport = transport
    client._readinto = transport.readinto
    client._write = transport.write
    client.status = 0
    bad = client.session.connect(client._ticks())
    return _drop(client, bad) if bad else 0


def idle(client: Driver, ms: int) -> None:
    """Wait for bytes for at most ``ms`` milliseconds. Where they would not be received, let the time pass: the dialer's
    ``wait`` would return at once as long as they are there."""
    session = client.session
    if (session.stalled or session.feeding or not (client.reading or session.awaits())) and hasattr(
        client.dialer, "sleep"
    ):
        client.dialer.sleep(ms)
    else:
        client.dialer.wait(ms)


def send_ready(client: Driver, n: "int | None") -> int:
    """Send the ``n`` bytes of the transmit buffer, which are all that waits: 0 or E_CLOSED."""
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
    """Send what can be sent now: 0, or the status with which the connection ended."""
    n: int | None = client._out()
    while n > 0:  # type: ignore[operator]  # None has returned
        try:
            n = client._write(client.session.out_buf, client.session.out_at, n)  # type: ignore[arg-type]
        except OSError:
            return _drop(client, E_CLOSED)
        if not n:
            if n == 0:
                # A handshake under way, which has a timeout of its own.
                client._sent(0)
            return 0
        n = client._sent(n)
    return _drop(client, n) if n else 0


def send_request(client: Driver, status: int) -> int:
    """Send what waits, when ``status`` is one of success; returns ``status``."""
    if status >= 0:
        send_out(client)
    return status


def _receive(client: Driver, n: "int | None") -> int:
    """Read at most ``n`` bytes: their number, 0 if there are none now, or E_CLOSED."""
    try:
        n = client._readinto(client.session.rx.view, n)  # type: ignore[arg-type]  # it is a number until here
    except OSError:
        return E_CLOSED
    return 0 if n is None else n or E_CLOSED


def _take(client: Driver, n: int) -> int:
    """Parse ``n`` bytes that were read: the session's status. If a handler raises, the next poll goes on."""
    try:
        n = client._feed(n)
    except BaseException:
        client.session.feeding = False
        client.session.stalled = True
        raise
    client.session.feeding = False
    return n


def _drop(client: Driver, status: int) -> int:
    """The connection is over: give the transport back and say why."""
    if client.session.state == CLOSING:
        status = E_CLOSED
    elif client.session.state == ERROR:
        _last_word(client)
    client.close()
    client.status = status
    return status


def _last_word(client: Driver) -> None:
    """Where the version has one, a broken session ends with a packet that says why."""
    n = client._out()
    if n > 0:
        try:
            client._write(client.session.out_buf, client.session.out_at, n)
        except OSError:
            pass


def _nothing(*_: object) -> None:
    """Stands for the transport's methods while there is none."""
