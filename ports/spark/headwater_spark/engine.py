"""What the pipeline asks of Spark: run a function once per part, bring rows together that must meet."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headwater_spark.part import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: ``work(number) -> Part``: decode, settle and write part ``number``.
Work = Callable[[int], Part]
#: ``settle(number, batches) -> Part``: settle the candidates in some record batches, at least one, as part
#: ``number``.
Settle = Callable[[int, list[Any]], Part]


class Engine(Protocol):
    """Runs the pipeline's work somewhere."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(self, numbers: Sequence[int], work: Work) -> list[Part]:
        """Call ``work`` once for each number; a task that failed may be called again."""
        ...

    def settle(self, folder: Path, tasks: int, first: int, settle: Settle) -> list[Part]:
        """Call ``settle`` for disjoint sets of the rows of the Parquet files in ``folder``.

        The sets are numbered from ``first`` on. Rows that are equal in the column ``meet`` are in one set;
        there are ``tasks`` sets, some may be empty.
        """
        ...


class SparkEngine:
    """Spark runs it."""

    def __init__(self, spark: SparkSession):
        self._spark = spark
        self.slots = spark.sparkContext.defaultParallelism

    def run(self, numbers: Sequence[int], work: Work) -> list[Part]:
        """One task per part."""
        if not numbers:
            return []
        # Not mapInArrow: its workers import pandas, which takes seconds on a small machine.
        return self._spark.sparkContext.parallelize(numbers, len(numbers)).map(work).collect()

    def settle(self, folder: Path, tasks: int, first: int, settle: Settle) -> list[Part]:
        """Spark's shuffle brings the rows together."""

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = [batch for batch in batches if batch.num_rows]
            if found:
                from pyspark import TaskContext

                context = TaskContext.get()
                number = first + (context.partitionId() if context is not None else 0)
                packed = pa.array([pickle.dumps(settle(number, found))], pa.binary())
                yield pa.RecordBatch.from_arrays([packed], ["part"])

        waiting = self._spark.read.parquet(str(folder))
        rows = waiting.repartition(tasks, "meet").mapInArrow(work, "part binary").collect()
        # Our own tasks' answers, over Spark's own connection.
        parts: list[Part] = [pickle.loads(bytes(row.part)) for row in rows]
        return sorted(parts, key=lambda part: part.number)
