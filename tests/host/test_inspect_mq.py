"""``headwater inspect`` of IBM MQ's headers: the shared vectors and cases, chains, and everything that is none."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import load

from headwater_host.cli import main as cli
from headwater_host.cli.inspect_mq import line
from headwater_host.inspect.mq import MalformedHeaderError, chain, extension, flags
from headwater_host.mq.structures import LAYOUTS, encode
from tests.host import inspecting
from tests.host.command import ended, headwater
from tests.rows import each_row
from tools.toolchain import ROOT

VECTORS = load("mqmde")["vectors"]
GOOD = [row for row in VECTORS if row["codec"] == "ok"]
BAD = [row for row in VECTORS if row["codec"] == "error"]
#: Here a chain may begin with an MQMDE as well.
CHAINS = [row for row in load("mqmde")["chains"] if row["name"] != "neither MQXQH nor MQMD"]
XMITQ = [row for row in load("mqput")["cases"] if row["kind"] == "XMITQ"]
#: How reading ends: well, or with what is wrong with a header.
REASONS = {
    (0, ""),
    (2026, "MQRC_MD_ERROR"),
    (2141, "MQRC_DLH_ERROR"),
    (2248, "MQRC_MDE_ERROR"),
    (2260, "MQRC_XQH_ERROR"),
}
#: Where in an MQMDE what is wrong with the vectors that are no MQMDEs.
WRONG = {"strucid": ("StrucId", 0), "version": ("Version", 4), "struclength": ("StrucLength", 8)}


def inspect(protocol: str, data: bytes, *options: str) -> tuple[int, list[dict[str, Any]]]:
    return inspecting.inspect(data, "--protocol", protocol, *options)


def shown(protocol: str, data: bytes, *options: str) -> tuple[int, str]:
    return inspecting.shown(data, "--protocol", protocol, *options)


def written(row: dict[str, Any]) -> list[str]:
    return ["--order", row["order"], "--ccsid", str(row["ccsid"])]


def whole(row: dict[str, Any]) -> bytes:
    return bytes.fromhex(row["hex"] + row["payload_hex"])


@each_row("row", GOOD, ids=lambda row: row["name"])
def test_an_extension_is_one_object(row: dict[str, Any]) -> None:
    want = (0, [{"fields": row["fields"], "payload": row["payload_hex"]}])
    assert inspect("mqmde", whole(row), *written(row)) == want
    # How it is written shows.
    assert inspect("mqmde", whole(row)) == want
    assert list(want[1][0]["fields"]) == [field[0] for field in LAYOUTS["MQMDE"][3]]


@each_row("row", BAD, ids=lambda row: row["name"])
def test_what_is_no_extension_is_named(row: dict[str, Any]) -> None:
    field, offset = next(where for what, where in WRONG.items() if what in row["name"])
    error = {"reason": 2248, "offset": offset, "reason_name": "MQRC_MDE_ERROR", "field": field}
    assert inspect("mqmde", whole(row), *written(row)) == (1, [{"error": error}])
    assert inspect("mqmde", whole(row)) == (1, [{"error": error}])


def test_how_it_is_written_may_be_said_and_then_rules() -> None:
    row = GOOD[1]
    other = "big" if row["order"] == "little" else "little"
    _, (said,) = inspect("mqmde", whole(row), "--order", other)
    assert (said["error"]["field"], said["error"]["offset"]) == ("Version", 4)
    _, (said,) = inspect("mqmde", whole(row), "--ccsid", "500")
    assert (said["error"]["field"], said["error"]["offset"]) == ("StrucId", 0)


def test_an_extension_that_is_cut_short() -> None:
    rows = LAYOUTS["MQMDE"][3]
    for row in GOOD[::9]:
        for n in range(72):
            _, (said,) = inspect("mqmde", whole(row)[:n])
            cut = next(field for field in rows if field[1] + field[2] > n)
            assert (said["error"]["field"], said["error"]["offset"]) == (cut[0], cut[1])


def test_any_payload_is_one() -> None:
    for payload in (b"", b"\0", bytes(range(256)), bytes(1 << 20)):
        _, (said,) = inspect("mqmde", bytes.fromhex(GOOD[0]["hex"]) + payload)
        assert said["payload"] == payload.hex()


# -- chains ------------------------------------------------------------------------------------------------------------


@each_row("row", XMITQ, ids=lambda row: row["name"])
def test_a_chain_is_a_line_for_each_header_and_one_for_the_data(row: dict[str, Any]) -> None:
    code, lines = inspect("mq", bytes.fromhex(row["body_hex"]))
    assert code == 0
    parts = [part.partition("(")[0].replace("MQMD1", "MQMD") for part in row["layout"]]
    assert [said["type"] for said in lines] == parts
    at = 0
    for said in lines[:-1]:
        assert list(said) == ["type", "fields"]
        at += sum(field[2] for field in LAYOUTS[said["type"]][3][: len(said["fields"])])
    last = lines[-2]["fields"]
    assert lines[-1] == {
        "type": "data",
        "Format": last["Format"],
        "Encoding": last["Encoding"],
        "CodedCharSetId": last["CodedCharSetId"],
        "payload": row["body_hex"][2 * at :],
    }


@each_row("row", CHAINS, ids=lambda row: row["name"])
def test_the_chains_of_the_vectors(row: dict[str, Any]) -> None:
    options = [*written(row), *(["--format", row["start"]] if "start" in row else [])]
    code, lines = inspect("mq", bytes.fromhex(row["hex"]), *options)
    assert [said["type"] for said in lines[:-1]] == row["headers"]
    if "error" in row:
        error = lines[-1]["error"]
        assert (code, {name: error[name] for name in row["error"]}) == (1, row["error"])
    else:
        data = {name: row[name] for name in ("Format", "Encoding", "CodedCharSetId")}
        assert (code, lines[-1]) == (0, {"type": "data"} | data | {"payload": row["hex"][2 * row["at"] :]})


def made() -> Iterator[tuple[str, list[str], bytes]]:
    """Chains in all ways of writing: their Format, their headers, their bytes."""
    mde = {"Format": "MQSTR", "CodedCharSetId": 1208}
    for big in (False, True):
        for ccsid in (819, 37, 500, 1047, 1140):
            how: dict[str, object] = {"Encoding": 0x111 if big else 0x222, "CodedCharSetId": ccsid}
            rows: list[tuple[str, dict[str, object]]] = [
                ("MQXQH", {"RemoteQName": "Q"}),
                ("MQMD1", how | {"Format": "MQDEAD"}),
                ("MQDLH", how | {"Format": "MQHMDE", "Reason": 2053}),
                ("MQMDE", mde),
            ]
            parts = [encode(LAYOUTS[name], row, big=big, ccsid=ccsid) for name, row in rows]
            names = [name.rstrip("1") for name, _ in rows]
            for first, form in ((0, "MQXMIT"), (1, ""), (2, "MQDEAD"), (3, "MQHMDE")):
                yield form, names[first:], b"".join(parts[first:]) + b"data"
            version_2 = encode(LAYOUTS["MQMD"], how | {"Format": "MQHMDE"}, big=big, ccsid=ccsid)
            yield "", ["MQMD", "MQMDE"], version_2 + parts[3] + b"data"


def test_chains_of_every_kind_begin_where_they_begin() -> None:
    for form, names, data in made():
        for options in ([], ["--format", form] if form else []):
            code, lines = inspect("mq", data, *options)
            assert (code, [said["type"] for said in lines]) == (0, [*names, "data"])
            assert lines[-1]["Format"] == "MQSTR   "
            assert lines[-1]["payload"] == b"data".hex()


def test_a_format_that_names_no_header_is_that_of_data() -> None:
    want = {"type": "data", "Format": "MQSTR   ", "Encoding": 273, "CodedCharSetId": 500, "payload": "d4"}
    options = ("--format", "MQSTR", "--order", "big", "--ccsid", "500")
    assert inspect("mq", b"\xd4", *options) == (0, [want])


def test_a_chain_that_breaks() -> None:
    """Headers before it, and what is wrong with which field."""
    data = bytearray(bytes.fromhex(XMITQ[0]["body_hex"]))
    data[428 + 8] = 80
    code, lines = inspect("mq", bytes(data))
    assert code == 1
    assert [said.get("type") for said in lines] == ["MQXQH", "MQMD", None]
    error = {"reason": 2248, "offset": 436, "reason_name": "MQRC_MDE_ERROR", "field": "StrucLength"}
    assert lines[-1] == {"error": error}
    for n, reason, field in ((0, 2026, "StrucId"), (103, 2260, "RemoteQMgrName"), (120, 2026, "Expiry")):
        code, lines = inspect("mq", bytes(data[:n]))
        assert (code, lines[-1]["error"]["reason"], lines[-1]["error"]["field"]) == (1, reason, field)


# -- for people --------------------------------------------------------------------------------------------------------


def test_lines_name_flags_and_reasons_and_leave_out_what_is_empty() -> None:
    code, text = shown("mq", bytes.fromhex(XMITQ[1]["body_hex"]))
    xqh, md, dlh, mde, data = text.splitlines()
    assert code == 0
    assert xqh.split() == [
        "0",
        "104",
        "bytes",
        "MQXQH",
        "Version=1",
        'RemoteQName="Q1"',
        'RemoteQMgrName="QM2"',
    ]
    assert md.split()[:4] == ["104", "324", "bytes", "MQMD"]
    assert "ReplyToQ" not in md
    assert "MsgId" not in md
    assert "Reason=2053 (MQRC_Q_FULL)" in dlh
    assert 'PutTime="00000000"' in dlh.split()
    assert "MsgFlags=SEGMENT" in mde.split()
    assert data.split()[:4] == ["672", "9", "bytes", "data"]
    assert data.endswith('payload="74656d703d32312e35"')


def test_an_extension_for_people_is_two_lines() -> None:
    code, text = shown("mqmde", bytes.fromhex(GOOD[4]["hex"]) + b"\0\0")
    first, second = text.splitlines()
    assert code == 0
    assert "MsgFlags=SEGMENT|LAST_SEGMENT|MSG_IN_GROUP|LAST_MSG_IN_GROUP" in first.split()
    assert second.split() == ["72", "2", "bytes", "data", 'payload="0000"']


def test_flags_without_a_name_are_shown_all_the_same() -> None:
    assert flags(0x80000006) == "SEGMENT|LAST_SEGMENT|0x80000000"
    assert flags(0) == ""


def test_what_is_wrong_for_people() -> None:
    code, text = shown("mqmde", bytes.fromhex(GOOD[0]["hex"])[:40])
    assert code == 1
    assert text == "      32  malformed: MQRC_MDE_ERROR (2248): GroupId, the input ends before it does\n"


@each_row(
    "at, put, options, says",
    [
        (4, b"", "--order little", "Version, it is 33554432 and must be 2: in the other byte order it is 2"),
        (4, b"\0\0\0\3", "", "Version, it is 3 and must be 2"),
        (8, b"\0\0\0\x50", "", "StrucLength, it is 80 and must be 72"),
        (
            8,
            b"\x48\0\0\0",
            "",
            "StrucLength, it is 1207959552 and must be 72: in the other byte order it is 72",
        ),
        (0, b"MDX\n", "", 'StrucId, it is "MDX\\n" and must be "MDE "'),
        (0, b"", "--ccsid 500", 'StrucId, it is "(\\u00e0\\u00e1\\u0080" and must be "MDE "'),
    ],
)
def test_what_is_wrong_and_what_it_must_be(at: int, put: bytes, options: str, says: str) -> None:
    data = bytearray(whole(next(row for row in GOOD if (row["order"], row["ccsid"]) == ("big", 819))))
    data[at : at + len(put)] = put
    assert shown("mqmde", bytes(data), "--order", "big", *options.split())[1].endswith(f": {says}\n")


def test_what_is_wrong_within_a_chain() -> None:
    """An MQMD has two versions; and what Encoding must say."""
    data = bytearray(bytes.fromhex(XMITQ[0]["body_hex"]))
    order: Literal["big", "little"] = "big" if data[4] == 0 else "little"
    for at, value, says in (
        (104 + 4, 3, "Version, it is 3 and must be 1"),
        (104 + 24, 0, "Encoding, it is 0 and names no order of integers, as 273 and 546 do"),
        (104 + 24, 0x11010000, "Encoding, it is 285278208 and names no order of integers, as 273 and 546 do"),
    ):
        wrong = bytearray(data)
        wrong[at : at + 4] = value.to_bytes(4, order)
        said = shown("mq", bytes(wrong))[1]
        assert f": {says}" in said
        assert said.endswith(": in the other byte order it is 273\n") == (value > 0xFFFF)


# -- everything that is none -------------------------------------------------------------------------------------------

_SEEDS = [whole(row) for row in VECTORS[::5]] + [data for _, _, data in made()][::7]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(_SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(st.binary(max_size=200) | damaged(), st.sampled_from([None, "MQHMDE", "MQDEAD", "MQXMIT", "x"]))
def test_any_bytes_give_headers_and_then_data_or_an_error(data: bytes, form: str | None) -> None:
    for read in (extension(data), chain(data, form=form)):
        at = 0
        end = len(data)
        try:
            for begin, size, fields in read:
                assert begin == at
                json.dumps(fields, allow_nan=False)
                assert line(begin, size, fields)
                at = begin + size
        except MalformedHeaderError as error:
            end, reason, name = error.offset, error.mqrc, error.shown()["reason_name"]
        else:
            reason, name = 0, ""
        assert at <= end <= len(data) if reason else at == end
        assert (reason, name) in REASONS


# -- as a user meets it ------------------------------------------------------------------------------------------------


def test_hex_on_the_command_line() -> None:
    row = GOOD[1]
    done = headwater("inspect", "--protocol", "mqmde", "--hex", row["hex"] + "2020", *written(row), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"fields": row["fields"], "payload": "2020"}


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    command, output = re.findall(r"```sh\nheadwater (inspect --protocol mqmde [^{]*)\n(.*)\n```", page)[0]
    assert cli.main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output + "\n"


@each_row(
    "arguments, says",
    [
        (["--protocol", "mqmde", "--version", "5"], "--version needs --protocol mqtt"),
        (["--protocol", "mqtt", "--order", "big"], "--order needs --protocol mq or mqmde"),
        (["--protocol", "fmq", "--ccsid", "500"], "--ccsid needs --protocol mq or mqmde"),
        (["--protocol", "mqmde", "--format", "MQSTR"], "--format needs --protocol mq"),
        (["--protocol", "mq", "--format", "ninechars"], "'ninechars' is not a Format"),
        (["--protocol", "mq", "--format", ""], "'' is not a Format"),
        (["--protocol", "mq", "--format", "\u00e9"], "is not a Format"),
        (["--protocol", "mq", "--ccsid", "-1"], "'-1' is not a whole number from 0 to 65535"),
        (["--protocol", "mq", "--order", "middle"], "invalid choice: 'middle'"),
    ],
)
def test_options_that_do_not_belong_here(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("inspect", *arguments, "--hex", "00") == 2
    assert says in capsys.readouterr().err
