"""Encode and decode the frames of FMQ (docs/protocols/fmq.md, section 3); check topics.

``Frame`` is the decoder's reusable cursor. Its fields are integers, most of them offsets into its buffer, and valid
until the next frame is decoded. ``decode_fields`` checks everything before a field is used, so no accessor fails after
it. A decoder returns 0 or an offset, or an error with ``bad_at`` set to the offset of the fault.

An encoder writes into the caller's buffer and returns the offset after the frame; or an error if the frame does not
end before ``limit`` or an argument is wrong, and then the written bytes are to be ignored. ``ident`` is a message id.
Strings are bytes in UTF-8, which the caller checks. Frequent operations allocate nothing: ``put_message`` and
``encode_answer``.
"""

from array import array

from headwater.errors import (
    E_ARGUMENT,
    E_CODE,
    E_FIELD,
    E_FILTER,
    E_FLAGS,
    E_LENGTH,
    E_RX_QOS,
    E_RX_TOO_LARGE,
    E_SIZE,
    E_TOO_LARGE,
    E_TOPIC,
    E_TYPE,
)
from headwater.fmq.ids import MORE, id_end
from headwater.fmq.values import KINDS, Value, number, put_bool, put_count, put_int, put_none, put_text, read
from headwater.wire import NOT_BYTES, Message, check_utf8, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.types import Bytes

    #: A field: see ``encode_frame``.
    Field = None | bool | int | Bytes | Sequence[Bytes]

# Copies of constants of ``headwater.fmq.spec``.
_AUTH = const(0)
_SLAVEOF = const(1)
_PUBLISH = const(3)
_SUBSCRIBE = const(8)
_CONSUME = const(10)
_CONSUMERESP = const(11)
_ELECT = const(13)
_ACK = const(14)
_NO_BODY = const(1 << 5 | 1 << 6 | 1 << 7 | 1 << 12)
_REG = const(1)
_ONCE = const(2)
_NONE = const(0)
_STRING = const(1)
_BOOL = const(2)
_INT = const(3)
_DATETIME = const(11)
_LIST = const(13)
_E_FORM = const(-58)


# Topics and filters follow the rules of MQTT (docs/protocols/fmq.md, section 4). Nothing here allocates.

_WILDCARDS = b"#+"
_HASH = const(0x23)
_SLASH = const(0x2F)


def check_name(text: "Bytes") -> int:
    """Check a topic name. Return 0, or E_TOPIC if it is empty, not UTF-8, or has U+0000 or a wildcard."""
    n = len(text)
    if n == 0 or check_utf8(text, 0, n) >= 0:
        return E_TOPIC
    for c in text:
        if c in _WILDCARDS:
            return E_TOPIC
    return 0


def check_filter(text: "Bytes") -> int:
    """Check a topic filter. Return 0, or E_FILTER if it is empty, not UTF-8, has U+0000 or a misplaced wildcard."""
    n = len(text)
    if n == 0 or check_utf8(text, 0, n) >= 0:
        return E_FILTER
    for i in range(n):
        c = text[i]
        if c in _WILDCARDS and (
            (i > 0 and text[i - 1] != _SLASH) or (i + 1 < n and (c == _HASH or text[i + 1] != _SLASH))
        ):
            return E_FILTER
    return 0


# The fields of each frame's body (docs/protocols/fmq.md, section 3), for the encoder and the decoder.
#
# A row begins with the number of mandatory fields. Each further byte is a field:
#
# ====  ==========================================================================
# T     String
# N     String or None
# P     topic: String, or the integer that is its hash
# O     topic (P) or None
# I     non-negative integer
# Q     QoS, 0 to 2
# C     reason code, 0 to 255
# B     Bool
# D     DateTime
# L     List of Strings
# A, S  address; addresses up to the end
# M     subscription id (an integer), or the message id of a CONSUME
# R     the rest, unchanged
# ====  ==========================================================================

