"""Options of the data source: names, parsers, defaults and descriptions. Spark passes strings with lower-case names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from headwater_host.capture.filesystem import STORAGE, is_remote, local_path, parse_storage
from headwater_spark.plan import EVER, Log, Span
from headwater_spark.positions import Limits, Position, parse_positions
from headwater_spark.sizes import (
    MAX_BATCH_ROWS,
    MAX_PARTITION_BYTES,
    PARTITION_BYTES,
    READ_ROWS,
    TRIGGER_BYTES,
    parse_size,
)
from headwater_spark.tables import VIEWS

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class OptionError(ValueError):
    """An option is missing, unknown or has an invalid value."""


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise ValueError("not a whole number")
    return int(text)


def _between(parse: Callable[[str], int], low: int, high: int) -> Callable[[str], int]:
    def check(text: str) -> int:
        value = parse(text)
        if not low <= value <= high:
            raise ValueError(f"not between {low} and {high}")
        return value

    return check


def _path(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text if is_remote(text) else str(local_path(text))


def _paths(text: str) -> tuple[str, ...]:
    """Parse a JSON list of paths, as Spark makes it of `load([...])`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError('not a list of paths as JSON, such as ["/log/1", "/log/2"]')
    return tuple(dict.fromkeys(_path(one) for one in found))


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"not one of {', '.join(words)}")
        return text

    return parse


def truth(text: str) -> bool:
    """Parse true or false."""
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def _positions(text: str) -> dict[str, Position]:
    try:
        found = parse_positions(json.loads(text))
    except (ValueError, RecursionError):
        found = {}
    if not found:
        raise ValueError('not a row of the view "positions" as JSON, or a list of such rows')
    return found


def parse_time(text: str) -> int:
    """Parse a time: ISO 8601, in UTC unless it has an offset, or whole nanoseconds since 1970.

    Dates outside of the years 1678 to 2261 are the first or last time of a log, such as 9999-12-31 for "ever".
    """
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text) and EVER.since <= int(text) < EVER.until:
        return int(text)
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError("not a time such as 2026-11-22T08:00:00Z, or nanoseconds since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return min(max((found - _EPOCH) // timedelta(microseconds=1) * 1000, EVER.since), EVER.until - 1)


class Option(NamedTuple):
    """One option; `what` is its description in the documentation."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    what: str


def read_options(
    form: str,
    given: Mapping[str, str],
    known: Sequence[Option],
    also: Iterable[str] = (),
    secret: Container[str] = (),
) -> dict[str, Any]:
    """Parse the options of a format, by name, with defaults. Raises OptionError with the option and its value.

    `also` are further names for the error about an unknown option. The values of `secret` options are not shown.
    """
    table = {option.name.lower(): option for option in known}
    values = {option.name: option.default for option in known}
    for name, text in given.items():
        option = table.get(name.lower())
        if option is None:
            names = ", ".join([*(one.name for one in known), *also])
            raise OptionError(f'format("{form}") has no option {name!r}; its options are {names}')
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            shown = "the value" if option.name in secret else repr(text)
            raise OptionError(f"option {option.name}: {shown} is {error}") from None
    return values


def split_storage(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the storage options, and the others."""
    storage = {name: text for name, text in given.items() if name.upper() in STORAGE}
    return storage, {name: text for name, text in given.items() if name not in storage}


OPTIONS = (
    Option("path", _path, None, "directory of the capture log, or its URI"),
    Option("paths", _paths, None, "several logs, as a JSON list; spark.read.load([...]) sets it"),
    Option("view", one_of(*VIEWS), "frames", f"view to read: {', '.join(VIEWS)}"),
    Option(
        "partitionBytes",
        _between(parse_size, 1, MAX_PARTITION_BYTES),
        PARTITION_BYTES,
        "maximum bytes of the log per partition; blocks are not split",
    ),
    Option(
        "minPartitions", _between(_count, 1, 1 << 20), 1, "the number of partitions is a multiple of this"
    ),
    Option("batchRows", _between(_count, 1, MAX_BATCH_ROWS), READ_ROWS, "maximum rows per Arrow batch"),
    Option("since", parse_time, None, "only records received at or after this time"),
    Option("until", parse_time, None, "only records received before this time"),
    Option(
        "startingPosition",
        _positions,
        None,
        'streams: begin at this row of the view "positions", or a list of rows, as JSON',
    ),
    Option(
        "maxBytesPerTrigger",
        _between(parse_size, 1, 1 << 62),
        TRIGGER_BYTES,
        "streams: maximum bytes of the logs per micro-batch; at least one block of each",
    ),
    Option(
        "maxRowsPerTrigger",
        _between(_count, 1, 1 << 62),
        None,
        "streams: maximum records per micro-batch; at least one block of each log",
    ),
    Option(
        "failOnDataLoss",
        truth,
        True,
        "streams: fail if a log is gone, or retention removed blocks before they were read",
    ),
)


_LIMITS = Limits(TRIGGER_BYTES)


@dataclass(frozen=True)
class ReadOptions:
    """The validated options of a read."""

    logs: tuple[Log, ...]
    view: str
    partition_bytes: int
    min_partitions: int
    batch_rows: int
    span: Span = EVER
    limits: Limits = _LIMITS
    fail_on_data_loss: bool = True
    #: Where a stream begins, by log id.
    start: dict[str, Position] = field(default_factory=dict)


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Parse and validate the options of a read. Raises OptionError with the option and its allowed values."""
    storage, others = split_storage(given)
    values = read_options("headwater", others, OPTIONS, STORAGE)
    path, paths = values["path"], values["paths"]
    if path is not None and paths is not None:
        raise OptionError("options path and paths: give one of them")
    if path is None and paths is None:
        raise OptionError('the path is missing: spark.read.format("headwater").load("/path/of/the/log")')
    return read_of(values, tuple(Log(path, parse_storage(storage)) for path in paths or [path]))


def read_of(values: Mapping[str, Any], logs: tuple[Log, ...]) -> ReadOptions:
    """Return the options of a read of `logs`. `values` are the parsed options by name."""
    since, until = values["since"], values["until"]
    span = Span(EVER.since if since is None else since, EVER.until if until is None else until)
    return ReadOptions(
        logs,
        values["view"],
        values["partitionBytes"],
        values["minPartitions"],
        values["batchRows"],
        span,
        Limits(values["maxBytesPerTrigger"], values["maxRowsPerTrigger"]),
        values["failOnDataLoss"],
        values["startingPosition"] or {},
    )
