"""Every case of what a put, a get and a transmission queue make of an MQMDE, and the rules between the cases."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.ibmmq.chain import MQDLH, MQMD1
from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, get, put, structures, transmission
from headwater_host.mq.descriptors import MD, V2_FIELDS, QueueManagerSettings
from headwater_host.mq.errors import MQMIError
from tests.host.mq_queue import reason_of
from tests.rows import each_row

FILE = json.loads((Path(__file__).parents[1] / "vectors" / "mqput.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = FILE["cases"]
GROUP_ID = bytes.fromhex("414d5120514d31000000000065a1b2c30001002000000000")
SETTINGS = QueueManagerSettings()


def cases(kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    chosen = [case for case in CASES if case["kind"] == kind]
    assert chosen
    return each_row("case", chosen, ids=[case["name"] for case in chosen])


def settings(case: dict[str, Any]) -> QueueManagerSettings:
    qmgr = case["qmgr"]
    return QueueManagerSettings(qmgr["CodedCharSetId"], qmgr["Encoding"], qmgr["platform"] == "zos")


def descriptor(fields: dict[str, Any]) -> MD:
    return MD(
        **{name: bytes.fromhex(value) if name == "GroupId" else value for name, value in fields.items()}
    )


def v2_fields(md: MD) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value := md[name], bytes) else value for name in V2_FIELDS}


def test_all_cases_are_of_a_kind_that_is_tested() -> None:
    assert {case["kind"] for case in CASES} == {"MQPUT", "MQGET", "XMITQ"}
    assert v2_fields(MD()) == FILE["defaults_v2"]


def decide(case: dict[str, Any], body: bytearray) -> tuple[str, MD, bytes, MD, bytes]:
    """Outcome, what was understood, and what is kept."""
    index = case["qmgr"].get("IndexType", "MQIT_NONE")
    found = put.read(
        descriptor(case["mqmd"]),
        body,
        settings(case),
        index_type=getattr(CMQC, index),
        remote=case.get("destination") == "remote",
    )
    kept = put.dead_letter(found.md, found.data, settings(case))
    data = bytes(found.data)
    if kept is None:
        return found.outcome, found.md, data, found.md, data
    return "mqmde-generated", found.md, data, *kept


@cases("MQPUT")
def test_put(case: dict[str, Any]) -> None:
    body = bytearray.fromhex(case["body_hex"])
    expected = case["expect"]
    if expected["outcome"] == "fail":
        with pytest.raises(MQMIError) as caught:
            decide(case, body)
        assert (caught.value.comp, caught.value.reason) == (expected["CompCode"], expected["Reason"])
        assert caught.value.errorAsString() == f"FAILED: {expected['ReasonName']}"
    else:
        outcome, md, data, kept, kept_data = decide(case, body)
        assert outcome == expected["outcome"]
        assert (expected["CompCode"], expected["Reason"]) == (CMQC.MQCC_OK, CMQC.MQRC_NONE)
        assert v2_fields(md) == case.get("effective_v2", v2_fields(md))
        assert data.hex() == case.get("app_data_hex", data.hex())
        assert md.CodedCharSetId == case.get("stored_ccsid", md.CodedCharSetId)
        for name, value in case.get("stored_mqmd", {}).items():
            assert kept[name] == descriptor({name: value})[name], name
        assert kept_data.hex() == case.get("stored_body_hex", kept_data.hex())
        if outcome == put.HONOURED:
            mde = structures.decode(MQMDE, bytes(body), big=settings(case).big, ccsid=settings(case).ccsid)
            assert (md.Format, md.Encoding) == (str(mde["Format"]).encode(), mde["Encoding"])
    assert body.hex() == case.get("caller_buffer_after_hex", case["body_hex"])


@cases("MQGET")
def test_get(case: dict[str, Any]) -> None:
    expected = case["expect"]
    md, data = get.returned(
        descriptor(case["stored_mqmd"] | {"Version": 2}),
        bytes.fromhex(case["stored_body_hex"]),
        case["app_mqmd_version"],
        settings(case),
    )
    assert data.hex() == expected["body_hex"]
    wanted = descriptor({name: expected[name] for name in ("Format", "Encoding", "CodedCharSetId")})
    assert (md.Format, md.Encoding, md.CodedCharSetId) == (
        wanted.Format,
        wanted.Encoding,
        wanted.CodedCharSetId,
    )
    prefixed = len(data) - len(bytes.fromhex(case["stored_body_hex"])) == 72
    assert prefixed == expected["mqmde_prefix"]


@cases("XMITQ")
def test_transmission_queue(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["body_hex"])
    dead = "MQDLH(172)" in case["layout"]
    # What is kept of the message, from which the queue manager makes the form.
    if dead:
        md = MD(Version=2, Format="MQDEAD", CodedCharSetId=819)
        data = body[104 + 324 :]
    else:
        md = descriptor(case["v2"] | {"Version": 2, "Format": "MQSTR", "CodedCharSetId": 1208})
        data = body[104 + 324 + 72 :]
    assert v2_fields(md) == case["v2"]
    made = transmission.wrap(md, data, b"Q1", b"QM2", SETTINGS)
    assert made.hex() == case["body_hex"]
    lengths = {"MQXQH(104)": 104, "MQMD1(324)": 324, "MQMDE(72)": 72, "MQDLH(172)": 172, "data": 9}
    names = {"MQXQH(104)": b"XQH ", "MQMD1(324)": b"MD  ", "MQMDE(72)": b"MDE ", "MQDLH(172)": b"DLH "}
    at = 0
    for part in case["layout"]:
        assert made[at : at + 4] == names.get(part, b"temp")
        at += lengths[part]
    assert at == len(made)
    outer = transmission.outer(md, SETTINGS)
    wanted = descriptor(case["separate_mqmd"])
    assert (outer.Format, outer.Encoding, outer.CodedCharSetId) == (
        wanted.Format,
        wanted.Encoding,
        wanted.CodedCharSetId,
    )
    assert outer.has_defaults()


def test_the_dead_letter_case_becomes_the_transmission_case() -> None:
    """From the put of a segment with an MQDLH to the bytes on the transmission queue."""
    case = next(case for case in CASES if case["name"] == "segment_dlh_mqmde")
    body = bytes.fromhex(case["body_hex"])
    dlh = structures.decode(MQDLH, body, 428, big=False, ccsid=819)
    mde = structures.decode(MQMDE, body, 600, big=False, ccsid=819)
    put_by = dlh | {name: mde[name] for name in ("Format", "Encoding", "CodedCharSetId")}
    given = structures.encode(MQDLH, put_by, big=False, ccsid=819) + body[672:]
    fields = {name: mde[name] for name in V2_FIELDS} | {"OriginalLength": -1}
    read = put.read(MD(Version=2, Format="MQDEAD", **fields), given, SETTINGS)
    kept = put.dead_letter(read.md, read.data, SETTINGS)
    assert kept is not None
    assert transmission.wrap(*kept, b"Q1", b"QM2", SETTINGS) == body


def test_the_descriptor_on_a_transmission_queue_is_of_its_own() -> None:
    """How a message is treated is inherited; what it is, and what is wanted of it, is in the embedded one."""
    own: dict[str, Any] = {
        "MsgType": CMQC.MQMT_REPORT,
        "Report": 1,
        "Feedback": 2,
        "MsgId": b"id",
        "CorrelId": b"other",
    }
    treated = {"Priority": 5, "Persistence": 1, "Expiry": 100}
    md = MD(Version=2, Format="MQSTR", CodedCharSetId=1208, **own, **treated)
    outer = transmission.outer(md, SETTINGS)
    assert {name: outer[name] for name in treated} == treated
    assert (outer.MsgType, outer.Report, outer.Feedback) == (CMQC.MQMT_DATAGRAM, 0, 0)
    assert outer.CorrelId == md.MsgId
    inner = structures.decode(
        MQMD1, transmission.wrap(md, b"", b"Q1", b"QM2", SETTINGS), 104, big=False, ccsid=819
    )
    assert {name: inner[name] for name in treated} == treated
    assert {name: inner[name] for name in own} == {name: md[name] for name in own}


def mde(**fields: Any) -> bytes:
    base = {"CodedCharSetId": 1208, "Format": "MQSTR", "GroupId": GROUP_ID, "MsgFlags": 8}
    return structures.encode(MQMDE, base | fields, big=False, ccsid=819)


@each_row(
    "fields, body, reason",
    [
        ({"MsgFlags": 0x20}, b"x", 2249),
        ({"MsgFlags": 0x800}, b"x", 2249),
        ({"MsgFlags": 0x1000}, b"x", 2249),
        ({"MsgFlags": 0x80000}, b"x", 2249),
        ({"MsgFlags": 0x100000}, b"x", 0),
        ({"MsgFlags": 0x80000000}, b"x", 0),
        ({"MsgSeqNumber": 1}, b"", 0),
        ({"MsgSeqNumber": -1}, b"x", 2250),
        ({"MsgSeqNumber": 1_000_000_000}, b"x", 2250),
        ({"Offset": 999_999_998, "MsgFlags": 2}, b"x", 0),
        ({"Offset": 999_999_998, "MsgFlags": 2}, b"xy", 2251),
        ({"Offset": 999_999_999, "MsgFlags": 4}, b"", 0),
        ({"Offset": 999_999_999, "MsgFlags": 4}, b"x", 2251),
        ({"Offset": 999_999_999}, b"x", 0),
        ({"Offset": -1, "MsgFlags": 2}, b"x", 2251),
        ({"MsgFlags": 4}, b"", 0),
        ({"MsgFlags": 6}, b"", 0),
        ({"MsgFlags": 2}, b"", 2253),
        ({"MsgFlags": 10, "MsgSeqNumber": 0, "Offset": -1}, b"", 2250),
        ({"MsgFlags": 0x1002, "MsgSeqNumber": 0}, b"", 2249),
        ({"CodedCharSetId": -1}, b"x", 2248),
        ({"CodedCharSetId": -4}, b"x", 2248),
        ({"CodedCharSetId": -2}, b"x", 0),
    ],
)
def test_boundaries(fields: dict[str, Any], body: bytes, reason: int) -> None:
    md = MD(Format=CMQC.MQFMT_MD_EXTENSION)
    if reason:
        assert reason_of(put.read, md, mde(**fields) + body, SETTINGS) == reason
    else:
        found = put.read(md, mde(**fields) + body, SETTINGS)
        assert (found.outcome, bytes(found.data)) == (put.HONOURED, body)
    # The same fields in an MQMD of version 2, without an MQMDE.
    own = {name: value for name, value in fields.items() if name != "CodedCharSetId"}
    if own:
        second = MD(Version=2, GroupId=GROUP_ID, **({"MsgFlags": 8} | own))
        if reason:
            assert reason_of(put.read, second, body, SETTINGS) == reason
        else:
            assert put.read(second, body, SETTINGS).outcome == put.NO_MQMDE


@each_row(
    "flags, length, original, reason",
    [(2, 9, 9, 0), (2, 9, 8, 2252), (2, 9, -1, 2252), (4, 0, 0, 0), (4, 0, -1, 2252), (2, 0, 0, 2252)],
)
def test_original_length_of_reports(flags: int, length: int, original: int, reason: int) -> None:
    md = MD(Version=2, MsgType=CMQC.MQMT_REPORT, GroupId=GROUP_ID, MsgFlags=flags, OriginalLength=original)
    if reason:
        assert reason_of(put.read, md, bytes(length), SETTINGS) == reason
    else:
        assert put.read(md, bytes(length), SETTINGS).md.OriginalLength == original
    # Of what is no report it is the data's length, and of what is no segment there is none.
    md.MsgType = CMQC.MQMT_DATAGRAM
    if length or flags & 4:
        assert put.read(md, bytes(length), SETTINGS).md.OriginalLength == length
    md.MsgFlags = CMQC.MQMF_MSG_IN_GROUP
    assert put.read(md, bytes(length), SETTINGS).md.OriginalLength == -1


@each_row("ccsid", [CMQC.MQCCSI_Q_MGR, CMQC.MQCCSI_INHERIT])
def test_the_queue_managers_character_set(ccsid: int) -> None:
    """In an MQMD MQCCSI_INHERIT is the queue manager's as well, and a get never returns either."""
    own = QueueManagerSettings(500, 785)
    body = structures.encode(MQMDE, {"CodedCharSetId": 37, "MsgFlags": 8}, big=True, ccsid=500) + b"data"
    read = put.read(MD(Format="MQHMDE", Encoding=785, CodedCharSetId=ccsid), body, own)
    assert (read.outcome, read.md.CodedCharSetId, bytes(read.data)) == (put.HONOURED, 37, b"data")
    assert put.read(MD(CodedCharSetId=ccsid), b"data", own).md.CodedCharSetId == 500


