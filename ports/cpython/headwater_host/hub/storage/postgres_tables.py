"""PostgreSQL's tables and statements for the rows of ``records``.

Each statement takes a list for each column and so any number of rows. Names of topics, groups and clients are escaped,
since PostgreSQL's text holds no NUL.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from headwater_host.hub.storage.contract import Row
from headwater_host.hub.storage.records import COLUMNS, TABLES, encoded

#: The version of the tables.
VERSION = 1

SCHEMA = """
CREATE TABLE hub_storage (version integer NOT NULL);
CREATE TABLE leader (epoch bigint NOT NULL, turn bigint NOT NULL, beat bigint NOT NULL, holder text NOT NULL,
    length_ms integer NOT NULL, lineage text NOT NULL) WITH (fillfactor = 10);
CREATE TABLE messages (seq bigint PRIMARY KEY, id bytea, topic bigint, queue integer, flags integer, time bigint,
    tags text, payload bytea, crc bigint);
CREATE TABLE retained (topic bigint PRIMARY KEY, seq bigint, id bytea, queue integer, flags integer, time bigint,
    tags text, payload bytea, crc bigint);
CREATE INDEX retained_by_seq ON retained (seq);
CREATE TABLE seen (seq bigint PRIMARY KEY, ids bytea, crc bigint);
CREATE TABLE changes (seq bigint PRIMARY KEY, kind text, body text);
CREATE TABLE counters (name text PRIMARY KEY, value text, crc bigint) WITH (fillfactor = 50);
CREATE TABLE topics (topic bigint PRIMARY KEY, name text, queues bigint, crc bigint);
CREATE TABLE positions (consumers text, topic bigint, queue bigint, through bigint, crc bigint,
    PRIMARY KEY (consumers, topic, queue)) WITH (fillfactor = 50);
CREATE TABLE opened (consumers text, topic bigint, queue bigint, seq bigint, tries bigint, crc bigint,
    PRIMARY KEY (consumers, topic, queue, seq));
