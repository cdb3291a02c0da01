# heap: 1M
"""IBM MQ's headers: the shared vectors both ways, whole, byte by byte, with bytes behind; the tables; any bytes."""

import vectors

from headwater.errors import E_ARGUMENT, E_CODE, E_TOO_LARGE, E_TRUNCATED
from headwater.ibmmq.chain import (
    MD_FORMAT,
    MD_GROUP_ID,
    MD_MSG_FLAGS,
    MD_MSG_SEQ_NUMBER,
    MD_ORIGINAL_LENGTH,
    MD_REPLY_TO_Q,
    MD_REPORT,
    MD_VERSION,
    MQDLH,
    MQMD,
    MQMD1,
    MQXQH,
)
from headwater.ibmmq.header import (
    BIG,
    EBCDIC,
    LITTLE,
    MDE_ENCODING,
    MDE_FORMAT,
    MDE_GROUP_ID,
    MDE_MSG_FLAGS,
    MDE_MSG_SEQ_NUMBER,
    MDE_OFFSET,
    MDE_ORIGINAL_LENGTH,
    MDE_STRUC_ID,
    MQMDE,
    Header,
    coded,
    is_ebcdic,
    sniff,
)
from headwater.ibmmq.text import decode, encode, put_text, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headwater.types import Layout

    Row = dict[str, Any]

LAYOUTS = {"MQMDE": MQMDE, "MQMD2": MQMD, "MQMD1": MQMD1, "MQXQH": MQXQH, "MQDLH": MQDLH}
EBCDICS = (37, 500, 1047, 1140)
CCSIDS = EBCDICS + (819, 1208, 0)
BEFORE = b"\x55\xaa\x30"
BEHIND = (b"", b"\x00", b"MDE \x02", b"\xff" * 80)
#: Which field is wrong in the vectors that a decoder refuses.
WRONG = {"bad_strucid": "StrucId", "bad_version_3": "Version", "struclength_80_too_long": "StrucLength"}


def rows() -> "Iterator[tuple[Row, bytes, bool]]":
    for row in vectors.rows("mqmde", "vectors"):
        yield row, vectors.unhex(row["hex"]), row["order"] == "big"


def look(h: Header, row: "Row", at: int, end: int, layout: "Layout" = MQMDE) -> int:
    return h.look(layout, at, end, row["order"] == "big", row["ccsid"])


def said(h: Header) -> "dict[str, Any]":
    """A header's fields, as the vector file writes them."""
    found: dict[str, Any] = {}
    for i, (name, _, _, kind, _) in enumerate(h.layout[3]):
        if h.has(i):
            found[name] = text_of(h, i) if kind == "c" else h.raw(i).hex() if kind == "b" else h.get(i)
    return found


def write(h: Header, fields: "dict[str, Any]") -> None:
    for i, (name, _, _, kind, _) in enumerate(h.layout[3]):
        if name in fields:
            value = fields[name]
            if kind == "c":
                assert put_text(h, i, value) == 0, name
            elif kind == "b":
                assert h.put_raw(i, vectors.unhex(value)) == 0, name
            else:
                assert h.put(i, value) == 0, name


def wrong(h: Header) -> "tuple[int, str, int]":
    return h.reason, h.bad_field, h.bad_at - h.at


def offset(layout: "Layout", name: str) -> int:
    return next(row[1] for row in layout[3] if row[0] == name)


def field_at(layout: "Layout", n: int) -> "tuple[str, int]":
    """Name and offset of the field that byte ``n`` is in."""
    return next((row[0], row[1]) for row in layout[3] if row[1] <= n < row[1] + row[2])


# -- the shared vectors ------------------------------------------------------------------------------------------------


def test_vectors_decode() -> None:
    codecs = []
    for row, data, _ in rows():
        for behind in BEHIND:
            whole = BEFORE + data + behind
            h = Header(whole)
            got = look(h, row, 3, len(whole))
            if row["codec"] == "ok":
                assert got == h.end == 75, row["name"]
                assert said(h) == row["fields"], row["name"]
                assert (h.reason, h.bad_field) == (0, "")
            else:
                field = WRONG[row["name"][3:]]
                assert got == E_CODE, row["name"]
                assert wrong(h) == (2248, field, offset(MQMDE, field)), row["name"]
        codecs.append(row["codec"])
    assert len(codecs) == 32 and codecs.count("error") == 6


