"""The packets only a server reads (MQTT 3.1.1).

CONNECT, SUBSCRIBE, UNSUBSCRIBE; and the decoders of all fourteen.
"""

from headwater.errors import (
    E_CODE,
    E_FIELD,
    E_FLAGS,
    E_PACKET_ID,
    E_PROTOCOL,
    E_RX_QOS,
    E_RX_TOPIC,
    E_SIZE,
    E_UTF8,
)
from headwater.mqtt import decode, spec
from headwater.mqtt.topics import BAD_UTF8, check_filter
from headwater.wire import check_utf8, const, get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode import Packet


# CONNECT's body up to its keep-alive. 3.1's name is two bytes longer.
_SMALLEST = const(10)
_LEVEL_3_1 = const(3)
_LEVEL_5 = const(5)
_IN_WILL = const(1)


class Connect:
    """What a CONNECT says, as offsets into the packet's buffer; an absent string begins at -1.

    ``level`` is the protocol level, ``flags`` the connect flags (3.1.2.3), ``keep_alive`` in seconds. ``protocols`` are
    the names and levels that are taken.
    """

    def __init__(self, protocols: "tuple[bytes, ...]" = (spec.PROTOCOL,)):
        self.protocols = protocols
        self.level = self.flags = self.keep_alive = 0
        self.client_id_at = self.client_id_end = 0
        self.will_topic_at = self.will_topic_end = -1
        self.will_payload_at = self.will_payload_end = -1
        self.user_at = self.user_end = -1
        self.password_at = self.password_end = -1

    def properties(self, p: "Packet", at: int, where: int) -> int:
        """Take the properties that stand at ``at`` from 5.0 on, ``where`` being the bit of the packet or of the will.

        Returns the offset behind them, or an error.
        """
        return at

    def clean(self) -> bool:
        """Whether the session begins anew (3.1.2.4)."""
        return self.flags & spec.CLEAN_SESSION != 0

    def will_qos(self) -> int:
        """The will's QoS (3.1.2.6)."""
        return self.flags >> spec.WILL_QOS_SHIFT & 3

    def will_retain(self) -> bool:
        """Whether the will is to be retained (3.1.2.7)."""
        return self.flags & spec.WILL_RETAIN != 0


def block(p: "Packet", at: int, text: bool) -> int:
    """Check the length-prefixed field at ``at``; returns the offset behind it or an error."""
    p.bad_at = at
    if at + 2 > p.end:
        return E_FIELD
    end = at + 2 + get_u16(p.buf, at)
    if end > p.end:
        return E_FIELD
    if text:
        bad = check_utf8(p.buf, at + 2, end)
        if bad >= 0:
            p.bad_at = bad
            return E_UTF8
    return end


def _protocol(p: "Packet", c: Connect) -> int:
    """Read CONNECT's name and level: the offset behind them, or an error."""
    buf = p.buf
    at = p.bad_at = p.body
    c.level = -1
    if p.end - at < _SMALLEST:
        return E_SIZE
    for protocol in c.protocols:
        n = len(protocol) - 1
        i = 0
        while i < n and buf[at + i] == protocol[i]:
            i += 1
        if i == n:
            c.level = buf[at + n]
            if c.level == protocol[n]:
                return at + n + 1
            p.bad_at = at + n
    return E_PROTOCOL


