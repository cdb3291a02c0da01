"""A PUBLISH of MQTT 5.0 that is larger than the receive buffer: as in ``large``, with its properties.

A message whose properties do not fit is skipped as well.
"""

from headwater.errors import E_FIELD, E_LENGTH
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.properties import Packet5

# The bytes of a variable byte integer.
_LONGEST = const(4)


def behind_properties(p: "Packet5", at: int, end: int, fits: int) -> int:
    """Where the payload begins of the packet whose properties are at ``at``; 0 when their length is not all here yet;
    E_FIELD, E_LENGTH. Where the length might be behind the offset ``fits``, any offset behind that."""
    p.bad_at = p.body
    if at >= p.end:
        return E_FIELD
    if at + _LONGEST > fits:
        return at + _LONGEST
    size = shift = 0
    i = at
    while shift < 7 * _LONGEST:
        if i == p.end:
            p.bad_at = at
            return E_FIELD
        if i >= end:
            return 0
        size |= (p.buf[i] & 127) << shift
        i += 1
        if p.buf[i - 1] < 128:
            return i + size if i + size <= p.end else E_FIELD
        shift += 7
    p.bad_at = at
    return E_LENGTH
