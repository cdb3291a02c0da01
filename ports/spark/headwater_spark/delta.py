"""Create, read and commit the Delta tables of a place.

`deltalake` reads and writes Delta Lake's log without a JVM. It does not refuse an application transaction that a
table already has, and adds its files twice; so `commit` checks, on the version that the commit is based on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, Transaction
from pyarrow.fs import SubTreeFileSystem

from headwater_host.capture.filesystem import Location, store_error
from headwater_spark import delta_log
from headwater_spark.place import Place
from headwater_spark.table_files import File
from headwater_spark.tables import PARTITION, Table

#: Application id of the batches' transactions; its version is the batch's number.
APP = "headwater"
#: Commits between two checkpoints. To open a table costs 0.2 ms for each commit since the last one.
CHECKPOINT_EVERY = 20
#: Table properties: how long removed files and old entries of the log stay.
_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
}
# A commit has to be durable before the log is shortened.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


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


class Tables:
    """The Delta tables of a place. Each is opened once, at its latest version, and again after a commit."""

    def __init__(self, place: Place):
        self.place = place
        self._open: dict[str, DeltaTable] = {}

    def check(self, tables: Iterable[Table]) -> None:
        """Raise OldTablesError when the directory has something under a table's name that is not a Delta table."""
        out = self.place.path
        for table in tables if out is not None else ():
            assert out is not None
            path = out / table.name
            if path.is_symlink():
                raise OldTablesError(
                    f"{path} was made by an earlier version of headwater: choose another directory, or remove "
                    f"{out / '.runs'} and the links in {out}"
                )
            if (
                path.exists()
                and not self.has(table)
                and any(one.name != delta_log.FOLDER for one in path.iterdir())
            ):
                raise OldTablesError(
                    f"{path} was not made by a pipeline: remove it, or choose another directory"
                )

    def repair(self, tables: Iterable[Table]) -> list[str]:
        """Remove what a power cut has torn in a directory. Returns the names of such files.

        No other process may write to the tables.
        """
        out = self.place.path
        if out is None:
            return []
        return [
            f"{table.name}/{name}" for table in tables for name in delta_log.repair(out / table.name, APP)
        ]

    def has(self, table: Table) -> bool:
        """Return whether a table exists."""
        try:
            self._opened(table.name)
        except TableNotFoundError:
            return False
        return True

    def create(self, table: Table) -> None:
        """Create a table without rows; add columns to one that exists and does not have them.

        Raises OldTablesError when a column has another type.
        """
        place = self.place / table.name
        schema = Schema.from_arrow(table.delta)
        if not self.has(table):
            with _named(place):
                try:
                    DeltaTable.create(
                        place.location,
                        schema,
                        mode="ignore",
                        partition_by=[PARTITION],
                        description=table.what,
                        configuration=_PROPERTIES | _statistics(table),
                        storage_options=place.options,
                    )
                except DeltaError:
                    if not self.has(table):
                        raise  # otherwise another process has created it
            self._committed(table.name, -1, 0)
            return
        opened = self._opened(table.name)
        stored = {column.name: column.type for column in opened.schema().fields}
        for column in schema.fields:
            if column.name in stored and stored[column.name] != column.type:
                raise OldTablesError(
                    f"column {column.name} of {place} has another type than this version of headwater writes: choose "
                    "another directory, or remove this one"
                )
        added = [column for column in schema.fields if column.name not in stored]
        if added:
            with _named(place):
                opened.alter.add_columns(added, post_commithook_properties=_NO_HOOKS)
            self._committed(table.name, opened.version() - 1)

    def live(self, table: Table) -> Live:
        """Return the files of a table."""
        opened = self._opened(table.name)
        return Live(opened.version(), _files(opened, table))

    def done(self, name: str, number: int) -> bool:
        """Return whether a table has the commit of a batch."""
        return (self._opened(name).transaction_version(APP) or 0) >= number

    def commit(
        self, table: Table, number: int, change: Change, note: dict[str, Any], *, data_change: bool = True
    ) -> None:
        """Commit a batch's change of a table, unless the table has it. `note` goes to the table's history.

        Without a `data_change`, the added files have the rows of the removed ones.

        Raises StaleError when another program has removed files that the change replaces.
        """
        place = self.place / table.name
        while not self.done(table.name, number):
            opened = self._opened(table.name)
            gone = set(change.remove)
            known = {file.path: file for file in _files(opened, table)} if gone else {}
            if not gone <= known.keys():
                raise StaleError(f"{place} was changed by another program while batch {number} was written")
            with _named(place):
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
                        post_commithook_properties=_NO_HOOKS,
                    )
                except CommitFailedError:
                    self._open.pop(table.name)
                    if self._opened(table.name).version() == opened.version():
                        raise
                    continue  # another process has committed: look again
            self._committed(table.name, opened.version(), opened.version() + 1)
            return

    def vacuum(self, table: Table, hours: int) -> int:
        """Remove files that no version needs and that are older than `hours`. Returns their number.

        They were replaced, or written by a run that was interrupted. No batch may be open.
        """
        before = self._opened(table.name).version()
        with _named(self.place / table.name):
            # Files of a batch that is being written are younger than its run.
            removed = self._opened(table.name).vacuum(
                hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                post_commithook_properties=_NO_HOOKS,
            )
        self._committed(table.name, before)
        return len(removed)

    def _opened(self, name: str) -> DeltaTable:
        if name not in self._open:
            self._open[name] = open_table(self.place / name)
        return self._open[name]

    def _committed(self, name: str, before: int, after: int | None = None) -> None:
        """Make the commits after a version durable, up to `after` or the last; write a checkpoint if it is time."""
        place = self.place / name
        self._open.pop(name, None)
        after = self._opened(name).version() if after is None else after
        if place.path is not None:
            delta_log.sync(place.path, range(before + 1, after + 1))
        if max(before, 0) // CHECKPOINT_EVERY == after // CHECKPOINT_EVERY:
            return
        opened = self._opened(name)
        with _named(place):
            opened.create_checkpoint()
            if place.path is not None:
                delta_log.sync_checkpoint(place.path, opened.version())
            opened.cleanup_metadata()


