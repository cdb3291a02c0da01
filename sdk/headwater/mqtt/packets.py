"""MQTT packets of all versions: check topic names and filters, encode client packets, decode received packets.

The encoders write at an offset of the caller's buffer. Each returns the offset after the packet, or a code of
``headwater.errors`` if the packet does not fit before ``limit`` or an argument is wrong; the bytes written are then
meaningless. Strings are bytes in UTF-8; the encoders check them only where a function says so. ``properties`` is an
encoded property block (5.0, 2.2.2): empty before 5.0, at least the one byte of an empty block at 5.0
(``properties.Properties.block``).

The decoders read a packet into ``Packet``, a reusable cursor of integers, most of them offsets into its buffer. The
fields are valid until the next packet is read. A decoder checks everything before a field can be used, so no accessor
fails afterwards. It returns 0, or a code of ``headwater.errors`` with ``bad_at`` set to the offending offset. Property
blocks are decoded by ``Packet.five``, which only ``properties.Packet5`` sets.

Section numbers are those of MQTT 3.1.1; ``headwater.mqtt.spec`` and ``spec5`` name all numbers. Nothing here allocates,
except the accessors that say so.
"""

from headwater.errors import (
    E_ARGUMENT,
    E_CODE,
    E_FIELD,
    E_FLAGS,
    E_LENGTH,
    E_PACKET_ID,
    E_RX_QOS,
    E_RX_TOPIC,
    E_SIZE,
    E_TOO_LARGE,
    E_TYPE,
    E_UTF8,
)
from headwater.wire import Message, check_utf8, const, put_block, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Blocks, Bytes, NameCheck

_CONNECT_HEAD = const(0x10)
_SUBSCRIBE_HEAD = const(0x82)
_UNSUBSCRIBE_HEAD = const(0xA2)
_PUBLISH = const(3)
_UNSUBACK = const(11)
_MAX_REMAINING = const(268435455)
_CLEAN_SESSION = const(2)
_WILL = const(4)
_WILL_QOS_SHIFT = const(3)
_WILL_RETAIN = const(32)
_PASSWORD = const(64)
_USER_NAME = const(128)
_SUBSCRIBE_FAILED = const(0x80)
# The bit of Topic Alias in ``Packet5.seen``.
_ALIAS = const(1 << 6)

#: CONNECT's protocol name and level, as encoded at the start of its variable header (3.1.2).
PROTOCOL = b"\x00\x04MQTT\x04"
#: The first byte of each packet type, without PUBLISH's flags (2.2).
HEADS = b"\x00\x10\x20\x30\x40\x50\x62\x70\x82\x90\xa2\xb0\xc0\xd0\xe0\xf0"
#: By packet type, the fixed header's flags: the fixed bits in the high nibble, their values in the low nibble.
FLAGS = b"\xf0\xf0\xf0\x00\xf0\xf0\xf2\xf0\xf2\xf0\xf2\xf0\xf0\xf0\xf0\xf0"
#: By packet type, the remaining length: 255 if it varies, 254 if the type does not exist.
SIZES = b"\xfe\xff\x02\xff\x02\x02\x02\x02\xff\xff\xff\x02\x00\x00\x00\xfe"
_VARIES = const(255)
_NO_TYPE = const(254)

#: By first byte: 1 for a PUBLISH with a valid QoS, and without DUP at QoS 0 (3.3.1).
MESSAGE = bytearray(256)
for _head in b"\x30\x31\x32\x33\x34\x35\x3a\x3b\x3c\x3d":
    MESSAGE[_head] = 1

# -- topic names and filters (4.7) -------------------------------------------------------------------------------------

_PLUS = const(43)
_SLASH = const(47)
_HASH = const(35)

BAD_UTF8 = const(1)
BAD_TOPIC = const(2)

# By byte: 1 for bytes that need a full check of the topic name (U+0000, '#', '+', everything beyond ASCII).
_LOOK = bytearray(256)
_LOOK[0] = _LOOK[_HASH] = _LOOK[_PLUS] = 1
for _head in range(128, 256):
    _LOOK[_head] = 1


def check_name(buf: "Bytes", at: int, end: int) -> int:
    """Check the topic name ``buf[at:end]``. Return 0, BAD_UTF8 (1.5.3), or BAD_TOPIC (empty, or a wildcard: 3.3.2.1).

    A port may pass a session its own faster function with the same results.
    """
    if at == end:
        return BAD_TOPIC
    look = _LOOK
    for i in range(at, end):
        if look[buf[i]]:
            break
    else:
        return 0
    if check_utf8(buf, at, end) >= 0:
        return BAD_UTF8
    for i in range(at, end):
        if buf[i] == _HASH or buf[i] == _PLUS:
            return BAD_TOPIC
    return 0


