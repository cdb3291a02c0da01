"""MQTT 5.0's properties (2.2.2): which there are, checking a block of them, finding one, writing them.

A block is a length and that many bytes of properties, each an identifier of one byte and a value. ``check`` looks at
everything in it; behind it no accessor fails. Values are read at their offsets, texts and binary data as
``get_u16(buf, at)`` bytes from ``at + 2`` on, a pair as two of them behind each other. Variable byte integers may be
longer than they need be: 1.5.5-1 binds who writes. Nothing here allocates but ``Properties.add`` and ``clear``, and
numbers that are no small integers (from 2**30 on, on a 32-bit board).
"""

from headwater.errors import (
    E_ARGUMENT,
    E_FIELD,
    E_LENGTH,
    E_PROPERTY,
    E_REPEATED,
    E_RX_TOPIC,
    E_TOO_LARGE,
    E_UTF8,
    E_VALUE,
)
from headwater.mqtt.topics import BAD_UTF8, check_name
from headwater.wire import NOT_BYTES, check_utf8, const, get_u16, is_bytes, put_block, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.decode5 import Packet5
    from headwater.types import Bytes

# The types of values (1.5); of the numbers, those with an odd type are not 0, but for a byte, which is 0 or 1.
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
# How many bytes the numbers take, what they may be.
_WIDTH = b"\x00\x01\x02\x02\x04\x04"
_LOWEST = b"\x00\x00\x00\x01\x00\x01\x01"
_HIGHEST = (0, 1, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 268435455)

#: Where a property may stand: the bit of a packet type is ``1 << type``, that of the will properties this one.
WILL_PROPERTIES = const(1)
_ALL = const(0xFFFF)
_SUBSCRIBE = const(1 << 8)

#: Table 2-4, by identifier. First the type, with 0x20 where it may stand more than once in any packet, and 0x10 where
#: it may in all but SUBSCRIBE; then the packets, as two bytes of bits.
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
# Of the type's byte: up to which a property may stand only once, and from which on several times anywhere.
_ONCE = const(15)
_ANYWHERE = const(32)

# What a block has is a set of bits, of which a board's small integers hold 30. The identifiers that may stand in the
# same packet are different modulo this.
_SET = const(29)
_METHOD = const(1 << 21)
_DATA = const(1 << 22)


def kind_of(ident: int) -> int:
    """The type of a property's value; 0 when there is no such property."""
    return TABLE[ident * 3] & 15 if 0 <= ident <= LAST else 0


def allowed(ident: int) -> int:
    """The packets a property may stand in, as bits; 0 when there is no such property."""
    return get_u16(TABLE, ident * 3 + 1) if 0 <= ident <= LAST else 0


def many(ident: int) -> bool:
    """Whether a property may stand more than once in some packet."""
    return 0 <= ident <= LAST and TABLE[ident * 3] > _ONCE


def _varint_end(buf: "Bytes", at: int, end: int) -> int:
    """The offset behind the variable byte integer at ``at``; E_FIELD; E_LENGTH: more than four bytes (1.5.5)."""
    for i in range(at, at + 4):
        if i >= end:
            return E_FIELD
        if buf[i] < 128:
            return i + 1
    return E_LENGTH


def _varint(buf: "Bytes", at: int) -> int:
    """The variable byte integer at ``at``."""
    value = shift = 0
    while buf[at] > 127:
        value |= (buf[at] & 127) << shift
        shift += 7
        at += 1
    return value | buf[at] << shift


# -- reading -----------------------------------------------------------------------------------------------------------


