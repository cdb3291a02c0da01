"""IBM MQ's headers as dictionaries: the shared vectors, what is refused and how, character sets, numbers by name."""

from typing import Any

import pytest
import vectors

from headwater.ibmmq.chain import KNOWN, MQMD1
from headwater_host.mq import CMQC
from headwater_host.mq.structures import (
    LAYOUTS,
    Data,
    Fields,
    Found,
    HeaderError,
    decode,
    encode,
    name_of,
    to_bytes,
    to_text,
    walk,
)
from tests.rows import each_row

MQMD, MQMDE, MQXQH, MQDLH = (LAYOUTS[name] for name in ("MQMD", "MQMDE", "MQXQH", "MQDLH"))
VECTORS = vectors.load("mqmde")


def fields_of(row: dict[str, Any]) -> Fields:
    fields: Fields = row["fields"] | {"GroupId": bytes.fromhex(row["fields"]["GroupId"])}
    return fields


def how(row: dict[str, Any]) -> dict[str, Any]:
    return {"big": row["order"] == "big", "ccsid": row["ccsid"]}


@each_row("row", VECTORS["vectors"], ids=lambda row: row["name"])
def test_vectors_both_ways(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    if row["codec"] == "error":
        with pytest.raises(HeaderError) as caught:
            decode(MQMDE, data, **how(row))
        with pytest.raises(HeaderError) as again:
            encode(MQMDE, fields_of(row), **how(row))
        assert caught.value.reason == again.value.reason == 2248
        assert (caught.value.field, caught.value.offset) == (again.value.field, again.value.offset)
        return
    for form in (data, bytearray(data), memoryview(data)):
        assert decode(MQMDE, form, **how(row)) == fields_of(row)
    assert decode(MQMDE, b"ab" + data + b"c", 2, **how(row)) == fields_of(row)
    assert encode(MQMDE, fields_of(row), **how(row)) == data


@each_row("row", VECTORS["chains"], ids=lambda row: row["name"])
def test_chains(row: dict[str, Any]) -> None:
    data = b"ab" + bytes.fromhex(row["hex"])
    given = row.get("start")
    if "error" in row:
        with pytest.raises(HeaderError) as caught:
            walk(data, 2, format=given, **how(row))
        error = caught.value
        assert {"reason": error.reason, "field": error.field, "offset": error.offset - 2} == row["error"]
        return
    found, rest = walk(data, 2, format=given, **how(row))
    assert [one.name for one in found] == row["headers"]
    assert rest == Data(2 + row["at"], row["Format"], row["Encoding"], row["CodedCharSetId"])
    for one in found:
        assert isinstance(one, Found)
        assert one.fields["StrucId"] == name_of(LAYOUTS[one.name])[2:].ljust(4)


@each_row("row", VECTORS["defaults"], ids=lambda row: row["struct"])
def test_what_is_left_out_is_the_default(row: dict[str, Any]) -> None:
    layout = LAYOUTS[row["struct"].rstrip("2")]
    data = encode(layout, {}, big=False, ccsid=819)
    if row["struct"] == "MQXQH":
        data += encode(MQMD, {"Version": 1}, big=False, ccsid=819)
    assert data == bytes.fromhex(row["hex"])


@each_row("name", LAYOUTS)
def test_what_is_decoded_is_encoded_again(name: str) -> None:
    layout = LAYOUTS[name]
    data = encode(layout, {}, big=True, ccsid=1140)
    assert len(data) == layout[2]
    data = data[:12] + bytes(i * 7 & 255 for i in range(12, len(data)))
    fields = decode(layout, data, big=True, ccsid=1140)
    assert fields["Version"] == len(layout[4]) - 1
    assert encode(layout, fields, big=True, ccsid=1140) == data


def test_text_and_bytes_are_filled_up() -> None:
    data = encode(MQXQH, {"RemoteQName": "Q", "RemoteQMgrName": ""}, big=True, ccsid=500)
    assert data[8:56] == b"\xd8" + b"\x40" * 47
    assert data[56:] == b"\x40" * 48
    assert encode(MQMDE, {"GroupId": b"\x01"}, big=True, ccsid=500)[32:56] == b"\x01" + bytes(23)


def test_flags_may_be_signed() -> None:
    signed, unsigned = (encode(MQMDE, {"MsgFlags": n}, big=True, ccsid=0) for n in (-(1 << 31), 1 << 31))
    assert signed == unsigned
    assert decode(MQMDE, signed, big=True, ccsid=0)["MsgFlags"] == 1 << 31


REFUSED: dict[str, tuple[str, dict[str, object], str, int, str]] = {
    "a name that there is not": ("MQMDE", {"Offsett": 1}, "Offsett", 0, "an MQMDE of version 2 has no such field"),
    "another structure's": ("MQXQH", {"Format": "MQSTR"}, "Format", 0, "no such field"),
    "version 2's in version 1": ("MQMD", {"Version": 1, "Offset": 0}, "Offset", 0, "of version 1 has no such"),
    "too large": ("MQMDE", {"Offset": 1 << 31}, "Offset", 60, "out of range"),
    "too small": ("MQDLH", {"Reason": -(1 << 31) - 1}, "Reason", 8, "out of range"),
    "too large for flags": ("MQMD", {"MsgFlags": 1 << 32}, "MsgFlags", 356, "out of range"),
    "no integer": ("MQMDE", {"Offset": "7"}, "Offset", 60, "must be an integer"),
    "a truth value": ("MQMDE", {"Flags": True}, "Flags", 28, "must be an integer"),
    "a float": ("MQMD", {"Expiry": 1.0}, "Expiry", 16, "must be an integer"),
    "too long": ("MQMDE", {"Format": "MQSTR    "}, "Format", 20, "longer than 8 characters"),
    "other characters": ("MQXQH", {"RemoteQName": "日"}, "RemoteQName", 8, "not in character set 819"),
    "no text": ("MQMD", {"PutDate": b"20261121"}, "PutDate", 304, "must be text"),
    "too many bytes": ("MQMDE", {"GroupId": bytes(25)}, "GroupId", 32, "longer than 24 bytes"),
    "no bytes": ("MQMD", {"MsgId": "00"}, "MsgId", 48, "must be bytes"),
    "another StrucId": ("MQMDE", {"StrucId": "MDX "}, "StrucId", 0, "not that of an MQMDE"),
    "another Version": ("MQDLH", {"Version": 2}, "Version", 4, "not that of an MQDLH"),
    "another StrucLength": ("MQMDE", {"StrucLength": 73}, "StrucLength", 8, "not that of an MQMDE"),
}  # fmt: skip


@each_row("case", REFUSED)
def test_what_cannot_be_encoded(case: str) -> None:
    name, fields, field, offset, text = REFUSED[case]
    with pytest.raises(HeaderError, match=text) as caught:
        encode(LAYOUTS[name], fields, big=True, ccsid=819)
    error = caught.value
    assert (error.reason, error.field, error.offset) == (LAYOUTS[name][1], field, offset)
    assert str(error).startswith(f"{field} at offset {offset}: ")
    assert str(error).endswith(f"(reason {LAYOUTS[name][1]})")


def test_what_is_cut_short() -> None:
    data = b"ab" + encode(MQDLH, {}, big=True, ccsid=819)
    with pytest.raises(HeaderError, match="the MQDLH is truncated") as caught:
        decode(MQDLH, data[:-1], 2, big=True, ccsid=819)
    assert (caught.value.reason, caught.value.field, caught.value.offset) == (2141, "PutTime", 166)
    undecided = encode(MQMD, {"Format": "MQHMDE", "Encoding": 0}, big=True, ccsid=819)
    with pytest.raises(HeaderError, match="does not give the byte order of the next header"):
        walk(undecided, big=True, ccsid=819)


def test_a_format_to_begin_with_is_ascii() -> None:
    with pytest.raises(HeaderError, match="is not ASCII") as caught:
        walk(bytes(8), 2, big=True, ccsid=819, format="MQSTR\xa4")
    assert (caught.value.reason, caught.value.field, caught.value.offset) == (
        CMQC.MQRC_FORMAT_ERROR,
        "Format",
        2,
    )


def test_character_sets_are_pythons() -> None:
    every = bytes(range(256))
    for ccsid, codec in (
        (37, "cp037"),
        (500, "cp500"),
        (1140, "cp1140"),
        (819, "latin-1"),
        (1208, "latin-1"),
    ):
        assert to_text(every, ccsid) == every.decode(codec)
    # Python has no 1047: as 037, but these six have changed places.
    assert to_text(every, 1047) == every.decode("cp037").translate(str.maketrans("¬^[Ý]¨", "^¬Ý[¨]"))
    for ccsid in (37, 500, 1047, 1140, 819, 0, -2):
        assert to_bytes(to_text(every, ccsid), ccsid) == every
    with pytest.raises(ValueError, match="character set 500"):
        to_bytes("€", 500)


def test_numbers_are_those_of_the_core() -> None:
    for layout, length in (
        (MQMDE, CMQC.MQMDE_LENGTH_2),
        (MQMD, CMQC.MQMD_LENGTH_2),
        (MQMD1, CMQC.MQMD_LENGTH_1),
        (MQXQH, CMQC.MQXQH_LENGTH_1 - CMQC.MQMD_LENGTH_1),
        (MQDLH, CMQC.MQDLH_LENGTH_1),
    ):
        assert layout[2] == length
    assert [form for form, _ in KNOWN] == [
        CMQC.MQFMT_MD_EXTENSION,
        CMQC.MQFMT_DEAD_LETTER_HEADER,
        CMQC.MQFMT_XMIT_Q_HEADER,
    ]
    for layout in LAYOUTS.values():
        assert layout[0] == getattr(CMQC, f"{name_of(layout)}_STRUC_ID")
        assert layout[1] in (2026, CMQC.MQRC_MDE_ERROR, CMQC.MQRC_XQH_ERROR, CMQC.MQRC_DLH_ERROR)