def check_filter(buf: "Bytes", at: int, end: int) -> int:
    """Check the topic filter ``buf[at:end]``. Return 0, BAD_UTF8 or BAD_TOPIC.

    A wildcard must fill its level, and # must be the last level (4.7.1).
    """
    if at == end:
        return BAD_TOPIC
    if check_utf8(buf, at, end) >= 0:
        return BAD_UTF8
    for i in range(at, end):
        c = buf[i]
        if c != _HASH and c != _PLUS:
            continue
        if i > at and buf[i - 1] != _SLASH:
            return BAD_TOPIC
        if i + 1 < end and (c == _HASH or buf[i + 1] != _SLASH):
            return BAD_TOPIC
    return 0


# -- encoding ----------------------------------------------------------------------------------------------------------


def packet_size(n: int) -> int:
    """Return the size of a packet with the remaining length ``n`` in bytes, E_TOO_LARGE above the limit (2.2.3)."""
    return n + 1 + varint_size(n) if n <= _MAX_REMAINING else E_TOO_LARGE


def publish_size(topic: "Bytes", payload: "Bytes", qos: int, properties: "Bytes" = b"") -> int:
    """Return the size of PUBLISH in bytes, or E_TOO_LARGE."""
    return packet_size(len(topic) + len(payload) + len(properties) + (4 if qos else 2))


def put_publish(buf: bytearray, at: int, topic: "Bytes", n: int, word: int) -> int:
    """Encode PUBLISH (3.3) up to its packet identifier. Return the offset for property block and payload.

    ``n`` is the remaining length: ``packet_size(n)`` bytes must be free. ``word`` is the first byte (0x30 with DUP, QoS
    and RETAIN) and, shifted left by 8, the packet identifier (0 at QoS 0). The topic must have been checked by
    ``check_name``; at 5.0 it is empty if a topic alias replaces it.
    """
    # n is reused: a frame over 11 words is heap-allocated.
    buf[at] = word & 255
    if n < 128:
        buf[at + 1] = n
        at += 2
    else:
        at = put_varint(buf, at + 1, n)
    n = len(topic)
    buf[at] = n >> 8
    buf[at + 1] = n & 255
    at += 2
    n += at
    buf[at:n] = topic
    if word > 255:
        buf[n] = word >> 16
        buf[n + 1] = word >> 8 & 255
        return n + 2
    return n


def encode_publish(
    buf: bytearray,
    at: int,
    limit: int,
    topic: "Bytes",
    payload: "Bytes",
    head: int,
    packet_id: int,
    properties: "Bytes" = b"",
) -> int:
    """Encode a whole PUBLISH (3.3), with a check of the size (see ``put_publish``)."""
    n = len(topic) + len(payload) + len(properties) + (4 if packet_id else 2)
    size = packet_size(n)
    if size < 0 or at + size > limit:
        return E_TOO_LARGE
    i = put_publish(buf, at, topic, n, head | packet_id << 8)
    return _put(buf, _put(buf, i, properties), payload)


def encode_ack(buf: bytearray, at: int, limit: int, packet_type: int, packet_id: int) -> int:
    """Encode PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7), or UNSUBACK before 5.0 (3.11).

    ``properties.encode_reason`` encodes these with a reason code.
    """
    if at + 4 > limit:
        return E_TOO_LARGE
    buf[at] = HEADS[packet_type]
    buf[at + 1] = 2
    buf[at + 2] = packet_id >> 8
    buf[at + 3] = packet_id & 255
    return at + 4


def encode_bare(buf: bytearray, at: int, limit: int, packet_type: int) -> int:
    """Encode PINGREQ, PINGRESP or DISCONNECT (3.12 to 3.14): two bytes."""
    if at + 2 > limit:
        return E_TOO_LARGE
    buf[at] = HEADS[packet_type]
    buf[at + 1] = 0
    return at + 2


