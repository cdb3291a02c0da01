"""The client's session of FMQ (docs/protocols/fmq.md). It does no I/O and reads no clock.

The caller reads at most ``rx.room`` bytes to the start of ``rx.view`` (after ``rx.window()``) and calls ``feed(n)``;
sends ``out_buf[out_at : out_at + n]``, n from ``out()``, and calls ``sent(k)`` with the number of bytes accepted; and
calls ``poll(now_ms)`` a few times a second. A negative result of any of these ends the connection.

Publishing, receiving, acknowledging, retransmitting and keep-alive allocate nothing; connecting and requests do.

MicroPython heap-allocates frames over 11 words, so hot functions have few locals and reuse them.
"""

from headwater import errors
from headwater.connection import (
    ACCEPT,
    AT2,
    CLOSING,
    CONNECTING,
    DONE,
    FINISH,
    FREE,
    LOST,
    NO_TOPIC,
    ONLINE,
    OPEN,
    REL,
    WRONG,
    Endpoint,
    RamOutbox,
    RxBuf,
)
from headwater.errors import PEER, blame
from headwater.fmq.frames import (
    NO_TAGS,
    ROWS,
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
    put_message,
    scan,
    walk_fields,
)
from headwater.fmq.ids import IdMaker, IdTable, id_end, same
from headwater.fmq.values import read
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.fmq.frames import Field
    from headwater.types import Bytes, Outbox

# The states of the connection and their events are those of every protocol (``headwater.connection``). In CONNECTING
# only the ACK to AUTH may arrive.

#: The frame types that each state of a client accepts, one bit for each type.
TAKES = (0, 1 << 14, 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 14, 0, 0)

# States of a published message at QoS 1 or 2:
#
# - AT1: PUBLISH at QoS 1; ACK completes it.
# - AT2: PUBLISH at QoS 2; PUBREC moves it to REL.
# - REL: PUBREL is queued or sent; PUBCOMP completes it, another PUBREC repeats PUBREL. The outbox does not store REL:
#   the first byte of the entry becomes that of a PUBREL. The store is not updated: if a power cut restores the PUBLISH,
#   the hub recognizes its id.
# - DONE: completed.
#
# An ACK with a reason code completes a message in every state. An answer to a message that is not in flight is STRAY:
# it is counted, and a PUBREC is answered so that the hub can release the id. An answer of the wrong type for the QoS is
# a protocol error of the hub: WRONG.

#: The next state of a message: ``DELIVERY[state * 3 + answer]``; the answer is ACK (0), PUBREC (1) or PUBCOMP (2).
DELIVERY = (
    # ACK PUBREC PUBCOMP
    b"\x05\x05\x05"  # FREE
    b"\x04\x06\x06"  # AT1
    b"\x06\x03\x06"  # AT2
    b"\x06\x03\x04"  # REL
)

# Copies of constants of ``headwater.fmq.spec``.
_AUTH = const(0)
_PUBLISH = const(3)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_SUBSCRIBE = const(8)
_UNSUBSCRIBE = const(9)
_CONSUME = const(10)
_PINGREQ = const(12)
_ACK = const(14)
_ID_SIZE = const(18)
_E_FORM = const(-58)

_MESSAGES = const(1 << 3 | 1 << 11)
# The bits of the first byte that identify a PUBLISH at QoS 0 or 1, and their value.
_PLAIN_MASK = const(0xF4)
_PLAIN = const(0x30)

#: The longest answer: one byte, an id, and the length of an ACK.
ANSWER_SIZE = const(20)
_LISTS = (tuple, list)

# States in the table of requests, besides the frame type of the request: CONSUME with ONCE; a subscription, with its
# id; AUTH.
CALL = const(16)
LIVE = const(17)
HELLO = const(18)

# States in the table of received messages: waits for the application, to be answered with ACK or PUBREC; received with
# QoS 2 on an earlier connection; answered with PUBREC, waits for PUBREL.
WAITS_1 = const(1)
WAITS_2 = const(2)
OLD_2 = const(3)
ANSWERED_2 = const(4)

