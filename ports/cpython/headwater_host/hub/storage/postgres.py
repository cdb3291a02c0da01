"""The storage in a PostgreSQL database, which several hubs may share: one of them writes.

Each transaction begins with the fence, which moves the turn of the row ``leader``. A lost connection leaves the outcome
of the last COMMIT unknown. The next ``write`` therefore reconnects, terminates the old connection in the server, and
makes a write of its own to the row. When that commits, everything before it is as safe as the settings promise, and the
row tells the last turn. Nothing is written twice.

The event loop waits for reads of messages, at most ``READ_S``. When the database does not answer in this time, reads
fail at once until it does.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from headwater_host.hub.errors import FencedError, StorageError
from headwater_host.hub.storage import postgres_tables as tables
from headwater_host.hub.storage.contract import Leader, Mark, Row, Transaction
from headwater_host.hub.storage.libpq import first_line, shut_down
from headwater_host.hub.storage.records import COLUMNS, new_lineage, pack_ids, row

#: Seconds that the event loop waits for messages.
READ_S = 0.25
#: Seconds that a statement waits for a lock: another hub may have a transaction open, or be cut off.
LOCK_S = 5.0
#: Seconds that a hub which begins to lead waits for a standby.
LEAD_S = 10.0
#: Messages from which on they are written by COPY, which takes two more round trips.
COPY_FROM = 64
#: Messages that are read in one piece.
_AT_ONCE = 10_000
#: Parameters of the connection unless the URL has them. A server that is gone is noticed in 10 s.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}
#: Settings of each connection.
_SETTINGS = {
    "client_min_messages": "warning",
    "synchronous_commit": "on",
    "lock_timeout": f"{LOCK_S}s",
    "statement_timeout": "0",
}
_SET = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)"
#: Which hub may write, where no lease says so.
_LOCK = 0x4857_6875

#: It fails by a division by zero if another hub leads: the rest of the pipeline is on its way already.
_FENCE = """
    WITH moved AS (UPDATE leader SET turn = %(turn)s WHERE epoch = %(epoch)s AND turn = %(turn)s - 1 RETURNING 1)
    SELECT 1 / count(*), current_setting('synchronous_standby_names') FROM moved"""
#: The write of one's own. It changes nothing, but has to be committed.
_PROBE = "UPDATE leader SET turn = turn WHERE epoch = %s RETURNING turn"
_TAKE = "UPDATE leader SET epoch = epoch + 1, turn = 0, beat = beat + 1, holder = '' RETURNING epoch"
#: The session with the lock, if its transaction waits for a standby: then the server does not notice its client's end.
_WAITS = """SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid IN (
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s::oid AND objid = 1)"""
_TERMINATE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()"""
#: The first rows after a sequence number, until they have a number of bytes. It reads no others.
_FIRST = """SELECT {columns} FROM {table} WHERE seq > %s AND seq <= (
        SELECT max(seq) FROM (
            SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before
            FROM (SELECT seq, {size} AS size FROM {table} WHERE seq > %s ORDER BY seq LIMIT %s) AS first) AS sums
        WHERE before < %s)
    ORDER BY seq"""
_MESSAGE_SIZE = "length(tags) + length(payload)"
_MARK = """SELECT coalesce((SELECT epoch FROM turns WHERE seq >= %s AND %s > 0 ORDER BY seq LIMIT 1), 0),
    coalesce((SELECT max(seq) FROM turns), 0),
    coalesce((SELECT value FROM counters WHERE name = 'followed'), '0')"""

_Result = TypeVar("_Result")
_kind = itemgetter(0)


class _Server(NamedTuple):
    """One of the servers that a URL names."""

    host: str
    hostaddr: str
    port: str


