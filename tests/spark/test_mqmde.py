"""The column-wise decoder of MQMDEs gives the core's answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.ibmmq.header import BIG, EBCDIC, MQMDE, Header, sniff
from headwater_host.mq import CMQC
from headwater_host.mq.fields import refused
from headwater_host.mq.structures import decode as decode_one
from headwater_spark import mqmde
from tests.rows import each_row
from tests.spark.mq_bytes import GROUP, LG, LS, S
from tests.spark.mq_bytes import mqmde as built

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/mqmde.json").read_text(encoding="utf-8"))[
    "vectors"
]
PAYLOADS = [bytes.fromhex(row["hex"] + row["payload_hex"]) for row in VECTORS]
COLUMNS = {
    "seq": "MsgSeqNumber",
    "offset": "Offset",
    "flags": "MsgFlags",
    "original_length": "OriginalLength",
    "encoding": "Encoding",
    "ccsid": "CodedCharSetId",
}


def core(payload: bytes) -> Any:
    """What the core and the rules say of one payload: None without an MQMDE, (reason, offset), or its fields."""
    form = sniff(payload, 0, len(payload))
    if not form:
        return None
    big, ccsid = form & 3 == BIG, 500 if form & EBCDIC else 819
    header = Header(payload)
    if header.look(MQMDE, 0, len(payload), big, ccsid) < 0:
        return header.reason, header.bad_at
    fields: Any = decode_one(MQMDE, payload, big=big, ccsid=ccsid)
    if fields["MsgFlags"] & CMQC.MQMF_REJECT_UNSUP_MASK & ~31:
        return CMQC.MQRC_MSG_FLAGS_ERROR, 64
    numbers = (fields["MsgSeqNumber"], fields["Offset"], len(payload) - 72, fields["MsgFlags"])
    fault = refused(*numbers, fields["GroupId"])
    if fault is not None:
        return fault.reason, {"number": 56, "offset": 60, "empty": 64, "group id": 32}[fault.kind]
    wanted = {name: fields[theirs] for name, theirs in COLUMNS.items()}
    format_ = fields["Format"].rstrip(" \0")
    return wanted | {"group_id": fields["GroupId"], "format": format_, "data": payload[72:]}


def columns(payloads: list[bytes | None], before: int = 0) -> list[Any]:
    """The same from the decoder, for a column from which the first ``before`` are sliced away."""
    found = mqmde.decode(pa.array(payloads, pa.binary()).slice(before))
    answers: list[Any] = [None] * (len(payloads) - before)
    for k, row in enumerate(found.rows.tolist()):
        if found.reason[k]:
            answers[row] = int(found.reason[k]), int(found.error_at[k])
            continue
        at, length = int(found.at[k]) + mqmde.SIZE, int(found.length[k])
        answer = {name: int(getattr(found, name)[k]) for name in COLUMNS}
        more = {"group_id": found.group_id[k].tobytes(), "format": found.format[k].as_py()}
        answers[row] = answer | more | {"data": found.data[at : at + length].tobytes()}
    return answers


@each_row("before", [0, 3])
def test_vectors(before: int) -> None:
    found = columns([*PAYLOADS], before)
    assert found == [core(payload) for payload in PAYLOADS[before:]]
    kinds = {type(answer) for answer in found}
    assert kinds == {dict, tuple, type(None)}


@each_row("row", VECTORS, ids=[row["name"] for row in VECTORS])
def test_a_vector_means_what_it_says(row: dict[str, Any]) -> None:
    # At the largest Offset a segment has no room for data.
    beyond = row.get("fields", {}).get("Offset") == 999_999_999
    (answer,) = columns([bytes.fromhex(row["hex"] + ("" if beyond else row["payload_hex"]))])
    if row["codec"] == "error":
        assert answer is None
    elif isinstance(answer, dict):
        fields = row["fields"]
        assert answer["group_id"].hex() == fields["GroupId"]
        assert {name: answer[name] for name in COLUMNS} == {
            name: fields[theirs] for name, theirs in COLUMNS.items()
        }
        assert answer["format"] == fields["Format"].rstrip()
    else:
        assert answer[0] == row["mqput"]["reason"]


def test_four_forms_side_by_side_with_others() -> None:
    forms = [built(b"data", LS, big=big, ccsid=ccsid) for big in (False, True) for ccsid in (819, 500)]
    others: list[bytes | None] = [
        b"",
        b"MDE ",
        None,
        b'{"board": "b1"}',
        b"M" * 100,
        b"MDE \2\0\0\0\x48\0\0\1" + bytes(60),
    ]
    mixed = [each for pair in zip(others, [*forms, b"x", b"MDE \0\0\0\2"], strict=True) for each in pair]
    found = columns(mixed)
    assert [answer["format"] for answer in found if answer] == ["MQSTR"] * 4
    assert [answer["data"] for answer in found if answer] == [b"data"] * 4
    assert {mixed[i] for i, answer in enumerate(found) if answer} == set(forms)


@each_row("big", [False, True], ids=["little", "big"])
@each_row("ccsid", [819, 500])
def test_every_length(big: bool, ccsid: int) -> None:
    whole = built(b"ab", LG | LS, big=big, ccsid=ccsid)
    cut: list[bytes | None] = [whole[:size] for size in range(len(whole) + 1)]
    assert columns(cut) == [core(payload or b"") for payload in cut]
    # Also when nothing stands behind it.
    assert all(columns([payload]) == [core(payload or b"")] for payload in cut)


WRONG = {
    "a flag that nobody knows": ({"flags": LS | 32}, (2249, 64)),
    "flags of the accepted kind": ({"flags": LS | 0x80000000}, None),
    "MsgSeqNumber 0": ({"seq": 0}, (2250, 56)),
    "MsgSeqNumber beyond": ({"seq": 10**9}, (2250, 56)),
    "Offset below 0": ({"flags": LS, "offset": -1}, (2251, 60)),
    "Offset beyond": ({"flags": LS, "offset": 10**9}, (2251, 60)),
    "end beyond": ({"flags": LS, "offset": 999_999_999, "data": b"x"}, (2251, 60)),
    "end": ({"flags": LS, "offset": 999_999_998, "data": b"x"}, None),
    "Offset of no segment": ({"flags": LG, "offset": 10**9}, None),
    "nothing, and not the last": ({"flags": S, "data": b""}, (2253, 64)),
    "nothing, and the last": ({"flags": LS, "data": b""}, None),
    "a segment without a GroupId": ({"flags": LS, "group": bytes(24)}, (2258, 32)),
    "a message without a GroupId": ({"flags": 0, "group": bytes(24)}, None),
    "the first of two": ({"flags": LS | 64, "seq": 0}, (2249, 64)),
}


@each_row("change, wanted", WRONG.values(), ids=WRONG)
def test_what_is_refused(change: dict[str, Any], wanted: Any) -> None:
    payload = built(**{"data": b"x", "flags": 0, **change})
    (found,) = columns([payload])
    assert found == core(payload)
    assert (found if isinstance(found, tuple) else None) == wanted
    if wanted:
        assert f"at byte {wanted[1]}: {wanted[0]} MQRC_" in mqmde.refusal(*wanted)


NUMBERS = st.sampled_from([0, 1, -1, 2, 5, 999_999_999, 10**9, 2**31 - 1, -(2**31)])
FLAGS = st.sampled_from(
    [0, 1, 2, 3, 4, 6, 8, 14, 16, 24, 30, 32, 0x800, 0x1000, 0xFF000, 0xFFF00000, 2**32 - 1]
)


@st.composite
def payloads(draw: Any) -> bytes:
    payload = built(
        draw(st.binary(max_size=5)),
        draw(FLAGS),
        seq=draw(NUMBERS),
        offset=draw(NUMBERS),
        group=draw(st.sampled_from([GROUP, bytes(24)])),
        big=draw(st.booleans()),
        ccsid=draw(st.sampled_from([819, 37, 500, 1047, 1140])),
        Format=draw(st.sampled_from(["", "MQSTR", "MQHRF2", "A%_./9", "nine4567"])),
        CodedCharSetId=draw(NUMBERS),
        Encoding=draw(NUMBERS),
        OriginalLength=draw(NUMBERS),
    )
    if draw(st.booleans()):
        at = draw(st.integers(0, len(payload) - 1))
        payload = payload[:at] + draw(st.binary(max_size=2)) + payload[at + draw(st.integers(0, 2)) :]
    return payload[: draw(st.sampled_from([None, None, 72, 71, 12, 11]))]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(payloads() | st.binary(max_size=90), max_size=8))
def test_the_same_as_the_core(some: list[bytes]) -> None:
    assert columns([*some]) == [core(payload) for payload in some]


def test_nothing() -> None:
    found = mqmde.decode(pa.array([], pa.binary()))
    assert len(found.rows) == len(found.format) == 0
    assert found.group_id.shape == (0, 3)
    assert np.array_equal(found.reason, [])
