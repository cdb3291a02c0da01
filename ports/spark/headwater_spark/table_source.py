"""The data source of the tables: `spark.read.format("headwater.table").load("tables/messages")`.

It reads the files of one version of a Delta table, without a jar. A directory of Parquet files is no table: it may
contain files that were replaced, and files of batches that a crash interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater_host.capture.filesystem import STORAGE, LocationError, parse_storage
from headwater_spark.options import Option, OptionError, parse_time, read_options, split_storage
from headwater_spark.place import Place
from headwater_spark.sizes import PARTITION_BYTES, READ_ROWS

# Columns with the time of a row, the first one that a table has: that of its partition.
_CLOCKS = ("time_ns", "received_ns", "first_ns")


def _version(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("not a version of a table, such as 0")
    return int(text)


_OPTIONS = (
    Option("path", str, None, "directory of the table, or its URI"),
    Option("version", _version, None, "version of the table"),
    Option("since", parse_time, None, "only rows of this time or later"),
    Option("until", parse_time, None, "only rows before this time"),
)


@dataclass
class TableOptions:
    """The validated options of a read: the table's place, the version, and times in ns since 1970."""

    place: Place
    version: int | None = None
    since: int | None = None
    until: int | None = None


def parse(given: Mapping[str, str]) -> TableOptions:
    """Parse and validate the options. Raises OptionError."""
    if any(name.lower() == "paths" for name in given):
        raise OptionError('format("headwater.table") reads one table: load each, and join or union them')
    storage, others = split_storage(given)
    values = read_options("headwater.table", others, _OPTIONS, STORAGE)
    path = values.pop("path")
    if path is None:
        raise OptionError('the path is missing: spark.read.format("headwater.table").load("tables/messages")')
    try:
        return TableOptions(Place.at(path, parse_storage(storage)), **values)
    except LocationError as error:
        raise OptionError(str(error)) from None


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

        return from_arrow_schema(_arrow_schema(_open(parse(self.options))))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns in `schema`."""
        options = parse(self.options)
        table = _open(options)
        # A query reads one version, however long it takes.
        options.version = table.version()
        return TableReader(options, _fields(options.place, _arrow_schema(table), schema))


def _open(options: TableOptions) -> Any:
    from deltalake.exceptions import TableNotFoundError

    from headwater_spark.delta import open_table

    place, version = options.place, options.version
    try:
        return open_table(place, version)
    except (OSError, TableNotFoundError) as error:
        if version is not None:
            last = _open(TableOptions(place)).version()
            raise OptionError(
                f"option version: {place} has no version {version}; its last one is {last}"
            ) from None
        if isinstance(error, TableNotFoundError):
            raise OptionError(
                f"{place} is not a table: give the directory of one, such as tables/messages"
            ) from None
        raise OptionError(str(error)) from None


def _arrow_schema(table: Any) -> Any:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _fields(place: Place, whole: Any, schema: StructType) -> list[Any]:
    """Return the Arrow fields of some columns. Raises OptionError for one that the table does not have."""
    from pyspark.sql.pandas.types import from_arrow_schema

    stored = from_arrow_schema(whole)
    for field in schema.fields:
        if field.name not in stored.names:
            raise OptionError(f"{place} has no column {field.name!r}; it has {', '.join(stored.names)}")
        if field.dataType != stored[field.name].dataType:
            kind = stored[field.name].dataType.simpleString()
            raise OptionError(
                f"column {field.name} of {place} is {kind}, not {field.dataType.simpleString()}"
            )
    return [whole.field(name) for name in schema.fieldNames()]


class TableReader(DataSourceReader):
    """Read columns of one version of a table."""

    def __init__(self, options: TableOptions, fields: list[Any]):
        """Read the Arrow `fields` of a table."""
        self.options = options
        self.fields = fields

    def partitions(self) -> list[InputPartition]:
        """Return groups of files of about equal size."""
        table = _open(self.options)
        found = table.get_add_actions(flatten=True)
        names = found.schema.names
        clock = _clock([field.name for field in table.schema().fields])
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

        from headwater_spark.table_files import open_parquet

        pa.set_cpu_count(1)
        schema = pa.schema(self.fields)
        for path, date in partition.files:
            source = open_parquet(self.options.place / path)
            stored = source.schema_arrow.names
            clock = _clock(stored)
            spans = self.options.since is not None or self.options.until is not None
            wanted = [name for name in stored if name in schema.names or (spans and name == clock)]
            for batch in source.iter_batches(READ_ROWS, columns=wanted):
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
