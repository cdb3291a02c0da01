"""The SQLite outbox.

    session = SessionOptions(clean_start=False, store="meter.db")
    async with Client("broker.local", identifier="meter", session=session) as client:
        ...

A ring in memory (``GrowingOutbox``) has the same content. Every change is written within a transaction, which a client
commits in a thread (``begin_commit``); it sends nothing before that. The file belongs to one process at a time and to
one client identifier (``docs/stores.md``).
"""

import sqlite3
import zlib
from array import array
from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

from headwater.connection import DONE, FREE, REL
from headwater.errors import E_STORE
from headwater.fmq.frames import NO_TAGS
from headwater.mqtt import spec
from headwater_host.client.backlog import Backlog, Waiting
from headwater_host.client.group_commit import GroupCommit, Statement
from headwater_host.client.outbox import OUTBOX_LIMIT, GrowingOutbox
from headwater_host.client.store_file import (
    BACKLOG,
    backlog_crc,
    damaged,
    explained,
    is_entry,
    open_file,
    prepare_tables,
    row_crc,
)
from headwater_host.errors import ArgumentError, StoreError
from headwater_host.mqtt_properties import encode, unblock

_ABOUT = "INSERT OR REPLACE INTO about VALUES (?, ?)"
_SIZE = 1 << 16
_PUBREL = b"\x62\x02"
# The size of PUBREL.
_RELEASE = 4
_DUP = 8
_VERSIONS = ("3.1", "3.1.1", "5.0")
_PROTOCOLS = (*_VERSIONS, "fmq")
_IDS = """
CREATE TABLE IF NOT EXISTS ids (id INTEGER PRIMARY KEY CHECK (id = 0), process BLOB, ceiling INTEGER, crc INTEGER)
"""
#: What a store survives: a power failure, or only the end of the process.
KeepsOver: TypeAlias = Literal["power", "process"]
# SQLite's setting ``synchronous``.
_SYNCHRONOUS: dict[str, str] = {"power": "FULL", "process": "NORMAL"}


_Self = TypeVar("_Self", bound="SqliteOutbox")


