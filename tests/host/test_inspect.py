"""``headwater inspect``: the shared vectors, packets of both directions, and everything that is no packet."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import load, unhex

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.reasons import REASONS
from headwater_host.cli import main as cli
from headwater_host.errors import TimedOutError
from headwater_host.inspect.mqtt import mqtt_frames
from headwater_host.malformed import MalformedError
from tests.host.command import environment, headwater
from tests.rows import each_row

VECTORS = load("mqtt")["packets"]
GOOD = [row for row in VECTORS if "packet" in row]
BAD = [row for row in VECTORS if "error" in row]


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


def inspect(data: bytes, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command in this process: its exit code, and its lines."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    stdin = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    try:
        with contextlib.redirect_stdout(out):
            code = cli.main(["inspect", "--protocol", "mqtt", "--file", "-", "--json", *arguments])
            out.flush()
    finally:
        sys.stdin = stdin
    out.seek(0)
    return code, [json.loads(line) for line in out]


@each_row("row", GOOD, ids=lambda row: row["name"])
def test_each_packet_of_the_vectors_is_shown(row: dict[str, Any]) -> None:
    assert inspect(unhex(row["hex"])) == (0, [plain(row["packet"])])


@each_row("row", BAD, ids=lambda row: row["name"])
def test_each_malformed_packet_of_the_vectors_is_named(row: dict[str, Any]) -> None:
    assert inspect(unhex(row["hex"])) == (1, [{"error": row["error"]}])


@each_row("row", BAD, ids=lambda row: row["name"])
def test_the_offset_is_one_in_the_whole_input(row: dict[str, Any]) -> None:
    first = bytes.fromhex("c000 3003000161")
    code, lines = inspect(first + unhex(row["hex"]))
    error = row["error"] | {"offset": row["error"]["offset"] + len(first)}
    assert code == 1
    assert lines[2:] == [{"error": error}]


def test_all_packets_of_the_vectors_behind_each_other() -> None:
    code, lines = inspect(b"".join(unhex(row["hex"]) for row in GOOD))
    assert code == 0
    assert lines == [plain(row["packet"]) for row in GOOD]


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


@settings(max_examples=2000, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_frames_and_then_an_end_or_an_error(data: bytes) -> None:
    at = 0
    end = len(data)
    try:
        for begin, size, fields in mqtt_frames(data):
            assert begin == at
            assert size >= 2
            json.dumps(fields)
            at = begin + size
    except MalformedError as error:
        end = error.offset
        code = error.code
    else:
        code = 0
    assert at <= end <= len(data)
    assert (code in REASONS) if code else at == end


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
        (["--hex", "3"], b"1 digits; an even number is needed"),
        (["--hex", "30zz"], b"'z' at position 2 is not a hexadecimal digit"),
        (["--hex", "0x30"], b"'x' at position 1"),
        (["--hex", "\u0663\u0663"], b"is not a hexadecimal digit"),
        (["--file", "/nonexistent"], b"cannot read /nonexistent: No such file"),
        (["--hex", "30", "--protocol", "mqtr"], b"invalid choice: 'mqtr'"),
        ([], b"--hex --file is required"),
        (["--hex", "30", "--file", "x"], b"not allowed with"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str], says: bytes) -> None:
    shown = headwater("inspect", "--json", *arguments)
    assert shown.returncode == 2
    assert says in shown.stderr
    assert b"Traceback" not in shown.stderr
    assert shown.stdout == b""


def test_inspect_needs_nothing_that_takes_long_to_import() -> None:
    code = (
        "import sys\nfrom headwater_host.cli.main import main\nmain(['inspect', '--hex', 'c000'])\n"
        "print([m for m in ('asyncio', 'pyspark', 'numpy', 'importlib.metadata') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert shown.stdout.splitlines()[-1] == "[]"
