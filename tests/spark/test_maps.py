"""Payloads that are FMQ Maps: numpy gives the core's answers, and they are what was written."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_spark import maps
from headwater_spark.fmq_core import load_map, time_text
from headwater_spark.parsed import Parsed
from headwater_spark.payload import Parser
from tests.rows import each_row
from tests.spark.fmq_bytes import NOW_NS, Decimal, Nanoseconds, spoiled, value

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/fmq.json").read_text(encoding="utf-8"))
GOOD = [*VECTORS["values"], *VECTORS["longer_values"]]


def parsed(payloads: list[bytes]) -> list[dict[str, Any]]:
    """What each payload says."""
    return rows_of(Parser().parse(pa.array(payloads, pa.binary())))


def rows_of(found: Parsed) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(len(found.board)):
        row: dict[str, Any] = {}
        if found.bad[i]:
            row["bad"] = True
        elif found.board[i] >= 0:
            identity = found.boards[found.board[i]], int(found.boot[i]), int(found.seq[i])
            row["identity"] = (*identity, int(found.sent_us[i]))
        rows.append(row)
    for metric in found.metrics:
        for i, at in enumerate(metric.rows.tolist()):
            assert metric.name not in rows[at]
            item = metric.strings[i].as_py() if metric.numbers is None else float(metric.numbers[i])
            rows[at][metric.name] = "NaN" if item != item else item
    return rows


def one_by_one(payloads: list[bytes]) -> list[dict[str, Any]]:
    """The same by the core alone."""

    def nothing(some: Any, wanted: Any) -> maps.Maps:
        return maps.Maps(np.zeros(len(some), np.bool_), [], {}, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "read", nothing)
        return parsed(payloads)


def is_quick(*payloads: bytes) -> bool:
    """Whether numpy understands them all."""
    return bool(maps.read(pa.array(payloads, pa.binary()), ()).good.all())


def test_values_of_every_kind() -> None:
    written = {
        "none": None,
        "text": "warm",
        "empty": "",
        "long": "x" * 300,
        "yes": True,
        "no": False,
        "int": 21,
        "negative": -300,
        "least": -(1 << 63),
        "most": (1 << 64) - 1,
        "float": 21.25,
        "decimal": Decimal(-314, 2),
        "places": Decimal(7, 0),
        "duration": Nanoseconds(9, 1_500_000_000),
        "back": Nanoseconds(9, -1),
        "time": Nanoseconds(11, NOW_NS),
        "before": Nanoseconds(11, -1),
    }
    wanted = {
        "text": "warm",
        "empty": "",
        "long": "x" * 300,
        "yes": 1.0,
        "no": 0.0,
        "int": 21.0,
        "negative": -300.0,
        "least": -(2.0**63),
        "most": 2.0**64,
        "float": 21.25,
        "decimal": -3.14,
        "places": 7.0,
        "duration": 1.5,
        "back": -1e-9,
        "time": "2026-09-21T14:13:20.123456789Z",
        "before": "1969-12-31T23:59:59.999999999Z",
    }
    assert is_quick(value(written))
    assert parsed([value(written)]) == one_by_one([value(written)]) == [wanted]


def expected(row: dict[str, Any]) -> Any:
    """The cell of telemetry for a vector; None for what has none."""
    kind: str = row["type"]
    written: Any = row.get("value")
    if kind in ("None", "List", "Map", "Object"):
        return None
    if kind in ("String", "Bool"):
        return written if kind == "String" else float(written)
    if kind == "DateTime":
        return time_text(int(written))
    number = float(Fraction(int(written), 10**9)) if kind == "Duration" else float(written)
    return "NaN" if math.isnan(number) else number


@each_row("row", GOOD, ids=lambda row: row["hex"][:20])
def test_vector_as_a_value(row: dict[str, Any]) -> None:
    payload = b"\xe1\x02" + value("x") + bytes.fromhex(row["hex"]) + value("y") + value(1)
    wanted = expected(row)
    answer = {"y": 1.0} if wanted is None else {"x": wanted, "y": 1.0}
    assert parsed([payload]) == one_by_one([payload]) == [answer]
    # Beside others that are usual.
    assert parsed([value({"x": 1}), payload]) == [{"x": 1.0}, answer]


def test_every_value_of_the_vectors_in_a_map_with_one_thing_wrong() -> None:
    wholes = [bytes.fromhex(row["hex"]) for row in [*GOOD, *VECTORS["malformed_values"]]]
    payloads = [
        data
        for whole in wholes
        if len(whole) < 100
        for data in spoiled(b"\xe1\x02" + value("k") + whole + value("n") + value(7))
    ]
    assert len(payloads) > 10_000
    found, wanted = parsed(payloads), one_by_one(payloads)
    wrong = [data.hex() for data, a, b in zip(payloads, found, wanted, strict=True) if a != b]
    assert not wrong, wrong[:10]
    assert sum(row != {} for row in wanted) > 2000


@each_row("row", VECTORS["malformed_values"], ids=lambda row: row["why"])
def test_malformed_vector_has_no_values(row: dict[str, Any]) -> None:
    payload = b"\xe1\x01" + value("x") + bytes.fromhex(row["hex"])
    assert parsed([payload]) == one_by_one([payload]) == [{}]


def test_what_is_left_to_the_core() -> None:
    """Nested values stay in the payload; others are as large as they are."""
    written = {
        "list": [1, [2]],
        "map": {"a": 1},
        "big": 1 << 70,
        "huge": 1 << 1030,
        "decimal": Decimal(12345678901234567890123, 3),
        "duration": Nanoseconds(9, 10**18 + 1),
        "late": Nanoseconds(11, 1 << 63),
        "last": Nanoseconds(11, 1 << 80),
        5: 6,
        "a": "b",
    }
    assert not is_quick(value(written))
    assert parsed([value(written)]) == [
        {
            "big": 2.0**70,
            "decimal": 12345678901234567890.123,
            "duration": 1000000000.000000001,
            "late": "2262-04-11T23:47:16.854775808Z",
            "last": str(1 << 80),
            "a": "b",
        }
    ]


def test_what_is_no_map_has_no_values() -> None:
    good = value({"a": 1})
    assert parsed([good, good[:-1], good + b"\0", b"\xe0", b"\xe1", b"\xe1\x00", b"", b"\xd1\x01\xe0"]) == [
        {"a": 1.0},
        *[{}] * 7,
    ]
    assert parsed([b'{"a": 2}', good, b"21.5", b"x"]) == [{"a": 2.0}, {"a": 1.0}, {"value": 21.5}, {}]


def test_a_key_that_stands_twice_has_its_last_value() -> None:
    twice = b"\xe1\x03" + value("a") + value(1) + value("b") + value(2) + value("a") + value("x")
    assert parsed([value({"a": 7}), twice, value({"b": 8})]) == [{"a": 7.0}, {"a": "x", "b": 2.0}, {"b": 8.0}]


def test_identity_and_time() -> None:
    base = {"board": "b1", "boot": 2, "seq": 3}
    payloads: list[dict[str, Any]] = [
        base | {"t": 1_000_000, "x": 1},
        base | {"t": Nanoseconds(11, 5_000_999)},
        base | {"t": -1},
        base | {"t": Nanoseconds(11, -1)},
        {"board": "b1", "boot": None, "seq": 3, "t": 4},
        base | {"seq": -1},
        base | {"seq": 2.0},
        base | {"boot": 1 << 63},
        base | {"board": 7},
        base | {"board": Nanoseconds(11, 0)},
        base | {"boot": Nanoseconds(11, 1)},
    ]
    frames = list(map(value, payloads))
    assert is_quick(*frames)
    wanted: list[dict[str, Any]] = [
        {"identity": ("b1", 2, 3, 1_000_000), "x": 1.0},
        {"identity": ("b1", 2, 3, 5_000)},
        {"identity": ("b1", 2, 3, -1), "t": -1.0},
        {"identity": ("b1", 2, 3, -1), "t": "1969-12-31T23:59:59.999999999Z"},
        {"board": "b1", "seq": 3.0, "t": 4.0},
        *[{"bad": True}] * 6,
    ]
    assert parsed(frames) == one_by_one(frames) == wanted
    # The same from JSON, where it can say so.
    assert parsed([json.dumps(p).encode() for p in (payloads[0], payloads[2], payloads[4], payloads[5])]) == [
        wanted[0],
        wanted[2],
        wanted[4],
        wanted[5],
    ]


def test_more_keys_than_anybody_needs() -> None:
    many = [value({f"k{i}": i}) for i in range(1000)] + [value({f"k{i}": i for i in range(100)})]
    assert parsed(many) == one_by_one(many)


@each_row("ns", [0, -1, NOW_NS, -(1 << 63) + 1, (1 << 63) - 1, -62135596800 * 10**9, 253402300800 * 10**9])
def test_times_read_as_iso_8601(ns: int) -> None:
    ours = value({"t": Nanoseconds(11, ns)})
    assert parsed([ours]) == one_by_one([ours]) == [{"t": time_text(ns)}]


numbers = st.one_of(
    st.integers(-300, 300),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([1 << 53, (1 << 53) + 1, 1 << 63, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1 << 64]),
)
values = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(),
    st.text(max_size=5),
    st.text("é", min_size=120, max_size=140),
    st.builds(Nanoseconds, st.sampled_from([9, 11]), numbers),
    st.builds(Decimal, numbers, st.integers(0, 40)),
    st.lists(st.integers(0, 9), max_size=3),
)
keys = st.one_of(st.sampled_from(["board", "boot", "seq", "t", "a", "b", ""]), st.text(max_size=4))
ordinary = st.dictionaries(keys, values, max_size=6).map(value)
boards = st.builds(
    lambda more, **own: value(own | more),
    st.dictionaries(keys, values, max_size=2),
    board=st.sampled_from(["b1", "b2", 3]),
    boot=st.integers(-1, 2),
    seq=st.integers(-1, 5),
    t=st.one_of(st.integers(-1, 1 << 60), st.just(Nanoseconds(11, NOW_NS))),
)
mangled = st.builds(
    lambda data, at, byte, keep: (data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :])[:keep],
    st.one_of(ordinary, boards),
    st.integers(0, 60),
    st.integers(0, 255),
    st.integers(0, 90),
)
anything = st.lists(
    st.one_of(ordinary, boards, mangled, st.binary(max_size=9).map(lambda data: b"\xe1" + data)), max_size=20
)


@settings(max_examples=300, deadline=None)
@given(anything)
def test_any_payloads_as_the_core_reads_them(some: list[bytes]) -> None:
    assert parsed(some) == one_by_one(some)


@settings(max_examples=200, deadline=None)
@given(st.lists(ordinary, min_size=1, max_size=5))
def test_what_the_core_reads_is_what_was_written(some: list[bytes]) -> None:
    for data in some:
        found = load_map(data)
        assert found is not None
        for key, item in found.items():
            written = value(key)
            assert written in data
            if isinstance(item, str | bool):
                assert written + value(item) in data
            elif isinstance(item, float) and math.isnan(item):
                assert written + b"\x48" in data