class SqliteOutbox(GrowingOutbox):
    """The outbox of the client ``identifier`` in the file ``path``.

    - ``protocol``: the client's version of MQTT, or "fmq". A file with messages keeps it: it has them as packets.
    - ``keeps_over``: "power": each commit is on the disk before any of its messages is sent. "process": much faster,
      and survives the end of the process, but not a power failure.
    - ``slots``: the number of messages. A file with messages keeps its number, because packet identifiers depend on it.
    - ``size``, ``limit``: the sizes of the ring in memory, in bytes.

    Raises StoreError, and leaves the file unchanged, if another process uses it, if it is damaged, of a later version
    or no store, if it belongs to another client, or if it has packets of another version of MQTT. If the file cannot be
    written later, methods return E_STORE, ``error`` is the cause, and the next ``sync`` writes everything.
    """

    def __init__(
        self,
        path: "str | PathLike[str]",
        identifier: str,
        *,
        protocol: str = "3.1.1",
        slots: int = 1024,
        keeps_over: KeepsOver = "power",
        size: int = _SIZE,
        limit: int = OUTBOX_LIMIT,
    ):
        if keeps_over not in _SYNCHRONOUS:
            raise ValueError(f"keeps_over is one of {', '.join(_SYNCHRONOUS)}, not {keeps_over!r}")
        if protocol not in _PROTOCOLS:
            raise ValueError(f"protocol is one of {', '.join(_PROTOCOLS)}, not {protocol!r}")
        if not isinstance(path, str | PathLike):
            raise ArgumentError(f"store={path!r}: the path of a file")
        super().__init__(size, slots, limit)
        self.path = str(path)
        self.identifier = identifier
        self.protocol = protocol
        #: The packet identifiers of received QoS 2 messages that were unreleased when the file was opened.
        self.ids = array("H")
        self.received = self
        self._qos2_ids: set[int] = set()
        #: Messages that wait and were never sent.
        self.backlog = StoredBacklog(self)
        self._seq = 0
        self._rows: dict[int, int] = {}
        self._closed = False
        db = open_file(self.path)
        #: The file's transactions.
        self.commits = GroupCommit(db, self._write_all)
        self.message_ids = StoredIds(self.commits) if protocol == "fmq" else None
        try:
            prepare_tables(db, self.path, _SYNCHRONOUS[keeps_over], self._write_about)
            self._load(db)
        except sqlite3.DatabaseError as error:
            db.close()
            raise explained(self.path, error) from error
        except BaseException:
            db.close()
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
        """Commit and close the file; closing twice is harmless. Raises StoreError when it could not be written."""
        if self._closed:
            return
        self._closed = True
        if self.commits.close():
            raise StoreError(f"the store {self.path} is not up to date: {self.error}")

    # -- opening ---------------------------------------------------------------------------------------------------

    def _write_about(self, db: sqlite3.Connection) -> None:
        db.executemany(_ABOUT, self._about_rows())

    def _about_rows(self) -> list[tuple[str, object]]:
        about: list[tuple[str, object]] = [
            ("identifier", self.identifier),
            ("slots", self.slots),
            ("fresh", int(self.fresh)),
            ("protocol", self.protocol),
        ]
        about.append(("crc", zlib.crc32(repr(about).encode())))
        return about

    def _load(self, db: sqlite3.Connection) -> None:
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise damaged(self.path, state)
        about = dict(db.execute("SELECT name, value FROM about"))
        # The oldest files have no version of MQTT.
        names = ("identifier", "slots", "fresh", "protocol")
        said = [(name, about.get(name)) for name in names if name in about or name != "protocol"]
        slots = about.get("slots")
        if about.get("crc") != zlib.crc32(repr(said).encode()) or not isinstance(slots, int):
            raise damaged(self.path, "its description does not make sense")
        if about["identifier"] != self.identifier:
            raise StoreError(
                f"the store {self.path} belongs to the client {about['identifier']!r}, not to {self.identifier!r}"
            )
        rows = db.execute("SELECT seq, place, state, packet, crc FROM outbox ORDER BY seq").fetchall()
        protocol = about.get("protocol", self.protocol)
        waiting = self._load_backlog(db)
        if (rows or waiting) and _packets(protocol) != _packets(self.protocol):
            raise StoreError(
                f"the store {self.path} holds {len(rows) + len(waiting)} messages as packets of "
                f"{protocol_name(protocol)}: deliver them with that, then use it with {protocol_name(self.protocol)}"
            )
        if rows and slots != self.slots:
            GrowingOutbox.__init__(self, self._first_size, slots, self.limit)
        self.fresh = about["fresh"] == 1
        for packet_id, crc in db.execute("SELECT packet_id, crc FROM received"):
            if crc != row_crc(packet_id, 0, 0, b""):
                raise damaged(self.path, "a received packet id is not what was written")
            self.ids.append(packet_id)
            self._qos2_ids.add(packet_id)
        used = 0
        for number, row in enumerate(rows):
            if not is_entry(*row, slots=self.slots):
                raise damaged(self.path, f"message {number + 1} of {len(rows)} is not what was written")
            used += len(row[3]) or _RELEASE
        # Stored messages are kept even if they exceed the limit.
        self.limit = max(self.limit, used)
        for row in rows:
            self._restore(*row[:4])
        for seq, flags, topic, block, payload, _ in waiting:
            more = self.unpack(block)
            self.backlog.restore(Waiting(seq, topic, payload, flags >> 1, flags & 1 == 1, more))
        db.execute(BACKLOG)
        if self.message_ids is not None:
            self.message_ids.load(db, self.path)
        if slots != self.slots or about.get("protocol") != self.protocol:
            db.execute("BEGIN")
            self._write_about(db)
            self.commits.position += 1

    def pack(self, more: Any) -> bytes:
        """Encode ``Waiting.more``: properties or tags."""
        return bytes(more or NO_TAGS) if self.protocol == "fmq" else encode(more, 1 << spec.PUBLISH)

    def unpack(self, block: bytes) -> Any:
        """Decode what ``pack`` has encoded."""
        if self.protocol == "fmq":
            return block if block != NO_TAGS else b""
        return unblock(block) or None

    def _load_backlog(self, db: sqlite3.Connection) -> list[Any]:
        query = "SELECT count(*) FROM sqlite_schema WHERE name = 'backlog'"
        (there,) = db.execute(query).fetchone()
        if not there:
            return []
        rows = db.execute("SELECT * FROM backlog ORDER BY seq").fetchall()
        for number, row in enumerate(rows):
            if not all(isinstance(part, bytes) for part in row[2:5]) or row[5] != backlog_crc(*row[:5]):
                what = f"waiting message {number + 1} of {len(rows)} is not what was written"
                raise damaged(self.path, what)
        return rows

    def _restore(self, seq: int, place: int, state: int, packet: bytes) -> None:
        """Restore an entry at its place."""
        if not self.count:
            self.head = self.next = place
        if self.next != place or self.count == self.slots:
            raise damaged(self.path, "a message is missing")
        data = bytearray(packet or _PUBREL + (place + 1).to_bytes(2, "big"))
        if packet:
            data[0] |= _DUP
        at = self.reserve(len(data))
        self.buf[at : at + len(data)] = data
        self._rows[super().commit(len(data), state)] = seq
        self._seq = seq

    # -- the contract ----------------------------------------------------------------------------------------------

    def commit(self, n: int, state: int) -> int:
        """Make the packet of ``n`` bytes at the reserved offset an entry. Returns its index or E_STORE."""
        i = super().commit(n, state)
        if self.commits.execute(*self._insert(i)):
            self.state[i] = FREE
            self.count -= 1
            self.next = i
            self._free = self.reserved
            return E_STORE
        return i

    def _insert(self, i: int) -> Statement:
        self._seq += 1
        self._rows[i] = self._seq
        state = self.state[i]
        packet = b"" if state in (REL, DONE) else bytes(self.buf[self.at[i] : self.at[i] + self.size[i]])
        row = (self._seq, i, state, packet, row_crc(self._seq, i, state, packet))
        return "INSERT INTO outbox VALUES (?, ?, ?, ?, ?)", row

    def set(self, i: int, state: int) -> int:
        """Change an entry's delivery state. Returns 0 or E_STORE. Completed entries are removed, oldest first."""
        seq = self._rows[i]
        before = self.state[i]
        super().set(i, state)
        oldest = self._rows[self.head] if self.count else self._seq + 1
        if seq < oldest:
            return self.commits.execute("DELETE FROM outbox WHERE seq < ?", (oldest,))
        row = (state, b"", row_crc(seq, i, state, b""), seq)
        status = self.commits.execute("UPDATE outbox SET state = ?, packet = ?, crc = ? WHERE seq = ?", row)
        if status and state != DONE:
            self.state[i] = before
        return status

    def settle(self) -> int:
        """Record that the peer holds no identifiers of an earlier session. Returns 0 or E_STORE."""
        self.fresh = False
        for row in self._about_rows():
            if self.commits.execute(_ABOUT, row):
                self.fresh = True
                return E_STORE
        return 0

    def clear(self) -> None:
        """Remove all entries."""
        super().clear()
        self._rows.clear()
        self.commits.execute("DELETE FROM outbox", ())

    def opened(self, packet_id: int) -> int:
        """Record the identifier of a received QoS 2 message. Returns 0 or E_STORE."""
        if packet_id in self._qos2_ids:
            return 0
        self._qos2_ids.add(packet_id)
        if self.commits.execute(
            "INSERT INTO received VALUES (?, ?)", (packet_id, row_crc(packet_id, 0, 0, b""))
        ):
            self._qos2_ids.discard(packet_id)
            return E_STORE
        return 0

    def closed(self, packet_id: int) -> int:
        """Delete a received identifier, or all of them (0). Returns 0 or E_STORE."""
        gone = {packet_id} & self._qos2_ids if packet_id else set(self._qos2_ids)
        if not gone and not self.commits.stale:
            return 0
        self._qos2_ids -= gone
        status = self.commits.execute(
            "DELETE FROM received WHERE packet_id = ? OR ? = 0", (packet_id, packet_id)
        )
        if status and packet_id:
            self._qos2_ids |= gone
        return status

    # -- the file --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The number of changes."""
        return self.commits.position

    @property
    def durable(self) -> int:
        """The number of committed changes."""
        return self.commits.durable

    @property
    def unsynced(self) -> bool:
        """True if a change is not committed yet."""
        return self.commits.unsynced

    @property
    def error(self) -> sqlite3.Error | None:
        """The last error of SQLite."""
        return self.commits.error

    def begin_commit(self, done: Callable[[int], object]) -> None:
        """Commit all changes so far in a thread; then call ``done(0)`` or ``done(E_STORE)`` on the event loop."""
        self.commits.begin_commit(done)

    async def stored(self) -> int:
        """Wait until all changes so far are committed. Returns 0 or E_STORE."""
        return await self.commits.stored()

    def sync(self) -> int:
        """Commit all changes so far, and wait for the disk. Returns 0 or E_STORE."""
        return self.commits.sync()

    def _write_all(self) -> None:
        """Write everything into the open transaction."""
        db = self.commits.db
        db.execute("DELETE FROM outbox")
        db.execute("DELETE FROM received")
        db.execute("DELETE FROM backlog")
        self._write_about(db)
        if self.message_ids is not None:
            db.execute(*self.message_ids.row())
        for k in range(self.count):
            i = (self.head + k) % self.slots
            db.execute(*self._insert(i))
        ids = [(packet_id, row_crc(packet_id, 0, 0, b"")) for packet_id in self._qos2_ids]
        db.executemany("INSERT INTO received VALUES (?, ?)", ids)
        for message in self.backlog.queue:
            db.execute(*self.backlog.row(message))


