"""Encode and decode FMQ values in place (docs/protocols/fmq.md, section 1).

``read`` decodes one value into a reusable cursor; of a list, map or object its head only, so that it can be walked in
place::

    at = read(v, at, end)           # after the head of a list: its first value
    for _ in range(v.count): ...    # of a map, key, value, key, value: 2 * v.count

It returns the offset after it, or an error with ``bad_at`` set: E_FIELD (it ends beyond ``end``), E_UTF8, E_FORM.
Longer forms than necessary are accepted.

Each ``put_`` function writes the shortest form and returns the offset after it; or E_TOO_LARGE if it does not end
before ``limit``, or E_ARGUMENT. An error as ``at`` is returned, so that only the last result has to be checked::

    at = put_count(buf, 0, limit, MAP, 2)
    at = put_text(buf, at, limit, b"ok")
    at = put_bool(buf, at, limit, True)

Strings are bytes in UTF-8, which the caller checks. Only ``Value`` allocates, and integers that are not small. Floats,
decimals, and the check of a value with its content are in ``headwater.fmq.numbers``.
"""

from array import array

from headwater.errors import E_ARGUMENT, E_FIELD, E_TOO_LARGE, E_UTF8
from headwater.wire import check_utf8, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

# Copies of constants of ``headwater.fmq.spec``.
_NONE = const(0)
_STRING = const(1)
_BOOL = const(2)
_INT = const(3)
_BIGINT = const(6)
_DECIMAL = const(7)
_MAP = const(14)
_E_FORM = const(-58)


#: The kind of value by tag: the smaller tag of those with two forms.
KINDS = b"\x00\x01\x02\x03\x04\x03\x06\x07\x07\x09\x09\x0b\x0b\x0d\x0e\x0f"
# The form by tag.
_SHAPES = b"\x00\x01\x00\x02\x03\x02\x04\x02\x04\x02\x04\x02\x04\x05\x05\x05"
_ALONE = const(0)
_TEXT = const(1)
_SHAPE_INT = const(2)
_SHAPE_FLOAT = const(3)
_BIG = const(4)
# The size of a float by its low nibble; 255 is invalid.
_WIDTHS = b"\x00\x00\x02\xff\x04\xff\xff\xff\x08\xff\xff\xff\xff\xff\xff\x00"


class Value:
    """A value in a buffer, as offsets.

    - ``kind``: a tag of ``spec``. ``low``: the low nibble: a Bool's value; for a Float 0 NaN, 1 zero, 15 infinity, or
      its size.
    - ``buf[at:end]``: UTF-8 of a string; bytes of an integer, a duration (nanoseconds), a time (nanoseconds since
      1970), a decimal (unscaled) or a float (none for a special one). Integers are little-endian, a ``negative`` one is
      complemented; a ``big`` one is big-endian in two's complement. The byte at ``end`` has the sizes of a decimal's
      precision and scale.
    - ``count``: the number of values, or pairs of a map, that begin at ``at``.

    ``depth`` limits the nesting of lists, maps and objects in ``numbers.check``.
    """

    def __init__(self, buf: "Bytes", depth: int = 8):
        self.buf = buf
        self.kind = self.low = 0
        self.at = self.end = 0
        self.negative = self.big = False
        self.count = 0
        self.bad_at = 0
        #: For ``numbers.check``: the number of remaining values at each level above.
        self.left = array("I", [0] * depth)


def read(v: Value, at: int, end: int) -> int:
    """Read the value at ``at``, or the head of a list, map or object. Return the offset after it, or an error."""
    v.bad_at = at
    if at >= end:
        return E_FIELD
    tag = v.buf[at]
    v.low = tag & 15
    tag >>= 4
    at += 1
    v.kind = KINDS[tag]
    v.at = v.end = at
    v.count = 0
    shape = _SHAPES[tag]
    if shape == _TEXT:
        return _text(v, at, end)
    if shape == _SHAPE_INT:
        at = _integer(v, at, end)
    elif shape == _BIG:
        at = _big(v, at, end)
    elif shape == _ALONE:
        # The low nibble of None is 0, that of Bool one bit.
        return at if v.low <= tag >> 1 else _E_FORM
    elif shape == _SHAPE_FLOAT:
        if _WIDTHS[v.low] > 8:
            return _E_FORM
        v.end = at + _WIDTHS[v.low]
        return v.end if v.end <= end else E_FIELD
    else:
        return _head(v, at, end)
    if at > 0 and v.kind == _DECIMAL:
        return _precision(v, at, end)
    return at


def length(buf: "Bytes", at: int, n: int, end: int) -> int:
    """Return the little-endian number of ``n`` bytes at ``at``; E_FIELD if it exceeds the remaining bytes."""
    i = at + n
    left = end - i
    if left < 0:
        return E_FIELD
    value = 0
    while i > at:
        i -= 1
        value = value << 8 | buf[i]
        if value > left:
            return E_FIELD
    return value


def _text(v: Value, at: int, end: int) -> int:
    """Read a String: length, then UTF-8, which can have U+0000."""
    n = length(v.buf, at, v.low, end)
    if n < 0:
        return n
    v.at = at = at + v.low
    v.end = end = at + n
    while True:
        at = check_utf8(v.buf, at, end)
        if at < 0:
            return end
        if v.buf[at]:
            v.bad_at = at
            return E_UTF8
        at += 1


