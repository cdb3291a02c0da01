"""Encode and decode rare FMQ values.

The functions follow the conventions of ``headwater.fmq.values``. Reading a float creates a float object; the parts of a
decimal are integers, which allocate if they are not small. Nothing else here allocates.
"""

from struct import pack_into, unpack_from

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.fmq.spec import DECIMAL, E_DEPTH, LIST, MAP
from headwater.fmq.values import Value, put_int, read
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_NAN = const(0x40)
_ZERO = const(0x41)
_INFINITY = const(0x4F)
_HALF = const(0x42)
_SINGLE = const(0x44)
_DOUBLE = const(0x48)


def put_float(buf: bytearray, at: int, limit: int, value: float) -> int:
    """Write a Float in the narrowest width with the same value. Allocates if less than nine bytes are left."""
    if at < 0:
        return at
    if at + 9 > limit:
        return _put_tight(buf, at, limit, value)
    pack_into("<d", buf, at + 1, value)
    tag = _NAN if value != value else _tag(buf, at + 1)
    if tag == _HALF:
        _narrow(buf, at + 1, 2, 10, 15)
    elif tag == _SINGLE:
        _narrow(buf, at + 1, 4, 23, 127)
    buf[at] = tag
    return at + 1 + (tag & 15 if tag & 14 and tag != _INFINITY else 0)


def _put_tight(buf: bytearray, at: int, limit: int, value: float) -> int:
    """Write a float where there is no room for its widest form."""
    whole = bytearray(9)
    n = put_float(whole, 0, 9, value)
    if at + n > limit:
        return E_TOO_LARGE
    for i in range(n):
        buf[at + i] = whole[i]
    return at + n


def _tag(buf: bytearray, at: int) -> int:
    """Return the tag of the double at ``at``, which is not NaN."""
    exponent = (buf[at + 7] & 127) << 4 | buf[at + 6] >> 4
    if exponent == 2047:
        return _HALF if buf[at + 7] > 127 else _INFINITY
    rest = buf[at] | buf[at + 1] | buf[at + 2] | buf[at + 3] & 31
    fraction = _fraction(buf, at)
    if exponent == 0 and not rest and not fraction:
        return _HALF if buf[at + 7] > 127 else _ZERO
    exponent -= 1023
    if not rest and -149 <= exponent <= 127:
        if -24 <= exponent <= 15 and not fraction & (1 << 13 + max(0, -14 - exponent)) - 1:
            return _HALF
        if exponent >= -126 or not fraction & (1 << -126 - exponent) - 1:
            return _SINGLE
    return _DOUBLE


def _fraction(buf: "Bytes", at: int) -> int:
    """Return the upper 23 bits of a double's fraction."""
    return (buf[at + 6] & 15) << 19 | buf[at + 5] << 11 | buf[at + 4] << 3 | buf[at + 3] >> 5


def _narrow(buf: bytearray, at: int, width: int, bits: int, bias: int) -> int:
    """Convert the double at ``at`` to a float of ``width`` bytes with ``bits`` of fraction and the same value."""
    sign = buf[at + 7] & 128
    exponent = ((buf[at + 7] & 127) << 4 | buf[at + 6] >> 4) - 1023 + bias
    fraction = _fraction(buf, at) >> 23 - bits
    if exponent > 1024:
        # Infinity.
        exponent = 2 * bias + 1
    elif exponent < -bias:
        # Zero.
        exponent = 0
    elif exponent <= 0:
        # Subnormal: the implicit bit becomes explicit.
        fraction = (fraction | 1 << bits) >> 1 - exponent
        exponent = 0
    # The upper 16 bits in one, then the remaining bytes, so that all integers are small.
    bits -= width * 8 - 16
    top = exponent << bits | fraction >> width * 8 - 16
    buf[at + width - 1] = sign | top >> 8
    buf[at + width - 2] = top & 255
    if width == 4:
        buf[at] = fraction & 255
        buf[at + 1] = fraction >> 8 & 255
    return width


