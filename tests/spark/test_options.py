"""The data source's options: what they may be, and what is said when they are not."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_spark.options import OPTIONS, OptionError, ReadOptions, parse
from headwater_spark.plan import EVER, Log, Span
from headwater_spark.sizes import parse_size
from tests.rows import each_row


def test_defaults() -> None:
    assert parse({"path": "/log"}) == ReadOptions((Log("/log"),), "frames", 32 << 20, 1, 1 << 15)


def test_names_in_lower_case_as_spark_hands_them_over() -> None:
    given = {
        "path": "/log",
        "view": "decoded",
        "partitionbytes": "1m",
        "minpartitions": "4",
        "batchrows": "10",
    }
    assert parse(given) == ReadOptions((Log("/log"),), "decoded", 1 << 20, 4, 10)
    assert parse({name.upper(): value for name, value in given.items()}) == parse(given)


@each_row(
    "text, size",
    [
        ("1", 1),
        ("33554432", 32 << 20),
        ("32m", 32 << 20),
        ("32 MB", 32 << 20),
        ("2K", 2048),
        ("1GiB", 1 << 30),
        ("1t", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@each_row(
    "text, time_ns",
    [
        ("2026-11-22T08:00:00Z", 1795334400_000000000),
        ("2026-11-22T08:00:00", 1795334400_000000000),
        ("2026-11-22 10:00:00.5+02:00", 1795334400_500000000),
        ("2026-11-22", 1795305600_000000000),
        ("0001-01-01T00:00:00+14:00", EVER.since),
        ("9999-12-31T23:59:59-14:00", EVER.until - 1),
        ("1795334400123456789", 1795334400123456789),
        ("9999999999999999999", None),
        ("9223372036854775808", None),
        ("-5", -5),
        (" 1795334400123456 ", 1795334400123456),
    ],
)
def test_times(text: str, time_ns: int | None) -> None:
    if time_ns is None:
        with pytest.raises(OptionError, match="not a time such as"):
            parse({"path": "/log", "since": text})
        return
    assert parse({"path": "/log", "since": text}).span == Span(time_ns, EVER.until)
    assert parse({"path": "/log", "UNTIL": text}).span == Span(EVER.since, time_ns)


@each_row(
    "path, plain",
    [
        ("/log", "/log"),
        ("log", "log"),
        ("file:/log", "/log"),
        ("file:///log", "/log"),
        ("a:b", "a:b"),
        ("s3://bucket/log", "s3://bucket/log"),
    ],
)
def test_paths(path: str, plain: str) -> None:
    assert parse({"path": path}).logs == (Log(plain),)


def test_several_logs_with_storage_options() -> None:
    given = {"paths": '["/a", "s3://bucket/b"]', "aws_region": "eu-central-1", "view": "decoded"}
    storage = (("AWS_REGION", "eu-central-1"),)
    options = parse(given)
    assert options.logs == (Log("/a", storage), Log("s3://bucket/b", storage))
    # A log that is named twice is one.
    assert parse({"paths": '["/a", "/b", "/a"]'}).logs == (Log("/a"), Log("/b"))


@each_row(
    "given, message",
    [
        ({}, "the path is missing"),
        ({"path": ""}, "option path: '' is empty"),
        ({"paths": '["/log", ""]'}, 'option paths: \'["/log", ""]\' is not a list of paths as JSON'),
        ({"paths": '"/log"'}, "option paths: "),
        ({"paths": "[7]"}, "option paths: '[7]' is not a list"),
        ({"paths": "[]"}, "option paths: '[]' is not a list"),
        ({"paths": "[" * 100_000}, "option paths: "),
        ({"paths": '["/a"]', "path": "/b"}, "options path and paths: give one of them"),
        ({"path": "x", "view": "frame"}, "option view: 'frame' is not one of frames, decoded, badblocks"),
        ({"path": "x", "partitionbytes": "32x"}, "option partitionBytes: '32x' is not a size such as"),
        ({"path": "x", "partitionbytes": "0"}, "option partitionBytes: '0' is not between 1 and"),
        ({"path": "x", "partitionbytes": "2g"}, "option partitionBytes: '2g' is not between 1 and"),
        ({"path": "x", "partitionbytes": "-1"}, "option partitionBytes: '-1' is not a size"),
        ({"path": "x", "minpartitions": "two"}, "option minPartitions: 'two' is not a whole number"),
        ({"path": "x", "minpartitions": "0"}, "option minPartitions: '0' is not between 1 and"),
        ({"path": "x", "batchrows": "1e5"}, "option batchRows: '1e5' is not a whole number"),
        ({"path": "x", "batchrows": "9" * 40}, "option batchRows: "),
        ({"path": "x", "partition_bytes": "1"}, "has no option 'partition_bytes'"),
    ],
)
def test_errors_name_the_option_and_say_what_it_may_be(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(given)
    assert message in str(error.value)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([option.name for option in OPTIONS]),
    st.text(max_size=30)
    | st.integers().map(str)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some, max_size=3),
    ).map(json.dumps)
    | st.datetimes().map(str),
)
def test_any_value_is_parsed_or_refused(name: str, text: str) -> None:
    given_ = {"path": "/log", name: text}
    if name == "paths":
        del given_["path"]
    try:
        found = parse(given_)
    except OptionError as error:
        assert str(error).startswith(f"option {name}: ")  # noqa: PT017
    else:
        assert EVER.since <= found.span.since <= EVER.until
        assert EVER.since <= found.span.until <= EVER.until


def test_every_option_is_described() -> None:
    assert all(option.what for option in OPTIONS)
