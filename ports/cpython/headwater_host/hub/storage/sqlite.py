"""The storage in one SQLite file, which one process has open."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, TypeVar

from headwater_host.hub.errors import FencedError, StorageError
from headwater_host.hub.storage.contract import Leader, Mark, Row, Transaction
from headwater_host.hub.storage.file import File, damaged, explained
from headwater_host.hub.storage.records import COLUMNS, change_size, encoded, message_size, pack_ids, row
from headwater_host.hub.storage.sqlite_tables import STATEMENTS, last_seq

#: Rows that are inserted by one statement: SQLite had at most 999 values in one once.
_TOGETHER = 256 if sqlite3.sqlite_version_info >= (3, 32) else 64
#: Larger payloads are inserted one by one: a statement keeps a copy of what it inserted last.
_LARGE = 64 << 10
#: Messages that are read in one piece.
_AT_ONCE = 1000
_FENCE = "UPDATE leader SET turn = ?1 WHERE epoch = ?2 AND turn = ?1 - 1"
_MESSAGE = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHANGE = "INSERT INTO changes VALUES (?, ?, ?)"
_GONE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_RETAIN = """INSERT OR REPLACE INTO retained (seq, id, topic, queue, flags, time, tags, payload, crc)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_Result = TypeVar("_Result")
_kind = itemgetter(0)


def _is_large(message: Row) -> bool:
    return len(message[7]) > _LARGE


