"""Shared subscriptions (MQTT 5.0, section 4.8.2)."""

from headwater.mqtt.topics import BAD_TOPIC, check_filter
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_SHARE = b"$share/"
_SLASH = const(47)
_HASH = const(35)
_PLUS = const(43)


def unshared(buf: "Bytes", at: int, end: int) -> int:
    """Where the topic filter begins behind ``$share/ShareName/`` in the well-formed filter ``buf[at:end]``.

    ``at`` when it is not a shared subscription's; -1 when the share name or the filter is missing, or the name has a
    wildcard.
    """
    n = len(_SHARE)
    if end - at < n:
        return at
    for i in range(n):
        if buf[at + i] != _SHARE[i]:
            return at
    start = i = at + n
    while i < end and buf[i] != _SLASH:
        # In a well-formed filter a wildcard fills its level: only the first byte can be one.
        i += 1
    if i == start or i + 1 >= end or buf[start] == _HASH or buf[start] == _PLUS:
        return -1
    return i + 1


def check_filter5(buf: "Bytes", at: int, end: int) -> int:
    """As ``check_filter``, also for shared subscriptions."""
    bad = check_filter(buf, at, end)
    return bad or (BAD_TOPIC if unshared(buf, at, end) < 0 else 0)
