"""The packets only a server writes (MQTT 3.1.1).

CONNACK and SUBACK; as in ``encode``, in the caller's buffer.
"""

from headwater.errors import E_TOO_LARGE
from headwater.mqtt import spec
from headwater.wire import put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


def connack(buf: bytearray, at: int, limit: int, session_present: bool, code: int) -> int:
    """CONNACK (3.2). ``session_present`` only goes with code 0 (3.2.2.2); it is left out otherwise."""
    if at + 4 > limit:
        return E_TOO_LARGE
    buf[at] = spec.CONNACK << 4
    buf[at + 1] = 2
    buf[at + 2] = 1 if session_present and code == 0 else 0
    buf[at + 3] = code
    return at + 4


def suback(buf: bytearray, at: int, limit: int, packet_id: int, codes: "Bytes") -> int:
    """SUBACK (3.9): one code per filter, in the order of the SUBSCRIBE: 0, 1, 2 or 0x80."""
    n = 2 + len(codes)
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = spec.SUBACK << 4
    i = put_varint(buf, at + 1, n)
    buf[i] = packet_id >> 8
    buf[i + 1] = packet_id & 255
    i += 2
    buf[i : i + len(codes)] = codes
    return i + len(codes)