def test_vectors_byte_by_byte() -> None:
    for row, data, _ in rows():
        h = Header(data)
        whole = look(h, row, 0, 72)
        final = whole, wrong(h)
        for n in range(72):
            got = look(h, row, 0, n)
            name, at = field_at(MQMDE, n)
            if got != E_TRUNCATED:
                assert (got, wrong(h)) == final and whole < 0 and h.bad_at + 4 <= n, (row["name"], n)
            else:
                # As soon as a field is there, it is looked at.
                assert wrong(h) == (2248, name, at), (row["name"], n)
                assert whole > 0 or n < final[1][2] + 4, (row["name"], n)


def test_vectors_encode() -> None:
    for row, data, big in rows():
        if row["codec"] == "error":
            continue
        buf = bytearray(b"\x55" * 80)
        h = Header(buf)
        assert h.begin(MQMDE, 3, big, row["ccsid"]) == 75
        write(h, row["fields"])
        assert bytes(buf[3:75]) == data, row["name"]
        assert buf[:3] == b"\x55" * 3 and buf[75:] == b"\x55" * 5
        # What a default is need not be written.
        h.begin(MQMDE, 3, big, row["ccsid"])
        changed = {k: v for k, v in row["fields"].items() if k not in ("StrucId", "Version", "StrucLength")}
        write(h, changed)
        assert bytes(buf[3:75]) == data, row["name"]


def test_sniff() -> None:
    found = set()
    for row, data, big in rows():
        whole = BEFORE + data
        want = 0
        if row["codec"] == "ok":
            want = (BIG if big else LITTLE) | (EBCDIC if row["ccsid"] in EBCDICS else 0)
            found.add(want)
        assert sniff(whole, 3, len(whole)) == want, row["name"]
        for n in range(12):
            assert sniff(whole, 3, 3 + n) == 0
        assert sniff(whole, 3, 15) == want
        for i in range(12):
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[3 + i] ^= 1 << bit
                assert want == 0 or sniff(damaged, 3, len(damaged)) == 0, (row["name"], i, bit)
    assert found == {BIG, LITTLE, BIG | EBCDIC}
    h = Header(bytearray(72))
    h.begin(MQMDE, 0, False, 500)
    assert sniff(h.buf, 0, 72) == LITTLE | EBCDIC


# -- the tables --------------------------------------------------------------------------------------------------------


def test_tables_are_those_of_the_vectors() -> None:
    found: dict[str, list[tuple[str, int, int]]] = {}
    for row in vectors.rows("mqmde", "layouts"):
        if row["field"] != "MsgDesc":
            found.setdefault(row["struct"], []).append((row["field"], row["offset"], row["size"]))
    assert set(found) == {"MQMDE", "MQMD2", "MQXQH", "MQDLH"}
    for struct, fields in found.items():
        layout = LAYOUTS[struct]
        assert [row[:3] for row in layout[3]] == fields
        # A field begins where the one before ends.
        at = 0
        for name, start, size, kind, default in layout[3]:
            assert start == at and (kind in "cb" or size == 4), name
            assert isinstance(default, bytes) == (kind in "cb"), name
            at += size
        assert at == layout[2] == layout[4][-1]
        if layout[5] >= 0:
            three = [row[0] for row in layout[3][layout[5] : layout[5] + 3]]
            assert three == ["Encoding", "CodedCharSetId", "Format"]
    assert MQMD1[3] == MQMD[3] and MQMD1[2] == MQMD[3][MD_GROUP_ID][1]


def test_tables_and_numbers_agree() -> None:
    for layout, length, reason in (
        (MQMDE, 72, 2248),
        (MQMD, 364, 2026),
        (MQMD1, 324, 2026),
        (MQXQH, 104, 2260),
        (MQDLH, 172, 2141),
    ):
        assert layout[1:3] == (reason, length)
    assert MQMDE[3][MDE_ORIGINAL_LENGTH][0] == "OriginalLength" and MQMDE[3][MDE_GROUP_ID][0] == "GroupId"
    assert MQMD[3][MD_ORIGINAL_LENGTH][0] == "OriginalLength" and MQMD[3][MD_REPLY_TO_Q][0] == "ReplyToQ"


def test_defaults() -> None:
    for row in vectors.rows("mqmde", "defaults"):
        want = vectors.unhex(row["hex"])
        buf = bytearray(b"\x55" * (row["size"] + 8))
        h = Header(buf)
        end = h.begin(LAYOUTS[row["struct"]], 3, False, 819)
        if row["struct"] == "MQXQH":
            end = h.begin(MQMD1, end, False, 819)
        assert end == row["size"] + 3
        assert bytes(buf[3:end]) == want, row["struct"]
        assert buf[:3] == b"\x55" * 3 and buf[end:] == b"\x55" * 5


