"""The way out of an FMQ connection: the state it is in, what is to be sent, what is unacknowledged.

Frames without a place in the outbox go through one transmit buffer, behind each other; messages at QoS 1 and 2 leave
from the outbox, in which they stay until they are answered to their end. An entry's id stands behind its first byte,
and by that an answer finds it. Sent again, it is the same bytes with the same id, and DUP.

The first byte also tells a message that was answered with PUBREC: it has become a PUBREL. The store is not told: if a
power cut brings the PUBLISH back, the hub knows its id.

Here and in ``session``, what runs for each message is functions with few names, for MicroPython's sake: see
``headwater.mqtt.sender``.
"""

from headwater import errors
from headwater.fmq.encode import NO_TAGS, answer, length_size, message_size, put_head, put_message
from headwater.fmq.message_id import IdMaker, same
from headwater.fmq.topics import check_name
from headwater.fmq.transitions import DELIVERY, EVENTS, FAIL, IDLE, LOST, NEXT, ONLINE
from headwater.wire import NOT_BYTES, TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.types import Bytes, Outbox

_PUBLISH = const(3)
_PUBREL = const(6)
_DUP = const(8)
# As in ``transitions``; a constant costs less than a name.
_FREE = const(0)
_AT2 = const(2)
_REL = const(3)
_DONE = const(4)
_WRONG = const(6)
#: The longest answer: a byte, an id, and an ACK's length.
ANSWER_SIZE = const(20)


class Sender:
    """What ``session.ClientSession`` sends with.

    ``on_delivered(number)`` is called when a message of ours at QoS 1 or 2 has been answered to its end, and
    ``on_refused(number, code)`` when the hub has refused it: it is over as well. Of a message at QoS 0, which hubs may
    refuse, but need not, the number is 0.
    """

    def __init__(self, tx_size: int, outbox: "Outbox", window: int, response_ms: int, ids: IdMaker):
        if tx_size < 2 * ANSWER_SIZE:
            raise ValueError("the transmit buffer needs at least 40 bytes")
        self.tx = bytearray(tx_size)
        self.tx_end = 0
        # Whatever a slice is given, the buffer keeps its length.
        self._pin = memoryview(self.tx)
        self.tx_size = tx_size
        self.outbox = outbox
        self.window = window
        self.ids = ids
        #: The process number that the hub has given: little-endian bytes, none before.
        self.process: Bytes = b""
        #: A topic that has been checked, and cannot change.
        self.known_topic: Bytes | None = None
        self.state = IDLE
        self.turn = 0
        self.status = 0
        #: How long the hub, or the transport, may take to answer.
        self.response_ms = response_ms
        self.now = self.rx_time = self.tx_time = 0
        # Since when the transport has taken nothing of what is to be sent; None when it has, or there is nothing.
        self._stuck: int | None = None
        self.on_delivered: Callable[[int], object] | None = None
        self.on_refused: Callable[[int, int], object] | None = None
        #: Answers to what is not under way.
        self.strays = 0
        # The chunk under way, then the entries of the outbox that this connection has not sent yet.
        self.out_buf: Bytes = self.tx
        self.out_at = 0
        self.out_n = 0
        self._from_tx = True
        self._entry = outbox.head
        self._unsent = 0
        self.in_flight = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def event(self, event: int) -> None:
        """Move the connection along its table (``transitions.NEXT``)."""
        self.state = NEXT[self.state * EVENTS + event]
        self.turn += 1

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
        if self.out_n and not self._from_tx:
            _may_have_left(self.outbox, self._entry)
        self.tx_end = self.out_n = self._unsent = 0
        # A handler that is running may hold room for its answer, which nobody waits for now.
        self.tx_size = len(self.tx)
        self._stuck = None

    def poll(self, now_ms: int) -> int:
        """Tell the time: 0, or the status of a broken connection. ``now_ms`` wraps at 2**30 or a multiple of it.

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

    def resume(self) -> None:
        """Everything unacknowledged goes out again, in its order; new messages follow."""
        box = self.outbox
        for i in range(box.slots):
            if box.state[i] == _REL:
                # A journal's place of something that it has lost.
                box.set(i, _DONE)
            elif box.state[i] == _AT2 and _is_released(box, i):
                # It has DUP like a message: from here, or from where it was restored.
                box.buf[box.at[i]] = _PUBREL << 4
        self._entry = box.head
        self._unsent = box.count
        self.in_flight = 0

    # -- sending -------------------------------------------------------------------------------------------------------

    def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, tags: "Bytes" = NO_TAGS
    ) -> int:
        """Hand in a message; it leaves through ``out``. Allocates nothing when topic and payload are bytes-like.

        ``tags`` is what ``encode.tag_list`` makes. Returns 0 (QoS 0), or its number (QoS 1, 2): it is then in the
        outbox, connection or not, until it is answered. Errors: E_TOPIC, E_QOS; E_ARGUMENT (not bytes); E_OFFLINE (QoS
        0 without a connection, QoS 1 and 2 before a hub has ever given a process number); E_AGAIN (the transmit buffer
        is full for now); E_WINDOW (the outbox is); E_TOO_LARGE; E_STORE.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self.hand_in(topic, payload, qos << 1 | (1 if retain else 0), tags)

    def hand_in(self, topic: "Bytes", payload: "Bytes", flags: int, tags: "Bytes" = NO_TAGS) -> int:
        """``publish``, with QoS and RETAIN as they stand in PUBLISH's first byte."""
        try:
            if topic is not self.known_topic and _is_bad(self, topic):
                return errors.E_TOPIC
            n = message_size(topic, payload, tags)
            n += 1 + len(self.ids.ident) + length_size(n)
            if flags > 1:
                return _keep(self, n, topic, payload, flags, tags)
            if self.state != ONLINE:
                return errors.E_OFFLINE
            if n > self.tx_size - self.tx_end:
                return errors.E_AGAIN if n <= len(self.tx) else errors.E_TOO_LARGE
            flags = put_head(self.tx, self.tx_end, _PUBLISH << 4 | flags, self.ids.next(_PUBLISH, self.now))
            self.tx_end = put_message(self.tx, flags, topic, payload, tags)
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
            self._from_tx = True
            self.out_n = n
            return n
        if self.state == ONLINE and self._unsent and self.in_flight < self.window:
            box = self.outbox
            self.out_buf = box.buf
            self.out_at = box.at[self._entry]
            self._from_tx = False
            self.out_n = n = box.size[self._entry]
            return n
        return self.status

    def sent(self, k: int) -> int:
        """The transport took ``k`` of the bytes that ``out`` offered. Returns what ``out`` offers now."""
        self.tx_time = self.now
        self._stuck = None
        k += self.out_at
        n = self.out_at + self.out_n - k
        self.out_at = k
        if n == 0:
            if self._from_tx:
                n = self.tx_end - k
                if n == 0:
                    self.tx_end = 0
            else:
                _entry_left(self)
        self.out_n = n
        return n or (self.out() if self.tx_end or self._unsent else 0)

    def _put(self, end: int) -> int:
        """Take what an encoder wrote behind the frames to be sent: 0 or its error, E_AGAIN when it may fit later."""
        if end < 0:
            return errors.E_AGAIN if end == errors.E_TOO_LARGE and self.tx_end else end
        self.tx_end = end
        return 0


