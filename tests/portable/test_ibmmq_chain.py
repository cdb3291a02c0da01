# heap: 1M
"""Chains of IBM MQ's headers: the shared vectors whole, cut at each byte, with bytes before and behind."""

import vectors

from headwater.errors import E_CODE, E_TRUNCATED
from headwater.ibmmq.chain import MD_CODED_CHAR_SET_ID, MD_ENCODING, MD_FORMAT, MQMD, Chain
from headwater.ibmmq.header import MQMDE, Header
from headwater.ibmmq.text import format_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Row = dict[str, Any]


def rows() -> "Iterator[tuple[Row, bytes]]":
    for row in vectors.rows("mqmde", "chains"):
        yield row, vectors.unhex(row["hex"])


def walk(c: Chain, row: "Row", at: int, end: int) -> "tuple[int, list[str]]":
    """The last status, and the headers that were found."""
    found = []
    start = row["start"].encode() if "start" in row else None
    c.start(at, end, row["order"] == "big", row["ccsid"], start)
    status = c.next()
    while status > 0:
        found.append("MQ" + c.header.layout[0].decode().strip())
        assert c.header.end == c.at <= end
        status = c.next()
    assert c.next() == status
    return status, found


def agrees(c: Chain, row: "Row", status: int, found: "list[str]", before: int) -> None:
    name = row["name"]
    assert found == row["headers"], name
    if "error" in row:
        h = c.header
        error = row["error"]
        assert status < 0, name
        got = (h.reason, h.bad_field, h.bad_at - before)
        assert got == (error["reason"], error["field"], error["offset"]), (name, got)
        # What may be asked all the same reads nothing that is not there.
        if error["field"] != "Encoding":
            assert c.row < 0 and c.encoding() in (273, 546) and not c.is_format(b"MQHMDE2 ")
        return
    assert status == 0, (name, c.header.bad_field)
    assert c.at - before == row["at"], name
    assert format_of(c) == row["Format"], name
    assert c.is_format(row["Format"].encode()) and not c.is_format(b"MQOTHER ")
    assert c.is_format(row["Format"].encode().rstrip()), name
    assert (c.encoding(), c.ccsid()) == (row["Encoding"], row["CodedCharSetId"]), name


def test_chains() -> None:
    errors = 0
    for row, data in rows():
        # What is behind belongs to the data, or is not looked at.
        c = Chain(data)
        status, found = walk(c, row, 0, len(data))
        agrees(c, row, status, found, 0)
        buf = b"\x55\xaa" + data + b"XQH "
        c = Chain(buf)
        status, found = walk(c, row, 2, len(data) + 2)
        agrees(c, row, status, found, 2)
        errors += "error" in row
    assert errors == 13


def test_a_chain_is_reusable() -> None:
    buf = bytearray(1000)
    c = Chain(buf)
    for _ in range(2):
        for row, data in rows():
            buf[: len(data)] = data
            status, found = walk(c, row, 0, len(data))
            agrees(c, row, status, found, 0)


def test_cut_at_each_byte() -> None:
    """Whole headers are found; the one that is cut is an error at the field that is not all there."""
    for row, data in rows():
        whole = row["headers"]
        c = Chain(data)
        for n in range(len(data)):
            status, found = walk(c, row, 0, n)
            assert found == whole[: len(found)], (row["name"], n)
            if status == 0:
                assert found == whole and c.at == row["at"] <= n, (row["name"], n)
            elif status == E_TRUNCATED:
                assert c.at <= c.header.bad_at <= n and c.header.reason, (row["name"], n)
                assert n < row.get("at", len(data)), (row["name"], n)
            else:
                # As soon as it shows, it is the error that the whole has.
                assert status == E_CODE
                agrees(c, row, status, found, 0)


def test_encodings_that_name_an_order() -> None:
    """Only the part for integers matters; and only in front of a header."""
    buf = bytearray(72 + 364)
    h = Header(buf)
    for encoding in (
        1,
        2,
        0x111,
        0x222,
        0x311,
        0x121,
        0x7FFFFFF1,
        -15,
        -14,
        0,
        3,
        16,
        0x110,
        0x22F,
        -1,
        4,
        8,
    ):
        order = encoding & 15
        h.begin(MQMD, 0, True, 500)
        h.put(MD_ENCODING, encoding)
        h.put(MD_CODED_CHAR_SET_ID, 1047)
        h.put_name(MD_FORMAT, b"MQHMDE")
        h.begin(MQMDE, 364, order == 1, 1047)
        c = Chain(buf)
        c.start(0, len(buf), True, 500)
        assert c.next() == 1
        assert c.encoding() == encoding
        if order in (1, 2):
            assert c.next() == 1 and c.header.big == (order == 1) and c.header.ccsid == 1047, encoding
        else:
            assert c.next() == E_CODE
            assert (c.header.reason, c.header.bad_field, c.header.bad_at) == (2026, "Encoding", 24), encoding
            assert c.header.layout is MQMD and c.at == 364
        h.place(MQMD, 0, True, 500)
        h.end = 364
        h.put_name(MD_FORMAT, b"MQSTR")
        c.start(0, len(buf), True, 500)
        assert [c.next(), c.next()] == [1, 0], encoding


def test_character_sets_that_there_are_not() -> None:
    """No EBCDIC that is known is ASCII: what follows is found, or is not, by StrucId."""
    buf = bytearray(72 + 364)
    h = Header(buf)
    for ccsid, found in (
        (-2, 500), (0, 500), (-1, -1), (-3, -3), (-65534, -65534), (437, 437), (65536 + 500, 65536 + 500),
        ((1 << 30) - 1, (1 << 30) - 1), (-(1 << 30), -(1 << 30)), (1 << 30, 0), (-(1 << 30) - 1, 0), (0x7FFFFFFF, 0)
    ):  # fmt: skip
        for written in (500, 819):
            h.begin(MQMD, 0, False, 500)
            h.put(MD_CODED_CHAR_SET_ID, ccsid)
            h.put_name(MD_FORMAT, b"MQHMDE")
            h.begin(MQMDE, 364, False, written)
            c = Chain(buf)
            c.start(0, len(buf), False, 500)
            assert c.next() == 1
            assert c.ccsid() == (500 if ccsid in (0, -2) else ccsid)
            fits = (found == 500) == (written == 500)
            assert c.next() == (1 if fits else E_CODE), (ccsid, written)
            assert c.header.ccsid == found
            if not fits:
                assert (c.header.reason, c.header.bad_field, c.header.bad_at) == (2248, "StrucId", 364)


def test_formats_that_are_given() -> None:
    buf = bytearray(72)
    Header(buf).begin(MQMDE, 0, True, 819)
    c = Chain(buf)
    for given in (b"MQHMDE", b"MQHMDE  "):
        c.start(0, 72, True, 819, given)
        assert format_of(c) == "MQHMDE  " and c.is_format(b"MQHMDE  ") and c.is_format(b"MQHMDE")
        assert c.next() == 1 and c.header.layout is MQMDE
        assert format_of(c) == " " * 8 and c.is_format(b"")
        assert c.next() == 0 and c.at == 72
    for given in (b"", b"MQHMD", b"MQHMDE2", b"MQHMDE   X", b"mqhmde"):
        c.start(0, 72, True, 819, given)
        assert c.next() == 0 and c.at == 0
        assert c.is_format(given) and (c.encoding(), c.ccsid()) == (273, 819)
    c.start(0, 72, False, 500, b"")
    assert (format_of(c), c.encoding(), c.ccsid()) == (" " * 8, 546, 500)
