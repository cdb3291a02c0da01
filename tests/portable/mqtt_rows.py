"""What MQTT 5.0 packets say, as the vector files write it, and the calls that write them."""

import binascii

import vectors

from headwater.mqtt import packets, packets_server, spec, spec5
from headwater.mqtt import properties as props
from headwater.mqtt.properties import Packet5
from headwater.names5 import PROPERTIES
from headwater.reasons import reason
from headwater.wire import get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect
    from headwater.types import Bytes

    Row = dict[str, Any]

NAMES = (
    "", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip
#: By protocol level: the vector file, and the protocol name and level of CONNECT.
FILES = {3: "mqtt31", 4: "mqtt", 5: "mqtt5"}
PROTOCOLS = {3: spec.PROTOCOL_31, 4: packets.PROTOCOL, 5: spec5.PROTOCOL}
IDENTIFIERS = {name: ident for ident, name in PROPERTIES.items()}
ACKNOWLEDGEMENTS = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")


def rows(level: int) -> "Iterator[tuple[str, Row, bytes]]":
    """The packets of a version: name, row, bytes."""
    for row in vectors.rows(FILES[level], "packets"):
        yield row["name"], row, vectors.unhex(row["hex"])


def cursor(level: int, data: "Bytes") -> "Packet":
    """A cursor over packets of a version."""
    p = Packet5(data) if level == 5 else packets.Packet(data)
    if level == 3:
        p.flags = spec.FLAGS_31
    return p


def outcome(level: int, p: "Packet", at: int, end: int) -> "tuple[str, int]":
    """What the decoder says of ``buf[at:end]``: ("ok", length), or (reason, offset in the packet)."""
    stop = packets_server.decode_packet(p, at, end, PROTOCOLS[level])
    if stop > 0:
        return "ok", stop - at
    return (reason(stop), p.bad_at - at) if stop else ("truncated", end - at)


def wanted(row: "Row", data: bytes) -> "tuple[str, int]":
    """The outcome that a row demands."""
    return (row["error"]["reason"], row["error"]["offset"]) if "error" in row else ("ok", len(data))


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


def _filter(name: "str | None", options: int, five: bool) -> "Row":
    if not five:
        return {"filter": name, "qos": options}
    return {
        "filter": name,
        "qos": options & 3,
        "no_local": options & spec5.NO_LOCAL != 0,
        "retain_as_published": options & spec5.RETAIN_AS_PUBLISHED != 0,
        "retain_handling": options >> spec5.RETAIN_HANDLING_SHIFT,
    }


def _filters(p: "Packet", five: bool) -> "list[object]":
    found: list[object] = []
    options = packets_server.next_filter(p)
    while options >= 0:
        name = _text(p.buf, p.topic_at, p.topic_end)
        found.append(_filter(name, options, five) if p.kind() == spec.SUBSCRIBE else name)
        options = packets_server.next_filter(p)
    assert len(found) == p.code
    return found


def fields(level: int, p: "Any") -> "Row":
    """What a decoded packet says, as the vector file writes it."""
    kind = NAMES[p.kind()]
    five = level == 5
    if kind == "CONNECT":
        c = packets_server.Connect((PROTOCOLS[level],))
        assert packets_server.decode_connect(p, c) == 0
        return connect_fields(p, c)
    said: Row = {"type": kind}
    if kind in ("PINGREQ", "PINGRESP") or (kind == "DISCONNECT" and not five):
        return said
    if five:
        said["properties"] = properties(p.buf, p.props_at, p.props_end)
    code = "reason_code" if five else "return_code"
    if kind == "PUBLISH":
        said["dup"] = p.dup()
        said["qos"] = p.qos()
        said["retain"] = p.retain()
        said["topic"] = p.topic_bytes()
        said["packet_id"] = p.packet_id or None
        said["payload"] = p.payload_bytes()
        return said
    if kind == "CONNACK":
        said["session_present"] = p.session_present
    elif kind not in ("DISCONNECT", "AUTH"):
        said["packet_id"] = p.packet_id
    if kind == "CONNACK" or (five and (kind in ("DISCONNECT", "AUTH") or kind in ACKNOWLEDGEMENTS)):
        said[code] = p.code
    elif kind == "SUBACK" or (five and kind == "UNSUBACK"):
        said[code + "s"] = list(p.buf[p.payload_at : p.end])
    elif kind in ("SUBSCRIBE", "UNSUBSCRIBE"):
        said["filters"] = _filters(p, five)
    return said


def expected(row: "Row") -> "Row":
    """A row's packet with its notations expanded."""
    want = dict(row["packet"])
    if want["type"] == "PUBLISH":
        want["topic"] = vectors.text_of(want, "topic")
        want.pop("topic_hex", None)
        want["payload"] = vectors.unhex(want["payload"])
    if want["type"] == "CONNECT":
        want["client_id"] = str(vectors.text_of(want, "client_id"), "utf-8")
        want.pop("client_id_hex", None)
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


def _utf8(text: "str | None") -> "bytes | None":
    return None if text is None else text.encode()


def encoded(level: int, call: str, a: "Row", buf: bytearray, at: int, limit: int) -> int:
    """Call an encoder with a row's arguments."""
    if call == "bare":
        return packets.encode_bare(buf, at, limit, NAMES.index(a["type"]))
    five = level == 5
    made: tuple[Any, ...] = (encoded_properties(a["properties"]),) if five else ()
    code = "reason_code" if five else "return_code"
    if call == "publish":
        head = 0x30 | (8 if a["dup"] else 0) | a["qos"] << 1 | (1 if a["retain"] else 0)
        topic, payload = vectors.text_of(a, "topic"), vectors.unhex(a["payload"])
        return packets.encode_publish(buf, at, limit, topic, payload, head, a["packet_id"], *made)
    if call in ("acknowledge", "disconnect", "auth"):
        kind = NAMES.index(a["type"] if call == "acknowledge" else call.upper())
        if not five:
            return packets.encode_ack(buf, at, limit, kind, a["packet_id"])
        return props.encode_reason(buf, at, limit, kind, a.get("packet_id", 0), a[code], *made)
    if call == "connect":
        will = a["will"] or {"topic": None, "message": "", "qos": 0, "retain": False, "properties": []}
        password = None if a["password"] is None else vectors.unhex(a["password"])
        start = a["clean_start" if five else "clean_session"]
        if five:
            made += (encoded_properties(will["properties"]),)
        made = (will["qos"], will["retain"], _utf8(a["user_name"]), password, PROTOCOLS[level]) + made
        message = vectors.unhex(will["message"])
        made = (a["client_id"].encode(), a["keep_alive"], start, _utf8(will["topic"]), message) + made
        return packets.encode_connect(buf, at, limit, *made)
    if call in ("subscribe", "unsubscribe"):
        options = -1 if call == "unsubscribe" else a["options" if five else "qos"]
        return packets.encode_subscribe(
            buf, at, limit, a["packet_id"], vectors.text_of(a, "filter"), options, *made
        )
    if call == "connack":
        return packets_server.encode_connack(buf, at, limit, a["session_present"], a[code], *made)
    if five:
        made += (NAMES.index(call.upper()),)
    codes = bytes(a[code + "s"])
    return packets_server.encode_suback(buf, at, limit, a["packet_id"], codes, *made)