def _integer(v: Value, at: int, end: int) -> int:
    """Read the form of Int: up to eight bytes, not below -2**63."""
    at += v.low & 7 or 8
    v.end = at
    v.big = False
    v.negative = v.low > 7
    if at > end:
        return E_FIELD
    return _E_FORM if v.low == 8 and v.buf[at - 1] > 127 else at


def _big(v: Value, at: int, end: int) -> int:
    """Read the form of BigInt: length, then at least one byte; the tag has the sign."""
    v.big = True
    v.negative = v.low > 7
    n = length(v.buf, at, v.low & 7, end)
    if n < 0:
        return n
    at += v.low & 7
    v.at = at
    v.end = at + n
    return _E_FORM if n == 0 or (v.negative and v.buf[at] < 128) else v.end


def _precision(v: Value, at: int, end: int) -> int:
    """Read what follows the unscaled value of a Decimal: sizes of precision and scale, then both."""
    if at >= end:
        return E_FIELD
    n = v.buf[at]
    if n < 16:
        return _E_FORM
    at += 1 + (n >> 4) + (n & 15)
    return at if at <= end else E_FIELD


def _head(v: Value, at: int, end: int) -> int:
    """Read the count of a list, object or map; it cannot exceed the remaining bytes."""
    n = length(v.buf, at, v.low, end)
    v.at = at = at + v.low
    if n < 0 or (v.kind == _MAP and n * 2 > end - at):
        return E_FIELD
    v.count = n
    return at


def number(v: Value) -> int:
    """Return the integer at a cursor: Int, BigInt, nanoseconds of a Duration or DateTime, unscaled value of a Decimal.

    It allocates if it is not a small integer (from 2**30 on, on a 32-bit board).
    """
    value = 0
    if v.big:
        for i in range(v.at, v.end):
            value = value << 8 | v.buf[i]
        return value - (1 << 8 * (v.end - v.at)) if v.negative else value
    end = v.end
    while end > v.at:
        end -= 1
        value = value << 8 | v.buf[end]
    return ~value if v.negative else value


# -- writing -----------------------------------------------------------------------------------------------------------

_BYTES = const(8)


def put_none(buf: bytearray, at: int, limit: int) -> int:
    """Write None."""
    return _put_tag(buf, at, limit, _NONE << 4)


def put_bool(buf: bytearray, at: int, limit: int, value: object) -> int:
    """Write the truth of ``value`` as a Bool."""
    return _put_tag(buf, at, limit, _BOOL << 4 | (1 if value else 0))


def _put_tag(buf: bytearray, at: int, limit: int, tag: int) -> int:
    if at < 0:
        return at
    if at >= limit:
        return E_TOO_LARGE
    buf[at] = tag
    return at + 1


def put_count(buf: bytearray, at: int, limit: int, tag: int, count: int) -> int:
    """Write the head of a LIST or OBJECT of ``count`` values, a MAP of pairs, or a STRING of bytes."""
    if at < 0:
        return at
    if count < 0:
        return E_ARGUMENT
    i = at + 1
    while count and i < limit:
        buf[i] = count & 255
        count >>= 8
        i += 1
    if i > limit or count:
        return E_TOO_LARGE
    buf[at] = tag << 4 | i - at - 1
    return i


def put_text(buf: bytearray, at: int, limit: int, text: "Bytes") -> int:
    """Write a String."""
    n = len(text)
    if 0 < n < 256 and 0 <= at < limit - n - 1:
        buf[at] = _STRING << 4 | 1
        buf[at + 1] = n
        at += 2
    else:
        at = put_count(buf, at, limit, _STRING, n)
        if at < 0:
            return at
    n += at
    if n > limit:
        return E_TOO_LARGE
    buf[at:n] = text
    return n


def put_int(buf: bytearray, at: int, limit: int, value: int, tag: int = _INT) -> int:
    """Write an Int or BigInt, or with ``tag`` the nanoseconds of a DURATION or DATETIME."""
    if at < 0:
        return at
    rest = value if value >= 0 else ~value
    i = at + 1
    while True:
        if i >= limit:
            return E_TOO_LARGE
        buf[i] = rest & 255
        rest >>= 8
        i += 1
        if not rest:
            break
        if i - at > _BYTES:
            return _put_big(buf, at, limit, value, tag)
    tag = tag << 4 | i - at - 1 & 7
    if value < 0:
        tag |= 8
        if tag & 7 == 0 and buf[i - 1] > 127:
            return _put_big(buf, at, limit, value, tag >> 4)
    buf[at] = tag
    return i


def _put_big(buf: bytearray, at: int, limit: int, value: int, tag: int) -> int:
    """Write an integer beyond the range of Int. It allocates."""
    tag = _BIGINT if tag == _INT else tag + 1
    n = _BYTES
    if value < 0:
        tag = tag << 4 | 8
        while value < -1 << 8 * n - 1:
            n += 1
        value += 1 << 8 * n
    else:
        tag <<= 4
        while value >> 8 * n:
            n += 1
    end = put_count(buf, at, limit, 0, n)
    if end < 0:
        return end
    buf[at] |= tag
    if end + n > limit:
        return E_TOO_LARGE
    for i in range(end + n - 1, end - 1, -1):
        buf[i] = value & 255
        value >>= 8
    return end + n
