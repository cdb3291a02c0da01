"""Match topic names against topic filters (MQTT 3.1.1, 4.7), for programs that route messages.

``headwater.mqtt.packets`` checks names and filters.
"""

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_PLUS = const(43)
_SLASH = const(47)
_HASH = const(35)
_DOLLAR = const(36)


def matches(pattern: "Bytes", buf: "Bytes", at: int, end: int) -> bool:
    """Return whether the topic name ``buf[at:end]`` matches the well-formed filter ``pattern`` (4.7.2, 4.7.3).

    A filter that begins with a wildcard does not match a name that begins with ``$``. Allocates nothing.
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