CREATE TABLE clients (client text PRIMARY KEY, process bigint, crc bigint);
CREATE TABLE sessions (client text PRIMARY KEY, body text, crc bigint);
CREATE TABLE subscriptions (client text, serial bigint, body text, crc bigint, PRIMARY KEY (client, serial));
CREATE TABLE handshakes (client text, side text, id text, crc bigint, PRIMARY KEY (client, side, id));
CREATE TABLE turns (seq bigint PRIMARY KEY, epoch bigint NOT NULL);
CREATE TABLE leaving (topic bigint PRIMARY KEY);
CREATE TABLE wills (process bigint PRIMARY KEY, body text, crc bigint)
"""


def escape(name: str) -> str:
    """Return a name as PostgreSQL can hold it."""
    return name.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in name or "\0" in name else name


def unescape(text: str) -> str:
    """Return the name that ``escape`` took."""
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


def _same(value: Any) -> Any:
    return value


class _Type(NamedTuple):
    """The form in which a value is stored."""

    sql: str
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same


_NUMBER = _Type("bigint")
_TEXT = _Type("text")
_NAME = _Type("text", escape, unescape)
#: A number or a text.
_VALUE = _Type("text", encoded, json.loads)

#: The columns of each of ``records.TABLES`` without the checksum, by kind; and how many of them are its key.
_COLUMNS: dict[str, tuple[int, dict[str, _Type]]] = {
    "counter": (1, {"name": _NAME, "value": _VALUE}),
    "register": (1, {"topic": _NUMBER, "name": _NAME, "queues": _NUMBER}),
    "position": (3, {"consumers": _NAME, "topic": _NUMBER, "queue": _NUMBER, "through": _NUMBER}),
    "open": (4, {"consumers": _NAME, "topic": _NUMBER, "queue": _NUMBER, "seq": _NUMBER, "tries": _NUMBER}),
    "client": (1, {"client": _NAME, "process": _NUMBER}),
    "session": (1, {"client": _NAME, "body": _TEXT}),
    "subscribe": (2, {"client": _NAME, "serial": _NUMBER, "body": _TEXT}),
    "hold": (3, {"client": _NAME, "side": _TEXT, "id": _TEXT}),
    "will": (1, {"process": _NUMBER, "body": _TEXT}),
}
#: The tables that each other kind removes rows from, and the columns by which it finds them.
_REMOVES: dict[str, tuple[tuple[str, ...], dict[str, _Type]]] = {
    "unregister": (("topics", "positions", "opened", "retained"), {"topic": _NUMBER}),
    "close": (("opened",), {"consumers": _NAME, "topic": _NUMBER, "queue": _NUMBER, "seq": _NUMBER}),
    "detach": (("positions", "opened"), {"consumers": _NAME, "topic": _NUMBER}),
    "forget": (("clients",), {"client": _NAME}),
    "end": (("sessions", "subscriptions", "handshakes"), {"client": _NAME}),
    "unsubscribe": (("subscriptions",), {"client": _NAME, "serial": _NUMBER}),
    "unwill": (("wills",), {"process": _NUMBER}),
    "release": (("handshakes",), {"client": _NAME, "side": _TEXT, "id": _TEXT}),
    "left": (("leaving",), {"topic": _NUMBER}),
}
#: Kinds that remove everything up to a sequence number.
_FORGETS = {"forget_ids": ("seen",), "forget_changes": ("changes", "turns")}


class Statements(NamedTuple):
    """The SQL of a kind, the form of each value, and the number of values that are its key, 0 if rows with
    the same values need not be joined."""

    sql: tuple[str, ...]
    write: tuple[Callable[[Any], Any], ...]
    key: int = 0

    def parameters(self, rows: Iterable[Row]) -> list[list[Any]]:
        """Return the columns of rows; of several with one key the last one."""
        if self.key:
            rows = {row[: self.key]: row for row in rows}.values()
        return [
            list(column) if write is _same else list(map(write, column))
            for write, column in zip(self.write, zip(*rows, strict=True), strict=True)
        ]


def _lists(types: Iterable[str]) -> str:
    return ", ".join(f"{'%b' if one == 'bytea' else '%s'}::{one}[]" for one in types)


def insert(table: str, columns: Sequence[str], types: Sequence[str], key: Sequence[str] = ()) -> str:
    """Return the statement that inserts rows, or replaces those with the same key."""
    sql = f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({_lists(types)})"
    if not key:
        return sql
    rest = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return f"{sql} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {rest}"


def _upsert(kind: str) -> Statements:
    key, columns = _COLUMNS[kind]
    names = [*columns, "crc"]
    types = [*(one.sql for one in columns.values()), "bigint"]
    sql = insert(TABLES[kind][0], names, types, names[:key])
    return Statements((sql,), (*(one.write for one in columns.values()), _same), key)


def _removal(kind: str) -> Statements:
    tables, columns = _REMOVES[kind]
    found = " AND ".join(f"{{table}}.{name} = old.{name}" for name in columns)
    lists = _lists(one.sql for one in columns.values())
    sql = [
        f"DELETE FROM {table} USING unnest({lists}) AS old ({', '.join(columns)}) WHERE {found.format(table=table)}"
        for table in tables
    ]
    if kind == "unregister":
        # Its messages go bit by bit.
        sql.append(insert("leaving", ["topic"], ["bigint"]))
    return Statements(tuple(sql), tuple(one.write for one in columns.values()))


def _forget(table: str) -> str:
    return f"DELETE FROM {table} WHERE seq <= (SELECT max(n) FROM unnest(%s::bigint[]) AS n)"


STATEMENTS: dict[str, Statements] = {
    **{kind: _upsert(kind) for kind in _COLUMNS},
    **{kind: _removal(kind) for kind in _REMOVES},
    **{kind: Statements(tuple(map(_forget, some)), (_same,)) for kind, some in _FORGETS.items()},
}

_names = COLUMNS.split(", ")
_types = ["bigint", "bytea", "bigint", "integer", "integer", "bigint", "text", "bytea", "bigint"]
MESSAGE = insert("messages", _names, _types)
#: The types of a message's columns, for COPY.
MESSAGE_TYPES = ["int8", "bytea", "int8", "int4", "int4", "int8", "text", "bytea", "int8"]
RETAIN = insert("retained", _names, _types, ["topic"])
CHANGE = insert("changes", ["seq", "kind", "body"], ["bigint", "text", "text"])

#: How each table's values are read, the checksum aside.
READS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    TABLES[kind][0]: tuple(one.read for one in columns.values()) for kind, (_, columns) in _COLUMNS.items()
}


def expanded(kind: str, rows: Iterable[Row]) -> Iterable[Row]:
    """Return the rows of a kind; "close" names several messages in one."""
    if kind != "close":
        return rows
    return [(*row[:3], seq) for row in rows for seq in json.loads(row[3])]
