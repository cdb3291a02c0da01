# heap: 1M
"""The shared vectors of FMQ's values: both ways, whole, byte by byte, with bytes behind, without room."""

import vectors
from fmq_values import INTEGERS, TAGS, expected, is_exact, put, said

from headwater.errors import E_ARGUMENT, E_FIELD, E_TOO_LARGE
from headwater.fmq import numbers, spec, values
from headwater.fmq.murmur3 import murmur3
from headwater.fmq.names import REASONS
from headwater.fmq.values import Value
from headwater.reasons import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Row = dict[str, Any]

DEPTH = 32
# What may be wrong with a value.
WRONG = ("bad_value", "bad_utf8", "field_beyond_end", "nesting_too_deep")


def rows(*sections: str) -> "Iterator[tuple[Row, bytes]]":
    for section in sections:
        for row in vectors.rows("fmq", section):
            yield row, vectors.unhex(row["hex"])


def checked(data: bytes, at: int = 0, end: int = -1) -> "tuple[int, Value]":
    v = Value(data, DEPTH)
    return numbers.check(v, at, len(data) if end < 0 else end), v


def equal(got: object, want: object) -> bool:
    if isinstance(got, float) and isinstance(want, float):
        return (got != got and want != want) or (got == want and str(got) == str(want))
    return got == want


def test_rows_are_complete() -> None:
    kinds = set()
    tags = set()
    for row, data in rows("values"):
        kinds.add(row["type"])
        tags.add(data[0] >> 4)
    assert kinds == set(TAGS)
    assert tags == set(range(16)) - {5}
    assert {row["reason"] for row, _ in rows("malformed_values")} == set(WRONG)


def test_read() -> None:
    for row, data in rows("values", "longer_values"):
        got, v = checked(data)
        assert got == len(data), (row, got)
        assert v.kind == TAGS[row["type"]], row
        if row["type"] == "Float" and not is_exact(row["double"]):
            continue
        found, stop = said(v, 0, len(data))
        assert stop == len(data) and equal(found, expected(row)), (row, found)


def test_byte_by_byte() -> None:
    """A value of which a part is there is never taken for one."""
    for row, data in rows("values", "longer_values"):
        for n in range(len(data)):
            assert checked(data, 0, n)[0] == E_FIELD, (row, n)
    for row, data in rows("malformed_values"):
        final = checked(data)[0]
        for n in range(len(data)):
            assert checked(data, 0, n)[0] in (E_FIELD, final), (row, n)


def test_with_bytes_behind_and_before() -> None:
    for row, data in rows("values", "longer_values"):
        for behind in (b"\x00", b"\xff\xff", b"\x80\x80\x80\x80", data[:100]):
            whole = b"\x11\x05" + data + behind
            got, v = checked(whole, 2)
            assert got == 2 + len(data), row
            if row["type"] == "Float" and not is_exact(row["double"]):
                continue
            assert equal(said(v, 2, len(whole))[0], expected(row)), row


def test_malformed() -> None:
    for row, data in rows("malformed_values"):
        got, v = checked(data)
        assert reason(got, REASONS) == row["reason"], (row, got)
        assert v.bad_at == row["offset"], (row, v.bad_at)
        whole = b"\xff\x11" + data
        got, v = checked(whole, 2)
        assert reason(got, REASONS) == row["reason"] and v.bad_at == row["offset"] + 2, row


def test_a_cursor_is_reusable() -> None:
    buf = bytearray(600)
    v = Value(buf, DEPTH)
    for row, data in rows("values", "malformed_values", "longer_values"):
        buf[: len(data)] = data
        got = numbers.check(v, 0, len(data))
        if "reason" in row:
            assert reason(got, REASONS) == row["reason"], row
        elif row["type"] != "Float" or is_exact(row["double"]):
            assert equal(said(v, 0, len(data))[0], expected(row)), row


def test_depth() -> None:
    for depth in (1, 8, 9):
        for empty in (b"\xd0", b"\xe0", b"\xf0"):
            fits = b"\xd1\x01" * (depth - 1) + empty
            v = Value(fits, depth)
            assert numbers.check(v, 0, len(fits)) == len(fits)
            assert v.kind == fits[0] >> 4 and v.count == (1 if depth > 1 else 0)
            deeper = b"\xf1\x01" + fits
            v = Value(deeper, depth)
            assert numbers.check(v, 0, len(deeper)) == spec.E_DEPTH
            assert v.bad_at == 2 * depth


