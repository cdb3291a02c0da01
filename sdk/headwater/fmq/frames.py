"""Reading FMQ's frames (docs/protocols/fmq.md, section 3) at an offset of the receive buffer, into one reusable cursor.

``Frame`` is the cursor: its fields are integers, most of them offsets into its buffer, and are valid until the next
frame is read. ``decode_fields`` checks everything the frame claims before a field can be used, so no accessor fails
after it.
A decoder returns 0 or an offset, or a code with ``bad_at`` set to the offending offset.
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
from headwater.wire import NOT_BYTES, check_utf8, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.types import Bytes

    #: A field: see ``encode_frame``.
    Field = None | bool | int | Bytes | Sequence[Bytes]

# As in ``headwater.fmq.spec``.
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


# What is a topic, and what a filter (docs/protocols/fmq.md, section 4): as in MQTT. Nothing here allocates.

_WILDCARDS = b"#+"
_HASH = const(0x23)
_SLASH = const(0x2F)


def check_name(text: "Bytes") -> int:
    """0, or E_TOPIC: empty, no UTF-8, or with U+0000 or a wildcard."""
    n = len(text)
    if n == 0 or check_utf8(text, 0, n) >= 0:
        return E_TOPIC
    for c in text:
        if c in _WILDCARDS:
            return E_TOPIC
    return 0


def check_filter(text: "Bytes") -> int:
    """0, or E_FILTER: empty, no UTF-8, with U+0000; or + or # is not alone in its level, or # not in the last."""
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


# What the bodies of FMQ's frames are made of (docs/protocols/fmq.md, section 3): a table for who reads and who writes.
#
# A row begins with how many of its fields must be there. Each further byte is a field:
#
# ====  ==========================================================================
# T     String
# N     String or None
# P     a topic: a String, or the integer that is its hash
# O     as P, or None
# I     an integer from 0 on
# Q     one that is a QoS, 0 to 2
# C     one that is a reason code, 0 to 255
# B     Bool
# D     DateTime
# L     a List of Strings
# A, S  an address, addresses up to the end
# M     a subscription id (an integer), or the message id of a CONSUME
# R     the rest, as it is
# ====  ==========================================================================

#: Letters as bits (``1 << (letter & 31)``): what a String may be, what an integer, and what None.
TEXTS = const(1 << 20 | 1 << 14 | 1 << 16 | 1 << 15)
NUMBERS = const(1 << 9 | 1 << 17 | 1 << 3 | 1 << 16 | 1 << 15 | 1 << 13)
NONES = const(1 << 14 | 1 << 15)
TOPICS = const(1 << 16 | 1 << 15)

NOTHING = b"\x00"
#: By type.
ROWS = (
    b"\x00TNNIBTQBR",
    b"\x02AA",
    b"\x01TI",
    b"\x03PLR",
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    b"\x01PLTT",
    b"\x01I",
    b"\x01II",
    b"\x04MOLR",
    NOTHING,
    b"\x02AI",
    NOTHING,
    b"\x01T",
)
_CONSUME_ONCE = b"\x04PLTTR"
_REFUSED = b"\x01CT"
_AUTHENTICATED = b"\x04CIBD"
_SUBSCRIBED = b"\x02CI"
_SLAVES = b"\x01CS"
#: Of an ACK to ELECT that agrees.
AGREED = b"\x01N"


def row_of(head: int, asked: int, code: int) -> bytes:
    """The row of a frame with this first byte. Of ACK's, ``asked`` is the type of what it answers, ``code`` its reason
    code; -1 when it has none: nothing, or of an ELECT that is not refused, None or what another one says."""
    kind = head >> 4
    if kind == _ACK:
        if code > 0:
            return _REFUSED
        if asked == _ELECT and code < 0:
            return ROWS[_ELECT]
        if code < 0:
            return NOTHING
        if asked == _AUTH:
            return _AUTHENTICATED
        if asked == _SUBSCRIBE:
            return _SUBSCRIBED
        return _SLAVES if asked == _SLAVEOF else _REFUSED
    if kind == _CONSUME and head & _ONCE:
        return _CONSUME_ONCE
    return NOTHING if kind == _SLAVEOF and head & _REG else ROWS[kind]


