"""An outbox in an SQLite file: what is unacknowledged outlives the process, and the machine's power.

    session = SessionOptions(clean=False, store="meter.db")
    async with Client("broker.local", identifier="meter", session=session) as client:
        ...

The ring in memory is in front (``GrowingOutbox``), and every change goes to the file within a transaction. A client
commits it in a thread (``begin_commit``), and sends nothing before it is committed: the event loop never waits for the
disk, and what has changed during one commit goes with the next. The file belongs to one process at a time and to one
client identifier. ``docs/stores.md`` says more.
"""

import asyncio
import contextlib
import sqlite3
import zlib
from array import array
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from os import PathLike
from types import TracebackType
from typing import Any, TypeVar

from headwater.connection import AT1, AT2, DONE, FREE, REL
from headwater.errors import E_STORE
from headwater.mqtt import spec
from headwater_host.client.backlog import Backlog, Waiting
from headwater_host.client.outbox import OUTBOX_LIMIT, GrowingOutbox
from headwater_host.errors import ArgumentError, StoreError
from headwater_host.mqtt_properties import encode, unblock
from headwater_host.private import prepare
from headwater_host.sqlite import Cause, cause

#: PRAGMA application_id of our files ("HWob"), and the version of what is in them.
APPLICATION_ID = 0x48576F62
VERSION = 1
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, place INTEGER, state INTEGER, packet BLOB, crc INTEGER);
CREATE TABLE received (packet_id INTEGER PRIMARY KEY, crc INTEGER);
"""
# What was never sent (``headwater_host.client.backlog``). Older files have no such table.
_BACKLOG = """
CREATE TABLE IF NOT EXISTS backlog
(seq INTEGER PRIMARY KEY, flags INTEGER, topic BLOB, properties BLOB, payload BLOB, crc INTEGER)
"""
_ABOUT = "INSERT OR REPLACE INTO about VALUES (?, ?)"
_SIZE = 1 << 16
_PUBREL = b"\x62\x02"
# How many bytes that and a packet id are.
_RELEASE = 4
_DUP = 8
_VERSIONS = ("3.1", "3.1.1", "5.0")
#: What ``synchronous`` may be, and SQLite's word for it.
_SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}


_Self = TypeVar("_Self", bound="SqliteOutbox")


class SqliteOutbox(GrowingOutbox):
    """The outbox of the client ``identifier``, in the file ``path``, with what that holds.

    ``protocol`` is the client's version of MQTT: a file that holds messages has them as packets of one, and keeps it.
    ``keeps_over``: "power", each commit is on the disk before anything of it leaves; or "process", which is much
    faster and outlives the end of the process, but not the machine's. ``slots`` is how many messages it takes; a
    file that holds messages keeps the number it was made with, because packet ids depend on it.

    StoreError: another process uses the file; it is damaged, of a later version, or something else altogether; it
    is another client's, or has packets of another version of MQTT. Nothing in the file has been changed then. When it
    cannot be written later on, the methods that return a status return E_STORE, ``error`` says why, and the next
    ``sync`` tries to write all of it.
    """

    #: The protocols whose packets it holds.
    PROTOCOLS: Collection[str] = _VERSIONS

    def __init__(
        self,
        path: "str | PathLike[str]",
        identifier: str,
        *,
        protocol: str = "3.1.1",
        slots: int = 1024,
        keeps_over: str = "power",
        size: int = _SIZE,
        limit: int = OUTBOX_LIMIT,
    ):
        if keeps_over not in _SYNCHRONOUS:
            raise ValueError(f"keeps_over is one of {', '.join(_SYNCHRONOUS)}, not {keeps_over!r}")
        if protocol not in self.PROTOCOLS:
            raise ValueError(f"protocol is one of {', '.join(self.PROTOCOLS)}, not {protocol!r}")
        if not isinstance(path, str | PathLike):
            raise ArgumentError(f"store={path!r}: the path of a file")
        super().__init__(size, slots, limit)
        self.path = str(path)
        self.identifier = identifier
        self.protocol = protocol
        #: The ids of received QoS 2 messages that were open when the file was.
        self.ids = array("H")
        self.received = self
        #: What SQLite said last, when it could not.
        self.error: sqlite3.Error | None = None
        self._open_ids: set[int] = set()
        #: What waits, and was never sent.
        self.backlog = KeptBacklog(self)
        self._seq = 0
        self._rows: dict[int, int] = {}
        self._stale = False
        #: How many changes there were, and how many of them are committed.
        self.position = self.durable = 0
        # The commit that runs in the thread and what it covers; changes meanwhile; who waits for which position.
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[object] | None = None
        self._covers = 0
        self._later: list[tuple[str, tuple[object, ...]]] = []
        self._waiting: list[tuple[int, Callable[[int], object]]] = []
        self._scheduled = False
        # The event loop that is called when a commit is over.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._db = _open(self.path)
        try:
            self._prepare(_SYNCHRONOUS[keeps_over])
            self._load()
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise _explained(self.path, error) from error
        except BaseException:
            self._db.close()
            raise

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        try:
            self.close()
        except StoreError:
            if kind is None:
                raise

    def close(self) -> None:
        """Commit and give the file back; closing twice is harmless. StoreError when it could not be written."""
        if self._db is None:
            return
        status = self.sync()
        self._waiting.clear()
        if self._thread is not None:
            self._thread.shutdown()
        self._db.close()
        self._db = None  # type: ignore[assignment]
        if status:
            raise StoreError(f"the store {self.path} is not up to date: {self.error}")

    # -- opening ---------------------------------------------------------------------------------------------------

    def _prepare(self, synchronous: str) -> None:
        db = self._db
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
            self._about()
            db.execute("COMMIT")
        elif application != APPLICATION_ID:
            raise StoreError(f"{self.path} is an SQLite file of something else than a store of messages")
        elif version != VERSION:
            raise StoreError(
                f"the store {self.path} is of version {version}; this program knows version {VERSION}"
            )
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")

    def _about(self) -> None:
        self._db.executemany(_ABOUT, self._about_rows())

    def _about_rows(self) -> list[tuple[str, object]]:
        about: list[tuple[str, object]] = [
            ("identifier", self.identifier),
            ("slots", self.slots),
            ("fresh", int(self.fresh)),
            ("protocol", self.protocol),
        ]
        about.append(("crc", zlib.crc32(repr(about).encode())))
        return about

    def _load(self) -> None:
        db = self._db
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise _damaged(self.path, state)
        about = dict(db.execute("SELECT name, value FROM about"))
        # Files from before there were versions in them do not say which.
        names = ("identifier", "slots", "fresh", "protocol")
        said = [(name, about.get(name)) for name in names if name in about or name != "protocol"]
        slots = about.get("slots")
        if about.get("crc") != zlib.crc32(repr(said).encode()) or not isinstance(slots, int):
            raise _damaged(self.path, "its description does not make sense")
        if about["identifier"] != self.identifier:
            raise StoreError(
                f"the store {self.path} belongs to the client {about['identifier']!r}, not to {self.identifier!r}"
            )
        rows = db.execute("SELECT seq, place, state, packet, crc FROM outbox ORDER BY seq").fetchall()
        protocol = about.get("protocol", self.protocol)
        waiting = self._load_backlog()
        if (rows or waiting) and _packets(protocol) != _packets(self.protocol):
            raise StoreError(
                f"the store {self.path} holds {len(rows) + len(waiting)} messages as packets of "
                f"{_name(protocol)}: deliver them with that, then use it with {_name(self.protocol)}"
            )
        if rows and slots != self.slots:
            GrowingOutbox.__init__(self, self._first_size, slots, self.limit)
        self.fresh = about["fresh"] == 1
        for packet_id, crc in db.execute("SELECT packet_id, crc FROM received"):
            if crc != _crc(packet_id, 0, 0, b""):
                raise _damaged(self.path, "a received packet id is not what was written")
            self.ids.append(packet_id)
            self._open_ids.add(packet_id)
        used = 0
        for number, row in enumerate(rows):
            if not _is_entry(*row, slots=self.slots):
                raise _damaged(self.path, f"message {number + 1} of {len(rows)} is not what was written")
            used += len(row[3]) or _RELEASE
        # What is there has room, whatever the limit is now.
        self.limit = max(self.limit, used)
        for row in rows:
            self._restore(*row[:4])
        for seq, flags, topic, block, payload, _ in waiting:
            more = self.unpack(block)
            self.backlog.restore(Waiting(seq, topic, payload, flags >> 1, flags & 1 == 1, more))
        db.execute(_BACKLOG)
        self._load_more(db)
        if slots != self.slots or about.get("protocol") != self.protocol:
            db.execute("BEGIN")
            self._about()
            self.position += 1

    def pack(self, more: Any) -> bytes:
        """What else there is of a message that waits (``Waiting.more``), as bytes."""
        return encode(more, 1 << spec.PUBLISH)

    def unpack(self, block: bytes) -> Any:
        """``pack`` undone."""
        return unblock(block) or None

    def _load_more(self, db: sqlite3.Connection) -> None:
        """Read what else a protocol keeps."""

    def _write_more(self, db: sqlite3.Connection) -> None:
        """Write it, within a transaction that writes everything."""

    def _load_backlog(self) -> list[Any]:
        query = "SELECT count(*) FROM sqlite_schema WHERE name = 'backlog'"
        (there,) = self._db.execute(query).fetchone()
        if not there:
            return []
        rows = self._db.execute("SELECT * FROM backlog ORDER BY seq").fetchall()
        for number, row in enumerate(rows):
            if not all(isinstance(part, bytes) for part in row[2:5]) or row[5] != _backlog_crc(*row[:5]):
                what = f"waiting message {number + 1} of {len(rows)} is not what was written"
                raise _damaged(self.path, what)
        return rows

    def _restore(self, seq: int, place: int, state: int, packet: bytes) -> None:
        """Put an entry back where it was."""
        if not self.count:
            self.head = self.next = place
        if self.next != place or self.count == self.slots:
            raise _damaged(self.path, "a message is missing")
        data = bytearray(packet or _PUBREL + (place + 1).to_bytes(2, "big"))
        if packet:
            data[0] |= _DUP
        at = self.reserve(len(data))
        self.buf[at : at + len(data)] = data
        self._rows[super().commit(len(data), state)] = seq
        self._seq = seq

    # -- the contract ----------------------------------------------------------------------------------------------

    def commit(self, n: int, state: int) -> int:
        """Make the packet of ``n`` bytes built at the reserved offset an entry: its index; or E_STORE."""
        i = super().commit(n, state)
        if self._execute(*self._insert(i)):
            self.state[i] = FREE
            self.count -= 1
            self.next = i
            self._free = self.reserved
            return E_STORE
        return i

    def _insert(self, i: int) -> tuple[str, tuple[object, ...]]:
        self._seq += 1
        self._rows[i] = self._seq
        state = self.state[i]
        packet = b"" if state in (REL, DONE) else bytes(self.buf[self.at[i] : self.at[i] + self.size[i]])
        row = (self._seq, i, state, packet, _crc(self._seq, i, state, packet))
        return "INSERT INTO outbox VALUES (?, ?, ?, ?, ?)", row

    def set(self, i: int, state: int) -> int:
        """Change an entry's delivery state: 0, or E_STORE; acknowledged entries leave from the oldest on."""
        seq = self._rows[i]
        before = self.state[i]
        super().set(i, state)
        oldest = self._rows[self.head] if self.count else self._seq + 1
        if seq < oldest:
            return self._execute("DELETE FROM outbox WHERE seq < ?", (oldest,))
        row = (state, b"", _crc(seq, i, state, b""), seq)
        status = self._execute("UPDATE outbox SET state = ?, packet = ?, crc = ? WHERE seq = ?", row)
        if status and state != DONE:
            self.state[i] = before
        return status

    def settle(self) -> int:
        """The other end holds nothing of an earlier life any more: 0, or E_STORE."""
        self.fresh = False
        for row in self._about_rows():
            if self._execute(_ABOUT, row):
                self.fresh = True
                return E_STORE
        return 0

    def clear(self) -> None:
        """Forget every entry."""
        super().clear()
        self._rows.clear()
        self._execute("DELETE FROM outbox", ())

    def opened(self, packet_id: int) -> int:
        """A received message is the application's: 0, or E_STORE."""
        if packet_id in self._open_ids:
            return 0
        self._open_ids.add(packet_id)
        if self._execute("INSERT INTO received VALUES (?, ?)", (packet_id, _crc(packet_id, 0, 0, b""))):
            self._open_ids.discard(packet_id)
            return E_STORE
        return 0

    def closed(self, packet_id: int) -> int:
        """A received id is free again (0: all of them are): 0, or E_STORE."""
        gone = {packet_id} & self._open_ids if packet_id else set(self._open_ids)
        if not gone and not self._stale:
            return 0
        self._open_ids -= gone
        status = self._execute("DELETE FROM received WHERE packet_id = ? OR ? = 0", (packet_id, packet_id))
        if status and packet_id:
            self._open_ids |= gone
        return status

    # -- the file --------------------------------------------------------------------------------------------------

    @property
    def unsynced(self) -> bool:
        """Whether something is not in the file yet."""
        return self._stale or self.position != self.durable

    def begin_commit(self, done: Callable[[int], object]) -> None:
        """Commit everything so far in a thread; then ``done(0)``, or ``done(E_STORE)``, is called on the event loop.

        The commit begins behind this turn of the loop, so that it takes with it what else the turn changes.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # A loop that has ended no longer calls what was scheduled on it.
            self._loop = loop
            self._scheduled = False
            self._finished()
        if not self.unsynced:
            done(0)
            return
        self._waiting.append((self.position, done))
        self._schedule()

    async def stored(self) -> int:
        """Wait until everything so far is committed: 0, or E_STORE."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(status: int) -> None:
            if not waiter.done():
                waiter.set_result(status)

        self.begin_commit(done)
        return await waiter

    def sync(self) -> int:
        """Commit everything so far, and wait for the disk: 0, or E_STORE."""
        if self._running is not None:
            wait([self._running])
            self._finished()
        status = 0
        if self._stale:
            status = self._write_all()
        elif self.unsynced:
            try:
                self._db.execute("COMMIT")
                self.durable = self.position
            except sqlite3.Error as error:
                status = self._failed(error)
        self._notify(status)
        return status

    def _schedule(self) -> None:
        if self._waiting and self._running is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._running is not None or not self._waiting:
            return
        if self._stale or not self.unsynced:
            # All of it, once: as the disk has failed, nobody knows for how long.
            self.sync()
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "store")
        self._covers = self.position
        self._running = self._thread.submit(self._db.execute, "COMMIT")
        self._running.add_done_callback(self._over)

    def _over(self, _: object) -> None:
        """In the thread: the commit is over."""
        # When that loop has ended, the next call finds that the commit is over.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        self._finished()
        self._schedule()

    def _finished(self) -> None:
        """The commit in the thread is over."""
        running = self._running
        if running is None or not running.done():
            return
        self._running = None
        later, self._later = self._later, []
        error = running.exception()
        if isinstance(error, sqlite3.Error):
            self._notify(self._failed(error))
            return
        if error is not None:
            raise error
        self.durable = self._covers
        try:
            for statement, values in later:
                self._begin()
                self._db.execute(statement, values)
        except sqlite3.Error as failure:
            self._failed(failure)
        self._notify(0)

    def _notify(self, status: int) -> None:
        """Tell those for whom something is committed; all of them when it has failed."""
        waiting, self._waiting = self._waiting, []
        for position, done in waiting:
            if status or position <= self.durable:
                # The loop of one that waited may have ended.
                with contextlib.suppress(RuntimeError):
                    done(status)
            else:
                self._waiting.append((position, done))

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        """Do this within the transaction, or in the next one while a commit is running.

        When the file is behind the memory already, all of it is written instead.
        """
        if self._running is not None:
            self._finished()
        self.position += 1
        if self._running is not None:
            self._later.append((statement, values))
            return 0
        if self._stale:
            return self._write_all()
        try:
            self._begin()
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            return self._failed(error)
        return 0

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")

    def _write_all(self) -> int:
        db = self._db
        try:
            db.execute("BEGIN")
            db.execute("DELETE FROM outbox")
            db.execute("DELETE FROM received")
            db.execute("DELETE FROM backlog")
            self._about()
            self._write_more(db)
            for k in range(self.count):
                i = (self.head + k) % self.slots
                db.execute(*self._insert(i))
            ids = [(packet_id, _crc(packet_id, 0, 0, b"")) for packet_id in self._open_ids]
            db.executemany("INSERT INTO received VALUES (?, ?)", ids)
            for message in self.backlog.queue:
                db.execute(*self.backlog.row(message))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            return self._failed(error)
        self._stale = False
        self.durable = self.position
        return 0

    def _failed(self, error: sqlite3.Error) -> int:
        self.error = error
        self._stale = True
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        return E_STORE


