"""Turn a capture log into tables and a report.

Spark runs one task per part of the log. A task decodes, settles and writes its part column by column, and returns
counts (`headwater_spark.task`); frames never enter the JVM. Parts whose ranges of messages overlap
(`headwater_spark.overlaps`) run again, and Spark brings together the rows that they set aside. Finally, tasks
reassemble IBM MQ groups and segments (`headwater_spark.buckets`).
"""

from __future__ import annotations

import shutil
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from headwater_host.capture.problem import Problem
from headwater_spark import buckets, overlaps
from headwater_spark.candidates import CANDIDATES, Aside, settle_candidates
from headwater_spark.commit import new_run
from headwater_spark.engine import Engine, SparkEngine
from headwater_spark.part import Job, Part
from headwater_spark.plan import Plan, plan
from headwater_spark.sizes import BATCH_ROWS, MAX_MESSAGE, PARTITION_BYTES
from headwater_spark.stats import Slots, Stats, add
from headwater_spark.tables import FRAMES, TABLES, Table
from headwater_spark.task import find_names, reassemble
from headwater_spark.task import run as run_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Files in a run's folder beside the tables.
REPORT_FILES = ("report.json", "report.html", "chart.png")
# Minimum bytes of a part.
_LEAST_BYTES = 1 << 20
# Approximate number of candidates per task.
_CANDIDATES = 500_000

Say = Callable[[str], None]


@dataclass
class Result:
    """The results of a run."""

    capture: Path
    plan: Plan
    #: Rows by table.
    rows: Counter[str] = field(default_factory=Counter)
    #: Frames and messages by protocol.
    frames: Counter[int] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    #: Logical messages of IBM MQ by kind: ``buckets.KINDS``.
    logical: Counter[str] = field(default_factory=Counter)
    undecoded: Counter[tuple[int, int]] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    stats: Stats = field(default_factory=dict)
    slots: Slots = field(default_factory=lambda: Slots(0, 1_000_000))
    #: Parts that ran twice, and rows that Spark shuffled.
    again: int = 0
    candidates: int = 0
    #: Kept messages that may be duplicates.
    possible_duplicates: int = 0
    seconds: float = 0.0

    @property
    def duplicates(self) -> int:
        """Return how many frames repeat a message."""
        received = sum(stat.received for stat in self.stats.values())
        stored = sum(stat.stored for stat in self.stats.values())
        return received - stored - self.quarantined["identity_conflict"]


def run(spark: SparkSession, capture: Path, out: Path, **settings: Any) -> Result:
    """Run the pipeline on Spark; see `run_on` for the settings.

    Every executor must see `capture` and `out` at the same paths.
    """
    return run_on(SparkEngine(spark), capture, out, **settings)


def run_on(
    engine: Engine,
    capture: Path,
    out: Path,
    *,
    partition_bytes: int = PARTITION_BYTES,
    batch_rows: int = BATCH_ROWS,
    logical_topics: Sequence[str] = (),
    max_message: int = MAX_MESSAGE,
    report: Callable[[Result, Path], object] | None = None,
    say: Say = lambda text: None,
) -> Result:
    """Run the pipeline. When it returns, `out` has the tables and what `report` writes.

    `logical_topics` are MQTT filters of the topics whose MQMDEs are reassembled; by default all. `max_message` is
    the maximum payload size in `logical_messages`.

    The same log gives the same tables. Raises FileNotFoundError or NotADirectoryError without a log,
    `commit.BusyError` when another run writes to `out`, and FileExistsError when `out` contains something else
    under a table's name.
    """
    began = time.monotonic()
    log = plan(capture, partition_bytes, 2 * engine.slots, _LEAST_BYTES)
    result = Result(capture, log, slots=Slots.over(log.first_ns, log.last_ns))
    say(
        f"{log.records} records in {log.blocks} blocks, {log.bytes / 1e6:.1f} MB, {len(log.partitions)} parts"
    )
    with new_run(out, [table.name for table in TABLES] + list(REPORT_FILES)) as folder:
        for table in TABLES:
            (folder / table.name).mkdir()
        logical = buckets.Options(
            tuple(logical_topics), max_message, buckets.buckets(log.bytes, engine.slots)
        )
        job = Job(folder.absolute(), log.partitions, batch_rows, result.slots, logical)
        parts = {part.number: part for part in engine.run(range(len(log.partitions)), partial(run_part, job))}
        settled: list[Part] = []
        aside, again = _aside(parts.values(), _topics(engine, job, parts.values()))
        if aside:
            say(f"{len(again)} parts may share messages or topics: reading them again")
            settled = _run_again(engine, job, parts, aside, again)
        together: list[Part] = []
        count = sum(part.segments for part in (*parts.values(), *settled))
        if count:
            say(f"{count} messages have an MQMDE: reassembling them")
            together = engine.run(range(logical.buckets), partial(reassemble, job))
        _collect(result, [*parts.values(), *settled, *together])
        result.again = len(again)
        _complete(folder)
        result.seconds = time.monotonic() - began
        if report is not None:
            report(result, folder)
    return result