#: The type of the answer to a PUBLISH, by QoS.
_ANSWERS = b"\x00\x0e\x05"
# Reason codes from 0x80 on are failures. 0x11 means that the hub has no such subscription.
_FAILURES = const(0x80)
#: The message belongs to no subscription or call.
UNKNOWN = const(-1)
# The frame must be handled again after answers have been sent.
_LATER = const(1)
# Reason codes of the ACK that reports an error of the hub, if not 0x81 (malformed): protocol error, message too large,
# receive window exceeded.
_REASONS = {
    errors.E_UNEXPECTED: 0x82,
    errors.E_ACK_KIND: 0x82,
    errors.E_RX_TOO_LARGE: 0x95,
    errors.E_RX_WINDOW: 0x93,
}


# -- send path ---------------------------------------------------------------------------------------------------------


def rewrite(s: "ClientSession", payload: "Bytes") -> int:
    """Put a new id and payload into the prepared frame. Return its size, or 0 if ``enqueue`` must encode it."""
    try:
        s.tx_end = s.ready_at + len(payload)
        # The length of the body has two bytes, and the body follows.
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


def _store(s: "ClientSession", n: int, topic: "Bytes", payload: "Bytes", flags: int, tags: "Bytes") -> int:
    """Put a message of ``n`` bytes into the outbox. Return its number, or an error."""
    box = s.outbox
    if not s.process:
        # Without a process number the id would not be unique.
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
    # ``box.next`` is the number of this entry, unless the index has wrapped to 0.
    return box.next or box.slots


def _is_bad(s: "ClientSession", topic: "Bytes") -> bool:
    """Return whether a topic is wrong. An immutable object that is correct is not checked again."""
    if check_name(topic):
        return True
    if isinstance(topic, bytes):
        s.known_topic = topic
    return False


def put_answer(s: "ClientSession", kind: int, buf: "Bytes", at: int, end: int) -> None:
    """Answer the message with the id ``buf[at:end]``. The transmit buffer must have room for it."""
    s.tx_end = encode_answer(s.tx, s.tx_end, s.tx_size, kind, buf, at, end)


def find_sent(s: "ClientSession", buf: "Bytes", at: int, end: int) -> int:
    """Return the outbox entry with the id ``buf[at:end]`` if this connection has sent all of it, otherwise -1.

    Answers arrive nearly in the order of the messages, so it is one of the first.
    """
    box = s.outbox
    i = box.head
    n = box.count - s._unsent
    while n:
        if box.state[i] != DONE and same(buf, at, end, box.buf, box.at[i] + 1):
            return i
        i = i + 1 if i + 1 < box.slots else 0
        n -= 1
    return -1


def settle(s: "ClientSession", i: int, answer: int, buf: "Bytes", at: int, end: int) -> int:
    """Apply an answer to outbox entry ``i`` (-1: none) with the id ``buf[at:end]``. Return 0 or E_ACK_KIND.

    ``answer`` is the column of ``DELIVERY``: ACK without an error (0), PUBREC (1), PUBCOMP (2).
    """
    box = s.outbox
    new = FREE
    if i >= 0:
        new = REL if _is_released(box, i) else box.state[i]
    new = DELIVERY[new * 3 + answer]
    if new == DONE:
        _complete(s, i)
        if s.on_delivered is not None:
            s.on_delivered(i + 1)
    elif new == REL:
        box.buf[box.at[i]] = _PUBREL << 4
        box.size[i] = 1 + end - at
        put_answer(s, _PUBREL, buf, at, end)
    elif new == WRONG:
        return errors.E_ACK_KIND
    else:
        s.strays += 1
        if answer == 1:
            put_answer(s, _PUBREL, buf, at, end)
    return 0


def _complete(s: "ClientSession", i: int) -> None:
    s.in_flight -= 1
    s.outbox.set(i, DONE)


def _is_released(box: "Outbox", i: int) -> bool:
    """Return whether entry ``i`` was answered with PUBREC."""
    return box.buf[box.at[i]] >> 4 == _PUBREL


# -- receive path ------------------------------------------------------------------------------------------------------
#
# A handler may publish until the transmit buffer is full (room for the answer to its message is reserved), end the
# connection, start another, or raise an exception.