def test_write() -> None:
    for row, want in rows("values"):
        if row["type"] == "Float" and not is_exact(row["double"]):
            continue
        n = len(want)
        buf = bytearray(b"\x55" * (n + 20))
        end = put(buf, 3, n + 3, row)
        assert end == n + 3, (row, end)
        assert buf[3:end] == want, (row, buf[3:end])
        assert buf[:3] == b"\x55" * 3 and buf[end:] == b"\x55" * 17, row
        # Where there is room, nothing is different.
        assert put(buf, 3, n + 20, row) == n + 3 and buf[3:end] == want, row


def test_write_without_room() -> None:
    for row, want in rows("values"):
        n = len(want)
        if n > 100 or (row["type"] == "Float" and not is_exact(row["double"])):
            continue
        buf = bytearray(b"\x55" * (n + 8))
        for limit in range(3, n + 3):
            assert put(buf, 3, limit, row) == E_TOO_LARGE, (row, limit)
            assert buf[limit:] == b"\x55" * (n + 8 - limit), (row, limit)


def test_a_code_passes_through() -> None:
    buf = bytearray(40)
    for put_it in (
        lambda: values.put_none(buf, E_ARGUMENT, 40),
        lambda: values.put_bool(buf, E_ARGUMENT, 40, True),
        lambda: values.put_text(buf, E_ARGUMENT, 40, b"x"),
        lambda: values.put_int(buf, E_ARGUMENT, 40, 1),
        lambda: values.put_int(buf, E_ARGUMENT, 40, 1 << 70),
        lambda: values.put_count(buf, E_ARGUMENT, 40, spec.LIST, 1),
        lambda: numbers.put_float(buf, E_ARGUMENT, 40, 1.5),
        lambda: numbers.put_decimal(buf, E_ARGUMENT, 40, 1, 1),
        lambda: numbers.put_bytes(buf, E_ARGUMENT, 40, spec.INT, b"\x01", 0, 1),
    ):
        assert put_it() == E_ARGUMENT  # type: ignore[no-untyped-call]
    assert buf == bytes(40)


def test_wrong_arguments() -> None:
    buf = bytearray(40)
    assert values.put_count(buf, 0, 40, spec.LIST, -1) == E_ARGUMENT
    assert numbers.put_decimal(buf, 0, 40, 1, -1) == E_ARGUMENT
    assert numbers.put_bytes(buf, 0, 40, spec.INT, b"", 0, 0) == E_ARGUMENT
    assert numbers.put_bytes(buf, 0, 40, spec.INT, b"\xff" * 9, 0, 9) == E_ARGUMENT
    assert numbers.put_bytes(buf, 0, 40, spec.INT, b"\xff" * 8, 0, 8, True) == E_ARGUMENT


def test_integers_as_bytes() -> None:
    """What was read is written again without ever being a number."""
    copied = 0
    for row, data in rows("values", "longer_values"):
        _, v = checked(data)
        if row["type"] not in INTEGERS or v.big:
            continue
        buf = bytearray(12)
        end = numbers.put_bytes(buf, 1, 12, v.kind, v.buf, v.at, v.end, v.negative)
        want = bytearray(12)
        assert end == values.put_int(want, 1, 12, int(row["value"]), v.kind), row
        assert buf[1:end] == want[1:end], row
        assert numbers.put_bytes(buf, 1, end - 1, v.kind, v.buf, v.at, v.end, v.negative) == E_TOO_LARGE
        copied += 1
    assert copied > 25


def test_every_half_is_written_in_two_bytes() -> None:
    buf = bytearray(12)
    data = bytearray(3)
    v = Value(data)
    data[0] = 0x42
    for word in range(0, 65536, 7):
        data[1] = word & 255
        data[2] = word >> 8
        assert values.read(v, 0, 3) == 3
        value = numbers.float_of(v)
        if value != value or word == 0 or word == 0x7C00:
            continue
        assert numbers.put_float(buf, 0, 12, value) == 3, word
        assert buf[:3] == data, word


def test_precision_is_said() -> None:
    v = Value(vectors.unhex("810d0f951a9fa3a286c94f0e766c39111f01"))
    assert values.read(v, 0, 18) == 18
    assert numbers.precision(v) == 31
    assert numbers.scale(v) == 1


def test_murmur3() -> None:
    for row in vectors.rows("fmq", "murmur3"):
        assert murmur3(row["text"].encode()) == int(row["hash"], 16), row
    order = sorted(["id", "name", "on"], key=lambda name: murmur3(name.encode()))
    assert order == ["on", "name", "id"]
