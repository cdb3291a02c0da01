"""The client's end of an FMQ connection (docs/protocols/fmq.md): no I/O, and the caller's time.

Its user reads at most ``rx.room`` bytes to the start of ``rx.view`` (after ``rx.window()``) and calls ``feed(n)``;
sends ``out_buf[out_at : out_at + n]``, n from ``out()``, and calls ``sent(k)`` with how many were taken; and calls
``poll(now_ms)`` a few times a second. A negative answer of any of these says that the connection is over.

Publishing, receiving, acknowledging, resending and keep-alive allocate nothing; connecting and requests do.
"""

from headwater import errors
from headwater.connection import (
    ACCEPT,
    CLOSING,
    CONNECTING,
    FINISH,
    LOST,
    ONLINE,
    OPEN,
    Endpoint,
    RamOutbox,
    RxBuf,
)
from headwater.errors import PEER, blame
from headwater.fmq.frames import (
    NO_TAGS,
    Frame,
    check_filter,
    check_name,
    decode_fields,
    decode_header,
    encode_answer,
    encode_frame,
    length_size,
    message_size,
    put_head,
    put_length,
    put_message,
    scan,
)
from headwater.fmq.ids import IdMaker, IdTable, id_end, same
from headwater.fmq.large import LargeMessage
from headwater.fmq.spec import (
    ACK,
    AUTH,
    CONSUME,
    E_FORM,
    ID_SIZE,
    ONCE,
    REGISTER,
    SUBSCRIBE,
    UNREGISTER,
    UNSUBSCRIBE,
)
from headwater.fmq.values import put_text, read
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.fmq.frames import Field
    from headwater.fmq.values import Value
    from headwater.types import Bytes, FrameSink, Outbox


# What may follow what in FMQ's session (docs/protocols/fmq.md), beside ``headwater.connection``.
#
# In CONNECTING only an ACK may arrive, AUTH's.
#
# Delivery of what we publish at QoS 1 and 2:
#
# - AT1: PUBLISH at QoS 1; ACK ends it.
# - AT2: PUBLISH at QoS 2; PUBREC makes it REL.
# - REL: PUBREL is to be sent, or was; PUBCOMP ends it. After PUBREC again it is sent again. In the outbox there is no
#   REL: what is one is told by its first byte (``sender``).
# - DONE: answered to its end.
#
# An ACK that refuses ends a message in any of them. An answer to what is not under way is STRAY: counted, and a PUBREC
# is
# answered, so that the hub can forget the id. One that does not fit the QoS is the hub's error: WRONG.

#: The types of frames that may arrive at a client, a bit each, by state.
TAKES = (0, 1 << 14, 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 14, 0, 0)

#: The next state of a message: ``DELIVERY[state * 3 + answer]``, the answer being ACK (0), PUBREC (1) or PUBCOMP (2).
DELIVERY = (
    # ACK PUBREC PUBCOMP
    b"\x05\x05\x05"  # FREE
    b"\x04\x06\x06"  # AT1
    b"\x06\x03\x06"  # AT2
    b"\x06\x03\x04"  # REL
)


# The way out of an FMQ connection: how messages are written, answered and sent again.
#
# A message's id stands behind its first byte, and by that an answer finds it in the outbox. Sent again, it is the same
# bytes with the same id, and DUP.
#
# The first byte also tells a message that was answered with PUBREC: it has become a PUBREL. The store is not told: if a
# power cut brings the PUBLISH back, the hub knows its id.

_PUBLISH = const(3)
_PUBREL = const(6)
_PINGREQ = const(12)
# As in ``transitions``; a constant costs less than a name.
_FREE = const(0)
_AT2 = const(2)
_REL = const(3)
_DONE = const(4)
_WRONG = const(6)
#: Nobody's topic is this object.
NO_TOPIC = bytearray(0)
#: The longest answer: a byte, an id, and an ACK's length.
ANSWER_SIZE = const(20)