def take_frame(s: "ClientSession", i: int, end: int) -> int:
    """Handle one frame or a piece of a large message. Return the offset after it.

    Returns ``i`` if it waits for bytes or for room to answer it; a negative number if the connection has ended.
    """
    if s.large_left:
        return _continue_large(s, i, end)
    f = s.frame
    s.frame_at = i
    stop = scan(f, i, end)
    bad = 0
    if stop == 0:
        # The fields are not decoded yet.
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
        # Even if all of it has arrived: the result must not depend on how a frame arrives.
        return _begin_large(s, i, end)
    if stop > end:
        return i
    if bad:
        bad = decode_fields(f)
        if bad:
            return s.fail(bad)
    # The frame counts as received, even if its handler raises.
    s.rx.start = stop
    if f.head & _PLAIN_MASK == _PLAIN and s.auto_ack and f.buf[f.id_at] >> 4 == _PUBLISH:
        # The most frequent case: a PUBLISH at QoS 0 or 1 that is no call and is acknowledged here.
        s.source = s.receipt = 0
        if f.head & 2:
            deliver_1(s, f)
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
    """Handle a whole, well-formed frame. Return 0, _LATER, or the error that ends the connection."""
    kind = f.head >> 4
    s.ident = f.buf
    s.ident_at = f.id_at
    s.ident_end = f.id_end
    if kind == _ACK:
        return _on_ack(s, f)
    if not _MESSAGES >> kind & 1:
        return _on_bare(s, kind)
    kind = _answer_kind(s, f)
    if kind == UNKNOWN:
        return 0
    handler = s.on_message
    if s.ending >= 0:
        handler = s.on_result or handler
    elif f.head >> 4 == _PUBLISH and f.buf[f.id_at] >> 4 == _CONSUME:
        handler = s.on_call or handler
    return _deliver(s, handler, f, kind, s.auto_ack)


def _on_bare(s: "ClientSession", kind: int) -> int:
    """Handle a frame without a body. Return 0 or E_ACK_KIND."""
    if kind != _PINGREQ and kind != _PUBREL:
        return settle(
            s,
            find_sent(s, s.ident, s.ident_at, s.ident_end),
            1 if kind == _PUBREC else 2,
            s.ident,
            s.ident_at,
            s.ident_end,
        )
    if kind == _PINGREQ:
        put_answer(s, _ACK, s.ident, s.ident_at, s.ident_end)
        return 0
    i = _find_2(s)
    if i >= 0:
        s.taken.state[i] = 0
    else:
        # The hub missed PUBCOMP or is in error. In either case it may release the id.
        s.strays += 1
    put_answer(s, _PUBCOMP, s.ident, s.ident_at, s.ident_end)
    return 0


# -- received messages -------------------------------------------------------------------------------------------------


def deliver_1(s: "ClientSession", f: "Frame") -> None:
    """Deliver a whole PUBLISH at QoS 1 that is no call, and acknowledge it."""
    if _is_handled(s, f):
        put_answer(s, _ACK, f.buf, f.id_at, f.id_end)


def _is_handled(s: "ClientSession", f: "Frame") -> bool:
    """Call ``on_message``. Return whether its connection still exists afterwards."""
    epoch = s.epoch
    if s.on_message is not None:
        s.tx_size -= ANSWER_SIZE
        try:
            s.on_message(f)
        finally:
            if s.epoch == epoch:
                s.tx_size += ANSWER_SIZE
    return s.epoch == epoch


def _answer_kind(s: "ClientSession", f: "Frame") -> int:
    """Set ``source`` and return the type of the answer to a message: 0 (none), _ACK, _PUBREC or UNKNOWN."""
    s.source = 0
    s.ending = -1
    if f.head >> 4 == _PUBLISH:
        return _ANSWERS[f.head >> 1 & 3]
    if s.find_request is not None:
        return s.find_request(s, f)
    s.strays += 1
    return UNKNOWN


