"""Messages as rows of the file. Each function runs within the caller's transaction."""

import sqlite3
import zlib
from collections.abc import Iterable
from struct import unpack_from
from typing import Any, NamedTuple

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD

# The columns that are searched without reading a message, in the order of ``_columns``.
_SOUGHT = "group_id, seq, place, flags, msg_id, correl_id, length"
_INSERT = (
    f"INSERT INTO messages (queue, rank, put_by, taken_by, aside, backouts, expires, {_SOUGHT}, crc, md, body) "
    "VALUES (?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
#: Condition of a message that MQGET can return. Values: queue, connection whose unit of work is visible (or 0), age
#: time in ms.
ELIGIBLE = (
    "queue = ? AND taken_by = 0 AND aside = 0 AND put_by IN (0, ?) AND (expires IS NULL OR expires > ?)"
)
#: The reason why a message is set aside, and the length of its data, for columns that may hold anything.
REASON = f"iif(typeof(aside) = 'integer', aside, {CMQC.MQRC_OBJECT_DAMAGED})"
LENGTH = "iif(typeof(length) = 'integer' AND length BETWEEN 0 AND 1 << 30, length, 0)"
#: The unit of Expiry, in ms.
TENTH = 100


class DamagedError(Exception):
    """A row does not hold what was written; ``args`` is its id."""


class Message(NamedTuple):
    """A message as stored."""

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
    """Insert a message. ``now`` is the age time in ms."""
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
    """Read a message by the id of its row, with its BackoutCount and the rest of its Expiry. Raises DamagedError."""
    query = f"SELECT md, body, crc, backouts, expires, {_SOUGHT} FROM messages WHERE id = ?"
    packed, body, crc, backouts, expires, *sought = db.execute(query, (number,)).fetchone()
    if (
        not isinstance(packed, bytes)
        or not isinstance(body, bytes)
        or zlib.crc32(body, zlib.crc32(packed)) != crc
    ):
        raise DamagedError(number)
    md = MD.unpack(packed)
    # The checksum does not cover these columns.
    if (
        tuple(sought) != _columns(md, len(body))
        or not (isinstance(backouts, int) and 0 <= backouts < 1 << 31)
        or (expires is None) != (md.Expiry == CMQC.MQEI_UNLIMITED)
        or not isinstance(expires, int | None)
    ):
        raise DamagedError(number)
    md.BackoutCount = backouts
    if expires is not None:
        # Never more than the message was put with.
        md.Expiry = min(max((expires - now) // TENTH, 1), md.Expiry)
    return Message(md, body)


def written(db: sqlite3.Connection, number: int) -> tuple[int, int]:
    """Return Encoding and CodedCharSetId of a message without reading its data. Raises DamagedError."""
    (packed,) = db.execute("SELECT md FROM messages WHERE id = ?", (number,)).fetchone()
    if not isinstance(packed, bytes) or len(packed) != CMQC.MQMD_LENGTH_2:
        raise DamagedError(number)
    encoding, ccsid = unpack_from("<ii", packed, 24)
    return encoding, ccsid


def is_number(value: object) -> bool:
    """Tell whether a column with a field of the MQMD, or a length, can hold this value."""
    return isinstance(value, int) and -1 << 31 <= value < 1 << 32


def check_numbers(number: int, values: Iterable[object]) -> None:
    """Raise DamagedError if one of these columns of a row fails ``is_number``."""
    if not all(map(is_number, values)):
        raise DamagedError(number)


def take(db: sqlite3.Connection, numbers: Iterable[int], taken_by: int) -> None:
    """Take messages in the unit of work of a connection, or delete them if ``taken_by`` is 0."""
    statement = (
        "UPDATE messages SET taken_by = ? WHERE id = ?" if taken_by else "DELETE FROM messages WHERE id = ?"
    )
    values: list[Any] = [(taken_by, number) if taken_by else (number,) for number in numbers]
    db.executemany(statement, values)


def set_aside(db: sqlite3.Connection, numbers: Iterable[int], reason: int) -> None:
    """Hide contradictory or damaged messages from MQGET."""
    db.executemany("UPDATE messages SET aside = ? WHERE id = ?", [(reason, number) for number in numbers])


def renew(db: sqlite3.Connection, now: int) -> None:
    """Restart the Expiry of each message."""
    query = "SELECT id, substr(md, 17, 4) FROM messages WHERE expires IS NOT NULL"
    found = [(number, raw) for number, raw in db.execute(query) if isinstance(raw, bytes) and len(raw) == 4]
    db.executemany(
        "UPDATE messages SET expires = ? WHERE id = ?",
        [(now + unpack_from("<i", raw)[0] * TENTH, number) for number, raw in found],
    )


def expire(db: sqlite3.Connection, queue: int, now: int) -> int:
    """Delete expired messages and return their number."""
    statement = "DELETE FROM messages WHERE queue = ? AND expires <= ? AND put_by = 0 AND taken_by = 0"
    return db.execute(statement, (queue, now)).rowcount