def put_answer(s: Sender, kind: int, buf: "Bytes", at: int, end: int) -> None:
    """Answer the message whose id is ``buf[at:end]``; the caller made sure that there is room."""
    s.tx_end = answer(s.tx, s.tx_end, s.tx_size, kind, buf, at, end)


def answered(s: Sender, column: int, buf: "Bytes", at: int, end: int) -> int:
    """An ACK that says success (0), a PUBREC (1) or a PUBCOMP (2) has come to ``buf[at:end]``: 0 or E_ACK_KIND."""
    i = find(s, buf, at, end)
    box = s.outbox
    new = _FREE
    if i >= 0:
        new = _REL if _is_released(box, i) else box.state[i]
    new = DELIVERY[new * 3 + column]
    if new == _DONE:
        over(s, i)
        if s.on_delivered is not None:
            s.on_delivered(i + 1)
    elif new == _REL:
        box.buf[box.at[i]] = _PUBREL << 4
        box.size[i] = 1 + end - at
        put_answer(s, _PUBREL, buf, at, end)
    elif new == _WRONG:
        return errors.E_ACK_KIND
    else:
        s.strays += 1
        if column == 1:
            put_answer(s, _PUBREL, buf, at, end)
    return 0


def over(s: Sender, i: int) -> None:
    """Entry ``i`` is answered to its end."""
    s.in_flight -= 1
    s.outbox.set(i, _DONE)


def find(s: Sender, buf: "Bytes", at: int, end: int) -> int:
    """The entry of the message ``buf[at:end]``, if this connection has sent it to its last byte; or -1.

    Answers come in the order of the messages, or nearly so: it is the first, or one of the first.
    """
    box = s.outbox
    i = box.head
    n = box.count - s._unsent
    while n:
        if box.state[i] != _DONE and same(buf, at, end, box.buf, box.at[i] + 1):
            return i
        i = i + 1 if i + 1 < box.slots else 0
        n -= 1
    return -1


def _keep(s: Sender, n: int, topic: "Bytes", payload: "Bytes", flags: int, tags: "Bytes") -> int:
    """Put a message of ``n`` bytes into the outbox: its number, or a code."""
    box = s.outbox
    if not s.process:
        # Its id would be another board's as well.
        return errors.E_OFFLINE
    if box.reserve(n) < 0:
        return errors.E_WINDOW if box.count and n <= len(box.buf) else errors.E_TOO_LARGE
    put_message(
        box.buf,
        put_head(box.buf, box.reserved, _PUBLISH << 4 | flags, s.ids.next(_PUBLISH, s.now)),
        topic,
        payload,
        tags,
    )
    if box.commit(n, flags >> 1) < 0:
        return errors.E_STORE
    s._unsent += 1
    # The last one: the ring has gone on behind it.
    return box.next or box.slots


def _is_bad(s: Sender, topic: "Bytes") -> bool:
    """Check a topic, once: the same object again is known to be right, unless it can be changed."""
    if check_name(topic):
        return True
    if isinstance(topic, bytes):
        s.known_topic = topic
    return False


def _is_released(box: "Outbox", i: int) -> bool:
    """Whether entry ``i`` was answered with PUBREC."""
    return box.buf[box.at[i]] >> 4 == _PUBREL


def _may_have_left(box: "Outbox", i: int) -> None:
    """The next sending of entry ``i``, if there is one, is a repetition: DUP; of a PUBREL, ``resume`` takes it away."""
    box.buf[box.at[i]] |= _DUP


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
