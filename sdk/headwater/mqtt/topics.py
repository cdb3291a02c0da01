"""Topic names and topic filters (MQTT 3.1.1, section 4.7): what is well-formed, and what matches what.

All functions read at offsets and allocate nothing.
"""

from headwater.wire import check_utf8, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_PLUS = const(43)
_SLASH = const(47)
_HASH = const(35)
_DOLLAR = const(36)

OK = const(0)
BAD_UTF8 = const(1)
BAD_TOPIC = const(2)

# By byte: 1 where a topic name needs a second look (U+0000, '#', '+', anything beyond ASCII).
_LOOK = bytearray(256)
_LOOK[0] = _LOOK[_HASH] = _LOOK[_PLUS] = 1
for _c in range(128, 256):
    _LOOK[_c] = 1


def check_name(buf: "Bytes", at: int, end: int) -> int:
    """Whether ``buf[at:end]`` is a topic name: OK, BAD_UTF8 (1.5.3) or BAD_TOPIC (empty, or a wildcard:
    3.3.2.1).

    A port may hand a session its own faster function with the same answers.
    """
    if at == end:
        return BAD_TOPIC
    look = _LOOK
    for i in range(at, end):
        if look[buf[i]]:
            break
    else:
        return OK
    if check_utf8(buf, at, end) >= 0:
        return BAD_UTF8
    for i in range(at, end):
        if buf[i] == _HASH or buf[i] == _PLUS:
            return BAD_TOPIC
    return OK


def check_filter(buf: "Bytes", at: int, end: int) -> int:
    """Whether ``buf[at:end]`` is a topic filter.

    OK, BAD_UTF8 or BAD_TOPIC (4.7.1: a wildcard fills its level, # is last).
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
    return OK


def matches(pattern: "Bytes", buf: "Bytes", at: int, end: int) -> bool:
    """Whether the topic name ``buf[at:end]`` matches the well-formed filter ``pattern`` (4.7.2, 4.7.3).

    A filter that begins with a wildcard does not match a name that begins with ``$``.
    """
    n = len(pattern)
    if at < end and buf[at] == _DOLLAR and (pattern[0] == _PLUS or pattern[0] == _HASH):
        return False
    p = 0
    while p < n:
        c = pattern[p]
        if c == _HASH:
            return True
        if c == _PLUS:
            while at < end and buf[at] != _SLASH:
                at += 1
            p += 1
            continue
        if at == end:
            # "sport/#" matches "sport", its parent level (4.7.1.2).
            return c == _SLASH and p + 2 == n and pattern[p + 1] == _HASH
        if c != buf[at]:
            return False
        p += 1
        at += 1
    return at == end