#: By type, the flags there are: two bytes, of which bit n says whether they may be n. Type 4 has none; DUP needs a QoS.
_FLAGS = (
    b"\x00\x01\x00\x03\x00\x01\x3c\x3f\x00\x00\x00\x01\x00\x01\x00\x01"
    b"\x00\x01\x00\x01\x00\x0f\x00\x01\x00\x01\x00\x0b\x00\x01\x00\x01"
)
#: PUBLISH's.
_MESSAGE = const(0x3C3F)
_TIME_OF_EIGHT = const(0xB0)
# The shortest frame whose id has such a time; the types without a body.
_LEAST = const(12)
# The letters of ``decode_fields`` that need more than a look at the kind of value.
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


class Frame:
    """A frame in a buffer, as offsets.

    ``head`` is the first byte. The message id is ``buf[id_at:id_end]``, the body ``buf[body:end]``. The body has
    ``count`` fields, as ``ROWS`` says; field k begins at ``at[k]`` and ends at ``at[k + 1]``. PUBLISH and
    CONSUMERESP: the topic is ``buf[topic_at:topic_end]``, the tags are the list at ``tags_at``, the payload is
    ``buf[payload_at:end]``. ACK: ``code``, 0 for success.

    ``limit`` is the longest body that is accepted.
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

    def kind(self) -> int:
        """The frame's type, 0 … 15."""
        return self.head >> 4

    def asked(self) -> int:
        """The type of the message that created the id: of an answer, what it answers."""
        return self.buf[self.id_at] >> 4

    def qos(self) -> int:
        """PUBLISH: 0, 1 or 2."""
        return self.head >> 1 & 3

    def dup(self) -> bool:
        """PUBLISH: whether it may have been sent before."""
        return self.head & 8 != 0

    def retain(self) -> bool:
        """PUBLISH: whether it is to be kept, or was."""
        return self.head & 1 != 0

    def has_topic(self) -> bool:
        """Whether there is a topic, and not its hash: an integer, whose bytes stand in its place; or None."""
        return self.buf[self.at[1 if self.head >> 4 == _CONSUMERESP else 0]] >> 4 == _STRING

    def topic_is(self, name: "Bytes") -> bool:
        """Whether the topic is exactly ``name``; allocates nothing."""
        at = self.topic_at
        n = len(name)
        if self.topic_end - at != n:
            return False
        buf = self.buf
        for i in range(n):
            if buf[at + i] != name[i]:
                return False
        return True

    def topic_bytes(self) -> bytes:
        """A copy of the topic: allocates."""
        return bytes(self.buf[self.topic_at : self.topic_end])

    def topic_text(self) -> str:
        """The topic as text: allocates."""
        return str(self.buf[self.topic_at : self.topic_end], "utf-8")

    def payload_bytes(self) -> bytes:
        """A copy of the payload: allocates."""
        return bytes(self.buf[self.payload_at : self.end])


def decode_header(f: Frame, at: int, end: int) -> int:
    """Read what stands before the body of the frame at ``at``, of which bytes up to ``end`` are there.

    Returns the offset behind the frame, which may lie beyond ``end``; MORE (0) when there is not enough; E_TYPE,
    E_FLAGS, E_RX_QOS, E_ID; E_LENGTH for a length of more than four further bytes, E_RX_TOO_LARGE for one above the
    limit.
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
    if buf[at] < 16:
        f.body = at + 1
        f.end = at + 1 + buf[at]
        return f.end if buf[at] <= f.limit else _too_large(f, at)
    return _long_length(f, at, end)


def _too_large(f: Frame, at: int) -> int:
    f.bad_at = at
    return E_RX_TOO_LARGE


def _long_length(f: Frame, at: int, end: int) -> int:
    """A body length of several bytes: the offset behind the frame, MORE, E_LENGTH or E_RX_TOO_LARGE."""
    i = at + (f.buf[at] >> 4)
    if i > at + 4:
        f.bad_at = at
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
            return _too_large(f, at)
    size = size << 4 | f.buf[at] & 15
    if size > f.limit:
        return _too_large(f, at)
    f.end = f.body + size
    return f.end


def scan(f: Frame, at: int, end: int) -> int:
    """Take the frame at ``at`` apart if it is one of those that come all the time, all there, well-formed, and as most.

    Which are PUBLISH and CONSUMERESP, whose body is less than 4096 and topic less than 256 bytes, which have no tags,
    and of which a CONSUMERESP is one to a subscription; an ACK without a body; and what never has one. The id's time
    has eight bytes. Returns the offset behind it. 0 says nothing about the frame: ``decode_header`` and
    ``decode_fields`` will.
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
    """Take the body apart, if it is as ``scan`` would have it."""
    buf = f.buf
    at = f.at
    k = 0
    at[0] = i
    if f.head >> 4 == _CONSUMERESP:
        # An Int that is not negative.
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
        # A topic with U+0000 is well-formed, but not as most are.
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


