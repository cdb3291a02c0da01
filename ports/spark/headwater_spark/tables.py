"""The tables: columns and types, and Parquet files of them, written by a task of its own.

A column's type is named once, as Spark names it; Arrow's type follows from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.string()),
}


class Column(NamedTuple):
    """A column: name, Spark's type, what it holds, and whether its values repeat enough for a dictionary."""

    name: str
    type: str
    what: str
    repeats: bool = False


class Table(NamedTuple):
    """A table, or a view of the data source."""

    name: str
    what: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]

    @property
    def ddl(self) -> str:
        """The schema as Spark writes it."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @property
    def arrow(self) -> Any:
        """The schema of its Parquet files: what repeats is a dictionary, which is written as it is."""
        return pa.schema([pa.field(column.name, _stored(column)) for column in self.columns])

    @property
    def plain(self) -> Any:
        """The schema without dictionaries, as Spark takes it from a data source."""
        return pa.schema([pa.field(column.name, _ARROW[column.type]) for column in self.columns])


def _stored(column: Column) -> Any:
    arrow = _ARROW[column.type]
    return pa.dictionary(pa.int32(), arrow) if column.repeats and column.type == "string" else arrow


_WHERE = (
    Column("file", "string", "segment file", repeats=True),
    Column("offset", "long", "offset of the block in the file", repeats=True),
    Column("record", "int", "number of the record in its block, from 0"),
)
_RECEIVED = (
    Column("time", "timestamp", "receive time, µs"),
    Column("time_ns", "long", "receive time, ns since 1970"),
    Column("connection", "long", "connection id: unique for ever", repeats=True),
    Column("peer", "string", "who it came from, or went to", repeats=True),
    Column("direction", "short", "0 = received by the gateway, 1 = sent by it", repeats=True),
    Column("protocol", "short", "1 = MQTT, 2 = FMQ, 3 = IBM MQ", repeats=True),
    Column("version", "short", "MQTT: the protocol level, 3, 4 or 5", repeats=True),
    Column(
        "mark",
        "short",
        "by the receiver: 1 = a message of its own, 2 = a duplicate, 3 = perhaps one; 0 = it does not say",
        repeats=True,
    ),
    Column("first_ns", "long", "receive time of what a duplicate repeats; null for the others"),
)

# FMQ's identity. Numbers that are larger than any of ours are null; the id itself has them.
_MESSAGE_ID = (
    Column("message_id", "binary", "FMQ: the message id; null in MQTT"),
    Column("process", "long", "FMQ: process number in the message id", repeats=True),
    Column("thread", "long", "FMQ: thread number in the message id", repeats=True),
)

FRAMES = Table(
    "frames",
    "each frame as it was on the wire",
    (*_RECEIVED, Column("frame", "binary", "the bytes"), *_WHERE),
)

BADBLOCKS = Table(
    "badblocks",
    "what is wrong with the log: damaged blocks, gaps, lost segments, a torn tail",
    (
        Column("kind", "string", "bad, gap, missing, manifest or torn"),
        Column("file", "string", "segment file, or manifest.jsonl"),
        Column("offset", "long", "offset in the file"),
        Column("length", "long", "bytes; 0 where nothing but an order is wrong"),
        Column("reason", "string", "what is wrong, in words"),
    ),
)

DECODED = Table(
    "decoded",
    "each frame of MQTT and FMQ decoded, none left out",
    (
        *_RECEIVED,
        Column("kind", "short", "type of the packet or frame, 0 to 15; null of what is not decoded"),
        Column("dup", "boolean", "PUBLISH: it may have been sent before"),
        Column("qos", "short", "PUBLISH: 0, 1 or 2"),
        Column("retain", "boolean", "PUBLISH: the broker had kept it"),
        Column("packet_id", "int", "MQTT: PUBLISH at QoS 1 and 2"),
        Column("topic", "string", "PUBLISH and CONSUMERESP"),
        Column("payload", "binary", "PUBLISH and CONSUMERESP"),
        Column("tags", "array<string>", "FMQ: PUBLISH and CONSUMERESP"),
        *_MESSAGE_ID,
        Column("id_type", "short", "FMQ: type of the frame that the message id was made for"),
        Column("id_ns", "long", "FMQ: time in the message id, ns since 1970"),
        Column("reason", "string", "what is malformed, null when nothing is"),
        Column("error_at", "int", "offset in the frame of what is malformed"),
        *_WHERE,
    ),
)

MESSAGES = Table(
    "messages",
    "one row per real message that was received",
    (
        Column("time", "timestamp", "first receipt, µs"),
        Column("time_ns", "long", "first receipt, ns since 1970"),
        Column("topic", "string", "topic", repeats=True),
        Column(
            "qos", "short", "quality of service of the first receipt; null in a CONSUMERESP", repeats=True
        ),
        Column("retain", "boolean", "the broker had kept it; null in a CONSUMERESP"),
        Column("payload", "binary", "payload"),
        Column("protocol", "short", "1 = MQTT, 2 = FMQ", repeats=True),
        Column("tags", "array<string>", "FMQ: tags; null in MQTT", repeats=True),
        *_MESSAGE_ID,
        Column("board", "string", "identity in the payload: the board; null without one", repeats=True),
        Column("boot", "long", "identity in the payload: number of the board's start", repeats=True),
        Column("seq", "long", "identity in the payload: number of the message since that start"),
        Column("sent_ns", "long", "when the board sent it, ns since 1970; null when it does not say"),
        Column("copies", "int", "how many frames it came in", repeats=True),
        Column("possible_duplicate", "boolean", "another row may be the same message; nothing proves it"),
        Column("connection", "long", "connection of the first receipt", repeats=True),
        Column("peer", "string", "who the first receipt came from", repeats=True),
        *_WHERE,
    ),
)

TELEMETRY = Table(
    "telemetry",
    "one row per value in a payload that is a JSON object or an FMQ Map",
    (
        Column("board", "string", "null without an identity", repeats=True),
        Column("boot", "long", "null without an identity", repeats=True),
        Column("seq", "long", "null without an identity"),
        Column("topic", "string", "topic", repeats=True),
        Column("time", "timestamp", "when the board sent it; null when it does not say"),
        Column("metric", "string", "key in the object", repeats=True),
        Column("value_double", "double", "a number; booleans are 0 and 1, durations are in s"),
        Column("value_string", "string", "a string; of an FMQ time ISO 8601 with ns, in UTC"),
        Column("received_ns", "long", "first receipt of its message, ns since 1970"),
        Column("latency_ms", "double", "receipt minus time"),
    ),
)

LOGICAL_MESSAGES = Table(
    "logical_messages",
    "one row per logical message: what MQMDEs say is one, put together",
    (
        Column("time", "timestamp", "first receipt of any of it, µs"),
        Column("time_ns", "long", "first receipt of any of it, ns since 1970"),
        Column("last_ns", "long", "last receipt of any of it, ns since 1970"),
        Column("topic", "string", "topic", repeats=True),
        Column("group_id", "binary", "GroupId, 24 bytes"),
        Column("seq", "int", "MsgSeqNumber: its number in the group"),
        Column("complete", "boolean", "whether it is whole, and here"),
        Column("payload", "binary", "payload, without MQMDEs; null unless complete"),
        Column("length", "long", "bytes of it that have come"),
        Column("format", "string", "Format of the payload, without blanks behind it", repeats=True),
        Column("encoding", "int", "Encoding of the payload", repeats=True),
        Column("ccsid", "int", "CodedCharSetId of the payload", repeats=True),
        Column("segments", "int", "how many physical messages it came in", repeats=True),
        Column("duplicates", "int", "physical messages beside these that brought nothing new", repeats=True),
        Column("missing", "string", "what is missing, or contradicts itself, in words; null when complete"),
        Column("reason", "int", "IBM's reason code; null when complete", repeats=True),
        Column("last_in_group", "boolean", "whether it is its group's last; null without a group"),
        Column("group_complete", "boolean", "whether its group is whole; null without a group"),
        Column(
            "group_missing", "string", "what is missing of its group, or contradicts itself; null when whole"
        ),
    ),
)

QUARANTINE = Table(
    "quarantine",
    "what could not be taken, with its bytes",
    (
        Column("kind", "string", "frame, message or block", repeats=True),
        Column("reason", "string", "what is wrong", repeats=True),
        Column("detail", "string", "more about it, in words"),
        Column("error_at", "int", "offset of what is malformed: in the frame, or of an MQMDE in the payload"),
        Column("file", "string", "segment file", repeats=True),
        Column("offset", "long", "offset of the block in the file"),
        Column("record", "int", "number of the record in its block; null for a block"),
        Column("length", "long", "how many bytes it is"),
        Column("bytes", "binary", "the bytes; of a block the first MiB"),
        Column("time_ns", "long", "receive time, ns since 1970; null for a block"),
        Column("connection", "long", "connection id; null for a block"),
        Column("peer", "string", "who it came from; null for a block", repeats=True),
        Column("direction", "short", "0 = received, 1 = sent; null for a block"),
    ),
)

#: What the pipeline writes.
TABLES = (FRAMES, MESSAGES, LOGICAL_MESSAGES, TELEMETRY, QUARANTINE)
#: What the data source reads.
VIEWS = {table.name: table for table in (FRAMES, DECODED, BADBLOCKS)}

_ROW_GROUP = 1 << 18
# What rises from row to row is much smaller, and faster to write, as differences.
_DIFFERENCES = {"time", "time_ns", "record", "seq", "sent_ns", "received_ns"}


class Writer:
    """Writes one Parquet file of a table.

    It has its name only when it is whole, whoever else writes the same file. A table without rows in this
    part has no file. Use it with ``with``: an exception leaves nothing behind.
    """

    def __init__(self, table: Table, directory: Path, part: str):
        self.table = table
        self.path = directory / table.name / f"part-{part}.parquet"
        self.rows = 0
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self._writer: Any = None

    def __enter__(self) -> Writer:
        return self

    def write(self, columns: dict[str, Any]) -> None:
        """Append rows: Arrow arrays by column name."""
        schema = self.table.arrow
        batch = pa.record_batch([columns[name] for name in schema.names], schema=schema)
        if not batch.num_rows:
            return
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            columns_ = self.table.columns
            self._writer = pq.ParquetWriter(
                self._partial,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[column.name for column in columns_ if column.repeats],
                column_encoding={
                    column.name: "DELTA_BINARY_PACKED" for column in columns_ if column.name in _DIFFERENCES
                },
                # Readers choose by time and by identity.
                write_statistics=[
                    name for name in ("time", "time_ns", "board", "boot", "seq") if name in schema.names
                ],
                store_schema=False,
            )
        self._writer.write_batch(batch, row_group_size=_ROW_GROUP)
        self.rows += batch.num_rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            if kind is None:
                # An earlier pass over the same part may have had rows.
                self.path.unlink(missing_ok=True)
            return
        self._writer.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)
