"""SQLite's tables and statements for the rows of ``records``."""

import sqlite3

SCHEMA = """
CREATE TABLE messages (seq INTEGER PRIMARY KEY, id BLOB, topic INTEGER, queue INTEGER, flags INTEGER, time INTEGER,
    tags TEXT, payload BLOB, crc INTEGER);
CREATE TABLE retained (topic INTEGER PRIMARY KEY, seq INTEGER, id BLOB, queue INTEGER, flags INTEGER, time INTEGER,
    tags TEXT, payload BLOB, crc INTEGER);
CREATE INDEX retained_by_seq ON retained (seq);
CREATE TABLE seen (seq INTEGER PRIMARY KEY, ids BLOB, crc INTEGER);
CREATE TABLE changes (seq INTEGER PRIMARY KEY, kind TEXT, body TEXT);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE TABLE topics (topic INTEGER PRIMARY KEY, name TEXT UNIQUE, queues INTEGER, crc INTEGER);
CREATE TABLE positions (consumers TEXT, topic INTEGER, queue INTEGER, through INTEGER, crc INTEGER,
    PRIMARY KEY (consumers, topic, queue)) WITHOUT ROWID;
CREATE TABLE opened (consumers TEXT, topic INTEGER, queue INTEGER, seq INTEGER, tries INTEGER, crc INTEGER,
    PRIMARY KEY (consumers, topic, queue, seq)) WITHOUT ROWID;
CREATE TABLE clients (client TEXT PRIMARY KEY, process INTEGER UNIQUE, crc INTEGER) WITHOUT ROWID;
CREATE TABLE sessions (client TEXT PRIMARY KEY, body TEXT, crc INTEGER) WITHOUT ROWID;
CREATE TABLE subscriptions (client TEXT, serial INTEGER, body TEXT, crc INTEGER, PRIMARY KEY (client, serial))
    WITHOUT ROWID;
CREATE TABLE handshakes (client TEXT, side TEXT, id TEXT, crc INTEGER, PRIMARY KEY (client, side, id)) WITHOUT ROWID;
CREATE TABLE turns (seq INTEGER PRIMARY KEY);
CREATE TABLE leaving (topic INTEGER PRIMARY KEY);
CREATE TABLE wills (process INTEGER PRIMARY KEY, body TEXT, crc INTEGER);
CREATE TABLE leader (epoch INTEGER, turn INTEGER, lineage TEXT);
"""
#: The row ``leader`` of a new storage; its parameter is the lineage.
FIRST_LEADER = "INSERT INTO leader VALUES (1, 0, ?)"

#: What each kind of change does to the file. Its values are ?1, ?2 and so on; where a row is written they are its
#: columns, and the checksum is after them. (Messages, and the trimming of queues, are in ``sqlite``.)
STATEMENTS: dict[str, tuple[str, ...]] = {
    "counter": ("INSERT OR REPLACE INTO counters VALUES (?, ?, ?)",),
    "register": ("INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?)",),
    # Its messages go bit by bit.
    "unregister": (
        *(f"DELETE FROM {t} WHERE topic = ?1" for t in ("topics", "positions", "opened", "retained")),
        "INSERT INTO leaving VALUES (?)",
    ),
    "position": ("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",),
    "open": ("INSERT OR REPLACE INTO opened VALUES (?, ?, ?, ?, ?, ?)",),
    "close": (
        "DELETE FROM opened WHERE consumers = ?1 AND topic = ?2 AND queue = ?3"
        " AND seq IN (SELECT value FROM json_each(?4))",
    ),
    "detach": tuple(f"DELETE FROM {t} WHERE consumers = ?1 AND topic = ?2" for t in ("positions", "opened")),
    "client": ("INSERT OR REPLACE INTO clients VALUES (?, ?, ?)",),
    "forget": ("DELETE FROM clients WHERE client = ?1",),
    "session": ("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)",),
    "end": tuple(f"DELETE FROM {t} WHERE client = ?1" for t in ("sessions", "subscriptions", "handshakes")),
    "subscribe": ("INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?)",),
    "unsubscribe": ("DELETE FROM subscriptions WHERE client = ?1 AND serial = ?2",),
    "hold": ("INSERT OR REPLACE INTO handshakes VALUES (?, ?, ?, ?)",),
    "will": ("INSERT OR REPLACE INTO wills VALUES (?, ?, ?)",),
    "unwill": ("DELETE FROM wills WHERE process = ?1",),
    "release": ("DELETE FROM handshakes WHERE client = ?1 AND side = ?2 AND id = ?3",),
    # What follows is no change: a follower does it by itself.
    "forget_ids": ("DELETE FROM seen WHERE seq <= ?",),
    "forget_changes": tuple(f"DELETE FROM {t} WHERE seq <= ?" for t in ("changes", "turns")),
    "left": ("DELETE FROM leaving WHERE topic = ?",),
}  # fmt: skip


def last_seq(db: sqlite3.Connection) -> int:
    """Return the sequence number of the last change."""
    tables = ("messages", "seen", "changes")
    return max(
        int(db.execute(f"SELECT coalesce(max(seq), 0) FROM {table}").fetchone()[0]) for table in tables
    )