class KeptBacklog(Backlog):
    """A backlog in the file of an outbox: a message goes from the one to the other within a transaction."""

    def __init__(self, box: SqliteOutbox):
        super().__init__()
        self._box = box

    def is_ready(self) -> bool:
        """As of ``Backlog``: a store that is behind writes all of it, in a transaction of its own."""
        return not self._box._stale or self._box.sync() == 0

    def row(self, message: Waiting) -> tuple[str, tuple[object, ...]]:
        """The statement that writes a message, and its values."""
        flags = message.qos << 1 | message.retain
        row = (message.seq, flags, message.topic, self._box.pack(message.more), message.payload)
        return "INSERT INTO backlog VALUES (?, ?, ?, ?, ?, ?)", (*row, _backlog_crc(*row))

    def _keep(self, message: Waiting) -> int:
        return self._box._execute(*self.row(message))

    def _forget(self, message: Waiting) -> None:
        self._box._execute("DELETE FROM backlog WHERE seq = ?", (message.seq,))


def _backlog_crc(seq: object, flags: object, topic: bytes, block: bytes, payload: bytes) -> int:
    return _crc(seq, flags, (len(topic), len(block)), topic + block + payload)


def _packets(protocol: object) -> object:
    """By what its packets can be told: those of MQTT 3.1 and 3.1.1 are the same."""
    return "3.1.1" if protocol == "3.1" else protocol


