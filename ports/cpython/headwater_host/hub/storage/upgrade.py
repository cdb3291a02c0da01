"""Upgrades storage files of earlier versions."""

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from headwater_host.hub.storage.records import checksum, encoded, new_lineage, stored_row
from headwater_host.hub.storage.sqlite_tables import FIRST_LEADER, SCHEMA, STATEMENTS, last_seq

#: Versions that can be upgraded.
EARLIER = (2, 3)


def upgrade(db: sqlite3.Connection, version: int, current: int) -> None:
    """Upgrade a file of an earlier version in one transaction. Raises ValueError when it does not hold what was
    written, and changes nothing then."""
    db.execute("BEGIN IMMEDIATE")
    try:
        # Before the tables are made: version 2 had another table ``positions``.
        places = _take_places(db) if version == 2 else []
        for statement in SCHEMA.split(";"):
            db.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
        db.execute(FIRST_LEADER, (new_lineage(),))
        if version == 2:
            _put_places(db, places)
        db.execute(f"PRAGMA user_version = {current}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _take_places(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Remove the positions of version 2, and return them."""
    places = [_place(*row) for row in db.execute("SELECT * FROM positions")]
    db.execute("DROP TABLE positions")
    return places


def _put_places(db: sqlite3.Connection, places: Iterable[tuple[Any, ...]]) -> None:
    """Write the positions of version 2.

    Version 2 kept a group's place in a queue as one row: the floor, and as JSON what was acknowledged after it. A
    slave cannot apply such changes, so it needs a snapshot.
    """
    for group, topic, queue, floor, taken, tries in places:
        through = max(taken, default=floor)
        _write(db, "position", group, topic, queue, through)
        rows = dict.fromkeys(_open(db, topic, queue, floor, through, taken), 0) | tries
        for seq, count in rows.items():
            _write(db, "open", group, topic, queue, seq, count)
    last = last_seq(db)
    db.execute("DELETE FROM changes")
    _write(db, "counter", "followed", last)
    db.execute("INSERT INTO changes VALUES (?, ?, ?)", (last + 1, "counter", encoded(("followed", last))))


def _place(
    group: str, topic: int, queue: int, floor: int, taken: Any, tries: Any, crc: int
) -> tuple[Any, ...]:
    """Decode a row of ``positions``, as version 2 wrote it."""
    try:
        values = group, topic, queue, floor, json.loads(taken), json.loads(tries)
        if checksum(encoded(values)) == crc:
            return *values[:4], set(values[4]), {int(seq): count for seq, count in values[5].items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError("a row of positions is not what was written")


def _open(
    db: sqlite3.Connection, topic: int, queue: int, floor: int, through: int, taken: set[int]
) -> Iterable[int]:
    """Return the messages up to ``through`` that a group has not acknowledged."""
    query = "SELECT seq FROM messages WHERE seq > ? AND seq < ? AND topic = ? AND queue = ?"
    rows = db.execute(query, (floor, through, topic, queue)) if through > floor else ()
    return [seq for (seq,) in rows if seq not in taken]


def _write(db: sqlite3.Connection, kind: str, *values: Any) -> None:
    (statement,) = STATEMENTS[kind]
    db.execute(statement, stored_row(kind, values, encoded(values)))