def check(p: "Packet5", at: int, limit: int, where: int) -> int:
    """Check the block at ``at``, which must not reach beyond ``limit``, in a packet (its bit) or the will.

    Returns the offset behind it, with the properties at ``buf[props_at:props_end]``. E_FIELD, E_LENGTH; E_PROPERTY
    (2.2.2.2: it does not exist, or not here), E_REPEATED, E_VALUE, E_UTF8, E_RX_TOPIC (a response topic: 3.3.2-14);
    ``bad_at`` says where.
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
        # 3.1.2.11.10: data without a method.
        p.bad_at = p.props_at
        return E_VALUE
    return i


def _property(p: "Packet5", at: int, where: int) -> int:
    """Check the property at ``at``: the offset behind it, or an error."""
    p.bad_at = at
    ident = p.buf[at]
    # ``allowed`` and ``has``, without the calls: this runs for each property that arrives.
    if ident > LAST or not (TABLE[ident * 3 + 1] << 8 | TABLE[ident * 3 + 2]) & where:
        return E_PROPERTY
    kind = TABLE[ident * 3]
    if kind < _ANYWHERE:
        if p.seen >> ident % _SET & 1 and (kind <= _ONCE or where == _SUBSCRIBE):
            return E_REPEATED
        p.seen |= 1 << ident % _SET
    return _value(p, at + 1, kind & 15)


def _value(p: "Packet5", at: int, kind: int) -> int:
    """Check the value at ``at``: the offset behind it, or an error."""
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
    """Check the text or binary data at ``at``: the offset behind it, or an error."""
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
    """Whether the block that was checked last has a property, other than User Property, that may stand in it."""
    return p.seen >> ident % _SET & 1 != 0


def skip(buf: "Bytes", at: int) -> int:
    """The offset behind the property at ``at``, in a block that has been checked."""
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
    """Where the value of the property ``ident`` begins, in a checked block's ``buf[at:end]``; -1 when it is not there.

    For the next of several: ``find(buf, skip(buf, value - 1), end, ident)``.
    """
    while at < end:
        if buf[at] == ident:
            return at + 1
        at = skip(buf, at)
    return -1


def number(buf: "Bytes", at: int, ident: int) -> int:
    """The number at ``at``, where ``find`` has found it. From 2**30 on it allocates on a 32-bit board."""
    kind = TABLE[ident * 3] & 15
    if kind == VARINT:
        return _varint(buf, at)
    value = 0
    for i in range(at, at + _WIDTH[kind]):
        value = value << 8 | buf[i]
    return value


# -- writing -----------------------------------------------------------------------------------------------------------


def size_of(ident: int, value: "int | Bytes", value2: "Bytes" = b"") -> int:
    """How many bytes a property takes; E_ARGUMENT when it does not exist, or not with this value."""
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

    Returns the offset behind it; E_ARGUMENT (of ``size_of``), E_TOO_LARGE.
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
    """``put`` where there is room for it, and the value is right."""
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


class Properties:
    """A block of properties to be sent, in a buffer of its own, as often as wanted.

    ``size`` bytes for the properties; ``where``: the bits of the packets it is for, so that ``add`` refuses what must
    not stand there. ``block`` is what the encoders take. Making it anew allocates (``add``, ``clear``); ``set`` does
    not.
    """

    def __init__(self, size: int, where: int = _ALL):
        # The length stands in front of the properties, as close to them as it is long.
        self._buf = bytearray(size + 4)
        self._pin = memoryview(self._buf)
        self._where = where
        self._end = 4
        self.block: Bytes = b"\x00"

    def add(self, ident: int, value: "int | Bytes", value2: "Bytes" = b"") -> int:
        """Put a property behind the others: 0; E_ARGUMENT, also when it must not stand there; E_TOO_LARGE."""
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
        """Give the first property ``ident`` another value of the same length: 0, or E_ARGUMENT."""
        at = find(self._buf, 4, self._end, ident) - 1
        if at < 0 or size_of(ident, value, value2) != skip(self._buf, at) - at:
            return E_ARGUMENT
        end = put(self._buf, at, self._end, ident, value, value2)
        return end if end < 0 else 0

    def clear(self) -> None:
        """Take all properties out."""
        self._end = 4
        self.block = b"\x00"
