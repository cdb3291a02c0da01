"""The way out of an FMQ connection: how messages are written, answered and sent again.

A message's id stands behind its first byte, and by that an answer finds it in the outbox. Sent again, it is the same
bytes with the same id, and DUP.

The first byte also tells a message that was answered with PUBREC: it has become a PUBREL. The store is not told: if a
power cut brings the PUBLISH back, the hub knows its id.
"""

from headwater import errors
from headwater.fmq.frames import (
    NO_TAGS,
    check_name,
    encode_answer,
    length_size,
    message_size,
    put_head,
    put_message,
)
from headwater.fmq.ids import IdMaker, same
from headwater.fmq.transitions import DELIVERY
from headwater.outgoing import Outgoing
from headwater.transitions import ONLINE
from headwater.wire import NOT_BYTES, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.types import Bytes, Outbox

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


class Sender(Outgoing):
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
        """As of ``Outgoing``."""
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
