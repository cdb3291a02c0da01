"""Write and open the Parquet files of tables."""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwater_spark.place import Place
from headwater_spark.tables import Table

#: Rows of a row group.
ROW_GROUP = 1 << 18
_DAY_NS = 86_400 * 10**9
# Name of the partition without a date, as in Hive.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
# Maximum number of files that a task writes at a time.
_MAX_OPEN = 32
# Columns that grow from row to row: differences are smaller and faster to write.
_DIFFERENCES = {"time", "time_ns", "record", "seq", "sent_ns", "received_ns"}


class File(NamedTuple):
    """A Parquet file of a table. `path` is relative to the table's directory."""

    path: str
    size: int
    rows: int
    #: The partition: a UTC date, or None for rows without a time.
    date: str | None
    #: Least and greatest time, in ns since 1970; None without times.
    first_ns: int | None
    last_ns: int | None


def open_parquet(place: Place) -> Any:
    """Open a Parquet file for reading. Raises OSError."""
    # An object store is asked for a row group's columns at once.
    return pq.ParquetFile(place.open(), pre_buffer=place.path is None)


class FileWriter:
    """Write one Parquet file, as a context manager.

    The file gets its name when it is complete and on disk. Without rows there is no file, and an exception leaves none.
    """

    def __init__(self, table: Table, place: Place):
        self.table = table
        self.place = place
        self.rows = 0
        self.size = 0
        self._partial = place.partial()
        self._sink: Any = None
        self._writer: Any = None

    def __enter__(self) -> FileWriter:
        return self

    def write(self, batch: Any) -> None:
        """Append a record batch with the table's schema."""
        if not batch.num_rows:
            return
        if self._writer is None:
            columns, names = self.table.columns, self.table.names
            self._sink = self._partial.open_output()
            self._writer = pq.ParquetWriter(
                self._sink,
                batch.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[column.name for column in columns if column.repeats],
                column_encoding={
                    column.name: "DELTA_BINARY_PACKED" for column in columns if column.name in _DIFFERENCES
                },
                # Readers filter by time and by identity.
                write_statistics=[
                    name for name in ("time", "time_ns", "board", "boot", "seq") if name in names
                ],
                store_schema=False,
            )
        self._writer.write_batch(batch, row_group_size=ROW_GROUP)
        self.rows += batch.num_rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            if kind is None:
                # An earlier attempt may have written rows.
                self.place.remove()
            return
        try:
            self._writer.close()
            self.size = self._sink.tell()
            self._sink.close()
            if kind is None:
                # A table's commit must not refer to a file that a power cut removes.
                self._partial.finish(self.place)
        except BaseException:
            kind = kind or OSError
            raise
        finally:
            if kind is not None:
                self._partial.remove()


class Writer:
    """Write a task's rows of a table, as a context manager: one file per date.

    Each attempt at a task uses names of its own, so only files that a commit names belong to the table. `files` lists
    them when the block has ended.
    """

    def __init__(self, table: Table, out: Place, label: str):
        self.table = table
        self.rows = 0
        self.files: list[File] = []
        self._schema = table.arrow
        self._folder = out / table.name
        self._name = f"{label}-{secrets.token_hex(4)}"
        self._open: dict[int | None, tuple[FileWriter, list[int]]] = {}

    def __enter__(self) -> Writer:
        return self

    def write(self, columns: dict[str, Any]) -> None:
        """Append rows, given as Arrow arrays by column name."""
        schema = self._schema
        batch = pa.record_batch([columns[name] for name in schema.names], schema=schema)
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        if not self.table.clock:
            self._write(None, batch, [])
            return
        ns = batch.column(schema.get_field_index(self.table.clock))
        if ns.null_count:
            self._write(None, batch.filter(ns.is_null()), [])
            batch = batch.filter(ns.is_valid())
            if not batch.num_rows:
                return
            ns = ns.drop_null()
        times = ns.to_numpy()
        low, high = int(times.min()), int(times.max())
        if low // _DAY_NS == high // _DAY_NS:
            self._write(low // _DAY_NS, batch, [low, high])
            return
        days = times // _DAY_NS
        for day in np.unique(days).tolist():
            rows = np.flatnonzero(days == day)
            some = times[rows]
            self._write(day, batch.take(pa.array(rows)), [int(some.min()), int(some.max())])

    def _write(self, day: int | None, batch: Any, span: list[int]) -> None:
        if day not in self._open:
            if len(self._open) >= _MAX_OPEN:
                # A clock that is wrong may give every row another date.
                self._close(next(iter(self._open)), None)
            date = _NO_DATE if day is None else str(np.datetime64(day, "D"))
            path = f"date={date}/{self._name}-{len(self.files) + len(self._open)}.parquet"
            self._open[day] = FileWriter(self.table, self._folder / path), []
        writer, whole = self._open[day]
        writer.write(batch)
        if span:
            whole[:] = min(span[0], *whole[:1], span[0]), max(span[1], *whole[1:], span[1])

    def _close(self, day: int | None, kind: type[BaseException] | None) -> None:
        writer, span = self._open.pop(day)
        writer.__exit__(kind, None, None)
        if kind is None:
            date = None if day is None else str(np.datetime64(day, "D"))
            path = writer.place.location.removeprefix(f"{self._folder}/")
            self.files.append(File(path, writer.size, writer.rows, date, *(span or (None, None))))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for day in list(self._open):
            self._close(day, kind)