def decode_frame(f: Frame, at: int, end: int) -> int:
    """Read the frame at ``at``, of which bytes up to ``end`` are there: the offset behind it, MORE, or a code."""
    stop = decode_header(f, at, end)
    if stop <= 0:
        return stop
    if stop > end:
        return MORE
    bad = decode_fields(f)
    return bad if bad else stop


def decode_fields(f: Frame) -> int:
    """Read the body, behind ``decode_header``: 0, or a code.

    E_FIELD: a field is missing, or reaches beyond the body; E_SIZE: there is something behind the last; E_UTF8; E_CODE;
    E_RX_QOS; E_FORM: a field is of the wrong type, or out of range.
    """
    return walk_fields(f, _row_to_read(f), f.end)


def _row_to_read(f: Frame) -> bytes:
    """The row of the frame's fields."""
    f.code = 0
    if f.head >> 4 != _ACK:
        return row_of(f.head, 0, 0)
    at = f.body
    if at == f.end:
        return NOTHING
    asked = f.asked()
    code = 1
    if asked == _ELECT and KINDS[f.buf[at] >> 4] != _INT:
        if f.buf[at] == 0:
            return AGREED
        code = -1
    elif read(f.value, at, f.end) > 0 and f.value.kind == _INT and number(f.value) == 0:
        code = 0
    return row_of(f.head, asked, code)


def walk_fields(f: Frame, row: bytes, end: int) -> int:
    """Read the fields of ``row``, which are all before ``end``: 0, or a code."""
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
    """Say where topic, tags and payload are; the topic is field ``k``."""
    at = f.at[k]
    f.tags_at = f.topic_end = f.at[k + 1]
    f.payload_at = f.at[k + 2]
    tag = f.buf[at]
    f.topic_at = at + 1 + (tag & 15 if tag >> 4 != _INT else 0)


def _field(f: Frame, at: int, end: int, kind: int) -> int:
    """Check the field at ``at``: the offset behind it, or a code."""
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
        return at if TEXTS >> (kind & 31) & 1 else _E_FORM
    if kind == _FIELD_LIST:
        return _texts(f, at, end) if found == _LIST else _E_FORM
    if _INTEGERS >> found & 1:
        return _number(f, at, kind) if NUMBERS >> (kind & 31) & 1 and not v.negative else _E_FORM
    if found == _NONE:
        return at if NONES >> (kind & 31) & 1 else _E_FORM
    return (
        at if (found == _BOOL and kind == _FIELD_BOOL) or (found == _DATETIME and kind == _TIME) else _E_FORM
    )


def _number(f: Frame, at: int, kind: int) -> int:
    """Whether the number that was read is in the field's range: the offset behind it, or a code."""
    v = f.value
    if TOPICS >> (kind & 31) & 1:
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
    """Check the texts of the list whose head was read: the offset behind the last, or a code."""
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
    """Check the address at ``at``: the offset behind it, or a code."""
    f.bad_at = at
    if at >= end:
        return E_FIELD
    n = f.buf[at] & 15 or 16
    version = f.buf[at] >> 4
    if not (version == 6 or (version == 4 and n <= 4)):
        return _E_FORM
    at += 3 + n
    return at if at <= end else E_FIELD


