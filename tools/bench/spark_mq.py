"""Spark (local[2]): a million IBM MQ segments reassembled, segments per second.

The table has 125,000 logical messages of eight segments with 64 bytes each, two messages to a group; the segments
of a thousand groups are interleaved. All variants read the same Parquet files and discard whole messages, except
the last, which reads a capture log and writes the pipeline's tables. A round runs each variant once.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench.spark import run_pipeline, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS = 1_000_000
_PER_MESSAGE = 8
_PER_GROUP = 16
_DATA = 64
_HEAD = 72
_MIXED = 1000
#: applyInArrow calls Python for each group, so it gets a tenth of the groups.
_SHARE = 10
_ROUNDS = 5
_BASE = "collect_list in SQL"
_TOPIC = "plant/board%d"
# Spark's default of 200 shuffle partitions is for clusters; larger Arrow batches help every variant.
_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}


def segments(count: int) -> list[tuple[str, bytes]]:
    """Return topics and payloads in the order of arrival."""
    import numpy as np

    chance = np.random.default_rng(1)
    row = np.arange(count)
    group, seq = row // _PER_GROUP, row % _PER_GROUP // _PER_MESSAGE + 1
    piece = row % _PER_MESSAGE
    # MSG_IN_GROUP and SEGMENT; LAST_SEGMENT; LAST_MSG_IN_GROUP.
    flags = 10 + 4 * (piece == _PER_MESSAGE - 1) + 16 * (seq == _PER_GROUP // _PER_MESSAGE)
    data = np.zeros((count, _HEAD + _DATA), np.uint8)
    data[:, :4] = np.frombuffer(b"MDE ", np.uint8)
    data[:, 20:28] = np.frombuffer(b"MQSTR   ", np.uint8)
    data[:, 32:56] = chance.integers(0, 256, (count // _PER_GROUP, 24), np.uint8)[group]
    numbers = {4: 2, 8: _HEAD, 12: 546, 16: 1208, 56: seq, 60: piece * _DATA, 64: flags, 68: -1}
    for at, value in numbers.items():
        data[:, at : at + 4] = np.broadcast_to(value, count).astype("<i4").reshape(-1, 1).view(np.uint8)
    data[:, _HEAD:] = chance.integers(0, 256, (count, _DATA), np.uint8)
    order = np.argsort(group + chance.integers(0, _MIXED, count), kind="stable")
    whole = data[order].tobytes()
    size = _HEAD + _DATA
    return [
        (_TOPIC % (g % 16), whole[k * size : (k + 1) * size]) for k, g in enumerate(group[order].tolist())
    ]


def _write_table(directory: Path, rows: list[tuple[str, bytes]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir()
    table = pa.table(
        {
            "topic": pa.array([topic for topic, _ in rows]),
            "payload": pa.array([payload for _, payload in rows], pa.binary()),
            "time_ns": pa.array(range(len(rows)), pa.int64()),
        }
    )
    quarter = -(-len(rows) // 4)
    for k in range(4):
        pq.write_table(table.slice(k * quarter, quarter), directory / f"part-{k}.parquet", compression="zstd")
    return directory


def _frame(topic: str, payload: bytes) -> bytes:
    """Return a PUBLISH at QoS 0."""
    size = 2 + len(topic) + len(payload)
    return b"\x30%c%c\x00%c%b%b" % (size & 127 | 128, size >> 7, len(topic), topic.encode(), payload)


# -- the other variants, which assume that nothing is missing or duplicated -------------------------------------------

_GROUP_ID = "substring(payload, 33, 24)"
_WHOLE = "topic string, group_id binary, seq int, payload binary"


def _number(at: int) -> str:
    """Return a little-endian integer in SQL; `at` counts from 1."""
    digits = ", ".join(f"hex(substring(payload, {at + k}, 1))" for k in (3, 2, 1, 0))
    return f"int(conv(concat({digits}), 16, 10))"


def _fields(table: DataFrame) -> DataFrame:
    data = f"substring(payload, {_HEAD + 1}) data"
    return table.selectExpr("topic", f"{_GROUP_ID} group_id", f"{_number(57)} seq", f"{_number(61)} at", data)


def _collect_list(table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    pieces = f.array_sort(f.collect_list(f.struct("at", "data")))
    grouped = _fields(table).groupBy("topic", "group_id", "seq").agg(pieces.alias("pieces"))
    return grouped.selectExpr(
        "topic", "group_id", "seq", "aggregate(pieces, X'', (all, one) -> concat(all, one.data)) payload"
    )


def _join(table: Any) -> Any:
    """Join one group, for applyInArrow."""
    import pyarrow as pa

    rows = table.sort_by([("seq", "ascending"), ("at", "ascending")]).to_pydict()
    found: dict[int, list[bytes]] = {}
    for seq, data in zip(rows["seq"], rows["data"], strict=True):
        found.setdefault(seq, []).append(data)
    n = len(found)
    columns = [
        rows["topic"][:n],
        rows["group_id"][:n],
        list(found),
        [b"".join(each) for each in found.values()],
    ]
    kinds = (pa.string(), pa.binary(), pa.int32(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, ["topic", "group_id", "seq", "payload"])


def _apply_in_arrow(table: DataFrame) -> DataFrame:
    return _fields(table).groupBy("topic", "group_id").applyInArrow(_join, _WHOLE)


def _sorted(table: DataFrame) -> DataFrame:
    """Run repartition, sortWithinPartitions and mapInArrow with headwater's function."""
    from headwater_spark.logical import _work
    from headwater_spark.tables import LOGICAL_MESSAGES

    met = table.selectExpr("*", f"{_GROUP_ID} group_id").repartition("topic", "group_id")
    ordered = met.sortWithinPartitions("topic", "group_id", "time_ns").drop("group_id")
    return ordered.mapInArrow(partial(_work, 1 << 20, 1 << 28), LOGICAL_MESSAGES.ddl)