# Letters as bits (``1 << (letter & 31)``): the fields that can be a String, an integer, None.
_TEXTS = const(1 << 20 | 1 << 14 | 1 << 16 | 1 << 15)
_NUMBERS = const(1 << 9 | 1 << 17 | 1 << 3 | 1 << 16 | 1 << 15 | 1 << 13)
_NONES = const(1 << 14 | 1 << 15)
_TOPICS = const(1 << 16 | 1 << 15)

_NOTHING = b"\x00"
#: The rows, by type.
ROWS = (
    b"\x00TNNIBTQBR",
    b"\x02AA",
    b"\x01TI",
    b"\x03PLR",
    _NOTHING,
    _NOTHING,
    _NOTHING,
    _NOTHING,
    b"\x01PLTT",
    b"\x01I",
    b"\x01II",
    b"\x04MOLR",
    _NOTHING,
    b"\x02AI",
    _NOTHING,
    b"\x01T",
)
_CONSUME_ONCE = b"\x04PLTTR"
_REFUSED = b"\x01CT"
_AUTHENTICATED = b"\x04CIBD"
_SUBSCRIBED = b"\x02CI"
_SLAVES = b"\x01CS"
# The row of an ACK to ELECT that agrees.
_AGREED = b"\x01N"


def row_of(head: int, asked: int, code: int) -> bytes:
    """Return the row of a frame by its first byte.

    For ACK, ``asked`` is the type of the answered message, ``code`` its reason code; -1 without one: an empty body, or
    None or another candidate as the answer to an ELECT.
    """
    kind = head >> 4
    if kind == _ACK:
        if code > 0:
            return _REFUSED
        if asked == _ELECT and code < 0:
            return ROWS[_ELECT]
        if code < 0:
            return _NOTHING
        if asked == _AUTH:
            return _AUTHENTICATED
        if asked == _SUBSCRIBE:
            return _SUBSCRIBED
        return _SLAVES if asked == _SLAVEOF else _REFUSED
    if kind == _CONSUME and head & _ONCE:
        return _CONSUME_ONCE
    return _NOTHING if kind == _SLAVEOF and head & _REG else ROWS[kind]


#: The valid flags by type: bit n of two bytes is set if the flags can be n. Type 4 has none; DUP needs a QoS.
_FLAGS = (
    b"\x00\x01\x00\x03\x00\x01\x3c\x3f\x00\x00\x00\x01\x00\x01\x00\x01"
    b"\x00\x01\x00\x01\x00\x0f\x00\x01\x00\x01\x00\x0b\x00\x01\x00\x01"
)
#: PUBLISH's.
_MESSAGE = const(0x3C3F)
_TIME_OF_EIGHT = const(0xB0)
# The shortest frame with such a time in its id.
_LEAST = const(12)
# The letters of fields that need more than a check of the kind.
_QOS = const(81)
_CODE = const(67)
_FIELD_BOOL = const(66)
_TIME = const(68)
_FIELD_LIST = const(76)
_ADDRESS = const(65)
_ADDRESSES = const(83)
_CORRELATION = const(77)
_REST = const(82)
# By kind of value, as bits.
_INTEGERS = const(1 << 3 | 1 << 6)
_HASH_SIZE = const(16)
_MOST_FIELDS = const(9)


class Frame(Message):
    """A frame in a buffer, as offsets.

    ``head`` is the first byte. The message id is ``buf[id_at:id_end]``, the body ``buf[body:end]``. The body has
    ``count`` fields (``ROWS``); field k is ``buf[at[k]:at[k + 1]]``. PUBLISH and CONSUMERESP have the topic
    ``buf[topic_at:topic_end]``, tags (a list) at ``tags_at`` and the payload ``buf[payload_at:end]``; ACK has ``code``,
    0 for success. Bodies longer than ``limit`` are refused.
    """

    def __init__(self, buf: "Bytes", limit: int):
        self.buf = buf
        self.limit = limit
        self.head = self.id_at = self.id_end = self.body = self.end = 0
        self.at = array("I", [0] * (_MOST_FIELDS + 1))
        self.count = 0
        self.topic_at = self.topic_end = self.tags_at = self.payload_at = 0
        self.code = 0
        self.bad_at = 0
        self.value = Value(buf, 0)

    def asked(self) -> int:
        """Return the type of the message that created the id: for an answer, the answered message."""
        return self.buf[self.id_at] >> 4

    def has_topic(self) -> bool:
        """Return whether the topic is a name: neither a hash (then the offsets are those of its bytes) nor None."""
        return self.buf[self.at[1 if self.head >> 4 == _CONSUMERESP else 0]] >> 4 == _STRING


