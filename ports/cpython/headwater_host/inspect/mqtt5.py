"""Decode MQTT 5.0 packets for display."""

from collections.abc import Callable, Iterator
from typing import Any

from headwater.mqtt import spec, spec5
from headwater.mqtt.packets_server import Connect, decode_connect, next_filter
from headwater.mqtt.properties import Packet5
from headwater.names5 import code_name
from headwater_host.mqtt_properties import decode, plain

Fields = dict[str, Any]


def properties(p: Packet5, at: int, end: int) -> Fields:
    """Properties by their names, in the packet's order; a list of values where there may be more than one."""
    return plain(decode(p.buf, at, end))


def _properties(p: Packet5) -> Fields:
    return {"properties": properties(p, p.props_at, p.props_end)}


def _text(p: Packet5, at: int, end: int) -> str:
    return str(p.buf[at:end], "utf-8")


def _connect(p: Packet5) -> Fields:
    c = Connect((spec5.PROTOCOL,))
    decode_connect(p, c)
    will = None
    if c.will_topic_at >= 0:
        will = {
            "properties": properties(p, c.will_props_at, c.will_props_end),
            "topic": _text(p, c.will_topic_at, c.will_topic_end),
            "message": bytes(p.buf[c.will_payload_at : c.will_payload_end]).hex(),
            "qos": c.will_qos(),
            "retain": c.will_retain(),
        }
    return {
        "protocol_name": spec5.PROTOCOL[2:-1].decode(),
        "protocol_level": c.level,
        "clean_start": c.clean_start(),
        "keep_alive": c.keep_alive,
        "properties": properties(p, c.props_at, c.props_end),
        "client_id": _text(p, c.client_id_at, c.client_id_end),
        "will": will,
        "user_name": _text(p, c.user_at, c.user_end) if c.user_at >= 0 else None,
        "password": bytes(p.buf[c.password_at : c.password_end]).hex() if c.password_at >= 0 else None,
    }


def _reason(p: Packet5) -> Fields:
    return {"reason_code": p.code, "reason": code_name(p.code, p.kind())} | _properties(p)


def _connack(p: Packet5) -> Fields:
    return {"session_present": p.session_present} | _reason(p)


def _publish(p: Packet5) -> Fields:
    return {
        "dup": p.dup(),
        "qos": p.qos(),
        "retain": p.retain(),
        "topic": p.topic_text(),
        "packet_id": p.packet_id or None,
        **_properties(p),
        "payload": p.payload_bytes().hex(),
    }


def _id(p: Packet5) -> Fields:
    return {"packet_id": p.packet_id}


def _acknowledgement(p: Packet5) -> Fields:
    return _id(p) | _reason(p)


def _filters(p: Packet5) -> Iterator[tuple[str, int]]:
    options = next_filter(p)
    while options >= 0:
        yield _text(p, p.topic_at, p.topic_end), options
        options = next_filter(p)


def _subscribe(p: Packet5) -> Fields:
    filters = [
        {
            "filter": name,
            "qos": options & 3,
            "no_local": options & spec5.NO_LOCAL != 0,
            "retain_as_published": options & spec5.RETAIN_AS_PUBLISHED != 0,
            "retain_handling": options >> spec5.RETAIN_HANDLING_SHIFT,
        }
        for name, options in _filters(p)
    ]
    return _id(p) | _properties(p) | {"filters": filters}


def _unsubscribe(p: Packet5) -> Fields:
    return _id(p) | _properties(p) | {"filters": [name for name, _ in _filters(p)]}


def _codes(p: Packet5) -> Fields:
    codes = list(p.buf[p.payload_at : p.end])
    reasons = [code_name(code, p.kind()) for code in codes]
    return _id(p) | _properties(p) | {"reason_codes": codes, "reasons": reasons}


def _nothing(p: Packet5) -> Fields:
    return {}


#: What is known of a packet, by its type: names and values that JSON can hold.
FIELDS: dict[int, Callable[[Packet5], Fields]] = {
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
