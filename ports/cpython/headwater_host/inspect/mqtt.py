"""Decode MQTT packets for display."""

from collections.abc import Callable, Iterator
from typing import Any

from headwater import errors
from headwater.mqtt import packets, packets_server, spec, spec5
from headwater.mqtt.packets import Packet
from headwater.mqtt.packets_server import Connect, decode_connect, next_filter
from headwater.mqtt.properties import Packet5
from headwater.names5 import code_name
from headwater_host.malformed import MalformedError
from headwater_host.mqtt_properties import decode, plain
from headwater_host.topics import check_name

#: The names of the packet types (MQTT 5.0, table 2-1).
NAMES = (
    *("", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)
#: The protocol name and level in CONNECT of each version.
VERSIONS = {"3.1": spec.PROTOCOL_31, "3.1.1": packets.PROTOCOL, "5": spec5.PROTOCOL}

#: The contents of a frame: names and values that JSON can hold; ``type`` comes first.
Fields = dict[str, Any]
#: A frame: its offset, its size and its fields.
Frame = tuple[int, int, Fields]


def mqtt_frames(data: bytes, version: str = "3.1.1") -> Iterator[Frame]:
    """Yield the control packets in ``data``, of both directions. Raises MalformedError after the last good one.

    When the input ends inside a packet the reason is ``truncated`` and the offset is the input's length.
    """
    protocol = VERSIONS[version]
    p = Packet5(data, check_name) if version == "5" else Packet(data, check_name)
    if version == "3.1":
        p.flags = spec.FLAGS_31
    at = 0
    while at < len(data):
        stop = packets_server.decode_packet(p, at, len(data), protocol)
        if stop < 0:
            raise MalformedError(stop, p.bad_at)
        if stop == packets.MORE:
            raise MalformedError(errors.E_TRUNCATED, len(data))
        yield at, stop - at, {"type": NAMES[p.kind()]} | _FIELDS[p.kind()](p, protocol)
        at = stop


def _properties(p: Packet, at: int, end: int) -> Fields:
    """Return the properties by name, in the packet's order, a list where there may be several; nothing before 5.0."""
    return {"properties": plain(decode(p.buf, at, end))} if isinstance(p, Packet5) else {}


def _own_properties(p: Packet) -> Fields:
    return _properties(p, p.props_at, p.props_end) if isinstance(p, Packet5) else {}


def _text(p: Packet, at: int, end: int) -> str:
    return str(p.buf[at:end], "utf-8")


def _connect(p: Packet, protocol: bytes) -> Fields:
    c = Connect((protocol,))
    decode_connect(p, c)
    will = None
    if c.will_topic_at >= 0:
        will = _properties(p, c.will_props_at, c.will_props_end) | {
            "topic": _text(p, c.will_topic_at, c.will_topic_end),
            "message": bytes(p.buf[c.will_payload_at : c.will_payload_end]).hex(),
            "qos": c.will_qos(),
            "retain": c.will_retain(),
        }
    return {
        "protocol_name": protocol[2:-1].decode(),
        "protocol_level": c.level,
        "clean_start" if isinstance(p, Packet5) else "clean_session": c.clean_start(),
        "keep_alive": c.keep_alive,
        **_properties(p, c.props_at, c.props_end),
        "client_id": _text(p, c.client_id_at, c.client_id_end),
        "will": will,
        "user_name": _text(p, c.user_at, c.user_end) if c.user_at >= 0 else None,
        "password": bytes(p.buf[c.password_at : c.password_end]).hex() if c.password_at >= 0 else None,
    }


def _reason(p: Packet, _: bytes) -> Fields:
    """Return the reason code with its name; nothing before 5.0."""
    if not isinstance(p, Packet5):
        return {}
    return {"reason_code": p.code, "reason": code_name(p.code, p.kind())} | _own_properties(p)


def _connack(p: Packet, protocol: bytes) -> Fields:
    return {"session_present": p.session_present} | (_reason(p, protocol) or {"return_code": p.code})


def _publish(p: Packet, _: bytes) -> Fields:
    return {
        "dup": p.dup(),
        "qos": p.qos(),
        "retain": p.retain(),
        "topic": p.topic_text(),
        "packet_id": p.packet_id or None,
        **_own_properties(p),
        "payload": p.payload_bytes().hex(),
    }


def _acknowledgement(p: Packet, protocol: bytes) -> Fields:
    return {"packet_id": p.packet_id} | _reason(p, protocol)


def _filters(p: Packet) -> Iterator[tuple[str, int]]:
    options = next_filter(p)
    while options >= 0:
        yield _text(p, p.topic_at, p.topic_end), options
        options = next_filter(p)


def _options(p: Packet, options: int) -> Fields:
    """Return the subscription options (MQTT 5.0, 3.8.3.1); before 5.0 there is only the QoS."""
    if not isinstance(p, Packet5):
        return {"qos": options}
    return {
        "qos": options & 3,
        "no_local": options & spec5.NO_LOCAL != 0,
        "retain_as_published": options & spec5.RETAIN_AS_PUBLISHED != 0,
        "retain_handling": options >> spec5.RETAIN_HANDLING_SHIFT,
    }


def _subscribe(p: Packet, _: bytes) -> Fields:
    filters = [{"filter": name} | _options(p, options) for name, options in _filters(p)]
    return {"packet_id": p.packet_id, **_own_properties(p), "filters": filters}


def _unsubscribe(p: Packet, _: bytes) -> Fields:
    return {"packet_id": p.packet_id, **_own_properties(p), "filters": [name for name, _ in _filters(p)]}


def _codes(p: Packet, _: bytes) -> Fields:
    """Return the codes of SUBACK, and of UNSUBACK from 5.0 on."""
    codes = list(p.buf[p.payload_at : p.end])
    fields = {"packet_id": p.packet_id} | _own_properties(p)
    if isinstance(p, Packet5):
        return fields | {"reason_codes": codes, "reasons": [code_name(code, p.kind()) for code in codes]}
    return fields | ({"return_codes": codes} if p.kind() == spec.SUBACK else {})


def _nothing(p: Packet, _: bytes) -> Fields:
    return {}


#: The fields of a packet by its type.
_FIELDS: dict[int, Callable[[Packet, bytes], Fields]] = {
    spec.CONNECT: _connect,
    spec.CONNACK: _connack,
    spec.PUBLISH: _publish,
    spec.PUBACK: _acknowledgement,
    spec.PUBREC: _acknowledgement,
    spec.PUBREL: _acknowledgement,
    spec.PUBCOMP: _acknowledgement,
    spec.SUBSCRIBE: _subscribe,
    spec.SUBACK: _codes,
    spec.UNSUBSCRIBE: _unsubscribe,
    spec.UNSUBACK: _codes,
    spec.PINGREQ: _nothing,
    spec.PINGRESP: _nothing,
    spec.DISCONNECT: _reason,
    spec5.AUTH: _reason,
}
