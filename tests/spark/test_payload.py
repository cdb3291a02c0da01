"""JSON payloads: many at once give the same as each one alone, as Python reads it."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_spark import payload
from headwater_spark.cbor import load_cbor
from headwater_spark.payload import Parser, load
from tests.rows import each_row

MAX = (1 << 63) - 1


def parse(payloads: Sequence[bytes | None], parser: Parser | None = None) -> list[dict[str, Any]]:
    """What each payload is: identity, sending time, metrics."""
    parsed = (parser or Parser()).parse(pa.array(payloads, pa.binary()))
    found: list[dict[str, Any]] = []
    for i in range(len(payloads)):
        known = parsed.board[i] >= 0
        found.append(
            {
                "identity": (parsed.boards[parsed.board[i]], int(parsed.boot[i]), int(parsed.seq[i]))
                if known
                else None,
                "sent": int(parsed.sent_us[i]) if parsed.sent_us[i] >= 0 else None,
                "bad": bool(parsed.bad[i]),
                "metrics": {},
            }
        )
    for metric in parsed.metrics:
        values = metric.strings.to_pylist() if metric.numbers is None else metric.numbers.tolist()
        assert len(values) == len(metric.rows)
        for row, value in zip(metric.rows.tolist(), values, strict=True):
            assert metric.name not in found[row]["metrics"]
            found[row]["metrics"][metric.name] = value
    return found


def reference(data: bytes | None) -> dict[str, Any]:
    """The rules, for one payload."""
    nothing: dict[str, Any] = {"identity": None, "sent": None, "bad": False, "metrics": {}}
    value = None if data is None else load(data) or load_cbor(data)
    if value is None:
        number = None if data is None or len(data) > 64 else plain_number(data)
        return nothing if number is None else nothing | {"metrics": {"value": number}}
    values = {
        key: item for key, item in value.items() if not isinstance(item, (dict, list)) and item is not None
    }
    identity, sent = None, None
    claim = [value.get(key) for key in ("board", "boot", "seq")]
    if None not in claim:
        board, boot, seq = claim
        whole = all(type(n) is int and 0 <= n <= MAX for n in (boot, seq))
        if not (isinstance(board, str) and encodes(board) and whole):
            return nothing | {"bad": True}
        identity = (board, boot, seq)
        for key in ("board", "boot", "seq"):
            values.pop(key, None)
        if type(value.get("t")) is int and 0 <= value["t"] <= 9_000_000_000_000_000:
            sent = values.pop("t")
    metrics = {}
    for key, item in values.items():
        if encodes(key) and (not isinstance(item, str) or encodes(item)):
            metrics[key] = item if isinstance(item, str) else as_double(item)
    return {"identity": identity, "sent": sent, "bad": False, "metrics": metrics}


def refuse(text: str) -> float:
    raise ValueError(text)


def plain_number(data: bytes) -> float | None:
    try:
        found = json.loads(data.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return as_double(found) if type(found) in (int, float) else None


def encodes(text: str) -> bool:
    return not any(0xD800 <= ord(c) < 0xE000 for c in text)


def as_double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def good(seq: int, /, **more: Any) -> bytes:
    return json.dumps(
        {"board": "b1", "boot": 3, "seq": seq, "t": 1763700000000000 + seq, "load": 0.5} | more
    ).encode()


def many(n: int = 200) -> list[bytes]:
    return [good(seq) for seq in range(n)]


def test_an_identity_with_its_time_and_values() -> None:
    payloads = [good(17, temperature=21.5, on=True, off=False, state="idle", count=3)]
    assert parse(payloads) == [
        {
            "identity": ("b1", 3, 17),
            "sent": 1763700000000017,
            "bad": False,
            "metrics": {
                "load": 0.5,
                "temperature": 21.5,
                "on": 1.0,
                "off": 0.0,
                "state": "idle",
                "count": 3.0,
            },
        }
    ]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The payloads that go through Python, as they do."""
    calls: list[bytes] = []

    def call(data: bytes) -> dict[str, Any] | None:
        calls.append(data)
        return load(data)

    monkeypatch.setattr(payload, "load", call)
    return calls


def test_many_are_parsed_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this every other test here could pass on Python's parser alone."""
    calls = counted(monkeypatch)
    payloads = many(1000)
    assert parse(payloads) == [reference(data) for data in payloads]
    assert len(calls) == 32


