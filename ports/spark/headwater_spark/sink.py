"""Publish the rows of a query to a hub or a broker, each once under an id that a retry gives it again.

The id is a hash of the query, the number of the micro-batch and the key columns. Spark repeats a micro-batch with its
number after a failure, with the same rows in any order, so a retry publishes the same ids. A task ends when every
message is acknowledged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater_host.errors import ArgumentError
from headwater_host.topics import topic_bytes
from headwater_spark.options import Option, OptionError
from headwater_spark.publishing import Message, Publisher, PublishingError, publish_to_broker, publish_to_hub
from headwater_spark.servers import BROKER, HUB, PUBLISHER, Server, server_of, server_options

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

# Set by Spark for the tasks of a streaming query.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_WHOLE = ("tinyint", "smallint", "int", "bigint")
#: The columns of a message, with the types that each may have. Other columns must be keys.
COLUMNS = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": _WHOLE,
    "retain": ("boolean",),
    "tags": ("array<string>",),
    "expiry": _WHOLE,
}
# Types of key columns: those whose values have one text each.
_KEYS = ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", *_WHOLE)
_LONGEST_EXPIRY = (1 << 32) - 1
_DIGEST = 16
# Bytes of a digest that are compared over all tasks.
_SHORT = 8


class RowError(ValueError):
    """A row cannot be published."""


class Form(NamedTuple):
    """A format: its name, its options and columns, and the function that publishes in a task."""

    name: str
    options: tuple[Option, ...]
    columns: tuple[str, ...]
    publish: Callable[[Publisher, Iterator[list[Message]]], None]


HUB_SINK = Form(
    "headwater.hub", (*HUB, *PUBLISHER), ("topic", "payload", "qos", "retain", "tags"), publish_to_hub
)
BROKER_SINK = Form(
    "headwater.mqtt",
    (*BROKER, *PUBLISHER),
    ("topic", "payload", "qos", "retain", "expiry"),
    publish_to_broker,
)


@dataclass(frozen=True)
class Sink:
    """The validated options and columns of a query that publishes. `query` is "" for a streaming query."""

    form: Form
    server: Server
    key: tuple[str, ...]
    timeout: float
    query: str


def sink_of(
    form: Form, given: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool
) -> Sink:
    """Validate options and columns. Raises OptionError."""
    if overwrite:
        what = 'outputMode("complete") publishes all rows in each micro-batch: use "append" or "update"'
        raise OptionError(
            what if is_stream else 'mode("overwrite") cannot replace messages: use mode("append")'
        )
    values = server_options(form.name, given, form.options)
    key = values["key"]
    if key is None:
        raise OptionError("option key is missing: the columns that identify a message in its micro-batch")
    if is_stream and values["query"] is not None:
        raise OptionError("option query is for df.write: a streaming query has an id in its checkpoint")
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(types) != len(schema.fields):
        raise OptionError(f"two columns have one name: {', '.join(field.name for field in schema.fields)}")
    for name in ("topic", "payload"):
        if name not in types:
            raise OptionError(f"column {name} is missing; the columns are {', '.join(types)}")
    for name in key:
        if name not in types:
            raise OptionError(f"option key: there is no column {name!r}; the columns are {', '.join(types)}")
        if types[name] not in _KEYS:
            raise OptionError(f"option key: column {name} is {types[name]}, not one of {', '.join(_KEYS)}")
    for name, kind in types.items():
        if name in form.columns:
            if kind not in COLUMNS[name]:
                raise OptionError(f"column {name} is {kind}, not {' or '.join(COLUMNS[name])}")
        elif name not in key:
            raise OptionError(
                f'format("{form.name}") has no column {name!r}; it has {", ".join(form.columns)}, and the key'
            )
    server = server_of(values)
    if "expiry" in types and "expiry" in form.columns and server.protocol != "5.0":
        raise OptionError(f"column expiry needs MQTT 5.0, not {server.protocol}")
    query = "" if is_stream else values["query"] or secrets.token_hex(16)
    return Sink(form, server, key, values["timeout"], query)


@dataclass
class Sent(WriterCommitMessage):
    """The ids that a task has published, shortened to 8 bytes each."""

    ids: bytes


class _Writer:
    """The base of the writers of a stream and of a table."""

    def __init__(self, sink: Sink):
        self._sink = sink

    def write(self, iterator: Iterator[RecordBatch]) -> Sent:
        """Publish the rows of a partition; return when all are acknowledged. Raises RowError and PublishingError."""
        sink, context = self._sink, TaskContext.get()
        assert context is not None
        run = (sink.query, "")
        if not sink.query:
            run = (context.getLocalProperty(_QUERY) or "", context.getLocalProperty(_BATCH) or "")
            if not all(run):
                raise PublishingError("Spark does not tell this task its query and micro-batch")
        seed = _digest(run).digest()
        number = int.from_bytes(blake2b(run[0].encode(), digest_size=4).digest(), "little")
        # One client for each attempt, and the same few identifiers for each micro-batch.
        client = f"spark-{number:08x}-{context.partitionId()}-{context.attemptNumber()}"
        seen: set[bytes] = set()
        try:
            batches = (messages_of(sink, seed, batch, seen) for batch in iterator)
            sink.form.publish(Publisher(sink.server, client, number, sink.timeout), batches)
        except (RowError, PublishingError) as error:
            raise type(error)(f'format("{sink.form.name}"): {error}') from None
        return Sent(b"".join(ident[:_SHORT] for ident in seen))

    def _check(self, sent: list[WriterCommitMessage | None]) -> None:
        """Raise RowError if a key is in several partitions."""
        import numpy as np

        ids = np.frombuffer(b"".join(one.ids for one in sent if isinstance(one, Sent)), np.uint64)
        if (twice := len(ids) - len(np.unique(ids))) > 0:
            raise RowError(
                f"option key: {twice} rows of the micro-batch have the key ({', '.join(self._sink.key)}) of another "
                "row, in another partition: name columns that identify a row"
            )


class StreamSink(_Writer, DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Complete a micro-batch."""
        self._check(messages)


