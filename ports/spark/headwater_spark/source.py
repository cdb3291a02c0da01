"""The data source: `spark.read.format("headwater").load(directory)`, also with `spark.readStream`.

Rows are views of the log (`tables.VIEWS`). Spark does not tell a Python data source which columns a query needs,
but it passes on a schema: `.schema("time_ns long, frame binary")` reads these columns only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater_host.capture.filesystem import exists
from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import Listing, Manifest, list_log
from headwater_host.capture.problem import MISSING, Problem
from headwater_spark.options import OptionError, ReadOptions, parse
from headwater_spark.plan import Log, Plan, Range, combine, plan
from headwater_spark.positions import UNLIMITED, Position, advance
from headwater_spark.tables import BADBLOCKS, POSITIONS, VIEWS, Table
from headwater_spark.views import record_batches

_SHORT_NAMES = {"tinyint": "byte", "smallint": "short", "bigint": "long"}


@dataclass
class LogPartition(InputPartition):
    """Ranges of the log, and rows that planning made."""

    ranges: list[Range]
    rows: list[dict[str, Any]]


class HeadwaterSource(DataSource):
    """The format `headwater`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headwater"

    def schema(self) -> str:
        """Return the schema with all columns of the view."""
        return VIEWS[parse(self.options).view].ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns in `schema`."""
        options = parse(self.options)
        return LogReader(options, _columns(VIEWS[options.view], schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream of the columns in `schema`."""
        options = parse(self.options)
        options.log  # noqa: B018 (refuses several logs)
        return LogStream(options, _columns(VIEWS[options.view], schema))


def _columns(view: Table, schema: StructType) -> list[str]:
    """Return the columns of a schema. Raises OptionError for an unknown column or another type."""
    types = {column.name: column.type for column in view.columns}
    for field in schema.fields:
        given = field.dataType.simpleString()
        given = _SHORT_NAMES.get(given, given)
        if field.name not in types:
            raise OptionError(f"the view {view.name} has no column {field.name!r}; it has {', '.join(types)}")
        if given != types[field.name]:
            raise OptionError(
                f"column {field.name} of the view {view.name} is {types[field.name]}, not {given}"
            )
    return [field.name for field in schema.fields]


class LogReader(DataSourceReader):
    """Read columns of a view, with a plan made once."""

    def __init__(self, options: ReadOptions, columns: list[str]):
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the partitions: ranges of consecutive blocks."""
        options = self.options
        plans = [
            plan(
                log.location,
                options.partition_bytes,
                options.min_partitions,
                span=options.span,
                storage=log.storage,
            )
            for log in options.logs
        ]
        ends = (_offset(log, one.end) for log, one in zip(options.logs, plans, strict=True))
        return _partitions(options, combine(plans), [end for end in ends if end])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition as Arrow record batches."""
        if isinstance(partition, LogPartition):  # otherwise a log without blocks
            yield from record_batches(self.options, self.columns, partition.ranges, partition.rows)


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read columns of a view of a log that grows. Offsets are positions in the log; {} is its beginning.

    Spark keeps one of these for a query, and others in its tasks for `read`.
    """

    def __init__(self, options: ReadOptions, columns: list[str]):
        self.options = options
        self.columns = columns
        # For Trigger.AvailableNow: where the query ends.
        self._target: dict[str, Any] | None = None
        # A position near the log's end, from which the next search starts.
        self._seen: dict[str, Any] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the option `startingPosition`, or the position of the first segment with records since `since`."""
        if self.options.start is not None:
            return self.options.start
        found = None
        for segment in self._listing({}).segments:
            name, entry = segment.name, segment.entry
            if entry is None or entry.last_ns >= self.options.span.since:
                return self._offset(Position(name, 0, segment.first_sequence))
            found = Position(name, entry.bytes, entry.next_sequence)
        return self._offset(found)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` if there is nothing new."""
        listing = self._listing(start)
        if self._target == {}:
            return start
        limits = UNLIMITED if isinstance(limit, ReadAllAvailable) else self.options.limits
        until = None if self._target is None else _position(self._target)
        return self._offset(advance(listing, _position(start), limits, until).end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits: `latestOffset` takes both from the options."""
        limits = self.options.limits
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        return ReadAllAvailable() if limits.bytes is None else ReadMaxBytes(limits.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at the present end of the log."""
        self._target = self.reportLatestOffset()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the present end of the log."""
        self._seen = self._offset(advance(self._listing(self._seen), _position(self._seen)).end)
        return self._seen

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a micro-batch. Raises RuntimeError if blocks were removed before they were read."""
        options = self.options
        if options.view == POSITIONS.name:
            return [LogPartition([], [end])] if start != end else []
        self._listing(end)
        log = plan(
            options.log.location,
            options.partition_bytes,
            options.min_partitions,
            span=options.span,
            start=_position(start),
            upto=_position(end),
            storage=options.log.storage,
        )
        if log.removed is not None and options.fail_on_data_loss:
            raise _data_loss(options.log.location, log.removed.reason)
        return _partitions(options, log, [end] if end else [])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition as Arrow record batches. Raises RuntimeError if a segment was removed."""
        assert isinstance(partition, LogPartition)
        gone = [part for part in partition.ranges if not exists(part.path, part.storage)]
        if gone:
            if self.options.fail_on_data_loss:
                raise _data_loss(self.options.log.location, f"{gone[0].file} was removed before it was read")
            lost = (
                Problem(MISSING, part.file, part.start, part.end - part.start, "removed before it was read")
                for part in gone
            )
            left = [part for part in partition.ranges if part not in gone]
            partition = LogPartition(left, [*partition.rows, *(problem._asdict() for problem in lost)])
        yield from record_batches(self.options, self.columns, partition.ranges, partition.rows)

    def _listing(self, start: Mapping[str, Any]) -> Listing:
        """List the log, without segments if it does not exist yet.

        Raises FileNotFoundError if it no longer exists, and RuntimeError if it is another one.
        """
        path, storage = self.options.log
        try:
            listing = list_log(path, storage)
        except FileNotFoundError:
            if start:
                raise
            return Listing([], Manifest({}, [], 0), [])
        if start and log_id(path, storage) != start.get("log"):
            raise RuntimeError(
                f"{path} is not the log that this query has read: use another checkpoint directory to read it"
            )
        return listing

    def _offset(self, position: Position | None) -> dict[str, Any]:
        return _offset(self.options.log, position)


def _offset(log: Log, position: Position | None) -> dict[str, Any]:
    return {} if position is None else {"log": log_id(*log), **position._asdict()}


def _partitions(options: ReadOptions, log: Plan, ends: list[dict[str, Any]]) -> list[InputPartition]:
    """Return the partitions of a plan, which ends at these offsets of the logs."""
    if options.view == POSITIONS.name:
        return [LogPartition([], ends)] if ends else []
    parts: list[InputPartition] = [LogPartition(ranges, []) for ranges in log.partitions]
    if options.view == BADBLOCKS.name and log.problems:
        parts.insert(0, LogPartition([], [problem._asdict() for problem in log.problems]))
    return parts


def _position(offset: Mapping[str, Any]) -> Position | None:
    return Position.from_json(offset) if offset else None


def _data_loss(path: str, what: str) -> RuntimeError:
    return RuntimeError(
        f"{path}: {what}. Set the option failOnDataLoss to false to continue without them. To prevent it, let "
        "retention keep segments for longer than the query is stopped."
    )
