"""Decode MQTT packets for display."""

from collections.abc import Callable, Iterator
from typing import Any

from headwater import errors
from headwater.mqtt import packets, packets_server, spec
from headwater.mqtt.packets import Packet
from headwater.mqtt.packets_server import Connect, decode_connect, next_filter
from headwater.mqtt.properties import Packet5
from headwater_host.inspect.mqtt5 import FIELDS as FIELDS_5
from headwater_host.malformed import MalformedError
from headwater_host.topics import check_name

#: The names of the packet types (MQTT 5.0, table 2-1).
NAMES = (
    "",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

#: What is known of a frame: names and values that JSON can hold; ``type`` comes first.
Fields = dict[str, Any]
#: A frame: where it begins, how long it is, what it says.
Frame = tuple[int, int, Fields]


def _frames(
    p: Packet, read: Callable[[Any, int, int], int], fields: dict[int, Callable[[Any], Fields]]
) -> Iterator[Frame]:
    data = p.buf
    at = 0
    while at < len(data):
        stop = read(p, at, len(data))
        if stop < 0:
            raise MalformedError(stop, p.bad_at)
        if stop == packets.MORE:
            raise MalformedError(errors.E_TRUNCATED, len(data))
        yield at, stop - at, {"type": NAMES[p.kind()]} | fields[p.kind()](p)
        at = stop


def mqtt_frames(data: bytes, version: str = "3.1.1") -> Iterator[Frame]:
    """The control packets in ``data``, of both directions. Raises MalformedError behind the last good one.

    When the input ends inside a packet the reason is ``truncated`` and the offset is the input's length.
    """
    return VERSIONS[version](data)


def _frames_31(data: bytes) -> Iterator[Frame]:
    p = Packet(data, check_name)
    p.flags = spec.FLAGS_31
    return _frames(p, _packet_31, _MQTT | {spec.CONNECT: lambda p: _connect_fields(p, spec.PROTOCOL_31)})


def _packet_31(p: Packet, at: int, end: int) -> int:
    return packets_server.decode_packet(p, at, end, spec.PROTOCOL_31)


#: How the packets of each version are taken apart.
VERSIONS: dict[str, Callable[[bytes], Iterator[Frame]]] = {
    "3.1": _frames_31,
    "3.1.1": lambda data: _frames(Packet(data, check_name), packets_server.decode_packet, _MQTT),
    "5": lambda data: _frames(Packet5(data, check_name), packets_server.decode_packet, FIELDS_5),
}


def _text(p: Packet, at: int, end: int) -> str:
    return str(p.buf[at:end], "utf-8")


def _connect_fields(p: Packet, protocol: bytes = packets.PROTOCOL) -> Fields:
    c = Connect((protocol,))
    decode_connect(p, c)
    will = None
    if c.will_topic_at >= 0:
        will = {
            "topic": _text(p, c.will_topic_at, c.will_topic_end),
            "message": bytes(p.buf[c.will_payload_at : c.will_payload_end]).hex(),
            "qos": c.will_qos(),
            "retain": c.will_retain(),
        }
    return {
        "protocol_name": protocol[2:-1].decode(),
        "protocol_level": c.level,
        "clean_session": c.clean_start(),
        "keep_alive": c.keep_alive,
        "client_id": _text(p, c.client_id_at, c.client_id_end),
        "will": will,
        "user_name": _text(p, c.user_at, c.user_end) if c.user_at >= 0 else None,
        "password": bytes(p.buf[c.password_at : c.password_end]).hex() if c.password_at >= 0 else None,
    }


def _connack_fields(p: Packet) -> Fields:
    return {"session_present": p.session_present, "return_code": p.code}


def _publish_fields(p: Packet) -> Fields:
    return {
        "dup": p.dup(),
        "qos": p.qos(),
        "retain": p.retain(),
        "topic": p.topic_text(),
        "packet_id": p.packet_id or None,
        "payload": p.payload_bytes().hex(),
    }


def _id_fields(p: Packet) -> Fields:
    return {"packet_id": p.packet_id}


def _filters(p: Packet) -> Iterator[tuple[str, int]]:
    qos = next_filter(p)
    while qos >= 0:
        yield _text(p, p.topic_at, p.topic_end), qos
        qos = next_filter(p)


def _subscribe_fields(p: Packet) -> Fields:
    return _id_fields(p) | {"filters": [{"filter": name, "qos": qos} for name, qos in _filters(p)]}


def _unsubscribe_fields(p: Packet) -> Fields:
    return _id_fields(p) | {"filters": [name for name, _ in _filters(p)]}


def _suback_fields(p: Packet) -> Fields:
    return _id_fields(p) | {"return_codes": list(p.buf[p.payload_at : p.end])}


def _no_fields(p: Packet) -> Fields:
    return {}


_MQTT: dict[int, Callable[[Packet], Fields]] = {
    spec.CONNECT: _connect_fields,
    spec.CONNACK: _connack_fields,
    spec.PUBLISH: _publish_fields,
    spec.PUBACK: _id_fields,
    spec.PUBREC: _id_fields,
    spec.PUBREL: _id_fields,
    spec.PUBCOMP: _id_fields,
    spec.SUBSCRIBE: _subscribe_fields,
    spec.SUBACK: _suback_fields,
    spec.UNSUBSCRIBE: _unsubscribe_fields,
    spec.UNSUBACK: _id_fields,
    spec.PINGREQ: _no_fields,
    spec.PINGRESP: _no_fields,
    spec.DISCONNECT: _no_fields,
}
