"""Merge small files of tables.

Each batch adds a few files to each table. Files of one date are merged into larger ones, in the order of their times,
as a batch of its own: planned, listed and committed like any other, without a change of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from headwater_host.progress import Step
from headwater_spark.delta import Change
from headwater_spark.engine import Engine
from headwater_spark.part import Job, Part
from headwater_spark.place import Place
from headwater_spark.progress import add_rows
from headwater_spark.stored import as_written
from headwater_spark.table_files import ROW_GROUP, File, Writer, open_parquet
from headwater_spark.tables import DERIVED, TABLES, Table

#: The kind of a batch that merges files.
COMPACT = "compact"
#: Default size of merged files.
TARGET_BYTES = 128 << 20
# Bytes in memory of rows that become a row group.
_GROUP_BYTES = 64 << 20
#: Default age of files that are removed.
KEEP_HOURS = 24


@dataclass
class Compacted:
    """The number of files of each table before and after, and of files that were removed from the disk."""

    before: dict[str, int]
    after: dict[str, int] = field(default_factory=dict)
    removed: int = 0

    def __post_init__(self) -> None:
        self.after = self.after or dict(self.before)


def small_files(files: Sequence[File], target_bytes: int) -> list[list[File]]:
    """Return groups of two or more files that become one: of one date, in the order of their times."""
    groups: list[list[File]] = []
    size = 0
    small = [file for file in files if file.size < target_bytes // 2]
    for file in sorted(small, key=lambda file: (file.date or "", file.first_ns or 0, file.path)):
        if not groups or groups[-1][-1].date != file.date or size + file.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [group for group in groups if len(group) > 1]


def merge_files(
    engine: Engine, job: Job, files: Mapping[str, Sequence[File]], target_bytes: int
) -> dict[str, Change]:
    """Write the merged files of all tables and return the changes."""
    groups = [
        (table, group)
        for table in (*TABLES, *DERIVED)
        for group in small_files(files.get(table.name, ()), target_bytes)
    ]
    changes = {table.name: Change() for table in (*TABLES, *DERIVED)}
    merged = [file for _, group in groups for file in group]
    step = Step("merging files", sum(file.rows for file in merged), sum(file.size for file in merged))
    for part in engine.run(range(len(groups)), partial(_merge, job, groups), step):
        for name, found in part.files.items():
            changes[name].add += found
        for name, paths in part.replaced.items():
            changes[name].remove += paths
    return changes


def _row_groups(folder: Place, files: Sequence[File]) -> Iterator[Any]:
    """Yield the rows of files in tables that are large enough for a row group."""
    waiting: list[Any] = []
    for file in files:
        source = open_parquet(folder / file.path)
        for group in range(source.num_row_groups):
            waiting.append(source.read_row_group(group))
            rows, size = sum(len(some) for some in waiting), sum(some.nbytes for some in waiting)
            if rows >= ROW_GROUP or size >= _GROUP_BYTES:
                yield pa.concat_tables(waiting, promote_options="default")
                waiting = []
    if waiting:
        yield pa.concat_tables(waiting, promote_options="default")


def _merge(job: Job, groups: Sequence[tuple[Table, list[File]]], number: int) -> Part:
    job.begin()
    table, files = groups[number]
    with Writer(table, job.out, f"{job.number:06d}-m{number:06d}") as writer:
        for rows in _row_groups(job.out / table.name, files):
            writer.write(as_written(rows, table))
            add_rows(rows.num_rows)
    part = Part(number)
    if writer.rows != sum(file.rows for file in files):
        raise RuntimeError(f"{table.name}: {writer.rows} rows in merged files of {files}")
    part.files[table.name] = writer.files
    part.replaced[table.name] = [file.path for file in files]
    return part