def open_table(place: Place, version: int | None = None) -> DeltaTable:
    """Open a table's version, by default the latest. Raises TableNotFoundError, and OSError for an object store."""
    if place.path is not None and not place.path.is_dir():
        raise TableNotFoundError(f"{place} is not a directory")
    with _named(place):
        return DeltaTable(place.location, version=version, storage_options=place.options)


@contextmanager
def _named(place: Place) -> Iterator[None]:
    """Raise errors of `deltalake` as OSErrors of one line, except TableNotFoundError."""
    try:
        yield
    except TableNotFoundError:
        raise
    except DeltaError as error:
        raise store_error(place.location, error) from error
    except OSError as error:
        if place.path is not None:
            raise
        raise store_error(place.location, error) from error


def _statistics(table: Table) -> dict[str, str]:
    """Name the columns with statistics. Readers take others' for null, and then find no rows."""
    if table.clock:
        return {"delta.dataSkippingStatsColumns": table.clock}
    return {"delta.dataSkippingNumIndexedCols": "0"}


def live(out: Location | Place, table: Table, version: int | None = None) -> Live:
    """Return the files of a table's version, by default the latest."""
    opened = open_table(Place.at(out) / table.name, version)
    return Live(opened.version(), _files(opened, table))


def _files(opened: DeltaTable, table: Table) -> list[File]:
    found: Any = opened.get_add_actions(flatten=True)
    columns = {name: found[name].to_pylist() for name in found.schema.names}
    none: list[Any] = [None] * len(columns["path"])
    dates = [None if date is None else str(date) for date in columns.get(f"partition.{PARTITION}", none)]
    names = ("path", "size_bytes", "num_records")
    spans = (columns.get(f"{edge}.{table.clock}", none) for edge in ("min", "max"))
    return [File(*one) for one in zip(*(columns[name] for name in names), dates, *spans, strict=True)]


def dataset(out: Location | Place, name: str, version: int | None = None) -> Any:
    """Return a table's version, by default the latest, as a pyarrow dataset."""
    return dataset_at(Place.at(out) / name, version)


def dataset_at(place: Place, version: int | None = None) -> Any:
    """Return the version of the table at a place, by default the latest, as a pyarrow dataset."""
    found, path = place.arrow()
    return open_table(place, version).to_pyarrow_dataset(filesystem=SubTreeFileSystem(path, found))


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
