"""Messages as rows of the file: put in, read, taken. Each function runs within a transaction of its caller's."""

import sqlite3
import zlib
from collections.abc import Iterable
from struct import unpack_from
from typing import Any, NamedTuple

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD

# What is looked for without reading a message, as ``_columns`` has it.
_SOUGHT = "group_id, seq, place, flags, msg_id, correl_id, length"
_INSERT = (
    f"INSERT INTO messages (queue, rank, put_by, taken_by, aside, backouts, expires, {_SOUGHT}, crc, md, body) "
    "VALUES (?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
#: Of a message that can be got. Its values: queue, connection whose own unit of work is seen (or 0), now in ms.
ELIGIBLE = (
    "queue = ? AND taken_by = 0 AND aside = 0 AND put_by IN (0, ?) AND (expires IS NULL OR expires > ?)"
)
#: Of a message, in SQL: why it is set aside, and the bytes of its data. Each column may hold anything.
REASON = f"iif(typeof(aside) = 'integer', aside, {CMQC.MQRC_OBJECT_DAMAGED})"
LENGTH = "iif(typeof(length) = 'integer' AND length BETWEEN 0 AND 1 << 30, length, 0)"
#: 100 ms, the unit of Expiry, in ms.
TENTH = 100


class DamagedError(Exception):
    """A row does not hold what was written; ``args`` is its number."""


class Message(NamedTuple):
    """A message as it is kept."""

    md: MD
    body: bytes


def insert(
    db: sqlite3.Connection,
    queue: int,
    md: MD,
    body: "bytes | memoryview",
    *,
    fifo: bool,
    put_by: int,
    now: int,
) -> None:
    """Put a message into the file. ``now``: age time, in ms."""
    packed = md.pack()
    row = (
        queue,
        0 if fifo else -md.Priority,
        put_by,
        None if md.Expiry == CMQC.MQEI_UNLIMITED else now + md.Expiry * TENTH,
        *_columns(md, len(body)),
        zlib.crc32(body, zlib.crc32(packed)),
        packed,
        body,
    )
    db.execute(_INSERT, row)


def _columns(md: MD, length: int) -> tuple[object, ...]:
    return (
        None if md.GroupId == CMQC.MQGI_NONE else md.GroupId,
        md.MsgSeqNumber,
        md.Offset,
        md.MsgFlags,
        md.MsgId,
        None if md.CorrelId == CMQC.MQCI_NONE else md.CorrelId,
        length,
    )


def read(db: sqlite3.Connection, number: int, now: int) -> Message:
    """A message by the number of its row: BackoutCount, and what is left of Expiry, are up to date. DamagedError."""
    query = f"SELECT md, body, crc, backouts, expires, {_SOUGHT} FROM messages WHERE id = ?"
    packed, body, crc, backouts, expires, *sought = db.execute(query, (number,)).fetchone()
    if (
        not isinstance(packed, bytes)
        or not isinstance(body, bytes)
        or zlib.crc32(body, zlib.crc32(packed)) != crc
    ):
        raise DamagedError(number)
    md = MD.unpack(packed)
    # These the checksum does not cover.
    if (
        tuple(sought) != _columns(md, len(body))
        or not (isinstance(backouts, int) and 0 <= backouts < 1 << 31)
        or (expires is None) != (md.Expiry == CMQC.MQEI_UNLIMITED)
        or not isinstance(expires, int | None)
    ):
        raise DamagedError(number)
    md.BackoutCount = backouts
    if expires is not None:
        # Never more than it was put with, whatever the column holds.
        md.Expiry = min(max((expires - now) // TENTH, 1), md.Expiry)
    return Message(md, body)


def body(db: sqlite3.Connection, number: int) -> bytes:
    """The data of a message. DamagedError."""
    return read(db, number, 0).body


def written(db: sqlite3.Connection, number: int) -> tuple[int, int]:
    """Encoding and CodedCharSetId of a message, whose data are not read. DamagedError."""
    (packed,) = db.execute("SELECT md FROM messages WHERE id = ?", (number,)).fetchone()
    if not isinstance(packed, bytes) or len(packed) != CMQC.MQMD_LENGTH_2:
        raise DamagedError(number)
    encoding, ccsid = unpack_from("<ii", packed, 24)
    return encoding, ccsid


def is_number(value: object) -> bool:
    """Whether a column that holds a number of an MQMD's, or a length, can have been written with this."""
    return isinstance(value, int) and -1 << 31 <= value < 1 << 32


def check_numbers(number: int, values: Iterable[object]) -> None:
    """DamagedError: one of these columns of a row is no number (``is_number``)."""
    if not all(map(is_number, values)):
        raise DamagedError(number)


def take(db: sqlite3.Connection, numbers: Iterable[int], taken_by: int) -> None:
    """Get messages: in the unit of work of a connection, or for good when that is 0."""
    statement = (
        "UPDATE messages SET taken_by = ? WHERE id = ?" if taken_by else "DELETE FROM messages WHERE id = ?"
    )
    values: list[Any] = [(taken_by, number) if taken_by else (number,) for number in numbers]
    db.executemany(statement, values)


def set_aside(db: sqlite3.Connection, numbers: Iterable[int], reason: int) -> None:
    """Let nobody get these: they contradict each other, or are damaged."""
    db.executemany("UPDATE messages SET aside = ? WHERE id = ?", [(reason, number) for number in numbers])


def renew(db: sqlite3.Connection, now: int) -> None:
    """Give each message its whole Expiry from now on."""
    query = "SELECT id, substr(md, 17, 4) FROM messages WHERE expires IS NOT NULL"
    found = [(number, raw) for number, raw in db.execute(query) if isinstance(raw, bytes) and len(raw) == 4]
    db.executemany(
        "UPDATE messages SET expires = ? WHERE id = ?",
        [(now + unpack_from("<i", raw)[0] * TENTH, number) for number, raw in found],
    )


def expire(db: sqlite3.Connection, queue: int, now: int) -> int:
    """Delete what has expired; how many."""
    statement = "DELETE FROM messages WHERE queue = ? AND expires <= ? AND put_by = 0 AND taken_by = 0"
    return db.execute(statement, (queue, now)).rowcount
