"""The assembler's store: SQLite tables for what exceeds memory and for restarts.

The tables are in the caller's connection. The first write begins a transaction if there is none; only the caller
commits, together with its position in the source.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

Buffer: TypeAlias = "bytes | bytearray | memoryview"
#: A finished message or group: number of the last message, reason, ``finished.packed``.
Done: TypeAlias = tuple[int, int, bytes]

_TABLES = """
CREATE TABLE IF NOT EXISTS assembly_group (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, group_id BLOB NOT NULL, touched REAL NOT NULL,
    grouped INTEGER, last INTEGER NOT NULL, highest INTEGER NOT NULL, whole INTEGER NOT NULL,
    count INTEGER NOT NULL, held INTEGER NOT NULL, UNIQUE (topic, group_id));
CREATE INDEX IF NOT EXISTS assembly_group_touched ON assembly_group (touched);
CREATE TABLE IF NOT EXISTS assembly_message (
    number INTEGER NOT NULL, seq INTEGER NOT NULL, state INTEGER NOT NULL, format TEXT NOT NULL,
    flags INTEGER NOT NULL, encoding INTEGER NOT NULL, ccsid INTEGER NOT NULL, end INTEGER NOT NULL,
    reach INTEGER NOT NULL, covered INTEGER NOT NULL, pieces INTEGER NOT NULL,
    low INTEGER NOT NULL, high INTEGER NOT NULL,
    PRIMARY KEY (number, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assembly_piece (
    number INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS assembly_piece_at ON assembly_piece (number, seq, at, size);
CREATE TABLE IF NOT EXISTS assembly_done (
    n INTEGER PRIMARY KEY, topic TEXT NOT NULL, group_id BLOB NOT NULL, seq INTEGER NOT NULL, last INTEGER NOT NULL,
    reason INTEGER NOT NULL, finished BLOB NOT NULL DEFAULT x'', UNIQUE (topic, group_id, seq));
"""

# Groups with damaged rows, found by types and sums of columns. Changed contents of the same length are not detected.
_INTEGERS = {
    "assembly_group": ["last", "highest", "whole", "count", "held"],
    "assembly_message": [
        *("seq", "state", "flags", "encoding", "ccsid", "end"),
        *("reach", "covered", "pieces", "low", "high"),
    ],
    "assembly_piece": ["seq", "at", "size"],
}
_ODD = " UNION ".join(
    f"SELECT number FROM {table} WHERE "
    + " OR ".join(f"typeof({one}) != 'integer' OR {one} NOT BETWEEN -1 << 31 AND 1 << 60" for one in columns)
    for table, columns in _INTEGERS.items()
)
_DAMAGED = f"""
{_ODD} UNION SELECT number FROM assembly_group WHERE typeof(topic) != 'text' OR typeof(group_id) != 'blob'
 OR length(group_id) != 24 OR typeof(touched) != 'real' OR grouped NOT IN (0, 1) OR number NOT BETWEEN 1 AND 1 << 60
 OR count != (SELECT count(*) FROM assembly_message AS one WHERE one.number = assembly_group.number)
UNION SELECT number FROM assembly_message AS one WHERE typeof(format) != 'text' OR length(format) > 8
 OR covered AND (covered, pieces) != (SELECT total(size), count(*) FROM assembly_piece AS piece
  WHERE piece.number = one.number AND piece.seq = one.seq AND at >= low AND at + size <= high)
UNION SELECT number FROM assembly_piece WHERE typeof(data) != 'blob' OR length(data) != size
"""

#: Bytes of a piece that are read at a time.
_SLICE = 64 << 10
#: Without ``blobopen`` (before Python 3.11) SQLite reads the whole piece for each slice, which limits their number.
_SLICES = 16

#: Condition for the rows of a message.
_OF = "number = ? AND seq = ?"


class Spill:
    """The tables. ``number`` identifies a group."""

    def __init__(self, db: sqlite3.Connection):
        self.db = db
        for statement in _TABLES.split(";"):
            db.execute(statement)
        if not any(row[1] == "finished" for row in db.execute("PRAGMA table_info(assembly_done)")):
            # Earlier releases did not have this column.
            db.execute("ALTER TABLE assembly_done ADD COLUMN finished BLOB NOT NULL DEFAULT x''")

    def mend(self) -> int:
        """Drop damaged groups and rows without a group; return the number of groups."""
        damaged = self.db.execute(_DAMAGED).fetchall()
        for (number,) in damaged:
            self.drop_group(number)
        for table in ("assembly_message", "assembly_piece"):
            alone = "number NOT IN (SELECT number FROM assembly_group)"
            if self._one(f"SELECT 1 FROM {table} WHERE {alone} LIMIT 1"):
                self.write(f"DELETE FROM {table} WHERE {alone}")
        return len(damaged)

    def write(self, statement: str, values: Iterable[Any] = ()) -> None:
        """Execute a statement in the transaction."""
        self._begin()
        self.db.execute(statement, tuple(values))

    def _begin(self) -> None:
        if not self.db.in_transaction:
            self.db.execute("BEGIN")

    def _one(self, query: str, *values: Any) -> "tuple[Any, ...] | None":
        found: tuple[Any, ...] | None = self.db.execute(query, values).fetchone()
        return found

    def totals(self) -> tuple[int, int, int, int]:
        """Return the highest number of a group, and counts: groups, bytes of messages and pieces, finished rows."""
        found = self._one(
            "SELECT coalesce(max(number), 0), count(*), coalesce(sum(held), 0), (SELECT count(*) FROM assembly_done)"
            " FROM assembly_group"
        )
        assert found is not None
        return found[0], found[1], found[2], found[3]

    # -- groups and messages ---------------------------------------------------------------------------------------

    def group(self, topic: str, group_id: bytes) -> "tuple[Any, ...] | None":
        """Return the row of a group, or None."""
        return self._one("SELECT * FROM assembly_group WHERE topic = ? AND group_id = ?", topic, group_id)

    def oldest(self, until: float) -> Iterator[tuple[str, bytes, float]]:
        """Yield topic, GroupId and time of groups without payloads after ``until``, oldest first."""
        return self.db.execute(
            "SELECT topic, group_id, touched FROM assembly_group WHERE touched <= ? ORDER BY touched",
            (until,),
        )

    def set_back(self, now: float) -> None:
        """Limit the times of all groups to ``now``."""
        if self._one("SELECT 1 FROM assembly_group WHERE touched > ? LIMIT 1", now):
            self.write("UPDATE assembly_group SET touched = ? WHERE touched > ?", (now, now))

    def save_group(self, row: tuple[Any, ...], messages: "Iterable[tuple[Any, ...]]") -> None:
        """Write a group and its changed messages."""
        self.write(f"INSERT OR REPLACE INTO assembly_group VALUES (?{', ?' * 9})", row)
        self.db.executemany(f"INSERT OR REPLACE INTO assembly_message VALUES (?{', ?' * 12})", messages)

    def message(self, number: int, seq: int) -> "tuple[Any, ...] | None":
        """Return the row of a message, or None."""
        return self._one(f"SELECT * FROM assembly_message WHERE {_OF}", number, seq)

    def messages(self, number: int) -> "Iterator[tuple[Any, ...]]":
        """Yield the rows of a group's messages by MsgSeqNumber."""
        return self.db.execute("SELECT * FROM assembly_message WHERE number = ? ORDER BY seq", (number,))

    def drop_group(self, number: int) -> None:
        """Delete a group with its messages and pieces."""
        for table in ("assembly_group", "assembly_message", "assembly_piece"):
            self.write(f"DELETE FROM {table} WHERE number = ?", (number,))

    def drop_message(self, number: int, seq: int) -> None:
        """Delete a message without its pieces."""
        self.write(f"DELETE FROM assembly_message WHERE {_OF}", (number, seq))

    # -- pieces of messages, which do not overlap -----------------------------------------------------------------

    def save_pieces(self, rows: "Iterable[tuple[int, int, int, int, Buffer]]") -> None:
        """Insert pieces: number, seq, at, size, data."""
        self._begin()
        self.db.executemany("INSERT INTO assembly_piece VALUES (?, ?, ?, ?, ?)", rows)

    def overlapping(self, number: int, seq: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (at, size) of the pieces that overlap a range, in order."""
        before = self._one(f"SELECT max(at) FROM assembly_piece WHERE {_OF} AND at <= ?", number, seq, start)
        first = before[0] if before and before[0] is not None else start
        for at, size in self.db.execute(
            f"SELECT at, size FROM assembly_piece WHERE {_OF} AND at >= ? AND at < ? ORDER BY at",
            (number, seq, first, stop),
        ):
            if at + size > start:
                yield at, size

    def part(self, number: int, seq: int, at: int, skip: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes of the piece at ``at`` after ``skip`` bytes, in slices."""
        found = self._one(f"SELECT rowid FROM assembly_piece WHERE {_OF} AND at = ?", number, seq, at)
        assert found is not None
        stop = skip + length
        open_blob = getattr(self.db, "blobopen", None)
        if open_blob is not None:
            with open_blob("assembly_piece", "data", found[0], readonly=True) as blob:
                blob.seek(skip)
                for start in range(skip, stop, _SLICE):
                    yield blob.read(min(_SLICE, stop - start))
            return
        size = max(_SLICE, -(-length // _SLICES))
        for start in range(skip, stop, size):
            query = "SELECT substr(data, ?, ?) FROM assembly_piece WHERE rowid = ?"
            cut = self._one(query, start + 1, min(size, stop - start), *found)
            assert cut is not None
            yield cut[0]

    def extents(self, number: int, seq: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of a message's pieces, in order."""
        return self.db.execute(
            f"SELECT at, at + size FROM assembly_piece WHERE {_OF} ORDER BY at", (number, seq)
        )

    def pieces(self, number: int, seq: int) -> Iterator[tuple[int, bytes]]:
        """Yield (at, data) of a message's pieces, in order."""
        return self.db.execute(f"SELECT at, data FROM assembly_piece WHERE {_OF} ORDER BY at", (number, seq))

    def drop_pieces(self, number: int, seq: int, start: int = 0, stop: int = 1 << 62) -> tuple[int, int]:
        """Delete the pieces that begin in a range; return their number and their bytes."""
        found = self._one(
            f"SELECT count(*), coalesce(sum(size), 0) FROM assembly_piece WHERE {_OF} AND at >= ? AND at < ?",
            number,
            seq,
            start,
            stop,
        )
        assert found is not None
        if found[0]:
            self.write(
                f"DELETE FROM assembly_piece WHERE {_OF} AND at >= ? AND at < ?", (number, seq, start, stop)
            )
        return found[0], found[1]

    # -- finished messages ---------------------------------------------------------------------------------------

    def done(self, topic: str, group_id: bytes, seq: int) -> "dict[int, Done]":
        """Return (last message, reason, ``finished.packed``) of finished messages by MsgSeqNumber: of a message and its
        group (0), or else of any one message of the GroupId."""
        query = "SELECT seq, last, reason, finished FROM assembly_done WHERE topic = ? AND group_id = ?{} LIMIT {}"
        rows = self.db.execute(query.format(" AND seq IN (0, ?)", 2), (topic, group_id, seq)).fetchall()
        if not rows:
            rows = self.db.execute(query.format("", 1), (topic, group_id)).fetchall()
        return {row[0]: row[1:] for row in rows}

    def remember(self, rows: "Iterable[tuple[str, bytes, int, int, int, bytes]]", keep: int) -> None:
        """Write finished messages (topic, GroupId, seq or 0 for the group, last, reason, ``finished.packed``); keep the
        newest ``keep`` rows."""
        self._begin()
        self.db.executemany(
            "INSERT OR REPLACE INTO assembly_done (topic, group_id, seq, last, reason, finished) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )
        self.write(
            "DELETE FROM assembly_done WHERE n <= (SELECT n FROM assembly_done ORDER BY n DESC LIMIT 1 OFFSET ?)",
            (keep,),
        )
