"""Run the tasks of a batch.

Spark runs one task per part of the log. A task decodes, settles and writes its part column by column, and returns
counts (`headwater_spark.task`); frames never enter the JVM. Parts whose ranges of messages overlap
(`headwater_spark.overlaps`) run again, and Spark brings together the rows that they set aside. Finally, tasks
reassemble IBM MQ groups and segments (`headwater_spark.buckets`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from headwater_spark import overlaps
from headwater_spark.candidates import CANDIDATES, Aside, settle_candidates
from headwater_spark.engine import Engine
from headwater_spark.part import Job, Part
from headwater_spark.result import Result
from headwater_spark.tables import FRAMES
from headwater_spark.task import find_names, reassemble
from headwater_spark.task import run as run_part

# Approximate number of candidates per task.
_CANDIDATES = 500_000

Say = Callable[[str], None]


def process(engine: Engine, job: Job, result: Result, say: Say) -> list[Part]:
    """Run a job's tasks and return their reports. Adds numbers to `result`."""
    parts = {part.number: part for part in engine.run(range(len(job.partitions)), partial(run_part, job))}
    settled: list[Part] = []
    aside, again = _aside(parts.values(), _topics(engine, job, parts.values()))
    if aside:
        say(f"{len(again)} parts may share messages or topics: reading them again")
        settled = _run_again(engine, job, parts, aside, again)
    together: list[Part] = []
    count = sum(part.segments for part in (*parts.values(), *settled))
    if count:
        say(f"{count} messages have an MQMDE: reassembling them")
        together = engine.run(range(job.logical.buckets), partial(reassemble, job))
    found = [*parts.values(), *settled, *together]
    result.again = len(again)
    result.candidates = sum(part.rows.pop(CANDIDATES.name, 0) for part in found)
    result.collect(found)
    return found


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
        before = parts[part.number]
        part.rows[FRAMES.name] = before.rows[FRAMES.name]
        part.files[FRAMES.name] = before.files.pop(FRAMES.name)
        for name, files in before.files.items():
            for file in files:
                (job.out / name / file.path).unlink(missing_ok=True)
        parts[part.number] = part
    count = sum(parts[number].rows[CANDIDATES.name] for number in again)
    if not count:
        return []
    tasks = max(engine.slots, -(-count // _CANDIDATES))
    return engine.settle(
        job.work / CANDIDATES.name, tasks, len(job.partitions), partial(settle_candidates, job)
    )
