"""The rows of a storage: messages and all other changes, each with a sequence number and a checksum."""

import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

#: Approximate overhead of a message in SQLite and in the index in memory, in bytes.
OVERHEAD = 64
#: Bytes of memory that a message takes beside its payload, its id and its tags, and a tag beside its text: for objects,
#: and for its place among the others. Measured; a test compares it with the process's memory.
HELD = 340
_TAG = 64

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

_HEAD = struct.Struct("<QQIBqB")

COLUMNS = "seq, id, topic, queue, flags, time, tags, payload, crc"


class Message(NamedTuple):
    """A stored message. ``seq`` is its place among all changes; ``time_ns`` when the hub took it, in age time."""

    seq: int
    id: bytes
    topic: str
    queue: int
    tags: tuple[str, ...]
    payload: bytes
    qos: int
    retain: bool
    time_ns: int

    @property
    def size(self) -> int:
        """The bytes of disk that it takes, approximately."""
        return len(self.payload) + len(self.id) + len(tags_text(self.tags)) + OVERHEAD

    @property
    def held(self) -> int:
        """The bytes of memory that it takes."""
        return held(self)


def held(fields: tuple[Any, ...]) -> int:
    """Return the bytes of memory that a message, or its fields, takes."""
    size = len(fields[1]) + len(fields[5]) + HELD
    return size + sum(len(tag) + _TAG for tag in fields[4]) if fields[4] else size


class Change(NamedTuple):
    """A change, as a follower needs it.

    ``kind`` is one of those that ``contract`` lists, with its values; or "message" (a Message); "seen" (an id and
    its time: the message is gone); "retained" (a Message that is gone except that it is retained); "trim" (topic,
    queue, sequence number up to which it is trimmed); "unretain" (a topic whose retained message is cleared).
    """

    seq: int
    kind: str
    values: tuple[Any, ...]


#: Values of a change as text.
encoded: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def new_lineage() -> str:
    """Return a random name for a history of changes."""
    return os.urandom(8).hex()


def checksum(text: str) -> int:
    """Return a checksum. SQLite does not notice when a bit of a value changes."""
    return zlib.crc32(text.encode())


def stored_row(kind: str, values: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """Return the parameters of a change's statements: its values and, where a row is written, the checksum of their
    ``text``."""
    row = [value if isinstance(value, int | str) else encoded(value) for value in values]
    return (*row, checksum(text)) if kind in TABLES else tuple(row)


def tags_text(tags: tuple[str, ...]) -> str:
    """Return a message's tags as the storage holds them."""
    return encoded(tags) if tags else ""


def row(message: Message, topic: int) -> tuple[Any, ...]:
    """Return a message as a row of ``messages``, with its topic's number."""
    seq, ident, _, queue, tags, payload, qos, retain, time_ns = message
    text = tags_text(tags)
    flags = qos << 1 | retain
    head = _HEAD.pack(seq, topic, queue, flags, time_ns, len(ident))
    crc = zlib.crc32(payload, zlib.crc32(b"%b%b%b" % (head, ident, text.encode())))
    return seq, ident, topic, queue, flags, time_ns, text, payload, crc


def message_size(stored: tuple[Any, ...]) -> int:
    """Return the bytes of what may be large in a row of ``messages``."""
    return len(stored[6]) + len(stored[7])


def change_size(stored: tuple[Any, ...]) -> int:
    """Return the bytes of what may be large in a row of ``changes``."""
    return len(stored[2])


def message(stored: tuple[Any, ...], topic: str) -> Message | None:
    """Return the message of a row, None when the row is not what was written."""
    seq, ident, number, queue, flags, time, tags, payload, _ = stored
    try:
        named = tuple(json.loads(tags)) if tags else ()
        found = Message(seq, ident, topic, queue, named, payload, flags >> 1, bool(flags & 1), time)
        return found if row(found, number) == stored else None
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError, struct.error):
        return None


#: A remembered message id: its sequence number, the id, and when it came. The garbage collector does not track exact
#: tuples of such values.
Seen = tuple[int, bytes, int]


def pack_ids(seen: Sequence[Seen]) -> tuple[int, bytes, int]:
    """Return ids, at least one, as a row of ``seen``: the last sequence number, the ids by columns, a checksum. A row
    for each id would double the time of storing messages."""
    seqs, ids, times = zip(*seen, strict=True)
    n = len(ids)
    body = struct.pack(f"<I{n}Q{n}q{n}B", n, *seqs, *times, *map(len, ids)) + b"".join(ids)
    return seqs[-1], body, zlib.crc32(body)


def unpack_ids(body: bytes, crc: int) -> list[Seen]:
    """Return the ids of such a row, oldest first. Raises ValueError or TypeError when it is not what was written."""
    if zlib.crc32(body) != crc:
        raise ValueError("remembered ids are not what was written")
    (n,) = struct.unpack_from("<I", body)
    columns = struct.unpack_from(f"<{n}Q{n}q{n}B", body, 4)
    stops = list(accumulate(columns[2 * n :], initial=4 + 17 * n))
    ids = [body[at:stop] for at, stop in pairwise(stops)]
    return list(zip(columns[:n], ids, columns[n : 2 * n], strict=True))
