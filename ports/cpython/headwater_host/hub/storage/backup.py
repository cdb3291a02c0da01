"""Copy the storage's file while a hub uses it, and put a copy in its place."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.file import File, explained
from headwater_host.hub.storage.records import encoded, stored_row
from headwater_host.hub.storage.sqlite_tables import STATEMENTS
from headwater_host.private import prepare

#: The files that SQLite keeps beside a file.
_BESIDE = ("-wal", "-shm", "-journal")


def backup(path: str, copy: str) -> None:
    """Copy the file of a hub, which may be running, to a new file. Raises StorageError.

    The copy is one state of the hub, complete up to a transaction, and on disk when this returns.
    """
    if not Path(path).exists():
        raise StorageError(f"there is no hub's storage {path}")
    prepare(copy)
    try:
        with (
            closing(sqlite3.connect(f"file:{Path(path).resolve()}?mode=ro", uri=True, timeout=10)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as target,
        ):
            # All pages in one step: a writer would make a copy in several steps begin again.
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise explained(path, error) from error
    _sync(copy)


def install(copy: str, path: str, counters: Mapping[str, str | None] = MappingProxyType({})) -> None:
    """Check a copy, and put it in the place of a hub's storage. No hub may run. Raises StorageError.

    ``counters``: those of the storage that is replaced which the copy gets.
    """
    # A hub that has the storage open keeps its lock; one that was killed has left a log to be written.
    if Path(path).exists():
        File(path).close()
    file = File(copy)
    try:
        for name, value in counters.items():
            file.writer.execute("DELETE FROM counters WHERE name = ?", (name,))
            if value is not None:
                row = stored_row("counter", (name, value), encoded((name, value)))
                for statement in STATEMENTS["counter"]:
                    file.writer.execute(statement, row)
    except sqlite3.Error as error:
        raise explained(copy, error) from error
    finally:
        file.close()
    for end in (*_BESIDE, "-lock"):
        Path(copy + end).unlink(missing_ok=True)
    for end in _BESIDE:
        if Path(path + end).exists():
            raise StorageError(f"{path}{end} belongs to the storage that would be replaced: move both away")
    _sync(copy)
    Path(copy).replace(path)
    _sync(str(Path(path).resolve().parent))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