def test_every_truncation_of_an_mqmde() -> None:
    whole = mde() + b"data"
    for length in range(len(whole) + 1):
        md = MD(Format=CMQC.MQFMT_MD_EXTENSION)
        if length < 72:
            assert reason_of(put.read, md, whole[:length], SETTINGS) == CMQC.MQRC_MDE_ERROR
        else:
            assert put.read(md, whole[:length], SETTINGS).outcome == put.HONOURED


def test_every_truncation_of_an_mqdlh() -> None:
    whole = structures.encode(MQDLH, {"Format": "MQSTR"}, big=False, ccsid=819) + b"data"
    md = MD(Version=2, Format=CMQC.MQFMT_DEAD_LETTER_HEADER, MsgFlags=4, GroupId=GROUP_ID, CodedCharSetId=819)
    for length in range(len(whole) + 1):
        if length < 172:
            assert reason_of(put.dead_letter, md, memoryview(whole)[:length], SETTINGS) == CMQC.MQRC_DLH_ERROR
        else:
            kept = put.dead_letter(md, memoryview(whole)[:length], SETTINGS)
            assert kept is not None
            assert len(kept[1]) == length + 72


def test_a_dead_letter_header_of_another_byte_order_stays_in_it() -> None:
    """The MQMDE is the queue manager's own; the MQDLH is the application's, and says of the MQMDE how it is written."""
    dlh = structures.encode(
        MQDLH, {"Format": "MQSTR", "CodedCharSetId": -2, "Encoding": 273}, big=True, ccsid=500
    )
    md = MD(Version=2, Format="MQDEAD", MsgFlags=6, GroupId=GROUP_ID, Encoding=273, CodedCharSetId=500)
    kept = put.dead_letter(md, memoryview(dlh + b"data"), SETTINGS)
    assert kept is not None
    first = structures.decode(MQDLH, kept[1], big=True, ccsid=500)
    assert (first["Format"], first["Encoding"], first["CodedCharSetId"]) == ("MQHMDE  ", 546, 819)
    second = structures.decode(MQMDE, kept[1], 172, big=False, ccsid=819)
    # MQCCSI_INHERIT meant the MQDLH's own character set; in the MQMDE it would mean another.
    assert (second["Format"], second["Encoding"], second["CodedCharSetId"]) == ("MQSTR   ", 273, 500)
    assert kept[1][244:] == b"data"


