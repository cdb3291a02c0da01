"""MQTT packets that only a server decodes.

The conventions are those of ``packets``. ``decode_packet`` decodes a packet of any type, for tools that inspect them.
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
    E_TOO_LARGE,
    E_TYPE,
    E_UTF8,
)
from headwater.mqtt.packets import (
    BAD_UTF8,
    HEADS,
    MORE,
    PROTOCOL,
    check_filter,
    decode_ack,
    decode_connack,
    decode_header,
    decode_publish,
    decode_suback,
)
from headwater.mqtt.properties import WILL_PROPERTIES, check_filter5, unshared
from headwater.mqtt.spec5 import PROTOCOL as PROTOCOL_5
from headwater.wire import check_utf8, const, get_u16, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

_CONNECT = const(1)
_CONNACK = const(2)
_PUBLISH = const(3)
_SUBSCRIBE = const(8)
_SUBACK = const(9)
_UNSUBSCRIBE = const(10)
_UNSUBACK = const(11)
_DISCONNECT = const(14)
_AUTH = const(15)

_CLEAN_SESSION = const(2)
_WILL = const(4)
_WILL_QOS_SHIFT = const(3)
_WILL_RETAIN = const(32)
_PASSWORD = const(64)
_USER_NAME = const(128)

# The size of CONNECT's body up to its keep-alive. In 3.1 the protocol name is two bytes longer.
_SMALLEST = const(10)
_LEVEL_3_1 = const(3)
_LEVEL_5 = const(5)

# Subscription options of 5.0 (3.8.3.1): reserved bits, and the two fields that have an undefined value.
_RESERVED = const(0xC0)
_QOS = const(3)
_RETAIN_HANDLING = const(0x30)
_NO_LOCAL = const(4)


class Connect:
    """The contents of a CONNECT, as offsets into the packet's buffer; the offset of a missing string is -1.

    ``level`` is the protocol level, ``flags`` the connect flags (3.1.2.3), ``keep_alive`` in seconds. From 5.0 on the
    properties are ``buf[props_at:props_end]``, the will's ``buf[will_props_at:will_props_end]``; both are empty before.
    ``protocols`` are the accepted names and levels.
    """

    def __init__(self, protocols: "tuple[bytes, ...]" = (PROTOCOL,)):
        self.protocols = protocols
        self.level = self.flags = self.keep_alive = 0
        self.client_id_at = self.client_id_end = 0
        self.will_topic_at = self.will_topic_end = -1
        self.will_payload_at = self.will_payload_end = -1
        self.user_at = self.user_end = -1
        self.password_at = self.password_end = -1
        self.props_at = self.props_end = 0
        self.will_props_at = self.will_props_end = 0

    def clean_start(self) -> bool:
        """Return whether the client requests a new session (3.1.2.4)."""
        return self.flags & _CLEAN_SESSION != 0

    def will_qos(self) -> int:
        """Return the will's QoS (3.1.2.6)."""
        return self.flags >> _WILL_QOS_SHIFT & 3

    def will_retain(self) -> bool:
        """Return whether the will is to be retained (3.1.2.7)."""
        return self.flags & _WILL_RETAIN != 0


def _check_field(p: "Packet", at: int, is_text: bool) -> int:
    """Check the length-prefixed field at ``at``. Return the offset after it, or an error."""
    p.bad_at = at
    if at + 2 > p.end:
        return E_FIELD
    end = at + 2 + get_u16(p.buf, at)
    if end > p.end:
        return E_FIELD
    if is_text:
        bad = check_utf8(p.buf, at + 2, end)
        if bad >= 0:
            p.bad_at = bad
            return E_UTF8
    return end


def _protocol(p: "Packet", c: Connect) -> int:
    """Decode CONNECT's protocol name and level. Return the offset after them, or an error."""
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


