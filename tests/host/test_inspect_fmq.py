"""``headwater inspect`` of FMQ's frames and values: the shared vectors, and everything that is neither."""

import json
import math
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from vectors import load

from headwater.fmq.names import REASONS, TYPES
from headwater_host.inspect.fmq import frames, values
from tests.host.command import headwater
from tests.host.inspecting import check_reading, inspect
from tests.rows import each_row

ROWS = load("fmq")
NUMBERS = ("Int", "BigInt", "Decimal", "Duration", "DateTime")


def fmq(data: bytes) -> tuple[int, list[dict[str, Any]]]:
    return inspect(data, "--protocol", "fmq")


def fmq_value(data: bytes) -> tuple[int, list[dict[str, Any]]]:
    return inspect(data, "--protocol", "fmq-value")


def texts(value: Any) -> Any:
    """What a row has in a list or a map, as ``inspect`` shows it."""
    if isinstance(value, list):
        return [texts(one) for one in value]
    return str(value) if type(value) is int else value


@each_row("row", ROWS["frames"], ids=lambda row: row["name"])
def test_frames(row: dict[str, Any]) -> None:
    code, (shown,) = fmq(bytes.fromhex(row["hex"]))
    assert code == 0
    assert list(shown)[:3] == ["type", "flags", "id"]
    assert shown["type"] == TYPES[row["type"]]
    assert shown["flags"] == row["flags"]
    assert shown["id"]["hex"] == row["id"]
    want = {name: row[name] for name in row if name not in ("name", "hex", "type", "flags", "id", "body")}
    if "time_ns" in shown and "time_ns" in want:
        want["time_ns"] = int(want["time_ns"])
    assert {name: shown[name] for name in want} == want


@each_row("row", ROWS["message_ids"], ids=lambda row: row["hex"])
def test_ids(row: dict[str, Any]) -> None:
    _, (shown,) = fmq(b"\x50" + bytes.fromhex(row["hex"]))
    assert shown["id"] == row | {"time_ns": int(row["time_ns"])}


def test_all_frames_behind_each_other() -> None:
    code, shown = fmq(b"".join(bytes.fromhex(row["hex"]) for row in ROWS["frames"]))
    assert code == 0
    assert [line["id"]["hex"] for line in shown] == [row["id"] for row in ROWS["frames"]]


@each_row("row", ROWS["malformed_frames"], ids=lambda row: row["why"])
def test_malformed_frames(row: dict[str, Any]) -> None:
    first = bytes.fromhex("50310103b105")
    for before in (b"", first):
        code, shown = fmq(before + bytes.fromhex(row["hex"]))
        assert code == 1
        error = {"reason": row["reason"], "offset": row["offset"] + len(before)}
        assert shown[-1] == {"error": error}
        assert len(shown) == (2 if before else 1)


def test_a_frame_that_is_cut_short() -> None:
    for row in ROWS["frames"]:
        data = bytes.fromhex(row["hex"])
        for n in {1, 2, len(data) // 2, len(data) - 1}:
            assert fmq(data[:n]) == (1, [{"error": {"reason": "truncated", "offset": n}}])


def test_no_frame_is_no_error_and_no_value_is_one() -> None:
    assert fmq(b"") == (0, [])
    assert fmq_value(b"") == (1, [{"error": {"reason": "field_beyond_end", "offset": 0}}])


@each_row("row", ROWS["values"] + ROWS["longer_values"], ids=lambda row: row["hex"][:30])
def test_values(row: dict[str, Any]) -> None:
    code, (shown,) = fmq_value(bytes.fromhex(row["hex"]))
    assert code == 0
    assert list(shown) == ["type", "value"]
    assert shown["type"] == row["type"]
    got = shown["value"]
    if row["type"] == "Object":
        assert got == [texts(row["fields"][name]) for name in row["order"]]
    elif row["type"] == "Decimal":
        assert isinstance(got, str)
        assert Decimal(got) == Decimal(row["value"])
    elif row["type"] in NUMBERS:
        assert got == row["value"]
    elif row["type"] == "Float":
        number = float(row["value"])
        if math.isfinite(number):
            assert (got, math.copysign(1, got)) == (number, math.copysign(1, number))
        else:
            assert got == row["value"]
    else:
        assert got == texts(row["value"])


@each_row("row", ROWS["malformed_values"], ids=lambda row: row["why"])
def test_malformed_values(row: dict[str, Any]) -> None:
    error = {"reason": row["reason"], "offset": row["offset"]}
    assert fmq_value(bytes.fromhex(row["hex"])) == (1, [{"error": error}])


def test_an_integer_of_any_size() -> None:
    size = 20000
    data = b"\x62" + size.to_bytes(2, "little") + b"\x01" + bytes(size - 1)
    code, (shown,) = fmq_value(data)
    assert (code, shown["type"]) == (0, "BigInt")
    assert len(shown["value"]) == 48163
    assert Decimal(shown["value"]) == Decimal(1 << 8 * (size - 1))


@given(st.binary(max_size=60))
@example(bytes.fromhex("e0310103b015cd4e2b845bd7180431003100"))
@example(bytes.fromhex("e0d10103b015cd4e2b845bd718023100"))
def test_any_bytes_give_frames_and_then_an_end_or_an_error(data: bytes) -> None:
    for read in (frames, values):
        check_reading(read(data), len(data), REASONS)


# ---- as a user meets it ----------------------------------------------------------------------------------------------


def test_hex_on_the_command_line() -> None:
    shown = headwater("inspect", "--protocol", "fmq", "--hex", "30 310103 b105 04 110161 d0", "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout) == {
        "type": "PUBLISH",
        "flags": 0,
        "id": {"type": 3, "process": 1, "thread": 3, "time_ns": 5, "hex": "310103b105"},
        "qos": 0,
        "dup": False,
        "retain": False,
        "topic": "a",
        "tags": [],
        "payload": "",
    }
    shown = headwater("inspect", "--protocol", "fmq-value", "--hex", "723a01110302", "--json")
    assert json.loads(shown.stdout) == {"type": "Decimal", "value": "3.14"}


def test_for_people() -> None:
    shown = headwater("inspect", "--protocol", "fmq", "--hex", "50310103b105 4f")
    assert shown.returncode == 1
    first, second = shown.stdout.decode().splitlines()
    assert first.split()[:4] == ["0", "6", "bytes", "PUBREC"]
    assert second.split()[:2] == ["6", "malformed:"]
    assert second.endswith("(reserved_frame_type)")


def test_only_mqtt_has_versions() -> None:
    shown = headwater("inspect", "--protocol", "fmq", "--version", "5", "--hex", "00")
    assert shown.returncode == 2
    assert b"--version needs --protocol mqtt" in shown.stderr