@pytest.mark.parametrize("ccsid, encoding", [(819, 546), (819, 273), (500, 785), (1047, 785), (1208, 546)])
@pytest.mark.parametrize("zos", [False, True])
def test_what_a_version_1_get_returns_can_be_put_again(ccsid: int, encoding: int, zos: bool) -> None:
    """An MQMDE of the queue manager's own making is honoured by it, and the message is the same."""
    own = QueueManagerSettings(ccsid, encoding, zos)
    fields: dict[str, Any] = {"GroupId": GROUP_ID, "MsgSeqNumber": 7, "MsgFlags": 24}
    kept = MD(Version=2, Format="MQSTR", Encoding=273, CodedCharSetId=37, **fields)
    md, data = get.returned(kept, b"payload", 1, own)
    md.Version = 1
    read = put.read(md, data, own, index_type=CMQC.MQIT_GROUP_ID)
    assert (read.outcome, read.md, bytes(read.data)) == (put.HONOURED, kept, b"payload")
    assert get.returned(kept, b"payload", 2, own) == (kept, b"payload")


def test_zos_validates_version_2_and_group_queues() -> None:
    own = QueueManagerSettings(500, 785, True)
    bad = structures.encode(MQMDE, {"CodedCharSetId": 0}, big=True, ccsid=500)
    for version, index, fails in ((1, 0, False), (1, CMQC.MQIT_GROUP_ID, True), (2, 0, True)):
        md = MD(Version=version, Format="MQHMDE", Encoding=785, CodedCharSetId=500)
        if fails:
            with pytest.raises(MQMIError, match="MQRC_MDE_ERROR"):
                put.read(md, bad, own, index_type=index)
        else:
            assert put.read(md, bad, own, index_type=index).outcome == put.AS_DATA


