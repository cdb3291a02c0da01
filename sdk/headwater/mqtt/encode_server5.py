"""The packets only a server writes (MQTT 5.0); as in ``encode5``, in the caller's buffer."""

from headwater.errors import E_TOO_LARGE
from headwater.mqtt import spec
from headwater.mqtt.spec5 import NO_PROPERTIES
from headwater.wire import put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


def connack(
    buf: bytearray,
    at: int,
    limit: int,
    session_present: bool,
    code: int,
    properties: "Bytes" = NO_PROPERTIES,
) -> int:
    """CONNACK (3.2). ``session_present`` only goes with code 0 (3.2.2.1.1); it is left out otherwise."""
    n = 2 + len(properties)
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = spec.CONNACK << 4
    i = put_varint(buf, at + 1, n)
    buf[i] = 1 if session_present and code == 0 else 0
    buf[i + 1] = code
    buf[i + 2 : i + n] = properties
    return i + n


def suback(
    buf: bytearray, at: int, limit: int, packet_id: int, codes: "Bytes", properties: "Bytes" = NO_PROPERTIES
) -> int:
    """SUBACK (3.9): one reason code per filter, in the order of the SUBSCRIBE."""
    return _codes(buf, at, limit, spec.SUBACK << 4, packet_id, codes, properties)


def unsuback(
    buf: bytearray, at: int, limit: int, packet_id: int, codes: "Bytes", properties: "Bytes" = NO_PROPERTIES
) -> int:
    """UNSUBACK (3.11): one reason code per filter, in the order of the UNSUBSCRIBE."""
    return _codes(buf, at, limit, spec.UNSUBACK << 4, packet_id, codes, properties)


def _codes(
    buf: bytearray, at: int, limit: int, head: int, packet_id: int, codes: "Bytes", properties: "Bytes"
) -> int:
    n = 2 + len(properties) + len(codes)
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = head
    i = put_varint(buf, at + 1, n)
    end = i + n
    buf[i] = packet_id >> 8
    buf[i + 1] = packet_id & 255
    n = end - len(codes)
    buf[i + 2 : n] = properties
    buf[n:end] = codes
    return end