def test_defaults_in_either_order_and_any_character_set() -> None:
    for layout in LAYOUTS.values():
        for big in (True, False):
            for ccsid in CCSIDS:
                buf = bytearray(layout[2])
                h = Header(buf)
                assert h.begin(layout, 0, big, ccsid) == layout[2]
                assert Header(buf).look(layout, 0, layout[2], big, ccsid) == layout[2]
                for i, (name, _, size, kind, default) in enumerate(layout[3]):
                    if not h.has(i):
                        assert layout is MQMD1 and i >= MD_GROUP_ID
                    elif name == "Version":
                        assert h.get(i) == len(layout[4]) - 1
                    elif kind == "c":
                        text = default.decode() if isinstance(default, bytes) else ""
                        assert text_of(h, i) == (text or "\0" * size), name
                    elif kind == "b":
                        assert h.raw(i) == bytes(size), name
                    else:
                        native = 0x111 if big else 0x222
                        assert h.get(i) == (native if default is None else default), name
                # Not for lack of a byte.
                assert Header(bytearray(layout[2] - 1)).begin(layout, 0, big, ccsid) == E_TOO_LARGE
                assert h.begin(layout, 1, big, ccsid) == E_TOO_LARGE


# -- checks ------------------------------------------------------------------------------------------------------------


def test_other_structures_are_refused() -> None:
    for layout in LAYOUTS.values():
        buf = bytearray(layout[2])
        Header(buf).begin(layout, 0, True, 819)
        for other in LAYOUTS.values():
            h = Header(buf)
            got = h.look(other, 0, len(buf), True, 819)
            if other[0] != layout[0]:
                assert got == E_CODE and wrong(h) == (other[1], "StrucId", 0)
            elif other is MQMD1 and layout is MQMD:
                assert got == E_CODE and wrong(h) == (2026, "Version", 4)
            else:
                assert got == layout[2]


def test_versions_and_lengths_that_there_are_not() -> None:
    numbers = [0, 1, 2, 3, 4, -1, 1 << 16, 1 << 24, 2 | 1 << 16, 72, 72 | 1 << 16, -(1 << 31)]
    for layout in LAYOUTS.values():
        for big in (True, False):
            buf = bytearray(layout[2])
            h = Header(buf)
            for number in numbers:
                h.begin(layout, 0, big, 37)
                newest = h.get(1)
                h.put(1, number)
                got = h.look(layout, 0, len(buf), big, 37)
                if number == newest:
                    assert got == layout[2]
                elif layout is MQMD and number == 1:
                    assert got == 324 == h.end
                else:
                    assert got == E_CODE and wrong(h) == (layout[1], "Version", 4), number
                if layout is MQMDE:
                    h.begin(layout, 0, big, 37)
                    h.put(2, number)
                    got = h.look(layout, 0, len(buf), big, 37)
                    assert got == (72 if number == 72 else E_CODE), number
                    assert got > 0 or wrong(h) == (2248, "StrucLength", 8)


def test_every_header_byte_by_byte() -> None:
    for layout in LAYOUTS.values():
        buf = bytearray(layout[2] + 9)
        h = Header(buf)
        h.begin(layout, 5, False, 1047)
        for n in range(layout[2]):
            assert h.look(layout, 5, 5 + n, False, 1047) == E_TRUNCATED
            name, at = field_at(layout, n)
            assert wrong(h) == (layout[1], name, at), n
            assert h.end == 5
        assert h.look(layout, 5, 5 + layout[2], False, 1047) == 5 + layout[2]
        assert h.reason == 0 and h.bad_field == ""


# -- any bytes ---------------------------------------------------------------------------------------------------------


def noise(n: int, seed: int) -> bytearray:
    found = bytearray(n)
    for i in range(n):
        seed = (seed * 75 + 74) % 65537
        found[i] = seed & 255
    return found