def float_of(v: Value) -> float:
    """Return the Float at a cursor, rounded on boards with single-precision floats."""
    if v.at < v.end:
        n = v.end - v.at
        if n == 2:
            return _half(v.buf[v.at] | v.buf[v.at + 1] << 8)
        return unpack_from("<f" if n == 4 else "<d", v.buf, v.at)[0]  # type: ignore[no-any-return]
    return float("nan") if v.low == 0 else 0.0 if v.low == 1 else float("inf")


def _half(word: int) -> float:
    exponent = word >> 10 & 31
    fraction = word & 1023
    if exponent == 31:
        value = float("nan") if fraction else float("inf")
    elif exponent:
        value = (1024 + fraction) * 2.0 ** (exponent - 25)
    else:
        value = fraction * 2.0**-24
    return -value if word >> 15 else value


def put_decimal(buf: bytearray, at: int, limit: int, unscaled: int, scale: int) -> int:
    """Write a Decimal: ``unscaled`` * 10 ** -``scale``; ``scale`` is not negative."""
    if scale < 0:
        return E_ARGUMENT
    at = put_int(buf, at, limit, unscaled, DECIMAL)
    if at < 0:
        return at
    digits = 1
    rest = unscaled if unscaled >= 0 else -unscaled
    while rest > 9:
        rest //= 10
        digits += 1
    i = _put_little(buf, at + 1, limit, digits)
    end = _put_little(buf, i, limit, scale)
    if end > 0:
        buf[at] = i - at - 1 << 4 | end - i
    return end


def _put_little(buf: bytearray, at: int, limit: int, value: int) -> int:
    """Write a number in as few little-endian bytes as possible."""
    while value and 0 < at < limit:
        buf[at] = value & 255
        value >>= 8
        at += 1
    return E_TOO_LARGE if value or at > limit else at


def _little(buf: "Bytes", at: int, n: int) -> int:
    value = 0
    for i in range(at + n - 1, at - 1, -1):
        value = value << 8 | buf[i]
    return value


def precision(v: Value) -> int:
    """Return the precision of a Decimal: the digits of its unscaled value."""
    return _little(v.buf, v.end + 1, v.buf[v.end] >> 4)


def scale(v: Value) -> int:
    """Return the scale of a Decimal: its digits after the decimal point."""
    n = v.buf[v.end]
    return _little(v.buf, v.end + 1 + (n >> 4), n & 15)


def put_bytes(
    buf: bytearray, at: int, limit: int, tag: int, data: "Bytes", start: int, end: int, negative: bool = False
) -> int:
    """Write an INT, DURATION or DATETIME from the little-endian bytes ``data[start:end]``, complemented if negative.

    ``put_bytes(buf, at, limit, v.kind, v.buf, v.at, v.end, v.negative)`` copies a value that ``read`` has read and that
    is not ``big``. E_ARGUMENT: it is beyond the range of Int.
    """
    while end - start > 1 and data[end - 1] == 0:
        end -= 1
    n = end - start
    if at < 0:
        return at
    if not 0 < n <= 8 or (negative and n == 8 and data[end - 1] > 127):
        return E_ARGUMENT
    if at + 1 + n > limit:
        return E_TOO_LARGE
    buf[at] = tag << 4 | (8 if negative else 0) | n & 7
    while start < end:
        at += 1
        buf[at] = data[start]
        start += 1
    return at + 1


def check(v: Value, at: int, end: int) -> int:
    """Check the value at ``at`` and its content. Return the offset after it, or an error. ``v`` is then its head."""
    start = at
    at = read(v, at, end)
    if v.kind < LIST or at < 0:
        return at
    deep = 0
    left = 1
    while True:
        left -= 1
        if v.kind >= LIST:
            if deep == len(v.left):
                return E_DEPTH
            v.left[deep] = left
            deep += 1
            left = v.count * 2 if v.kind == MAP else v.count
        while left == 0:
            deep -= 1
            if deep == 0:
                read(v, start, end)
                return at
            left = v.left[deep]
        at = read(v, at, end)
        if at < 0:
            return at
