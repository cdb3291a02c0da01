"""The changes of a file in order, for a replica."""

import json
import sqlite3

from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.records import COLUMNS, Change, message

_SEEN = """SELECT seen.seq, seen.id FROM seen LEFT JOIN messages USING (seq)
    WHERE seen.seq > ? AND messages.seq IS NULL ORDER BY seen.seq LIMIT ?"""


def changes(db: sqlite3.Connection, names: dict[int, str], after: int, limit: int) -> list[Change]:
    """At most ``limit`` changes behind a sequence number. What is trimmed since is only an id that was seen."""
    wanted = (after, limit)
    found = [
        Change(seq, kind, tuple(json.loads(body)))
        for seq, kind, body in db.execute("SELECT * FROM changes WHERE seq > ? ORDER BY seq LIMIT ?", wanted)
    ]
    query = f"SELECT {COLUMNS} FROM messages WHERE seq > ? ORDER BY seq LIMIT ?"
    for row in db.execute(query, wanted):
        stored = message(row, names.get(row[2], ""))
        if stored is None:
            raise StorageError(f"message {row[0]} of the hub's storage is not what was written")
        found.append(Change(stored.seq, "message", (stored,)))
    found += [Change(seq, "seen", (ident,)) for seq, ident in db.execute(_SEEN, wanted)]
    return sorted(found)[:limit]