class StoredIds:
    """State for unique message ids of FMQ: the hub's process number, and a time later than that of every id."""

    def __init__(self, commits: GroupCommit):
        #: Little-endian, empty before it is known; nanoseconds since 1970, above those of every id.
        self.process = b""
        self.ceiling = 0
        self._commits = commits

    def keep(self, process: bytes, ceiling: int) -> int:
        """Store both with the next commit. Return 0 or E_STORE."""
        self.process = process
        self.ceiling = ceiling
        return self._commits.execute(*self.row())

    def row(self) -> Statement:
        """Return the statement that writes both."""
        row = (self.process, self.ceiling)
        return "INSERT OR REPLACE INTO ids VALUES (0, ?, ?, ?)", (*row, _ids_crc(*row))

    def load(self, db: sqlite3.Connection, path: str) -> None:
        """Read both. Raises StoreError."""
        db.execute(_IDS)
        for process, ceiling, crc in db.execute("SELECT process, ceiling, crc FROM ids"):
            is_whole = isinstance(process, bytes) and isinstance(ceiling, int)
            if not is_whole or crc != _ids_crc(process, ceiling):
                raise damaged(path, "the parts of message ids are not what was written")
            self.process = process
            self.ceiling = ceiling


def _ids_crc(process: bytes, ceiling: int) -> int:
    return zlib.crc32(process, zlib.crc32(str(ceiling).encode()))