def test_any_content_is_kept() -> None:
    """Read field by field, and written so into another buffer, it is the same bytes."""
    for layout in LAYOUTS.values():
        for k, ccsid in enumerate(CCSIDS):
            for big in (True, False):
                buf = noise(layout[2] + 7, k * 31 + big + layout[2])
                h = Header(buf)
                h.place(layout, 3, big, ccsid)
                h.end = 3 + layout[2]
                h.put_name(0, layout[0])
                h.put(1, len(layout[4]) - 1)
                if layout is MQMDE:
                    h.put(2, 72)
                before = bytes(buf)
                assert h.look(layout, 3, len(buf), big, ccsid) == 3 + layout[2]
                fields = said(h)
                assert bytes(buf) == before
                other = bytearray(b"\x55" * len(buf))
                again = Header(other)
                again.begin(layout, 3, big, ccsid)
                write(again, fields)
                assert other[3:-4] == buf[3:-4], (layout[0], big, ccsid)
                assert other[:3] == b"\x55" * 3 and other[-4:] == b"\x55" * 4


def test_text_is_one_character_for_each_byte() -> None:
    for ccsid in CCSIDS:
        seen: set[str] = set()
        h = Header(bytearray(364))
        h.begin(MQMD, 0, True, ccsid)
        for i in range(0, 256, 8):
            data = bytes(range(i, i + 8))
            assert h.put_raw(MD_FORMAT, data) == 0
            text = text_of(h, MD_FORMAT)
            assert len(text) == 8
            seen.update(text)
            h.put_raw(MD_FORMAT, b"")
            assert put_text(h, MD_FORMAT, text) == 0
            assert h.raw(MD_FORMAT) == data
        assert len(seen) == 256, ccsid


def test_names_are_alike_in_all_of_ebcdic() -> None:
    names = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .%/_\x00"
    for ccsid in EBCDICS:
        assert is_ebcdic(ccsid)
        codes = encode(names.decode(), ccsid)
        assert codes == bytes([coded(c, True) for c in names])
    for c in range(256):
        assert coded(c, False) == c
        assert (coded(c, True) >= 0) == (c in names), c
    for ccsid in (819, 1208, 437, 0, -2, 1148):
        assert not is_ebcdic(ccsid)


def test_what_ebcdics_differ_in() -> None:
    """Characters of the code charts, beside those that all have."""
    assert decode(b"\x4a\x5a\xba\xbb\xad\xbd\x9f\x15\x25", 37) == "¢![]Ý¨¤\x85\n"
    assert decode(b"\x4a\x5a\xba\xbb\xad\xbd\x9f\x15\x25", 500) == "[]¬|Ý¨¤\x85\n"
    assert decode(b"\x4a\x5a\xba\xbb\xad\xbd\x9f\x15\x25", 1047) == "¢!Ý¨[]¤\x85\n"
    assert decode(b"\x4a\x5a\xba\xbb\xad\xbd\x9f\x15\x25", 1140) == "¢![]Ý¨€\x85\n"
    assert encode("€", 1140) == b"\x9f"
    assert encode("¤", 37) == b"\x9f"
    for ccsid, text in (
        (37, "€"),
        (500, "€"),
        (1047, "€"),
        (1140, "¤"),
        (500, "Ā"),
        (1140, "日"),
        (819, "Ā"),
    ):
        assert encode(text, ccsid) is None, (ccsid, text)


# -- reading and writing -----------------------------------------------------------------------------------------------


def test_numbers() -> None:
    h = Header(bytearray(72))
    for big in (True, False):
        h.begin(MQMDE, 0, big, 819)
        for value in (0, 1, -1, 255, 65535, 65536, -65536, 999999999, (1 << 30) - 1, 1 << 30, -(1 << 30) - 1):
            assert h.put(MDE_OFFSET, value) == 0
            assert h.get(MDE_OFFSET) == value
            assert h.high(MDE_OFFSET) * 65536 + h.low(MDE_OFFSET) == value
        for value in ((1 << 31) - 1, -(1 << 31)):
            assert h.put(MDE_OFFSET, value) == 0 and h.get(MDE_OFFSET) == value
            # Of flags, the uppermost is one as any other.
            assert h.put(MDE_MSG_FLAGS, value) == 0 and h.get(MDE_MSG_FLAGS) == value & 0xFFFFFFFF
        assert h.put(MDE_MSG_FLAGS, 0xFFFFFFFF) == 0 and h.get(MDE_MSG_FLAGS) == 0xFFFFFFFF
        assert h.get(MDE_ORIGINAL_LENGTH) == -1 and h.get(MDE_MSG_SEQ_NUMBER) == 1
        before = bytes(h.buf)
        for value in (1 << 31, -(1 << 31) - 1, 1 << 40, -(1 << 60)):
            assert h.put(MDE_OFFSET, value) == E_ARGUMENT, value
        for value in (1 << 32, -(1 << 31) - 1):
            assert h.put(MDE_MSG_FLAGS, value) == E_ARGUMENT, value
        assert bytes(h.buf) == before
    assert bytes(h.buf[60:64]) == b"\x00\x00\x00\x80"


