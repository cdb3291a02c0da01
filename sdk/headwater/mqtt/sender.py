"""The way out of an MQTT connection: the state it is in, what is to be sent, what is unacknowledged.

Control packets and QoS 0 go through one transmit buffer, behind each other; messages at QoS 1 and 2 leave from
the outbox, in which they stay until they are acknowledged. ``endpoint.Endpoint`` adds the way in.

Here and in ``endpoint``, what runs for each message is functions with few names, for MicroPython's sake. It looks for a
method among the object's attributes first, in vain, which takes longer than the call. And a function that needs more
than eleven machine words, three more and six at least where it catches an exception, gets them from the heap.
"""

from headwater import errors
from headwater.mqtt import decode, spec
from headwater.mqtt.encode import acknowledge, publish_size, put_publish
from headwater.mqtt.transitions import (
    DELIVERY,
    DONE,
    EVENTS,
    FAIL,
    FREE,
    IDLE,
    LOST,
    NEXT,
    ONLINE,
    REL,
    WRONG,
)
from headwater.wire import NOT_BYTES, TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode import Packet
    from headwater.types import Bytes, NameCheck, Outbox

_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_ACK_SIZE = const(4)
# CONNECT alone takes 14 bytes.
_SMALLEST = const(16)
# As in ``transitions``; a constant costs less than a name.
_AT1 = const(1)
_AT2 = const(2)
_DONE = const(4)
# Where the chunk that is being sent comes from.
_CONTROL = const(0)
_ENTRY = const(1)
# The longest packet whose remaining length has one byte.
_SHORT = const(129)
# Nobody's topic is this object.
_NO_TOPIC = bytearray(0)