class SqliteEngine:
    """An engine of ``contract``: ``file`` has one connection for the writer's thread and one for the event loop."""

    def __init__(self, file: File):
        self.name = file.path
        self.file = file
        self._epoch = 0
        #: The transaction with the last COMMIT: it may have happened though it failed.
        self._unclear = 0

    @classmethod
    def open(cls, path: str, *, group_readable: bool = False) -> "SqliteEngine":
        """Open a file, or make it. Raises StorageError."""
        return cls(File(path, group_readable=group_readable))

    # -- the leader --------------------------------------------------------------------------------------------------

    def leader(self) -> Leader:
        """Return the row ``leader``."""
        with self._reading():
            found = self.file.reader.execute("SELECT epoch, turn, lineage FROM leader").fetchall()
        if len(found) != 1:
            raise self.damaged(f"the table leader has {len(found)} rows")
        return Leader(*found[0])

    def lead(self, epoch: int | None) -> int:
        """Begin to write: the file's lock keeps others away."""
        found = self.leader()
        if epoch is not None and epoch != found.epoch:
            raise FencedError(f"the hub's storage {self.name} is in epoch {found.epoch}, not in {epoch}")
        self._epoch = found.epoch
        return found.turn

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, transaction: Transaction) -> None:
        """Write a transaction, or nothing."""
        db = self.file.writer
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                if self._fence(db, transaction.number):
                    _write(db, transaction)
                self._unclear = transaction.number
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StorageError(str(error)) from error

    def _fence(self, db: sqlite3.Connection, number: int) -> bool:
        """Move the turn; return whether the transaction is still to be written. Raises FencedError."""
        if db.execute(_FENCE, (number, self._epoch)).rowcount == 1:
            return True
        found = db.execute("SELECT epoch, turn FROM leader").fetchall()
        if found == [(self._epoch, number)] and self._unclear == number:
            return False
        raise FencedError(
            f"the hub's storage {self.name} was written by another hub: epoch and turn are {found}, "
            f"not {(self._epoch, number - 1)}"
        )

    # -- reading -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explained(self.name, error) from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the file."""
        reader = self.file.reader
        with self._reading():
            reader.execute("BEGIN")
        try:
            yield
        finally:
            with self._reading():
                reader.execute("COMMIT")

    def consistently(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of reads in one snapshot."""
        with self.snapshot():
            return read()

    def last(self) -> int:
        """Return the sequence number of the last change."""
        with self._reading():
            return last_seq(self.file.reader)

    def _query(self, query: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        with self._reading():
            yield from self.file.reader.execute(query, values)

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table, the checksum last."""
        return self._query(f"SELECT * FROM {table}")

    def leaving(self) -> list[int]:
        """Return the numbers of deleted topics that have messages left."""
        return [number for (number,) in self._query("SELECT topic FROM leaving")]

    def index(self) -> Iterator[list[tuple[int, int, int, int, int]]]:
        """Yield all messages by sequence number."""
        size = "length(payload) + length(id) + length(tags)"
        with self._reading():
            found = self.file.reader.execute(
                f"SELECT topic, queue, seq, {size}, time FROM messages ORDER BY seq"
            )
            while some := found.fetchmany(_AT_ONCE):
                yield some

    def retained(self) -> Iterator[Row]:
        """Yield the retained messages."""
        return self._query(f"SELECT {COLUMNS} FROM retained")

    def ids(self) -> Iterator[tuple[bytes, int]]:
        """Yield the remembered ids, newest first."""
        return self._query("SELECT ids, crc FROM seen ORDER BY seq DESC")

    def read(self, seqs: Sequence[int]) -> list[Row]:
        """Return messages."""
        marks = ",".join("?" * len(seqs))
        return list(self._query(f"SELECT {COLUMNS} FROM messages WHERE seq IN ({marks})", seqs))

    def changes_after(self, seq: int, limit: int, size: int) -> list[tuple[int, str, str]]:
        """Return the first changes after a sequence number."""
        return self._first("SELECT * FROM changes", seq, limit, size, change_size)

    def messages_after(self, seq: int, limit: int, size: int) -> list[Row]:
        """Return the first messages after a sequence number."""
        return self._first(f"SELECT {COLUMNS} FROM messages", seq, limit, size, message_size)

    def retained_after(self, seq: int, limit: int, size: int) -> list[Row]:
        """Return the first retained messages after a sequence number."""
        return self._first(f"SELECT {COLUMNS} FROM retained", seq, limit, size, message_size)

    def _first(self, query: str, seq: int, limit: int, size: int, size_of: Callable[[Row], int]) -> list[Any]:
        """Return rows until they have ``size`` bytes."""
        found: list[Any] = []
        for one in self._query(f"{query} WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit)):
            found.append(one)
            size -= size_of(one)
            if size <= 0:
                break
        return found

    def ids_after(self, seq: int) -> Iterator[tuple[bytes, int]]:
        """Yield the remembered ids after a sequence number and more, oldest first."""
        return self._query("SELECT ids, crc FROM seen WHERE seq > ? ORDER BY seq", (seq,))

    def turn_after(self, seq: int) -> int | None:
        """Return the first last change of a transaction that is not before a change."""
        ((found,),) = self._query("SELECT min(seq) FROM turns WHERE seq >= ?", (seq,))
        return None if found is None else int(found)

    def mark(self, seq: int) -> Mark:
        """Return the state of the file, which no other hub writes."""
        return Mark(0, self.last(), 0)

    def damaged(self, what: str) -> StorageError:
        """Return the error for a file that does not hold what was written."""
        return damaged(self.name, what)

    # -- the end -----------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Do nothing: there is no server."""

    def close(self) -> None:
        """Close the file. May be called twice."""
        self.file.close()


def _write(db: sqlite3.Connection, transaction: Transaction) -> None:
    for large, some in groupby(map(row, transaction.messages, transaction.topics), _is_large):
        if large:
            db.executemany(_MESSAGE, some)
        else:
            _insert(db, _MESSAGE, list(some))
    if transaction.seen:
        db.execute("INSERT INTO seen VALUES (?, ?, ?)", pack_ids(transaction.seen))
    for topic, retained in transaction.retained.items():
        if retained is None:
            db.execute("DELETE FROM retained WHERE topic = ?", (topic,))
        else:
            db.execute(_RETAIN, retained)
    for kind, several in groupby(transaction.statements, _kind):
        rows = [values for _, values in several]
        for statement in STATEMENTS[kind]:
            if statement.startswith("INSERT"):
                _insert(db, statement, rows)
            else:
                db.executemany(statement, rows)
    db.execute("INSERT OR IGNORE INTO turns VALUES (?)", (transaction.last,))
    if transaction.gone:
        db.execute(_GONE, (encoded(transaction.gone),))
    _insert(db, _CHANGE, transaction.changes)


def _insert(db: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert rows. After each statement the thread waits for the interpreter, so there are few: with ``_TOGETHER``
    rows, and for the rest with half as many each time, so that SQLite knows them all."""
    more = ", " + statement[statement.rindex("(") :]
    at, size = 0, _TOGETHER
    while at < len(rows):
        while size > len(rows) - at:
            size //= 2
        db.execute(statement + more * (size - 1), list(chain.from_iterable(rows[at : at + size])))
        at += size
