"""FMQ's values on the host: the shared vectors both ways, against the core's decoder, and what only Python has."""

import dataclasses
import datetime as dt
import decimal
import math
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import load

from headwater.fmq.murmur3 import murmur3
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.kinds import DateTime, Duration, Object, Pairs, exact, in_order
from headwater_host.fmq.values import (
    DEPTH,
    LARGEST_SCALE,
    MOST_ZEROS,
    MalformedValueError,
    decode,
    encode,
)
from tests.host.command import environment
from tests.rows import each_row

ROWS = load("fmq")
UTC = dt.timezone.utc


def value_of(row: dict[str, Any]) -> Any:
    """A row's value in Python."""
    kind: str = row["type"]
    value: Any = row.get("value")
    if kind in ("Int", "BigInt"):
        return int(value)
    if kind in ("Duration", "DateTime"):
        return (Duration if kind == "Duration" else DateTime)(int(value))
    if kind == "Float":
        return float(value)
    if kind == "Decimal":
        return Decimal(value)
    if kind == "Map":
        return dict(value)
    if kind == "Object":
        return Object.of(row["fields"])
    return value


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same type; floats by their bits, decimals by their digits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bool(struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b)))
    if isinstance(a, Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def plain(value: Any) -> Any:
    """A Decimal as it is read: of no negative scale, nor a negative zero."""
    if isinstance(value, Decimal) and value == value.to_integral_value():
        scale = value.as_tuple().exponent
        return abs(value) if not value else value.quantize(Decimal((0, (1,), min(0, int(scale)))))
    return value


@each_row("row", ROWS["values"], ids=lambda row: row["hex"][:30])
def test_vectors(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    value = value_of(row)
    if isinstance(value, dict) and len(value) < len(row["value"]):
        value = Pairs((key, one) for key, one in row["value"])
    assert encode(value) == data
    assert same(decode(data, strict=True), plain(value))


@each_row("row", ROWS["longer_values"], ids=lambda row: row["hex"])
def test_longer_forms_are_read_unless_strictly(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    value = decode(data)
    assert same(value, plain(value_of(row)))
    with pytest.raises(MalformedValueError) as caught:
        decode(data, strict=True)
    assert caught.value.reason == "bad_value"
    assert 0 <= caught.value.offset < len(data)


@each_row("row", ROWS["malformed_values"], ids=lambda row: row["why"])
def test_malformed(row: dict[str, Any]) -> None:
    with pytest.raises(MalformedValueError) as caught:
        decode(bytes.fromhex(row["hex"]))
    assert (caught.value.reason, caught.value.offset) == (row["reason"], row["offset"])


def test_what_is_behind_a_value_is_refused() -> None:
    with pytest.raises(MalformedValueError) as caught:
        decode(b"\x31\x05\x00")
    assert caught.value.offset == 2


@each_row("row", ROWS["murmur3"], ids=lambda row: row["text"])
def test_hashes(row: dict[str, Any]) -> None:
    assert hash_of(row["text"]) == int(row["hash"], 16)


@given(st.text(max_size=70))
def test_the_library_and_the_core_hash_alike(text: str) -> None:
    assert hash_of(text) == murmur3(text.encode())


def test_without_the_library_the_core_hashes() -> None:
    code = (
        "import sys; sys.modules['mmh3'] = None\n"
        "from headwater_host.fmq.hashes import hash_of; print('%032x' % hash_of('hello'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout == "cbd8a7b341bd9b025b1e906a48ae1d19\n"


# -- what only Python has ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pump:
    id: int
    name: str
    on: bool


@dataclasses.dataclass
class Plant:
    pumps: list[Pump]
    main: Pump | None
    since: dt.datetime
    every: dt.timedelta
    exactly: DateTime


def test_dataclasses() -> None:
    pump = Pump(7, "pump", True)
    data = encode(pump)
    assert data.hex() == "f10321110470756d703107"
    assert decode(data) == (True, "pump", 7)
    assert decode(data).fields(["id", "name", "on"]) == {"id": 7, "name": "pump", "on": True}
    assert decode(data, into=Pump) == pump
    at = dt.datetime(2026, 11, 21, 12, 0, 0, 5, UTC)
    plant = Plant([pump, Pump(8, "é", False)], pump, at, dt.timedelta(days=-1, microseconds=3), DateTime(5))
    assert decode(encode(plant), into=Plant) == plant
    plant.main = None
    assert decode(encode(plant), into=Plant) == plant
    assert in_order(["id", "name", "on"]) == ("on", "name", "id")


def test_a_dataclass_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="Pump has 3 fields, the object 1"):
        decode(encode(Object([1])), into=Pump)
    with pytest.raises(TypeError, match="not of a list"):
        decode(encode([1]), into=Pump)
    with pytest.raises(ValueError, match="an object of 1 fields has not 2 names"):
        Object([1]).fields(["a", "b"])


def test_times() -> None:
    at = dt.datetime(2026, 11, 21, 13, 0, 0, 123456, dt.timezone(dt.timedelta(hours=1)))
    read = decode(encode(at))
    assert read == DateTime.of(at)
    assert read.nanoseconds == 1795262400123456000
    assert read.datetime() == at
    assert DateTime(-1).datetime() == dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert decode(encode(dt.timedelta(microseconds=-1))) == Duration(-1000)
    assert Duration(1999).timedelta() == dt.timedelta(microseconds=1)
    with pytest.raises(ValueError, match="without a time zone"):
        encode(at.replace(tzinfo=None))
    with pytest.raises(OverflowError):
        DateTime(1 << 80).datetime()


@each_row("value", [dt.datetime.min, dt.datetime.max])
def test_the_first_and_the_last_datetime(value: dt.datetime) -> None:
    value = value.replace(tzinfo=UTC)
    assert decode(encode(value)).datetime() == value


def test_maps_that_a_dict_cannot_hold() -> None:
    for pairs in ([([1], 2)], [(1, "int"), (True, "bool")], [("a", 1), ("a", 2)], [(1.0, 1), (1, 2)]):
        data = encode(Pairs(pairs))
        read = decode(data, strict=True)
        assert isinstance(read, Pairs)
        assert read == pairs
    assert type(decode(encode({"a": 1, 1: 2, None: 3}))) is dict


@each_row("value", [b"x", object(), {1}, 1j, Pump, dt.date(2026, 1, 1)])
def test_what_has_no_value(value: object) -> None:
    with pytest.raises(TypeError, match="FMQ has no value for a"):
        encode([value])


@each_row(
    "value, says",
    [
        (Decimal("NaN"), "no value for Decimal"),
        (Decimal("-Infinity"), "no value for Decimal"),
        (Decimal((0, (1,), -LARGEST_SCALE - 1)), "exponent"),
        (Decimal((0, (1,), MOST_ZEROS + 1)), "exponent"),
        ("\ud800", "surrogates"),
    ],
)
def test_values_out_of_bounds(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encode(value)


def test_subclasses_are_what_they_derive_from() -> None:
    class Text(str):
        __slots__ = ()

    class Many(list[int]):
        pass

    assert encode(Text("hi")) == encode("hi")
    assert encode(Many([1])) == encode([1])


def test_depth() -> None:
    value: Any = []
    for _ in range(DEPTH - 1):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(ValueError, match="nested too deeply"):
        encode({"a": value})
    with pytest.raises(MalformedValueError):
        decode(encode([value], depth=DEPTH + 1))
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    with pytest.raises(ValueError, match="nested too deeply"):
        encode(round_and_round)


def test_a_scale_that_no_decimal_has_is_refused() -> None:
    for hexed in ("7101130140420f", "71011f01" + "ff" * 15):
        with pytest.raises(MalformedValueError) as caught:
            decode(bytes.fromhex(hexed))
        assert caught.value.offset == 0
    assert decode(bytes.fromhex("710113013f420f")) == Decimal((0, (1,), -LARGEST_SCALE))


@given(st.integers(1, 40000), st.data())
def test_large_numbers_are_exact(bits: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(1 << bits), 1 << bits))
    with decimal.localcontext(decimal.Context(prec=decimal.MAX_PREC)):
        assert exact(value) == Decimal(value)
    assert decode(encode(value), strict=True) == value


def test_an_integer_of_a_megabyte() -> None:
    """Digit by digit it would take minutes: longer than a test may."""
    value = 3 - (1 << (8 << 20))
    decoded = decode(encode(value))
    assert decoded == value
    shown = str(exact(decoded))
    assert (len(shown), shown[:4]) == (2525224, "-426")
    # Its last digits, and what it is modulo a number that is no power of ten.
    assert int(shown[-9:]) == -value % 10**9
    rest = 0
    for i in range(1, len(shown), 9):
        rest = (rest * 10 ** len(shown[i : i + 9]) + int(shown[i : i + 9])) % 1000003
    assert rest == -value % 1000003


def test_a_decimal_of_very_many_digits() -> None:
    value = Decimal("1." + "23456789" * 2000)
    assert same(decode(encode(value), strict=True), value)
    assert math.copysign(1, decode(encode(-value))) == -1
