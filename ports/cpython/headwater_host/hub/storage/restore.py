"""What a file holds, row by row, each one checked. A row that is not what was written ends it: StorageError."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from headwater_host.hub.storage.file import File, damaged
from headwater_host.hub.storage.records import (
    COLUMNS,
    OVERHEAD,
    Message,
    Seen,
    checksum,
    encoded,
    message,
    unpack_ids,
)

#: The tables that hold rows of changes: the kind of change, the table, and which of its columns are JSON.
TABLES = {
    "counter": ("counters", ()),
    "register": ("topics", ()),
    "position": ("positions", ()),
    "open": ("opened", ()),
    "client": ("clients", ()),
    "session": ("sessions", (1,)),
    "subscribe": ("subscriptions", (2,)),
    "hold": ("handshakes", ()),
    "will": ("wills", (1,)),
}

#: Messages that are read in one piece.
_AT_ONCE = 1000


def rows(file: File, kind: str) -> Iterator[tuple[Any, ...]]:
    """The values of each change of a kind that still holds."""
    table, as_json = TABLES[kind]
    assert file.reader is not None
    for row in file.reader.execute(f"SELECT * FROM {table}"):
        values: list[Any] = list(row[:-1])
        try:
            for n in as_json:
                values[n] = json.loads(values[n])
            right = row[-1] == checksum(encoded(tuple(values)))
        except (TypeError, ValueError, RecursionError):
            right = False
        if not right:
            raise damaged(file.path, f"a row of {table} is not what was written")
        yield tuple(values)


class Some(NamedTuple):
    """Some messages of a queue, in order: their sequence numbers, sizes and times."""

    topic: int
    queue: int
    seqs: Sequence[int]
    sizes: Sequence[int]
    times: Sequence[int]


def index(db: sqlite3.Connection) -> Iterator[Some]:
    """All messages, oldest first in each queue, without reading the payloads; many at once: there may be millions."""
    size = f"length(payload) + length(id) + length(tags) + {OVERHEAD}"
    found = db.execute(f"SELECT topic, queue, seq, {size}, time FROM messages ORDER BY seq")
    place = itemgetter(0, 1)
    while rows := found.fetchmany(_AT_ONCE):
        rows.sort(key=place)
        for (topic, queue), some in groupby(rows, place):
            _, _, seqs, sizes, times = zip(*some, strict=True)
            yield Some(topic, queue, seqs, sizes, times)


def leaving(db: sqlite3.Connection) -> list[int]:
    """The numbers of topics that are gone, and whose messages are not yet."""
    return [number for (number,) in db.execute("SELECT topic FROM leaving")]


def retained(file: File, names: dict[int, str]) -> Iterator[Message]:
    """The retained messages."""
    assert file.reader is not None
    for row in file.reader.execute(f"SELECT {COLUMNS} FROM retained"):
        found = message(row, names[row[2]]) if row[2] in names else None
        if found is None:
            raise damaged(file.path, "a retained message is not what was written")
        yield found


def ids(file: File, most: int) -> list[Seen]:
    """The newest of the message ids that are remembered, oldest first."""
    assert file.reader is not None
    found: list[list[Seen]] = []
    count = 0
    for body, crc in file.reader.execute("SELECT ids, crc FROM seen ORDER BY seq DESC"):
        if count >= most:
            break
        try:
            found.append(unpack_ids(body, crc))
        except (TypeError, ValueError) as error:
            raise damaged(file.path, str(error)) from None
        count += len(found[-1])
    return [one for some in reversed(found) for one in some][max(0, count - most) :]