class Sender:
    """What ``Endpoint`` sends with. ``on_delivered(packet_id)`` is called when a message of ours at QoS 1 or 2 has
    been acknowledged to its end."""

    #: What an acknowledgement makes of a message; a session may have a table of its own.
    delivery = DELIVERY

    def __init__(self, tx_size: int, outbox: "Outbox", window: int, response_ms: int, check: "NameCheck"):
        if tx_size < _SMALLEST:
            raise ValueError("the transmit buffer needs at least 16 bytes")
        self.tx = bytearray(tx_size)
        self.tx_end = 0
        # Whatever a slice is given, the buffer keeps its length.
        self._pin = memoryview(self.tx)
        self.tx_size = tx_size
        self.outbox = outbox
        self.window = window
        self._check = check
        # How a version writes PUBLISH.
        self._publish_size = publish_size
        self._put_publish = put_publish
        #: A topic that has been checked, and cannot change.
        self.known_topic: Bytes | None = None
        #: The topic of the last PUBLISH at QoS 0 that was put at the beginning of ``tx``, and where its payload is
        #: there. As long as ``tx`` begins with its first byte and the connection is as it was, it can be sent again
        #: with another payload (``rewrite``): no other packet begins so.
        self.ready: Bytes = _NO_TOPIC
        self.ready_at = 0
        self.state = IDLE
        self._turn = 0
        self.status = 0
        #: How long the other end, or the transport, may take to answer.
        self.response_ms = response_ms
        self.now = self.rx_time = self.tx_time = 0
        # Since when the transport has taken nothing of what is to be sent; None when it has, or there is nothing.
        self._stuck: int | None = None
        self.on_delivered: Callable[[int], object] | None = None
        #: Acknowledgements for unknown ids.
        self.strays = 0
        # The chunk under way, then the entries of the outbox that this connection has not sent yet.
        self.out_buf: Bytes = self.tx
        self.out_at = 0
        self.out_n = 0
        self._out_from = _CONTROL
        self._entry = outbox.head
        self._unsent = 0
        # Releasing the ids of a forgotten life: answers still awaited, and the last id asked for.
        self._sweep = self._swept = 0
        self.in_flight = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def event(self, event: int) -> None:
        """Move the connection along its table (``transitions.NEXT``)."""
        self.state = NEXT[self.state * EVENTS + event]
        self._turn += 1
        self.ready = _NO_TOPIC

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
        if self.out_n and self._out_from == _ENTRY:
            _may_have_left(self.outbox, self._entry)
        self.tx_end = self.out_n = self._unsent = 0
        # A handler that is running may hold room for its answer, which nobody waits for now.
        self.tx_size = len(self.tx)
        self._stuck = None

    def poll(self, now_ms: int) -> int:
        """Tell the time: 0, or the status of a broken connection. ``now_ms`` wraps at 2**30 or a multiple of
        it.

        E_TIMEOUT when the transport has taken nothing of what is to be sent for ``response_ms``.
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
        return 0

    def resume(self, session_present: bool) -> None:
        """Everything unacknowledged goes out again, in its order (4.4); new messages follow.

        When the other end has lost the session, a QoS 2 message that it had answered with PUBREC is
        delivered: done. The others are new messages of the new session.
        """
        box = self.outbox
        turn = self._turn
        # ``on_delivered`` may publish: nothing leaves the outbox before it is settled what of it is left.
        self.in_flight = self.window
        self._sweep = 0
        try:
            if not session_present:
                _renew(box)
                i = box.head
                for _ in range(box.count):
                    if box.state[i] == REL:
                        self._delivered(i)
                        if self._turn != turn:
                            return
                    i = i + 1 if i + 1 < box.slots else 0
        finally:
            # Also when ``on_delivered`` raises; but not when it has ended the connection, and perhaps begun another.
            if self._turn == turn:
                self._entry = box.head
                self._unsent = box.count
                self.in_flight = 0
                # A server that kept a session which this end has forgotten (a reset, and the outbox was in memory) may
                # hold QoS 2 messages of it under ids that are about to be used again, and would take the new ones for
                # repetitions. So before the first of them every id is released; an id that was not held is answered as
                # well (4.3.3). Not sooner: a server that knows no QoS 2 does not know PUBREL either.
                self._sweep = box.slots if session_present and box.fresh else 0
                self._swept = 0
                if box.fresh and not session_present and box.settle():
                    self.fail(errors.E_STORE)

    # -- sending -------------------------------------------------------------------------------------------------------

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Hand in a message; it leaves through ``out``. Allocates nothing when topic and payload are
        bytes-like.

        Returns 0 (QoS 0), or its packet id (QoS 1, 2): it is then in the outbox, connection or not, until
        acknowledged. Errors: E_TOPIC, E_QOS; E_ARGUMENT (not bytes); E_OFFLINE (QoS 0 without a connection); E_AGAIN
        (the transmit buffer is full for now); E_WINDOW (the outbox is); E_TOO_LARGE.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self.hand_in(topic, payload, qos << 1 | (1 if retain else 0))

    def hand_in(self, topic: "Bytes", payload: "Bytes", flags: int) -> int:
        """``publish``, with QoS and RETAIN as they stand in PUBLISH's first byte."""
        try:
            if topic is not self.known_topic and _is_bad(self, topic):
                return errors.E_TOPIC
            n = self._publish_size(topic, payload, flags >> 1)
            if flags > 1:
                box = self.outbox
                if n < 0 or box.reserve(n) < 0:
                    return errors.E_WINDOW if box.count and 0 < n <= len(box.buf) else errors.E_TOO_LARGE
                packet_id = box.next + 1
                self._put_publish(box.buf, box.reserved, topic, payload, 0x30 | flags | packet_id << 8)
                if box.commit(n, flags >> 1) < 0:
                    return errors.E_STORE
                self._unsent += 1
                return packet_id
            if self.state != ONLINE:
                return errors.E_OFFLINE
            at = self.tx_end
            if n < 0 or n > self.tx_size - at:
                return errors.E_AGAIN if 0 < n <= len(self.tx) else errors.E_TOO_LARGE
            if at == 0:
                # Whatever comes of it, this takes the place of the packet that was ready.
                self.ready = _NO_TOPIC
            self._put_publish(self.tx, at, topic, payload, 0x30 | flags)
            self.tx_end = at + n
            if (
                at == 0
                and flags == 0
                and topic is self.known_topic
                and n <= _SHORT <= self.tx_size - _ACK_SIZE
            ):
                self.ready = topic
                self.ready_at = n - len(payload)
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return 0

    def out(self) -> int:
        """How many bytes are to be sent now, from ``out_buf[out_at]`` on; or the status of a broken connection."""
        n = self.out_n
        if n:
            return n
        n = self.tx_end
        if n:
            self.out_buf = self.tx
            self.out_at = 0
            self._out_from = _CONTROL
            self.out_n = n
            return n
        if self.state == ONLINE and self._unsent and self.in_flight < self.window:
            box = self.outbox
            if self._sweep and box.state[self._entry] == _AT2:
                return self._out_sweep()
            self.out_buf = box.buf
            self.out_at = box.at[self._entry]
            self._out_from = _ENTRY
            self.out_n = n = box.size[self._entry]
            return n
        return self.status

    def _out_sweep(self) -> int:
        """PUBREL for the next ids to be released, as many as the transmit buffer holds; 0 while answers are awaited.

        What is under way is acknowledged first: its ids are among these.
        """
        if self.in_flight == 0:
            while self._swept < self.outbox.slots and self.tx_size - self.tx_end >= _ACK_SIZE:
                self._swept += 1
                put_ack(self, _PUBREL, self._swept)
        return self.out() if self.tx_end else 0

    def sent(self, k: int) -> int:
        """The transport took ``k`` of the bytes that ``out`` offered. Returns what ``out`` offers now."""
        self.tx_time = self.now
        self._stuck = None
        k += self.out_at
        n = self.out_at + self.out_n - k
        self.out_at = k
        if n == 0:
            if self._out_from == _CONTROL:
                n = self.tx_end - k
                if n == 0:
                    self.tx_end = 0
            else:
                _entry_left(self)
        self.out_n = n
        return n or (self.out() if self.tx_end or self._unsent else 0)

    def _put(self, end: int) -> int:
        """Take what an encoder wrote behind the control bytes: 0 or its error, E_AGAIN when it may fit later."""
        if end < 0:
            return errors.E_AGAIN if end == errors.E_TOO_LARGE and self.tx_end else end
        self.tx_end = end
        return 0

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def _on_ack(self, p: "Packet") -> int:
        bad = decode.packet_id(p)
        if bad:
            return bad
        i = self.outbox.find(p.packet_id)
        if i >= 0 and not was_sent(self, i):
            i = -1
        new = self.delivery[(self.outbox.state[i] if i >= 0 else FREE) * 4 + (p.head >> 4) - 4]
        if new == DONE:
            self.in_flight -= 1
            self._delivered(i)
        elif new == REL:
            _release(self, i)
        elif new == WRONG:
            return errors.E_ACK_KIND
        else:
            self._stray(p.head >> 4, p.packet_id)
        return 0

    def _stray(self, packet_type: int, packet_id: int) -> None:
        """An acknowledgement of what is not under way."""
        if self._sweep and packet_type == _PUBCOMP and packet_id <= self.outbox.slots:
            self._sweep -= 1
            if not self._sweep and self.outbox.settle():
                self.fail(errors.E_STORE)
            return
        self.strays += 1
        if packet_type == _PUBREC:
            put_ack(self, _PUBREL, packet_id)

    def _delivered(self, i: int) -> None:
        """Entry ``i`` is acknowledged to its end."""
        self.outbox.set(i, DONE)
        if self.on_delivered is not None:
            self.on_delivered(i + 1)