def decode_connect(p: "Packet", c: Connect) -> int:
    """Decode CONNECT (3.1), of the versions in ``c.protocols``; 5.0 needs a ``Packet5``.

    E_PROTOCOL means that the level, in ``c.level``, is not supported, or, if ``c.level`` is -1, the protocol name.
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
    if flags & _WILL == 0:
        if flags & 0x38:
            return E_FLAGS
    elif flags & 0x18 == 0x18:
        return E_RX_QOS
    if flags & _PASSWORD and not flags & _USER_NAME and c.level < _LEVEL_5:
        return E_FLAGS
    c.keep_alive = get_u16(buf, at + 1)
    at += 3
    c.props_at = c.props_end = c.will_props_at = c.will_props_end = at
    if p.five is not None and c.level >= _LEVEL_5:
        at = p.five.block(at, p.end)
        if at < 0:
            return at
        c.props_at = p.five.props_at
        c.props_end = p.five.props_end
    c.client_id_at = at + 2
    at = c.client_id_end = _check_field(p, at, True)
    c.will_topic_at = c.will_payload_at = c.user_at = c.password_at = -1
    c.will_topic_end = c.will_payload_end = c.user_end = c.password_end = -1
    if at < 0:
        return at
    if flags & _WILL:
        at = _decode_will(p, c, at)
        if at < 0:
            return at
    if at == p.end and c.level == _LEVEL_3_1:
        # 3.1 allows flags for fields that the packet does not have.
        flags = 0
    if flags & _USER_NAME:
        c.user_at = at + 2
        at = c.user_end = _check_field(p, at, True)
        if at < 0:
            return at
    if at == p.end and c.level == _LEVEL_3_1:
        flags = 0
    if flags & _PASSWORD:
        c.password_at = at + 2
        at = c.password_end = _check_field(p, at, False)
        if at < 0:
            return at
    if at != p.end:
        p.bad_at = at
        return E_SIZE
    return 0


def _decode_will(p: "Packet", c: Connect, at: int) -> int:
    """Decode the will at ``at``. Return the offset after it, or an error."""
    if p.five is not None and c.level >= _LEVEL_5:
        at = p.five.block(at, p.end, WILL_PROPERTIES)
        if at < 0:
            return at
        c.will_props_at = p.five.props_at
        c.will_props_end = p.five.props_end
    c.will_topic_at = at + 2
    at = c.will_topic_end = _check_field(p, at, True)
    if at < 0:
        return at
    if p.check(p.buf, c.will_topic_at, at):
        p.bad_at = c.will_topic_at
        return E_RX_TOPIC
    c.will_payload_at = at + 2
    at = c.will_payload_end = _check_field(p, at, False)
    return at


def decode_subscribe(p: "Packet") -> int:
    """Decode SUBSCRIBE (3.8) or UNSUBSCRIBE (3.10) and check every filter. Then iterate with ``next_filter``.

    ``code`` is the number of filters.
    """
    at = p.bad_at = p.body
    if p.end - at < 2:
        return E_SIZE
    p.packet_id = get_u16(p.buf, at)
    if p.packet_id == 0:
        return E_PACKET_ID
    at += 2
    if p.five is not None:
        at = p.five.block(at, p.end)
        if at < 0:
            return at
    p.payload_at = p.bad_at = at
    if at == p.end:
        return E_SIZE
    subscribing = p.head >> 4 == _SUBSCRIBE
    p.topic_end = at - 1 if subscribing else at
    count = 0
    while at < p.end:
        at = _check_subscription(p, at, subscribing)
        if at < 0:
            return at
        count += 1
    p.code = count
    return 0


def _check_subscription(p: "Packet", at: int, subscribing: bool) -> int:
    """Check the filter at ``at`` and its QoS or options. Return the offset after them, or an error."""
    start = at + 2
    at = _check_field(p, at, False)
    if at < 0:
        return at
    five = p.five is not None
    bad = check_filter5(p.buf, start, at) if five else check_filter(p.buf, start, at)
    if bad:
        p.bad_at = start
        return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
    if not subscribing:
        return at
    p.bad_at = at
    if at >= p.end:
        return E_FIELD
    options = p.buf[at]
    if not five:
        if options > 2:
            return E_RX_QOS if options == _QOS else E_CODE
        return at + 1
    if options & _RESERVED:
        return E_FLAGS
    if options & _QOS == _QOS or options & _RETAIN_HANDLING == _RETAIN_HANDLING:
        return E_CODE
    if options & _NO_LOCAL and unshared(p.buf, start, at) > start:
        # A shared subscription must not have No Local (3.8.3-4).
        return E_CODE
    return at + 1


def next_filter(p: "Packet") -> int:
    """Go to the next filter of SUBSCRIBE or UNSUBSCRIBE, ``buf[topic_at:topic_end]``. Return -1 after the last.

    Returns its requested QoS, at 5.0 its options (3.8.3.1); 0 for UNSUBSCRIBE.
    """
    subscribing = p.kind() == _SUBSCRIBE
    at = p.topic_end + 1 if subscribing else p.topic_end
    if at >= p.end:
        return -1
    p.topic_at = at + 2
    p.topic_end = at + 2 + get_u16(p.buf, at)
    return p.buf[p.topic_end] if subscribing else 0


def decode_packet(p: "Packet", at: int, end: int, protocol: bytes = b"") -> int:
    """Decode one complete packet of any type at ``at``. Return the offset after it, MORE (0) or an error.

    ``protocol`` is the name and level that CONNECT must have; by default those of 5.0 for a ``Packet5``, otherwise
    those of 3.1.1. For the contents of a CONNECT use ``decode_connect``.
    """
    stop = decode_header(p, at, end)
    if stop <= 0:
        return stop
    if stop > end:
        return MORE
    bad = _decode_body(p, protocol)
    return bad if bad < 0 else stop


def _decode_body(p: "Packet", protocol: bytes) -> int:
    kind = p.head >> 4
    if kind == _CONNECT:
        return decode_connect(p, Connect((protocol or (PROTOCOL if p.five is None else PROTOCOL_5),)))
    if kind == _CONNACK:
        return decode_connack(p)
    if kind == _PUBLISH:
        return decode_publish(p, p.body, p.end)
    if kind < _SUBSCRIBE:
        return decode_ack(p)
    if kind in (_SUBSCRIBE, _UNSUBSCRIBE):
        return decode_subscribe(p)
    if kind in (_SUBACK, _UNSUBACK):
        return decode_suback(p)
    if kind < _DISCONNECT or p.five is None:
        # PINGREQ, PINGRESP, and DISCONNECT before 5.0: the length was checked with the fixed header.
        return 0 if kind < _AUTH else E_TYPE
    return p.five.auth(p.body) if kind == _AUTH else p.five.reason(p.body)


def encode_connack(
    buf: bytearray, at: int, limit: int, session_present: bool, code: int, properties: "Bytes" = b""
) -> int:
    """Encode CONNACK (3.2). ``session_present`` is only sent with code 0 (3.2.2.2)."""
    n = 2 + len(properties)
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = HEADS[_CONNACK]
    i = put_varint(buf, at + 1, n)
    buf[i] = 1 if session_present and code == 0 else 0
    buf[i + 1] = code
    buf[i + 2 : i + n] = properties
    return i + n


def encode_suback(
    buf: bytearray,
    at: int,
    limit: int,
    packet_id: int,
    codes: "Bytes",
    properties: "Bytes" = b"",
    packet_type: int = _SUBACK,
) -> int:
    """Encode SUBACK (3.9), or 5.0's UNSUBACK (3.11): one code for each filter, in the order of the request."""
    n = 2 + len(properties) + len(codes)
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = HEADS[packet_type]
    i = put_varint(buf, at + 1, n)
    end = i + n
    buf[i] = packet_id >> 8
    buf[i + 1] = packet_id & 255
    n = end - len(codes)
    buf[i + 2 : n] = properties
    buf[n:end] = codes
    return end