# Writing FMQ's frames (docs/protocols/fmq.md, section 3) into the caller's buffer.
#
# Each encoder returns the offset behind the frame, or a code of ``headwater.errors`` when the frame does not fit or an
# argument is wrong; then nothing was written that counts. ``limit`` is the offset the frame must not pass. ``ident`` is
# a message id; strings are bytes in UTF-8, whose content is the caller's affair. What is sent all the time allocates
# nothing: ``put_publish`` behind ``put_id``, ``encode_answer``.

#: The tags of a message that has none.
NO_TAGS = b"\xd0"


def length_size(n: int) -> int:
    """How many bytes a body length takes."""
    return 1 if n < 16 else 2 if n < 4096 else 3 if n < 1048576 else 4 if n < 268435456 else 5


def put_length(buf: bytearray, at: int, n: int) -> int:
    """Write a body length; returns the offset behind it."""
    i = at + 1
    rest = n >> 4
    while rest:
        buf[i] = rest & 255
        rest >>= 8
        i += 1
    buf[at] = i - at - 1 << 4 | n & 15
    return i


def put_head(buf: bytearray, at: int, head: int, ident: "Bytes") -> int:
    """Write the first byte and the id, where there is room for them; returns the offset behind them."""
    buf[at] = head
    at += 1
    end = at + len(ident)
    buf[at:end] = ident
    return end


def message_size(topic: "Bytes", payload: "Bytes", tags: "Bytes" = NO_TAGS) -> int:
    """How long the body of a PUBLISH is, whose topic is shorter than 16 MiB."""
    n = len(topic)
    if n:
        n += 1 if n < 256 else 2 if n < 65536 else 3
    return n + 1 + len(tags) + len(payload)


def put_message(buf: bytearray, at: int, topic: "Bytes", payload: "Bytes", tags: "Bytes") -> int:
    """Write PUBLISH's body behind its length, where there is room for them; returns the offset behind it.

    ``tags`` is an encoded list: see ``tag_list``.
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
    # From here on n is where the body ends.
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
    """Write bytes as they are; returns the offset behind them."""
    end = at + len(data)
    buf[at:end] = data
    return end


def encode_publish(
    buf: bytearray,
    at: int,
    limit: int,
    head: int,
    ident: "Bytes",
    topic: "Bytes",
    payload: "Bytes",
    tags: "Bytes" = NO_TAGS,
) -> int:
    """PUBLISH. ``head`` is the first byte: 0x30 and DUP, QoS, RETAIN."""
    n = message_size(topic, payload, tags)
    if at + 1 + len(ident) + length_size(n) + n > limit:
        return E_TOO_LARGE
    return put_message(buf, put_head(buf, at, head, ident), topic, payload, tags)


def tag_list(tags: "Sequence[Bytes]") -> bytes:
    """A message's tags as ``encode_publish`` takes them. It allocates: make it once."""
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
    """An ACK that says success, or PUBREC, PUBREL, PUBCOMP, to the message whose id is ``source[start:end]``."""
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
    """Any frame, with the fields that ``ROWS`` has for it; those that may be left out may be left out.

    A field is None, a bool, an integer, or a string in UTF-8; a list of strings; and for all others, and for a list as
    well, bytes as they are on the wire. E_ARGUMENT: a field that must be there is not, or is of no use in its place.
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
        # Where the body begins depends on how long it is: if it is long, it is written again.
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
    """The row of what is to be written."""
    if head >> 4 != _ACK:
        return row_of(head, 0, 0)
    if not values:
        return NOTHING
    code = values[0]
    if isinstance(code, int):
        return row_of(head, ident[0] >> 4, code)
    return AGREED if code is None else ROWS[_ELECT]


def _put_fields(buf: bytearray, at: int, limit: int, row: bytes, values: "Sequence[Field]") -> int:
    if at > limit:
        return E_TOO_LARGE
    for k in range(len(values)):
        at = _put_field(buf, at, limit, row[k + 1], values[k])
    return at


def _put_field(buf: bytearray, at: int, limit: int, kind: int, value: "Field") -> int:
    """Write a field behind another one: the offset behind it, or a code, also when ``at`` is one."""
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
    if TEXTS >> (kind & 31) & 1:
        return put_text(buf, at, limit, value)  # type: ignore[arg-type]
    return _put_raw(buf, at, value) if at + len(value) <= limit else E_TOO_LARGE  # type: ignore[arg-type]