def rewrite(s: Sender, payload: "Bytes") -> int:
    """Put another payload into the packet that is ready, to be sent: its size; or 0 when ``hand_in`` must see to it."""
    try:
        s.tx_end = s.ready_at + len(payload)
        if s.tx_end <= _SHORT:
            s.tx[1] = s.tx_end - 2
            s.tx[s.ready_at : s.tx_end] = payload
            return s.tx_end
    except NOT_BYTES:
        pass
    s.tx_end = 0
    return 0


def put_ack(s: Sender, packet_type: int, packet_id: int) -> None:
    """Answer with a packet id; the caller made sure that there is room."""
    s.tx_end = acknowledge(s.tx, s.tx_end, s.tx_size, packet_type, packet_id)


def acknowledged(s: Sender, buf: "Bytes", at: int) -> bool:
    """PUBACK has come, with its packet id at ``at``: whether it ends a message at QoS 1; if not, nothing happened."""
    box = s.outbox
    i = (buf[at] << 8 | buf[at + 1]) - 1
    if i < 0 or i >= box.slots or box.state[i] != _AT1 or not was_sent(s, i):
        return False
    s.in_flight -= 1
    box.set(i, _DONE)
    if s.on_delivered is not None:
        s.on_delivered(i + 1)
    return True


def _is_bad(s: Sender, topic: "Bytes") -> bool:
    """Check a topic, once: the same object again is known to be right, unless it can be changed."""
    n = len(topic)
    if n > 65535 or s._check(topic, 0, n):
        return True
    if isinstance(topic, bytes):
        s.known_topic = topic
    return False


def _may_have_left(box: "Outbox", i: int) -> None:
    """The next sending of entry ``i``, if there is one, is a repetition: DUP (3.3.1.1)."""
    if box.state[i] <= _AT2:
        box.buf[box.at[i]] |= spec.DUP


def _renew(box: "Outbox") -> None:
    """To a session that begins anew nothing is a repetition, whatever may have left before."""
    for i in range(box.slots):
        if box.state[i] == _AT1 or box.state[i] == _AT2:
            box.buf[box.at[i]] &= 255 - spec.DUP


def _entry_left(s: Sender) -> None:
    """The entry under way has been sent; go on to the next one that is not acknowledged.

    One that is acknowledged may leave the outbox at any time.
    """
    box = s.outbox
    i = s._entry
    _may_have_left(box, i)
    s.in_flight += 1
    n = s._unsent
    while True:
        i = i + 1 if i + 1 < box.slots else 0
        n -= 1
        if not n or box.state[i] != _DONE:
            break
    s._entry = i
    s._unsent = n


def was_sent(s: Sender, i: int) -> bool:
    """Whether this connection has sent entry ``i`` to its last byte: only then can it be acknowledged."""
    box = s.outbox
    i -= box.head
    if i < 0:
        i += box.slots
    return i < box.count - s._unsent


def _release(s: Sender, i: int) -> None:
    """Entry ``i`` was answered with PUBREC. Now it is its PUBREL: that is what a new connection sends again."""
    box = s.outbox
    if box.set(i, REL):
        s.fail(errors.E_STORE)
        return
    acknowledge(box.buf, box.at[i], box.at[i] + _ACK_SIZE, _PUBREL, i + 1)
    box.size[i] = _ACK_SIZE
    put_ack(s, _PUBREL, i + 1)
