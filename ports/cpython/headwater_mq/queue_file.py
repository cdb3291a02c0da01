"""The file of a local queue manager: who uses it, transactions, and what SQLite says, in IBM's reason codes.

Several processes, and several connections of one, may use a file at a time. Each call is one short transaction, so that
nobody waits for somebody's unit of work: what that has put and got stands in the file, marked with the connection's
number. Beside the file each connection holds a lock on a file of its own; where that lock is free, or its file is not
there, the connection is gone, and whoever finds it so backs out what it left (``sweep``).
"""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater_host.lifetime import MACHINE, AgeClock, Clocks
from headwater_host.mq import CMQC
from headwater_host.mq.errors import MQMIError, failed
from headwater_host.private import prepare
from headwater_host.sqlite import Cause, cause, one_line
from headwater_mq import messages
from headwater_mq.attributes import QueueManagerAttributes, dump, load

#: PRAGMA application_id of our files ("HWmq"), and the version of what is in them.
APPLICATION_ID = 0x48576D71
VERSION = 1
#: How long a call waits for other connections' calls, in s.
_BUSY = 30
#: Pages of SQLite's log, of 4 KiB, after which it goes to the file.
_CHECKPOINT = 128
#: Ids are given out in blocks: one write to the file for so many.
_BLOCK = 4096

_EXPLAINED = {
    Cause.DAMAGED: (CMQC.MQRC_Q_MGR_NOT_AVAILABLE, "{path} is damaged ({text})"),
    Cause.NOT_A_DATABASE: (CMQC.MQRC_Q_MGR_NOT_AVAILABLE, "{path} is no file of queues: {text}"),
    Cause.FULL: (CMQC.MQRC_STORAGE_MEDIUM_FULL, "{path}: {text}"),
    Cause.BUSY: (CMQC.MQRC_RESOURCE_PROBLEM, f"{{path}} has been busy for {_BUSY} s"),
    Cause.CANNOT_OPEN: (CMQC.MQRC_Q_MGR_NOT_AVAILABLE, "{path} cannot be opened: {text}"),
}
# What its module raises: also where its text of an error has bytes of a damaged file.
_OF_SQLITE = (sqlite3.Error, UnicodeDecodeError)
# ``rank`` is the negative priority, so that (rank, id) is the order of a queue. ``put_by`` and ``taken_by`` are the
# connection in whose unit of work a message was put or got, or 0. ``aside`` is the reason why nobody gets it, or 0.
# ``depth`` counts what is not taken. The data are the last column: what is in front is read without them.
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE connections (id INTEGER PRIMARY KEY AUTOINCREMENT, process TEXT);
CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT UNIQUE, attributes TEXT, depth INTEGER DEFAULT 0);
CREATE TABLE opens (connection INTEGER, handle INTEGER, queue INTEGER, input INTEGER, output INTEGER,
 PRIMARY KEY (connection, handle)) WITHOUT ROWID;
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, rank INTEGER, put_by INTEGER,
 taken_by INTEGER, aside INTEGER, backouts INTEGER, expires INTEGER, group_id BLOB, seq INTEGER, place INTEGER,
 flags INTEGER, msg_id BLOB, correl_id BLOB, length INTEGER, crc INTEGER, md BLOB, body BLOB);
CREATE INDEX in_order ON messages (queue, rank, id) WHERE taken_by = 0 AND aside = 0;
CREATE INDEX by_group ON messages (queue, group_id, seq, place) WHERE group_id IS NOT NULL;
CREATE INDEX by_msg_id ON messages (queue, msg_id);
CREATE INDEX by_correl_id ON messages (queue, correl_id) WHERE correl_id IS NOT NULL;
CREATE INDEX by_expiry ON messages (queue, expires) WHERE expires IS NOT NULL;
CREATE INDEX by_put ON messages (put_by) WHERE put_by;
CREATE INDEX by_taken ON messages (taken_by) WHERE taken_by;
CREATE TRIGGER came AFTER INSERT ON messages
 BEGIN UPDATE queues SET depth = depth + 1 WHERE id = new.queue; END;
CREATE TRIGGER went AFTER DELETE ON messages WHEN old.taken_by = 0
 BEGIN UPDATE queues SET depth = depth - 1 WHERE id = old.queue; END;
