"""The storage file: open in one process at a time; foreign, newer and damaged files are refused."""

import contextlib
import errno
import fcntl
import os
import sqlite3

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import new_lineage
from headwater_host.hub.storage.sqlite_tables import FIRST_LEADER, SCHEMA
from headwater_host.hub.storage.upgrade import EARLIER, upgrade
from headwater_host.private import prepare
from headwater_host.sqlite import Cause, cause

#: PRAGMA application_id of our files ("HWhu"), and the version of what is in them.
APPLICATION_ID = 0x48576875
VERSION = 4
#: Pages of 4 KiB in the log before SQLite copies them into the file, while a commit waits.
_CHECKPOINT = 1000


class File:
    """``path``, open: ``writer`` for one thread, ``reader`` for another. ``group_readable``: see ``private``. Raises
    StorageError."""

    def __init__(self, path: str, *, group_readable: bool = False):
        self.path = path
        self._closing = contextlib.ExitStack()
        try:
            self._closing.callback(os.close, _lock(path))
            prepare(path, group_readable=group_readable)
            self.writer = self._connect()
            _prepare(self.writer, path)
            self.reader = self._connect()
            self.reader.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            self.close()
            raise explained(path, error) from error
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
        self._closing.callback(_close, db)
        return db

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._closing.close()


def _close(db: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        db.close()


def _lock(path: str) -> int:
    """Lock PATH-lock. SQLite's own lock would also exclude our second connection."""
    try:
        fd = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"the hub's storage {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise StorageError(f"the hub's storage {path} cannot be locked: {error.strerror}") from error
        raise StorageError(f"the hub's storage {path} is in use by another hub") from None
    return fd


def _prepare(db: sqlite3.Connection, path: str) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0 and application == 0:
        _create(db)
    elif application != APPLICATION_ID:
        raise StorageError(f"{path} is an SQLite file, but not a hub's storage")
    elif version != VERSION and version not in EARLIER:
        raise StorageError(
            f"the hub's storage {path} is of version {version}; this program knows versions up to {VERSION}"
        )
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise damaged(path, state)
    if version in EARLIER:
        try:
            upgrade(db, version, VERSION)
        except ValueError as error:
            raise damaged(path, str(error)) from None
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    # Truncate a log that a burst has extended.
    db.execute(f"PRAGMA journal_size_limit = {16 << 20}")


def _create(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(FIRST_LEADER, (new_lineage(),))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def explained(path: str, error: sqlite3.Error) -> StorageError:
    """Return what SQLite reports, as an error for people."""
    why = cause(error)
    if why is Cause.NOT_A_DATABASE:
        return StorageError(f"{path} is no hub's storage: {error}")
    if why is Cause.DAMAGED:
        return damaged(path, str(error))
    return StorageError(f"the hub's storage {path} cannot be opened: {error}")


def damaged(path: str, what: str) -> StorageError:
    """Return the error for a file that does not hold what was written."""
    return StorageError(
        f"the hub's storage {path} is damaged ({' '.join(what.split())}); it was not changed. "
        f"Move it and {path}-wal away to start with an empty one"
    )