def connect(p: "Packet", c: Connect) -> int:
    """CONNECT (3.1), of the versions in ``c.protocols``.

    E_PROTOCOL: the level, then in ``c.level``, is not spoken here; or the name is not MQTT's, and ``c.level`` is -1.
    """
    buf = p.buf
    at = _protocol(p, c)
    if at < 0:
        return at
    if at + 3 > p.end:
        return E_SIZE
    flags = c.flags = buf[at]
    p.bad_at = at
    if flags & 1:
        return E_FLAGS
    if flags & spec.WILL == 0:
        if flags & 0x38:
            return E_FLAGS
    elif flags & 0x18 == 0x18:
        return E_RX_QOS
    if flags & spec.PASSWORD and not flags & spec.USER_NAME and c.level < _LEVEL_5:
        return E_FLAGS
    c.keep_alive = get_u16(buf, at + 1)
    at = c.properties(p, at + 3, 1 << spec.CONNECT)
    if at < 0:
        return at
    c.client_id_at = at + 2
    at = c.client_id_end = block(p, at, True)
    c.will_topic_at = c.will_payload_at = c.user_at = c.password_at = -1
    c.will_topic_end = c.will_payload_end = c.user_end = c.password_end = -1
    if at < 0:
        return at
    if flags & spec.WILL:
        at = c.properties(p, at, _IN_WILL)
        if at < 0:
            return at
        c.will_topic_at = at + 2
        at = c.will_topic_end = block(p, at, True)
        if at < 0:
            return at
        bad = p.check(buf, c.will_topic_at, at)
        if bad:
            p.bad_at = c.will_topic_at
            return E_RX_TOPIC
        c.will_payload_at = at + 2
        at = c.will_payload_end = block(p, at, False)
        if at < 0:
            return at
    if at == p.end and c.level == _LEVEL_3_1:
        # 3.1 lets the flags promise what the packet does not have.
        flags = 0
    if flags & spec.USER_NAME:
        c.user_at = at + 2
        at = c.user_end = block(p, at, True)
        if at < 0:
            return at
    if at == p.end and c.level == _LEVEL_3_1:
        flags = 0
    if flags & spec.PASSWORD:
        c.password_at = at + 2
        at = c.password_end = block(p, at, False)
        if at < 0:
            return at
    if at != p.end:
        p.bad_at = at
        return E_SIZE
    return 0


def connect_alone(p: "Packet") -> int:
    """CONNECT, for whoever only wants to know whether it is well-formed."""
    return connect(p, Connect())


def subscribe(p: "Packet") -> int:
    """SUBSCRIBE (3.8) or UNSUBSCRIBE (3.10): checks every filter; then walk them with ``next_filter``.

    ``code`` is the number of filters.
    """
    buf = p.buf
    at = p.body
    p.bad_at = at
    if p.end - at < 2:
        return E_SIZE
    p.packet_id = get_u16(buf, at)
    if p.packet_id == 0:
        return E_PACKET_ID
    p.payload_at = at = at + 2
    p.bad_at = at
    if at == p.end:
        return E_SIZE
    count = 0
    while at < p.end:
        start = at + 2
        at = block(p, at, False)
        if at < 0:
            return at
        bad = check_filter(buf, start, at)
        if bad:
            p.bad_at = start
            return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
        if p.kind() == spec.SUBSCRIBE:
            p.bad_at = at
            if at >= p.end:
                return E_FIELD
            if buf[at] > 2:
                return E_RX_QOS if buf[at] == 3 else E_CODE
            at += 1
        count += 1
    p.code = count
    p.topic_end = p.payload_at - 1 if p.kind() == spec.SUBSCRIBE else p.payload_at
    return 0


def next_filter(p: "Packet") -> int:
    """Go to the next filter of a SUBSCRIBE or UNSUBSCRIBE: its requested QoS (0 for UNSUBSCRIBE), or -1
    behind the last.

    The filter is ``buf[topic_at:topic_end]``.
    """
    subscribing = p.kind() == spec.SUBSCRIBE
    at = p.topic_end + 1 if subscribing else p.topic_end
    if at >= p.end:
        return -1
    p.topic_at = at + 2
    p.topic_end = at + 2 + get_u16(p.buf, at)
    return p.buf[p.topic_end] if subscribing else 0


#: The decoder of each packet type, at whichever end.
DECODERS = (
    decode.DECODERS[: spec.CONNECT]
    + (connect_alone,)
    + decode.DECODERS[spec.CONNECT + 1 : spec.SUBSCRIBE]
    + (subscribe, decode.suback, subscribe)
    + decode.DECODERS[spec.UNSUBSCRIBE + 1 :]
)


def packet(p: "Packet", at: int, end: int, decoders: "tuple[Callable[[Packet], int], ...]" = DECODERS) -> int:
    """Read one whole packet of any type at ``at``.

    The offset behind it, MORE (0) when it is not all there, or an error.
    """
    stop = decode.fixed_header(p, at, end)
    if stop <= 0:
        return stop
    if stop > end:
        return decode.MORE
    bad = decoders[p.head >> 4](p)
    return bad if bad < 0 else stop
