"""A PUBLISH that is larger than the receive buffer: it passes through, to a sink or to nobody, and the
connection lives.

Its fixed header and topic are held, if they fit, and the payload is handed to the sink as it arrives. A topic
that does not fit cannot be delivered: the message is skipped, but its packet id is still read, so that it can
be acknowledged. What is known of the message stands in the endpoint, of which these functions are a part.
"""

from headwater import errors
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.session import Session
    from headwater.types import Bytes

_PUBLISH = const(3)
_ACK_SIZE = const(4)
# In the place of a place among the open ids: as in ``endpoint``; and a message at QoS 1.
_QOS_1 = const(-1)
_REPETITION = const(-1)


def begin(s: "Session", i: int, end: int) -> int:
    """As ``endpoint._packet``, for one that is larger than the receive buffer, even if all of it happens to be here:
    what becomes of a packet is not a matter of how it arrives."""
    p = s.packet
    if p.head >> 4 != _PUBLISH:
        return s.fail(errors.E_RX_TOO_LARGE)
    at = s._payload_begins(i, end)
    if at <= 0:
        return s.fail(at) if at else i
    fits = at - i <= s.rx.capacity
    if not fits:
        at = p.body + 2
        p.packet_id = 0
        p.topic_at = p.topic_end = at
        s._large_head = p.buf[at - 2] << 8 | p.buf[at - 1]
        if p.head & 6:
            s._large_head += 2
    elif at > end:
        return i
    else:
        bad = s._read_publish(p)
        if bad:
            return s.fail(bad)
    s.rx.start = at
    s._large_left = p.end - at
    s._large_qos = p.qos()
    s._large_id = p.packet_id
    if p.head & 4 and p.packet_id:
        if s.version is not None:
            s.version.opening(p.packet_id)
        if s.find_qos2(p.packet_id) >= 0:
            return at
        if s.excess or s._free_qos2() < 0:
            if not s.leave_excess:
                return s.fail(errors.E_RX_WINDOW)
            # It passes, unacknowledged.
            s.excess += 1
            s._large_qos = 0
            return at
    if fits and s.sink is not None:
        epoch = s.epoch
        sink = s.sink
        try:
            taken = sink.open(p, s._large_left)
        except BaseException:
            # The message passes, unacknowledged.
            s._large_qos = 0
            raise
        if s.epoch != epoch:
            # The sink has ended the connection.
            if taken:
                sink.close(False)
            return at
        if taken:
            s._taker = sink
            return at
    s.skipped += 1
    return at


def go_on(s: "Session", i: int, end: int) -> int:
    """Pass on what is here of the large message: the offset reached, or negative when the connection is over."""
    if end - i >= s._large_left and s.tx_size - s.tx_end < _ACK_SIZE:
        s.stalled = True
        return i
    buf = s.rx.buf
    while s._large_head and i < end:
        # A topic that did not fit: what counts is its last two bytes, which are the packet id.
        s._large_id = (s._large_id << 8 | buf[i]) & 0xFFFF
        s._large_head -= 1
        s._large_left -= 1
        i += 1
        if s._large_qos and not (s._large_head or s._large_id):
            return s.fail(errors.E_PACKET_ID)
    n = min(s._large_left, end - i)
    s._large_left -= n
    i += n
    s.rx.start = i
    if n and s._taker is not None:
        epoch = s.epoch
        _write(s, buf, i - n, n)
        if s.epoch != epoch:
            return -1
    if s._large_left == 0 and _end(s):
        return s.fail(errors.E_RX_WINDOW)
    return i


def _write(s: "Session", buf: "Bytes", at: int, n: int) -> None:
    """Hand ``n`` bytes of the payload to the sink; what it raises ends the message for it, unacknowledged."""
    try:
        s._taker.write(buf, at, n)  # type: ignore[union-attr]  # there is one
    except BaseException:
        s._large_qos = 0
        s._close_taker(False)
        raise


def _end(s: "Session") -> int:
    """All of the large message has passed: 0 or E_RX_WINDOW."""
    place = _QOS_1
    if s._large_qos == 0:
        s._close_taker(True)
        return 0
    if s._large_qos == 2:
        place = s._open_qos2(s._large_id)
        if place < 0:
            if place == _REPETITION or not s.leave_excess:
                return 0 if place == _REPETITION else place
            s.excess += 1
            s._close_taker(False)
            return 0
    s._deliver(s._close_taker, True, place, s._large_id, s.auto_ack or s._taker is None)
    return 0
