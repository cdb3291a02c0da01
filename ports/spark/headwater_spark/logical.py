"""``logical_messages(frame)``: put together what any DataFrame has of IBM MQ's groups and segments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater_spark.assembly import MEMORY, assemble
from headwater_spark.mqmde import SIGNATURES
from headwater_spark.sizes import MAX_MESSAGE
from headwater_spark.tables import LOGICAL_MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEEDED = {"topic": "string", "payload": "binary", "time_ns": "bigint"}
# Spark counts bytes from 1. Messages of no group have one GroupId, and go to all tasks.
_GROUP_ID = "substring(payload, 33, 24)"
_SPREAD = f"if({_GROUP_ID} = X'{'00' * 24}', xxhash64(payload), 0)"


def logical_messages(
    frame: DataFrame, *, partitions: int | None = None, max_message: int = MAX_MESSAGE, memory: int = MEMORY
) -> DataFrame:
    """The table ``logical_messages`` of the rows of ``frame``: ``topic`` string, ``payload`` binary, ``time_ns`` long.

    Rows whose payload does not begin with an MQMDE, or with one that MQPUT would refuse, are passed over; the frame may
    be the table ``messages``, or any other. A topic that is null is an empty one, and a ``time_ns`` that is null is 0.
    ``partitions``: how many tasks put messages together; without it Spark decides. ``max_message``: bytes of a message
    in a row at most, below 2 GiB; ``memory``: bytes of payloads that a task holds, beyond which it takes a temporary
    file. Raises ValueError when a column is missing or of another type.
    """
    types = dict(frame.dtypes)
    for name, kind in _NEEDED.items():
        if types.get(name) != kind:
            raise ValueError(f"column {name!r} must be {kind}, not {types.get(name, 'missing')}")
    if not 1 <= max_message < 1 << 31:
        raise ValueError("max_message must be 1 or more, and below 2 GiB")
    if partitions is not None and partitions < 1:
        raise ValueError("partitions must be 1 or more")
    known = ", ".join(f"X'{signature.hex()}'" for signature in SIGNATURES)
    keys = ("topic", _GROUP_ID, _SPREAD)
    from pyspark.sql import functions

    columns = [functions.expr(key) for key in keys]
    # What a task takes for one topic must meet there.
    rows = frame.select(*_NEEDED).withColumn("topic", functions.expr("coalesce(topic, '')"))
    segments = rows.where(f"substring(payload, 1, {len(SIGNATURES[0])}) in ({known})")
    # All of a group meets by its name, and nothing is sorted in the JVM: rows are larger than what has to be sorted.
    met = segments.repartition(*columns) if partitions is None else segments.repartition(partitions, *columns)
    return met.mapInArrow(partial(_work, max_message, memory), LOGICAL_MESSAGES.ddl)


def _work(max_message: int, memory: int, batches: Iterator[Any]) -> Iterator[Any]:
    pa.set_cpu_count(1)  # Spark counts on one core per task
    schema = LOGICAL_MESSAGES.plain
    for columns in assemble((_plain(batch) for batch in batches), max_message=max_message, memory=memory):
        yield pa.record_batch([columns[f.name].cast(f.type) for f in schema], schema=schema)


def _plain(batch: Any) -> Any:
    # Spark can be told to use larger types.
    types = (pa.string(), pa.binary(), pa.int64())
    columns = [batch[name].cast(kind) for name, kind in zip(_NEEDED, types, strict=True)]
    return pa.record_batch(columns, list(_NEEDED))
