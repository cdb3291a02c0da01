"""Run functions in Spark tasks: once per part, and on rows that have to meet."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from headwater_host.progress import Display, Step
from headwater_spark.part import Part
from headwater_spark.progress import reporting, rows_in
from headwater_spark.session import NO_CONNECT, ConnectError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP = Step("working")
_GROUP = "spark.jobGroup.id"

#: The result of a task.
T = TypeVar("T")
#: ``work(number)``: decode, settle and write part ``number``, or other work.
Work = Callable[[int], T]
#: ``settle(number, batches) -> Part``: settle the candidates in some record batches, at least one, as part
#: ``number``.
Settle = Callable[[int, list[Any]], Part]


class Engine(Protocol):
    """Run the pipeline's work, in Spark or in a test's process."""

    @property
    def slots(self) -> int:
        """Return how many tasks run at a time."""
        ...

    def run(self, numbers: Sequence[int], work: Work[T], step: Step = _STEP) -> list[T]:
        """Call `work` once for each number. A failed task may be called again. `step` names the work for a display."""
        ...

    def settle(self, folder: Path, tasks: int, first: int, settle: Settle) -> list[Part]:
        """Call `settle` for disjoint sets of the rows of the Parquet files in `folder`.

        The `tasks` sets are numbered from `first`; some may be empty. Rows with the same value in the column `meet`
        are in one set.
        """
        ...


@contextmanager
def _shown(
    display: Display, step: Step, tasks: int, completed: Callable[[], int], work: Work[T]
) -> Iterator[Work[T]]:
    """Show a step while the block runs. Provides the work as its tasks call it."""
    with TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as folder:

        def share() -> float:
            done = completed() / tasks
            return max(done, rows_in(folder) / step.rows) if step.rows else done

        with display.step(step, share):
            yield partial(reporting, folder, work)


class LocalEngine:
    """Run the work in this process, without Spark, and show the steps on `display`."""

    slots = 1

    def __init__(self, display: Display | None = None):
        self._display = display

    def run(self, numbers: Sequence[int], work: Work[T], step: Step = _STEP) -> list[T]:
        """Run one task after the other."""
        if self._display is None or not numbers:
            return [work(number) for number in numbers]
        done: list[T] = []
        with _shown(self._display, step, len(numbers), lambda: len(done), work) as shown:
            done.extend(shown(number) for number in numbers)
        return done

    def settle(self, folder: Path, tasks: int, first: int, settle: Settle) -> list[Part]:
        """Settle all rows at once."""
        batches = pq.read_table(folder).combine_chunks().to_batches()
        return [settle(first, batches)] if batches else []


class SparkEngine:
    """Run the work in Spark."""

    def __init__(self, spark: SparkSession, display: Display | None = None):
        """Run on `spark`, and show the steps on `display`. Raises ConnectError for a session of Spark Connect."""
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            raise ConnectError(NO_CONNECT)
        self._spark = spark
        self._display = display
        self.slots = spark.sparkContext.defaultParallelism

    def run(self, numbers: Sequence[int], work: Work[T], step: Step = _STEP) -> list[T]:
        """Run one task per part."""
        if not numbers:
            return []
        # Workers of mapInArrow import pandas, which takes seconds on a small machine.
        tasks = self._spark.sparkContext.parallelize(numbers, len(numbers))
        if self._display is None:
            return tasks.map(work).collect()
        with (
            self._group() as group,
            _shown(self._display, step, len(numbers), partial(self._completed, group), work) as shown,
        ):
            return tasks.map(shown).collect()

    @contextmanager
    def _group(self) -> Iterator[str]:
        """Give this thread's jobs a group, by which they are found. A streaming query has one already."""
        context = self._spark.sparkContext
        group = context.getLocalProperty(_GROUP)
        if group is not None:
            yield group
            return
        group = f"headwater-{secrets.token_hex(4)}"
        context.setLocalProperty(_GROUP, group)
        try:
            yield group
        finally:
            context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]  # None removes it

    def _completed(self, group: str) -> int:
        """Return how many of the running job's tasks are completed."""
        tracker = self._spark.sparkContext.statusTracker()
        done = 0
        for number in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(number)
            if job is not None and job.status == "RUNNING":
                stages = [tracker.getStageInfo(stage) for stage in job.stageIds]
                done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return done

    def settle(self, folder: Path, tasks: int, first: int, settle: Settle) -> list[Part]:
        """Let Spark shuffle the rows by `meet`."""

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = [batch for batch in batches if batch.num_rows]
            if found:
                from pyspark import TaskContext

                context = TaskContext.get()
                number = first + (context.partitionId() if context is not None else 0)
                packed = pa.array([pickle.dumps(settle(number, found))], pa.binary())
                yield pa.RecordBatch.from_arrays([packed], ["part"])

        waiting = self._spark.read.parquet(folder.as_uri())
        rows = waiting.repartition(tasks, "meet").mapInArrow(work, "part binary").collect()
        # These results come from tasks of this program over Spark's connection, so unpickling is safe.
        parts: list[Part] = [pickle.loads(bytes(row.part)) for row in rows]
        return sorted(parts, key=lambda part: part.number)
