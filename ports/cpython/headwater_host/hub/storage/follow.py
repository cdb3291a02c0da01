"""The changes of a storage file, for a replica."""

import json
import sqlite3

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import COLUMNS, Change, Seen, message, unpack_ids


def changes(db: sqlite3.Connection, names: dict[int, str], after: int, limit: int) -> list[Change]:
    """Return at most ``limit`` changes after a sequence number. A removed message is only a "seen" id."""
    wanted = (after, limit)
    found = [
        Change(seq, kind, tuple(json.loads(body)))
        for seq, kind, body in db.execute("SELECT * FROM changes WHERE seq > ? ORDER BY seq LIMIT ?", wanted)
    ]
    query = f"SELECT {COLUMNS} FROM messages WHERE seq > ? ORDER BY seq LIMIT ?"
    for row in db.execute(query, wanted):
        if row[2] not in names:
            continue  # its topic is gone
        stored = message(row, names[row[2]])
        if stored is None:
            raise StorageError(f"message {row[0]} of the hub's storage is not what was written")
        found.append(Change(stored.seq, "message", (stored,)))
    there = {change.seq for change in found}
    gone: list[Change] = []
    for body, crc in db.execute("SELECT ids, crc FROM seen WHERE seq > ? ORDER BY seq", (after,)):
        if len(gone) >= limit:
            break
        known = _unpacked(body, crc)
        gone += [Change(seq, "seen", (ident,)) for seq, ident, _ in known if seq > after and seq not in there]
    return sorted(found + gone)[:limit]


def _unpacked(body: bytes, crc: int) -> list[Seen]:
    try:
        return unpack_ids(body, crc)
    except (TypeError, ValueError) as error:
        raise StorageError(f"{error}, in the hub's storage") from None