def _count(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], ["n"])


def _met(table: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return table.repartition("topic", f.expr(_GROUP_ID)).mapInArrow(_count, "n long")


# -- measuring -------------------------------------------------------------------------------------------------------


def _ways(spark: SparkSession, folder: Path) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return the variants: the number of segments, and the function to run."""
    from headwater_spark.logical import logical_messages

    rows = segments(SEGMENTS)
    table = spark.read.parquet(str(_write_table(folder / "all", rows)))
    few = spark.read.parquet(str(_write_table(folder / "few", segments(SEGMENTS // _SHARE))))
    log = write_log(folder / "log", lambda number: _frame(*rows[number]), SEGMENTS)

    def sink(make: Callable[[DataFrame], DataFrame], source: DataFrame = table) -> Callable[[], object]:
        return lambda: make(source).write.format("noop").mode("overwrite").save()

    for way in (logical_messages, _sorted, _collect_list, _apply_in_arrow):
        check = way(few).selectExpr("count(*) n", "sum(length(payload)) size").collect()[0]
        assert (check.n, check.size) == (SEGMENTS // _SHARE // _PER_MESSAGE, SEGMENTS // _SHARE * _DATA), way
    return {
        "floor: Parquet scan": (SEGMENTS, sink(lambda frame: frame)),
        "floor: repartition by group, rows counted in Python": (SEGMENTS, sink(_met)),
        "logical_messages": (SEGMENTS, sink(logical_messages)),
        "the same behind sortWithinPartitions": (SEGMENTS, sink(_sorted)),
        _BASE: (SEGMENTS, sink(_collect_list)),
        "applyInArrow, 100,000 segments": (SEGMENTS // _SHARE, sink(_apply_in_arrow, few)),
        "pipeline, capture log to five tables": (SEGMENTS, lambda: run_pipeline(spark, log, folder / "out")),
    }


def run() -> list[dict[str, object]]:
    """Return a row per variant: median, least and most of the rounds, and the ratio of medians to collect_list."""
    from headwater_spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = local_session("headwater bench", "local[2]", _SETTINGS)
    rates: dict[str, list[float]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
            ways = _ways(spark, Path(folder))
            # The first round warms up.
            for number in range(_ROUNDS + 1):
                for what, (count, work) in ways.items():
                    began = time.perf_counter()
                    work()
                    seconds = time.perf_counter() - began
                    if number:
                        rates.setdefault(what, []).append(count / seconds / 1e6)
                        print(f"bench: {what}: {seconds:.2f} s", file=sys.stderr, flush=True)
    finally:
        spark.stop()
    base = statistics.median(rates[_BASE])
    return [
        {
            "what": what,
            "M segments/s": f"{statistics.median(found):.3f}",
            "least to most": f"{min(found):.3f} to {max(found):.3f}",
            "of collect_list": f"{statistics.median(found) / base:.2f}",
        }
        for what, found in rates.items()
    ]