def test_what_does_not_fit_a_field() -> None:
    for ccsid in (37, 819):
        h = Header(bytearray(72))
        h.begin(MQMDE, 0, True, ccsid)
        assert put_text(h, MDE_FORMAT, "MQSTR") == 0 and text_of(h, MDE_FORMAT) == "MQSTR   "
        assert h.is_name(MDE_FORMAT, b"MQSTR") and h.is_name(MDE_FORMAT, b"MQSTR   ")
        for name in (b"MQST", b"MQSTR1", b"MQSTR    ", b"", b"mqstr"):
            assert not h.is_name(MDE_FORMAT, name), name
        assert h.put_raw(MDE_GROUP_ID, b"\xff" * 24) == 0
        assert h.put_raw(MDE_GROUP_ID, b"\x01\x02") == 0
        assert h.raw(MDE_GROUP_ID) == b"\x01\x02" + bytes(22) and h.get(MDE_MSG_SEQ_NUMBER) == 1
        before = bytes(h.buf)
        assert put_text(h, MDE_FORMAT, "ninechars") == E_TOO_LARGE
        assert put_text(h, MDE_FORMAT, "日本") == E_ARGUMENT
        assert h.put_name(MDE_FORMAT, b"ninechars") == E_TOO_LARGE
        assert h.put_name(MDE_FORMAT, b"MQ-STR") == E_ARGUMENT
        assert h.put_raw(MDE_GROUP_ID, bytes(25)) == E_TOO_LARGE
        assert bytes(h.buf) == before
        assert h.put_name(MDE_FORMAT, b"MQHMDE") == 0 and text_of(h, MDE_FORMAT) == "MQHMDE  "
        assert h.put_name(MDE_FORMAT, b"") == 0 and text_of(h, MDE_FORMAT) == "\0" * 8
        assert put_text(h, MDE_FORMAT, "") == 0 and h.is_name(MDE_FORMAT, b"")
        assert text_of(h, MDE_STRUC_ID) == "MDE " and h.get(MDE_ENCODING) == 273


def test_what_version_1_has_not() -> None:
    buf = bytearray(b"\x55" * 364)
    h = Header(buf)
    for layout in (MQMD1, MQMD):
        assert h.begin(MQMD1, 0, True, 819) == 324
        assert h.look(layout, 0, 364, True, 819) == 324
        assert h.get(MD_VERSION) == 1 and h.has(MD_REPORT) and not h.has(MD_GROUP_ID)
        assert [h.get(i) for i in (MD_MSG_SEQ_NUMBER, MD_MSG_FLAGS, MD_ORIGINAL_LENGTH)] == [1, 0, -1]
        assert h.raw(MD_GROUP_ID) == bytes(24)
        assert h.put(MD_MSG_SEQ_NUMBER, 2) == E_ARGUMENT
        assert h.put_raw(MD_GROUP_ID, b"\x01") == E_ARGUMENT
        assert buf[324:] == b"\x55" * 40


def test_a_header_is_reusable() -> None:
    """What it says of one is not left over for the next."""
    buf = bytearray(200)
    h = Header(buf)
    h.begin(MQMDE, 0, True, 500)
    h.begin(MQMDE, 72, False, 819)
    assert h.look(MQMDE, 0, 200, True, 819) == E_CODE
    assert h.look(MQMDE, 72, 200, False, 819) == 144
    assert (h.reason, h.bad_field, h.bad_at) == (0, "", 72)
    other = bytearray(buf[72:144])
    h.buf = other
    assert h.look(MQMDE, 0, 72, False, 819) == 72
    assert h.put(MDE_OFFSET, 7) == 0
    assert other[60] == 7 and buf[132] == 0
    # A part of another buffer, too.
    h = Header(memoryview(buf)[72:])
    assert h.look(MQMDE, 0, 72, False, 819) == 72
    assert h.put_raw(MDE_GROUP_ID, b"\x01\x02") == 0 and h.put(MDE_OFFSET, -2) == 0
    assert bytes(buf[104:106]) == b"\x01\x02" and h.get(MDE_OFFSET) == -2
