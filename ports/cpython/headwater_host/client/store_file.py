"""The SQLite file of a store: open it, tell what it is, and prove that each row is what was written."""

import sqlite3
import zlib
from collections.abc import Callable

from headwater.connection import AT1, AT2, DONE, REL
from headwater_host.errors import StoreError
from headwater_host.private import prepare
from headwater_host.sqlite import Cause, cause

#: PRAGMA application_id of a store ("HWob"), and the version of its tables.
APPLICATION_ID = 0x48576F62
VERSION = 1
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, place INTEGER, state INTEGER, packet BLOB, crc INTEGER);
CREATE TABLE received (packet_id INTEGER PRIMARY KEY, crc INTEGER);
"""
#: Unsent messages (``headwater_host.client.backlog``). The oldest files have no such table.
BACKLOG = """
CREATE TABLE IF NOT EXISTS backlog
(seq INTEGER PRIMARY KEY, flags INTEGER, topic BLOB, properties BLOB, payload BLOB, crc INTEGER)
"""


def open_file(path: str) -> sqlite3.Connection:
    """Open the file, and lock it until it is closed. Raises StoreError."""
    db = None
    try:
        prepare(path)
        # One thread at a time uses the connection; it need not be the one that opened it.
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise explained(path, error) from error
    return db


def prepare_tables(
    db: sqlite3.Connection, path: str, synchronous: str, write_about: Callable[[sqlite3.Connection], object]
) -> None:
    """Make the tables of a new file, or check that the file is a store. Raises StoreError.

    ``write_about`` writes the description of the store; ``synchronous`` is SQLite's setting.
    """
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0 and application == 0:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        write_about(db)
        db.execute("COMMIT")
    elif application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file, but no store of messages")
    elif version != VERSION:
        raise StoreError(f"the store {path} has version {version}; this program knows version {VERSION}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")


def explained(path: str, error: sqlite3.Error) -> StoreError:
    """Return the error to raise for an error of SQLite."""
    why = cause(error)
    if why is Cause.BUSY:
        return StoreError(f"the store {path} is in use: it belongs to one client at a time")
    if why is Cause.NOT_A_DATABASE:
        return StoreError(f"{path} is no store of messages: {error}")
    if why is Cause.DAMAGED:
        return damaged(path, str(error))
    return StoreError(f"the store {path} cannot be opened: {error}")


def damaged(path: str, what: str) -> StoreError:
    """Return the error to raise for a damaged file; ``what`` says which part of it."""
    return StoreError(
        f"the store {path} is damaged ({' '.join(what.split())}); it has not been changed. "
        f"Move it away, with {path}-wal, to start with an empty one"
    )


def row_crc(seq: object, place: object, state: object, packet: bytes) -> int:
    """Return the checksum of a row: SQLite does not notice a changed bit in a value."""
    return zlib.crc32(packet, zlib.crc32(repr((seq, place, state)).encode()))


def backlog_crc(seq: object, flags: object, topic: bytes, block: bytes, payload: bytes) -> int:
    """Return the checksum of a row of the backlog."""
    return row_crc(seq, flags, (len(topic), len(block)), topic + block + payload)


def is_entry(seq: object, place: object, state: object, packet: object, check: object, *, slots: int) -> bool:
    """Return whether a row of the outbox is what was written."""
    return (
        isinstance(seq, int)
        and isinstance(place, int)
        and isinstance(packet, bytes)
        and 0 <= place < slots
        and state in (AT1, AT2, REL, DONE)
        and (state in (REL, DONE)) == (packet == b"")
        and check == row_crc(seq, place, state, packet)
    )
