"""``headwater inspect --version``: the vectors of MQTT 3.1 and 5.0, and everything that is no packet."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import load, unhex

from headwater.mqtt import properties
from headwater.names5 import CODES, PROPERTIES, code_name
from headwater.reasons import REASONS
from headwater_host.inspect.mqtt import NAMES, mqtt_frames
from headwater_host.malformed import MalformedError
from tests.host.command import headwater
from tests.host.test_inspect import inspect, plain
from tests.rows import each_row

FILES = {"3.1": "mqtt31", "5": "mqtt5"}
ROWS = [(version, row) for version, file in FILES.items() for row in load(file)["packets"]]
GOOD = [(version, row) for version, row in ROWS if "packet" in row]
BAD = [(version, row) for version, row in ROWS if "error" in row]


def name_of(version_row: tuple[str, dict[str, Any]]) -> str:
    version, row = version_row
    return f"{version}: {row['name']}"


def by_name(properties: list[Any]) -> dict[str, Any]:
    """A row's properties as ``inspect`` prints them."""
    found: dict[str, Any] = {}
    for name, value in properties:
        if name in {"user_property", "subscription_identifier"}:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def shown(packet: dict[str, Any]) -> dict[str, Any]:
    """A row's packet as ``inspect`` prints it."""
    fields: dict[str, Any] = plain({name: value for name, value in packet.items() if name != "properties"})
    if "properties" in packet:
        fields["properties"] = by_name(packet["properties"])
    if (packet.get("will") or {}).get("properties") is not None:
        fields["will"]["properties"] = by_name(packet["will"]["properties"])
    kind = NAMES.index(packet["type"])
    if "reason_code" in packet:
        fields["reason"] = code_name(packet["reason_code"], kind)
    if "reason_codes" in packet:
        fields["reasons"] = [code_name(code, kind) for code in packet["reason_codes"]]
    return fields


@each_row("version, row", GOOD, ids=name_of)
def test_each_packet_of_the_vectors_is_shown(version: str, row: dict[str, Any]) -> None:
    assert inspect(unhex(row["hex"]), "--version", version) == (0, [shown(row["packet"])])


@each_row("version, row", BAD, ids=name_of)
def test_each_malformed_packet_of_the_vectors_is_named(version: str, row: dict[str, Any]) -> None:
    ping = bytes.fromhex("c000")
    error = row["error"] | {"offset": row["error"]["offset"] + len(ping)}
    got = inspect(ping + unhex(row["hex"]), "--version", version)
    assert got == (1, [{"type": "PINGREQ"}, {"error": error}])


@each_row("version", FILES)
def test_all_packets_of_the_vectors_behind_each_other(version: str) -> None:
    rows = [row for other, row in GOOD if other == version]
    code, lines = inspect(b"".join(unhex(row["hex"]) for row in rows), "--version", version)
    assert code == 0
    assert lines == [shown(row["packet"]) for row in rows]


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(["3.1", "5"]), st.binary(max_size=60))
def test_any_bytes_give_frames_and_then_an_end_or_an_error(version: str, data: bytes) -> None:
    at = 0
    end = len(data)
    code = 0
    try:
        for begin, size, fields in mqtt_frames(data, version):
            assert begin == at
            json.dumps(fields)
            at = begin + size
    except MalformedError as error:
        end = error.offset
        code = error.code
    assert at <= end <= len(data)
    assert (code in REASONS) if code else at == end


def test_as_a_user_meets_it() -> None:
    data = "3213 0001 61 0001 0b 0200000005 26 0001 6b 0000 6869  4003 0001 10  9005 000a 00 0087  e000"
    done = headwater("inspect", "--version", "5", "--json", "--hex", data)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {
            "type": "PUBLISH",
            "dup": False,
            "qos": 1,
            "retain": False,
            "topic": "a",
            "packet_id": 1,
            "properties": {"message_expiry_interval": 5, "user_property": [["k", ""]]},
            "payload": "6869",
        },
        {
            "type": "PUBACK",
            "packet_id": 1,
            "reason_code": 16,
            "reason": "no_matching_subscribers",
            "properties": {},
        },
        {
            "type": "SUBACK",
            "packet_id": 10,
            "properties": {},
            "reason_codes": [0, 135],
            "reasons": ["granted_qos_0", "not_authorized"],
        },
        {"type": "DISCONNECT", "reason_code": 0, "reason": "normal_disconnection", "properties": {}},
    ]
    people = headwater("inspect", "--version", "5", "--hex", data)
    assert b'reason="no_matching_subscribers"' in people.stdout
    assert headwater("inspect", "--version", "4", "--hex", data).returncode == 2


def test_everything_has_a_name() -> None:
    assert set(CODES) == set(properties.CODES[::3])
    assert len(set(CODES.values())) == len(CODES) == 43
    assert len(set(PROPERTIES.values())) == len(PROPERTIES) == 27