class StoredBacklog(Backlog):
    """A backlog in the file of an outbox: a message moves between them within one transaction."""

    def __init__(self, box: SqliteOutbox):
        super().__init__()
        self._box = box

    def is_ready(self) -> bool:
        """Return whether a message can move to the outbox; first write outstanding changes to the file."""
        return not self._box.commits.stale or self._box.sync() == 0

    def row(self, message: Waiting) -> Statement:
        """Return the statement that writes a message."""
        flags = message.qos << 1 | message.retain
        row = (message.seq, flags, message.topic, self._box.pack(message.more), message.payload)
        return "INSERT INTO backlog VALUES (?, ?, ?, ?, ?, ?)", (*row, backlog_crc(*row))

    def _keep(self, message: Waiting) -> int:
        return self._box.commits.execute(*self.row(message))

    def _forget(self, message: Waiting) -> None:
        self._box.commits.execute("DELETE FROM backlog WHERE seq = ?", (message.seq,))


def _packets(protocol: object) -> object:
    """Return the protocol of the packets: those of MQTT 3.1 and 3.1.1 are the same."""
    return "3.1.1" if protocol == "3.1" else protocol


def protocol_name(protocol: object) -> str:
    """Return the name of a store's protocol for messages, such as "MQTT 5.0"."""
    return f"MQTT {protocol}" if protocol in _VERSIONS else str(protocol).upper()