def test_one_bad_payload_costs_its_neighbours_little(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    payloads = many(1000)
    payloads[500] = b'{"board": "b1", "boot": 3, "seq": 1x}'
    assert parse(payloads) == [reference(data) for data in payloads]
    assert len(calls) <= 100


def neighbourhoods(data: bytes) -> Iterator[list[bytes]]:
    """A payload at place 100 among others from which Arrow has learnt its keys: as numbers, as strings, or not."""
    for others in (many(), [b'{"a": 1, "": 2}'] * 200, [b'{"a": "x", "": "y"}'] * 200):
        yield [*others[:100], data, *others[100:]]


RISKY = [
    b'{"a":1}\n{"a":2}',
    b'{"a":1}\x00}',
    b'{"a":1}{"a":2}',
    b'{"a":[1]}',
    b'{"a":{"b":1}}',
    b'{"a":"\xff"}',
    b' {"a":1}',
    b'{"a":1}\n',
]


@each_row("data", RISKY, ids=repr)
def test_arrow_does_not_see_what_could_put_rows_out_of_step(data: bytes) -> None:
    some = [good(1), data, b"no JSON", good(2), b""]
    rows, risky = payload._triage(pa.array(some, pa.binary()))
    assert (rows.tolist(), risky.tolist()) == ([0, 1, 3], [False, True, False])


@pytest.mark.parametrize(
    "data", [b'{"a":1}\n{"a":2}', b'{"a":1}{"a":2}', b'{"a":1}\x00}', b'{"a":1}\n'], ids=repr
)
def test_rows_stay_in_step_even_if_it_did(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    triage = payload._triage
    monkeypatch.setattr(payload, "_triage", lambda payloads: (triage(payloads)[0], np.zeros(201, np.bool_)))
    for among in neighbourhoods(data):
        assert parse(among) == [reference(one) for one in among]


NOT_JSON = [
    b"",
    b"{",
    b"}",
    b"{}{}",
    b'{"a":1}{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'{"a":1}\x00}',
    b'{"a":1,}',
    b"{,}",
    b'{"a":01}',
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":1} // comment }',
    b'{"a":"\xff"}',
    b'{"\xff":1}',
    b'{"a":"\x01"}',
    b'{"a":"\n"}',
    b"\xef\xbb\xbf{}",
    b"[1, 2]",
    b'"text"',
    b"true",
    b"NaN",
    b"-",
    b"- 1",
    b"1 2",
    b"1.",
    b".5",
    b"+1",
    b"007",
    b"0x10",
    b"1e",
    b"1_000",
    b"21,5",
    b"21.5\0",
    b"\xd9\xa1",
    b"1" * 65,
    b"\x0b1",
    b"null",
    "{}".encode("utf-16"),
    b'{"a":' + b"[" * 100_000,
    b'{"a":' * 100_000 + b"}",
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@each_row("data", NOT_JSON, ids=lambda data: repr(data[:24]))
def test_what_is_no_json_object_has_no_values_and_is_no_error(data: bytes) -> None:
    nothing: dict[str, Any] = {"identity": None, "sent": None, "bad": False, "metrics": {}}
    assert parse([data]) == [nothing]
    for among in neighbourhoods(data):
        answers = parse(among)
        assert answers[100] == nothing
        assert answers == [reference(one) for one in among]


@each_row(
    "data, value",
    [
        (b"21.5", 21.5),
        (b"-0", -0.0),
        (b" 7\r\n", 7.0),
        (b"\t-1.5E+3 ", -1500.0),
        (b"1e999", math.inf),
        (b"1e-999", 0.0),
        (b"9" * 64, 1e64),
        (b"0.1000000000000000055511151231257827", 0.1),
    ],
)
def test_a_number_alone_is_the_metric_value(data: bytes, value: float) -> None:
    found = {"identity": None, "sent": None, "bad": False, "metrics": {"value": value}}
    assert parse([data]) == [found] == [reference(data)]
    for among in neighbourhoods(data):
        answers = parse(among)
        assert answers[100] == found
        assert answers == [reference(one) for one in among]


ODD = [
    b"{}",
    b' {"a": 1} ',
    b'{\n  "board": "b1",\n  "boot": 1,\n  "seq": 2\n}',
    b'{"a": 1, "a": 2}',
    b'{"a": {"b": 1}, "c": [1], "d": null, "e": 1}',
    b'{"board": "b1", "boot": 1, "seq": 2, "nested": {"a": 1}}',
    b'{"a\\u0062": 1, "\\ud800": 2, "s": "\\ud800", "ok": "\\u00e4"}',
    b'{"a": 1e999, "b": -1e999, "c": 123456789012345678901234567890}',
    b'{"board": "\xc3\xa4", "boot": 1, "seq": 2, "\xc2\xb5": "\xe6\xb8\xa9"}',
    b'{"load": "a string here"}',
    b'{"t": 21.5}',
    b'{"t": 21}',
    b'{"board": "b1"}',
    b'{"board": "b1", "boot": null, "seq": 3}',
    b'{"boot": 1, "seq": 3, "board": ""}',
    b'{"board": "b1", "boot": 0, "seq": 9223372036854775807}',
]


@each_row("data", ODD, ids=lambda data: data[:40].decode("utf-8", "replace"))
def test_odd_objects_are_read_as_python_does(data: bytes) -> None:
    assert parse([data]) == [reference(data)]
    for among in neighbourhoods(data):
        assert parse(among) == [reference(one) for one in among]


@each_row(
    "wrong",
    [
        {"board": 1},
        {"board": True},
        {"board": ["b1"]},
        {"board": "\ud800"},
        {"boot": "3"},
        {"boot": 3.0},
        {"boot": -1},
        {"boot": True},
        {"boot": {}},
        {"seq": "17"},
        {"seq": 1e3},
        {"seq": -17},
        {"seq": 1 << 63},
        {"seq": False},
    ],
    ids=str,
)
def test_an_identity_of_wrong_types_is_bad(wrong: dict[str, Any]) -> None:
    bad: dict[str, Any] = {"identity": None, "sent": None, "bad": True, "metrics": {}}
    assert parse([good(1, **wrong)]) == [bad]
    assert parse([*many(100), good(1, **wrong), *many(100)])[100] == bad


def test_a_bad_first_message_does_not_spoil_the_others() -> None:
    parser = Parser()
    parse([good(1, boot=3.5, t="soon", load="high")], parser)
    payloads = many(500)
    assert parse(payloads, parser) == [reference(data) for data in payloads]


@each_row("t", ["soon", 1.5, -1, None, True, 1 << 62])
def test_a_time_that_is_none_is_an_ordinary_value(t: object) -> None:
    payloads = [*many(50), good(1, t=t), *many(50)]
    answers = parse(payloads)
    assert answers == [reference(data) for data in payloads]
    assert answers[50]["identity"] == ("b1", 3, 1)
    assert answers[50]["sent"] is None


def test_a_stranger_cannot_make_columns_without_end() -> None:
    parser = Parser()
    payloads = [json.dumps({f"key{i}": i}).encode() for i in range(2000)]
    assert parse(payloads, parser) == [reference(data) for data in payloads]
    assert len(parser._keys) <= 256
    payloads = many(500)
    assert parse(payloads, parser) == [reference(data) for data in payloads]


def test_nulls_and_slices() -> None:
    payloads = [None, *many(50), None]
    assert parse(payloads) == [reference(data) for data in payloads]
    parsed = Parser().parse(pa.array(payloads, pa.binary()).slice(10, 30))
    assert parsed.seq.tolist() == list(range(9, 39))
    assert parse([]) == []


keys = st.sampled_from(["board", "boot", "seq", "t", "load", "a", "ä", "on"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["b1", "2026-01-01", "true"]),
)
objects = st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=2)), max_size=8)
identified = st.builds(
    lambda board, boot, seq, rest: rest | {"board": board, "boot": boot, "seq": seq},
    st.sampled_from(["b1", "b2"]),
    st.integers(0, 3),
    st.integers(0, 100),
    objects,
)
texts = st.one_of(objects, identified, identified, scalars).map(
    lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
)
mangled = st.builds(
    lambda data, at, byte: data[: at % (len(data) + 1)] + bytes([byte]) + data[at % (len(data) + 1) + 1 :],
    texts,
    st.integers(0, 60),
    st.integers(0, 255),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(texts, texts, texts, mangled, st.none()), max_size=60), st.booleans())
def test_any_payloads_as_python_reads_them(payloads: list[bytes | None], long: bool) -> None:
    # With enough good ones around them Arrow sees the others as well.
    payloads = payloads + many(100) + payloads if long else payloads
    found, wanted = parse(payloads), [reference(data) for data in payloads]
    assert repr(found) == repr(wanted) or [clean(row) for row in found] == [clean(row) for row in wanted]


def clean(row: dict[str, Any]) -> dict[str, Any]:
    """Values in a fixed order; -0.0 and 0.0 are one number."""
    metrics = {k: v + 0.0 if isinstance(v, float) else v for k, v in sorted(row["metrics"].items())}
    return row | {"metrics": metrics}
