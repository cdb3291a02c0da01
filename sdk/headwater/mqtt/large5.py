"""A PUBLISH of MQTT 5.0 that is larger than the receive buffer: as in ``large``, with its properties."""

from headwater.errors import E_FIELD, E_LENGTH
from headwater.mqtt import decode5
from headwater.mqtt.large import LargeMessage
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode5 import Packet5

# The bytes of a variable byte integer.
_LONGEST = const(4)


class LargeMessage5(LargeMessage):
    """As ``LargeMessage``; a message whose properties do not fit is skipped as well."""

    def __init__(self) -> None:
        super().__init__()
        #: Takes the packet apart that is there up to its payload; the session puts its own here.
        self.read: Callable[[Packet5], int] = decode5.publish

    def begin(self, p: "Packet5", at: int, end: int, capacity: int) -> int:  # type: ignore[override]
        """As of ``LargeMessage``."""
        body = p.body
        if end - body < 2:
            return 0
        need = body + 2 + (p.buf[body] << 8 | p.buf[body + 1])
        self.qos = p.qos()
        if self.qos:
            need += 2
        if need >= p.end:
            p.bad_at = body
            return E_FIELD
        if need + _LONGEST - at > capacity:
            return self._unshown(p)
        size = _size(p, need, min(end, p.end))
        if size < 0:
            # Of the length itself a part is missing: in the packet, or here.
            return size if size == E_LENGTH or end >= p.end else 0
        need += size
        if need > p.end:
            p.bad_at = body
            return E_FIELD
        if need - at > capacity:
            return self._unshown(p)
        if need > end:
            return 0
        bad = self.read(p)
        if bad:
            return bad
        self.packet_id = p.packet_id
        self.left = p.end - p.payload_at
        return p.payload_at


def _size(p: "Packet5", at: int, end: int) -> int:
    """How many bytes the block at ``at`` has with its length; E_FIELD when that is not all there, E_LENGTH."""
    size = shift = 0
    i = at
    while i < end:
        size |= (p.buf[i] & 127) << shift
        i += 1
        if p.buf[i - 1] < 128:
            return i - at + size
        shift += 7
        if i - at == _LONGEST:
            p.bad_at = at
            return E_LENGTH
    p.bad_at = at
    return E_FIELD
