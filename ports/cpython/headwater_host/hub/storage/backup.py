"""Copy the storage's file while a hub uses it, and put a copy in its place."""

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.file import File, explained
from headwater_host.hub.storage.records import encoded, stored_row
from headwater_host.hub.storage.sqlite_tables import STATEMENTS

#: The files that SQLite keeps beside a file.
_BESIDE = ("-wal", "-shm", "-journal")
#: Pages of 4 KiB that are copied in one step.
_PAGES = 1000


def backup(path: str, copy: str, proceed: Callable[[], None] = lambda: None) -> None:
    """Copy the file of a hub, which may be running, to a new file. Raises StorageError, and OSError for the new file.

    The copy is one state of the hub, complete up to a transaction, and on disk when this returns. After an error there
    is no new file. ``proceed`` is called all the time, and may raise an error.
    """
    if not Path(path).exists():
        raise StorageError(f"there is no hub's storage {path}")
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(_connect(path)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as target,
        ):
            # In one transaction: a writer would make a copy in several steps begin again.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            source.backup(target, pages=_PAGES, progress=lambda *done: proceed(), sleep=0)
            target.execute("PRAGMA journal_mode = DELETE")
        _sync(copy)
    except BaseException as error:
        for end in ("", *_BESIDE):
            Path(copy + end).unlink(missing_ok=True)
        if isinstance(error, sqlite3.Error):
            raise explained(path, error) from error
        raise


def _connect(path: str) -> sqlite3.Connection:
    where = f"file:{Path(path).resolve()}?mode=ro"
    return sqlite3.connect(where, uri=True, timeout=10, isolation_level=None)


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
