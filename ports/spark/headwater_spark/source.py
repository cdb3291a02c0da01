"""The data source: ``spark.read.format("headwater").load(directory)``.

Rows are views of the log (``tables.VIEWS``). Spark does not tell a Python data source which columns a query
needs, but it passes on a schema: ``.schema("time_ns long, frame binary")`` reads these columns only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater_host.capture.problem import Problem
from headwater_spark.options import OptionError, ReadOptions, parse
from headwater_spark.plan import Range, plan
from headwater_spark.tables import BADBLOCKS, DECODED, FRAMES, VIEWS, Table

if TYPE_CHECKING:
    from headwater_spark.columns import Batch

_SHORT_NAMES = {
    "tinyint": "byte",
    "smallint": "short",
    "bigint": "long",
}


@dataclass
class LogPartition(InputPartition):
    """Ranges of the log, and findings that need no reading."""

    ranges: list[Range]
    problems: list[Problem]


class HeadwaterSource(DataSource):
    """The format ``headwater``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "headwater"

    def schema(self) -> str:
        """All columns of the view."""
        return VIEWS[parse(self.options).view].ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``."""
        options = parse(self.options)
        return LogReader(options, _columns(VIEWS[options.view], schema))


def _columns(view: Table, schema: StructType) -> list[str]:
    """The columns a schema asks for. Raises OptionError for one that is missing or of another type."""
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
    """Reads some columns of a view, a plan made once."""

    def __init__(self, options: ReadOptions, columns: list[str]):
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """The partitions: ranges of blocks that stand one behind the other."""
        options = self.options
        log = plan(options.path, options.partition_bytes, options.min_partitions)
        parts: list[InputPartition] = [LogPartition(ranges, []) for ranges in log.partitions]
        if options.view == BADBLOCKS.name:
            parts.insert(0, LogPartition([], log.problems))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition as Arrow record batches."""
        if not isinstance(partition, LogPartition):
            return  # a log without blocks
        # Whoever only looks for the format must not wait for these.
        import pyarrow as pa

        from headwater_spark.columns import Batch, read, scan

        pa.set_cpu_count(1)
        view = VIEWS[self.options.view]
        schema = pa.schema([view.plain.field(name) for name in self.columns])
        if view is BADBLOCKS:
            problems = [
                *partition.problems,
                *(f for _, f in scan(partition.ranges) if isinstance(f, Problem)),
            ]
            rows = [problem._asdict() for problem in problems]
            if rows:
                yield pa.RecordBatch.from_pylist(
                    [{name: row[name] for name in self.columns} for row in rows], schema
                )
            return
        columns = _VIEW_COLUMNS[view.name]
        for found in read(partition.ranges, self.options.batch_rows):
            if isinstance(found, Batch):
                chosen = columns(found, self.columns)
                yield pa.record_batch(
                    [_plain(chosen[name], schema.field(name).type) for name in self.columns], schema
                )
            else:
                # The view badblocks has it; whoever reads frames only finds it in the executor's log.
                print(f"headwater: skipped {found}", file=sys.stderr)


def _plain(column: Any, type_: Any) -> Any:
    return column if column.type == type_ else column.cast(type_)


def _frames(batch: Batch, names: list[str]) -> Mapping[str, Any]:
    from headwater_spark.task import frame_columns

    return frame_columns(batch, names)


def _decoded(batch: Batch, names: list[str]) -> Mapping[str, Any]:
    import numpy as np
    import pyarrow as pa

    from headwater.reasons import REASONS, reason
    from headwater_spark import mqtt
    from headwater_spark.task import frame_columns, is_decoded

    packets = mqtt.decode(batch.data, batch.starts)
    ours = is_decoded(batch)
    publish = packets.publish & ours
    wrong = ours & (packets.error != 0)
    codes = sorted(REASONS)
    columns = {
        "kind": lambda: pa.array(packets.kind.astype(np.int16), mask=_not(ours)),
        "dup": lambda: pa.array(packets.dup, mask=_not(publish)),
        "qos": lambda: pa.array(packets.qos.astype(np.int16), mask=_not(publish)),
        "retain": lambda: pa.array(packets.retain, mask=_not(publish)),
        "packet_id": lambda: pa.array(packets.packet_id, mask=_not(publish & (packets.qos > 0))),
        "topic": lambda: _where(packets.topic, ours),
        "payload": lambda: _where(packets.payload, ours),
        "reason": lambda: pa.DictionaryArray.from_arrays(
            pa.array(
                np.searchsorted(codes, packets.error).clip(max=len(codes) - 1).astype(np.int32), mask=~wrong
            ),
            pa.array([reason(code) for code in codes]),
        ),
        "error_at": lambda: pa.array(packets.error_at, mask=~wrong),
    }
    return frame_columns(batch, names) | {name: columns[name]() for name in names if name in columns}


def _not(where: Any) -> Any:
    """A mask of what is null; None when nothing is, which is faster."""
    return None if where.all() else ~where


def _where(column: Any, where: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return column if where.all() else pc.if_else(pa.array(where), column, None)


_VIEW_COLUMNS: dict[str, Callable[[Batch, list[str]], Mapping[str, Any]]] = {
    FRAMES.name: _frames,
    DECODED.name: _decoded,
}