def _deliver(
    s: "ClientSession", handler: "Callable[..., object] | None", message: object, kind: int, auto: bool
) -> int:
    """Call the handler, then answer with ``kind`` unless the application acknowledges.

    Return 0, E_RX_WINDOW, or _LATER: earlier answers must be sent first, so that the hub does not redeliver
    their messages.
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
        # The place is used before the handler runs, so that the message is delivered only once.
        taken.put(i, WAITS_2 if kind == _PUBREC else WAITS_1, s.ident, s.ident_at, s.ident_end)
    s.receipt = taken.number(i) if i >= 0 else 0
    if s.ending >= 0:
        s.requests.state[s.ending] = 0
    epoch = s.epoch
    _call_handler(s, handler, message, s.receipt)
    if kind == 0 or not auto:
        return 0
    if i < 0:
        if s.epoch == epoch:
            put_answer(s, _ACK, s.ident, s.ident_at, s.ident_end)
    elif s.epoch == epoch:
        answer_taken(s, i)
    elif taken.state[i] == WAITS_2 or taken.state[i] == OLD_2:
        # The connection has ended; the redelivered message is answered at once.
        taken.state[i] = ANSWERED_2
    return 0


def _call_handler(
    s: "ClientSession", handler: "Callable[..., object] | None", message: object, receipt: int
) -> None:
    """Call the handler with room for the answer reserved.

    If it raises, the message counts as not received, unless the handler has acknowledged it.
    """
    if handler is None:
        return
    epoch = s.epoch
    s.tx_size -= ANSWER_SIZE
    try:
        handler(message)
    except BaseException:
        i = s.taken.place(receipt) if receipt else -1
        if i >= 0 and s.taken.state[i] != ANSWERED_2:
            s.taken.state[i] = 0
        raise
    finally:
        if s.epoch == epoch:
            s.tx_size += ANSWER_SIZE


def _find_2(s: "ClientSession") -> int:
    """Return the place of the received QoS 2 message with the current id, or -1."""
    return s.taken.find(WAITS_2, ANSWERED_2, s.ident, s.ident_at, s.ident_end)


def answer_taken(s: "ClientSession", i: int) -> None:
    """Answer the received message at place ``i``. The transmit buffer must have room for it."""
    taken = s.taken
    at = i * _ID_SIZE
    if taken.state[i] == WAITS_1:
        taken.state[i] = 0
        put_answer(s, _ACK, taken.ids, at, at + taken.sizes[i])
    else:
        # From now on a duplicate is not delivered.
        taken.state[i] = ANSWERED_2
        put_answer(s, _PUBREC, taken.ids, at, at + taken.sizes[i])


# -- messages larger than the receive buffer ---------------------------------------------------------------------------


def _begin_large(s: "ClientSession", i: int, end: int) -> int:
    """Start a frame larger than the receive buffer (see ``take_frame``)."""
    f = s.frame
    if not _MESSAGES >> (f.head >> 4) & 1:
        return s.fail(errors.E_RX_TOO_LARGE)
    # Bytes after ``capacity`` are ignored: the result must not depend on how a frame arrives.
    stop = min(f.end, end, i + s.rx.capacity)
    bad = walk_fields(f, ROWS[f.head >> 4], stop)
    fits = bad != errors.E_FIELD or stop == f.end
    if not fits:
        if end - i < s.rx.capacity:
            return i
        f.payload_at = f.body
    elif bad:
        return s.fail(bad)
    # Id and correlation always fit: they are in the first 42 bytes.
    s.rx.start = f.payload_at
    s.large_left = f.end - f.payload_at
    s.frame_at = -1
    s.ident = f.buf
    s.ident_at = f.id_at
    s.ident_end = f.id_end
    # Reuses ``bad`` for the type of the answer. Nothing is answered if the sink raises.
    bad = _answer_kind(s, f)
    s.large_answer = UNKNOWN
    if bad > 0:
        s.large_size = f.id_end - f.id_at
        for i in range(s.large_size):
            s.large_ident[i] = f.buf[f.id_at + i]
    if bad == _PUBREC and _find_2(s) >= 0:
        # A duplicate is answered, but not delivered.
        s.large_answer = bad
        return f.payload_at
    if bad > 0 and (bad == _PUBREC or not s.auto_ack) and s.taken.free() < 0:
        return s.fail(errors.E_RX_WINDOW)
    if bad == UNKNOWN:
        return f.payload_at
    epoch = s.epoch
    if fits and s.stream is not None:
        s.stream.open(s, f)
    if s.epoch != epoch:
        return -1
    if s.stream is None or not s.stream.streaming:
        s.skipped += 1
    s.large_answer = bad
    return f.payload_at


def _continue_large(s: "ClientSession", i: int, end: int) -> int:
    """Pass on the next piece of the large message. Return the offset reached, or a negative number if the connection
    has ended."""
    n = min(s.large_left, end - i)
    if n == s.large_left and s.tx_size - s.tx_end < ANSWER_SIZE:
        s.stalled = True
        return i
    s.large_left -= n
    i += n
    s.rx.start = i
    if n and s.stream is not None and s.stream.streaming:
        epoch = s.epoch
        kind = s.large_answer
        # Nothing is answered if the sink raises. Room for the answer is reserved, as for a handler.
        s.large_answer = UNKNOWN
        s.tx_size -= ANSWER_SIZE
        try:
            s.stream.write(s.rx.buf, i - n, n)
        finally:
            if s.epoch == epoch:
                s.tx_size += ANSWER_SIZE
        if s.epoch != epoch:
            return -1
        s.large_answer = kind
    return i if s.large_left or not _end_large(s) else s.fail(errors.E_RX_WINDOW)


def _end_large(s: "ClientSession") -> int:
    """Answer the completely received large message. Return 0 or E_RX_WINDOW."""
    end = s.stream.end if s.stream is not None and s.stream.streaming else None
    kind = s.large_answer
    if kind <= 0 and s.ending < 0:
        if end is not None:
            end(True)
        return 0
    s.ident = s.large_ident
    s.ident_at = 0
    s.ident_end = s.large_size
    return _deliver(s, end, True, max(kind, 0), s.auto_ack or end is None)


# -- answers to requests -----------------------------------------------------------------------------------------------


def _on_ack(s: "ClientSession", f: "Frame") -> int:
    asked = f.buf[f.id_at] >> 4
    if asked == _PUBLISH and s.state != CONNECTING:
        asked = find_sent(s, f.buf, f.id_at, f.id_end)
        if f.code == 0:
            return settle(s, asked, 0, f.buf, f.id_at, f.id_end)
        if asked >= 0:
            _complete(s, asked)
        if s.on_refused is not None:
            s.on_refused(asked + 1, f.code)
        return 0
    if asked == _PINGREQ and s.state != CONNECTING:
        s.pinged = False
        return 0
    if asked == _AUTH or s.state == CONNECTING:
        return _on_auth(s, f)
    return _on_request_ack(s, f)


def _on_auth(s: "ClientSession", f: "Frame") -> int:
    """Handle the hub's answer to AUTH, or its end of an accepted connection."""
    if s.requests.find(HELLO, HELLO, f.buf, f.id_at, f.id_end) < 0:
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
    if present and s.clean_start:
        return errors.E_CODE
    read(v, f.at[1], f.end)
    f.bad_at = f.at[1]
    if v.big or v.negative or s.ids.set_process(f.buf, v.at, v.end):
        return _E_FORM
    s.process = bytes(f.buf[v.at : v.end]) if any(f.buf[v.at : v.end]) else b""
    read(v, f.at[3], f.end)
    if not (v.big or v.negative):  # type: ignore[redundant-expr]  # ``read`` has changed both
        # A time that does not have eight bytes is ignored: ids then continue by the board's clock.
        s.ids.set_time(f.buf, v.at, v.end, s.now)
    s.session_present = present
    s.event(ACCEPT)
    if not present:
        # The hub has no subscriptions, and does not redeliver received messages.
        s.requests.keep(HELLO)
        s.taken.keep(0)
    s.resume()
    if s.on_online is not None:
        s.on_online(present)
    return 0


