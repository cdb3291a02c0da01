"""Writing FMQ's values (docs/protocols/fmq.md, section 1) at an offset of the caller's buffer, in their shortest form.

Each ``put_`` returns the offset behind what it wrote, or a code of ``headwater.errors``: E_TOO_LARGE when it does not
fit before ``limit``, E_ARGUMENT. Given a code for ``at`` they return it, so that only the last answer need be looked
at::

    at = put_count(buf, 0, limit, MAP, 2)
    at = put_text(buf, at, limit, b"ok")
    at = put_bool(buf, at, limit, True)

Strings are bytes in UTF-8, whose content is the caller's affair. Nothing allocates, but integers that are none of the
small ones. Numbers that are not integers are in ``headwater.fmq.numbers``.
"""

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.fmq.spec import BIGINT, BOOL, INT, NONE, STRING
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_BYTES = const(8)


def put_none(buf: bytearray, at: int, limit: int) -> int:
    """None."""
    return _put_tag(buf, at, limit, NONE << 4)


def put_bool(buf: bytearray, at: int, limit: int, value: object) -> int:
    """Bool: whether ``value`` is true."""
    return _put_tag(buf, at, limit, BOOL << 4 | (1 if value else 0))


def _put_tag(buf: bytearray, at: int, limit: int, tag: int) -> int:
    if at < 0:
        return at
    if at >= limit:
        return E_TOO_LARGE
    buf[at] = tag
    return at + 1


def put_count(buf: bytearray, at: int, limit: int, tag: int, count: int) -> int:
    """The head of a LIST or OBJECT of ``count`` values, of a MAP of as many pairs, or of a STRING of as many bytes."""
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
    """String."""
    n = len(text)
    if 0 < n < 256 and 0 <= at < limit - n - 1:
        buf[at] = STRING << 4 | 1
        buf[at + 1] = n
        at += 2
    else:
        at = put_count(buf, at, limit, STRING, n)
        if at < 0:
            return at
    n += at
    if n > limit:
        return E_TOO_LARGE
    buf[at:n] = text
    return n


def put_int(buf: bytearray, at: int, limit: int, value: int, tag: int = INT) -> int:
    """An integer of any size: Int or BigInt; or as ``tag`` says a DURATION's or DATETIME's nanoseconds."""
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
    """An integer outside of Int's range: it allocates."""
    tag = BIGINT if tag == INT else tag + 1
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
