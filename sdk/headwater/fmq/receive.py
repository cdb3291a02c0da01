"""The way in of an FMQ session: frames apart, messages delivered and answered, answers to our own.

These functions are a part of ``session.ClientSession``, which is their first argument.

A handler of the application may publish until the transmit buffer is full (room for the answer to its message is kept),
end the connection, begin another one, or raise.
"""

from headwater import errors
from headwater.fmq.frames import decode_fields, decode_header, encode_frame, scan
from headwater.fmq.ids import id_end, same
from headwater.fmq.sender import ANSWER_SIZE, answered, find, over, put_answer
from headwater.fmq.spec import E_FORM, ID_SIZE
from headwater.fmq.transitions import TAKES
from headwater.fmq.values import read
from headwater.transitions import ACCEPT, CONNECTING
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.fmq.frames import Frame
    from headwater.fmq.session import ClientSession
    from headwater.fmq.values import Value

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