def decode_header(f: Frame, at: int, end: int) -> int:
    """Decode the header of the frame at ``at``; ``end`` is where the received bytes end.

    Returns the offset after the frame, which may lie beyond ``end``; MORE (0) if the header is incomplete; E_TYPE,
    E_FLAGS, E_RX_QOS or E_ID; E_LENGTH if the length has more than five bytes; E_RX_TOO_LARGE if it is above the limit.
    """
    buf = f.buf
    if at >= end:
        return MORE
    head = buf[at]
    f.bad_at = at
    i = head >> 4
    if not (_FLAGS[i * 2] << 8 | _FLAGS[i * 2 + 1]) >> (head & 15) & 1:
        if i == 4:
            return E_TYPE
        return E_RX_QOS if i == _PUBLISH and head & 6 == 6 else E_FLAGS
    f.head = head
    f.id_at = at = at + 1
    f.bad_at = at
    at = id_end(buf, at, end)
    if at <= 0:
        return at
    f.id_end = at
    if _NO_BODY >> i & 1:
        f.body = f.end = at
        return at
    if at >= end:
        return MORE
    f.bad_at = at
    if buf[at] < 16:
        f.body = at + 1
        f.end = at + 1 + buf[at]
        return f.end if buf[at] <= f.limit else E_RX_TOO_LARGE
    return _long_length(f, at, end)


def _long_length(f: Frame, at: int, end: int) -> int:
    """Decode a length of several bytes. Return the offset after the frame, MORE, E_LENGTH or E_RX_TOO_LARGE."""
    i = at + (f.buf[at] >> 4)
    if i > at + 4:
        return E_LENGTH
    if i >= end:
        return MORE
    f.body = i + 1
    size = 0
    most = f.limit >> 4
    while i > at:
        size = size << 8 | f.buf[i]
        i -= 1
        if size > most:
            return E_RX_TOO_LARGE
    size = size << 4 | f.buf[at] & 15
    if size > f.limit:
        return E_RX_TOO_LARGE
    f.end = f.body + size
    return f.end


def scan(f: Frame, at: int, end: int) -> int:
    """Decode a frequent, whole and well-formed frame at ``at`` in one step. Return the offset after it.

    Frequent are PUBLISH, and CONSUMERESP of a subscription, with a body below 4096 bytes, a topic below 256 and no
    tags; ACK without a body; frames that have none. The time in the id has eight bytes. 0 says nothing about the frame:
    use ``decode_header`` and ``decode_fields``.
    """
    buf = f.buf
    if at + _LEAST > end:
        return 0
    head = buf[at]
    if head & 15 and (head >> 4 != _PUBLISH or not _MESSAGE >> (head & 15) & 1):
        return 0
    i = at + 2 + (buf[at + 1] & 15)
    if i + 10 > end:
        return 0
    i += 1 + (buf[i] >> 4)
    # An id has 18 bytes at most.
    if i > at + 10 or i + 9 > end or buf[i] != _TIME_OF_EIGHT:
        return 0
    f.head = head
    f.id_at = at + 1
    i += 9
    f.id_end = i
    head >>= 4
    if head != _PUBLISH and head != _CONSUMERESP:
        if head == _ACK and i < end and buf[i] == 0:
            i += 1
        elif not _NO_BODY >> head & 1:
            return 0
        f.code = f.count = 0
        f.at[0] = f.body = f.end = i
        return i
    if i + 2 > end:
        return 0
    at = buf[i]
    if at < 16:
        i += 1
    elif at < 32:
        at = at & 15 | buf[i + 1] << 4
        i += 2
    else:
        return 0
    if at > f.limit or i + at > end:
        return 0
    f.body = i
    end = i + at
    f.end = end
    return end if _simple(f, i, end) else 0


