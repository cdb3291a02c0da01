"""The gateway's local queue, with its dead-letter queue.

A caller puts several messages in one transaction with its position in the source. The queue file is an ordinary one: a
queue manager that opens it sees the same messages.
"""

import os
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
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

#: PutApplName in the MQDLH of dead letters.
_APPLICATION = "headwater"
_TABLES = """
CREATE TABLE IF NOT EXISTS uplink (queue INTEGER PRIMARY KEY, identity BLOB NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS uplink_pending (queue INTEGER, message INTEGER, PRIMARY KEY (queue, message)) WITHOUT ROWID
"""


@dataclass(frozen=True)
class LocalQueue:
    """A queue and its dead-letter queue, with limits.

    ``depth``: messages in each. ``message_bytes``: of one message in the queue, at most LARGEST_DEAD; the dead-letter
    queue takes any message. ``bytes``: of the file, without SQLite's log; dead letters leave a quarter to the queue.
    """

    name: str
    dead_letter_queue: str
    depth: int
    message_bytes: int
    bytes: int


class Forward:
    """A connection to the queue file for one thread; creates a missing file. Raises MQMIError.

    ``group_readable``: see ``headwater_host.private``.
    """

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
                # The dead-letter queue takes messages that are too long for the queue, after an MQDLH.
                self._dead = self._define(queue.dead_letter_queue, replace(room, MaxMsgLength=LARGEST))
                self._widen()
        except BaseException:
            self.file.close()
            raise
        self.settings = self.file.attributes.settings

    def _define(self, name: str, attributes: QueueAttributes) -> int:
        """Create the queue or set its attributes, and return its id."""
        statement = (
            "INSERT INTO queues (name, attributes) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET attributes = excluded.attributes RETURNING id"
        )
        (number,) = self.file.db.execute(statement, (name, dump(attributes))).fetchone()
        # An open queue cannot be deleted.
        opened = (self.file.connection, number, number, 0, 1)
        self.file.db.execute("INSERT INTO opens VALUES (?, ?, ?, ?, ?)", opened)
        self._of[int(number)] = name, attributes
        return int(number)

    def _widen(self) -> None:
        """Raise the queue manager's own limit: another program may have created the file."""
        attributes = replace(self.file.attributes, MaxMsgLength=LARGEST)
        if attributes != self.file.attributes:
            statement = "UPDATE about SET value = ? WHERE name = 'attributes'"
            self.file.db.execute(statement, (dump(attributes),))
            self.file.attributes = attributes

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self.file.close()

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a durable transaction, undone if it raises. Yields SQLite's connection."""
        return self.file.transaction(durable=True)

    # -- puts --------------------------------------------------------------------------------------------------------

    def put(self, md: MD, data: "bytes | memoryview") -> None:
        """Put a message to the queue, within a transaction.

        Raises MQRC_Q_FULL or MQRC_STORAGE_MEDIUM_FULL if there is no room, another MQMIError if the message is refused.
        """
        read = put.read(md, data, self.settings)
        if len(read.data) > self._queue.message_bytes:
            raise failed(
                CMQC.MQRC_MSG_TOO_BIG_FOR_Q,
                f"{len(read.data)} bytes; the queue takes at most {self._queue.message_bytes}",
            )
        self._insert(self._id, read.md, read.data, self._queue.bytes)

    def set_aside(self, md: MD, data: "bytes | memoryview", reason: int) -> None:
        """Put a message of at most LARGEST_DEAD bytes to the dead-letter queue, within a transaction.

        Raises MQMIError if there is no room.
        """
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
        """Return a new MsgId or GroupId, within a transaction."""
        return self.file.new_id(self.file.db)

    def has_pieces(self) -> bool:
        """Tell whether the file holds incomplete messages."""
        table = "SELECT 1 FROM sqlite_schema WHERE name = 'assembly_group'"
        with self.file.reading() as db:
            found = db.execute(table).fetchone() and db.execute("SELECT 1 FROM assembly_group").fetchone()
        return found is not None

    # -- the uplink's ``Outbox`` --------------------------------------------------------------------------------------

    def batch(self, count: int, size: int) -> Sequence[Stored]:
        """Return the first messages: at most ``count``, and ``size`` bytes unless the first alone has more."""
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
        """Return the number of messages in the queue."""
        with self.file.reading() as db:
            (depth,) = db.execute("SELECT depth FROM queues WHERE id = ?", (self._id,)).fetchone()
        return int(depth)

    def dead_depth(self) -> int:
        """Return the number of messages in the dead-letter queue."""
        with self.file.reading() as db:
            (depth,) = db.execute("SELECT depth FROM queues WHERE id = ?", (self._dead,)).fetchone()
        return int(depth)

    def settle(self, sent: Sequence[int], dead: Sequence[tuple[int, int]], number: int | None) -> None:
        """Remove committed messages, and move others, with their reason codes, to the dead-letter queue."""
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
        """Return the state of the record queue."""
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
            raise failed(CMQC.MQRC_OBJECT_DAMAGED, "the state of the record queue is damaged")
        return State(row[0], row[1], pending)

    def prepare(self, pending: Sequence[int]) -> None:
        """Note the messages of a unit of work before its commit."""
        with self.transaction() as db:
            rows = [(self._id, token) for token in pending]
            db.executemany("INSERT OR IGNORE INTO uplink_pending VALUES (?, ?)", rows)

    def number(self, number: int) -> None:
        """Note the number of the last committed unit of work; none is pending."""
        with self.transaction() as db:
            self._number(db, number)

    def begin_again(self) -> None:
        """Forget the record: the next connection writes a new one, and messages in doubt are retransmitted."""
        with self.transaction() as db:
            db.execute("DELETE FROM uplink WHERE queue = ?", (self._id,))
            db.execute("DELETE FROM uplink_pending WHERE queue = ?", (self._id,))

    def _number(self, db: Any, number: int) -> None:
        db.execute("UPDATE uplink SET number = ? WHERE queue = ?", (number, self._id))
        db.execute("DELETE FROM uplink_pending WHERE queue = ?", (self._id,))


def is_full(error: MQMIError) -> bool:
    """Tell whether an error means that there is no room for now."""
    return error.reason in (CMQC.MQRC_Q_FULL, CMQC.MQRC_STORAGE_MEDIUM_FULL)
