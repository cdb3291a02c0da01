"""tshark, an independent decoder, reads every packet of MQTT 3.1 and 5.0 that we write, with every property."""

import json
from functools import partial
from typing import Any

import pytest
import vectors
from mqtt_rows import IDENTIFIERS, NAMES, encoded

from headwater.mqtt import packets as mqtt
from headwater.mqtt import packets_server, spec, spec5
from headwater.mqtt import properties as props
from tests.interop.tshark import Fields, colons, encoded_packets, flat, packets
from tests.rows import each_row
from tools import pcap, toolchain
from tools.toolchain import ROOT

Row = dict[str, Any]
VECTORS: list[Row] = json.loads((ROOT / "tests/vectors/mqtt5.json").read_text(encoding="utf-8"))["encode"]
#: Where tshark says what: argument -> field.
FIELDS = {
    "topic": "mqtt.topic",
    "filter": "mqtt.topic",
    "payload": "mqtt.msg",
    "packet_id": "mqtt.msgid",
    "client_id": "mqtt.clientid",
    "keep_alive": "mqtt.kalive",
    "user_name": "mqtt.username",
    "session_present": "mqtt.conack.flags.sp",
    "clean_start": "mqtt.conflag.cleansess",
    "qos": "mqtt.qos",
    "dup": "mqtt.dupflag",
    "retain": "mqtt.retain",
}
#: Properties that have a field of their own; the others' are by their type.
OWN = {
    "content_type": "mqtt.property.content_type",
    "maximum_qos": "mqtt.property.max_qos",
    "topic_alias": "mqtt.property.topic_alias",
}


def several(values: list[str]) -> Any:
    """As tshark writes a field that stands once or more often."""
    return values[0] if len(values) == 1 else values


def expected_properties(rows: list[list[Any]]) -> Fields:
    """What tshark should say of a block."""
    found: dict[str, list[str]] = {}
    for name, value in rows:
        kind = props.kind_of(IDENTIFIERS[name])
        found.setdefault("mqtt.property_id", []).append(f"0x{IDENTIFIERS[name]:02x}")
        if name in OWN:
            found.setdefault(OWN[name], []).append(str(value))
        elif kind < props.BINARY:
            found.setdefault("mqtt.prop_number", []).append(str(value))
        elif kind == props.PAIR:
            found.setdefault("mqtt.prop_key", []).append(value[0])
            found.setdefault("mqtt.prop_value", []).append(value[1])
        else:
            data = vectors.unhex(value) if kind == props.BINARY else value.encode()
            found.setdefault("mqtt.prop_string_len", []).append(str(len(data)))
            # tshark reads binary data as a text, of which it shows what is one.
            found.setdefault("mqtt.prop_string", []).append("" if kind == props.BINARY else value)
    return {name: several(values) for name, values in found.items()}


def expected(call: str, a: Row) -> Fields:
    """What tshark should say of a packet, by its field names."""
    fields: Fields = {}
    for name, value in a.items():
        field = FIELDS.get(name)
        if field is None or value is None or (name == "packet_id" and value == 0):
            continue
        if name == "payload":
            if value:
                fields[field] = colons(vectors.unhex(value))
        else:
            fields[field] = value if isinstance(value, str) else str(int(value))
    if call == "connack" and a["reason_code"]:
        fields["mqtt.conack.flags.sp"] = "0"  # 3.2.2.1.1
    short = call in ("acknowledge", "disconnect") and a["reason_code"] == 0 and not a["properties"]
    if "reason_code" in a and not short:
        name = a["type"].lower() if call == "acknowledge" else call
        fields[f"mqtt.{name}.reason_code"] = str(a["reason_code"])
    if "reason_codes" in a:
        fields[f"mqtt.{call}.reason_code"] = several([str(code) for code in a["reason_codes"]])
    if call == "subscribe":
        fields["mqtt.subscription_options_qos"] = str(a["options"] & 3)
        fields["mqtt.subscription_options_nl"] = str(a["options"] >> 2 & 1)
        fields["mqtt.subscription_options_rap"] = str(a["options"] >> 3 & 1)
        fields["mqtt.subscription_options_retain"] = str(a["options"] >> 4)
    if call == "connect":
        fields |= {"mqtt.ver": "5", "mqtt.protoname": "MQTT"}
        fields["mqtt.conflag.willflag"] = str(int(a["will"] is not None))
        if a["password"] is not None:
            fields["mqtt.passwd"] = vectors.unhex(a["password"]).decode()
        if a["will"]:
            fields["mqtt.willtopic"] = a["will"]["topic"]
            fields["mqtt.willmsg_len"] = str(len(vectors.unhex(a["will"]["message"])))
            fields["mqtt.conflag.qos"] = str(a["will"]["qos"])
            fields["mqtt.conflag.retain"] = str(int(a["will"]["retain"]))
    return fields


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[list[Fields]]:
    buf = bytearray(64)
    hello = bytes(
        buf[: mqtt.encode_connect(buf, 0, 64, b"c", 60, True, protocol=spec5.PROTOCOL, properties=b"\0")]
    )
    welcome = bytes(buf[: packets_server.encode_connack(buf, 0, 64, False, 0, b"\0")])
    path = tmp_path_factory.mktemp("tshark") / "packets.pcap"
    return encoded_packets(VECTORS, partial(encoded, 5), hello, welcome, path)


@pytest.mark.needs_tshark
@each_row("number", range(len(VECTORS)), ids=[row["name"] for row in VECTORS])
def test_tshark_reads_what_we_encode(seen: list[list[Fields]], number: int) -> None:
    row = VECTORS[number]
    packet = seen[number][-1]
    call, a = row["call"], row["arguments"]
    kind = a.get("type") or call.upper()
    said = flat({name: value for name, value in packet.items() if "properties" not in name})
    assert int(said["mqtt.msgtype"]) == NAMES.index(kind)
    wanted = expected(call, a)
    assert {name: said.get(name) for name in wanted} == wanted
    blocks = {"mqtt.properties": a.get("properties", [])}
    if a.get("will"):
        blocks["mqtt.will_properties"] = a["will"]["properties"]
    for name, rows in blocks.items():
        block = packet.get(name, {})
        told = {field: block.get(field) for field in expected_properties(rows)}
        assert told == expected_properties(rows)
        ids = block.get("mqtt.property_id", [])
        assert (len(ids) if isinstance(ids, list) else 1) == len(rows)


@pytest.mark.needs_tshark
def test_tshark_reads_a_connect_of_3_1(tmp_path: Any) -> None:
    tshark = toolchain.find("tshark")
    assert tshark is not None
    buf = bytearray(100)
    end = mqtt.encode_connect(
        buf, 0, 100, b"board", 9, False, b"w", b"gone", 1, True, b"user", b"pw", spec.PROTOCOL_31
    )
    path = tmp_path / "packets.pcap"
    pcap.write(path, [[(True, bytes(buf[:end]))]])
    said = flat(packets(path, tshark)[0][0])
    wanted = {
        "mqtt.protoname": "MQIsdp",
        "mqtt.ver": "3",
        "mqtt.clientid": "board",
        "mqtt.kalive": "9",
        "mqtt.willtopic": "w",
        "mqtt.willmsg": colons(b"gone"),
        "mqtt.username": "user",
        "mqtt.passwd": "pw",
        "mqtt.conflag.cleansess": "0",
        "mqtt.conflag.qos": "1",
        "mqtt.conflag.retain": "1",
    }
    assert {name: said.get(name) for name in wanted} == wanted