def _name(protocol: object) -> str:
    return f"MQTT {protocol}" if protocol in _VERSIONS else str(protocol).upper()


def _crc(seq: object, place: object, state: object, packet: bytes) -> int:
    """SQLite does not see when a bit of a value changes."""
    return zlib.crc32(packet, zlib.crc32(repr((seq, place, state)).encode()))


def _is_entry(seq: object, place: object, state: object, packet: object, crc: object, *, slots: int) -> bool:
    return (
        isinstance(seq, int)
        and isinstance(place, int)
        and isinstance(packet, bytes)
        and 0 <= place < slots
        and state in (AT1, AT2, REL, DONE)
        and (state in (REL, DONE)) == (packet == b"")
        and crc == _crc(seq, place, state, packet)
    )


def _open(path: str) -> sqlite3.Connection:
    """Open the file, for us alone until it is closed."""
    db = None
    try:
        prepare(path)
        # The client stays with one thread at a time; it need not be the one that opened the file.
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise _explained(path, error) from error
    return db


def _explained(path: str, error: sqlite3.Error) -> StoreError:
    why = cause(error)
    if why is Cause.BUSY:
        return StoreError(f"the store {path} is in use: it belongs to one client at a time")
    if why is Cause.NOT_A_DATABASE:
        return StoreError(f"{path} is no store of messages: {error}")
    if why is Cause.DAMAGED:
        return _damaged(path, str(error))
    return StoreError(f"the store {path} cannot be opened: {error}")


def _damaged(path: str, what: str) -> StoreError:
    return StoreError(
        f"the store {path} is damaged ({' '.join(what.split())}); it has not been touched. "
        f"Move it away, with {path}-wal, to begin anew"
    )
