"""Writing FMQ's frames (docs/protocols/fmq.md, section 3) into the caller's buffer.

Each encoder returns the offset behind the frame, or a code of ``headwater.errors`` when the frame does not fit or an
argument is wrong; then nothing was written that counts. ``limit`` is the offset the frame must not pass. ``ident`` is a
message id; strings are bytes in UTF-8, whose content is the caller's affair. What is sent all the time allocates
nothing: ``put_publish`` behind ``put_id``, ``answer``.
"""

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.fmq.fields import AGREED, NOTHING, ROWS, TEXTS, row_of
from headwater.fmq.spec import ACK, ELECT, LIST, NO_BODY
from headwater.fmq.write import put_bool, put_count, put_int, put_none, put_text
from headwater.wire import NOT_BYTES, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.types import Bytes

    #: A field: see ``frame``.
    Field = None | bool | int | Bytes | Sequence[Bytes]

#: The tags of a message that has none.
NO_TAGS = b"\xd0"
_BOOL = const(66)


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


def publish(
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
    """A message's tags as ``publish`` takes them. It allocates: make it once."""
    size = 9
    for tag in tags:
        size += len(tag) + 9
    buf = bytearray(size)
    return bytes(buf[: _put_list(buf, 0, size, tags)])


def _put_list(buf: bytearray, at: int, limit: int, texts: "Sequence[Bytes]") -> int:
    at = put_count(buf, at, limit, LIST, len(texts))
    for text in texts:
        at = put_text(buf, at, limit, text)
    return at


def answer(buf: bytearray, at: int, limit: int, kind: int, source: "Bytes", start: int, end: int) -> int:
    """An ACK that says success, or PUBREC, PUBREL, PUBCOMP, to the message whose id is ``source[start:end]``."""
    n = at + 1 + end - start
    if n >= limit and (n > limit or kind == ACK):
        return E_TOO_LARGE
    buf[at] = kind << 4
    while start < end:
        at += 1
        buf[at] = source[start]
        start += 1
    if kind == ACK:
        buf[n] = 0
        n += 1
    return n


def frame(
    buf: bytearray, at: int, limit: int, head: int, ident: "Bytes", values: "Sequence[Field]" = ()
) -> int:
    """Any frame, with the fields that ``fields.ROWS`` has for it; those that may be left out may be left out.

    A field is None, a bool, an integer, or a string in UTF-8; a list of strings; and for all others, and for a list as
    well, bytes as they are on the wire. E_ARGUMENT: a field that must be there is not, or is of no use in its place.
    """
    row = _row(head, ident, values)
    i = at + 1 + len(ident)
    if not row[0] <= len(values) < len(row):
        return E_ARGUMENT
    if i > limit:
        return E_TOO_LARGE
    if NO_BODY >> (head >> 4) & 1:
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


def _row(head: int, ident: "Bytes", values: "Sequence[Field]") -> bytes:
    """The row of what is to be written."""
    if head >> 4 != ACK:
        return row_of(head, 0, 0)
    if not values:
        return NOTHING
    code = values[0]
    if isinstance(code, int):
        return row_of(head, ident[0] >> 4, code)
    return AGREED if code is None else ROWS[ELECT]


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
    if kind == _BOOL:
        return put_bool(buf, at, limit, value)
    if isinstance(value, int):
        return put_int(buf, at, limit, value) if value >= 0 else E_ARGUMENT
    if isinstance(value, (tuple, list)):
        return _put_list(buf, at, limit, value)
    if TEXTS >> (kind & 31) & 1:
        return put_text(buf, at, limit, value)  # type: ignore[arg-type]
    return _put_raw(buf, at, value) if at + len(value) <= limit else E_TOO_LARGE  # type: ignore[arg-type]