MDES = json.loads((Path(__file__).parents[1] / "vectors" / "mqmde.json").read_text(encoding="utf-8"))[
    "vectors"
]


@each_row("vector", MDES, ids=[vector["name"] for vector in MDES])
def test_vectors_of_mqmdes(vector: dict[str, Any]) -> None:
    """What a put says of each, on a queue manager that writes as they are written, and what a get makes of it again."""
    before, expected = vector["preceding_header"], vector["mqput"]
    own = QueueManagerSettings(before["CodedCharSetId"], before["Encoding"])
    # At the largest Offset a segment has no room for data.
    beyond = vector.get("fields", {}).get("Offset") == 999_999_999
    payload = "" if beyond else vector["payload_hex"]
    body = bytes.fromhex(vector["hex"] + payload)
    md = MD(**before)
    # Where IBM's pages contradict each other, the contract says which one rules.
    if expected["valid"] is True:
        read = put.read(md, body, own)
        assert (read.outcome, read.data.hex()) == (put.HONOURED, payload)
        fields = vector["fields"]
        assert read.md.GroupId.hex() == fields["GroupId"]
        assert (read.md.MsgSeqNumber, read.md.Offset) == (fields["MsgSeqNumber"], fields["Offset"])
        assert read.md.Format == fields["Format"].encode()
        assert read.md.MsgFlags & fields["MsgFlags"] & 0xFFFFFFFF == fields["MsgFlags"] & 0xFFFFFFFF
        returned, data = get.returned(read.md, read.data, 1, own)
        returned.Version = 1
        again = put.read(returned, data, own)
        assert (again.md, again.data) == (read.md, read.data)
    elif "seed" in expected:
        assert put.read(md, body, own).outcome == expected["seed"]
    else:
        assert reason_of(put.read, md, body, own) == expected["reason"]
