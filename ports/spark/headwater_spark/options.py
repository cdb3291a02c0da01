"""The data source's options: names, types, defaults, checks. Spark hands over strings, names in lower case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headwater_spark.sizes import (
    BATCH_ROWS,
    MAX_BATCH_ROWS,
    MAX_PARTITION_BYTES,
    PARTITION_BYTES,
    parse_size,
)
from headwater_spark.tables import VIEWS


class OptionError(ValueError):
    """An option is missing, unknown or has a value that it cannot have."""


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
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        text = re.sub("^//(?=/)", "", rest)
    elif colon and rest.startswith("//"):
        raise ValueError(
            "not a directory of a file system: logs are read from a path that every executor sees"
        )
    if not text:
        raise ValueError("empty")
    return text


def _view(text: str) -> str:
    if text not in VIEWS:
        raise ValueError(f"not one of {', '.join(VIEWS)}")
    return text


class Option(NamedTuple):
    """One option; ``what`` is for the documentation."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    what: str


OPTIONS = (
    Option("path", _path, None, "the log's directory"),
    Option("view", _view, "frames", f"what the rows are: {', '.join(VIEWS)}"),
    Option(
        "partitionBytes",
        _between(parse_size, 1, MAX_PARTITION_BYTES),
        PARTITION_BYTES,
        "bytes of the log per partition at most; blocks stay whole",
    ),
    Option("minPartitions", _between(_count, 1, 1 << 20), 1, "the number of partitions is a multiple of it"),
    Option("batchRows", _between(_count, 1, MAX_BATCH_ROWS), BATCH_ROWS, "rows per Arrow batch at most"),
)


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read, checked."""

    path: str
    view: str
    partition_bytes: int
    min_partitions: int
    batch_rows: int


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Raises OptionError that names the option and says what it may be."""
    known = {option.name.lower(): option for option in OPTIONS}
    values = {option.name: option.default for option in OPTIONS}
    for name, text in given.items():
        option = known.get(name.lower())
        if option is None:
            names = ", ".join(option.name for option in OPTIONS)
            raise OptionError(f'there is no option {name!r} for format("headwater"); there are {names}')
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            raise OptionError(f"option {option.name}: {text!r} is {error}") from None
    if values["path"] is None:
        raise OptionError('a log to read is missing: spark.read.format("headwater").load("/path/of/the/log")')
    return ReadOptions(
        values["path"], values["view"], values["partitionBytes"], values["minPartitions"], values["batchRows"]
    )