class Sender(Endpoint):
    """What ``session.ClientSession`` sends with.

    ``on_delivered(number)`` is called when a message of ours at QoS 1 or 2 has been answered to its end, and
    ``on_refused(number, code)`` when the hub has refused it: it is over as well. Of a message at QoS 0, which hubs may
    refuse, but need not, the number is 0.
    """

    def __init__(self, tx_size: int, outbox: "Outbox", window: int, response_ms: int, ids: IdMaker):
        if tx_size < 2 * ANSWER_SIZE:
            raise ValueError("the transmit buffer needs at least 40 bytes")
        super().__init__(tx_size, outbox, window, response_ms)
        self.ids = ids
        #: The process number that the hub has given: little-endian bytes, none before.
        self.process: Bytes = b""
        self.on_refused: Callable[[int, int], object] | None = None
        #: The topic of the last PUBLISH at QoS 0 that was put at the beginning of ``tx``; where the length of its body
        #: is there, which has two bytes, and where its payload is. As long as ``tx`` begins with its first byte and the
        #: connection is as it was, it can be sent again with another id and payload (``rewrite``): no other frame
        #: begins so, but a reply, which says so.
        self.ready: Bytes = NO_TOPIC
        self.ready_length = self.ready_at = 0

    def event(self, event: int) -> None:
        """As of ``Endpoint``."""
        super().event(event)
        self.ready = NO_TOPIC

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

    def _put_ping(self) -> int:
        if self.tx_size - self.tx_end < ANSWER_SIZE:
            return errors.E_TOO_LARGE
        return put_head(self.tx, self.tx_end, _PINGREQ << 4, self.ids.next(_PINGREQ, self.now))

    # -- sending -------------------------------------------------------------------------------------------------------

    def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, tags: "Bytes" = NO_TAGS
    ) -> int:
        """Hand in a message; it leaves through ``out``. Allocates nothing when topic and payload are bytes-like.

        ``tags`` is what ``frames.tag_list`` makes. Returns 0 (QoS 0), or its number (QoS 1, 2): it is then in the
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
            at = put_head(self.tx, self.tx_end, _PUBLISH << 4 | flags, self.ids.next(_PUBLISH, self.now))
            if self.tx_end == 0:
                # It takes the place of the frame that was ready, and may be the next one.
                self.ready = (
                    topic if flags == 0 and tags is NO_TAGS and topic is self.known_topic else NO_TOPIC
                )
                self.ready_length = at
                self.ready_at = n - len(payload)
            self.tx_end = put_message(self.tx, at, topic, payload, tags)
            if self.tx[self.ready_length] >> 4 != 1:
                self.ready = NO_TOPIC
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return 0


def rewrite(s: Sender, payload: "Bytes") -> int:
    """Put another id and payload into the frame that is ready, to be sent: its size; or 0 when ``hand_in`` must see to
    it."""
    try:
        s.tx_end = s.ready_at + len(payload)
        # The body begins two bytes behind its length, and its length has two bytes.
        if 18 <= s.tx_end - s.ready_length < 4098 and s.tx_end <= s.tx_size:
            s.tx[1 : s.ready_length] = s.ids.next(_PUBLISH, s.now)
            s.tx[s.ready_length] = 16 | (s.tx_end - s.ready_length - 2) & 15
            s.tx[s.ready_length + 1] = (s.tx_end - s.ready_length - 2) >> 4
            s.tx[s.ready_at : s.tx_end] = payload
            return s.tx_end
    except NOT_BYTES:
        pass
    s.tx_end = 0
    return 0


def put_answer(s: Sender, kind: int, buf: "Bytes", at: int, end: int) -> None:
    """Answer the message whose id is ``buf[at:end]``; the caller made sure that there is room."""
    s.tx_end = encode_answer(s.tx, s.tx_end, s.tx_size, kind, buf, at, end)


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


# The way in of an FMQ session: frames apart, messages delivered and answered, answers to our own.
#
# These functions are a part of ``session.ClientSession``, which is their first argument.
#
# A handler of the application may publish until the transmit buffer is full (room for the answer to its message is
# kept),
# end the connection, begin another one, or raise.

_AUTH = const(0)
_PUBREC = const(5)
_PUBCOMP = const(7)
_SUBSCRIBE = const(8)
_UNSUBSCRIBE = const(9)
_CONSUME = const(10)
_ACK = const(14)
_MESSAGES = const(1 << 3 | 1 << 11)
# What the first byte of PUBLISH at QoS 0 and 1 has, whatever else it says.
_PLAIN_MASK = const(0xF4)
_PLAIN = const(0x30)

# What waits for an answer is in the table of requests under the type of its frame. What else is there: a subscription,
# under its id; CONSUME with ONCE; AUTH.
LIVE = const(16)
CALL = const(17)
HELLO = const(18)

# What was taken: a message that waits for the application, to be answered with ACK, or with PUBREC; the latter on an
# earlier connection; and one that was answered with PUBREC, and waits for PUBREL.
WAITS_1 = const(1)
WAITS_2 = const(2)
OLD_2 = const(3)
ANSWERED_2 = const(4)

#: By QoS, the type of the answer.
_ANSWERS = b"\x00\x0e\x05"
# From here on a reason code says that it has failed; below, 0x11 is a subscription that the hub does not have.
_FAILURES = const(0x80)
# Instead of that: the message is nobody's.
_NOBODYS = const(-1)
# The frame is to be taken again later.
_LATER = const(1)


def take(s: "ClientSession", i: int, end: int) -> int:
    """Take one frame, or a piece of a large message: the offset behind it; ``i`` when it has to wait, for bytes or for
    room to answer it; negative when the connection is over."""
    if s.large.left:
        return _go_on(s, i, end)
    f = s.frame
    s.frame_at = i
    stop = scan(f, i, end)
    bad = 0
    if stop == 0:
        # Nothing is known of its fields yet.
        bad = 1
        stop = decode_header(f, i, end)
        if stop <= 0:
            return s.fail(stop) if stop else i
    if not TAKES[s.state] >> (f.head >> 4) & 1:
        return s.fail(errors.E_UNEXPECTED)
    if s.tx_size - s.tx_end < ANSWER_SIZE:
        s.stalled = True
        return i
    if stop - i > s.rx.capacity:
        # What becomes of a frame is not a matter of how it arrives.
        return _begin(s, i, end)
    if stop > end:
        return i
    if bad:
        bad = decode_fields(f)
        if bad:
            return s.fail(bad)
    # The frame is taken, even when its handler raises.
    s.rx.start = stop
    if f.head & _PLAIN_MASK == _PLAIN and s.auto_ack and f.buf[f.id_at] >> 4 == _PUBLISH:
        # What comes most: a PUBLISH at QoS 0 or 1 that is no call, to be answered here.
        s.source = s.receipt = 0
        if f.head & 2:
            _deliver_1(s, f)
        elif s.on_message is not None:
            s.on_message(f)
        return stop
    bad = on_frame(s, f)
    if bad < 0:
        return s.fail(bad)
    if bad:
        s.stalled = True
        return i
    return stop


def on_frame(s: "ClientSession", f: "Frame") -> int:
    """A frame of any kind, whole and well-formed: 0, _LATER, or why the connection is over."""
    kind = f.head >> 4
    s.ident = f.buf
    s.ident_at = f.id_at
    s.ident_end = f.id_end
    if kind == _ACK:
        return _on_ack(s, f)
    if not _MESSAGES >> kind & 1:
        return _on_other(s, kind)
    kind = _whose(s, f)
    return 0 if kind == _NOBODYS else _deliver(s, _handler(s, f), f, kind, s.auto_ack)


def _on_other(s: "ClientSession", kind: int) -> int:
    """A frame without a body."""
    if kind == _PUBREC:
        return answered(s, 1, s.ident, s.ident_at, s.ident_end)
    if kind == _PUBCOMP:
        return answered(s, 2, s.ident, s.ident_at, s.ident_end)
    if kind == _PINGREQ:
        put_answer(s, _ACK, s.ident, s.ident_at, s.ident_end)
        return 0
    i = _find_2(s)
    if i >= 0:
        s.taken.state[i] = 0
    else:
        # The hub missed our PUBCOMP, or it is confused: either way it may forget the id.
        s.strays += 1
    put_answer(s, _PUBCOMP, s.ident, s.ident_at, s.ident_end)
    return 0


# -- messages ----------------------------------------------------------------------------------------------------------


def _deliver_1(s: "ClientSession", f: "Frame") -> None:
    """As ``_deliver``, for a PUBLISH at QoS 1 that is whole and no call, to be answered here."""
    if _has_passed(s, f):
        put_answer(s, _ACK, f.buf, f.id_at, f.id_end)


def _has_passed(s: "ClientSession", f: "Frame") -> bool:
    """Hand a message to the application: whether its connection is still there."""
    turn = s.turn
    if s.on_message is not None:
        s.tx_size -= ANSWER_SIZE
        try:
            s.on_message(f)
        finally:
            if s.turn == turn:
                s.tx_size += ANSWER_SIZE
    return s.turn == turn


def _whose(s: "ClientSession", f: "Frame") -> int:
    """How a message is to be answered: 0 (not), _ACK, _PUBREC; or _NOBODYS. Sets the session's ``source``."""
    s.source = 0
    s.ending = -1
    if f.head >> 4 == _PUBLISH:
        return _ANSWERS[f.head >> 1 & 3]
    asked = s.requests
    once = f.buf[f.at[0]] >> 4 == _CONSUME
    i = asked.find(CALL if once else LIVE, f.buf, f.at[0], f.at[1])
    if i < 0:
        s.strays += 1
        return _NOBODYS
    s.source = asked.number(i)
    if once:
        s.ending = i
    return _ACK if asked.more[i] else 0


