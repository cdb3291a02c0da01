"""The data source: `spark.read.format("headwater").load(directory)`, also with `spark.readStream`.

Rows are views of the log (`tables.VIEWS`). Spark does not tell a Python data source which columns a query needs,
but it passes on a schema: `.schema("time_ns long, frame binary")` reads these columns only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import Listing, Manifest, list_log
from headwater_host.capture.problem import MISSING, Problem
from headwater_spark.options import OptionError, ReadOptions, parse
from headwater_spark.plan import Range, plan
from headwater_spark.positions import UNLIMITED, Position, advance
from headwater_spark.tables import BADBLOCKS, DECODED, FRAMES, VIEWS, Table

if TYPE_CHECKING:
    from headwater_spark import fmq, mqtt
    from headwater_spark.columns import Batch
    from headwater_spark.part import Texts

_SHORT_NAMES = {"tinyint": "byte", "smallint": "short", "bigint": "long"}


@dataclass
class LogPartition(InputPartition):
    """Ranges of the log, and problems found while planning."""

    ranges: list[Range]
    problems: list[Problem]


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
        log = plan(options.path, options.partition_bytes, options.min_partitions, span=options.span)
        parts: list[InputPartition] = [LogPartition(ranges, []) for ranges in log.partitions]
        if options.view == BADBLOCKS.name:
            parts.insert(0, LogPartition([], log.problems))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition as Arrow record batches."""
        if isinstance(partition, LogPartition):  # otherwise a log without blocks
            yield from _record_batches(self.options, self.columns, partition)


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
        """Return the position of the first segment with records since the option `since`."""
        found = None
        for segment in self._listing({}).segments:
            name, entry = segment.path.name, segment.entry
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
        self._listing(end)
        log = plan(
            options.path,
            options.partition_bytes,
            options.min_partitions,
            span=options.span,
            start=_position(start),
            upto=_position(end),
        )
        if log.removed is not None and options.fail_on_data_loss:
            raise _data_loss(options.path, log.removed.reason)
        parts: list[InputPartition] = [LogPartition(ranges, []) for ranges in log.partitions]
        if options.view == BADBLOCKS.name and log.problems:
            parts.insert(0, LogPartition([], log.problems))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition as Arrow record batches. Raises RuntimeError if a segment was removed."""
        assert isinstance(partition, LogPartition)
        gone = [part for part in partition.ranges if not Path(part.path).exists()]
        if gone:
            if self.options.fail_on_data_loss:
                raise _data_loss(self.options.path, f"{gone[0].file} was removed before it was read")
            problems = [
                Problem(MISSING, part.file, part.start, part.end - part.start, "removed before it was read")
                for part in gone
            ]
            left = [part for part in partition.ranges if part not in gone]
            partition = LogPartition(left, [*partition.problems, *problems])
        yield from _record_batches(self.options, self.columns, partition)

    def _listing(self, start: Mapping[str, Any]) -> Listing:
        """List the log, without segments if it does not exist yet.

        Raises FileNotFoundError if it no longer exists, and RuntimeError if it is another one.
        """
        path = self.options.path
        try:
            listing = list_log(path)
        except FileNotFoundError:
            if start:
                raise
            return Listing([], Manifest({}, [], 0), [])
        if start and log_id(path) != start.get("log"):
            raise RuntimeError(
                f"{path} is not the log that this query has read: use another checkpoint directory to read it"
            )
        return listing

    def _offset(self, position: Position | None) -> dict[str, Any]:
        return {} if position is None else {"log": log_id(self.options.path), **position._asdict()}


def _position(offset: Mapping[str, Any]) -> Position | None:
    return Position.from_json(offset) if offset else None


def _data_loss(path: str, what: str) -> RuntimeError:
    return RuntimeError(
        f"{path}: {what}. Set the option failOnDataLoss to false to continue without them. To prevent it, let "
        "retention keep segments for longer than the query is stopped."
    )


def _record_batches(options: ReadOptions, columns: list[str], partition: LogPartition) -> Iterator[Any]:
    # Import late, so that finding the format is fast.
    import pyarrow as pa

    from headwater_spark.columns import Batch, read, scan

    pa.set_cpu_count(1)
    view = VIEWS[options.view]
    schema = pa.schema([view.plain.field(name) for name in columns])
    if view is BADBLOCKS:
        problems = [
            *partition.problems,
            *(f for _, f in scan(partition.ranges) if isinstance(f, Problem)),
        ]
        rows = [problem._asdict() for problem in problems]
        if rows:
            yield pa.RecordBatch.from_pylist([{name: row[name] for name in columns} for row in rows], schema)
        return
    make = _VIEW_COLUMNS[view.name]
    for found in read(partition.ranges, options.batch_rows):
        if isinstance(found, Batch):
            found = found.within(options.span)
            if not len(found):
                continue
            parts = list(make(found, columns))
            yield _in_order(
                [rows for rows, _ in parts], [_record_batch(chosen, schema) for _, chosen in parts]
            )
        else:
            # The view badblocks has this row; for other views, print it to the executor's log.
            print(f"headwater: skipped {found}", file=sys.stderr)


def _plain(column: Any, type_: Any) -> Any:
    return column if column.type == type_ else column.cast(type_)


def _record_batch(columns: Mapping[str, Any], schema: Any) -> Any:
    import pyarrow as pa

    return pa.record_batch([_plain(columns[field.name], field.type) for field in schema], schema)


def _in_order(rows: list[Any], batches: list[Any]) -> Any:
    """Combine batches of some rows each into one, in the order of the rows."""
    import numpy as np
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    together = pa.Table.from_batches(batches).take(pa.array(np.argsort(np.concatenate(rows))))
    (batch,) = together.combine_chunks().to_batches()
    return batch


_Part = tuple[Any, Mapping[str, Any]]


def _frames(batch: Batch, names: list[str]) -> Iterator[_Part]:
    from headwater_spark.task import frame_columns

    yield None, frame_columns(batch, names)


def _decoded(batch: Batch, names: list[str]) -> Iterator[_Part]:
    """Yield the records of each version of a protocol, with their row numbers."""
    import pyarrow as pa

    from headwater_spark.task import FMQ, MQTT, by_version, frame_columns

    makers = {MQTT: _mqtt, FMQ: _fmq}
    schema = DECODED.plain
    for protocol, version, rows, some in by_version(batch):
        makes = {} if protocol is None else makers[protocol](some, version)
        found = frame_columns(some, names)
        found |= {name: makes[name]() for name in names if name in makes}
        found |= {name: pa.nulls(len(some), schema.field(name).type) for name in names if name not in found}
        yield rows, found


_Columns = dict[str, Callable[[], Any]]


def _mqtt(batch: Batch, level: int) -> _Columns:
    import pyarrow as pa

    from headwater.reasons import REASONS
    from headwater_spark import mqtt

    packets = mqtt.decode(batch.data, batch.starts, level)
    return {
        **_common(packets, packets.publish, REASONS),
        "packet_id": lambda: pa.array(packets.packet_id, mask=_not(packets.publish & (packets.qos > 0))),
        **{name: partial(packets.properties.get, name) for name in packets.properties},
    }


def _fmq(batch: Batch, version: int) -> _Columns:
    import numpy as np
    import pyarrow as pa

    from headwater.fmq.names import REASONS
    from headwater_spark import fmq

    packets = fmq.decode(batch.data, batch.starts)
    good = packets.error == 0
    known = good & ~packets.odd
    return _common(packets, packets.publish, REASONS) | {
        "tags": lambda: packets.tags,
        "message_id": lambda: packets.id,
        "process": lambda: pa.array(packets.process, mask=_not(known)),
        "thread": lambda: pa.array(packets.thread, mask=_not(known)),
        "id_type": lambda: pa.array(packets.id_type.astype(np.int16), mask=_not(good)),
        "id_ns": lambda: pa.array(packets.made_ns, mask=_not(known)),
    }


def _common(packets: mqtt.Packets | fmq.Packets, publish: Any, texts: Texts) -> _Columns:
    import numpy as np
    import pyarrow as pa

    wrong = packets.error != 0
    codes = sorted(texts)
    return {
        "kind": lambda: pa.array(packets.kind.astype(np.int16)),
        "dup": lambda: pa.array(packets.dup, mask=_not(publish)),
        "qos": lambda: pa.array(packets.qos.astype(np.int16), mask=_not(publish)),
        "retain": lambda: pa.array(packets.retain, mask=_not(publish)),
        "topic": lambda: packets.topic,
        "payload": lambda: packets.payload,
        "reason": lambda: pa.DictionaryArray.from_arrays(
            pa.array(
                np.searchsorted(codes, packets.error).clip(max=len(codes) - 1).astype(np.int32), mask=~wrong
            ),
            pa.array([texts[code][0] for code in codes]),
        ),
        "error_at": lambda: pa.array(packets.error_at, mask=~wrong),
    }


def _not(where: Any) -> Any:
    """Return a mask of null values, or None if nothing is null, which is faster."""
    return None if where.all() else ~where


_VIEW_COLUMNS: dict[str, Callable[[Batch, list[str]], Iterator[_Part]]] = {
    FRAMES.name: _frames,
    DECODED.name: _decoded,
}