def encode_connect(
    buf: bytearray,
    at: int,
    limit: int,
    client_id: "Bytes",
    keep_alive: int,
    clean_start: bool,
    will_topic: "Bytes | None" = None,
    will_payload: "Bytes" = b"",
    will_qos: int = 0,
    will_retain: bool = False,
    user: "Bytes | None" = None,
    password: "Bytes | None" = None,
    protocol: bytes = PROTOCOL,
    properties: "Bytes" = b"",
    will_properties: "Bytes" = b"",
) -> int:
    """Encode CONNECT (3.1). ``protocol`` is the version's name and level, ``keep_alive`` is 0 to 65,535 seconds.

    ``clean_start`` is Clean Session before 5.0. E_ARGUMENT: a string above 65,535 bytes, a client identifier or user
    name that is not UTF-8 or has U+0000 (1.5.3), ``keep_alive`` or ``will_qos`` out of range; before 5.0 also a
    password without a user name (3.1.2.9) and an empty client identifier without a clean session (3.1.3.1).
    """
    n = len(protocol) + 5 + len(client_id) + len(properties)
    flags = _CLEAN_SESSION if clean_start else 0
    bad = (
        _is_no_text(client_id) or not 0 <= keep_alive <= 65535 or not (client_id or clean_start or properties)
    )
    if will_topic is not None:
        n += 4 + len(will_topic) + len(will_payload) + len(will_properties)
        flags |= _WILL | will_qos << _WILL_QOS_SHIFT
        if will_retain:
            flags |= _WILL_RETAIN
        bad = bad or not 0 <= will_qos <= 2 or len(will_topic) > 65535 or len(will_payload) > 65535
    if user is not None:
        n += 2 + len(user)
        flags |= _USER_NAME
        bad = bad or _is_no_text(user)
    if password is not None:
        n += 2 + len(password)
        flags |= _PASSWORD
        bad = bad or len(password) > 65535 or not (user is not None or properties)
    if bad:
        return E_ARGUMENT
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = _CONNECT_HEAD
    i = put_varint(buf, at + 1, n)
    i = _put(buf, i, protocol)
    buf[i] = flags
    buf[i + 1] = keep_alive >> 8
    buf[i + 2] = keep_alive & 255
    i = put_block(buf, _put(buf, i + 3, properties), client_id)
    if will_topic is not None:
        i = _put(buf, i, will_properties)
        i = put_block(buf, put_block(buf, i, will_topic), will_payload)
    if user is not None:
        i = put_block(buf, i, user)
    if password is not None:
        i = put_block(buf, i, password)
    return i


def _is_no_text(data: "Bytes") -> bool:
    return len(data) > 65535 or check_utf8(data, 0, len(data)) >= 0


def _put(buf: bytearray, at: int, data: "Bytes") -> int:
    """Copy ``data``. Return the offset after it."""
    end = at + len(data)
    buf[at:end] = data
    return end


def encode_subscribe(
    buf: bytearray,
    at: int,
    limit: int,
    packet_id: int,
    topic_filter: "Bytes",
    qos: int,
    properties: "Bytes" = b"",
) -> int:
    """Encode SUBSCRIBE (3.8) for one topic filter, or UNSUBSCRIBE (3.10) if ``qos`` is -1.

    At 5.0 ``qos`` is the byte of subscription options (3.8.3.1).
    """
    n = 4 + len(topic_filter) + len(properties)
    if qos >= 0:
        n += 1
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = _SUBSCRIBE_HEAD if qos >= 0 else _UNSUBSCRIBE_HEAD
    i = put_varint(buf, at + 1, n)
    buf[i] = packet_id >> 8
    buf[i + 1] = packet_id & 255
    i = put_block(buf, _put(buf, i + 2, properties), topic_filter)
    if qos >= 0:
        buf[i] = qos
        i += 1
    return i


# -- decoding ----------------------------------------------------------------------------------------------------------

#: Returned by ``decode_header`` if the header is incomplete.
MORE = const(0)


class Packet(Message):
    """A packet in a buffer, as offsets.

    ``head`` is the first byte; ``body`` and ``end`` are the limits of the remaining length. ``packet_id`` is the packet
    identifier, 0 if there is none. PUBLISH: the topic is ``buf[topic_at:topic_end]``, the payload
    ``buf[payload_at:end]``. CONNACK: ``session_present`` and ``code``. SUBACK: its codes are ``buf[payload_at:end]``.
    """

    def __init__(self, buf: "Bytes", check: "NameCheck" = check_name):
        self.buf = buf
        self.check = check
        self.head = self.body = self.end = 0
        self.packet_id = 0
        self.topic_at = self.topic_end = self.payload_at = 0
        self.session_present = False
        self.code = 0
        self.bad_at = 0
        #: The sessions' fast path handles a PUBLISH with a remaining length below this; at most 128.
        self.short = 128
        #: The version's rules for the fixed header.
        self.flags = FLAGS
        self.sizes = SIZES
        #: This packet as ``Packet5``, which decodes property blocks and reason codes; None before 5.0.
        self.five: Blocks | None = None

    def accepts(self, at: int) -> bool:
        """Return whether SUBACK may have the code at ``at`` (3.9.3)."""
        return self.buf[at] <= 2 or self.buf[at] == _SUBSCRIBE_FAILED