def _handler(s: "ClientSession", f: "Frame") -> "Callable[..., object] | None":
    if s.ending >= 0 and s.on_result is not None:
        return s.on_result
    if f.head >> 4 == _PUBLISH and f.buf[f.id_at] >> 4 == _CONSUME and s.on_call is not None:
        return s.on_call
    return s.on_message


def _deliver(
    s: "ClientSession", handler: "Callable[..., object] | None", message: object, kind: int, auto: bool
) -> int:
    """Hand a message over, and answer it with ``kind`` unless the application does: 0, E_RX_WINDOW or _LATER.

    _LATER when the answers before it are to leave first: what they acknowledge does not come again.
    """
    taken = s.taken
    i = -1
    if kind == _PUBREC:
        i = _find_2(s)
        if i >= 0:
            s.duplicates += 1
            if taken.state[i] == ANSWERED_2:
                put_answer(s, _PUBREC, s.ident, s.ident_at, s.ident_end)
            else:
                taken.state[i] = WAITS_2
            return 0
    if kind == _PUBREC or (kind and not auto):
        i = taken.free()
        if i < 0:
            return _LATER if s.tx_end else errors.E_RX_WINDOW
        # The place is taken first, so that it stays one message whatever the handler does.
        taken.put(i, WAITS_2 if kind == _PUBREC else WAITS_1, s.ident, s.ident_at, s.ident_end)
    s.receipt = taken.number(i) if i >= 0 else 0
    if s.ending >= 0:
        s.requests.state[s.ending] = 0
    turn = s.turn
    _hand_over(s, handler, message, s.receipt)
    if kind == 0 or not auto:
        return 0
    if i < 0:
        if s.turn == turn:
            put_answer(s, _ACK, s.ident, s.ident_at, s.ident_end)
    elif s.turn == turn:
        answer(s, i)
    elif taken.state[i] == WAITS_2 or taken.state[i] == OLD_2:
        # Its connection is over: its repetition is to be answered.
        taken.state[i] = ANSWERED_2
    return 0


