"""The packets a client writes (MQTT 5.0, section 3); as ``encode``, with blocks of properties.

A block is bytes with its length in front (``properties.Properties.block``); it is written as it is. PINGREQ is
``encode.bare``'s.
"""

from headwater.errors import E_TOO_LARGE
from headwater.mqtt import encode, spec, spec5
from headwater.wire import const, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_MAX_REMAINING = const(268435455)


def publish(
    buf: bytearray,
    at: int,
    limit: int,
    topic: "Bytes",
    payload: "Bytes",
    head: int,
    packet_id: int,
    properties: "Bytes" = spec5.NO_PROPERTIES,
) -> int:
    """PUBLISH (3.3). The topic is empty, or a topic name; an empty one needs a topic alias (3.3.2.1)."""
    n = publish_size(topic, payload, packet_id, properties)
    if n < 0 or at + n > limit:
        return E_TOO_LARGE
    return put_publish(buf, at, topic, payload, head | packet_id << 8, properties)


def put_publish(
    buf: bytearray,
    at: int,
    topic: "Bytes",
    payload: "Bytes",
    word: int,
    properties: "Bytes" = spec5.NO_PROPERTIES,
) -> int:
    """``publish`` where there is room for it. ``word`` is the first byte and, above it, the packet id."""
    n = len(topic) + len(payload) + len(properties) + 2
    if word > 255:
        n += 2
    buf[at] = word & 255
    if n < 128:
        buf[at + 1] = n
        at += 2
    else:
        at = put_varint(buf, at + 1, n)
    n = len(topic)
    buf[at] = n >> 8
    buf[at + 1] = n & 255
    at += 2
    # From here on each field begins at ``at`` and ends at n, or the other way round.
    n += at
    buf[at:n] = topic
    if word > 255:
        buf[n] = word >> 16
        buf[n + 1] = word >> 8 & 255
        n += 2
    at = n + len(properties)
    if at == n + 1:
        # No properties; quicker than a slice.
        buf[n] = 0
    else:
        buf[n:at] = properties
    n = at + len(payload)
    buf[at:n] = payload
    return n


def publish_size(
    topic: "Bytes", payload: "Bytes", qos: int, properties: "Bytes" = spec5.NO_PROPERTIES
) -> int:
    """How many bytes PUBLISH takes on the wire; E_TOO_LARGE when MQTT has no length for it."""
    n = len(topic) + len(payload) + len(properties) + 2
    if qos:
        n += 2
    return n + 1 + varint_size(n) if n <= _MAX_REMAINING else E_TOO_LARGE


def acknowledge(
    buf: bytearray,
    at: int,
    limit: int,
    packet_type: int,
    packet_id: int,
    code: int = spec5.SUCCESS,
    properties: "Bytes" = spec5.NO_PROPERTIES,
) -> int:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7), as short as it can be (3.4.2.1)."""
    if code == 0 and len(properties) == 1:
        return encode.acknowledge(buf, at, limit, packet_type, packet_id)
    at = _reason(buf, at, limit, encode.HEADS[packet_type], 2, code, properties)
    if at > 0:
        n = 2 + _reason_size(code, properties)
        buf[at - n] = packet_id >> 8
        buf[at - n + 1] = packet_id & 255
    return at


def disconnect(
    buf: bytearray,
    at: int,
    limit: int,
    code: int = spec5.SUCCESS,
    properties: "Bytes" = spec5.NO_PROPERTIES,
) -> int:
    """DISCONNECT (3.14), as short as it can be."""
    return _reason(buf, at, limit, spec.DISCONNECT << 4, 0, code, properties)


def auth(buf: bytearray, at: int, limit: int, code: int, properties: "Bytes") -> int:
    """AUTH (3.15). The properties must name the method (3.15.2.2.2)."""
    return _reason(buf, at, limit, spec5.AUTH << 4, 0, code, properties)


def _reason_size(code: int, properties: "Bytes") -> int:
    """How long reason code and properties are at the end of a packet: left out when they say nothing."""
    n = len(properties)
    return n + 1 if n > 1 else 1 if code else 0


def _reason(buf: bytearray, at: int, limit: int, head: int, gap: int, code: int, properties: "Bytes") -> int:
    """A packet of a gap, to be filled in by the caller, a reason code and properties."""
    k = _reason_size(code, properties)
    n = gap + k
    if at + 1 + varint_size(n) + n > limit:
        return E_TOO_LARGE
    buf[at] = head
    end = put_varint(buf, at + 1, n) + n
    if k:
        buf[end - k] = code
        if k > 1:
            buf[end - k + 1 : end] = properties
    return end


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
    properties: "Bytes" = spec5.NO_PROPERTIES,
    will_properties: "Bytes" = spec5.NO_PROPERTIES,
) -> int:
    """CONNECT (3.1). ``clean`` is Clean Start (3.1.2.4); a password needs no user name (3.1.2.9)."""
    return encode.connect(
        buf,
        at,
        limit,
        client_id,
        keep_alive,
        clean,
        will_topic,
        will_payload,
        will_qos,
        will_retain,
        user,
        password,
        spec5.PROTOCOL,
        properties,
        will_properties,
    )


def subscribe(
    buf: bytearray,
    at: int,
    limit: int,
    packet_id: int,
    topic_filter: "Bytes",
    options: int,
    properties: "Bytes" = spec5.NO_PROPERTIES,
) -> int:
    """SUBSCRIBE (3.8) for one filter, with its options (3.8.3.1); ``options`` -1 makes it UNSUBSCRIBE (3.10)."""
    return encode.subscribe(buf, at, limit, packet_id, topic_filter, options, properties)