def decode_header(p: Packet, at: int, end: int) -> int:
    """Decode the fixed header (2.2) at ``at``; ``end`` is where the received bytes end. Sets head, body and end.

    Returns the offset after the packet, which may be beyond ``end``; MORE (0) if the header is incomplete; E_LENGTH,
    E_TYPE, E_FLAGS or E_RX_QOS; or E_SIZE for a type with another remaining length.
    """
    buf = p.buf
    if at >= end:
        return MORE
    head = buf[at]
    kind = head >> 4
    p.bad_at = at
    if p.sizes[kind] == _NO_TYPE:
        return E_TYPE
    if kind == _PUBLISH:
        if head & 6 == 6:
            return E_RX_QOS
        if head & 14 == 8:
            return E_FLAGS
    elif head & p.flags[kind] >> 4 != p.flags[kind] & 15:
        return E_FLAGS
    at += 1
    if at >= end:
        return MORE
    if buf[at] < 128:
        p.body = at + 1
        p.end = at + 1 + buf[at]
    else:
        bad = _long_length(p, at, end)
        if bad <= 0:
            return bad
    p.head = head
    if p.end - p.body != p.sizes[kind] != _VARIES:
        p.bad_at = p.body
        return E_SIZE
    return p.end


def _long_length(p: Packet, at: int, end: int) -> int:
    """Decode a remaining length of more than one byte (2.2.3). Return 1 with body and end set, MORE or E_LENGTH."""
    size = shift = 0
    while shift < 28:
        if at >= end:
            return MORE
        b = p.buf[at]
        at += 1
        size |= (b & 127) << shift
        if b < 128:
            p.body = at
            p.end = at + size
            return 1
        shift += 7
    p.bad_at = at
    return E_LENGTH


def decode_publish(p: Packet, at: int, end: int) -> int:
    """Decode PUBLISH (3.3), with its variable header at ``at`` and its end at ``end``.

    The caller has set ``head`` and ``end``. Returns 0; an error; or, at 5.0, the properties of ``Packet5.special`` that
    the packet has, as a set of bits, which the session must handle.
    """
    buf = p.buf
    p.bad_at = at
    if at + 2 > end:
        return E_FIELD
    i = at + 2 + (buf[at] << 8 | buf[at + 1])
    if i > end:
        return E_FIELD
    at += 2
    p.topic_at = at
    p.topic_end = i
    if at < i or p.five is None:
        bad = p.check(buf, at, i)
        if bad:
            p.bad_at = at
            return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
    if p.head & 6:
        p.bad_at = i
        if i + 2 > end:
            return E_FIELD
        p.packet_id = buf[i] << 8 | buf[i + 1]
        if p.packet_id == 0:
            return E_PACKET_ID
        i += 2
    else:
        p.packet_id = 0
    if p.five is None:
        p.payload_at = i
        return 0
    return p.five.publish_block(i, end)


def decode_ack(p: Packet) -> int:
    """Decode PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7): packet identifier; at 5.0 also ``code``, properties."""
    buf = p.buf
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_SIZE
    p.packet_id = buf[at] << 8 | buf[at + 1]
    if p.packet_id == 0:
        return E_PACKET_ID
    return 0 if p.five is None else p.five.reason(at + 2)


def decode_connack(p: Packet) -> int:
    """Decode CONNACK (3.2)."""
    buf = p.buf
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_SIZE
    if buf[at] > 1:
        return E_FLAGS
    p.session_present = buf[at] == 1
    p.code = buf[at + 1]
    if p.five is not None:
        return p.five.connack(at)
    if p.code > 5 or (p.code and p.session_present):
        p.bad_at = at + 1
        return E_CODE
    return 0


def decode_suback(p: Packet) -> int:
    """Decode SUBACK (3.9) or UNSUBACK (3.11): packet identifier, then one code for each filter.

    UNSUBACK has codes only at 5.0.
    """
    buf = p.buf
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_SIZE
    p.packet_id = buf[at] << 8 | buf[at + 1]
    if p.packet_id == 0:
        return E_PACKET_ID
    at += 2
    if p.five is not None:
        at = p.five.block(at, p.end)
        if at < 0:
            return at
        p.bad_at = at
    elif p.head >> 4 == _UNSUBACK:
        p.payload_at = at
        return 0
    p.payload_at = at
    if at == p.end:
        return E_SIZE
    for i in range(at, p.end):
        if not p.accepts(i):
            p.bad_at = i
            return E_CODE
    return 0
