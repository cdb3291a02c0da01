"""Reading packets of MQTT 5.0 (sections 2 and 3), with the conventions of ``decode``."""

from headwater.errors import E_CODE, E_FIELD, E_FLAGS, E_PACKET_ID, E_RX_TOPIC, E_SIZE, E_UTF8, E_VALUE
from headwater.mqtt.decode import MESSAGE, Packet, bare, no_decoder
from headwater.mqtt.properties import check, has
from headwater.mqtt.spec5 import AUTHENTICATION_METHOD, TOPIC_ALIAS, UNSUPPORTED_PROTOCOL_VERSION
from headwater.mqtt.topics import BAD_UTF8, check_name
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.types import Bytes, NameCheck

#: As ``decode.SIZES``.
SIZES = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\xff\xff"
_IN_PUBLISH = const(1 << 3)
_PACKET_TOO_LARGE = const(0x95)

#: Table 2-6 as rows: a reason code, and the packets it may stand in as two bytes of bits (``1 << type``).
CODES = (
    b"\x00\xca\xf4"  # success: CONNACK, PUBACK to PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH
    b"\x01\x02\x00\x02\x02\x00"  # granted QoS 1 and 2: SUBACK
    b"\x04\x40\x00"  # disconnect with will message
    b"\x10\x00\x30"  # no matching subscribers: PUBACK, PUBREC
    b"\x11\x08\x00"  # no subscription existed: UNSUBACK
    b"\x18\x80\x00\x19\x80\x00"  # continue authentication, re-authenticate: AUTH
    b"\x80\x4a\x34"  # unspecified error: CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT
    b"\x81\x40\x04\x82\x40\x04"  # malformed packet, protocol error: CONNACK, DISCONNECT
    b"\x83\x4a\x34"  # implementation specific error
    b"\x84\x00\x04\x85\x00\x04\x86\x00\x04"  # version, client identifier, user name or password: CONNACK
    b"\x87\x4a\x34"  # not authorized
    b"\x88\x00\x04"  # server unavailable: CONNACK
    b"\x89\x40\x04"  # server busy: CONNACK, DISCONNECT
    b"\x8a\x00\x04"  # banned: CONNACK
    b"\x8b\x40\x00"  # server shutting down: DISCONNECT
    b"\x8c\x40\x04"  # bad authentication method: CONNACK, DISCONNECT
    b"\x8d\x40\x00\x8e\x40\x00"  # keep alive timeout, session taken over: DISCONNECT
    b"\x8f\x4a\x00"  # topic filter invalid: SUBACK, UNSUBACK, DISCONNECT
    b"\x90\x40\x34"  # topic name invalid: CONNACK, PUBACK, PUBREC, DISCONNECT
    b"\x91\x0a\x30"  # packet identifier in use: PUBACK, PUBREC, SUBACK, UNSUBACK
    b"\x92\x00\xc0"  # packet identifier not found: PUBREL, PUBCOMP
    b"\x93\x40\x00\x94\x40\x00"  # receive maximum exceeded, topic alias invalid: DISCONNECT
    b"\x95\x40\x04"  # packet too large: CONNACK, DISCONNECT
    b"\x96\x40\x00"  # message rate too high: DISCONNECT
    b"\x97\x42\x34"  # quota exceeded: CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT
    b"\x98\x40\x00"  # administrative action: DISCONNECT
    b"\x99\x40\x34"  # payload format invalid: CONNACK, PUBACK, PUBREC, DISCONNECT
    b"\x9a\x40\x04\x9b\x40\x04"  # retain, QoS not supported: CONNACK, DISCONNECT
    b"\x9c\x40\x04\x9d\x40\x04"  # use another server, server moved: CONNACK, DISCONNECT
    b"\x9e\x42\x00"  # shared subscriptions not supported: SUBACK, DISCONNECT
    b"\x9f\x40\x04"  # connection rate exceeded: CONNACK, DISCONNECT
    b"\xa0\x40\x00"  # maximum connect time: DISCONNECT
    b"\xa1\x42\x00\xa2\x42\x00"  # subscription identifiers, wildcards not supported: SUBACK, DISCONNECT
)


class Packet5(Packet):
    """A packet of MQTT 5.0, as offsets: as ``Packet``, with properties at ``buf[props_at:props_end]``.

    ``code`` is the reason code of CONNACK, PUBACK to PUBCOMP, DISCONNECT and AUTH; SUBACK and UNSUBACK have
    theirs at ``buf[payload_at:end]``. A topic may be empty where a topic alias stands for it.
    """

    def __init__(self, buf: "Bytes", check: "NameCheck" = check_name):
        super().__init__(buf, check)
        self.sizes = SIZES
        self.props_at = self.props_end = 0
        #: Which properties the block had that was checked last (``properties.has``).
        self.seen = 0


def message5(p: Packet5, at: int, end: int) -> int:
    """As ``decode.message``. Also 0 for a packet with a topic alias, which is the connection's affair."""
    buf = p.buf
    if at + 5 > end or not MESSAGE[buf[at]] or buf[at + 1] >= p.short:
        return 0
    stop = at + 2 + buf[at + 1]
    i = buf[at + 2] << 8 | buf[at + 3]
    i += at + 4
    if i >= stop or stop > end or p.check(buf, at + 4, i):
        return 0
    p.topic_end = i
    if buf[at] & 6:
        if i + 2 >= stop:
            return 0
        p.packet_id = buf[i] << 8 | buf[i + 1]
        if p.packet_id == 0:
            return 0
        i += 2
    else:
        p.packet_id = 0
    if buf[i] == 0:
        i += 1
        p.seen = 0
        p.props_at = p.props_end = i
    else:
        i = check(p, i, stop, _IN_PUBLISH)
        if i < 0 or has(p, TOPIC_ALIAS):
            return 0
    p.head = buf[at]
    p.topic_at = at + 4
    p.payload_at = i
    p.end = stop
    return stop


