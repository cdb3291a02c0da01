"""The packets a client writes (MQTT 3.1.1, section 3), built in the caller's buffer, at an offset.

Each function returns the offset behind the packet, or a code of ``headwater.errors`` when the packet does not
fit or an argument is wrong; then nothing was written that counts. ``limit`` is the offset the packet must not
pass. Strings are bytes in UTF-8, so that nothing is allocated; their content is the caller's affair except
where a function says so.
"""

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.mqtt import spec
from headwater.wire import check_utf8, const, put_block, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_MAX_REMAINING = const(268435455)
#: The first byte of each acknowledgement, by packet type.
HEADS = bytes([kind << 4 | spec.FLAGS[kind] for kind in range(16)])


def publish(
    buf: bytearray, at: int, limit: int, topic: "Bytes", payload: "Bytes", head: int, packet_id: int
) -> int:
    """PUBLISH (3.3). ``head`` is the first byte (0x30 and DUP, QoS, RETAIN); ``packet_id`` 0 for QoS 0.

    The topic must be a topic name (``topics.check_name``): that is not looked at here.
    """
    n = publish_size(topic, payload, packet_id)
    if n < 0 or at + n > limit:
        return E_TOO_LARGE
    return put_publish(buf, at, topic, payload, head | packet_id << 8)


def put_publish(buf: bytearray, at: int, topic: "Bytes", payload: "Bytes", word: int) -> int:
    """``publish`` where there is room for it. ``word`` is the first byte and, above it, the packet id."""
    t = len(topic)
    n = t + len(payload) + 2
    if word > 255:
        n += 2
    buf[at] = word & 255
    if n < 128:
        buf[at + 1] = n
        at += 2
    else:
        at = put_varint(buf, at + 1, n)
    # From here on n is where the packet ends, and t where the topic does.
    n += at
    buf[at] = t >> 8
    buf[at + 1] = t & 255
    at += 2
    t += at
    buf[at:t] = topic
    if word > 255:
        buf[t] = word >> 16
        buf[t + 1] = word >> 8 & 255
        t += 2
    buf[t:n] = payload
    return n


def publish_size(topic: "Bytes", payload: "Bytes", qos: int) -> int:
    """How many bytes PUBLISH takes on the wire; E_TOO_LARGE when MQTT has no length for it."""
    n = len(topic) + len(payload) + 2
    if qos:
        n += 2
    if n < 128:
        return n + 2
    return n + 1 + varint_size(n) if n <= _MAX_REMAINING else E_TOO_LARGE


def acknowledge(buf: bytearray, at: int, limit: int, packet_type: int, packet_id: int) -> int:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK (3.4 to 3.7, 3.11): a packet id alone."""
    if at + 4 > limit:
        return E_TOO_LARGE
    buf[at] = HEADS[packet_type]
    buf[at + 1] = 2
    buf[at + 2] = packet_id >> 8
    buf[at + 3] = packet_id & 255
    return at + 4


def bare(buf: bytearray, at: int, limit: int, packet_type: int) -> int:
    """PINGREQ, PINGRESP or DISCONNECT (3.12 to 3.14): two bytes."""
    if at + 2 > limit:
        return E_TOO_LARGE
    buf[at] = packet_type << 4
    buf[at + 1] = 0
    return at + 2


def connect(
    buf: bytearray,
    at: int,
    limit: int,
    client_id: "Bytes",
    keep_alive: int,
    clean: bool,
    will_topic: "Bytes | None" = None,
    will_payload: "Bytes" = b"",
    will_qos: int = 0,
    will_retain: bool = False,
    user: "Bytes | None" = None,
    password: "Bytes | None" = None,
    protocol: bytes = spec.PROTOCOL,
    properties: "Bytes" = b"",
    will_properties: "Bytes" = b"",
) -> int:
    """CONNECT (3.1), of the version whose name and level ``protocol`` is. ``keep_alive`` in seconds, 0 … 65 535.

    5.0 has blocks of properties. E_ARGUMENT: a string above 65 535 bytes, a client id or user name that is no UTF-8 or
    has U+0000 (1.5.3), keep_alive or will_qos out of range; and before 5.0, a password without a user name (3.1.2.9),
    an empty client id without a clean session (3.1.3.1).
    """
    n = len(protocol) + 5 + len(client_id) + len(properties)
    flags = spec.CLEAN_SESSION if clean else 0
    bad = _no_text(client_id) or not 0 <= keep_alive <= 65535 or not (client_id or clean or properties)
    if will_topic is not None:
        n += 4 + len(will_topic) + len(will_payload) + len(will_properties)
        flags |= spec.WILL | will_qos << spec.WILL_QOS_SHIFT
        if will_retain:
            flags |= spec.WILL_RETAIN
        bad = bad or not 0 <= will_qos <= 2 or len(will_topic) > 65535 or len(will_payload) > 65535
    if user is not None:
        n += 2 + len(user)
        flags |= spec.USER_NAME
        bad = bad or _no_text(user)
    if password is not None:
        n += 2 + len(password)
        flags |= spec.PASSWORD
        bad = bad or len(password) > 65535 or not (user is not None or properties)
    if bad:
        return E_ARGUMENT
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = spec.CONNECT << 4
    i = put_varint(buf, at + 1, n)
    i = _put(buf, i, protocol)
    buf[i] = flags
    buf[i + 1] = keep_alive >> 8
    buf[i + 2] = keep_alive & 255
    i = put_block(buf, _put(buf, i + 3, properties), client_id)
    if will_topic is not None:
        i = _put(buf, i, will_properties)
        i = put_block(buf, put_block(buf, i, will_topic), will_payload)
    if user is not None:
        i = put_block(buf, i, user)
    if password is not None:
        i = put_block(buf, i, password)
    return i


def _no_text(data: "Bytes") -> bool:
    return len(data) > 65535 or check_utf8(data, 0, len(data)) >= 0


def _put(buf: bytearray, at: int, data: "Bytes") -> int:
    """Write ``data`` as it is; returns the offset behind it."""
    end = at + len(data)
    buf[at:end] = data
    return end


def subscribe(
    buf: bytearray,
    at: int,
    limit: int,
    packet_id: int,
    topic_filter: "Bytes",
    qos: int,
    properties: "Bytes" = b"",
) -> int:
    """SUBSCRIBE (3.8) for one filter; ``qos`` -1 makes it UNSUBSCRIBE (3.10).

    5.0 has a block of properties, and options beside the QoS.
    """
    n = 4 + len(topic_filter) + len(properties)
    head = spec.UNSUBSCRIBE << 4 | 2
    if qos >= 0:
        n += 1
        head = spec.SUBSCRIBE << 4 | 2
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = head
    i = put_varint(buf, at + 1, n)
    buf[i] = packet_id >> 8
    buf[i + 1] = packet_id & 255
    i = put_block(buf, _put(buf, i + 2, properties), topic_filter)
    if qos >= 0:
        buf[i] = qos
        i += 1
    return i
