"""The packets only a server reads (MQTT 5.0): CONNECT, SUBSCRIBE, UNSUBSCRIBE; and the decoders of all fifteen."""

from headwater.errors import E_CODE, E_FIELD, E_FLAGS, E_PACKET_ID, E_RX_TOPIC, E_SIZE, E_UTF8
from headwater.mqtt import decode5, decode_server, spec, spec5
from headwater.mqtt.decode_server import Connect, block, connect
from headwater.mqtt.properties import WILL_PROPERTIES, check
from headwater.mqtt.topics import BAD_UTF8
from headwater.mqtt.topics5 import check_filter5, unshared
from headwater.wire import const, get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode5 import Packet5

# Of a subscription's options (3.8.3.1): what there must not be, and the two that have a value too many.
_RESERVED = const(0xC0)
_QOS = const(3)
_RETAIN_HANDLING = const(0x30)
_LEVEL_5 = const(5)


class Connect5(Connect):
    """What a CONNECT says. Its properties are ``buf[props_at:props_end]``, the will's alike.

    ``protocols`` may have those of earlier versions as well; both ranges are then empty.
    """

    def __init__(self, protocols: "tuple[bytes, ...]" = (spec5.PROTOCOL,)):
        super().__init__(protocols)
        self.props_at = self.props_end = 0
        self.will_props_at = self.will_props_end = 0

    def properties(self, p: "Packet5", at: int, where: int) -> int:  # type: ignore[override]
        """As ``Connect.properties``."""
        if where != WILL_PROPERTIES:
            self.props_at = self.props_end = self.will_props_at = self.will_props_end = at
        if self.level < _LEVEL_5:
            return at
        at = check(p, at, p.end, where)
        if where != WILL_PROPERTIES:
            self.props_at = p.props_at
            self.props_end = p.props_end
        else:
            self.will_props_at = p.props_at
            self.will_props_end = p.props_end
        return at


def connect_alone(p: "Packet5") -> int:
    """CONNECT, for whoever only wants to know whether it is well-formed."""
    return connect(p, Connect5())


def subscribe(p: "Packet5") -> int:
    """SUBSCRIBE (3.8) or UNSUBSCRIBE (3.10): checks every filter; then walk them with ``decode_server.next_filter``.

    That returns a filter's options (3.8.3.1), 0 for UNSUBSCRIBE. ``code`` is the number of filters.
    """
    buf = p.buf
    at = p.bad_at = p.body
    if p.end - at < 2:
        return E_SIZE
    p.packet_id = get_u16(buf, at)
    if p.packet_id == 0:
        return E_PACKET_ID
    at = check(p, at + 2, p.end, 1 << (p.head >> 4))
    if at < 0:
        return at
    p.payload_at = p.bad_at = at
    if at == p.end:
        return E_SIZE
    subscribing = p.head >> 4 == spec.SUBSCRIBE
    p.topic_end = at - 1 if subscribing else at
    count = 0
    while at < p.end:
        at = _filter(p, at, subscribing)
        if at < 0:
            return at
        count += 1
    p.code = count
    return 0


def _filter(p: "Packet5", at: int, subscribing: bool) -> int:
    """Check the filter at ``at`` and its options: the offset behind them, or an error."""
    start = at + 2
    at = block(p, at, False)
    if at < 0:
        return at
    bad = check_filter5(p.buf, start, at)
    if bad:
        p.bad_at = start
        return E_UTF8 if bad == BAD_UTF8 else E_RX_TOPIC
    if not subscribing:
        return at
    p.bad_at = at
    if at >= p.end:
        return E_FIELD
    options = p.buf[at]
    if options & _RESERVED:
        return E_FLAGS
    if options & _QOS == _QOS or options & _RETAIN_HANDLING == _RETAIN_HANDLING:
        return E_CODE
    if options & spec5.NO_LOCAL and unshared(p.buf, start, at) > start:
        # 3.8.3-4: a shared subscription has no sender of its own.
        return E_CODE
    return at + 1


#: The decoder of each packet type, at whichever end.
DECODERS: "tuple[Callable[[Packet5], int], ...]" = (
    decode5.DECODERS[: spec.CONNECT]
    + (connect_alone,)
    + decode5.DECODERS[spec.CONNECT + 1 : spec.SUBSCRIBE]
    + (subscribe, decode5.suback, subscribe)
    + decode5.DECODERS[spec.UNSUBSCRIBE + 1 :]
)


def packet(p: "Packet5", at: int, end: int) -> int:
    """As ``decode_server.packet``."""
    return decode_server.packet(p, at, end, DECODERS)  # type: ignore[arg-type]