CREATE TRIGGER taken AFTER UPDATE OF taken_by ON messages WHEN (old.taken_by = 0) != (new.taken_by = 0)
 BEGIN UPDATE queues SET depth = depth + iif(new.taken_by, -1, 1) WHERE id = new.queue; END
"""


class QueueFile:
    """``path``, opened as one connection of the queue manager; made, with ``wanted``, when it is not there.

    ``power``: whether what is durable must outlive the machine's power, and not only the process. The connections of a
    file may differ in that. ``clocks``: the machine's, or a test's. ``group_readable``: see ``private``.
    MQRC_Q_MGR_NOT_AVAILABLE: it cannot be opened, is damaged or something else altogether.
    """

    def __init__(
        self,
        path: "str | os.PathLike[str]",
        wanted: QueueManagerAttributes,
        *,
        create: bool = True,
        power: bool = True,
        clocks: Clocks | None = None,
        group_readable: bool = False,
    ):
        self.path = os.fspath(path)
        # Whoever opens the file by another name, or goes to another folder, must find the same locks, as with SQLite's.
        self._locks = f"{os.path.realpath(self.path)}-user"
        self.connection = 0
        self._lock = -1
        self._ids = (0, 0)
        self._born = 0
        self._power = self._durable = power
        self._swept = 0.0
        self._clocks = clocks or MACHINE
        self._age = AgeClock("", self._clocks)
        if not create and not Path(self.path).exists():
            raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"there is no file {self.path}")
        db: sqlite3.Connection | None = None
        try:
            prepare(self.path, group_readable=group_readable)
            db = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            self.db = db
            _prepare(db, self.path, wanted if create else None, "FULL" if power else "NORMAL")
            (text,) = db.execute("SELECT value FROM about WHERE name = 'attributes'").fetchone()
            try:
                self.attributes = load(QueueManagerAttributes, text, "the queue manager")
            except MQMIError as error:
                raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"{self.path}: {error.detail}") from error
            (self._born,) = db.execute("SELECT value FROM about WHERE name = 'born'").fetchone()
            self._register()
            self.sweep()
            self._recount()
        except BaseException as error:
            if db is not None:
                db.close()
            self._unlock()
            if isinstance(error, sqlite3.Error | TypeError | ValueError):
                raise explained(self.path, error) from error
            raise

    def close(self) -> None:
        """Back out what is not committed, and give the file back; twice is harmless."""
        if self.connection:
            # First of all its file goes: none is left when the process is killed in the middle.
            Path(self._lock_path(self.connection)).unlink(missing_ok=True)
            with contextlib.suppress(MQMIError), self.transaction(durable=False):
                self.forget(self.connection)
            self._unlock()
            self.connection = 0
        self.db.close()

    # -- transactions --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """A transaction that writes. ``durable``: it is on the disk when this ends; otherwise with the next that is,
        and the end of the process does it no harm. Nothing has happened when it raises."""
        db = self.db
        try:
            durable = durable and self._power
            if durable != self._durable:
                db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._begin("BEGIN IMMEDIATE")
            yield db
            if self._age.is_due:
                self._keep_age(db)
            db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            # A block of ids may have been taken in it.
            self._ids = (0, 0)
            if isinstance(error, _OF_SQLITE):
                raise explained(self.path, error) from error
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the file, and changes nothing."""
        try:
            self._begin("BEGIN")
            yield self.db
        except _OF_SQLITE as error:
            raise explained(self.path, error) from error
        finally:
            with contextlib.suppress(sqlite3.Error):
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def _begin(self, how: str) -> None:
        if self.db.in_transaction:
            # The exception of a signal's handler comes anywhere: it has kept the call before from ending its own.
            self.db.execute("ROLLBACK")
        self.db.execute(how)

    def now(self) -> int:
        """Age time in ms, by which messages expire: nobody can set it."""
        return self._age.now() // 1_000_000

    def wall(self) -> int:
        """Ms since 1970, as the machine has been told."""
        return self._clocks.wall() // 1_000_000

    def _open_age(self, db: sqlite3.Connection) -> None:
        """Within a transaction: go on with the age time of the file."""
        if db.execute("SELECT 1 FROM about WHERE name = 'age'").fetchone():
            self._age = AgeClock(self._kept_age(db), self._clocks)
        else:
            # The file is new, or an earlier program has written to it, by the wall clock: nobody knows how much of each
            # Expiry is over.
            messages.renew(db, self.now())
            # What a gateway has not put together yet (``reassembly.spill``) is in the same file.
            if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'assembly_group'").fetchone():
                db.execute("UPDATE assembly_group SET touched = ?", (self.now() / 1000,))
        self._write_age(db)

    def _keep_age(self, db: sqlite3.Connection) -> None:
        """Within a transaction: write the age time down. Another process may know of more that has passed."""
        self._age.join(self._kept_age(db))
        self._write_age(db)

    def _kept_age(self, db: sqlite3.Connection) -> str:
        """What the file says. Raises TypeError."""
        found = db.execute("SELECT value FROM about WHERE name = 'age'").fetchone()
        try:
            AgeClock(found[0] or "-", self._clocks)
        except ValueError as error:
            raise TypeError(str(error)) from error
        return str(found[0])

    def _write_age(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO about VALUES ('age', ?)", (self._age.kept(),))

    def state(self) -> tuple[int, int]:
        """Is another one when anybody has changed the file."""
        try:
            (version,) = self.db.execute("PRAGMA data_version").fetchone()
        except _OF_SQLITE as error:
            raise explained(self.path, error) from error
        return version, self.db.total_changes

    def size(self) -> int:
        """Return how many bytes of the file are in use."""
        (pages,), (free,), (size,) = (
            self.db.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def new_id(self, db: sqlite3.Connection) -> bytes:
        """24 bytes that no other id of this queue manager has: ``AMQ ``, its name, and a number."""
        at, end = self._ids
        if at == end:
            found: Any = db.execute("SELECT value FROM about WHERE name = 'ids'").fetchone() or (None,)
            if not all(isinstance(one, int) for one in (*found, self._born)):
                raise explained(self.path, TypeError("it does not say what the next id is"))
            (at,) = found
            end = at + _BLOCK
            # Numbers begin anew where the file has no room for more.
            db.execute("UPDATE about SET value = ? WHERE name = 'ids'", (end & (1 << 62) - 1,))
        self._ids = (at + 1, end)
        name = self.attributes.QMgrName.encode()[:12].ljust(12)
        # A program that runs for one put takes a block as well: 32 bits of numbers are not for ever.
        return b"AMQ " + name + ((self._born << 32) + at & 0xFFFFFFFF_FFFFFFFF).to_bytes(8, "big")

    # -- connections ---------------------------------------------------------------------------------------------------

    def _lock_path(self, number: int) -> str:
        return f"{self._locks}{number}"

    def _register(self) -> None:
        with self.transaction(durable=False) as db:
            made = db.execute("INSERT INTO connections (process) VALUES (?)", (str(os.getpid()),))
            assert made.lastrowid
            self.connection = made.lastrowid
            self._open_age(db)
            path = self._lock_path(self.connection)
            try:
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                for last in _turns():
                    try:
                        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        # A process that was killed here had this number, and lets go of the file a moment earlier.
                        if last:
                            raise
                    else:
                        break
            except OSError as error:
                raise failed(
                    CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"{path} cannot be locked: {error.strerror}"
                ) from error

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def sweep(self) -> bool:
        """Back out what connections that are gone have left; whether there was one. Looks once a second at most."""
        now = time.monotonic()
        if now - self._swept < 1 and self._swept:
            return False
        self._swept = now
        with self.reading() as db:
            others = db.execute("SELECT id FROM connections WHERE id != ?", (self.connection,)).fetchall()
        gone = [number for (number,) in others if self._is_gone(number)]
        if gone:
            for number in gone:
                Path(self._lock_path(number)).unlink(missing_ok=True)
            with self.transaction(durable=True):
                for number in gone:
                    self.forget(number)
        return bool(gone)

    def _recount(self) -> None:
        """A depth that cannot be is counted anew: it says nothing that is not in the file."""
        wrong = "typeof(depth) != 'integer' OR depth < 0"
        with self.reading() as db:
            if not db.execute(f"SELECT 1 FROM queues WHERE {wrong}").fetchone():
                return
        count = "SELECT count(*) FROM messages WHERE queue = queues.id AND taken_by = 0"
        with self.transaction(durable=False) as db:
            db.execute(f"UPDATE queues SET depth = ({count}) WHERE {wrong}")

    def _is_gone(self, number: int) -> bool:
        try:
            fd = os.open(self._lock_path(number), os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            # Shared: whoever else looks at the same time must not take us for the connection.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """Within a transaction: back out what a connection has not committed, and strike it out."""
        backout(self.db, number)
        self.db.execute("DELETE FROM opens WHERE connection = ?", (number,))
        self.db.execute("DELETE FROM connections WHERE id = ?", (number,))


def commit(db: sqlite3.Connection, connection: int) -> None:
    """Within a transaction: end a connection's unit of work."""
    db.execute("DELETE FROM messages WHERE taken_by = ?", (connection,))
    db.execute("UPDATE messages SET put_by = 0 WHERE put_by = ?", (connection,))


def backout(db: sqlite3.Connection, connection: int) -> None:
    """Within a transaction: undo a connection's unit of work."""
    db.execute("DELETE FROM messages WHERE put_by = ?", (connection,))
    db.execute("UPDATE messages SET taken_by = 0, backouts = backouts + 1 WHERE taken_by = ?", (connection,))


def _prepare(
    db: sqlite3.Connection, path: str, wanted: QueueManagerAttributes | None, synchronous: str
) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0 and application == 0:
        if wanted is None:
            # Whoever is making it knows what it is to be.
            raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"there is nothing in {path} yet")
        _to_wal(db)
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("BEGIN IMMEDIATE")
        # Somebody else may have been first.
        if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            _create(db, wanted)
        db.execute("COMMIT")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"{path} is an SQLite file of something else")
    if version != VERSION:
        raise failed(
            CMQC.MQRC_Q_MGR_NOT_AVAILABLE,
            f"{path} is of version {version}; this program knows version {VERSION}",
        )
    _to_wal(db)
    db.execute(f"PRAGMA synchronous = {synchronous}")
    # A get need not write over the bytes that it frees, as some builds of SQLite do: as much again as the message, and
    # room for it on a disk that may be full.
    db.execute("PRAGMA secure_delete = OFF")
    # A durable put writes some 30 KB of pages, whatever its size: with SQLite's default of 1000 pages the log of 100
    # puts is ten times their data. A checkpoint every 512 KiB costs two more syncs in 13 puts or so.
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    # What a burst made of the log is given back.
    db.execute(f"PRAGMA journal_size_limit = {64 << 20}")


def _turns() -> Iterator[bool]:
    """Times to try what SQLite, or the system, does not wait for by itself, and whether it is the last time."""
    until = time.monotonic() + _BUSY
    while time.monotonic() < until:
        yield False
        time.sleep(0.01)
    yield True


def _to_wal(db: sqlite3.Connection) -> None:
    """The file in WAL mode; when several make it at a time, the others' turn is waited for here.

    A connection that changes the mode reads first and then wants the file for itself. Two of them would wait for each
    other, so SQLite tells one that the file is locked, at once, whatever the time-out is.
    """
    for last in _turns():
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if last or cause(error) is not Cause.BUSY:
                raise
        else:
            return


def _create(db: sqlite3.Connection, wanted: QueueManagerAttributes) -> None:
    for statement in _statements():
        db.execute(statement)
    # Drawn, and not the time: machines that are switched on together, or have no clock, make files in one second.
    about = {"attributes": dump(wanted), "born": secrets.randbits(32), "ids": 1}
    db.executemany("INSERT INTO about VALUES (?, ?)", about.items())
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def _statements() -> Iterator[str]:
    statement = ""
    for line in _SCHEMA.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    yield statement


def explained(path: str, error: Exception) -> MQMIError:
    """Return what SQLite reports as one of IBM's reason codes, with a text for people."""
    why, text = cause(error), one_line(error)
    if why is Cause.CANNOT_OPEN:
        folder = Path(path).parent
        text = text if folder.is_dir() else f"there is no folder {folder}"
    reason, says = _EXPLAINED.get(why, (CMQC.MQRC_RESOURCE_PROBLEM, "{path}: {text}"))
    return failed(reason, says.format(path=path, text=text))
