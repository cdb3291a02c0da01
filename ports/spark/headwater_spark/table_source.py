"""The data source of the tables: `spark.read.format("headwater.table").load("tables/messages")`.

It reads the files of one version of a Delta table, without a jar. A directory of Parquet files is no table: it may
contain files that were replaced, and files of batches that a crash interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater_spark.options import OptionError, parse_time
from headwater_spark.sizes import BATCH_ROWS, PARTITION_BYTES

_OPTIONS = ("path", "version", "since", "until")
# Columns with the time of a row, the first one that a table has: that of its partition.
_CLOCKS = ("time_ns", "received_ns", "first_ns")


@dataclass
class TableOptions:
    """The validated options of a read: the directory, the version, and times in ns since 1970."""

    path: str
    version: int | None = None
    since: int | None = None
    until: int | None = None


def parse(given: Mapping[str, str]) -> TableOptions:
    """Parse and validate the options. Raises OptionError."""
    names = {name.lower(): name for name in _OPTIONS}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() not in names:
            known = ", ".join(_OPTIONS)
            raise OptionError(f'format("headwater.table") has no option {name!r}; its options are {known}')
        values[names[name.lower()]] = text
    if "path" not in values:
        raise OptionError('the path is missing: spark.read.format("headwater.table").load("tables/messages")')
    for name, read in (("version", int), ("since", parse_time), ("until", parse_time)):
        try:
            if name in values:
                values[name] = read(values[name])
        except ValueError as error:
            raise OptionError(f"option {name}: {values[name]!r}: {error}") from None
    return TableOptions(**values)


@dataclass
class FilesPartition(InputPartition):
    """Files of the table, each with its partition's date or None."""

    files: list[tuple[str, str | None]]


class TableSource(DataSource):
    """The format `headwater.table`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headwater.table"

    def schema(self) -> StructType:
        """Return the table's schema."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_open(parse(self.options)).to_pyarrow_dataset().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns in `schema`."""
        options = parse(self.options)
        if options.version is None:
            # A query reads one version, however long it takes.
            options.version = _open(options).version()
        return TableReader(options, schema)


def _open(options: TableOptions) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(options.path, version=options.version)
    except TableNotFoundError:
        raise OptionError(
            f"{options.path} is not a table: give the directory of one, such as tables/messages"
        ) from None


class TableReader(DataSourceReader):
    """Read columns of one version of a table."""

    def __init__(self, options: TableOptions, schema: StructType):
        self.options = options
        self.columns = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        """Return groups of files of about equal size."""
        table = _open(self.options)
        found = table.get_add_actions(flatten=True)
        names = found.schema.names
        clock = _clock(table.to_pyarrow_dataset().schema.names)
        columns = {
            name: found[name].to_pylist() if name in names else [None] * len(found)
            for name in ("path", "size_bytes", "partition.date", f"min.{clock}", f"max.{clock}")
        }
        groups: list[FilesPartition] = []
        size = 0
        for path, bytes_, date, first_ns, last_ns in zip(*columns.values(), strict=True):
            if not self._meets(first_ns, last_ns):
                continue
            if not groups or size + bytes_ > PARTITION_BYTES:
                groups.append(FilesPartition([]))
                size = 0
            groups[-1].files.append((path, None if date is None else str(date)))
            size += bytes_
        return list(groups)

    def _meets(self, first_ns: int | None, last_ns: int | None) -> bool:
        since, until = self.options.since, self.options.until
        if first_ns is None or last_ns is None:
            return since is None and until is None
        return (since is None or last_ns >= since) and (until is None or first_ns < until)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of some files as Arrow record batches."""
        if not isinstance(partition, FilesPartition):
            return  # a table without files
        import pyarrow as pa
        import pyarrow.parquet as pq

        pa.set_cpu_count(1)
        table = _open(self.options).to_pyarrow_dataset().schema
        schema = pa.schema([table.field(name) for name in self.columns])
        for path, date in partition.files:
            source = pq.ParquetFile(Path(self.options.path) / path)
            stored = source.schema_arrow.names
            clock = _clock(stored)
            spans = self.options.since is not None or self.options.until is not None
            wanted = [name for name in stored if name in self.columns or (spans and name == clock)]
            for batch in source.iter_batches(BATCH_ROWS, columns=wanted):
                rows = self._within(batch, clock) if spans else batch
                yield pa.record_batch([_column(rows, field, date) for field in schema], schema=schema)

    def _within(self, batch: Any, clock: str) -> Any:
        import pyarrow.compute as pc

        since, until = self.options.since, self.options.until
        times = batch.column(clock)
        keep = pc.is_valid(times)
        if since is not None:
            keep = pc.and_(keep, pc.greater_equal(times, since))
        if until is not None:
            keep = pc.and_(keep, pc.less(times, until))
        return batch.filter(keep)


def _clock(names: list[str]) -> str:
    return next((name for name in _CLOCKS if name in names), "")


def _column(batch: Any, field: Any, date: str | None) -> Any:
    """Return a column with the table's type; a column that the file does not have is null, or its date."""
    import datetime

    import pyarrow as pa

    if field.name in batch.schema.names:
        column = batch.column(field.name)
        return column if column.type == field.type else column.cast(field.type)
    if field.name == "date" and date is not None:
        return pa.repeat(pa.scalar(datetime.date.fromisoformat(date), field.type), batch.num_rows)
    return pa.nulls(batch.num_rows, field.type)
