"""Reassemble IBM MQ groups and segments of any DataFrame."""

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
# Spark counts bytes from 1. Messages without a group share one GroupId and go to all tasks.
_GROUP_ID = "substring(payload, 33, 24)"
_SPREAD = f"if({_GROUP_ID} = X'{'00' * 24}', xxhash64(payload), 0)"


def logical_messages(
    frame: DataFrame, *, partitions: int | None = None, max_message: int = MAX_MESSAGE, memory: int = MEMORY
) -> DataFrame:
    """Return the table `logical_messages` for `frame`, with columns `topic` string, `payload` binary and `time_ns`
    long.

    Rows whose payload does not begin with a valid MQMDE are ignored, so `frame` may be the table `messages`. A null
    topic is empty, a null `time_ns` is 0. `partitions` is the number of tasks; by default Spark decides.
    `max_message` is the maximum size of a payload, below 2 GiB. `memory` is the number of payload bytes that a task
    holds before it uses a temporary file. Raises ValueError when a column is missing or has another type.
    """
    types = dict(frame.dtypes)
    for name, kind in _NEEDED.items():
        if types.get(name) != kind:
            raise ValueError(f"column {name!r} must be {kind}, not {types.get(name, 'missing')}")
    if not 1 <= max_message < 1 << 31:
        raise ValueError("max_message must be at least 1 and below 2 GiB")
    if partitions is not None and partitions < 1:
        raise ValueError("partitions must be at least 1")
    known = ", ".join(f"X'{signature.hex()}'" for signature in SIGNATURES)
    keys = ("topic", _GROUP_ID, _SPREAD)
    from pyspark.sql import functions

    columns = [functions.expr(key) for key in keys]
    # Rows with a null and with an empty topic must meet.
    rows = frame.select(*_NEEDED).withColumn("topic", functions.expr("coalesce(topic, '')"))
    segments = rows.where(f"substring(payload, 1, {len(SIGNATURES[0])}) in ({known})")
    # The JVM does not sort, because rows are larger than their sort keys.
    met = segments.repartition(*columns) if partitions is None else segments.repartition(partitions, *columns)
    return met.mapInArrow(partial(_work, max_message, memory), LOGICAL_MESSAGES.ddl)


def _work(max_message: int, memory: int, batches: Iterator[Any]) -> Iterator[Any]:
    pa.set_cpu_count(1)  # Spark counts on one core per task
    schema = LOGICAL_MESSAGES.plain
    for columns in assemble((_plain(batch) for batch in batches), max_message=max_message, memory=memory):
        yield pa.record_batch([columns[f.name].cast(f.type) for f in schema], schema=schema)


def _plain(batch: Any) -> Any:
    # Spark may be configured to use larger types.
    types = (pa.string(), pa.binary(), pa.int64())
    columns = [batch[name].cast(kind) for name, kind in zip(_NEEDED, types, strict=True)]
    return pa.record_batch(columns, list(_NEEDED))