def _on_request_ack(s: "ClientSession", f: "Frame") -> int:
    asked = s.requests
    i = asked.find(1, CALL, f.buf, f.id_at, f.id_end)
    if i < 0:
        s.strays += 1
        return 0
    state = asked.state[i]
    n = asked.number(i)
    if state == _SUBSCRIBE and f.code == 0:
        if f.count < 2 or f.at[2] - f.at[1] > _ID_SIZE:
            f.bad_at = f.body
            return _E_FORM
        k = asked.find(LIVE, LIVE, f.buf, f.at[1], f.at[2])
        if k >= 0:
            # The subscription existed before; it stays one subscription, with its consumer.
            asked.state[k] = 0
            asked.more[i] = asked.more[k]
            for j in range(asked.places):
                # A pending UNSUBSCRIBE refers to the new place.
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


def _report_error(s: "ClientSession", code: int) -> None:
    """Send the hub an ACK with the error in the current frame, if the frame has an id."""
    f = s.frame
    at = s.frame_at + 1
    end = id_end(f.buf, at, s.rx.end) if at > 0 else 0
    if end > 0:
        end = encode_frame(s.tx, 0, s.tx_size, _ACK << 4, bytes(f.buf[at:end]), (code,))
        s.tx_end = max(end, 0)


class ClientSession(Endpoint):
    """The client's session, which survives connections.

    - ``clean_start``: with False the hub keeps the session.
    - ``rx_size``, ``tx_size``, ``outbox_size``: bytes of the buffers. A frame to be received whole must fit in seven
      eighths of ``rx_size``; requests and PUBLISH at QoS 0 in ``tx_size``; PUBLISH at QoS 1 and 2 in ``outbox_size``.
    - ``slots``: messages that may be unacknowledged or waiting, ``window`` of them in flight.
    - ``requests``: requests that may be unanswered or active. Each subscription and each CONSUME takes a place.
    - ``receive_window``: received messages that may wait for the application or, at QoS 2, for PUBREL.
    - ``max_body``: a longer frame ends the connection.
    - ``thread``, ``boot``, ``process``: parts of message ids (``ids.IdMaker``). ``process`` is the number that the hub
      has assigned before; a board may store it. Without it, QoS 1 and 2 messages cannot be enqueued before the first
      connection; their ids are unique only if ``boot`` counts the boots.

    Handlers:

    - ``on_online(session_present)``: the hub has accepted the connection.
    - ``on_message(frame)``: a PUBLISH or CONSUMERESP, in the reusable cursor. ``source`` is the number of the
      subscription or call of a CONSUMERESP, 0 for PUBLISH; ``receipt`` is for ``headwater.fmq.manual_ack``, which needs
      ``auto_ack`` False. If a handler raises, the message is not acknowledged; the exception passes through ``feed``,
      and the next ``feed(0)`` continues after the message.
    - ``on_delivered(number)``: a QoS 1 or 2 message is completely acknowledged. ``on_refused(number, code)``: the hub
      has refused it; ``number`` is 0 for QoS 0, which a hub may refuse without an answer.
    - ``on_answer(number, code)``: a request was answered with 0 or a reason code (``reason`` has the text); for
      ``queues.consume`` it has ended.
    - ``on_call``, ``on_result``: see ``headwater.fmq.calls``.

    A message larger than the receive buffer is skipped: acknowledged, and counted in ``skipped``.
    ``headwater.streaming`` passes it to a sink.
    """

    def __init__(
        self,
        client_id: "Bytes" = b"",
        keep_alive: int = 60,
        clean_start: bool = True,
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
        if tx_size < 2 * ANSWER_SIZE:
            raise ValueError("tx_size %r: need at least 40 bytes" % tx_size)
        rx = rx or RxBuf(rx_size)
        super().__init__(rx, tx_size, outbox or RamOutbox(outbox_size, slots), window, response_ms)
        self.ids = IdMaker(thread, boot)
        #: The process number that the hub has assigned, little-endian; empty before.
        self.process: Bytes = process
        if process and self.ids.set_process(process, 0, len(process)):
            raise ValueError("process %r: too long; pass the number that a hub has assigned" % process)
        if rx.capacity < 56:
            raise ValueError("rx_size %r: need at least 64 bytes" % rx.size)
        self.frame = Frame(rx.buf, max_body)
        self.client_id = client_id
        self.keep_alive = keep_alive
        self.clean_start = clean_start
        self._user = user
        self._password = password
        self._will: tuple[Field, ...] = ()
        #: The hub's reason code if the status is E_REFUSED or E_DISCONNECTED; ``reason`` has its text.
        self.return_code = 0
        #: True if the hub had a stored session when it accepted the last connection.
        self.session_present = False
        self.on_online: Callable[[bool], object] | None = None
        self.on_answer: Callable[[int, int], object] | None = None
        self.on_refused: Callable[[int, int], object] | None = None
        self.on_call: Callable[[Frame], object] | None = None
        self.on_result: Callable[[Frame], object] | None = None
        self.auto_ack = True
        #: Set before ``on_message`` is called.
        self.source = self.receipt = 0
        self.takes = TAKES
        self.take_packets = take_frame
        self.requests = IdTable(requests)
        # The place of AUTH.
        self._hello = 0
        self.taken = IdTable(receive_window)
        # The current large message: type of the answer, size of the id.
        self.large_answer = self.large_size = 0
        self.large_ident = bytearray(_ID_SIZE)
        # Finds the request that a CONSUMERESP answers: ``queues.find_request`` once something was requested.
        self.find_request: Callable[[ClientSession, Frame], int] | None = None
        # Receive path: the id of the current frame; the place of the call that it ends, or -1; its offset in the
        # buffer.
        self.ident: Bytes = self.rx.buf
        self.ident_at = self.ident_end = 0
        self.ending = -1
        self.frame_at = 0
        # The offset of the body's length in the prepared frame; it has two bytes. Only a reply starts with the same
        # bytes, and a reply clears it.
        self.ready_length = 0

    def set_will(
        self, topic: "Bytes | None", payload: "Bytes" = b"", qos: int = 0, retain: bool = False
    ) -> int:
        """Set the will of the next connections, None for none. Return 0, E_TOPIC, E_QOS or E_ARGUMENT.

        The hub publishes it if the client disconnects unexpectedly.
        """
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
        """Start a connection with AUTH. Return 0, or E_TOO_LARGE or E_ARGUMENT if it cannot be encoded."""
        self.begin(now_ms)
        self.return_code = 0
        asked = self.requests
        asked.keep(LIVE)
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
            self.clean_start,
        ) + self._will
        if values == (b"", None, None, 0, True):
            values = ()
        ident = self.ids.next(_AUTH, now_ms)
        end = errors.E_ARGUMENT
        if is_bytes(self.client_id):
            end = encode_frame(self.tx, 0, self.tx_size, _AUTH << 4, ident, values)
        i = asked.free()
        if end < 0 or i < 0:
            self.event(LOST)
            return end if end < 0 else errors.E_ARGUMENT
        asked.put(i, HELLO, ident, 0, len(ident))
        self._hello = i
        self.tx_end = end
        self.event(OPEN)
        return 0

    def disconnect(self) -> int:
        """Queue the ACK to AUTH, which ends the connection. Return 0, or E_AGAIN if the transmit buffer is full.

        The will is not published. Close the transport once ``out`` returns 0.
        """
        if self.state == CLOSING:
            return 0
        if self.state == ONLINE:
            asked = self.requests
            i = self._hello
            at = i * _ID_SIZE
            bad = self.queue_packet(
                encode_answer(self.tx, self.tx_end, self.tx_size, _ACK, asked.ids, at, at + asked.sizes[i])
            )
            if bad:
                return bad
        self.event(FINISH)
        return 0

    def resume(self) -> None:
        """Retransmit all unacknowledged messages, in order, before new messages."""
        box = self.outbox
        for i in range(box.slots):
            if box.state[i] == REL:
                # An entry that a journal has lost.
                box.set(i, DONE)
            elif box.state[i] == AT2 and _is_released(box, i):
                # Sending has set DUP, which PUBREL does not have.
                box.buf[box.at[i]] = _PUBREL << 4
        self._entry = box.head
        self._unsent = box.count
        self.in_flight = 0

    def fail(self, code: int) -> int:
        """Break the connection with an error, and report it to the hub if the hub caused it. Return ``code``."""
        idle = self.out_n == 0
        super().fail(code)
        # Not after a partly sent frame.
        if idle and (blame(code) == PEER or code in _REASONS):
            _report_error(self, _REASONS.get(code, 0x81))
        return code

    def awaits(self) -> bool:
        """Return whether an acknowledgement or an answer is due. CONSUME is answered when it ends, so it does not
        count."""
        for state in self.requests.state:
            if 0 < state <= CALL and state != _CONSUME:
                return True
        return super().awaits()

    def _put_ping(self) -> int:
        if self.tx_size - self.tx_end < ANSWER_SIZE:
            return errors.E_TOO_LARGE
        return put_head(self.tx, self.tx_end, _PINGREQ << 4, self.ids.next(_PINGREQ, self.now))

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, tags: "Bytes" = NO_TAGS
    ) -> int:
        """Enqueue a message; ``out`` sends it. Bytes-like arguments allocate nothing.

        ``tags`` is the result of ``frames.tag_list``. Returns 0 (QoS 0) or the number of the message (QoS 1, 2), which
        stays in the outbox until the hub answers. Errors: E_TOPIC; E_QOS; E_ARGUMENT (not bytes); E_OFFLINE (QoS 0
        without a connection, QoS 1 and 2 before a hub has assigned a process number); E_AGAIN (transmit buffer full);
        E_WINDOW (outbox full); E_TOO_LARGE; E_STORE.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self.enqueue(topic, payload, qos << 1 | (1 if retain else 0), tags)

    def enqueue(self, topic: "Bytes", payload: "Bytes", flags: int, tags: "Bytes" = NO_TAGS) -> int:
        """Publish with QoS and RETAIN given as in the first byte of PUBLISH (see ``publish``)."""
        try:
            if topic is not self.known_topic and _is_bad(self, topic):
                return errors.E_TOPIC
            n = message_size(topic, payload, tags)
            n += 1 + len(self.ids.ident) + length_size(n)
            if flags > 1:
                return _store(self, n, topic, payload, flags, tags)
            if self.state != ONLINE:
                return errors.E_OFFLINE
            if n > self.tx_size - self.tx_end:
                return errors.E_AGAIN if n <= len(self.tx) else errors.E_TOO_LARGE
            at = put_head(self.tx, self.tx_end, _PUBLISH << 4 | flags, self.ids.next(_PUBLISH, self.now))
            if self.tx_end == 0:
                # This overwrites the prepared frame, and may become the next one.
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

    # -- requests ------------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic_filter: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        group: "Bytes" = b"",
    ) -> int:
        """Send SUBSCRIBE. Return the number of the subscription, which is passed to ``on_answer`` with the answer.

        Without a ``group`` the hub pushes the messages with PUBLISH. With one, ``queues.consume`` requests them.
        Errors: E_FILTER; E_ARGUMENT; E_OFFLINE; E_TOO_LARGE; E_AGAIN if the transmit buffer is full or too many
        requests are unanswered or active.
        """
        values: tuple[Field, ...] = (topic_filter, tags, condition, group)
        if not group:
            values = values[:3] if condition else values[:2] if tags else values[:1]
        if not is_query(tags, condition, group):
            return errors.E_ARGUMENT
        return refused(check_filter, topic_filter) or self.request(_SUBSCRIBE << 4, values)

    def unsubscribe(self, subscription: int) -> int:
        """Send UNSUBSCRIBE. Return the number of this request, or an error: E_UNKNOWN_ID, or one of ``request``."""
        asked = self.requests
        i = asked.place(subscription)
        if i < 0 or asked.state[i] != LIVE:
            return errors.E_UNKNOWN_ID
        n = self.request(_UNSUBSCRIBE << 4, (asked.ident(i),))
        if n > 0:
            asked.more[asked.place(n)] = i
        return n

    def request(self, head: int, values: "Sequence[Field]", state: int = -1) -> int:
        """Send any request, by its first byte and fields (``frames.encode_frame``). Return its number, or an error."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        asked = self.requests
        i = asked.free()
        if i < 0:
            return errors.E_AGAIN
        ident = self.ids.next(head >> 4, self.now)
        bad = self.queue_packet(encode_frame(self.tx, self.tx_end, self.tx_size, head, ident, values))
        if bad:
            return bad
        asked.put(i, head >> 4 if state < 0 else state, ident, 0, len(ident))
        return asked.number(i)

    def reason(self) -> bytes:
        """Return the hub's text for its refusal in UTF-8, often empty. Allocates.

        Valid in ``on_answer`` and ``on_refused``, and after E_REFUSED and E_DISCONNECTED.
        """
        f = self.frame
        if f.head >> 4 != _ACK or f.code == 0 or f.count < 2 or read(f.value, f.at[1], f.end) < 0:
            return b""
        return bytes(f.buf[f.value.at : f.value.end])


def is_query(tags: object, condition: object, group: object) -> bool:
    """Return whether these can be fields of SUBSCRIBE."""
    return is_bytes(condition) and is_bytes(group) and (is_bytes(tags) or isinstance(tags, _LISTS))


def refused(check: "Callable[[Bytes], int]", topic: "Bytes") -> int:
    """Return the result of ``check`` for a topic or filter, or E_ARGUMENT if it is not bytes-like."""
    try:
        return check(topic)
    except NOT_BYTES:
        return errors.E_ARGUMENT
