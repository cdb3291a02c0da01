"""The way out of an MQTT connection: the state it is in, what is to be sent, what is unacknowledged.

Control packets and QoS 0 go through one transmit buffer, behind each other; messages at QoS 1 and 2 leave from
the outbox, in which they stay until they are acknowledged. ``endpoint.Endpoint`` adds the way in.
"""

from headwater import errors
from headwater.mqtt import decode, encode, spec
from headwater.mqtt.transitions import (
    AT1,
    AT2,
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
    STRAY,
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
# Where the chunk that is being sent comes from.
_CONTROL = const(0)
_ENTRY = const(1)


class Sender:
    """What ``Endpoint`` sends with. ``on_delivered(packet_id)`` is called when a message of ours at QoS 1 or 2 has
    been acknowledged to its end."""

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
        self.known_topic: Bytes | None = None
        self.state = IDLE
        self._turn = 0
        self.status = 0
        #: How long the other end, or the transport, may take to answer.
        self.response_ms = response_ms
        self.now = self.rx_time = self.tx_time = 0
        self._stuck = False
        self._stuck_since = 0
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
            self._may_have_left(self._entry)
        self.tx_end = self.out_n = self._unsent = 0
        # A handler that is running may hold room for its answer, which nobody waits for now.
        self.tx_size = len(self.tx)
        self._stuck = False

    def poll(self, now_ms: int) -> int:
        """Tell the time: 0, or the status of a broken connection. ``now_ms`` wraps at 2**30 or a multiple of
        it.

        E_TIMEOUT when the transport has taken nothing of what is to be sent for ``response_ms``.
        """
        self.now = now_ms
        if self.status:
            return self.status
        if not self.out_n and not self.tx_end:
            self._stuck = False
        elif not self._stuck:
            self._stuck = True
            self._stuck_since = now_ms
        elif (now_ms - self._stuck_since) & TICKS_MASK >= self.response_ms:
            return self.fail(errors.E_TIMEOUT)
        return 0

    def _may_have_left(self, i: int) -> None:
        """The next sending of entry ``i``, if there is one, is a repetition: DUP (3.3.1.1)."""
        box = self.outbox
        if box.state[i] == AT1 or box.state[i] == AT2:
            box.buf[box.at[i]] |= spec.DUP

    def resume(self, session_present: bool) -> None:
        """Everything unacknowledged goes out again, in its order (4.4); new messages follow.

        When the other end has lost the session, a QoS 2 message that it had answered with PUBREC is
        delivered: done.
        """
        box = self.outbox
        turn = self._turn
        try:
            if not session_present:
                i = box.head
                for _ in range(box.count):
                    if box.state[i] == REL:
                        self._delivered(i)
                        if self._turn != turn:
                            return
                    i = i + 1 if i + 1 < box.slots else 0
        finally:
            # Also when ``on_delivered`` raises.
            self._entry = box.head
            self._unsent = box.count
            self.in_flight = 0
        # A server that kept a session which this end has forgotten (a reset, and the outbox was in memory) may hold
        # QoS 2 messages of it under ids that are about to be used again, and would take the new ones for repetitions.
        # So first every id is released; an id that was not held is answered as well (4.3.3).
        self._sweep = self._swept = 0
        if session_present and box.fresh:
            self._sweep = box.slots
        box.fresh = session_present and box.fresh

    # -- sending -------------------------------------------------------------------------------------------------------

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Hand in a message; it leaves through ``out``. Allocates nothing when topic and payload are
        bytes-like.

        Returns 0 (QoS 0), or its packet id (QoS 1, 2): it is then in the outbox, connection or not, until
        acknowledged. Errors: E_TOPIC, E_QOS; E_ARGUMENT (not bytes); E_OFFLINE (QoS 0 without a connection); E_AGAIN
        (the transmit buffer is full for now); E_WINDOW (the outbox is); E_TOO_LARGE.
        """
        try:
            if topic is not self.known_topic:
                # A topic is checked once: the same object again is known to be right, unless it can be changed.
                n = len(topic)
                if n > 65535 or self._check(topic, 0, n):
                    return errors.E_TOPIC
                if isinstance(topic, bytes):
                    self.known_topic = topic
            if qos == 0:
                return self._publish_now(topic, payload, 0x31 if retain else 0x30)
            if qos != 1 and qos != 2:
                return errors.E_QOS
            box = self.outbox
            n = encode.publish_size(topic, payload, qos)
            at = box.reserve(n)
            if at < 0:
                return errors.E_WINDOW if box.count and n <= len(box.buf) else errors.E_TOO_LARGE
            packet_id = box.next_id()
            head = 0x30 | qos << 1 | (1 if retain else 0)
            encode.publish(box.buf, at, at + n, topic, payload, head, packet_id)
        except NOT_BYTES:
            return errors.E_ARGUMENT
        box.commit(n, qos)
        self._unsent += 1
        return packet_id

    def _publish_now(self, topic: "Bytes", payload: "Bytes", head: int) -> int:
        """QoS 0: into the transmit buffer, or not at all."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        end = encode.publish(self.tx, self.tx_end, self.tx_size, topic, payload, head, 0)
        if end > 0:
            self.tx_end = end
            return 0
        return errors.E_AGAIN if encode.publish_size(topic, payload, 0) <= len(self.tx) else end

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
        if self.state == ONLINE:
            if self._sweep:
                return self._out_sweep()
            if self._unsent and self.in_flight < self.window:
                box = self.outbox
                self.out_buf = box.buf
                self.out_at = box.at[self._entry]
                self._out_from = _ENTRY
                self.out_n = n = box.size[self._entry]
                return n
        return self.status

    def _out_sweep(self) -> int:
        """PUBREL for the next ids to be released, as many as the transmit buffer holds; 0 while answers are awaited."""
        while self._swept < self.outbox.slots and self.tx_size - self.tx_end >= _ACK_SIZE:
            self._swept += 1
            self._put_ack(_PUBREL, self._swept)
        return self.out() if self.tx_end else 0

    def sent(self, k: int) -> None:
        """The transport took ``k`` of the bytes that ``out`` offered."""
        self.tx_time = self.now
        self._stuck = False
        at = self.out_at + k
        self.out_at = at
        n = self.out_n - k
        if n == 0:
            if self._out_from == _CONTROL:
                n = self.tx_end - at
                if n == 0:
                    self.tx_end = 0
            else:
                self._may_have_left(self._entry)
                self.in_flight += 1
                self._next_entry()
        self.out_n = n

    def _next_entry(self) -> None:
        """Go on to the next entry that is not acknowledged: one that is may leave the outbox at any time."""
        box = self.outbox
        i = self._entry
        while True:
            i = i + 1 if i + 1 < box.slots else 0
            self._unsent -= 1
            if not self._unsent or box.state[i] != DONE:
                break
        self._entry = i

    def _put(self, end: int) -> int:
        """Take what an encoder wrote behind the control bytes: 0 or its error, E_AGAIN when it may fit later."""
        if end < 0:
            return errors.E_AGAIN if end == errors.E_TOO_LARGE and self.tx_end else end
        self.tx_end = end
        return 0

    def _put_ack(self, packet_type: int, packet_id: int) -> None:
        """Answer with a packet id; ``feed`` made sure that there is room."""
        self.tx_end = encode.acknowledge(self.tx, self.tx_end, self.tx_size, packet_type, packet_id)

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def _on_ack(self, p: "Packet") -> int:
        bad = decode.packet_id(p)
        if bad:
            return bad
        box = self.outbox
        packet_id = p.packet_id
        i = box.find(packet_id)
        if i >= 0 and not self._was_sent(i):
            i = -1
        kind = p.head >> 4
        new = DELIVERY[(box.state[i] if i >= 0 else FREE) * 4 + kind - 4]
        if new == WRONG:
            return errors.E_ACK_KIND
        if new == STRAY:
            if self._sweep and kind == _PUBCOMP and packet_id <= box.slots:
                self._sweep -= 1
                box.fresh = self._sweep > 0
                return 0
            self.strays += 1
            if kind == _PUBREC:
                self._put_ack(_PUBREL, packet_id)
            return 0
        if new == REL:
            # From here on the entry is its PUBREL: that is what a new connection sends again.
            encode.acknowledge(box.buf, box.at[i], box.at[i] + _ACK_SIZE, _PUBREL, packet_id)
            box.size[i] = _ACK_SIZE
            box.set(i, REL)
            self._put_ack(_PUBREL, packet_id)
            return 0
        self.in_flight -= 1
        self._delivered(i)
        return 0

    def _delivered(self, i: int) -> None:
        """Entry ``i`` is acknowledged to its end."""
        self.outbox.set(i, DONE)
        if self.on_delivered is not None:
            self.on_delivered(i + 1)

    def _was_sent(self, i: int) -> bool:
        """Whether this connection has sent entry ``i`` to its last byte: only then can it be acknowledged."""
        box = self.outbox
        place = i - box.head
        if place < 0:
            place += box.slots
        return place < box.count - self._unsent