class TableSink(_Writer, DataSourceArrowWriter):
    """Publishes the rows of a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Complete the write."""
        self._check(messages)


def _digest(parts: tuple[str, ...]) -> Any:
    made = blake2b(digest_size=_DIGEST)
    for part in parts:
        _add(made, part.encode())
    return made


def _add(made: Any, part: bytes) -> None:
    """Add a part with its length, so that ("a", "bc") and ("ab", "c") differ."""
    made.update(len(part).to_bytes(8, "little"))
    made.update(part)


def messages_of(sink: Sink, seed: bytes, batch: RecordBatch, seen: set[bytes]) -> list[Message]:
    """Return the messages of a batch of rows. Raises RowError; `seen` are the ids of the partition so far."""
    columns = {
        name: batch.column(name).to_pylist() for name in sink.form.columns if name in batch.schema.names
    }
    keys = [_key_bytes(batch.column(name)) for name in sink.key]
    found = []
    for row in range(batch.num_rows):
        made = blake2b(seed, digest_size=_DIGEST)
        for name, values in zip(sink.key, keys, strict=True):
            value = values[row]
            if value is None:
                raise RowError(f"column {name} is null, but a part of the key")
            _add(made, value)
        ident = made.digest()
        if ident in seen:
            shown = ", ".join(f"{name} {batch.column(name)[row].as_py()!r}" for name in sink.key)
            raise RowError(
                f"option key: two rows of the micro-batch have {shown}: name columns that identify a row"
            )
        seen.add(ident)
        found.append(_message(ident, {name: values[row] for name, values in columns.items()}))
    return found


def _key_bytes(column: Array) -> list[bytes | None]:
    """Return the values of a key column as bytes, which do not depend on the session's time zone."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    found: list[bytes | None] = []
    for value in column.to_pylist():
        if value is None or isinstance(value, bytes):
            found.append(value)
        else:
            found.append(str(value).encode())
    return found


def _message(ident: bytes, row: dict[str, Any]) -> Message:
    """Return the message of a row. Raises RowError with the column and its value."""
    topic, payload = row["topic"], row["payload"]
    if topic is None:
        raise RowError("column topic is null")
    try:
        topic_bytes(topic)
    except ArgumentError as error:
        raise RowError(f"column topic: {error}") from None
    if payload is None:
        raise RowError(f"column payload is null (topic {topic!r}); an empty payload is an empty string")
    qos = row.get("qos")
    if qos is None:
        qos = 1
    elif qos not in (1, 2):
        raise RowError(
            f"column qos is {qos} (topic {topic!r}), not 1 or 2: messages at QoS 0 are not acknowledged"
        )
    tags = row.get("tags") or ()
    if None in tags:
        raise RowError(f"column tags contains null (topic {topic!r})")
    expiry = row.get("expiry")
    if expiry is not None and not 0 <= expiry <= _LONGEST_EXPIRY:
        raise RowError(f"column expiry is {expiry} (topic {topic!r}), not 0 to {_LONGEST_EXPIRY} seconds")
    data = payload.encode() if isinstance(payload, str) else payload
    return Message(topic, data, qos, bool(row.get("retain")), tuple(tags), expiry, ident)