def _hand_over(
    s: "ClientSession", handler: "Callable[..., object] | None", message: object, receipt: int
) -> None:
    """Call the handler, with room kept for the answer. If it raises, the message counts as if it had never come, unless
    the handler had acknowledged it."""
    if handler is None:
        return
    turn = s.turn
    s.tx_size -= ANSWER_SIZE
    try:
        if handler is s.on_result:
            handler(s.source, message)  # type: ignore[misc,arg-type]  # it is called so
        else:
            handler(message)
    except BaseException:
        i = s.taken.place(receipt) if receipt else -1
        if i >= 0 and s.taken.state[i] != ANSWERED_2:
            s.taken.state[i] = 0
        raise
    finally:
        if s.turn == turn:
            s.tx_size += ANSWER_SIZE


def _find_2(s: "ClientSession") -> int:
    """The place of the message at QoS 2 whose id it is, or -1."""
    taken = s.taken
    at = s.ident_at
    end = s.ident_end
    for i in range(taken.places):
        if (
            taken.state[i] > WAITS_1
            and taken.sizes[i] == end - at
            and same(s.ident, at, end, taken.ids, i * ID_SIZE)
        ):
            return i
    return -1


def answer(s: "ClientSession", i: int) -> None:
    """Answer the message in place ``i``, for which there is room."""
    taken = s.taken
    at = i * ID_SIZE
    if taken.state[i] == WAITS_1:
        taken.state[i] = 0
        put_answer(s, _ACK, taken.ids, at, at + taken.sizes[i])
    else:
        # From now on, whatever happens, it is not delivered again.
        taken.state[i] = ANSWERED_2
        put_answer(s, _PUBREC, taken.ids, at, at + taken.sizes[i])


# -- messages larger than the receive buffer -------------------------------------------------------------------------


def _begin(s: "ClientSession", i: int, end: int) -> int:
    """As ``take``, for a frame that is larger than the receive buffer, even if all of it happens to be here."""
    f = s.frame
    if not _MESSAGES >> (f.head >> 4) & 1:
        return s.fail(errors.E_RX_TOO_LARGE)
    large = s.large
    at = large.begin(f, i, end, s.rx.capacity)
    if at <= 0:
        large.left = 0
        return s.fail(at) if at else i
    # What fits are the id and the correlation, always: they are in the first 42 bytes.
    s.rx.start = at
    s.frame_at = -1
    kind = s.large_answer = _whose(s, f)
    if kind > 0:
        s.ident = f.buf
        s.ident_at = f.id_at
        s.ident_end = f.id_end
        if kind == _PUBREC and _find_2(s) >= 0:
            kind = _NOBODYS
        elif (kind == _PUBREC or not s.auto_ack) and s.taken.free() < 0:
            return s.fail(errors.E_RX_WINDOW)
    turn = s.turn
    if not large.offer(f, s.sink if kind >= 0 else None) and s.turn == turn and kind >= 0:
        s.skipped += 1
    if s.turn != turn:
        # The sink has ended the connection.
        large.close(False)
    return at


def _go_on(s: "ClientSession", i: int, end: int) -> int:
    """Pass on what is here of the large message: the offset reached, or negative when the connection is over."""
    large = s.large
    turn = s.turn
    if end - i < large.left:
        s.rx.start = end
        i = large.take(s.rx.buf, i, end)
        return i if s.turn == turn else -1
    if s.tx_size - s.tx_end < ANSWER_SIZE:
        s.stalled = True
        return i
    s.rx.start = i + large.left
    # As for a handler: room is kept for the answer.
    s.tx_size -= ANSWER_SIZE
    try:
        i = large.take(s.rx.buf, i, end)
    finally:
        if s.turn == turn:
            s.tx_size += ANSWER_SIZE
    if s.turn != turn:
        return -1
    return s.fail(errors.E_RX_WINDOW) if _end(s) else i


def _end(s: "ClientSession") -> int:
    """All of the large message has passed: 0 or E_RX_WINDOW."""
    large = s.large
    kind = s.large_answer if large.head else 0
    if kind <= 0 and s.ending < 0:
        large.close(True)
        return 0
    s.ident = large.ident
    s.ident_at = 0
    s.ident_end = large.id_size
    return _deliver(s, s.close_large, True, max(kind, 0), s.auto_ack or not large.streaming)


# -- answers -----------------------------------------------------------------------------------------------------------


def _on_ack(s: "ClientSession", f: "Frame") -> int:
    asked = f.buf[f.id_at] >> 4
    if asked == _PUBLISH:
        if f.code == 0 and s.state != CONNECTING:
            return answered(s, 0, f.buf, f.id_at, f.id_end)
        if s.state != CONNECTING:
            return _message_refused(s, f)
    if asked == _PINGREQ and s.state != CONNECTING:
        s.pinged = False
        return 0
    if asked == _AUTH or s.state == CONNECTING:
        return _on_auth(s, f)
    return _request_answered(s, f)


def _message_refused(s: "ClientSession", f: "Frame") -> int:
    """The hub does not take a message: it is over."""
    i = find(s, f.buf, f.id_at, f.id_end)
    if i >= 0:
        over(s, i)
    if s.on_refused is not None:
        s.on_refused(i + 1, f.code)
    return 0


