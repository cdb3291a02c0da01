"""What is a topic, and what a filter (docs/protocols/fmq.md, section 4): as in MQTT. Nothing here allocates."""

from headwater.errors import E_FILTER, E_TOPIC
from headwater.wire import check_utf8, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

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
