"""A local queue on its way to a queue manager: several puts in one transaction with what says where they come from, and
what an uplink needs to know of the messages that it sends. With a dead-letter queue beside it, in the same file.

The file is that of ``ibmmq/queue/queue_file``, so whoever opens it as a queue manager sees the same messages.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwater.ibmmq.chain import MQDLH
from headwater_host.mq import CMQC, put, structures
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError, failed
from headwater_host.mq.fields import LARGEST
from headwater_host.mq.uplink.uplink import State, Stored
from headwater_mq import messages
from headwater_mq.attributes import QueueAttributes, QueueManagerAttributes, dump
from headwater_mq.putting import Putting
from headwater_mq.queue_file import QueueFile

#: In the MQDLH of what is set aside here.
_APPLICATION = "headwater"
_TABLES = """
CREATE TABLE IF NOT EXISTS uplink (queue INTEGER PRIMARY KEY, identity BLOB NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS uplink_pending (queue INTEGER, message INTEGER, PRIMARY KEY (queue, message)) WITHOUT ROWID
"""


@dataclass(frozen=True)
class LocalQueue:
    """A queue and its dead-letter queue; ``depth`` is for each. ``message_bytes``: of one in the queue, at most
    LARGEST_DEAD, so that it can be set aside; the dead-letter queue takes whatever a message can be. ``bytes``: what
    the file takes at most, beside SQLite's own log. What is set aside leaves a quarter of it to the queue."""

    name: str
    dead_letter_queue: str
    depth: int
    message_bytes: int
    bytes: int


class Forward:
    """``path``, opened for one thread and made when it is not there. ``group_readable``: see ``private``. MQMIError: it
    cannot be used, or is full."""

    def __init__(self, path: "str | os.PathLike[str]", queue: LocalQueue, *, group_readable: bool = False):
        self._queue = queue
        attributes = QueueManagerAttributes(MaxMsgLength=LARGEST)
        self.file = QueueFile(path, attributes, create=True, group_readable=group_readable)
        try:
            with self.file.transaction(durable=True) as db:
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                room = QueueAttributes(
                    MaxQDepth=queue.depth,
                    MaxMsgLength=queue.message_bytes,
                    MsgDeliverySequence=CMQC.MQMDS_FIFO,
                )
                self._of: dict[int, tuple[str, QueueAttributes]] = {}
                self._id = self._define(queue.name, room)
                # What is malformed, or too long for the queue, must not be so for this one, with what comes in front.
                self._dead = self._define(queue.dead_letter_queue, replace(room, MaxMsgLength=LARGEST))
                self._widen()
        except BaseException:
            self.file.close()
            raise
        self.settings = self.file.attributes.settings

    def _define(self, name: str, attributes: QueueAttributes) -> int:
        """Have a queue with these attributes: its number."""
        statement = (
            "INSERT INTO queues (name, attributes) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET attributes = excluded.attributes RETURNING id"
        )
        (number,) = self.file.db.execute(statement, (name, dump(attributes))).fetchone()
        # Nobody deletes it meanwhile.
        opened = (self.file.connection, number, number, 0, 1)
        self.file.db.execute("INSERT INTO opens VALUES (?, ?, ?, ?, ?)", opened)
        self._of[int(number)] = name, attributes
        return int(number)

    def _widen(self) -> None:
        """The queue manager's own limit must not be less: the file may have been made by somebody else."""
        attributes = replace(self.file.attributes, MaxMsgLength=LARGEST)
        if attributes != self.file.attributes:
            statement = "UPDATE about SET value = ? WHERE name = 'attributes'"
            self.file.db.execute(statement, (dump(attributes),))
            self.file.attributes = attributes

    def close(self) -> None:
        """Give the file back; twice is harmless."""
        self.file.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """All within happens, durably, or, when it raises, nothing. Gives SQLite's connection."""
        with self.file.transaction(durable=True) as db:
            yield db

    # -- in ----------------------------------------------------------------------------------------------------------

    def put(self, md: MD, data: "bytes | memoryview") -> None:
        """Within a transaction: MQPUT to the queue. MQRC_Q_FULL and MQRC_STORAGE_MEDIUM_FULL: there is no room for now;
        any other MQMIError is for the message."""
        read = put.read(md, data, self.settings)
        if len(read.data) > self._queue.message_bytes:
            raise failed(CMQC.MQRC_MSG_TOO_BIG_FOR_Q, f"it has {len(read.data)} bytes")
        self._insert(self._id, read.md, read.data, self._queue.bytes)

    def set_aside(self, md: MD, data: "bytes | memoryview", reason: int) -> None:
        """Within a transaction: a message to the dead-letter queue. MQMIError: there is no room, as of ``put``. It has
        LARGEST_DEAD bytes at most, as has any record of the log."""
        self._bury(md, data, reason, self._queue.bytes * 3 // 4)

    def _bury(self, md: MD, data: "bytes | memoryview", reason: int, most: int | None) -> None:
        now = time.gmtime()
        dlh = {
            "Reason": reason,
            "DestQName": self._queue.name,
            "DestQMgrName": self.file.attributes.QMgrName,
            "Encoding": md.Encoding,
            "CodedCharSetId": md.CodedCharSetId,
            "Format": md.Format.decode("latin-1"),
            "PutApplType": CMQC.MQAT_UNIX,
            "PutApplName": _APPLICATION,
            "PutDate": time.strftime("%Y%m%d", now),
            "PutTime": time.strftime("%H%M%S00", now),
        }
        settings = self.settings
        header = structures.encode(MQDLH, dlh, big=settings.big, ccsid=settings.text_ccsid)
        kept = md.copy()
        kept.set(
            Format=CMQC.MQFMT_DEAD_LETTER_HEADER, Encoding=settings.encoding, CodedCharSetId=settings.ccsid
        )
        self._insert(self._dead, kept, memoryview(header + data), most)

    def _insert(self, queue: int, md: MD, data: memoryview, most: int | None) -> None:
        name, attributes = self._of[queue]
        to = Putting(
            *(self.file, self.file.attributes, queue, name, attributes, attributes, None, self.file.now()),
            file_bytes=most,
        )
        # A message from the queue keeps its context.
        options = CMQC.MQPMO_SET_ALL_CONTEXT if md.PutDate.strip() else CMQC.MQPMO_DEFAULT_CONTEXT
        described, _ = to.described(md, options, 0, put1=True)
        to.insert(self.file.db, described, data, syncpoint=False, options=options)

    def new_id(self) -> bytes:
        """Within a transaction: 24 bytes for a MsgId or GroupId that nobody else has."""
        return self.file.new_id(self.file.db)

    def has_pieces(self) -> bool:
        """Whether anything in the file is not put together yet."""
        table = "SELECT 1 FROM sqlite_schema WHERE name = 'assembly_group'"
        with self.file.reading() as db:
            found = db.execute(table).fetchone() and db.execute("SELECT 1 FROM assembly_group").fetchone()
        return found is not None

    # -- out: ``uplink.Outbox`` --------------------------------------------------------------------------------------

    def batch(self, count: int, size: int) -> Sequence[Stored]:
        """The first messages, at most so many and, but for the first, of so many bytes together."""
        found: list[Stored] = []
        query = (
            f"SELECT id, {messages.LENGTH} FROM messages WHERE {messages.ELIGIBLE} ORDER BY rank, id LIMIT ?"
        )
        damaged = []
        with self.file.reading() as db:
            for number, length in db.execute(query, (self._id, 0, self.file.now(), count)).fetchall():
                size -= length
                if found and size < 0:
                    break
                try:
                    md, body = messages.read(db, number, self.file.now())
                except messages.DamagedError:
                    damaged.append(number)
                    continue
                found.append(Stored(number, md.get(), body))
        if damaged:
            with self.transaction() as db:
                messages.set_aside(db, damaged, CMQC.MQRC_OBJECT_DAMAGED)
        return found

    def depth(self) -> int:
        """How many messages wait."""
        with self.file.reading() as db:
            (depth,) = db.execute("SELECT depth FROM queues WHERE id = ?", (self._id,)).fetchone()
        return int(depth)

    def dead_depth(self) -> int:
        """How many messages are in the dead-letter queue."""
        with self.file.reading() as db:
            (depth,) = db.execute("SELECT depth FROM queues WHERE id = ?", (self._dead,)).fetchone()
        return int(depth)

    def settle(self, sent: Sequence[int], dead: Sequence[tuple[int, int]], number: int | None) -> None:
        """These are committed, and these, with their reason codes, go to the dead-letter queue."""
        now = self.file.now()
        with self.transaction() as db:
            messages.take(db, sent, 0)
            for token, reason in dead:
                if db.execute("SELECT 1 FROM messages WHERE id = ?", (token,)).fetchone() is not None:
                    md, body = messages.read(db, token, now)
                    messages.take(db, [token], 0)
                    # Its bytes are in the file already.
                    self._bury(md, body, reason, None)
            messages.expire(db, self._id, now)
            if number is not None:
                self._number(db, number)

    def state(self) -> State:
        """What is known of the record queue."""
        with self.file.reading() as db:
            row = db.execute("SELECT identity, number FROM uplink WHERE queue = ?", (self._id,)).fetchone()
            query = "SELECT message FROM uplink_pending WHERE queue = ? ORDER BY message"
            pending = tuple(token for (token,) in db.execute(query, (self._id,)))
        if row is None:
            with self.transaction() as db:
                row = secrets.token_bytes(24), -1
                db.execute("INSERT OR IGNORE INTO uplink VALUES (?, ?, ?)", (self._id, *row))
            return self.state()
        if not isinstance(row[0], bytes) or len(row[0]) != 24 or not isinstance(row[1], int) or row[1] < -1:
            raise failed(CMQC.MQRC_OBJECT_DAMAGED, "what it says of the record queue is damaged")
        return State(row[0], row[1], pending)

    def prepare(self, pending: Sequence[int]) -> None:
        """A unit of work of these is about to be committed."""
        with self.transaction() as db:
            rows = [(self._id, token) for token in pending]
            db.executemany("INSERT OR IGNORE INTO uplink_pending VALUES (?, ?)", rows)

    def number(self, number: int) -> None:
        """The record says that this one is the last; nothing is pending."""
        with self.transaction() as db:
            self._number(db, number)

    def begin_again(self) -> None:
        """Forget the record: the next connection writes a new one. What was in doubt is sent again."""
        with self.transaction() as db:
            db.execute("DELETE FROM uplink WHERE queue = ?", (self._id,))
            db.execute("DELETE FROM uplink_pending WHERE queue = ?", (self._id,))

    def _number(self, db: Any, number: int) -> None:
        db.execute("UPDATE uplink SET number = ? WHERE queue = ?", (number, self._id))
        db.execute("DELETE FROM uplink_pending WHERE queue = ?", (self._id,))


def is_full(error: MQMIError) -> bool:
    """Whether it is a matter of room, and so of time."""
    return error.reason in (CMQC.MQRC_Q_FULL, CMQC.MQRC_STORAGE_MEDIUM_FULL)
