"""The data source: `spark.read.format("headwater").load(directory)`, also with `spark.readStream`.

Rows are views of the log (`tables.VIEWS`). Spark does not tell a Python data source which columns a query needs,
but it passes on a schema: `.schema("time_ns long, frame binary")` reads these columns only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater_host.capture.filesystem import exists
from headwater_host.capture.log_id import LogIdError, log_id
from headwater_host.capture.manifest import Listing, list_log
from headwater_host.capture.problem import MISSING, Problem
from headwater_spark.options import OptionError, ReadOptions, parse
from headwater_spark.plan import Log, Plan, Range, by_id, combine, plan
from headwater_spark.positions import (
    UNLIMITED,
    Position,
    Unread,
    advance,
    advance_all,
    format_positions,
    parse_positions,
)
from headwater_spark.pushdown import PushFilters, narrow
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
        return LogReader(options, view_columns(VIEWS[options.view], schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream of the columns in `schema`."""
        options = parse(self.options)
        return LogStream(options, view_columns(VIEWS[options.view], schema))


def view_columns(view: Table, schema: StructType) -> list[str]:
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
        self.pushFilters = PushFilters(self._narrow)  # type: ignore[method-assign]  # see there

    def _narrow(self, filters: list[Filter]) -> None:
        self.options = replace(self.options, span=narrow(self.options.span, filters))

    def partitions(self) -> list[InputPartition]:
        """Return the partitions: ranges of consecutive blocks."""
        options = self.options
        plans = [_plan(options, log) for log in options.logs]
        # A log without blocks may have no id yet.
        ends = {log: one.end for log, one in zip(options.logs, plans, strict=True) if one.end is not None}
        known = by_id((log_id(*log), log) for log in ends)
        return _partitions(options, combine(plans), {name: ends[log] for name, log in known.items()})

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition as Arrow record batches."""
        if isinstance(partition, LogPartition):  # otherwise a log without blocks
            yield from record_batches(self.options, self.columns, partition.ranges, partition.rows)


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read columns of a view of logs that grow.

    An offset has a position for each log, by log id. A log without one begins in the micro-batch after the one whose
    offset has its beginning, so every position from which a micro-batch reads is in Spark's checkpoint.

    Spark keeps one of these for a query, and others in its tasks for `read`.
    """

    def __init__(self, options: ReadOptions, columns: list[str]):
        self.options = options
        self.columns = columns
        # For Trigger.AvailableNow: where the query ends.
        self._target: dict[str, Position] | None = None
        # Positions near the ends of the logs, from which the next search starts.
        self._seen: dict[str, Position] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the option `startingPosition`, for other logs the first segment with records since `since`."""
        return format_positions(self._beginnings(self._logs()) | self.options.start)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` if there is nothing new."""
        begin = _positions(start)
        logs = self._logs(begin)
        if self._target is not None:
            logs = {log: one for log, one in logs.items() if log in self._target}
        limits = UNLIMITED if isinstance(limit, ReadAllAvailable) else self.options.limits
        target = self._target or {}
        unread = {
            log: Unread(listing, begin[log], target.get(log))
            for log, (_, listing) in logs.items()
            if log in begin
        }
        end = self._beginnings(logs) | begin | advance_all(unread, limits)
        # Spark compares texts.
        return start if end == begin else format_positions(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits: `latestOffset` takes both from the options."""
        limits = self.options.limits
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        return ReadAllAvailable() if limits.bytes is None else ReadMaxBytes(limits.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at the present ends of the logs."""
        self.reportLatestOffset()
        self._target = self._seen

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the present ends of the logs."""
        logs = self._logs(self._seen)
        ends = {log: advance(listing, self._seen.get(log)).end for log, (_, listing) in logs.items()}
        self._seen = {log: end for log, end in ends.items() if end is not None}
        return format_positions(self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a micro-batch. Raises RuntimeError if blocks were removed before they were read."""
        options = self.options
        begin, upto = _positions(start), _positions(end)
        # An offset of an earlier version is the row of one log; its {} is that log's first block.
        moved = {
            log: to for log, to in upto.items() if to != begin.get(log) and (log in begin or "log" in end)
        }
        if options.view == POSITIONS.name:
            return _partitions(options, combine([]), moved)
        logs = self._logs(moved)
        chosen = [name for name in moved if name in logs]
        plans = [_plan(options, logs[name][0], start=begin.get(name), upto=moved[name]) for name in chosen]
        for name, one in zip(chosen, plans, strict=True):
            if one.removed is not None and options.fail_on_data_loss:
                raise _data_loss(logs[name][0].location, one.removed.reason)
        return _partitions(options, combine(plans), moved)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition as Arrow record batches. Raises RuntimeError if a segment was removed."""
        assert isinstance(partition, LogPartition)
        gone = [part for part in partition.ranges if not exists(part.path, part.storage)]
        if gone:
            if self.options.fail_on_data_loss:
                raise _data_loss(gone[0].path, "removed before it was read")
            lost = (
                Problem(MISSING, part.file, part.start, part.end - part.start, "removed before it was read")
                for part in gone
            )
            left = [part for part in partition.ranges if part not in gone]
            partition = LogPartition(left, [*partition.rows, *(problem._asdict() for problem in lost)])
        yield from record_batches(self.options, self.columns, partition.ranges, partition.rows)

    def _logs(self, needed: Iterable[str] = ()) -> dict[str, tuple[Log, Listing]]:
        """List the logs that exist, by id.

        Raises LogIdError for copies of a log and damaged ids, and RuntimeError if a log in `needed` is gone.
        """
        listings: dict[Log, Listing] = {}
        names: list[tuple[str, Log]] = []
        for log in self.options.logs:
            with suppress(FileNotFoundError):  # it does not exist yet
                listings[log] = list_log(*log)
                try:
                    names.append((log_id(*log), log))
                except LogIdError:
                    # An empty log of an earlier version gets its id when its gateway starts.
                    if listings[log].segments:
                        raise
        found = {name: (log, listings[log]) for name, log in by_id(names).items()}
        gone = [name for name in needed if name not in found]
        if gone and self.options.fail_on_data_loss:
            places = ", ".join(log.location for log in self.options.logs)
            raise RuntimeError(
                f"the log {gone[0]}, which this query has read, is gone: it is not in {places}. Name its new place, "
                "set the option failOnDataLoss to false to continue without it, or use another checkpoint directory"
            )
        return found

    def _beginnings(self, logs: Mapping[str, tuple[Log, Listing]]) -> dict[str, Position]:
        """Return where logs begin that the query has not read; none for logs without blocks."""
        found = {log: _first(listing, self.options.span.since) for log, (_, listing) in logs.items()}
        found |= {log: position for log, position in self.options.start.items() if log in logs}
        return {log: position for log, position in found.items() if position is not None}


def _first(listing: Listing, since: int) -> Position | None:
    """Return the position of the first segment with records since a time, or after the last segment."""
    found = None
    for segment in listing.segments:
        entry = segment.entry
        if entry is None or entry.last_ns >= since:
            return Position(segment.name, 0, segment.first_sequence)
        found = Position(segment.name, entry.bytes, entry.next_sequence)
    return found


def _positions(offset: Any) -> dict[str, Position]:
    """Return the positions of an offset. Raises RuntimeError if it is not one."""
    try:
        return parse_positions(offset)
    except ValueError as error:
        raise RuntimeError(f"the checkpoint is damaged: {error}; use another checkpoint directory") from None


def _plan(
    options: ReadOptions, log: Log, start: Position | None = None, upto: Position | None = None
) -> Plan:
    return plan(
        log.location,
        options.partition_bytes,
        options.min_partitions,
        span=options.span,
        start=start,
        upto=upto,
        storage=log.storage,
    )


def _partitions(options: ReadOptions, log: Plan, ends: Mapping[str, Position]) -> list[InputPartition]:
    """Return the partitions of a plan, and where each log ends."""
    if options.view == POSITIONS.name:
        rows = [{"log": name} | end._asdict() for name, end in ends.items()]
        return [LogPartition([], rows)] if rows else []
    parts: list[InputPartition] = [LogPartition(ranges, []) for ranges in log.partitions]
    if options.view == BADBLOCKS.name and log.problems:
        parts.insert(0, LogPartition([], [problem._asdict() for problem in log.problems]))
    return parts


def _data_loss(path: str, what: str) -> RuntimeError:
    return RuntimeError(
        f"{path}: {what}. Set the option failOnDataLoss to false to continue without them. To prevent it, let "
        "retention keep segments for longer than the query is stopped."
    )