def _simple(f: Frame, i: int, end: int) -> bool:
    """Decode the body if ``scan`` accepts it."""
    buf = f.buf
    at = f.at
    k = 0
    at[0] = i
    if f.head >> 4 == _CONSUMERESP:
        # A non-negative Int.
        if end - i < 10 or buf[i] >> 3 != _INT << 1:
            return False
        i += 1 + (buf[i] & 7 or 8)
        k = 1
        at[1] = i
    if i + 2 > end:
        return False
    if buf[i] == _STRING << 4 | 1:
        f.topic_at = i + 2
        i += 2 + buf[i + 1]
        # A topic with U+0000 is well-formed, but not frequent.
        if i >= end or check_utf8(buf, f.topic_at, i) >= 0:
            return False
    elif k and buf[i] == _NONE:
        i += 1
        f.topic_at = i
    else:
        return False
    if buf[i] != _LIST << 4:
        return False
    f.topic_end = f.tags_at = i
    at[k + 1] = i
    i += 1
    f.payload_at = i
    at[k + 2] = i
    at[k + 3] = end
    f.count = k + 3
    return True


def decode_fields(f: Frame) -> int:
    """Decode the body after ``decode_header``. Return 0 or an error.

    E_FIELD: a field is missing or ends beyond the body; E_SIZE: bytes follow the last field; E_UTF8; E_CODE; E_RX_QOS;
    E_FORM: a field has the wrong type or is out of range.
    """
    return walk_fields(f, _row_to_read(f), f.end)


def _row_to_read(f: Frame) -> bytes:
    """Return the row of the frame's fields."""
    f.code = 0
    if f.head >> 4 != _ACK:
        return row_of(f.head, 0, 0)
    at = f.body
    if at == f.end:
        return _NOTHING
    asked = f.asked()
    code = 1
    if asked == _ELECT and KINDS[f.buf[at] >> 4] != _INT:
        if f.buf[at] == 0:
            return _AGREED
        code = -1
    elif read(f.value, at, f.end) > 0 and f.value.kind == _INT and number(f.value) == 0:
        code = 0
    return row_of(f.head, asked, code)


def walk_fields(f: Frame, row: bytes, end: int) -> int:
    """Decode the fields of ``row`` before ``end``. Return 0 or an error."""
    at = f.body
    k = 1
    while k < len(row):
        f.at[k - 1] = at
        if at == end and k > row[0]:
            break
        at = _field(f, at, end, row[k])
        if at < 0:
            return at
        k += 1
    f.count = k - 1
    f.at[k - 1] = at
    f.bad_at = at
    if at < end:
        return E_SIZE
    k = f.head >> 4
    if k == _PUBLISH:
        _message(f, 0)
    elif k == _CONSUMERESP:
        _message(f, 1)
    return 0


def _message(f: Frame, k: int) -> None:
    """Set the offsets of topic, tags and payload; the topic is field ``k``."""
    at = f.at[k]
    f.tags_at = f.topic_end = f.at[k + 1]
    f.payload_at = f.at[k + 2]
    tag = f.buf[at]
    f.topic_at = at + 1 + (tag & 15 if tag >> 4 != _INT else 0)


def _field(f: Frame, at: int, end: int, kind: int) -> int:
    """Check the field at ``at``. Return the offset after it, or an error."""
    f.bad_at = at
    if kind == _REST:
        return end
    if kind == _ADDRESS:
        return _address(f, at, end)
    if kind == _ADDRESSES:
        while 0 < at < end:
            at = _address(f, at, end)
        return at
    if kind == _CORRELATION and at < end and f.buf[at] >> 4 == _CONSUME:
        at = id_end(f.buf, at, end)
        return at if at else E_FIELD
    v = f.value
    at = read(v, at, end)
    if at < 0:
        f.bad_at = v.bad_at
        return at
    found = v.kind
    if found == _STRING:
        return at if _TEXTS >> (kind & 31) & 1 else _E_FORM
    if kind == _FIELD_LIST:
        return _texts(f, at, end) if found == _LIST else _E_FORM
    if _INTEGERS >> found & 1:
        return _number(f, at, kind) if _NUMBERS >> (kind & 31) & 1 and not v.negative else _E_FORM
    if found == _NONE:
        return at if _NONES >> (kind & 31) & 1 else _E_FORM
    return (
        at if (found == _BOOL and kind == _FIELD_BOOL) or (found == _DATETIME and kind == _TIME) else _E_FORM
    )


