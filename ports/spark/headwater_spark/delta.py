"""Create, read and commit the Delta tables of a directory.

`deltalake` reads and writes Delta Lake's log without a JVM. It does not refuse an application transaction that a
table already has, and adds its files twice; so `commit` checks, on the version that the commit is based on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from headwater_spark.tables import PARTITION, File, Table

#: Application id of the batches' transactions; its version is the batch's number.
APP = "headwater"
#: Table properties: how long removed files and old entries of the log stay.
_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 7 days",
    # A batch opens each table several times, which costs 0.2 ms for each commit since the last checkpoint.
    "delta.checkpointInterval": "20",
}


class OldTablesError(FileExistsError):
    """The directory contains something else under a table's name."""


class StaleError(RuntimeError):
    """Another program has changed a table between the reading and the commit of a batch."""


@dataclass
class Change:
    """A change of a table: files to add, and paths of files to remove."""

    add: list[File] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


class Live(NamedTuple):
    """The files of one version of a table."""

    version: int
    files: list[File]


def check(out: Path, tables: Iterable[Table]) -> None:
    """Raise OldTablesError when `out` contains something under a table's name that is not a Delta table."""
    for table in tables:
        path = out / table.name
        if path.is_symlink():
            raise OldTablesError(
                f"{path} was made by an earlier version of headwater: choose another directory, or remove "
                f"{out / '.runs'} and the links in {out}"
            )
        if path.exists() and not DeltaTable.is_deltatable(str(path)) and any(path.iterdir()):
            raise OldTablesError(f"{path} was not made by a pipeline: remove it, or choose another directory")


def create(out: Path, table: Table) -> None:
    """Create a table without rows; add columns to one that exists and does not have them.

    Raises OldTablesError when a column has another type.
    """
    uri = str(out / table.name)
    schema = Schema.from_arrow(table.delta)
    if not DeltaTable.is_deltatable(uri):
        DeltaTable.create(
            uri,
            schema,
            mode="ignore",
            partition_by=[PARTITION],
            description=table.what,
            configuration=_PROPERTIES | _statistics(table),
        )
        return
    opened = DeltaTable(uri)
    stored = {column.name: column.type for column in opened.schema().fields}
    for column in schema.fields:
        if column.name in stored and stored[column.name] != column.type:
            raise OldTablesError(
                f"column {column.name} of {uri} has another type than this version of headwater writes: choose another "
                "directory, or remove this one"
            )
    added = [column for column in schema.fields if column.name not in stored]
    if added:
        opened.alter.add_columns(added)


def _statistics(table: Table) -> dict[str, str]:
    """Name the columns with statistics. Readers take others' for null, and then find no rows."""
    if table.clock:
        return {"delta.dataSkippingStatsColumns": table.clock}
    return {"delta.dataSkippingNumIndexedCols": "0"}


def live(out: Path, table: Table, version: int | None = None) -> Live:
    """Return the files of a table's version, by default the latest."""
    opened = DeltaTable(str(out / table.name), version=version)
    return Live(opened.version(), _files(opened, table))


def _files(opened: DeltaTable, table: Table) -> list[File]:
    found: Any = opened.get_add_actions(flatten=True)
    columns = {name: found[name].to_pylist() for name in found.schema.names}
    none: list[Any] = [None] * len(columns["path"])
    dates = [None if date is None else str(date) for date in columns.get(f"partition.{PARTITION}", none)]
    names = ("path", "size_bytes", "num_records")
    spans = (columns.get(f"{edge}.{table.clock}", none) for edge in ("min", "max"))
    return [File(*one) for one in zip(*(columns[name] for name in names), dates, *spans, strict=True)]


def dataset(out: Path, name: str, version: int | None = None) -> Any:
    """Return a table's version, by default the latest, as a pyarrow dataset."""
    return DeltaTable(str(out / name), version=version).to_pyarrow_dataset()


def vacuum(out: Path, table: Table, hours: int) -> int:
    """Remove files that no version needs and that are older than `hours`. Returns their number.

    They were replaced, or written by a run that was interrupted. No batch may be open.
    """
    opened = DeltaTable(str(out / table.name))
    # Files of a batch that is being written are younger than its run.
    removed = opened.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    return len(removed)


def done(out: Path, name: str, number: int) -> bool:
    """Return whether a table has the commit of a batch."""
    return (DeltaTable(str(out / name)).transaction_version(APP) or 0) >= number


def commit(
    out: Path, table: Table, number: int, change: Change, note: dict[str, Any], *, data_change: bool = True
) -> None:
    """Commit a batch's change of a table, unless the table has it. `note` goes to the table's history.

    Without a `data_change`, the added files have the rows of the removed ones.

    Raises StaleError when another program has removed files that the change replaces.
    """
    uri = str(out / table.name)
    while True:
        opened = DeltaTable(uri)
        if (opened.transaction_version(APP) or 0) >= number:
            return
        gone = set(change.remove)
        known = {file.path: file for file in _files(opened, table)} if gone else {}
        if not gone <= known.keys():
            raise StaleError(f"{uri} was changed by another program while batch {number} was written")
        try:
            opened.create_write_transaction(
                [
                    *(_add(table, file, data_change) for file in change.add),
                    *(_remove(known[path], data_change) for path in change.remove),
                ],
                "append",
                Schema.from_arrow(table.delta),
                partition_by=[PARTITION],
                commit_properties=CommitProperties(
                    custom_metadata={APP: json.dumps(note)},
                    # A commit based on an old version must fail: the transaction was checked on that version.
                    max_commit_retries=0,
                    app_transactions=[Transaction(APP, number)],
                ),
            )
        except CommitFailedError:
            if DeltaTable(uri).version() == opened.version():
                raise
            continue  # another process has committed: look again
        return


def _add(table: Table, file: File, data_change: bool) -> Any:
    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.first_ns is not None:
        stats |= {
            "minValues": {table.clock: file.first_ns},
            "maxValues": {table.clock: file.last_ns},
            "nullCount": {table.clock: 0},
        }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={PARTITION: file.date},
        modification_time=time.time_ns() // 10**6,
        data_change=data_change,
        stats=json.dumps(stats),
    )


def _remove(file: File, data_change: bool) -> Any:
    now = time.time_ns() // 10**6
    return RemoveAction(file.path, data_change, now, file.size, {PARTITION: file.date})
