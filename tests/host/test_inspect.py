"""``headwater inspect`` of MQTT: the shared vectors of each version, and everything that is no packet."""

import json
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import load, unhex

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.mqtt import properties
from headwater.names5 import CODES, PROPERTIES, code_name
from headwater.reasons import REASONS
from headwater_host.errors import TimedOutError
from headwater_host.inspect.mqtt import NAMES, mqtt_frames
from headwater_host.malformed import MalformedError
from tests.host.command import ended, environment, headwater
from tests.host.inspecting import check_reading, inspect
from tests.rows import each_row

FILES = {"3.1.1": "mqtt", "3.1": "mqtt31", "5": "mqtt5"}
ROWS = [(version, row) for version, file in FILES.items() for row in load(file)["packets"]]
GOOD = [(version, row) for version, row in ROWS if "packet" in row]
BAD = [(version, row) for version, row in ROWS if "error" in row]


def name_of(version_row: tuple[str, dict[str, Any]]) -> str:
    version, row = version_row
    return f"{version}: {row['name']}"


def plain(value: Any) -> Any:
    """A row's packet as ``inspect`` prints it: ``topic_hex`` and its like written out, hex without abbreviations."""
    if isinstance(value, dict):
        fields = {}
        for name, field in value.items():
            if name.endswith("_hex"):
                fields[name.removesuffix("_hex")] = unhex(field).decode()
            elif name in {"payload", "message", "password"} and field is not None:
                fields[name] = unhex(field).hex()
            else:
                fields[name] = plain(field)
        return fields
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


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
def test_each_malformed_packet_of_the_vectors_is_named_with_its_offset(
    version: str, row: dict[str, Any]
) -> None:
    for pings in (0, 2):
        error = row["error"] | {"offset": row["error"]["offset"] + 2 * pings}
        got = inspect(b"\xc0\x00" * pings + unhex(row["hex"]), "--version", version)
        assert got == (1, [{"type": "PINGREQ"}] * pings + [{"error": error}])


@each_row("version", FILES)
def test_all_packets_of_the_vectors_behind_each_other(version: str) -> None:
    rows = [row for other, row in GOOD if other == version]
    packets = [unhex(row["hex"]) for row in rows]
    code, lines = inspect(b"".join(packets), "--version", version)
    assert code == 0
    assert lines == [shown(row["packet"]) for row in rows]
    sizes = [len(packet) for packet in packets]
    places = [(at, size) for at, size, _ in mqtt_frames(b"".join(packets), version)]
    assert places == list(zip(accumulate(sizes, initial=0), sizes, strict=False))


def test_publish_has_exactly_the_fields_that_the_documentation_names() -> None:
    code, lines = inspect(bytes.fromhex("3b09 0003612f62 000a 00ff"))
    assert code == 0
    assert lines == [
        {
            "type": "PUBLISH",
            "dup": True,
            "qos": 1,
            "retain": True,
            "topic": "a/b",
            "packet_id": 10,
            "payload": "00ff",
        }
    ]


def test_nothing_is_no_error() -> None:
    assert inspect(b"") == (0, [])


@settings(max_examples=3000, deadline=None)
@given(st.sampled_from(list(FILES)), st.binary(max_size=60))
def test_any_bytes_give_frames_and_then_an_end_or_an_error(version: str, data: bytes) -> None:
    check_reading(mqtt_frames(data, version), len(data), REASONS)


# ---- as a user meets it ----------------------------------------------------------------------------------------------


def test_hex_on_the_command_line() -> None:
    shown = headwater("inspect", "--protocol", "mqtt", "--hex", "30 03 0001 61C000", "--json")
    assert shown.returncode == 0
    assert [json.loads(line)["type"] for line in shown.stdout.splitlines()] == ["PUBLISH", "PINGREQ"]
    cut = headwater("inspect", "--protocol", "mqtt", "--hex", "c0003005", "--json")
    assert cut.returncode == 1
    assert json.loads(cut.stdout.splitlines()[-1]) == {"error": {"reason": "truncated", "offset": 4}}
    assert cut.stderr == b""


def test_hex_from_standard_input() -> None:
    shown = headwater("inspect", "--hex", "-", "--json", data=b"c0\n00\td0 00\n")
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [
        {"type": "PINGREQ"},
        {"type": "PINGRESP"},
    ]


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "frames"
    file.write_bytes(bytes.fromhex("e000"))
    assert json.loads(headwater("inspect", "--file", file, "--json").stdout) == {"type": "DISCONNECT"}


def test_for_people() -> None:
    shown = headwater("inspect", "--hex", "3005000161c3a4 400200")
    assert shown.returncode == 1
    first, second = shown.stdout.decode().splitlines()
    assert first.split()[:4] == ["0", "7", "bytes", "PUBLISH"]
    assert 'topic="a"' in first
    assert second == "      10  malformed: the input ends inside a packet (truncated)"


def test_people_are_shown_names_and_no_bare_numbers() -> None:
    said = headwater("inspect", "--hex", "20020005 9003000180").stdout.decode()
    assert "return_code=5 (not authorized)" in said
    assert "return_codes=[128 (failure)]" in said
    said = headwater(
        "inspect", "--protocol", "fmq", "--hex", "e0310103b015cd4e2b845bd718023187"
    ).stdout.decode()
    assert "reason=135 (not_authorized)" in said
    assert repr(MalformedError(errors.E_TRUNCATED, 3)) == "MalformedError('truncated', offset=3)"
    timeout = HeadwaterError(errors.E_TIMEOUT)
    assert (str(timeout), repr(timeout)) == ("E_TIMEOUT", "HeadwaterError('E_TIMEOUT')")
    assert repr(TimedOutError("too late")) == "TimedOutError('E_TIMEOUT: too late')"
    assert str(HeadwaterError(-7, "of IBM MQ's")) == "status -7: of IBM MQ's"


@each_row(
    "arguments, says",
    [
        (["--hex", "3"], "1 digits; an even number is needed"),
        (["--hex", "30zz"], "'z' at position 2 is not a hexadecimal digit"),
        (["--hex", "0x30"], "'x' at position 1"),
        (["--hex", "\u0663\u0663"], "is not a hexadecimal digit"),
        (["--file", "/nonexistent"], "cannot read /nonexistent: No such file"),
        (["--hex", "30", "--protocol", "mqtr"], "invalid choice: 'mqtr'"),
        ([], "--hex --file is required"),
        (["--hex", "30", "--file", "x"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("inspect", "--json", *arguments) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""


def test_inspect_needs_nothing_that_takes_long_to_import() -> None:
    code = (
        "import sys\nfrom headwater_host.cli.main import main\nmain(['inspect', '--hex', 'c000'])\n"
        "print([m for m in ('asyncio', 'pyspark', 'numpy', 'importlib.metadata') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert shown.stdout.splitlines()[-1] == "[]"


def test_mqtt_5_on_the_command_line() -> None:
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