def _topics(engine: Engine, job: Job, parts: Iterable[Part]) -> dict[str, str]:
    """Return the names of topics given as a hash, as far as the log has them."""
    hashes = frozenset(text for part in parts for text in part.hashes)
    if not hashes:
        return {}
    found = engine.run(range(len(job.partitions)), partial(find_names, job, hashes))
    return {text: name for part in found for text, name in part.topics.items()}


def _aside(parts: Iterable[Part], topics: dict[str, str]) -> tuple[Aside, list[int]]:
    """Return what a second pass needs to know, and the parts that it reads."""
    parts = list(parts)
    shared = overlaps.shared((part.number, part.runs) for part in parts)
    keys = frozenset(key for part in parts for key in part.unresolved)
    times = sorted({key.time_ns for key in keys})
    again = set(shared.parts)
    for part in parts:
        low, high = part.span or (0, -1)
        # If the part contains the earliest time from ``low`` on, it may contain the original.
        at = bisect_left(times, low)
        if part.unresolved or (at < len(times) and times[at] <= high):
            again.add(part.number)
    again |= {part.number for part in parts if not topics.keys().isdisjoint(part.hashes)}
    return Aside(shared.ranges, keys, topics), sorted(again)


def _run_again(
    engine: Engine, job: Job, parts: dict[int, Part], aside: Aside, again: Sequence[int]
) -> list[Part]:
    """Run parts again and settle what they set aside. Updates `parts` and returns those of the candidates."""
    for part in engine.run(again, partial(run_part, job, aside=aside)):
        part.rows[FRAMES.name] = parts[part.number].rows[FRAMES.name]
        parts[part.number] = part
    count = sum(parts[number].rows[CANDIDATES.name] for number in again)
    if not count:
        return []
    tasks = max(engine.slots, -(-count // _CANDIDATES))
    return engine.settle(
        job.out / CANDIDATES.name, tasks, len(job.partitions), partial(settle_candidates, job)
    )


def _collect(result: Result, parts: Sequence[Part]) -> None:
    result.problems = list(result.plan.problems)
    for part in parts:
        result.rows.update(part.rows)
        result.frames.update(part.frames)
        result.messages.update(part.messages)
        result.logical.update(part.logical)
        result.undecoded.update(part.undecoded)
        result.quarantined.update(part.quarantined)
        result.problems += part.problems
        result.possible_duplicates += part.doubtful
    result.candidates = result.rows.pop(CANDIDATES.name, 0)
    result.stats = add(part.stats for part in parts)


def _complete(folder: Path) -> None:
    """Write files for tables without rows, so that every table is readable, and remove temporary files."""
    for table in TABLES:
        if not any((folder / table.name).glob("part-*.parquet")):
            _empty(folder / table.name, table)
    for name in (CANDIDATES.name, buckets.FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


def _empty(folder: Path, table: Table) -> None:
    pq.write_table(table.arrow.empty_table(), folder / "part-000000.parquet", store_schema=False)
