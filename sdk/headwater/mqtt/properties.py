"""Properties (2.2.2), reason codes (2.4) and shared subscriptions (4.8.2) of MQTT 5.0.

A property block is a length and that many bytes of properties, each an identifier of one byte and a value. ``check``
validates a whole block; no accessor fails afterwards. Values are read at their offsets: texts and binary data as
``get_u16(buf, at)`` bytes from ``at + 2`` on, a pair as two consecutive texts. A variable byte integer may have more
bytes than necessary: 1.5.5-1 binds the sender. Only ``Properties.add`` and ``clear`` allocate, and integers from 2**30
on a 32-bit board.
"""

from headwater.errors import (
    E_ARGUMENT,
    E_CODE,
    E_FIELD,
    E_LENGTH,
    E_PROPERTY,
    E_REPEATED,
    E_RX_TOPIC,
    E_SIZE,
    E_TOO_LARGE,
    E_UTF8,
    E_VALUE,
)
from headwater.mqtt.packets import BAD_TOPIC, BAD_UTF8, HEADS, Packet, check_filter, check_name
from headwater.wire import (
    NOT_BYTES,
    check_utf8,
    const,
    get_u16,
    is_bytes,
    put_block,
    put_u16,
    put_varint,
    varint_size,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, NameCheck

# The types of values (1.5). Numbers of an odd type must not be 0, except BYTE, which is 0 or 1.
BYTE = const(1)
TWO = const(2)
TWO_NOT_0 = const(3)
FOUR = const(4)
FOUR_NOT_0 = const(5)
VARINT = const(6)
BINARY = const(7)
TEXT = const(8)
#: A text that is a topic name.
NAME = const(9)
PAIR = const(10)
# The sizes of the numbers in bytes, and their limits.
_WIDTH = b"\x00\x01\x02\x02\x04\x04"
_LOWEST = b"\x00\x00\x00\x01\x00\x01\x01"
_HIGHEST = (0, 1, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 268435455)

#: The packets that may have a property: the bit of a packet type is ``1 << type``, that of the will properties is this.
WILL_PROPERTIES = const(1)
_ALL = const(0xFFFF)
_IN_PUBLISH = const(1 << 3)
_SUBSCRIBE = const(1 << 8)

#: Table 2-4, by identifier. First the type, with 0x20 if the property may be repeated in any packet, and 0x10 if in all
#: but SUBSCRIBE; then the packets, as two bytes of bits.
TABLE = (
    b"\x00\x00\x00"
    b"\x01\x00\x09"  # Payload Format Indicator: PUBLISH, will
    b"\x04\x00\x09"  # Message Expiry Interval: PUBLISH, will
    b"\x08\x00\x09"  # Content Type: PUBLISH, will
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x09\x00\x09"  # Response Topic: PUBLISH, will
    b"\x07\x00\x09"  # Correlation Data: PUBLISH, will
    b"\x00\x00\x00"
    b"\x16\x01\x08"  # Subscription Identifier: PUBLISH, SUBSCRIBE
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x04\x40\x06"  # Session Expiry Interval: CONNECT, CONNACK, DISCONNECT
    b"\x08\x00\x04"  # Assigned Client Identifier: CONNACK
    b"\x02\x00\x04"  # Server Keep Alive: CONNACK
    b"\x00\x00\x00"
    b"\x08\x80\x06"  # Authentication Method: CONNECT, CONNACK, AUTH
    b"\x07\x80\x06"  # Authentication Data: CONNECT, CONNACK, AUTH
    b"\x01\x00\x02"  # Request Problem Information: CONNECT
    b"\x04\x00\x01"  # Will Delay Interval: will
    b"\x01\x00\x02"  # Request Response Information: CONNECT
    b"\x08\x00\x04"  # Response Information: CONNACK
    b"\x00\x00\x00"
    b"\x08\x40\x04"  # Server Reference: CONNACK, DISCONNECT
    b"\x00\x00\x00\x00\x00\x00"
    b"\x08\xca\xf4"  # Reason String: CONNACK, PUBACK to PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH
    b"\x00\x00\x00"
    b"\x03\x00\x06"  # Receive Maximum: CONNECT, CONNACK
    b"\x02\x00\x06"  # Topic Alias Maximum: CONNECT, CONNACK
    b"\x03\x00\x08"  # Topic Alias: PUBLISH
    b"\x01\x00\x04"  # Maximum QoS: CONNACK
    b"\x01\x00\x04"  # Retain Available: CONNACK
    b"\x3a\xcf\xff"  # User Property: all that have properties, will
    b"\x05\x00\x06"  # Maximum Packet Size: CONNECT, CONNACK
    b"\x01\x00\x04"  # Wildcard Subscription Available: CONNACK
    b"\x01\x00\x04"  # Subscription Identifier Available: CONNACK
    b"\x01\x00\x04"  # Shared Subscription Available: CONNACK
)
LAST = const(42)
# Limits for the type's byte: up to the first a property must not be repeated; from the second on it may be anywhere.
_ONCE = const(15)
_ANYWHERE = const(32)

#: Table 2-6 as rows: a reason code, and the packets that may have it, as two bytes of bits (``1 << type``).
CODES = (
    b"\x00\xca\xf4"  # success: CONNACK, PUBACK to PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH
    b"\x01\x02\x00\x02\x02\x00"  # granted QoS 1 and 2: SUBACK
    b"\x04\x40\x00"  # disconnect with will message
    b"\x10\x00\x30"  # no matching subscribers: PUBACK, PUBREC
    b"\x11\x08\x00"  # no subscription existed: UNSUBACK
    b"\x18\x80\x00\x19\x80\x00"  # continue authentication, re-authenticate: AUTH
    b"\x80\x4a\x34"  # unspecified error: CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT
    b"\x81\x40\x04\x82\x40\x04"  # malformed packet, protocol error: CONNACK, DISCONNECT
    b"\x83\x4a\x34"  # implementation specific error
    b"\x84\x00\x04\x85\x00\x04\x86\x00\x04"  # version, client identifier, user name or password: CONNACK
    b"\x87\x4a\x34"  # not authorized
    b"\x88\x00\x04"  # server unavailable: CONNACK
    b"\x89\x40\x04"  # server busy: CONNACK, DISCONNECT
    b"\x8a\x00\x04"  # banned: CONNACK
    b"\x8b\x40\x00"  # server shutting down: DISCONNECT
    b"\x8c\x40\x04"  # bad authentication method: CONNACK, DISCONNECT
    b"\x8d\x40\x00\x8e\x40\x00"  # keep alive timeout, session taken over: DISCONNECT
    b"\x8f\x4a\x00"  # topic filter invalid: SUBACK, UNSUBACK, DISCONNECT
    b"\x90\x40\x34"  # topic name invalid: CONNACK, PUBACK, PUBREC, DISCONNECT
    b"\x91\x0a\x30"  # packet identifier in use: PUBACK, PUBREC, SUBACK, UNSUBACK
    b"\x92\x00\xc0"  # packet identifier not found: PUBREL, PUBCOMP
    b"\x93\x40\x00\x94\x40\x00"  # receive maximum exceeded, topic alias invalid: DISCONNECT
    b"\x95\x40\x04"  # packet too large: CONNACK, DISCONNECT
    b"\x96\x40\x00"  # message rate too high: DISCONNECT
    b"\x97\x42\x34"  # quota exceeded: CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT
    b"\x98\x40\x00"  # administrative action: DISCONNECT
    b"\x99\x40\x34"  # payload format invalid: CONNACK, PUBACK, PUBREC, DISCONNECT
    b"\x9a\x40\x04\x9b\x40\x04"  # retain, QoS not supported: CONNACK, DISCONNECT
    b"\x9c\x40\x04\x9d\x40\x04"  # use another server, server moved: CONNACK, DISCONNECT
    b"\x9e\x42\x00"  # shared subscriptions not supported: SUBACK, DISCONNECT
    b"\x9f\x40\x04"  # connection rate exceeded: CONNACK, DISCONNECT
    b"\xa0\x40\x00"  # maximum connect time: DISCONNECT
    b"\xa1\x42\x00\xa2\x42\x00"  # subscription identifiers, wildcards not supported: SUBACK, DISCONNECT
)

# The properties of a block are a set of bits, of which a board's small integers hold 30. The identifiers that one
# packet may have are different modulo this number.
_SET = const(29)
_ALIAS = const(1 << 6)
_METHOD = const(1 << 21)
_DATA = const(1 << 22)

_PACKET_TOO_LARGE = const(0x95)
_UNSUPPORTED_PROTOCOL_VERSION = const(0x84)

#: ``packets.SIZES`` for 5.0.
SIZES = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\xff\xff"


def kind_of(ident: int) -> int:
    """Return the type of a property's value; 0 if there is no such property."""
    return TABLE[ident * 3] & 15 if 0 <= ident <= LAST else 0


def allowed(ident: int) -> int:
    """Return the packets that may have a property, as bits; 0 if there is no such property."""
    return get_u16(TABLE, ident * 3 + 1) if 0 <= ident <= LAST else 0


def many(ident: int) -> bool:
    """Return whether a property may be repeated in some packet."""
    return 0 <= ident <= LAST and TABLE[ident * 3] > _ONCE


def _varint_end(buf: "Bytes", at: int, end: int) -> int:
    """Return the offset after the variable byte integer at ``at``; E_FIELD; E_LENGTH above four bytes (1.5.5)."""
    for i in range(at, at + 4):
        if i >= end:
            return E_FIELD
        if buf[i] < 128:
            return i + 1
    return E_LENGTH


def _varint(buf: "Bytes", at: int) -> int:
    """Return the variable byte integer at ``at``."""
    value = shift = 0
    while buf[at] > 127:
        value |= (buf[at] & 127) << shift
        shift += 7
        at += 1
    return value | buf[at] << shift


# -- packets -----------------------------------------------------------------------------------------------------------


class Packet5(Packet):
    """A packet of MQTT 5.0, as offsets: ``Packet`` with properties at ``buf[props_at:props_end]``.

    ``code`` is the reason code of CONNACK, PUBACK to PUBCOMP, DISCONNECT and AUTH; those of SUBACK and UNSUBACK are
    ``buf[payload_at:end]``. The topic of PUBLISH may be empty if a topic alias replaces it.
    """

    def __init__(self, buf: "Bytes", check: "NameCheck" = check_name):
        super().__init__(buf, check)
        self.sizes = SIZES
        self.five = self
        self.props_at = self.props_end = 0
        #: The properties of the last checked block, as bits (``has``).
        self.seen = 0
        #: The properties that ``decode_publish`` reports.
        self.special = _ALIAS

    # The following are called by the decoders of ``packets``.

    def block(self, at: int, end: int, where: int = 0) -> int:
        """Check the property block at ``at``, of a packet of this type or ``where``. Results are those of ``check``."""
        return check(self, at, end, where or 1 << (self.head >> 4))

    def publish_block(self, at: int, end: int) -> int:
        """Check PUBLISH's property block at ``at``, and set payload_at. Results are those of ``decode_publish``."""
        if at < end and self.buf[at] == 0 and self.topic_at < self.topic_end:
            self.seen = 0
            self.props_at = self.props_end = self.payload_at = at + 1
            return 0
        at = check(self, at, end, _IN_PUBLISH)
        if at < 0:
            return at
        self.payload_at = at
        if self.topic_at == self.topic_end and not self.seen & _ALIAS:
            # An empty topic needs a topic alias (3.3.2.1).
            self.bad_at = self.topic_at
            return E_RX_TOPIC
        return self.seen & self.special

    def reason(self, at: int) -> int:
        """Decode a reason code and properties at the end of a packet; both are optional (3.4.2.1). Return 0 or an
        error."""
        self.code = self.seen = 0
        self.props_at = self.props_end = self.payload_at = self.end
        if at == self.end:
            return 0
        return self._code_and_block(at)

    def auth(self, at: int) -> int:
        """Decode AUTH's reason code and properties (3.15). Unless it is empty, it must have the method (3.15.2.2.2)."""
        bad = self.reason(at)
        if bad == 0 and self.end > at and not self.seen & _METHOD:
            self.bad_at = self.props_at
            return E_VALUE
        return bad

    def _code_and_block(self, at: int) -> int:
        self.code = self.buf[at]
        self.bad_at = at
        if not self.accepts(at):
            return E_CODE
        at += 1
        if at == self.end:
            return 0
        at = self.block(at, self.end)
        if 0 < at < self.end:
            self.bad_at = at
            return E_SIZE
        return at if at < 0 else 0

    def accepts(self, at: int) -> bool:
        """Return whether the reason code at ``at`` is allowed in this packet."""
        kind = self.head >> 4
        # Mosquitto sends "packet too large" in PUBACK and PUBREC as well (its message_size_limit). If that were an
        # error, the message would be retransmitted after every reconnect, and block all messages after it.
        return code_of(kind, self.buf[at]) or (self.buf[at] == _PACKET_TOO_LARGE and kind >> 1 == 2)

    def connack(self, at: int) -> int:
        """Decode CONNACK at ``at``: everything after session present.

        A server of 3.1.1 refuses 5.0 with a CONNACK of 3.1.1, which is decoded as UNSUPPORTED_PROTOCOL_VERSION.
        """
        self.seen = 0
        self.props_at = self.props_end = self.end
        if at + 2 == self.end:
            if self.session_present or self.code != 1:
                return E_SIZE
            self.code = _UNSUPPORTED_PROTOCOL_VERSION
            return 0
        self.bad_at = at + 1
        if self.code and self.session_present:
            return E_CODE
        return self._code_and_block(at + 1)


def code_of(packet_type: int, code: int) -> bool:
    """Return whether a packet of this type may have this reason code (2.4)."""
    for i in range(0, len(CODES), 3):
        if CODES[i] == code:
            return (CODES[i + 1] << 8 | CODES[i + 2]) >> packet_type & 1 != 0
    return False


# -- reading -----------------------------------------------------------------------------------------------------------


def check(p: "Packet5", at: int, limit: int, where: int) -> int:
    """Check the block at ``at``, which must not reach beyond ``limit``, in a packet (its bit) or the will.

    Returns the offset after it, with the properties at ``buf[props_at:props_end]``. Errors: E_FIELD, E_LENGTH;
    E_PROPERTY (2.2.2.2: unknown, or not allowed in this packet), E_REPEATED, E_VALUE, E_UTF8, E_RX_TOPIC (a response
    topic: 3.3.2-14); ``bad_at`` is the offset of the error.
    """
    p.seen = 0
    p.bad_at = at
    if at < limit and p.buf[at] == 0:
        at += 1
        p.props_at = p.props_end = at
        return at
    i = _varint_end(p.buf, at, limit)
    if i < 0:
        return i
    end = i + _varint(p.buf, at)
    if end > limit:
        return E_FIELD
    p.props_at = i
    p.props_end = end
    while 0 <= i < end:
        i = _property(p, i, where)
    if i > 0 and p.seen & _DATA and not p.seen & _METHOD:
        # Authentication data without a method (3.1.2.11.10).
        p.bad_at = p.props_at
        return E_VALUE
    return i


def _property(p: "Packet5", at: int, where: int) -> int:
    """Check the property at ``at``. Return the offset after it, or an error."""
    p.bad_at = at
    ident = p.buf[at]
    # ``allowed`` and ``has`` without the calls: this code runs for each received property.
    if ident > LAST or not (TABLE[ident * 3 + 1] << 8 | TABLE[ident * 3 + 2]) & where:
        return E_PROPERTY
    kind = TABLE[ident * 3]
    if kind < _ANYWHERE:
        if p.seen >> ident % _SET & 1 and (kind <= _ONCE or where == _SUBSCRIBE):
            return E_REPEATED
        p.seen |= 1 << ident % _SET
    return _value(p, at + 1, kind & 15)


def _value(p: "Packet5", at: int, kind: int) -> int:
    """Check the value at ``at``. Return the offset after it, or an error."""
    p.bad_at = at
    end = p.props_end
    if kind >= BINARY:
        at = _block(p, at, kind)
        return _block(p, at, kind) if kind == PAIR and at > 0 else at
    if kind == VARINT:
        stop = _varint_end(p.buf, at, end)
        return E_VALUE if stop > 0 and _varint(p.buf, at) == 0 else stop
    stop = at + _WIDTH[kind]
    if stop > end:
        return E_FIELD
    if kind == BYTE:
        return E_VALUE if p.buf[at] > 1 else stop
    if kind & 1:
        while p.buf[at] == 0:
            at += 1
            if at == stop:
                return E_VALUE
    return stop


def _block(p: "Packet5", at: int, kind: int) -> int:
    """Check the text or binary data at ``at``. Return the offset after it, or an error."""
    p.bad_at = at
    if at + 2 > p.props_end:
        return E_FIELD
    end = at + 2 + get_u16(p.buf, at)
    if end > p.props_end:
        return E_FIELD
    if kind == NAME:
        bad = p.check(p.buf, at + 2, end)
        if bad:
            return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
    elif kind != BINARY:
        bad = check_utf8(p.buf, at + 2, end)
        if bad >= 0:
            p.bad_at = bad
            return E_UTF8
    return end


def has(p: "Packet5", ident: int) -> bool:
    """Return whether the block that was checked last has a property. Not for User Property."""
    return p.seen >> ident % _SET & 1 != 0


def skip(buf: "Bytes", at: int) -> int:
    """Return the offset after the property at ``at``, in a checked block."""
    kind = TABLE[buf[at] * 3] & 15
    at += 1
    if kind < VARINT:
        return at + _WIDTH[kind]
    if kind == VARINT:
        while buf[at] > 127:
            at += 1
        return at + 1
    at += 2 + get_u16(buf, at)
    return at + 2 + get_u16(buf, at) if kind == PAIR else at


def find(buf: "Bytes", at: int, end: int, ident: int) -> int:
    """Return the offset of the value of the property ``ident`` in ``buf[at:end]`` of a checked block, or -1.

    For a repeated property, ``find(buf, skip(buf, value - 1), end, ident)`` finds the next one.
    """
    while at < end:
        if buf[at] == ident:
            return at + 1
        at = skip(buf, at)
    return -1


def number(buf: "Bytes", at: int, ident: int) -> int:
    """Return the number at ``at``, an offset from ``find``. From 2**30 on it allocates on a 32-bit board."""
    kind = TABLE[ident * 3] & 15
    if kind == VARINT:
        return _varint(buf, at)
    value = 0
    for i in range(at, at + _WIDTH[kind]):
        value = value << 8 | buf[i]
    return value


def block_start(block: "Bytes") -> int:
    """Return the offset of the properties in an encoded block, after its length."""
    at = 1
    while block[at - 1] > 127:
        at += 1
    return at


def block_at(block: "Bytes", ident: int) -> int:
    """Return the offset of the value of the property ``ident`` in an encoded block, or -1."""
    return find(block, block_start(block), len(block), ident)


def block_has(block: "Bytes", ident: int) -> bool:
    """Return whether an encoded block has the property ``ident``."""
    return block_at(block, ident) >= 0


# -- writing -----------------------------------------------------------------------------------------------------------


def size_of(ident: int, value: "int | Bytes", value2: "Bytes" = b"") -> int:
    """Return the size of a property in bytes, or E_ARGUMENT if it does not exist or cannot have this value."""
    kind = kind_of(ident)
    try:
        if kind == 0:
            return E_ARGUMENT
        if kind <= VARINT:
            if not _LOWEST[kind] <= value <= _HIGHEST[kind]:  # type: ignore[operator]
                return E_ARGUMENT
            return 1 + (varint_size(value) if kind == VARINT else _WIDTH[kind])  # type: ignore[arg-type]
        n = _data_size(value, kind)  # type: ignore[arg-type]
        if kind == PAIR and n > 0:
            k = _data_size(value2, kind)
            n = n + k if k > 0 else k
        return n + 1 if n > 0 else n
    except NOT_BYTES:
        return E_ARGUMENT


def _data_size(value: "Bytes", kind: int) -> int:
    n = len(value)
    if n > 65535 or not is_bytes(value):
        return E_ARGUMENT
    if kind == NAME:
        return E_ARGUMENT if check_name(value, 0, n) else n + 2
    return E_ARGUMENT if kind != BINARY and check_utf8(value, 0, n) >= 0 else n + 2


def put(buf: bytearray, at: int, limit: int, ident: int, value: "int | Bytes", value2: "Bytes" = b"") -> int:
    """Write a property; ``value2`` is a pair's second text. Texts are bytes in UTF-8.

    Returns the offset after it, E_ARGUMENT (see ``size_of``) or E_TOO_LARGE.
    """
    n = size_of(ident, value, value2)
    if n < 0:
        return n
    if at + n > limit:
        return E_TOO_LARGE
    try:
        return _put(buf, at, ident, value, value2)
    except NOT_BYTES:
        return E_ARGUMENT


def _put(buf: bytearray, at: int, ident: int, value: "int | Bytes", value2: "Bytes") -> int:
    """Write a property with a checked value and enough room. Return the offset after it."""
    kind = kind_of(ident)
    buf[at] = ident
    at += 1
    if kind == VARINT:
        return put_varint(buf, at, value)  # type: ignore[arg-type]
    if kind > VARINT:
        at = put_block(buf, at, value)  # type: ignore[arg-type]
        return put_block(buf, at, value2) if kind == PAIR else at
    end = at + _WIDTH[kind]
    for i in range(end - 1, at - 1, -1):
        buf[i] = value & 255  # type: ignore[operator]
        value >>= 8  # type: ignore[operator]
    return end


def encode_reason(
    buf: bytearray,
    at: int,
    limit: int,
    packet_type: int,
    packet_id: int,
    code: int,
    properties: "Bytes" = b"",
) -> int:
    """Encode PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT or AUTH with a reason code and properties.

    Code 0 and empty properties are left out (3.4.2.1, 3.14.2.1). ``packet_id`` is 0 for DISCONNECT and AUTH; AUTH's
    properties must have the method (3.15.2.2.2). The conventions are those of ``packets``.
    """
    n = len(properties)
    n = n + 1 if n > 1 else 1 if code else 0
    if packet_id:
        n += 2
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = HEADS[packet_type]
    at = put_varint(buf, at + 1, n)
    n += at
    if packet_id:
        at = put_u16(buf, at, packet_id)
    if at < n:
        buf[at] = code
        at += 1
        if at < n:
            buf[at:n] = properties
    return n


class Properties:
    """A reusable block of properties to send, with a buffer of ``size`` bytes.

    ``where`` has the bits of the packets that it is for; ``add`` refuses properties that these do not allow. Pass
    ``block`` to the encoders. ``add`` and ``clear`` allocate, ``set`` does not.
    """

    def __init__(self, size: int, where: int = _ALL):
        # The length directly precedes the properties.
        self._buf = bytearray(size + 4)
        self._pin = memoryview(self._buf)
        self._where = where
        self._end = 4
        self.block: Bytes = b"\x00"

    def add(self, ident: int, value: "int | Bytes", value2: "Bytes" = b"") -> int:
        """Append a property. Return 0, E_ARGUMENT (also if it is not allowed in these packets) or E_TOO_LARGE."""
        if not allowed(ident) & self._where:
            return E_ARGUMENT
        kind = TABLE[ident * 3]
        if kind <= _ONCE or (kind < _ANYWHERE and self._where == _SUBSCRIBE):
            if find(self._buf, 4, self._end, ident) >= 0:
                return E_ARGUMENT
        end = put(self._buf, self._end, len(self._buf), ident, value, value2)
        if end < 0:
            return end
        n = end - 4
        at = 4 - varint_size(n)
        put_varint(self._buf, at, n)
        self._end = end
        self.block = self._pin[at:end]
        return 0

    def set(self, ident: int, value: "int | Bytes", value2: "Bytes" = b"") -> int:
        """Set another value of the same length for the first property ``ident``. Return 0 or E_ARGUMENT."""
        at = find(self._buf, 4, self._end, ident) - 1
        if at < 0 or size_of(ident, value, value2) != skip(self._buf, at) - at:
            return E_ARGUMENT
        end = put(self._buf, at, self._end, ident, value, value2)
        return end if end < 0 else 0

    def clear(self) -> None:
        """Remove all properties."""
        self._end = 4
        self.block = b"\x00"


# -- shared subscriptions ----------------------------------------------------------------------------------------------

_SHARE = b"$share/"
_SLASH = const(47)
_HASH = const(35)
_PLUS = const(43)


def unshared(buf: "Bytes", at: int, end: int) -> int:
    """Return the offset of the topic filter after ``$share/ShareName/`` in the well-formed filter ``buf[at:end]``.

    Returns ``at`` if it is no shared subscription; -1 if share name or filter is missing, or the name has a wildcard.
    """
    n = len(_SHARE)
    if end - at < n:
        return at
    for i in range(n):
        if buf[at + i] != _SHARE[i]:
            return at
    start = i = at + n
    while i < end and buf[i] != _SLASH:
        # In a well-formed filter a wildcard fills its level: only the first byte can be one.
        i += 1
    if i == start or i + 1 >= end or buf[start] == _HASH or buf[start] == _PLUS:
        return -1
    return i + 1


def check_filter5(buf: "Bytes", at: int, end: int) -> int:
    """Check a topic filter and the share name of a shared subscription. Results: ``packets.check_filter``."""
    bad = check_filter(buf, at, end)
    return bad or (BAD_TOPIC if unshared(buf, at, end) < 0 else 0)
