"""Run the tasks of a batch.

Spark runs one task per part of the log. A task decodes, settles and writes its part column by column, and returns
counts (`headwater_spark.task`); frames never enter the JVM. Parts whose ranges of messages overlap each other or those
of earlier batches (`headwater_spark.overlaps`) run again, and Spark brings together the rows that they set aside, with
stored ones (`headwater_spark.stored`). Then tasks reassemble IBM MQ groups and segments (`headwater_spark.buckets`),
and finally write changed copies of stored files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from headwater_host.progress import Step
from headwater_spark import overlaps
from headwater_spark.candidates import CANDIDATES, Aside, settle_candidates
from headwater_spark.engine import Engine
from headwater_spark.known import Entry, Known, merge_runs
from headwater_spark.part import Job, Part
from headwater_spark.place import Place
from headwater_spark.segments import Hashes
from headwater_spark.stored import Edit, edit, find_copies, find_segments
from headwater_spark.table_files import File
from headwater_spark.tables import FRAMES, LOGICAL_MESSAGES, MESSAGES, TELEMETRY
from headwater_spark.task import reassemble
from headwater_spark.task import run as run_part
from headwater_spark.topics import hash_text

# Approximate number of candidates per task.
_CANDIDATES = 500_000

Say = Callable[[str], None]


@dataclass(frozen=True)
class Before:
    """The tables before a batch: what is known of them, the folder of that, and the files of each table."""

    known: Known
    folder: Place
    files: Mapping[str, Sequence[File]]


@dataclass
class Done:
    """The reports of all tasks, the parts that ran again, and the number of rows that had to meet."""

    parts: list[Part]
    again: int
    candidates: int


def process(
    engine: Engine, job: Job, span: tuple[int, int], before: Before, say: Say, records: int = 0
) -> Done:
    """Run a job's tasks. `span` has the least and greatest receive time of its records, `records` their number.

    Updates `before.known` to what is known after the batch.
    """
    return _Batch(engine, job, span, before, say, records).process()


class _Batch:
    def __init__(
        self, engine: Engine, job: Job, span: tuple[int, int], before: Before, say: Say, records: int
    ):
        self._engine = engine
        self._records = records
        self._job = job
        self._span = span
        self._near = span[0] - job.horizon_ns, span[1] + job.horizon_ns
        self._before = before
        self._say = say
        self._parts: dict[int, Part] = {}

    def process(self) -> Done:
        engine, job, known = self._engine, self._job, self._before.known
        numbers = range(len(job.partitions))
        size = sum(int(one.end - one.start) for ranges in job.partitions for one in ranges)
        step = Step("reading", self._records, size)
        self._parts = {part.number: part for part in engine.run(numbers, partial(run_part, job), step)}
        runs = merge_runs(part.runs for part in self._parts.values())
        hashes = set().union(*(part.hashes for part in self._parts.values()))
        names = set().union(*(part.names for part in self._parts.values()))
        renamed = self._names({*hashes, *known.hashes}, names)
        aside, again, olds = self._aside({text: renamed[text] for text in hashes & renamed.keys()})
        settled: list[Part] = []
        if aside:
            self._say(f"{len(again)} parts may share messages or topics: reading them again")
            settled = self._run_again(aside, again, olds)
        found = [*self._parts.values(), *settled]
        groups = np.unique(np.concatenate([np.zeros(0, np.uint64), *(part.groups for part in found)]))
        goes_on, segments = self._goes_on(groups)
        count = sum(part.segments for part in (*found, *segments))
        if count:
            self._say(f"{count} messages have an MQMDE: reassembling them")
            found += engine.run(
                range(job.logical.buckets), partial(reassemble, job), Step("reassembling", count)
            )
        edits = self._edits(
            settled, goes_on, {text: renamed[text] for text in renamed.keys() & {*known.hashes}}
        )
        found += engine.run(range(len(edits)), partial(edit, job, edits), Step("changing stored files"))
        candidates = sum(part.rows.pop(CANDIDATES.name, 0) for part in found)
        folder, number = self._before.folder, job.number
        known.add("runs", folder, number, runs, self._span, job.horizon_ns)
        known.add("groups", folder, number, groups, self._span, job.horizon_ns)
        known.add_names(folder, number, names)
        known.hashes = sorted({*known.hashes, *hashes} - renamed.keys())
        return Done(found, len(again), candidates)

    def _names(self, hashes: set[str], names: set[str]) -> dict[str, str]:
        """Return the names of topics given as a hash, as far as they are known."""
        if not hashes:
            return {}
        every = names | self._before.known.load_names(self._before.folder)
        return {text: name for name in every if (text := hash_text(name)) in hashes}

    def _aside(self, topics: dict[str, str]) -> tuple[Aside, list[int], list[File]]:
        """Return what a second pass needs to know, the parts that it reads, and files with stored rows."""
        parts = self._parts.values()
        known = self._before.known.near("runs", self._before.folder, *self._near)
        shared = overlaps.shared(((part.number, part.runs) for part in parts), [runs for _, runs in known])
        # Nothing precedes the first part of the first batch.
        first = not self._before.known.entries["runs"] and not self._before.files.get(MESSAGES.name)
        keys = frozenset(key for part in parts if part.number or not first for key in part.unresolved)
        times = sorted({key.time_ns for key in keys})
        again = set(shared.parts)
        for part in parts:
            low, high = part.span or (0, -1)
            if part.unresolved & keys or _meets(times, low, high):
                again.add(part.number)
        again |= {part.number for part in parts if not topics.keys().isdisjoint(part.hashes)}
        olds = self._stored([known[k][0] for k in shared.before], times)
        return Aside(shared.ranges, keys, topics), sorted(again), olds

    def _stored(self, entries: Sequence[Entry], times: Sequence[int] = ()) -> list[File]:
        """Return the files of `messages` with rows of the entries' batches, or received at one of the times."""
        return [
            file
            for file in self._files(MESSAGES.name)
            if file.first_ns is not None
            and file.last_ns is not None
            and (
                any(entry.near(file.first_ns, file.last_ns) for entry in entries)
                or _meets(times, file.first_ns, file.last_ns)
            )
        ]

    def _files(self, name: str) -> list[File]:
        files = self._before.files.get(name, ())
        return sorted(files, key=lambda file: (file.first_ns or 0, file.path))

    def _run_again(self, aside: Aside, again: Sequence[int], olds: Sequence[File]) -> list[Part]:
        """Run parts again and settle what they set aside. Replaces the parts and returns those of the candidates."""
        engine, job = self._engine, self._job
        rows = 0
        for part in engine.run(again, partial(run_part, job, aside=aside), Step("reading again")):
            before = self._parts[part.number]
            part.rows[FRAMES.name] = before.rows[FRAMES.name]
            part.files[FRAMES.name] = before.files.pop(FRAMES.name, [])
            for name, files in before.files.items():
                for file in files:
                    (job.out / name / file.path).remove()
            self._parts[part.number] = part
            rows += part.rows[CANDIDATES.name]
        if not rows:
            return []
        stored = engine.run(range(len(olds)), partial(find_copies, job, olds, aside))
        rows += sum(part.rows[CANDIDATES.name] for part in stored)
        tasks = max(engine.slots, -(-rows // _CANDIDATES))
        folder = job.work / CANDIDATES.name
        return engine.settle(folder, tasks, len(job.partitions), partial(settle_candidates, job))

    def _goes_on(self, groups: Hashes) -> tuple[Hashes, list[Part]]:
        """Return the groups that earlier batches have begun, after passing on their stored segments."""
        job = self._job
        goes_on: Hashes = np.zeros(0, np.uint64)
        entries = []
        if len(groups):
            for entry, theirs in self._before.known.near("groups", self._before.folder, *self._near):
                both = np.intersect1d(groups, theirs, assume_unique=True)
                if len(both):
                    entries.append(entry)
                    goes_on = np.union1d(goes_on, both)
        if not len(goes_on):
            return goes_on, []
        olds = self._stored(entries)
        return goes_on, self._engine.run(range(len(olds)), partial(find_segments, job, olds, goes_on))

    def _edits(self, settled: Sequence[Part], goes_on: Hashes, names: dict[str, str]) -> list[Edit]:
        """Return the changes of stored files."""
        edits: dict[tuple[str, str], Edit] = {}
        receipts: dict[str, dict[int, int]] = {}
        for part in settled:
            for path, rows in part.receipts.items():
                receipts.setdefault(path, {}).update(rows)
        for file in self._files(MESSAGES.name) if receipts else ():
            if file.path in receipts:
                edits[MESSAGES.name, file.path] = Edit(MESSAGES, file, receipts[file.path])
        for file in self._files(LOGICAL_MESSAGES.name) if len(goes_on) else ():
            edits[LOGICAL_MESSAGES.name, file.path] = Edit(LOGICAL_MESSAGES, file, groups=goes_on)
        for table in (MESSAGES, LOGICAL_MESSAGES, TELEMETRY) if names else ():
            for file in self._files(table.name):
                key = table.name, file.path
                edits[key] = replace(edits.get(key, Edit(table, file)), names=names)
        return list(edits.values())


def _meets(times: Sequence[int], low: int, high: int) -> bool:
    """Return whether one of the sorted times is between `low` and `high`."""
    at = bisect_left(times, low)
    return at < len(times) and times[at] <= high