def _on_auth(s: "ClientSession", f: "Frame") -> int:
    """AUTH was accepted or refused; or, when it had been accepted, the hub ends the connection."""
    if s.requests.find(HELLO, f.buf, f.id_at, f.id_end) < 0:
        if s.state == CONNECTING:
            return errors.E_UNEXPECTED
        s.strays += 1
        return 0
    s.return_code = f.code
    if s.state != CONNECTING:
        return errors.E_DISCONNECTED
    if f.code:
        return errors.E_REFUSED
    if f.count < 4:
        f.bad_at = f.body
        return errors.E_FIELD
    v = f.value
    read(v, f.at[2], f.end)
    present = v.low == 1
    f.bad_at = f.at[2]
    if present and s.clean:
        return errors.E_CODE
    read(v, f.at[1], f.end)
    f.bad_at = f.at[1]
    if not _is_plain(v) or s.ids.set_process(f.buf, v.at, v.end):
        return E_FORM
    s.process = bytes(f.buf[v.at : v.end]) if any(f.buf[v.at : v.end]) else b""
    read(v, f.at[3], f.end)
    if _is_plain(v):
        # Without a time of eight bytes the ids go on by what clock they have.
        s.ids.set_time(f.buf, v.at, v.end, s.now)
    s.session_present = present
    s.event(ACCEPT)
    if not present:
        _forget(s)
    s.resume()
    if s.on_online is not None:
        s.on_online(present)
    return 0


def _is_plain(v: "Value") -> bool:
    """Whether ``v`` is an unsigned integer in little-endian bytes."""
    return not (v.big or v.negative)


def _forget(s: "ClientSession") -> None:
    """The hub has no session: there are no subscriptions, and of what was taken nothing comes again."""
    for i in range(s.requests.places):
        if s.requests.state[i] == LIVE:
            s.requests.state[i] = 0
    for i in range(s.taken.places):
        s.taken.state[i] = 0


def _request_answered(s: "ClientSession", f: "Frame") -> int:
    asked = s.requests
    n = f.id_end - f.id_at
    i = 0
    while not (
        (0 < asked.state[i] < LIVE or asked.state[i] == CALL)
        and asked.sizes[i] == n
        and same(f.buf, f.id_at, f.id_end, asked.ids, i * ID_SIZE)
    ):
        i += 1
        if i == asked.places:
            s.strays += 1
            return 0
    state = asked.state[i]
    n = asked.number(i)
    if state == _SUBSCRIBE and f.code == 0:
        if f.count < 2 or f.at[2] - f.at[1] > ID_SIZE:
            f.bad_at = f.body
            return E_FORM
        k = asked.find(LIVE, f.buf, f.at[1], f.at[2])
        if k >= 0:
            # It was subscribed to before, and stays one subscription, with its consumer.
            asked.state[k] = 0
            asked.more[i] = asked.more[k]
            for j in range(asked.places):
                # What is being taken back has moved.
                if asked.state[j] == _UNSUBSCRIBE and asked.more[j] == k:
                    asked.more[j] = i
        asked.rename(i, LIVE, f.buf, f.at[1], f.at[2])
    else:
        if state == _UNSUBSCRIBE and f.code < _FAILURES:
            asked.state[asked.more[i]] = 0
        asked.state[i] = 0
    if s.on_answer is not None:
        s.on_answer(n, f.code)
    elif state == _SUBSCRIBE and f.code:
        raise errors.HeadwaterError(errors.E_REFUSED)
    return 0


def last_word(s: "ClientSession", code: int) -> None:
    """Tell the hub that the frame at hand was wrong, if it has an id."""
    f = s.frame
    at = s.frame_at + 1
    end = id_end(f.buf, at, s.rx.end) if at > 0 else 0
    if end > 0:
        end = encode_frame(s.tx, 0, s.tx_size, _ACK << 4, bytes(f.buf[at:end]), (code,))
        s.tx_end = max(end, 0)


_REPLY = b"$rpc/reply"
# The head of a list of no tags.
_NO_TAGS = const(0xD0)
_LISTS = (tuple, list)
# The reasons that the hub is told of what it did wrong, where that is not malformed (0x81): a protocol error, a message
# too large, more messages than there is room for.
_REASONS = {
    errors.E_UNEXPECTED: 0x82,
    errors.E_ACK_KIND: 0x82,
    errors.E_RX_TOO_LARGE: 0x95,
    errors.E_RX_WINDOW: 0x93,
}


