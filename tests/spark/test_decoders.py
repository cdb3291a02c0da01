"""Decoders of payloads: CBOR, those of users by topic, and identities from elsewhere."""

import importlib
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.cli.main import main
from headwater_host.mqtt_properties import encode
from headwater_spark.cbor import load_cbor
from headwater_spark.decoders import Decoder, columns, parse_decoder, registered
from headwater_spark.growth import grow
from headwater_spark.identity import Identity, level_of
from headwater_spark.payload import Parser, Rules
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY
from tests.rows import each_row
from tests.spark.logs import InProcess, Rec, publish, reading, rows, write_log

EXAMPLES = Path(__file__).parents[2] / "examples/spark"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The examples' folder as the current one."""
    before = list(sys.path)
    monkeypatch.chdir(EXAMPLES)
    yield EXAMPLES
    sys.path[:] = before


# -- CBOR --------------------------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.integers(-(1 << 64), (1 << 64) - 1), st.floats(), st.booleans(), st.none(), st.text(max_size=30)
)
items = st.recursive(
    scalars | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=10,  # most of the time would go into making the values
)


def plain(value: Any) -> Any:
    """A value as the table has it; NaN is equal to itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value if isinstance(value, str | int | float) else None


@settings(max_examples=150, deadline=None)
@given(
    value=st.dictionaries(st.text(max_size=8), items, max_size=30),
    canonical=st.booleans(),
    tagged=st.booleans(),
)
def test_maps_of_cbor_as_another_library_encodes_them(
    value: dict[str, Any], canonical: bool, tagged: bool
) -> None:
    data = cbor2.dumps(cbor2.CBORTag(55799, value) if tagged else value, canonical=canonical)
    found = load_cbor(data)
    assert found is not None
    assert {key: plain(one) for key, one in found.items()} == {key: plain(one) for key, one in value.items()}
    assert load_cbor(data + b"\0") is None
    assert load_cbor(data[:-1]) is None


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=12).map(lambda rest: b"\xa1\x61a" + rest) | st.binary(max_size=20))
def test_what_is_taken_for_cbor_is_cbor(data: bytes) -> None:
    # The other library also looks into tags.
    if not any(0xC0 <= byte < 0xDC for byte in data) and load_cbor(data) is not None:
        assert isinstance(cbor2.loads(data), dict)


@each_row(
    "data, value",
    [
        (b"\xbf\x61a\x01\xff", {"a": 1}),
        (b"\xa1\x61a\x7f\x61x\x61y\xff", {"a": "xy"}),
        (b"\xa1\x61a\x9f\xff", {"a": None}),
        (b"\xa1\x01\x02", {}),
        (b"\xa1\x61a\xc1\x1a\x00\x00\x00\x01", {"a": None}),
        (b"\xa1\x61a\xf9\x3c\x00", {"a": 1.0}),
        (b"\xa1\x61a\xff", None),
        (b"\xa1\x61\xff\x01", None),
        (b"\xa1\x61a\xf8\x14", None),
        (b"\xa1\x61a\x1c", None),
        (b"\xa1\x61a" + b"\x81" * 40 + b"\x01", None),
        (b"\x81\x01", None),
        (b"\xbb" + b"\xff" * 8, None),
        (b"", None),
        (b"\xd9\xd9\xf7", None),
    ],
)
def test_shapes_of_cbor(data: bytes, value: dict[str, Any] | None) -> None:
    assert load_cbor(data) == value


# -- the parser --------------------------------------------------------------------------------------------------------


def parsed(
    payloads: Sequence[bytes | None], rules: Rules | None = None, **context: list[Any]
) -> tuple[list[Any], list[dict[str, Any]], dict[int, str]]:
    """Identities (False if bad), metrics by row, and failures."""
    types = {"user_properties": pa.map_(pa.string(), pa.string())}
    given = {name: pa.array(column, types.get(name, pa.string())) for name, column in context.items()}
    given = {name: one if name in types else one.dictionary_encode() for name, one in given.items()}
    found = Parser(rules).parse(pa.array(payloads, pa.binary()), given)
    values: list[dict[str, Any]] = [{} for _ in payloads]
    for metric in found.metrics:
        texts = metric.strings.to_pylist() if metric.numbers is None else metric.numbers.tolist()
        for row, value in zip(metric.rows.tolist(), texts, strict=True):
            values[row][metric.name] = value
    who: list[Any] = []
    for i, board in enumerate(found.board.tolist()):
        if found.bad[i] or board < 0:
            who.append(False if found.bad[i] else None)
        else:
            who.append((found.boards[board], found.boot[i], found.seq[i], found.sent_us[i]))
    return who, values, found.failed


def test_cbor_beside_json_and_numbers() -> None:
    message = {
        "board": "b",
        "boot": 1,
        "seq": 2,
        "t": 3,
        "on": True,
        "x": 0.5,
        "s": "é",
        "deep": [1],
        "no": None,
    }
    payloads = [
        cbor2.dumps(message),
        b'{"x": 1}',
        b"21.5",
        cbor2.dumps({"board": 1, "boot": 1, "seq": 1}),
        b"\xa1",
    ]
    who, values, _ = parsed(payloads)
    assert who == [("b", 1, 2, 3), None, None, False, None]
    assert values == [{"on": 1.0, "x": 0.5, "s": "é"}, {"x": 1.0}, {"value": 21.5}, {}, {}]


def test_the_content_type_decides() -> None:
    data = cbor2.dumps({"x": 1})
    types = [
        "application/cbor",
        "application/senml+cbor",
        "application/json; charset=utf-8",
        None,
        "image/png",
    ]
    assert parsed([data] * 5, content_type=types)[1] == [{"x": 1.0}, {"x": 1.0}, {}, {"x": 1.0}, {"x": 1.0}]
    assert parsed([b'{"x": 1}'] * 5, content_type=types)[1] == [{}, {}, {"x": 1.0}, {"x": 1.0}, {"x": 1.0}]
    fmq = b"\xe1\x01\x11\x01x\x41"
    assert parsed([fmq] * 5, content_type=types)[1] == [{"x": 0.0}] * 5


def each(payload: bytes) -> Mapping[str, Any] | None:
    if payload == b"bad":
        raise ValueError("not like that")
    if payload == b"list":
        return {"x": [1]}
    return None if payload == b"none" else {"size": len(payload), "board": "b", "boot": 0, "seq": payload[0]}


@columns
def together(payloads: Any) -> Any:
    values = payloads.to_pylist()
    if b"bad" in values:
        raise ValueError("not like that")
    sizes = pa.array([len(value) for value in values], pa.int32())
    boards = pa.array(["b"] * len(values)).dictionary_encode()
    names = {
        "size": sizes,
        "board": boards,
        "boot": pa.array([0] * len(values)),
        "gone": pa.nulls(len(values)),
    }
    if b"list" in values:
        names["x"] = pa.array([[1]] * len(values))
    if b"none" in values:
        names = {name: pc_without(column, values) for name, column in names.items()}
    return names | {"seq": pa.array([None if value == b"none" else value[0] for value in values])}


def pc_without(column: Any, values: list[bytes]) -> Any:
    return pa.array(
        [None if value == b"none" else one for one, value in zip(column.to_pylist(), values, strict=True)]
    )


@each_row("function", [each, together])
def test_decoders_by_topic(function: Any) -> None:
    rules = Rules(decoders=registered({"raw/+": function, "raw/#": each}))
    payloads = [b"\x05", b"bad", b"none", b"{}", b"list", b"\x06x", b'{"y": 1}', None]
    topics = ["raw/a", "raw/a", "raw/b", "raw/c", "raw/c", "raw/d", "json", "raw/a"]
    who, values, failed = parsed(payloads, rules, topic=topics)
    assert who == [("b", 0, 5, -1), False, None, ("b", 0, ord("{"), -1), False, ("b", 0, 6, -1), None, None]
    assert values == [{"size": 1.0}, {}, {}, {"size": 2.0}, {}, {"size": 2.0}, {"y": 1.0}, {}]
    assert failed[1] == "raw/+: ValueError: not like that"
    assert "raw/+: TypeError: " in failed[4]
    assert set(failed) == {1, 4}


def test_a_decoder_with_too_few_rows_fails() -> None:
    @columns
    def short(payloads: Any) -> Any:
        return {"x": pa.array([1] * (len(payloads) // 2))}

    _, _, failed = parsed([b"a", b"b"], Rules(decoders=registered({"#": short})), topic=["t", "t"])
    assert failed[0].endswith("the decoder returned 0 rows for 1 payloads")
    assert len(failed) == 2


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


@each_row(
    "error, text",
    [
        (ValueError("\udcff"), "ValueError: \\udcff"),
        (MuteError(), "MuteError: its error has no text"),
        (SystemExit(3), "SystemExit: 3"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_any_error_of_a_decoder_is_noted(error: BaseException, text: str) -> None:
    def function(_: Any) -> Any:
        raise error

    for decoder in (function, columns(lambda payloads: function(payloads))):
        _, _, failed = parsed([b"a"] * 2, Rules(decoders=registered({"#": decoder})), topic=["t"] * 2)
        assert failed == {0: f"#: {text}", 1: f"#: {text}"}
        assert pa.array(failed.values(), pa.string()).to_pylist() == [f"#: {text}"] * 2


def test_numbers_of_numpy_and_unsigned_columns() -> None:
    def scalars(payload: bytes) -> Any:
        seq = np.frombuffer(payload, "<u8")[0]
        return {"board": "b", "boot": np.uint8(1), "seq": seq, "x": np.float32(0.5), "on": np.bool_(True)}

    @columns
    def arrays(payloads: Any) -> Any:
        seq = np.frombuffer(b"".join(payloads.to_pylist()), "<u8")
        n = len(seq)
        return {
            "board": ["b"] * n,
            "boot": pa.array([1] * n, pa.uint8()),
            "seq": seq,
            "x": [0.5] * n,
            "on": [True] * n,
        }

    payloads = [value.to_bytes(8, "little") for value in (5, 2**63 - 1, 2**63)]
    for decoder in (scalars, arrays):
        who, values, failed = parsed(payloads, Rules(decoders=registered({"#": decoder})), topic=["t"] * 3)
        assert who == [("b", 1, 5, -1), ("b", 1, 2**63 - 1, -1), False]
        assert values == [{"x": 0.5, "on": 1.0}] * 2 + [{}]
        assert not failed


def test_columns_of_malformed_strings_fail() -> None:
    @columns
    def malformed(payloads: Any) -> Any:
        return {
            "board": pa.Array.from_buffers(
                pa.string(), len(payloads), payloads.buffers(), offset=payloads.offset
            )
        }

    _, _, failed = parsed([b"\xff", b"x"], Rules(decoders=registered({"#": malformed})), topic=["t"] * 2)
    assert list(failed) == [0]
    assert "Invalid UTF8" in failed[0]


# -- identities --------------------------------------------------------------------------------------------------------


def test_identities_from_topics_properties_and_fields() -> None:
    identity = Identity.parse(
        {"board": "topic:plant/{}/#", "boot": "property:boot", "seq": "field:n", "t": "field:ts"}
    )
    payloads = [
        b'{"n": 5, "ts": 7, "board": "x", "v": 1}',
        b'{"n": 6}',
        b'{"n": -1, "v": 1}',
        b'{"n": 7}',
        b'{"v": 2}',
    ]
    topics = ["plant/a/t", "plant/b", "plant/c/x/y", "other/a", "plant/d"]
    properties = [[("boot", "3")], [("boot", "x")], [("boot", "1")], [("boot", "1")], None]
    who, values, _ = parsed(payloads, Rules(identity), topic=topics, user_properties=properties)
    assert who == [("a", 3, 5, 7), False, False, None, None]
    # The field `board` is a value like others.
    assert values == [{"board": "x", "v": 1.0}, {}, {}, {"n": 7.0}, {"v": 2.0}]


def test_a_constant_stands_for_a_missing_number() -> None:
    rules = Rules(Identity.parse(["boot=value:0", "board=field:id"]))
    assert parsed([b'{"id": "a", "seq": 1}'], rules)[0] == [("a", 0, 1, -1)]


@each_row(
    "given, reason",
    [
        (["board"], "expected NAME=KIND:WHAT"),
        (["serial=field:x"], "no part of an identity"),
        (["board=column:x"], "expected one of field:"),
        (["board=topic:a/+"], "with one level {}"),
        (["board=topic:{}/{}"], "with one level {}"),
        (["board=topic:#/{}"], "with one level {}"),
        (["boot=value:x"], "not a whole number"),
        (["board=field:x", "seq=field:x"], "cannot be two parts"),
    ],
)
def test_an_identity_that_is_refused(given: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Identity.parse(given)


def test_the_texts_of_an_identity() -> None:
    given = ["board=topic:a/{}", "seq=property:n"]
    assert Identity.parse(given).texts() == given
    assert Identity.parse(Identity.parse(given).texts()) == Identity.parse(given)
    assert Identity.parse([]).texts() == []
    assert level_of("+/a.b/{}/#").fullmatch("x/a.b/c") is not None


# -- the pipeline ------------------------------------------------------------------------------------------------------


def test_tables_with_decoders_and_an_identity_of_its_own(tmp_path: Path, examples: Path) -> None:
    protobuf, sparkplug = (load(name) for name in ("protobuf_decoder", "sparkplug_decoder"))
    record = struct.Struct("<IhBB")
    metric = sparkplug.Payload().metrics.add
    assert metric
    birth = sparkplug.Payload(seq=0)
    birth.metrics.add(name="level", alias=1, datatype=3, int_value=(1 << 32) - 5)
    birth.metrics.add(name="state", datatype=12, string_value="on")
    birth.metrics.add(alias=7, datatype=10, double_value=0.25)
    birth.metrics.add(name="gone", datatype=10, is_null=True)
    frames = [
        publish("plant/p1/raw", record.pack(1, 2150, 40, 1)),
        publish("plant/p1/raw", record.pack(2, -5, 41, 0)),
        publish("plant/p1/raw", record.pack(2, -5, 41, 0)),
        publish("plant/p2/raw", b"short"),
        publish("plant/p2/pb", protobuf.Reading(board="x", boot=1, seq=9, celsius=1.5).SerializeToString()),
        publish("plant/p2/pb", b"\xff\xff"),
        publish("spBv1.0/g/NBIRTH/n", birth.SerializeToString()),
        publish("plant/p3/json", reading("b", 1, 1, load=3)),
    ]
    # One part and many.
    for number, some in enumerate(([frames], [[frame] for frame in frames])):
        blocks = [[Rec(frame, at=k) for k, frame in enumerate(block)] for block in some]
        out = tmp_path / f"out{number}"
        grow(
            InProcess(),
            [write_log(tmp_path / f"log{number}", blocks)],
            out,
            partition_bytes=1,
            identity=["board=topic:plant/{}/#", "boot=value:0"],
            decoders=[
                parse_decoder("plant/+/raw=struct_decoder:decode", str(examples)),
                parse_decoder("plant/+/pb=protobuf_decoder:decode", str(examples)),
                parse_decoder("spBv1.0/#=sparkplug_decoder:decode", str(examples)),
            ],
        )
        check_tables(out)


def load(name: str) -> Any:
    sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def check_tables(out: Path) -> None:
    assert rows(out, TELEMETRY, "board", "boot", "seq", "metric", "value_double", "value_string") == sorted(
        [
            ("p1", 0, 1, "temperature", 21.5, None),
            ("p1", 0, 1, "humidity", 40.0, None),
            ("p1", 0, 1, "low_battery", 1.0, None),
            ("p1", 0, 2, "temperature", -0.05, None),
            ("p1", 0, 2, "humidity", 41.0, None),
            ("p1", 0, 2, "low_battery", 0.0, None),
            ("p2", 0, 9, "board", None, "x"),
            ("p2", 0, 9, "boot", 1.0, None),
            ("p2", 0, 9, "celsius", 1.5, None),
            (None, None, None, "level", -5.0, None),
            (None, None, None, "state", None, "on"),
            (None, None, None, "alias/7", 0.25, None),
            ("p3", 0, 1, "board", None, "b"),
            ("p3", 0, 1, "boot", 1.0, None),
            ("p3", 0, 1, "load", 3.0, None),
        ],
        key=repr,
    )
    assert rows(out, MESSAGES, "board", "boot", "seq", "copies") == sorted(
        [("p1", 0, 1, 1), ("p1", 0, 2, 2), ("p2", 0, 9, 1), ("p3", 0, 1, 1), (None, None, None, 1)], key=repr
    )
    refused = rows(out, QUARANTINE, "kind", "reason", "detail", "bytes")
    assert [row[:2] for row in refused] == [("message", "decoder_failed")] * 2
    assert {row[3] for row in refused} == {b"short", b"\xff\xff"}
    assert any(row[2] == "plant/+/raw: ValueError: a record has 8 bytes" for row in refused)


def test_properties_identify_a_message_in_any_part(tmp_path: Path) -> None:
    def block(seq: int) -> bytes:
        return encode({"user_property": [("device", "d1"), ("n", str(seq))]}, 1 << 3)

    frames = [publish("t", "21.5", block=block(seq)) for seq in (1, 2, 1)]
    log = write_log(tmp_path / "log", [[Rec(frame, at=k, version=5)] for k, frame in enumerate(frames)])
    identity = {"board": "property:device", "seq": "property:n", "boot": "value:0"}
    grow(InProcess(), [log], tmp_path / "out", partition_bytes=1, identity=identity)
    assert rows(tmp_path / "out", MESSAGES, "board", "seq", "copies") == [("d1", 1, 2), ("d1", 2, 1)]
    assert rows(tmp_path / "out", TELEMETRY, "board", "metric", "value_double") == [("d1", "value", 21.5)] * 2


@each_row(
    "options, reason",
    [
        (["--decoder", "a/#/b=m:f"], "a/#/b: not a valid topic filter"),
        (["--decoder", "a"], "--decoder: a: expected FILTER=MODULE:FUNCTION"),
        (["--decoder", "a=m"], "expected FILTER=MODULE:FUNCTION"),
        (["--decoder", "a=no_such_module:f"], "No module named 'no_such_module'"),
        (["--decoder", "a=struct:no_such"], "no attribute 'no_such'"),
        (["--decoder", "a=.struct:x"], "TypeError in .struct"),
        (["--identity", "board=topic:x"], "with one level {}"),
    ],
)
def test_options_that_are_refused(
    options: list[str], reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log", [[Rec(publish("a", "b"))]])
    try:
        status = main(["pipeline", "run", "--capture", str(log), "--out", str(tmp_path / "out"), *options])
    except SystemExit as error:
        status = int(error.code or 0)
    assert status == 2
    assert reason in capfd.readouterr().err


def test_a_decoder_of_a_malformed_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="not a topic filter"):
        registered([Decoder("a/#/b", each)])
