"""Options of the data source: names, parsers, defaults and descriptions. Spark passes strings with lower-case names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from headwater_host.capture.filesystem import STORAGE, is_remote, local_path, parse_storage
from headwater_spark.plan import EVER, Log, Span
from headwater_spark.positions import Limits, Position
from headwater_spark.sizes import (
    BATCH_ROWS,
    MAX_BATCH_ROWS,
    MAX_PARTITION_BYTES,
    PARTITION_BYTES,
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
    """Parse what Spark makes of `load([...])`."""
    return tuple(_path(one) for one in json.loads(text))


def _view(text: str) -> str:
    if text not in VIEWS:
        raise ValueError(f"not one of {', '.join(VIEWS)}")
    return text


def _truth(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def _offset(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        log = found["log"]
        position = Position.from_json(found)
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ValueError('not a row of the view "positions" as JSON') from None
    return {"log": log, **position._asdict()}


def parse_time(text: str) -> int:
    """Parse a time: ISO 8601, in UTC unless it has an offset, or whole nanoseconds since 1970."""
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text) and EVER.since <= int(text) < EVER.until:
        return int(text)
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError("not a time such as 2026-11-22T08:00:00Z, or nanoseconds since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return (found - _EPOCH) // timedelta(microseconds=1) * 1000


class Option(NamedTuple):
    """One option; `what` is its description in the documentation."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    what: str


OPTIONS = (
    Option("path", _path, None, "directory of the capture log, or its URI; load([...]) reads several logs"),
    Option("view", _view, "frames", f"view to read: {', '.join(VIEWS)}"),
    Option(
        "partitionBytes",
        _between(parse_size, 1, MAX_PARTITION_BYTES),
        PARTITION_BYTES,
        "maximum bytes of the log per partition; blocks are not split",
    ),
    Option(
        "minPartitions", _between(_count, 1, 1 << 20), 1, "the number of partitions is a multiple of this"
    ),
    Option("batchRows", _between(_count, 1, MAX_BATCH_ROWS), BATCH_ROWS, "maximum rows per Arrow batch"),
    Option("since", parse_time, None, "only records received at or after this time"),
    Option("until", parse_time, None, "only records received before this time"),
    Option("startingPosition", _offset, None, 'streams: begin at this row of the view "positions", as JSON'),
    Option(
        "maxBytesPerTrigger",
        _between(parse_size, 1, 1 << 62),
        TRIGGER_BYTES,
        "streams: maximum bytes of the log per micro-batch; at least one block",
    ),
    Option(
        "maxRowsPerTrigger",
        _between(_count, 1, 1 << 62),
        None,
        "streams: maximum records per micro-batch; at least one block",
    ),
    Option("failOnDataLoss", _truth, True, "streams: fail if retention removed blocks before they were read"),
)


_LIMITS = Limits(TRIGGER_BYTES)


_PATHS = Option("paths", _paths, None, "several logs")


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
    start: dict[str, Any] | None = None

    @property
    def log(self) -> Log:
        """The only log. Raises OptionError for several."""
        if len(self.logs) > 1:
            raise OptionError("a stream reads one log: start a query for each, or use headwater pipeline")
        return self.logs[0]


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Parse and validate the options of a read. Raises OptionError with the option and its allowed values."""
    known = {option.name.lower(): option for option in (*OPTIONS, _PATHS)}
    values = {option.name: option.default for option in OPTIONS}
    storage: dict[str, str] = {}
    for name, text in given.items():
        if name.upper() in STORAGE:
            storage[name] = text
            continue
        option = known.get(name.lower())
        if option is None:
            names = ", ".join([*(option.name for option in OPTIONS), *STORAGE])
            raise OptionError(f'format("headwater") has no option {name!r}; its options are {names}')
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            raise OptionError(f"option {option.name}: {text!r} is {error}") from None
    paths = values.pop("paths", None) or [path for path in [values["path"]] if path is not None]
    if not paths:
        raise OptionError('the path is missing: spark.read.format("headwater").load("/path/of/the/log")')
    since, until = values["since"], values["until"]
    span = Span(EVER.since if since is None else since, EVER.until if until is None else until)
    return ReadOptions(
        tuple(Log(path, parse_storage(storage)) for path in paths),
        values["view"],
        values["partitionBytes"],
        values["minPartitions"],
        values["batchRows"],
        span,
        Limits(values["maxBytesPerTrigger"], values["maxRowsPerTrigger"]),
        values["failOnDataLoss"],
        values["startingPosition"],
    )
