"""Reading FMQ's values (docs/protocols/fmq.md, section 1) at an offset of a buffer, into one reusable cursor.

``read`` takes one value apart; of a list, a map or an object its head only, so that it can be walked in place::

    at = read(v, at, end)           # behind the head, if it is a list: at its first value
    for _ in range(v.count): ...    # a map's key, value, key, value: 2 * v.count

``check`` takes one value with all that is in it, and is how one is stepped over. Both return the offset behind what
they took, or a code, with ``bad_at`` set: E_FIELD (it ends beyond ``end``), E_UTF8, E_FORM, E_DEPTH. Forms longer than
need be are read. Nothing here allocates, but ``Value``, and ``number`` for what is no small integer.
"""

from array import array

from headwater.errors import E_FIELD, E_UTF8
from headwater.fmq.spec import DECIMAL, E_DEPTH, E_FORM, LIST, MAP
from headwater.wire import check_utf8, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

#: By tag: the kind of value, which is the smaller of the tags of those that are written in two ways.
KINDS = b"\x00\x01\x02\x03\x04\x03\x06\x07\x07\x09\x09\x0b\x0b\x0d\x0e\x0f"
# By tag: how it is written.
_SHAPES = b"\x00\x01\x00\x02\x03\x02\x04\x02\x04\x02\x04\x02\x04\x05\x05\x05"
_ALONE = const(0)
_TEXT = const(1)
_INT = const(2)
_FLOAT = const(3)
_BIG = const(4)
# By a float's low nibble: how many bytes it has. 255: there is none such.
_WIDTHS = b"\x00\x00\x02\xff\x04\xff\xff\xff\x08\xff\xff\xff\xff\xff\xff\x00"


class Value:
    """A value in a buffer, as offsets.

    ``kind`` is one of ``spec``'s tags. What it is made of is ``buf[at:end]``: a string's UTF-8; an integer's,
    duration's (nanoseconds), time's (nanoseconds since 1970) or decimal's (unscaled) bytes; a float's, none for one
    that is its low nibble. ``low`` is that nibble: a Bool's value; of a Float 0 NaN, 1 zero, 15 infinity, or how many
    bytes. An integer's bytes are little-endian, those of a ``negative`` one complemented; those of a ``big`` one
    big-endian, in two's complement. A decimal's precision and scale are described by the byte at ``end``. ``count``:
    how many values, or a map's pairs, begin at ``at``.

    ``depth`` is how deep ``check`` goes: that many lists, maps and objects in one another.
    """

    def __init__(self, buf: "Bytes", depth: int = 8):
        self.buf = buf
        self.kind = self.low = 0
        self.at = self.end = 0
        self.negative = self.big = False
        self.count = 0
        self.bad_at = 0
        # How many values are left at each level above.
        self._left = array("I", [0] * depth)


def read(v: Value, at: int, end: int) -> int:
    """Read the value at ``at``, or the head of a list, a map or an object: the offset behind it, or a code."""
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
    if shape == _INT:
        at = _integer(v, at, end)
    elif shape == _BIG:
        at = _big(v, at, end)
    elif shape == _ALONE:
        # None has no low nibble, Bool one bit of it.
        return at if v.low <= tag >> 1 else E_FORM
    elif shape == _FLOAT:
        if _WIDTHS[v.low] > 8:
            return E_FORM
        v.end = at + _WIDTHS[v.low]
        return v.end if v.end <= end else E_FIELD
    else:
        return _head(v, at, end)
    if at > 0 and v.kind == DECIMAL:
        return _precision(v, at, end)
    return at


def length(buf: "Bytes", at: int, n: int, end: int) -> int:
    """The little-endian number in the ``n`` bytes at ``at``; E_FIELD if it is more than the bytes left behind them."""
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
    """String: how many bytes, then UTF-8, in which U+0000 may stand."""
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
    """As Int: up to eight bytes; a negative one is no less than -2**63."""
    at += v.low & 7 or 8
    v.end = at
    v.big = False
    v.negative = v.low > 7
    if at > end:
        return E_FIELD
    return E_FORM if v.low == 8 and v.buf[at - 1] > 127 else at


def _big(v: Value, at: int, end: int) -> int:
    """As BigInt: how many bytes, then those, of which there is one, and whose sign is the tag's."""
    v.big = True
    v.negative = v.low > 7
    n = length(v.buf, at, v.low & 7, end)
    if n < 0:
        return n
    at += v.low & 7
    v.at = at
    v.end = at + n
    return E_FORM if n == 0 or (v.negative and v.buf[at] < 128) else v.end


def _precision(v: Value, at: int, end: int) -> int:
    """What a decimal has behind its unscaled value: how many bytes of precision and of scale, and those."""
    if at >= end:
        return E_FIELD
    n = v.buf[at]
    if n < 16:
        return E_FORM
    at += 1 + (n >> 4) + (n & 15)
    return at if at <= end else E_FIELD


def _head(v: Value, at: int, end: int) -> int:
    """How many values a list or an object has, or pairs a map: no more than there are bytes for."""
    n = length(v.buf, at, v.low, end)
    v.at = at = at + v.low
    if n < 0 or (v.kind == MAP and n * 2 > end - at):
        return E_FIELD
    v.count = n
    return at


def check(v: Value, at: int, end: int) -> int:
    """Check the value at ``at`` and all that is in it: the offset behind it, or a code. ``v`` is then its head."""
    start = at
    at = read(v, at, end)
    if v.kind < LIST or at < 0:
        return at
    deep = 0
    left = 1
    while True:
        left -= 1
        if v.kind >= LIST:
            if deep == len(v._left):
                return E_DEPTH
            v._left[deep] = left
            deep += 1
            left = v.count * 2 if v.kind == MAP else v.count
        while left == 0:
            deep -= 1
            if deep == 0:
                read(v, start, end)
                return at
            left = v._left[deep]
        at = read(v, at, end)
        if at < 0:
            return at


def number(v: Value) -> int:
    """The integer at a cursor: an Int, a BigInt, the nanoseconds of a Duration or a DateTime, or a Decimal's unscaled
    value. It allocates when it is no small integer (from 2**30 on, on a 32-bit board)."""
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