def publish(p: Packet5) -> int:
    """PUBLISH (3.3). An empty topic needs a topic alias (3.3.2.1)."""
    buf = p.buf
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_FIELD
    i = at + 2 + (buf[at] << 8 | buf[at + 1])
    if i > p.end:
        return E_FIELD
    at += 2
    p.topic_at = at
    p.topic_end = i
    if at < i:
        bad = p.check(buf, at, i)
        if bad:
            p.bad_at = at
            return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
    p.packet_id = 0
    if p.head & 6:
        p.bad_at = i
        if i + 2 > p.end:
            return E_FIELD
        p.packet_id = buf[i] << 8 | buf[i + 1]
        if p.packet_id == 0:
            return E_PACKET_ID
        i += 2
    i = check(p, i, p.end, _IN_PUBLISH)
    if i < 0:
        return i
    p.payload_at = i
    if at == p.topic_end and not has(p, TOPIC_ALIAS):
        p.bad_at = at
        return E_RX_TOPIC
    return 0


def packet_id(p: Packet5) -> int:
    """PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7): a packet id; the rest may be left out (3.4.2.1)."""
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_SIZE
    p.packet_id = p.buf[at] << 8 | p.buf[at + 1]
    if p.packet_id == 0:
        return E_PACKET_ID
    return _reason(p, at + 2)


def reason(p: Packet5) -> int:
    """DISCONNECT (3.14): reason code and properties, which may be left out."""
    return _reason(p, p.body)


def auth(p: Packet5) -> int:
    """AUTH (3.15). Unless it is empty it names the method (3.15.2.2.2)."""
    bad = _reason(p, p.body)
    if bad == 0 and p.end > p.body and not has(p, AUTHENTICATION_METHOD):
        p.bad_at = p.props_at
        return E_VALUE
    return bad


def _reason(p: Packet5, at: int) -> int:
    """A reason code and properties at the end of a packet: what is left out is success, and none."""
    p.code = p.seen = 0
    p.props_at = p.props_end = p.payload_at = p.end
    if at == p.end:
        return 0
    p.code = p.buf[at]
    if not _may_stand(p, at):
        return E_CODE
    at += 1
    return 0 if at == p.end else _block_to_end(p, at)


def _block_to_end(p: Packet5, at: int) -> int:
    """Properties at the end of a packet: 0 or an error."""
    at = check(p, at, p.end, 1 << (p.head >> 4))
    if 0 < at < p.end:
        p.bad_at = at
        return E_SIZE
    return at if at < 0 else 0


def _may_stand(p: Packet5, at: int) -> bool:
    """Whether the reason code at ``at`` is one of this packet's."""
    p.bad_at = at
    # Mosquitto says "packet too large" in PUBACK and PUBREC as well (its message_size_limit). Were that an error, the
    # message would be sent again after every reconnect, and all behind it would wait for ever.
    return code_of(p.head >> 4, p.buf[at]) or (p.buf[at] == _PACKET_TOO_LARGE and p.head >> 5 == 2)


def code_of(packet_type: int, code: int) -> bool:
    """Whether a packet of this type may have this reason code (2.4)."""
    for i in range(0, len(CODES), 3):
        if CODES[i] == code:
            return (CODES[i + 1] << 8 | CODES[i + 2]) >> packet_type & 1 != 0
    return False


def connack(p: Packet5) -> int:
    """CONNACK (3.2).

    A server of 3.1.1 refuses 5.0 with a CONNACK of its own: that is read as UNSUPPORTED_PROTOCOL_VERSION.
    """
    buf = p.buf
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_SIZE
    if buf[at] > 1:
        return E_FLAGS
    p.session_present = buf[at] == 1
    if at + 2 == p.end:
        if buf[at] or buf[at + 1] != 1:
            return E_SIZE
        p.code = UNSUPPORTED_PROTOCOL_VERSION
        p.props_at = p.props_end = p.end
        p.seen = 0
        return 0
    p.code = buf[at + 1]
    if not _may_stand(p, at + 1) or (p.code and p.session_present):
        return E_CODE
    return _block_to_end(p, at + 2)


def suback(p: Packet5) -> int:
    """SUBACK (3.9), UNSUBACK (3.11): a packet id, properties, then at least one reason code."""
    at = p.bad_at = p.body
    if at + 2 > p.end:
        return E_SIZE
    p.packet_id = p.buf[at] << 8 | p.buf[at + 1]
    if p.packet_id == 0:
        return E_PACKET_ID
    at = check(p, at + 2, p.end, 1 << (p.head >> 4))
    if at < 0:
        return at
    p.payload_at = p.bad_at = at
    if at == p.end:
        return E_SIZE
    for i in range(at, p.end):
        if not _may_stand(p, i):
            return E_CODE
    return 0


#: The decoder of each packet type; ``decode_server5`` fills the places of those that only a server takes.
DECODERS: "tuple[Callable[[Packet5], int], ...]" = (
    no_decoder,
    no_decoder,
    connack,
    publish,
    packet_id,
    packet_id,
    packet_id,
    packet_id,
    no_decoder,
    suback,
    no_decoder,
    suback,
    bare,
    bare,
    reason,
    auth,
)
