"""tshark, an independent decoder, reads every packet that we write, and finds in it what we put there."""

import json
from functools import partial
from typing import Any

import pytest
import vectors
from mqtt_rows import NAMES, encoded

from headwater.mqtt import packets, packets_server, spec
from tests.interop.tshark import colons, encoded_packets, flat
from tests.rows import each_row
from tools.toolchain import ROOT

Row = dict[str, Any]
VECTORS: list[Row] = json.loads((ROOT / "tests/vectors/mqtt.json").read_text(encoding="utf-8"))["encode"]
#: Where tshark says what: argument -> field. Texts come back as they are, bytes as aa:bb, the rest as decimal numbers.
FIELDS = {
    "topic": "mqtt.topic",
    "filter": "mqtt.topic",
    "payload": "mqtt.msg",
    "packet_id": "mqtt.msgid",
    "client_id": "mqtt.clientid",
    "keep_alive": "mqtt.kalive",
    "user_name": "mqtt.username",
    "return_code": "mqtt.conack.val",
    "session_present": "mqtt.conack.flags.sp",
    "clean_session": "mqtt.conflag.cleansess",
    "return_codes": "mqtt.suback.qos",
}
#: Fields that one kind of packet has under a name of its own.
SPECIAL = {
    ("publish", "qos"): "mqtt.qos",
    ("publish", "dup"): "mqtt.dupflag",
    ("publish", "retain"): "mqtt.retain",
    ("subscribe", "qos"): "mqtt.sub.qos",
}
WILL = {
    "topic": "mqtt.willtopic",
    "message": "mqtt.willmsg",
    "qos": "mqtt.conflag.qos",
    "retain": "mqtt.conflag.retain",
}


def text_of(row: Row, name: str) -> str:
    value: bytes = vectors.text_of(row, name)
    return value.decode()


def expected(call: str, a: Row) -> Row:
    """What tshark should say of a packet, by its field names."""
    fields: Row = {}
    for name, value in a.items():
        field = SPECIAL.get((call, name)) or FIELDS.get(name)
        if name == "will":
            fields["mqtt.conflag.willflag"] = str(int(value is not None))
            for part, wanted in WILL.items():
                if value is not None:
                    told = value[part]
                    fields[wanted] = (
                        colons(vectors.unhex(told))
                        if part == "message"
                        else told
                        if part == "topic"
                        else str(int(told))
                    )
        elif field is None or value is None or (name == "packet_id" and value == 0):
            continue
        elif name == "payload":
            fields[field] = colons(vectors.unhex(value))
        elif name == "return_codes":
            fields[field] = [str(code) for code in value] if len(value) > 1 else str(value[0])
        elif name in {"topic", "filter", "client_id", "user_name"}:
            fields[field] = text_of(a, name)
        else:
            fields[field] = str(int(value))
    if call == "connack" and a["return_code"]:
        fields["mqtt.conack.flags.sp"] = "0"  # 3.2.2.2
    if call == "connect":
        fields["mqtt.ver"] = "4"
        fields["mqtt.protoname"] = "MQTT"
        if a["password"] is not None:
            fields["mqtt.passwd"] = vectors.unhex(a["password"]).decode()
    return fields


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[list[Row]]:
    buf = bytearray(64)
    hello = bytes(buf[: packets.encode_connect(buf, 0, 64, b"c", 60, True)])
    welcome = bytes(buf[: packets_server.encode_connack(buf, 0, 64, False, spec.ACCEPTED)])
    path = tmp_path_factory.mktemp("tshark") / "packets.pcap"
    return encoded_packets(VECTORS, partial(encoded, 4), hello, welcome, path)


@pytest.mark.needs_tshark
@each_row("number", range(len(VECTORS)), ids=[row["name"] for row in VECTORS])
def test_tshark_reads_what_we_encode(seen: list[list[Row]], number: int) -> None:
    row = VECTORS[number]
    packet = flat(seen[number][-1])
    call, arguments = row["call"], row["arguments"]
    kind = arguments.get("type") or call.upper()
    assert int(packet["mqtt.msgtype"]) == NAMES.index(kind)
    wanted = expected(call, arguments)
    assert {name: packet.get(name) for name in wanted} == wanted