def _number(f: Frame, at: int, kind: int) -> int:
    """Check that the number is in the field's range. Return the offset after it, or an error."""
    v = f.value
    if _TOPICS >> (kind & 31) & 1:
        return at if v.end - v.at <= _HASH_SIZE else _E_FORM
    if kind == _QOS:
        return at if number(v) < 3 else E_RX_QOS
    if kind == _CODE:
        code = number(v)
        if code > 255:
            return E_CODE
        f.code = code
    return at


def _texts(f: Frame, at: int, end: int) -> int:
    """Check the strings of the list after its head was read. Return the offset after the last, or an error."""
    v = f.value
    for _ in range(v.count):
        f.bad_at = at
        at = read(v, at, end)
        if at < 0:
            f.bad_at = v.bad_at
            return at
        if v.kind != _STRING:
            return _E_FORM
    return at


def _address(f: Frame, at: int, end: int) -> int:
    """Check the address at ``at``. Return the offset after it, or an error."""
    f.bad_at = at
    if at >= end:
        return E_FIELD
    n = f.buf[at] & 15 or 16
    version = f.buf[at] >> 4
    if not (version == 6 or (version == 4 and n <= 4)):
        return _E_FORM
    at += 3 + n
    return at if at <= end else E_FIELD


# -- encode ------------------------------------------------------------------------------------------------------------

#: The tags of a message without tags.
NO_TAGS = b"\xd0"


def length_size(n: int) -> int:
    """Return the size of an encoded body length."""
    return 1 if n < 16 else 2 if n < 4096 else 3 if n < 1048576 else 4 if n < 268435456 else 5


def put_length(buf: bytearray, at: int, n: int) -> int:
    """Write a body length. Return the offset after it."""
    i = at + 1
    rest = n >> 4
    while rest:
        buf[i] = rest & 255
        rest >>= 8
        i += 1
    buf[at] = i - at - 1 << 4 | n & 15
    return i


def put_head(buf: bytearray, at: int, head: int, ident: "Bytes") -> int:
    """Write the first byte and the id, for which there is room. Return the offset after them."""
    buf[at] = head
    at += 1
    end = at + len(ident)
    buf[at:end] = ident
    return end


def message_size(topic: "Bytes", payload: "Bytes", tags: "Bytes" = NO_TAGS) -> int:
    """Return the size of the body of a PUBLISH; the topic must be shorter than 16 MiB."""
    n = len(topic)
    if n:
        n += 1 if n < 256 else 2 if n < 65536 else 3
    return n + 1 + len(tags) + len(payload)


def put_message(buf: bytearray, at: int, topic: "Bytes", payload: "Bytes", tags: "Bytes") -> int:
    """Write length and body of a PUBLISH, for which there is room. Return the offset after them.

    ``tags`` is an encoded list (``tag_list``). Reuses ``n`` to stay within 11 words.
    """
    n = message_size(topic, payload, tags)
    if n < 16:
        buf[at] = n
        at += 1
    elif n < 4096:
        buf[at] = 16 | n & 15
        buf[at + 1] = n >> 4
        at += 2
    else:
        at = put_length(buf, at, n)
    # From here on ``n`` is the end of the body.
    n += at
    at = put_text(buf, at, n, topic)
    if len(tags) == 1:
        buf[at] = tags[0]
        at += 1
    else:
        at = _put_raw(buf, at, tags)
    buf[at:n] = payload
    return n