class ClientSession(Sender):
    """The client's session; it outlives connections.

    With ``clean`` False the hub keeps the session. Buffers: a frame to be received whole must fit in seven eighths of
    ``rx_size``; requests, and PUBLISH at QoS 0, in ``tx_size``, PUBLISH at QoS 1 and 2 in ``outbox_size``. ``slots``
    messages may be unacknowledged or waiting, ``window`` of them sent. ``requests`` may be unanswered or live: each
    subscription takes a place, and each CONSUME. ``receive_window`` messages may wait for the application or, at QoS 2,
    for PUBREL. Messages of more than ``max_body`` bytes end the connection.

    ``thread``, ``boot`` and ``process`` go into the message ids (``ids.IdMaker``). ``process`` is what the hub
    gave before, which a board may keep: only with it messages at QoS 1 and 2 can be handed in before the first
    connection, and their ids are unique only with a ``boot`` that counts.

    ``on_online(session_present)`` is called when the hub has accepted. ``on_message(frame)`` is called for each PUBLISH
    and CONSUMERESP, with the reusable cursor; ``source`` is then the number of the subscription or call that a
    CONSUMERESP belongs to, 0 for PUBLISH. ``on_call(frame)``, if it is there, is called instead for a PUBLISH that is
    an RPC's request, and ``on_result(number, frame)`` for what one ``call`` or ``consume_once`` brought. With
    ``auto_ack`` off, what is to be acknowledged is by ``acknowledge``, with the ``receipt`` of that moment. A message
    whose handler raises is not acknowledged: the exception passes through ``feed``, and the next ``feed(0)`` goes on
    behind the message.

    ``on_answer(number, code)``: a request was answered, 0 or a reason code; of a ``consume``, it has ended. ``reason``
    says more.

    ``sink`` takes messages larger than the receive buffer (``headwater.types.FrameSink``); without it they are skipped:
    acknowledged, and counted in ``skipped``.
    """

    def __init__(
        self,
        client_id: "Bytes" = b"",
        keep_alive: int = 60,
        clean: bool = True,
        user: "Bytes | None" = None,
        password: "Bytes | None" = None,
        rx_size: int = 512,
        tx_size: int = 512,
        outbox_size: int = 1024,
        slots: int = 16,
        window: int = 16,
        receive_window: int = 16,
        requests: int = 16,
        response_ms: int = 10000,
        max_body: int = 1 << 24,
        thread: int = 0,
        boot: int = 0,
        process: "Bytes" = b"",
        rx: "RxBuf | None" = None,
        outbox: "Outbox | None" = None,
    ):
        super().__init__(
            tx_size, outbox or RamOutbox(outbox_size, slots), window, response_ms, IdMaker(thread, boot)
        )
        if process:
            self.process = process
            if self.ids.set_process(process, 0, len(process)):
                raise ValueError("a process number is too long")
        self.rx = rx or RxBuf(rx_size)
        if self.rx.capacity < 56:
            raise ValueError("the receive buffer needs at least 64 bytes")
        self.frame = Frame(self.rx.buf, max_body)
        self.client_id = client_id
        self.keep_alive = keep_alive
        self.clean = clean
        self._user = user
        self._password = password
        self._will: tuple[Field, ...] = ()
        #: The hub's reason code, when the status is E_REFUSED or E_DISCONNECTED; ``reason`` is its text.
        self.return_code = 0
        #: Whether the hub had kept the session, by its last answer to AUTH.
        self.session_present = False
        self.on_online: Callable[[bool], object] | None = None
        self.on_answer: Callable[[int, int], object] | None = None
        self.on_message: Callable[[Frame], object] | None = None
        self.on_call: Callable[[Frame], object] | None = None
        self.on_result: Callable[[int, Frame], object] | None = None
        self.sink: FrameSink | None = None
        self.auto_ack = True
        #: During ``on_message``: see there.
        self.source = self.receipt = 0
        #: Messages that were skipped, and repetitions at QoS 2 that were not delivered.
        self.skipped = self.duplicates = 0
        #: Whether what was read waits for room to answer it; ``feed(0)`` goes on once something was sent.
        self.stalled = False
        #: From ``feed`` on until its caller clears it.
        self.feeding = False
        self.requests = IdTable(requests)
        self.taken = IdTable(receive_window)
        self.large = LargeMessage()
        # For ``receive``: the message larger than the receive buffer that is passing, and the type of the answer to it;
        # the id of what is being taken; the place of the call that it ends, or -1; where in the buffer it begins.
        self.large_answer = 0
        self.close_large = self.large.close
        self.ident: Bytes = self.rx.buf
        self.ident_at = self.ident_end = 0
        self.ending = -1
        self.frame_at = 0

    def set_will(
        self, topic: "Bytes | None", payload: "Bytes" = b"", qos: int = 0, retain: bool = False
    ) -> int:
        """What the hub publishes when the connection is lost, from the next ``connect`` on: 0, E_TOPIC, E_QOS."""
        try:
            if topic is not None and check_name(topic):
                return errors.E_TOPIC
        except NOT_BYTES:
            return errors.E_ARGUMENT
        if not is_bytes(payload):
            return errors.E_ARGUMENT
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        self._will = () if topic is None else (topic, qos, retain, payload)
        return 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def connect(self, now_ms: int) -> int:
        """A transport is there: begin with AUTH. E_TOO_LARGE or E_ARGUMENT when it cannot be built."""
        self._stop()
        self.rx.clear()
        self.status = self.return_code = 0
        self.pinged = False
        self.now = self.rx_time = self.tx_time = now_ms
        asked = self.requests
        for i in range(asked.places):
            if asked.state[i] != LIVE:
                asked.state[i] = 0
        taken = self.taken
        for i in range(taken.places):
            if taken.state[i] == WAITS_1:
                taken.state[i] = 0
            elif taken.state[i] == WAITS_2:
                taken.state[i] = OLD_2
        values: tuple[Field, ...] = (
            self.client_id,
            self._user,
            self._password,
            self.keep_alive,
            self.clean,
        ) + self._will
        if values == (b"", None, None, 0, True):
            values = ()
        ident = self.ids.next(AUTH, now_ms)
        end = errors.E_ARGUMENT
        if is_bytes(self.client_id):
            end = encode_frame(self.tx, 0, self.tx_size, AUTH << 4, ident, values)
        i = asked.free()
        if end < 0 or i < 0:
            self.event(LOST)
            return end if end < 0 else errors.E_ARGUMENT
        asked.put(i, HELLO, ident, 0, len(ident))
        self.tx_end = end
        self.event(OPEN)
        return 0

    def disconnect(self) -> int:
        """Queue the end of the session's connection: an ACK to its AUTH. The will is not published.

        Close the transport once ``out`` is 0. E_AGAIN when the transmit buffer is full for now.
        """
        if self.state == CLOSING:
            return 0
        if self.state == ONLINE:
            asked = self.requests
            for i in range(asked.places):
                if asked.state[i] == HELLO:
                    n = i * ID_SIZE
                    end = encode_answer(
                        self.tx, self.tx_end, self.tx_size, ACK, asked.ids, n, n + asked.sizes[i]
                    )
                    bad = self._put(end)
                    if bad:
                        return bad
        self.event(FINISH)
        return 0

    def _stop(self) -> None:
        super()._stop()
        self.stalled = self.feeding = False
        # Last, because the sink may raise.
        self.large.give_up()

    def fail(self, code: int) -> int:
        """As of ``Sender``; and when the hub has done something wrong it is told so, if nothing else is half sent."""
        idle = self.out_n == 0
        super().fail(code)
        if idle and (blame(code) == PEER or code in _REASONS):
            last_word(self, _REASONS.get(code, 0x81))
        return code

    def awaits(self) -> bool:
        """As of ``Sender``. CONSUME is answered when it ends."""
        for state in self.requests.state:
            if state == CALL or (0 < state < LIVE and state != CONSUME):
                return True
        return super().awaits()

    # -- requests ------------------------------------------------------------------------------------------------------

    def register(self, topic: "Bytes", queues: int = 1) -> int:
        """REGISTER a topic with so many queues. Returns the request's number, which ``on_answer`` gets.

        This and the following: E_TOPIC or E_FILTER, E_ARGUMENT, E_OFFLINE, E_TOO_LARGE; E_AGAIN when the transmit
        buffer is full or too many requests are unanswered or live.
        """
        bad = _refused(check_name, topic)
        if bad or is_bytes(queues) or queues < 1:
            return bad or errors.E_ARGUMENT
        return self.request(REGISTER << 4, (topic,) if queues == 1 else (topic, queues))

    def unregister(self, topic: "Bytes") -> int:
        """UNREGISTER a topic: as ``register``."""
        return _refused(check_name, topic) or self.request(UNREGISTER << 4, (topic,))

    def subscribe(
        self,
        topic_filter: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        group: "Bytes" = b"",
    ) -> int:
        """SUBSCRIBE: its number, which ``on_answer`` gets with the answer, and which stands for the subscription.

        Without a ``group`` the hub sends what it gets, with PUBLISH. With one, ``consume`` begins.
        """
        values: tuple[Field, ...] = (topic_filter, tags, condition, group)
        if not group:
            values = values[:3] if condition else values[:2] if tags else values[:1]
        if not _is_query(tags, condition, group):
            return errors.E_ARGUMENT
        return _refused(check_filter, topic_filter) or self.request(SUBSCRIBE << 4, values)

    def unsubscribe(self, subscription: int) -> int:
        """UNSUBSCRIBE: the number of this request, as ``register``; E_UNKNOWN_ID when there is no such subscription."""
        return self._of_subscription(UNSUBSCRIBE << 4, subscription, 0, UNSUBSCRIBE)

    def consume(self, subscription: int, window: int = 0, need_ack: bool = False) -> int:
        """CONSUME from a subscription, until ``on_answer`` is called: the number of this request, as ``unsubscribe``.

        With ``need_ack`` each message is acknowledged, and ``window`` of them may be unacknowledged: no more than
        ``receive_window`` (E_ARGUMENT), which is what 0 stands for.
        """
        most = self.taken.places
        if not 0 <= window <= (most if need_ack else 1 << 29):
            return errors.E_ARGUMENT
        return self._of_subscription(
            CONSUME << 4 | (1 if need_ack else 0),
            subscription,
            window or (most if need_ack else 0),
            CONSUME,
        )

    def consume_once(
        self,
        topic: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        group: "Bytes" = b"",
        need_ack: bool = False,
        arguments: "Bytes" = b"",
    ) -> int:
        """CONSUME with ONCE, one message: its number, with which the message comes to ``on_result``, or to
        ``on_answer`` why there is none."""
        if not _is_query(tags, condition, group) or not is_bytes(arguments):
            return errors.E_ARGUMENT
        if _refused(check_filter, topic):
            return _refused(check_filter, topic)
        n = self.request(
            CONSUME << 4 | ONCE | (1 if need_ack else 0),
            (topic, tags, condition, group, arguments),
            CALL,
        )
        if n > 0 and need_ack:
            self.requests.more[self.requests.place(n)] = 1
        return n

    def call(self, topic: "Bytes", arguments: "Bytes" = b"") -> int:
        """Call whoever serves ``$rpc/TOPIC``: as ``consume_once``; 0x10 says that nobody does, 0x83 that there was no
        result."""
        return _refused(check_name, topic) or self.consume_once(topic, arguments=arguments)

    def reply(self, call: "Frame | Bytes", result: "Bytes") -> int:
        """Answer a call, with its frame while that is valid, or with its id: as ``publish`` at QoS 0."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        try:
            if isinstance(call, Frame):
                return _reply(self, call.buf, call.id_at, call.id_end, result)
            return _reply(self, call, 0, len(call), result)
        except NOT_BYTES:
            return errors.E_ARGUMENT

    def refuse(self, call: "Frame | Bytes", code: int, text: "Bytes" = b"") -> int:
        """Refuse a call, as ``reply``, with a reason code of 128 to 255 and a text in UTF-8 for the caller."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        if not 128 <= code < 256 or not is_bytes(text):
            return errors.E_ARGUMENT
        try:
            ident = bytes(call.buf[call.id_at : call.id_end]) if isinstance(call, Frame) else call
            return self._put(encode_frame(self.tx, self.tx_end, self.tx_size, ACK << 4, ident, (code, text)))
        except NOT_BYTES:
            return errors.E_ARGUMENT

    def request(self, head: int, values: "Sequence[Field]", state: int = -1) -> int:
        """Any request, by its first byte and fields (``encode.frame``): its number, as ``register``."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        asked = self.requests
        i = asked.free()
        if i < 0:
            return errors.E_AGAIN
        ident = self.ids.next(head >> 4, self.now)
        bad = self._put(encode_frame(self.tx, self.tx_end, self.tx_size, head, ident, values))
        if bad:
            return bad
        asked.put(i, head >> 4 if state < 0 else state, ident, 0, len(ident))
        return asked.number(i)

    def _of_subscription(self, head: int, subscription: int, window: int, state: int) -> int:
        asked = self.requests
        i = asked.place(subscription)
        if i < 0 or asked.state[i] != LIVE:
            return errors.E_UNKNOWN_ID
        at = i * ID_SIZE
        ident = bytes(asked.ids[at : at + asked.sizes[i]])
        n = self.request(head, (ident, window) if window else (ident,), state)
        if n > 0:
            asked.more[asked.place(n)] = i
            if state == CONSUME:
                asked.more[i] = head & 1
        return n

    def acknowledge(self, receipt: int) -> int:
        """With ``auto_ack`` off: acknowledge the message whose ``receipt`` it is.

        0; E_AGAIN when the transmit buffer is full for now; E_UNKNOWN_ID when it does not wait for that: it was
        acknowledged, or its connection is over and it comes again.
        """
        taken = self.taken
        i = taken.place(receipt)
        if i < 0 or taken.state[i] == ANSWERED_2:
            return errors.E_UNKNOWN_ID
        if self.state != ONLINE or taken.state[i] == OLD_2:
            if taken.state[i] == WAITS_1:
                return errors.E_UNKNOWN_ID
            # Its repetition will be answered at once.
            taken.state[i] = ANSWERED_2
            return 0
        if self.tx_size - self.tx_end < ANSWER_SIZE:
            return errors.E_AGAIN
        answer(self, i)
        return 0

    def reason(self) -> bytes:
        """What the hub says of its refusal: a text in UTF-8, often an empty one. It allocates.

        Of use in ``on_answer`` and ``on_refused``, and behind E_REFUSED and E_DISCONNECTED."""
        f = self.frame
        if f.head >> 4 != ACK or f.code == 0 or f.count < 2 or read(f.value, f.at[1], f.end) < 0:
            return b""
        return bytes(f.buf[f.value.at : f.value.end])

    # -- receiving -----------------------------------------------------------------------------------------------------

    def feed(self, n: int) -> int:
        """Parse ``n`` more bytes, just read into ``rx.view``: 0, or the error that broke the connection.

        Whole frames are handled where they lie; the rest waits. Stops early, with ``stalled`` set, when an answer has
        no room in the transmit buffer.
        """
        rx = self.rx
        if n:
            self.rx_time = self.now
            if rx.gap:
                rx.join(n)
        # From here on n is where what has been read ends.
        n += rx.end
        rx.end = n
        if self.status:
            return self.status
        self.stalled = False
        self.feeding = True
        i = rx.start
        if not TAKES[self.state]:
            # CLOSING, or no connection: what arrives is not looked at.
            i = n
        # A handler may end the connection, or begin another: then nothing known here holds any more.
        turn = self.turn
        while i < n:
            at = i
            i = take(self, i, n)
            if i < 0 or self.turn != turn:
                return self.feed(0)
            if i == at:
                break
        rx.start = i
        return 0


def _is_query(tags: object, condition: object, group: object) -> bool:
    """Whether these can be fields of SUBSCRIBE."""
    return is_bytes(condition) and is_bytes(group) and (is_bytes(tags) or isinstance(tags, _LISTS))


def _refused(check: "Callable[[Bytes], int]", topic: "Bytes") -> int:
    """What ``check`` says of a topic or a filter, or E_ARGUMENT when it is not bytes."""
    try:
        return check(topic)
    except NOT_BYTES:
        return errors.E_ARGUMENT


def _reply(s: ClientSession, buf: "Bytes", at: int, end: int, result: "Bytes") -> int:
    """PUBLISH to ``$rpc/reply``: the call's id, which is ``buf[at:end]``, and the result."""
    n = message_size(_REPLY, result) + end - at
    size = 1 + len(s.ids.ident) + length_size(n) + n
    if size > s.tx_size - s.tx_end:
        return errors.E_AGAIN if size <= len(s.tx) else errors.E_TOO_LARGE
    # It may stand where the frame is that was ready.
    s.ready = NO_TOPIC
    to = put_head(s.tx, s.tx_end, _PUBLISH << 4, s.ids.next(_PUBLISH, s.now))
    to = put_text(s.tx, put_length(s.tx, to, n), len(s.tx), _REPLY)
    s.tx[to] = _NO_TAGS
    to += 1
    while at < end:
        s.tx[to] = buf[at]
        to += 1
        at += 1
    s.tx[to : to + len(result)] = result
    s.tx_end += size
    return 0