class _Connection:
    """A connection for one thread at a time. Another thread may call ``abort``."""

    def __init__(self, url: str, application_name: str, server: "_Server | None" = None):
        """Connect to a server of the URL, or to ``server``."""
        given = conninfo_to_dict(url)
        more: dict[str, Any] = {name: value for name, value in _DEFAULTS.items() if name not in given}
        if server is not None:
            more |= {name: value for name, value in server._asdict().items() if value}
        self.db = psycopg.connect(url, autocommit=True, **more)
        info = self.db.info
        self.server = _Server(info.host, info.hostaddr, str(info.port))
        self._warnings: list[str] = []
        self.db.add_notice_handler(self._notice)
        # Set here, since a role or a database may have other values.
        with self.limited(LOCK_S):
            settings = _SETTINGS | {"application_name": application_name}
            self.db.execute(_SET, (list(settings), list(settings.values())))

    def _notice(self, notice: errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning without a text")

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Raise StorageError if the server warns: it reports a cancelled wait for the standby as a success, with a
        warning."""
        self._warnings.clear()
        yield
        if self._warnings:
            raise StorageError(f"the database committed with a warning: {'; '.join(self._warnings)}")

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Cancel what takes longer, and end the connection when that takes as long again. A statement's time-out of
        PostgreSQL does not apply to COMMIT."""
        timers = [threading.Timer(seconds, self._cancel), threading.Timer(2 * seconds, self.abort)]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _cancel(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            self.db.cancel_safe(timeout=5)

    def abort(self) -> None:
        """Let what waits for the server fail."""
        shut_down(self.db)

    def close(self) -> None:
        """Close it; the server ends what it is doing."""
        with contextlib.suppress(psycopg.Error):
            self.db.close()


class _Reader:
    """Reads for the event loop, in a thread: the event loop waits at most ``READ_S``, and not at all while there is no
    connection. ``server``: the server to read from; None for one that accepts writes."""

    def __init__(self, connect: "Callable[[_Server | None], _Connection]"):
        self._connect = connect
        self.server: _Server | None = None
        self._thread = ThreadPoolExecutor(1, "headwater-hub-reads")
        self.connection: _Connection | None = connect(None)
        #: Connecting again.
        self._repair: Future[None] | None = None
        #: Why there is no connection.
        self._lost = ""

    def ask(self, query: Callable[[psycopg.Connection], _Result]) -> _Result:
        """Return what a query finds. Raises StorageError, and psycopg.Error."""
        if self._repair is not None:
            if not self._repair.done():
                raise StorageError(self._lost)
            failed, self._repair = self._repair.exception(), None
            if failed is not None:
                self._mend(f"the database does not answer: {first_line(failed)}")
        connection = self.connection
        assert connection is not None
        if self.server not in (None, connection.server):
            # After a failover, two servers may seem to accept writes.
            self._mend("the database is another server now")
        asked = self._thread.submit(query, connection.db)
        try:
            return asked.result(READ_S)
        except TooLate:
            connection.abort()
            self._mend(f"the database did not answer in {READ_S} s")
        except Exception as error:
            if connection.db.closed:
                self._mend(first_line(error))
            raise

    def _mend(self, why: str) -> NoReturn:
        """Connect again in the thread. Raises StorageError."""
        self._lost = why
        self._repair = self._thread.submit(self._again)
        raise StorageError(why)

    def _again(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = self._connect(self.server)

    def follow(self, server: _Server) -> None:
        """Read from a server from now on; connect to it. Nothing else is read meanwhile."""
        self.server = server
        if self.connection is None or self.connection.server != server:
            self._again()

    def close(self) -> None:
        """End the thread, and close the connection."""
        if self.connection is not None:
            self.connection.abort()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.connection is not None:
            self.connection.close()


class PostgresEngine:
    """An engine of ``contract``. ``standby``: commit nothing where PostgreSQL does not wait for a standby."""

    def __init__(self, url: str, *, standby: bool = False):
        self._url = url
        self._standby = standby
        #: Why nothing is written any more.
        self._ended: StorageError | None = None
        self._writer: _Connection | None = None
        self._epoch = 0
        #: True if no lease but a lock says who writes.
        self._locks = False
        self.name = "PostgreSQL"
        with self._explaining():
            self.name = _shown(url)
            self._reader = _Reader(partial(_Connection, url, "headwater hub reader"))
        try:
            with self._explaining():
                connection = self._reader.connection
                assert connection is not None
                # A commit may wait for a standby.
                with connection.limited(LEAD_S):
                    self._prepare(connection.db)
            self._lineage = self.leader().lineage
        except BaseException:
            self.close()
            raise

    def _loading(self) -> psycopg.Connection:
        connection = self._reader.connection
        if connection is None or connection.db.closed:
            raise StorageError(f"the hub's storage {self.name} does not answer")
        return connection.db

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (errors.UndefinedTable, errors.UndefinedColumn) as error:
            raise self.damaged(first_line(error)) from error
        except psycopg.Error as error:
            raise StorageError(f"the hub's storage {self.name}: {first_line(error)}") from error

    def _prepare(self, db: psycopg.Connection) -> None:
        """Create the tables in an empty database, or check their version."""
        (encoding,) = _one(db, "SHOW server_encoding")
        if encoding != "UTF8":
            raise StorageError(f"the hub's storage {self.name} has the encoding {encoding}; it needs UTF8")
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
            (there,) = _one(db, "SELECT to_regclass('hub_storage')")
            if there is None:
                try:
                    for statement in tables.SCHEMA.split(";"):
                        db.execute(statement.encode())
                except errors.DuplicateTable as error:
                    raise StorageError(
                        f"{self.name} is another program's database: {first_line(error)}"
                    ) from error
                db.execute("INSERT INTO hub_storage VALUES (%s)", (tables.VERSION,))
                db.execute("INSERT INTO leader VALUES (0, 0, 0, '', 0, %s)", (new_lineage(),))
        (version,) = _one(db, "SELECT version FROM hub_storage")
        if version != tables.VERSION:
            raise StorageError(
                f"the hub's storage {self.name} is of version {version}; this program knows version {tables.VERSION}"
            )

    # -- the leader --------------------------------------------------------------------------------------------------

    def leader(self) -> Leader:
        """Return the row ``leader``."""
        with self._explaining():
            found = self._loading().execute("SELECT epoch, turn, lineage FROM leader").fetchall()
        if len(found) != 1:
            raise self.damaged(f"the table leader has {len(found)} rows")
        return Leader(*found[0])

    def lead(self, epoch: int | None) -> int:
        """Begin to write in an epoch, which a lease has begun. None: begin an epoch, unless another hub has the lock.

        Waits for the database, so call it in a thread where that matters.
        """
        with self._explaining():
            self._drop()
            self._locks = epoch is None
            try:
                self._epoch = self._take() if epoch is None else epoch
                connection = self._connect()
                with connection.limited(LEAD_S):
                    turn = self._probe(connection)
                self._reader.follow(connection.server)
                return turn
            except BaseException:
                self._drop()
                raise

    def _take(self) -> int:
        """Begin an epoch, and return it."""
        connection = self._writer = _Connection(self._url, self._application(None))
        if self._ended is not None:
            raise self._ended
        with connection.limited(LEAD_S), connection.committing():
            self._exclude(connection.db)
            (epoch,) = _one(connection.db, _TAKE)
        self._drop()
        return int(epoch)

    def _exclude(self, db: psycopg.Connection) -> None:
        """Have no other hub write that has no lease either. Raises StorageError."""
        try:
            # It waits for as long as the server needs to end a connection that was lost.
            db.execute("SELECT pg_advisory_lock(%s, 1)", (_LOCK,))
        except errors.LockNotAvailable:
            why = "is in use by another hub"
            if _all(db, _WAITS, _LOCK):
                why += ", or by one that has ended: its session waits for a synchronous standby"
            raise StorageError(f"the hub's storage {self.name} {why}") from None

    def _application(self, epoch: int | None) -> str:
        return f"headwater hub {self._lineage} epoch {'-' if epoch is None else epoch} writer"

    def _connect(self) -> _Connection:
        """Connect the writer."""
        self._drop()
        connection = self._writer = _Connection(self._url, self._application(self._epoch))
        if self._reader.server is not None:
            self._reader.server = connection.server
        if self._ended is not None:
            raise self._ended
        return connection

    def _probe(self, connection: _Connection) -> int:
        """Return the turn that is committed. Raises FencedError."""
        db = connection.db
        # The server may not have noticed that our last connection is gone: its transaction would go on.
        db.execute(_TERMINATE, (self._application(self._epoch),))
        if self._locks:
            self._exclude(db)
        if self._standby:
            self._check_standby(*_one(db, "SHOW synchronous_standby_names"))
        with connection.committing():
            found = db.execute(_PROBE, (self._epoch,)).fetchall()
        if len(found) != 1:
            self._fence(f"it is not in epoch {self._epoch} any more")
        return int(found[0][0])

    def _check_standby(self, names: str) -> None:
        if not names:
            raise StorageError(
                f"the hub's storage {self.name} has no synchronous standby: synchronous_standby_names is empty"
            )

    def _fence(self, why: str) -> NoReturn:
        self._ended = FencedError(f"another hub leads with the storage {self.name}: {why}")
        raise self._ended

    def _drop(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            connection.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, transaction: Transaction) -> None:
        """Write a transaction, or nothing."""
        if self._ended is not None:
            raise self._ended
        try:
            with self._explaining():
                if self._writer is None:
                    turn = self._probe(self._connect())
                    if turn == transaction.number:
                        return  # the COMMIT whose answer was lost
                    if turn != transaction.number - 1:
                        self._fence(f"its turn is {turn} instead of {transaction.number - 1}")
                self._write(self._writer, transaction)
        except BaseException:
            # What became of the transaction is looked up with a new connection.
            self._drop()
            raise

    def _write(self, connection: "_Connection | None", transaction: Transaction) -> None:
        assert connection is not None
        db = connection.db
        rows = list(map(row, transaction.messages, transaction.topics))
        with connection.committing():
            try:
                if len(rows) < COPY_FROM:
                    with db.pipeline():
                        fence = self._begin(db, transaction.number)
                        _insert(db, tables.MESSAGE, rows)
                        commit = _finish(db, transaction)
                else:
                    # COPY ends a pipeline.
                    with db.pipeline():
                        fence = self._begin(db, transaction.number)
                    _copy(db, rows)
                    with db.pipeline():
                        commit = _finish(db, transaction)
            except errors.DivisionByZero:
                self._fence(f"its turn is not {transaction.number - 1} of epoch {self._epoch}")
        if commit.statusmessage != "COMMIT":
            raise StorageError(f"the hub's storage {self.name} did not commit: {commit.statusmessage}")
        if self._standby:
            found = fence.fetchone()
            assert found is not None
            self._check_standby(found[1])

    def _begin(self, db: psycopg.Connection, turn: int) -> psycopg.Cursor[Row]:
        db.execute("BEGIN")
        return db.execute(_FENCE, {"turn": turn, "epoch": self._epoch})

    # -- reading -----------------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the database."""
        db = self._loading()
        with self._explaining():
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            with self._explaining():
                db.execute("COMMIT")

    def _pieces(self, query: str, size: int = _AT_ONCE) -> Iterator[list[Row]]:
        """Yield many rows at once. Only in a snapshot."""
        cursor = self._loading().cursor("pieces", binary=True)
        try:
            with self._explaining():
                cursor.execute(query.encode())
                while some := cursor.fetchmany(size):
                    yield some
        finally:
            # The connection may be lost.
            with contextlib.suppress(psycopg.Error):
                cursor.close()

    def last(self) -> int:
        """Return the sequence number of the last change."""
        with self._explaining():
            found = [
                _one(self._loading(), f"SELECT coalesce(max(seq), 0) FROM {table}")
                for table in ("messages", "seen", "changes")
            ]
        return max(int(seq) for (seq,) in found)

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table, the checksum last."""
        reads = tables.READS[table]
        for some in self._pieces(f"SELECT * FROM {table}"):
            for *values, crc in some:
                try:
                    yield (*(read(value) for read, value in zip(reads, values, strict=True)), crc)
                except (TypeError, ValueError) as error:
                    raise self.damaged(f"a row of {table} is not what was written") from error

    def leaving(self) -> list[int]:
        """Return the numbers of deleted topics that have messages left."""
        with self._explaining():
            return [number for (number,) in self._loading().execute("SELECT topic FROM leaving")]

    def index(self) -> Iterator[list[tuple[int, int, int, int, int]]]:
        """Yield all messages by sequence number."""
        size = "octet_length(payload) + octet_length(id) + octet_length(tags)"
        return self._pieces(f"SELECT topic, queue, seq, {size}, time FROM messages ORDER BY seq")

    def retained(self) -> Iterator[Row]:
        """Yield the retained messages."""
        for some in self._pieces(f"SELECT {COLUMNS} FROM retained"):
            yield from some

    def ids(self) -> Iterator[tuple[bytes, int]]:
        """Yield the remembered ids, newest first."""
        for some in self._pieces("SELECT ids, crc FROM seen ORDER BY seq DESC"):
            yield from some

    def read(self, seqs: Sequence[int]) -> list[Row]:
        """Return messages. Waits at most ``READ_S``."""
        query = f"SELECT {COLUMNS} FROM messages WHERE seq = ANY(%s)"
        with self._explaining():
            return self._reader.ask(lambda db: _all(db, query, list(seqs)))

    def consistently(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of reads in one snapshot. Waits at most ``READ_S``."""

        def query(db: psycopg.Connection) -> _Result:
            with self.snapshot():
                return read()

        with self._explaining():
            return self._reader.ask(query)

    def changes_after(self, seq: int, limit: int, size: int) -> list[tuple[int, str, str]]:
        """Return the first changes after a sequence number."""
        return self._first("changes", "seq, kind, body", "length(body)", seq, limit, size)

    def messages_after(self, seq: int, limit: int, size: int) -> list[Row]:
        """Return the first messages after a sequence number."""
        return self._first("messages", COLUMNS, _MESSAGE_SIZE, seq, limit, size)

    def retained_after(self, seq: int, limit: int, size: int) -> list[Row]:
        """Return the first retained messages after a sequence number."""
        return self._first("retained", COLUMNS, _MESSAGE_SIZE, seq, limit, size)

    def _first(self, table: str, columns: str, size_of: str, seq: int, limit: int, size: int) -> list[Any]:
        query = _FIRST.format(table=table, columns=columns, size=size_of)
        with self._explaining():
            return _all(self._loading(), query, seq, seq, limit, size)

    def ids_after(self, seq: int) -> Iterator[tuple[bytes, int]]:
        """Yield the remembered ids after a sequence number and more, oldest first."""
        for some in self._pieces(f"SELECT ids, crc FROM seen WHERE seq > {int(seq)} ORDER BY seq", 100):
            yield from some

    def turn_after(self, seq: int) -> int | None:
        """Return the first last change of a transaction that is not before a change."""
        with self._explaining():
            ((found,),) = _all(self._loading(), "SELECT min(seq) FROM turns WHERE seq >= %s", seq)
        return None if found is None else int(found)

    def mark(self, seq: int) -> Mark:
        """Return the state of the database, for a follower whose last change is ``seq``."""
        with self._explaining():
            ((epoch, last, forgotten),) = _all(self._loading(), _MARK, seq, seq)
        try:
            return Mark(epoch, last, int(forgotten))
        except ValueError:
            raise self.damaged("a row of counters is not what was written") from None

    def damaged(self, what: str) -> StorageError:
        """Return the error for a database that does not hold what was written."""
        return StorageError(
            f"the hub's storage {self.name} is damaged ({what}); it was not changed. Restore a backup of the database"
        )

    # -- the end -----------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Let what waits for the database fail, in any thread. Nothing is written afterwards."""
        self._ended = self._ended or StorageError(f"the hub's storage {self.name} is closed")
        for connection in (self._writer, self._reader.connection):
            if connection is not None:
                connection.abort()

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._drop()
        self._reader.close()


def _shown(url: str) -> str:
    """Return what a URL names, without a user and a password."""
    given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    hosts = (given.get("host") or given.get("hostaddr") or "localhost").split(",")
    ports = given.get("port", "").split(",")
    if len(ports) < len(hosts):
        ports = ports[:1] * len(hosts)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    return f"postgresql://{','.join(places)}/{given.get('dbname', '')}"


def _one(db: psycopg.Connection, query: str) -> Row:
    found = db.execute(query.encode()).fetchone()
    assert found is not None
    return found


def _all(db: psycopg.Connection, query: str, *values: object) -> list[Row]:
    return db.execute(query.encode(), values, binary=True).fetchall()


def _copy(db: psycopg.Connection, rows: Sequence[Row]) -> None:
    with (
        db.cursor() as cursor,
        cursor.copy(f"COPY messages ({COLUMNS}) FROM STDIN (FORMAT BINARY)".encode()) as copy,
    ):
        copy.set_types(tables.MESSAGE_TYPES)
        for one in rows:
            copy.write_row(one)


def _insert(db: psycopg.Connection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        db.execute(statement.encode(), [list(column) for column in zip(*rows, strict=True)])


def _finish(db: psycopg.Connection, transaction: Transaction) -> psycopg.Cursor[Row]:
    """Write all but the messages, and commit."""
    if transaction.seen:
        db.execute("INSERT INTO seen VALUES (%s, %b, %s)", pack_ids(transaction.seen))
    kept = [values for values in transaction.retained.values() if values is not None]
    _insert(db, tables.RETAIN, kept)
    cleared = [topic for topic, values in transaction.retained.items() if values is None]
    if cleared:
        db.execute("DELETE FROM retained WHERE topic = ANY(%s)", (cleared,))
    for kind, several in groupby(transaction.statements, _kind):
        done = tables.STATEMENTS[kind]
        columns = done.parameters(tables.expanded(kind, [values for _, values in several]))
        for statement in done.sql:
            db.execute(statement.encode(), columns)
    if transaction.gone:
        db.execute("DELETE FROM messages WHERE seq = ANY(%s)", (list(transaction.gone),))
    # A transaction without changes belongs to those before it.
    db.execute("INSERT INTO turns SELECT %s, epoch FROM leader ON CONFLICT DO NOTHING", (transaction.last,))
    _insert(db, tables.CHANGE, transaction.changes)
    return db.execute("COMMIT")