def _put_raw(buf: bytearray, at: int, data: "Bytes") -> int:
    """Write bytes unchanged. Return the offset after them."""
    end = at + len(data)
    buf[at:end] = data
    return end


def tag_list(tags: "Sequence[Bytes]") -> bytes:
    """Encode tags for ``publish``. It allocates: call it once."""
    size = 9
    for tag in tags:
        size += len(tag) + 9
    buf = bytearray(size)
    return bytes(buf[: _put_list(buf, 0, size, tags)])


def _put_list(buf: bytearray, at: int, limit: int, texts: "Sequence[Bytes]") -> int:
    at = put_count(buf, at, limit, _LIST, len(texts))
    for text in texts:
        at = put_text(buf, at, limit, text)
    return at


def encode_answer(
    buf: bytearray, at: int, limit: int, kind: int, source: "Bytes", start: int, end: int
) -> int:
    """Encode a successful ACK, or PUBREC, PUBREL, PUBCOMP, to the message with the id ``source[start:end]``."""
    n = at + 1 + end - start
    if n >= limit and (n > limit or kind == _ACK):
        return E_TOO_LARGE
    buf[at] = kind << 4
    while start < end:
        at += 1
        buf[at] = source[start]
        start += 1
    if kind == _ACK:
        buf[n] = 0
        n += 1
    return n


def encode_frame(
    buf: bytearray, at: int, limit: int, head: int, ident: "Bytes", values: "Sequence[Field]" = ()
) -> int:
    """Encode any frame with the fields of its row in ``ROWS``; optional fields can be omitted from the end.

    A field is None, a bool, an integer, a string in UTF-8 or a list of strings; every other field, and a list as well,
    can be given as encoded bytes. E_ARGUMENT: a mandatory field is missing, or a field has the wrong type.
    """
    row = _row_to_write(head, ident, values)
    i = at + 1 + len(ident)
    if not row[0] <= len(values) < len(row):
        return E_ARGUMENT
    if i > limit:
        return E_TOO_LARGE
    if _NO_BODY >> (head >> 4) & 1:
        return put_head(buf, at, head, ident)
    try:
        # The size of the length depends on that of the body, so a long body is written twice.
        n = 1
        end = _put_fields(buf, i + n, limit, row, values)
        while end > 0 and n != length_size(end - i - n):
            n = length_size(end - i - n)
            end = _put_fields(buf, i + n, limit, row, values)
        if end > 0:
            put_length(buf, put_head(buf, at, head, ident), end - i - n)
        return end
    except NOT_BYTES:
        return E_ARGUMENT


def _row_to_write(head: int, ident: "Bytes", values: "Sequence[Field]") -> bytes:
    """Return the row of the frame to encode."""
    if head >> 4 != _ACK:
        return row_of(head, 0, 0)
    if not values:
        return _NOTHING
    code = values[0]
    if isinstance(code, int):
        return row_of(head, ident[0] >> 4, code)
    return _AGREED if code is None else ROWS[_ELECT]


def _put_fields(buf: bytearray, at: int, limit: int, row: bytes, values: "Sequence[Field]") -> int:
    if at > limit:
        return E_TOO_LARGE
    for k in range(len(values)):
        at = _put_field(buf, at, limit, row[k + 1], values[k])
    return at


def _put_field(buf: bytearray, at: int, limit: int, kind: int, value: "Field") -> int:
    """Write a field. Return the offset after it, or an error, also if ``at`` is one."""
    if at < 0:
        return at
    if value is None:
        return put_none(buf, at, limit)
    if kind == _FIELD_BOOL:
        return put_bool(buf, at, limit, value)
    if isinstance(value, int):
        return put_int(buf, at, limit, value) if value >= 0 else E_ARGUMENT
    if isinstance(value, (tuple, list)):
        return _put_list(buf, at, limit, value)
    if _TEXTS >> (kind & 31) & 1:
        return put_text(buf, at, limit, value)  # type: ignore[arg-type]
    return _put_raw(buf, at, value) if at + len(value) <= limit else E_TOO_LARGE  # type: ignore[arg-type]
