"""What MQTT 5.0 packets say, as the vector files write it, and the calls that write them."""

import binascii

import vectors

from headwater.mqtt import packets, packets_server, spec, spec5
from headwater.mqtt import properties as props
from headwater.names5 import PROPERTIES
from headwater.wire import get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect
    from headwater.mqtt.properties import Packet5
    from headwater.types import Bytes

    Row = dict[str, Any]

NAMES = (
    "", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip
IDENTIFIERS = {name: ident for ident, name in PROPERTIES.items()}
ACKNOWLEDGEMENTS = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")


def block(buf: "Bytes", at: int) -> bytes:
    """The text or binary data at ``at``."""
    return bytes(buf[at + 2 : at + 2 + get_u16(buf, at)])


def value_of(buf: "Bytes", at: int, ident: int) -> object:
    """The value of a property, as the vector files write it."""
    kind = props.kind_of(ident)
    if kind < props.BINARY:
        return props.number(buf, at, ident)
    data = block(buf, at)
    if kind == props.BINARY:
        # MicroPython's ``hex()`` makes bytes of no bytes.
        return str(binascii.hexlify(data), "ascii")
    text = data.decode()
    return [text, block(buf, at + 2 + len(data)).decode()] if kind == props.PAIR else text


def properties(buf: "Bytes", at: int, end: int) -> "list[object]":
    found: list[object] = []
    while at < end:
        ident = buf[at]
        found.append([PROPERTIES[ident], value_of(buf, at + 1, ident)])
        at = props.skip(buf, at)
    assert at == end
    return found


def _cut(buf: "Bytes", at: int, end: int) -> "bytes | None":
    return bytes(buf[at:end]) if at >= 0 else None


def _text(buf: "Bytes", at: int, end: int) -> "str | None":
    return str(buf[at:end], "utf-8") if at >= 0 else None


def connect_fields(p: "Packet", c: "Connect") -> "Row":
    buf = bytes(p.buf)
    five = c.level == 5
    will: Row | None = None
    if c.will_topic_at >= 0:
        will = {
            "topic": _text(buf, c.will_topic_at, c.will_topic_end),
            "message": _cut(buf, c.will_payload_at, c.will_payload_end),
            "qos": c.will_qos(),
            "retain": c.will_retain(),
        }
        if five:
            will["properties"] = properties(buf, c.will_props_at, c.will_props_end)
    fields: Row = {
        "type": "CONNECT",
        "protocol_name": block(buf, p.body).decode(),
        "protocol_level": c.level,
        "clean_start" if five else "clean_session": c.clean_start(),
        "keep_alive": c.keep_alive,
        "client_id": _text(buf, c.client_id_at, c.client_id_end),
        "will": will,
        "user_name": _text(buf, c.user_at, c.user_end),
        "password": _cut(buf, c.password_at, c.password_end),
    }
    if five:
        fields["properties"] = properties(buf, c.props_at, c.props_end)
    return fields


def _filters(p: "Packet5") -> "list[object]":
    subscribing = p.kind() == spec.SUBSCRIBE
    found: list[object] = []
    options = packets_server.next_filter(p)
    while options >= 0:
        name = _text(p.buf, p.topic_at, p.topic_end)
        found.append(
            {
                "filter": name,
                "qos": options & 3,
                "no_local": options & spec5.NO_LOCAL != 0,
                "retain_as_published": options & spec5.RETAIN_AS_PUBLISHED != 0,
                "retain_handling": options >> spec5.RETAIN_HANDLING_SHIFT,
            }
            if subscribing
            else name
        )
        options = packets_server.next_filter(p)
    assert len(found) == p.code
    return found


def fields(p: "Packet5") -> "Row":
    """What a decoded packet says, as the vector file writes it."""
    kind = NAMES[p.kind()]
    if kind == "CONNECT":
        c = packets_server.Connect((spec5.PROTOCOL,))
        assert packets_server.decode_connect(p, c) == 0
        return connect_fields(p, c)
    said: Row = {"type": kind}
    if kind in ("PINGREQ", "PINGRESP"):
        return said
    said["properties"] = properties(p.buf, p.props_at, p.props_end)
    if kind == "PUBLISH":
        said["dup"] = p.dup()
        said["qos"] = p.qos()
        said["retain"] = p.retain()
        said["topic"] = p.topic_bytes()
        said["packet_id"] = p.packet_id or None
        said["payload"] = p.payload_bytes()
        return said
    if kind in ("CONNACK", "DISCONNECT", "AUTH") or kind in ACKNOWLEDGEMENTS:
        said["reason_code"] = p.code
    if kind == "CONNACK":
        said["session_present"] = p.session_present
    elif kind not in ("DISCONNECT", "AUTH"):
        said["packet_id"] = p.packet_id
    if kind in ("SUBACK", "UNSUBACK"):
        said["reason_codes"] = list(p.buf[p.payload_at : p.end])
    elif kind in ("SUBSCRIBE", "UNSUBSCRIBE"):
        said["filters"] = _filters(p)
    return said


def expected(row: "Row") -> "Row":
    """A row's packet with its notations expanded."""
    want = dict(row["packet"])
    if want["type"] == "PUBLISH":
        want["topic"] = vectors.text_of(want, "topic")
        want.pop("topic_hex", None)
        want["payload"] = vectors.unhex(want["payload"])
    if want.get("password") is not None:
        want["password"] = vectors.unhex(want["password"])
    if want.get("will") is not None:
        want["will"] = dict(want["will"])
        want["will"]["message"] = vectors.unhex(want["will"]["message"])
    return want


# -- writing -----------------------------------------------------------------------------------------------------------


def encoded_properties(rows: "list[list[Any]]") -> "Bytes":
    """A block of properties: what ``Properties`` makes of a row's list."""
    made = props.Properties(2000)
    for name, value in rows:
        ident = IDENTIFIERS[name]
        kind = props.kind_of(ident)
        if kind < props.BINARY:
            bad = made.add(ident, value)
        elif kind == props.PAIR:
            bad = made.add(ident, value[0].encode(), value[1].encode())
        else:
            bad = made.add(ident, vectors.unhex(value) if kind == props.BINARY else value.encode())
        assert bad == 0, (name, value, bad)
    return made.block


def encoded(call: str, a: "Row", buf: bytearray, at: int, limit: int) -> int:
    """Call an encoder with a row's arguments."""
    if call == "bare":
        return packets.encode_bare(buf, at, limit, NAMES.index(a["type"]))
    made = encoded_properties(a["properties"])
    if call == "publish":
        head = 0x30 | (8 if a["dup"] else 0) | a["qos"] << 1 | (1 if a["retain"] else 0)
        topic = a["topic"].encode()
        return packets.encode_publish(
            buf, at, limit, topic, vectors.unhex(a["payload"]), head, a["packet_id"], made
        )
    if call == "acknowledge":
        kind = NAMES.index(a["type"])
        return props.encode_reason(buf, at, limit, kind, a["packet_id"], a["reason_code"], made)
    if call == "disconnect":
        return props.encode_reason(buf, at, limit, spec.DISCONNECT, 0, a["reason_code"], made)
    if call == "auth":
        return props.encode_reason(buf, at, limit, spec5.AUTH, 0, a["reason_code"], made)
    if call == "connect":
        will = a["will"] or {"topic": None, "message": "", "qos": 0, "retain": False, "properties": []}
        return packets.encode_connect(
            buf,
            at,
            limit,
            a["client_id"].encode(),
            a["keep_alive"],
            a["clean_start"],
            None if will["topic"] is None else will["topic"].encode(),
            vectors.unhex(will["message"]),
            will["qos"],
            will["retain"],
            None if a["user_name"] is None else a["user_name"].encode(),
            None if a["password"] is None else vectors.unhex(a["password"]),
            spec5.PROTOCOL,
            made,
            encoded_properties(will["properties"]),
        )
    if call in ("subscribe", "unsubscribe"):
        options = a["options"] if call == "subscribe" else -1
        return packets.encode_subscribe(buf, at, limit, a["packet_id"], a["filter"].encode(), options, made)
    if call == "connack":
        return packets_server.encode_connack(buf, at, limit, a["session_present"], a["reason_code"], made)
    kind = NAMES.index(call.upper())
    codes = bytes(a["reason_codes"])
    return packets_server.encode_suback(buf, at, limit, a["packet_id"], codes, made, kind)
