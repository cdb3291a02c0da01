"""The SQLite file of a local queue manager: connections, transactions, errors as IBM's reason codes.

Several processes and several connections may use a file at the same time. Each call is one short transaction, so no
connection waits for another's unit of work: its puts and gets are in the file, marked with the connection's number.
Each connection locks a file of its own beside the database. If that lock is free or its file is missing, the connection
is gone, and the next one backs out its unit of work (``sweep``).
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

#: PRAGMA application_id ("HWmq") and user_version of the file. docs/ibm-mq-queue.md lists what reads which version.
APPLICATION_ID = 0x48576D71
VERSION = 1
#: How long a call waits for the calls of other connections, in s.
_BUSY = 30
#: Pages of 4 KiB in SQLite's log that start a checkpoint.
_CHECKPOINT = 128
#: Ids are reserved in blocks of this size, with one write each.
_BLOCK = 4096

_EXPLAINED = {
    Cause.DAMAGED: (CMQC.MQRC_Q_MGR_NOT_AVAILABLE, "{path} is damaged ({text})"),
    Cause.NOT_A_DATABASE: (CMQC.MQRC_Q_MGR_NOT_AVAILABLE, "{path} is not a queue file: {text}"),
    Cause.FULL: (CMQC.MQRC_STORAGE_MEDIUM_FULL, "{path}: {text}"),
    Cause.BUSY: (CMQC.MQRC_RESOURCE_PROBLEM, f"{{path}} has been busy for {_BUSY} s"),
    Cause.CANNOT_OPEN: (CMQC.MQRC_Q_MGR_NOT_AVAILABLE, "{path} cannot be opened: {text}"),
}
# sqlite3 raises UnicodeDecodeError if its error text has bytes of a damaged file.
_OF_SQLITE = (sqlite3.Error, UnicodeDecodeError)
# (rank, id) is the order of a queue: ``rank`` is the negative priority. ``put_by`` and ``taken_by`` are the connection
# in whose unit of work a message was put or got, or 0. ``aside`` is the reason why a message is set aside, or 0.
# ``depth`` counts messages that are not taken. The data are the last column, so that others are read without them.
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
    """One connection to a queue file; creates a missing file with the attributes ``wanted`` unless ``create`` is false.

    ``power``: whether durable transactions are synced; connections of a file may differ. ``clocks``: the machine's, or
    a test's. ``group_readable``: see ``headwater_host.private``. Raises MQRC_Q_MGR_NOT_AVAILABLE if the file cannot be
    opened, is damaged, or is not a queue file.
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
        # Every path to the file, from any working directory, must lead to the same locks.
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
            raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"{self.path} does not exist")
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
        """Back out the unit of work and close the file. A second call does nothing."""
        if self.connection:
            # Remove the lock file first, so that a kill in between leaves no lock file.
            Path(self._lock_path(self.connection)).unlink(missing_ok=True)
            with contextlib.suppress(MQMIError), self.transaction(durable=False):
                self.forget(self.connection)
            self._unlock()
            self.connection = 0
        self.db.close()

    # -- transactions --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """Run a write transaction, undone if it raises. ``durable``: synced at the end; otherwise the next durable
        one syncs it, and only a power cut loses it."""
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
            # The transaction may have reserved a block of ids.
            self._ids = (0, 0)
            if isinstance(error, _OF_SQLITE):
                raise explained(self.path, error) from error
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run a read transaction."""
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
            # A signal handler's exception has kept the previous call from ending its transaction.
            self.db.execute("ROLLBACK")
        self.db.execute(how)

    def now(self) -> int:
        """Return the age time in ms, which setting the clock does not change."""
        return self._age.now() // 1_000_000

    def wall(self) -> int:
        """Return the wall clock in ms since 1970."""
        return self._clocks.wall() // 1_000_000

    def _open_age(self, db: sqlite3.Connection) -> None:
        """Continue the age time of the file, within a transaction."""
        if db.execute("SELECT 1 FROM about WHERE name = 'age'").fetchone():
            self._age = AgeClock(self._kept_age(db), self._clocks)
        else:
            # A new file, or one by an earlier program that used the wall clock: how much of each Expiry has passed is
            # unknown.
            messages.renew(db, self.now())
            # A gateway keeps incomplete messages in the same file (``reassembly.spill``).
            if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'assembly_group'").fetchone():
                db.execute("UPDATE assembly_group SET touched = ?", (self.now() / 1000,))
        self._write_age(db)

    def _keep_age(self, db: sqlite3.Connection) -> None:
        """Write the age time, within a transaction; another process may have counted further."""
        self._age.join(self._kept_age(db))
        self._write_age(db)

    def _kept_age(self, db: sqlite3.Connection) -> str:
        """Return the age time in the file. Raises TypeError."""
        found = db.execute("SELECT value FROM about WHERE name = 'age'").fetchone()
        try:
            AgeClock(found[0] or "-", self._clocks)
        except ValueError as error:
            raise TypeError(str(error)) from error
        return str(found[0])

    def _write_age(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO about VALUES ('age', ?)", (self._age.kept(),))

    def state(self) -> tuple[int, int]:
        """Return a value that differs after any change of the file."""
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
        """Return a new id of 24 bytes: ``AMQ ``, the name of the queue manager, a number."""
        at, end = self._ids
        if at == end:
            found: Any = db.execute("SELECT value FROM about WHERE name = 'ids'").fetchone() or (None,)
            if not all(isinstance(one, int) for one in (*found, self._born)):
                raise explained(self.path, TypeError("the next id is missing"))
            (at,) = found
            end = at + _BLOCK
            # The number wraps where SQLite has no larger integer.
            db.execute("UPDATE about SET value = ? WHERE name = 'ids'", (end & (1 << 62) - 1,))
        self._ids = (at + 1, end)
        name = self.attributes.QMgrName.encode()[:12].ljust(12)
        # Programs that put once also use a block, so 32 bits of numbers can wrap.
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
                        # A process that was killed here had this number; its lock ends a moment later.
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
        """Back out units of work of connections that are gone; tell whether there was one. Checks once a second."""
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
        """Recount impossible depths."""
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
            # Shared, so that two sweeps at the same time do not take each other for the connection.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """Back out a connection's unit of work and remove the connection, within a transaction."""
        backout(self.db, number)
        self.db.execute("DELETE FROM opens WHERE connection = ?", (number,))
        self.db.execute("DELETE FROM connections WHERE id = ?", (number,))


def commit(db: sqlite3.Connection, connection: int) -> None:
    """Commit a connection's unit of work, within a transaction."""
    db.execute("DELETE FROM messages WHERE taken_by = ?", (connection,))
    db.execute("UPDATE messages SET put_by = 0 WHERE put_by = ?", (connection,))


def backout(db: sqlite3.Connection, connection: int) -> None:
    """Back out a connection's unit of work, within a transaction."""
    db.execute("DELETE FROM messages WHERE put_by = ?", (connection,))
    db.execute("UPDATE messages SET taken_by = 0, backouts = backouts + 1 WHERE taken_by = ?", (connection,))


def _prepare(
    db: sqlite3.Connection, path: str, wanted: QueueManagerAttributes | None, synchronous: str
) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0 and application == 0:
        if wanted is None:
            # Another process is creating the file.
            raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"{path} is empty")
        _to_wal(db)
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("BEGIN IMMEDIATE")
        # Another process may have been first.
        if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            _create(db, wanted)
        db.execute("COMMIT")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise failed(CMQC.MQRC_Q_MGR_NOT_AVAILABLE, f"{path} is an SQLite file of another program")
    if version != VERSION:
        raise failed(
            CMQC.MQRC_Q_MGR_NOT_AVAILABLE,
            f"{path} is of version {version}; this program knows version {VERSION}",
        )
    _to_wal(db)
    db.execute(f"PRAGMA synchronous = {synchronous}")
    # Some builds of SQLite overwrite freed bytes: that doubles the writes of a get, and needs room on a full disk.
    db.execute("PRAGMA secure_delete = OFF")
    # A durable put writes about 30 KB of pages. With SQLite's default of 1000 pages the log grows to ten times the data
    # of 100 puts; a checkpoint every 512 KiB costs two more syncs in about 13 puts.
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    # Truncate the log after a burst.
    db.execute(f"PRAGMA journal_size_limit = {64 << 20}")


def _turns() -> Iterator[bool]:
    """Yield at each attempt, for ``_BUSY`` seconds, whether it is the last one."""
    until = time.monotonic() + _BUSY
    while time.monotonic() < until:
        yield False
        time.sleep(0.01)
    yield True


def _to_wal(db: sqlite3.Connection) -> None:
    """Switch the file to WAL mode, waiting for other connections that do so.

    Two connections that switch the mode would deadlock, so SQLite refuses one at once, whatever its timeout.
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
    # Random, not the time: machines without a clock create files in the same second.
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
