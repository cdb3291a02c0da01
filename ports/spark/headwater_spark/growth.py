"""Let tables grow: take what is new in the logs, and commit it to each table once.

A batch goes through these steps; after a crash, the next run goes on where the batch stopped:

1. **plan**: the positions up to which the batch reads become durable. They, not the log's end, decide what it reads.
2. **files**: tasks write Parquet files that no table has yet; their list becomes durable.
3. **commits**: each table gains its files in one commit with the batch's number, unless it has that commit.
4. **position**: retention learns that the logs were read up to these positions.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headwater_host.capture.filesystem import Location, is_remote
from headwater_host.capture.log_id import LogIdError, log_id
from headwater_host.capture.readers import save_reader
from headwater_spark import buckets, delta
from headwater_spark.batches import GROW, WORK, Batches, BatchFiles, BatchPlan, BusyError, LogRange, writing
from headwater_spark.columns import Stored
from headwater_spark.compaction import COMPACT, KEEP_HOURS, TARGET_BYTES, Compacted, merge_files, small_files
from headwater_spark.decoders import Decoder, registered
from headwater_spark.delta import Change
from headwater_spark.derived import derive
from headwater_spark.engine import Engine
from headwater_spark.identity import Identity
from headwater_spark.known import Known
from headwater_spark.messages import HORIZON_NS
from headwater_spark.part import Job
from headwater_spark.passes import Before, process
from headwater_spark.payload import Rules
from headwater_spark.plan import Log, Plan, Range, combine, plan
from headwater_spark.positions import Position
from headwater_spark.requarantine import REQUARANTINE, take
from headwater_spark.result import Result
from headwater_spark.sizes import BATCH_ROWS, MAX_MESSAGE, PARTITION_BYTES
from headwater_spark.tables import DERIVED, MESSAGES, QUARANTINE, TABLES

# Minimum bytes of a part.
_LEAST_BYTES = 1 << 20

# In the order of their commits.
_ALL = (*TABLES, *DERIVED)

Say = Callable[[str], None]
#: A streaming query's id and its number of the batch.
BatchId = tuple[str, int]


def grow(
    engine: Engine,
    logs: Sequence[Log | Location],
    out: Path,
    *,
    upto: Mapping[str, Position] | None = None,
    batch_id: BatchId | None = None,
    partition_bytes: int = PARTITION_BYTES,
    batch_rows: int = BATCH_ROWS,
    logical_topics: Sequence[str] = (),
    horizon_ns: int = HORIZON_NS,
    max_message: int = MAX_MESSAGE,
    identity: Mapping[str, str] | Iterable[str] = (),
    decoders: Mapping[str, Callable[..., Any]] | Iterable[Decoder] = (),
    sent: Sequence[str | os.PathLike[str]] = (),
    derive_every_s: float = 0,
    say: Say = lambda text: None,
) -> Result:
    """Add one batch to the tables in `out`: what is new in `logs`. Returns its numbers.

    A log is known by its id, so it may move: from a gateway to an object store, for example. A path or URI is a log
    without storage options.

    `upto` has the position where the batch ends, by log id; by default it ends at the end of each log. `batch_id`
    names a batch of a streaming query: a batch that the tables have is not added again.

    `logical_topics` are MQTT filters of the topics whose MQMDEs are reassembled; by default all. `max_message` is
    the maximum payload size in `logical_messages`. A message repeats only one that was received at most `horizon_ns`
    before or after it. `sent` are files with boards' own records (`headwater_spark.records`), which the table
    `reconciliation` compares. `derive_every_s` is the least time between updates of `device_health` and
    `reconciliation`: a batch that comes earlier leaves them to a later one.

    `identity` has sources of board, boot, seq and t (`headwater_spark.identity`), and `decoders`
    functions by topic filter (`headwater_spark.decoders`). A batch that was interrupted is completed with its own
    settings, but with these decoders.

    Raises ValueError for an invalid source or filter, FileNotFoundError or NotADirectoryError without a log,
    `LogIdError` for copies of one log,
    `batches.BusyError` when another run writes to `out`, and `delta.OldTablesError` when `out` contains something else
    under a table's name.
    """
    began = time.monotonic()
    settings = {
        "logical_topics": list(logical_topics),
        "max_message": max_message,
        "horizon_ns": horizon_ns,
        "identity": Identity.parse(identity).texts(),
    }
    with writing(out):
        delta.check(out, _ALL)
        known = _by_id(logs)
        captures = [log.location for log in known.values()]
        run = _Run(engine, out, known, partition_bytes, batch_rows, registered(decoders), sent, say)
        run.derive_every_s = derive_every_s
        completed = run.complete()
        last = run.batches.last()
        before = last or BatchPlan(0, f"tables-{secrets.token_hex(4)}", {}, {}, settings)
        queries = dict(before.queries)
        if batch_id is not None:
            query, number = batch_id
            if queries.get(query, -1) >= number:
                return Result(captures, combine([]), before.number, completed)
            queries[query] = number
        for table in _ALL:
            delta.create(out, table)
        ranges, plans = run.news(before.positions, upto)
        if not any(one.partitions for one in plans) and batch_id is None:
            return Result(captures, combine(plans), before.number, completed)
        positions = before.positions | {log: part.end for log, part in ranges.items()}
        batch = BatchPlan(before.number + 1, before.tables, ranges, positions, settings, queries)
        stored = run.batches.plan(batch)
        result = run.carry_out(stored, plans if stored == batch else None)
        result.completed = completed
        result.seconds = time.monotonic() - began
        return result


def compact(
    engine: Engine,
    out: Path,
    *,
    target_bytes: int = TARGET_BYTES,
    keep_hours: int = KEEP_HOURS,
    say: Say = lambda text: None,
) -> Compacted:
    """Merge small files of the tables in `out` and remove files that no table needs.

    Files of one date become files of up to `target_bytes`. Readers of the versions before are not disturbed: replaced
    files, and files of interrupted runs, are removed when they are older than `keep_hours`, which must be longer than
    any query and any run. Raises as `grow` does, and BusyError when a batch was interrupted before its files were
    listed.
    """
    with writing(out):
        delta.check(out, _ALL)
        run = _Run(engine, out, {}, PARTITION_BYTES, BATCH_ROWS, (), (), say)
        run.check_growth()
        last = run.batches.last()
        run.complete()
        result = Compacted(_count(out))
        if last is None:
            return result
        if any(small_files(delta.live(out, table).files, target_bytes) for table in _ALL):
            settings = last.settings | {COMPACT: {"target_bytes": target_bytes}}
            batch = replace(last, number=last.number + 1, logs={}, settings=settings, kind=COMPACT)
            run.carry_out(run.batches.plan(batch))
        for table in _ALL:
            result.removed += delta.vacuum(out, table, keep_hours)
        result.after = _count(out)
        return result


def _count(out: Path) -> dict[str, int]:
    there = [table for table in _ALL if (out / table.name).exists()]
    return {table.name: len(delta.live(out, table).files) for table in there}


def requarantine(
    engine: Engine,
    out: Path,
    *,
    batch_rows: int = BATCH_ROWS,
    identity: Mapping[str, str] | Iterable[str] | None = None,
    decoders: Mapping[str, Callable[..., Any]] | Iterable[Decoder] = (),
    say: Say = lambda text: None,
) -> Result:
    """Decode the frames and messages in quarantine again, as one batch. Returns its numbers.

    Those that are good now go into the tables, as if they were new; the others stay, with the reasons of today. A
    message whose decoder failed is decoded only if `decoders` has its filter. `identity` is by default that of the
    last batch. After a crash, nothing has changed, or the next run completes the batch. Raises as `compact` does, and
    FileNotFoundError without tables.
    """
    began = time.monotonic()
    with writing(out):
        delta.check(out, _ALL)
        run = _Run(engine, out, {}, PARTITION_BYTES, batch_rows, registered(decoders), (), say)
        run.check_growth()
        completed = run.complete()
        last = run.batches.last()
        if last is None:
            raise FileNotFoundError(f"{out} has no tables")
        settings = dict(last.settings)
        if identity is not None:
            settings["identity"] = Identity.parse(identity).texts()
        batch = replace(last, number=last.number + 1, logs={}, settings=settings, kind=REQUARANTINE)
        result = run.decode_again(run.batches.plan(batch))
        run.carry_out(batch)
        result.completed = completed
        result.seconds = time.monotonic() - began
        return result


def _by_id(logs: Sequence[Log | Location]) -> dict[str, Log]:
    """Return logs by their ids. Raises LogIdError if two have the same."""
    found: dict[str, Log] = {}
    for given in logs:
        log = given if isinstance(given, Log) else Log.at(given)
        known = found.setdefault(log_id(*log), log)
        if known != log:
            raise LogIdError(f"{known.location} and {log.location} are copies of one log: name one of them")
    return found


class _Run:
    """One run: it completes an open batch and adds another."""

    def __init__(
        self,
        engine: Engine,
        out: Path,
        logs: Mapping[str, Log],
        partition_bytes: int,
        batch_rows: int,
        decoders: tuple[Decoder, ...],
        sent: Sequence[str | os.PathLike[str]],
        say: Say,
    ):
        self._logs = logs
        self.batches = Batches(out)
        self._engine = engine
        self._out = out
        self._partition_bytes = partition_bytes
        self._batch_rows = batch_rows
        self._decoders = decoders
        self._sent = sent
        #: Least time between updates of the derived tables, in s.
        self.derive_every_s = 0.0
        self._say = say

    def check_growth(self) -> None:
        """Raise BusyError when only the pipeline, which has the logs and decoders, can complete the last batch."""
        last = self.batches.last()
        if last is not None and last.kind == GROW and self.batches.files(last.number) is None:
            raise BusyError(f"batch {last.number} was interrupted: run the pipeline, which completes it")

    def complete(self) -> list[int]:
        """Complete the last batch if a crash has left it open. Returns the numbers of such batches."""
        last = self.batches.last()
        if last is None:
            return []
        files = self.batches.files(last.number)
        if files is not None and all(
            delta.done(self._out, name, last.number) for name, change in files.changes.items() if change
        ):
            return []
        self._say(f"completing batch {last.number}, which was interrupted")
        self.carry_out(last)
        return [last.number]

    def news(
        self, positions: Mapping[str, Position], upto: Mapping[str, Position] | None
    ) -> tuple[dict[str, LogRange], list[Plan]]:
        """Return what is new in each log, and its parts."""
        ranges, plans = {}, []
        for log, one in self._logs.items():
            if upto is not None and log not in upto:
                continue
            start = positions.get(log)
            made = self._plan(one, start, None if upto is None else upto[log])
            plans.append(made)
            if made.end is not None and made.end != start:
                ranges[log] = LogRange(one.location, start, made.end)
        return ranges, plans

    def _plan(self, log: Log, start: Position | None, end: Position | None) -> Plan:
        slots = 2 * self._engine.slots
        return plan(
            log.location,
            self._partition_bytes,
            slots,
            _LEAST_BYTES,
            start=start,
            upto=end,
            storage=log.storage,
        )

    def carry_out(self, batch: BatchPlan, plans: list[Plan] | None = None) -> Result:
        """Write a planned batch's files, unless they are listed, and commit them.

        `plans` are those of its ranges, if they were just made.
        """
        files = self.batches.files(batch.number)
        result = Result([one.path for one in batch.logs.values()], combine([]), batch.number)
        if files is None and batch.kind == REQUARANTINE:
            # Only the command has the decoders; what it has not finished stays in quarantine.
            files = self.batches.list_files(
                batch.number, BatchFiles({}, asdict(self._before(batch.number).known))
            )
        if files is None and batch.kind != GROW:
            files = self._write_other(batch)
        if files is None:
            plans = plans or [
                self._plan(self._logs.get(log, Log(one.path)), one.start, one.end)
                for log, one in batch.logs.items()
            ]
            result, files = self._write(batch, combine(plans))
        note = {"batch": batch.number, "positions": batch.positions}
        for table in _ALL:
            change = files.changes.get(table.name)
            if change:
                is_new = batch.kind != COMPACT
                delta.commit(self._out, table, batch.number, change, note, data_change=is_new)
        self._save_positions(batch)
        self.batches.forget(Known.from_json(files.known).files())
        shutil.rmtree(self._out / WORK, ignore_errors=True)
        return result

    def _write(self, batch: BatchPlan, log: Plan) -> tuple[Result, BatchFiles]:
        result = Result([one.path for one in batch.logs.values()], log, batch.number)
        self._say(
            f"{log.records} records in {log.blocks} blocks, {log.bytes / 1e6:.1f} MB, "
            f"{len(log.partitions)} parts"
        )
        span = (log.first_ns, log.last_ns)
        with self._work(batch) as work:
            files = self._process(batch, result, work, log.partitions, span, log.bytes, log.records)
            return result, self.batches.list_files(batch.number, files)

    def decode_again(self, batch: BatchPlan) -> Result:
        """Write and list the files of what the frames in quarantine give today."""
        result = Result([], combine([]), batch.number)
        with self._work(batch) as work:
            files = delta.live(self._out, QUARANTINE).files
            filters = [decoder.filter for decoder in self._decoders]
            taken = take(self._out, files, batch.number, work / batch.kind, filters)
            if not taken.count:
                return result
            result.taken = taken.count
            self._say(f"decoding {taken.count} frames in quarantine again")
            span = (taken.first_ns, taken.last_ns)
            found = self._process(batch, result, work, taken.partitions, span, taken.size, taken.count)
            # If all are as bad as before, the files that were written belong to no table.
            if result.rows[QUARANTINE.name] < taken.count:
                found.changes[QUARANTINE.name].add += taken.change.add
                found.changes[QUARANTINE.name].remove += taken.change.remove
                self.batches.list_files(batch.number, found)
            return result

    @contextmanager
    def _work(self, batch: BatchPlan) -> Iterator[Path]:
        """Provide a path for the files that a batch needs only while it runs."""
        work = (self._out / WORK / f"{batch.number:06d}-{secrets.token_hex(4)}").absolute()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _process(
        self,
        batch: BatchPlan,
        result: Result,
        work: Path,
        partitions: list[list[Range]] | list[list[Stored]],
        span: tuple[int, int],
        size: int,
        records: int,
    ) -> BatchFiles:
        """Process parts with `size` bytes in all, received in a span of time. Adds numbers to `result`."""
        logical = buckets.Options(
            tuple(batch.settings["logical_topics"]),
            batch.settings["max_message"],
            buckets.buckets(size, self._engine.slots),
        )
        job = Job(
            self._out.absolute(),
            work,
            batch.number,
            partitions,
            self._batch_rows,
            logical,
            batch.settings["horizon_ns"],
            Rules(Identity.parse(batch.settings["identity"]), self._decoders),
        )
        before = self._before(batch.number)
        done = process(self._engine, job, span, before, self._say, records)
        result.again, result.candidates = done.again, done.candidates
        result.collect(done.parts)
        files = BatchFiles({table.name: Change() for table in TABLES})
        for part in done.parts:
            for name, added in part.files.items():
                files.changes[name].add += added
            for name, replaced in part.replaced.items():
                files.changes[name].remove += replaced
        known, now_s = before.known, time.time()
        if now_s < known.derived_s or now_s - known.derived_s >= self.derive_every_s:
            changed = files.changes[MESSAGES.name]
            files.changes |= derive(self._engine, job, before.files, changed, self._sent, known.derived)
            known.derived, known.derived_s = batch.number, now_s
        files.known = asdict(known)
        return files

    def _write_other(self, batch: BatchPlan) -> BatchFiles:
        """Write the files of a batch that reads no log."""
        before = self._before(batch.number)
        job = Job(self._out.absolute(), self._out / WORK, batch.number, [], self._batch_rows)
        changes = merge_files(self._engine, job, before.files, **batch.settings[COMPACT])
        if before.known.derived == batch.number - 1:
            before.known.derived = batch.number
        return self.batches.list_files(batch.number, BatchFiles(changes, asdict(before.known)))

    def _before(self, number: int) -> Before:
        files = self.batches.files(number - 1)
        known = Known.from_json({} if files is None else files.known)
        tables = {table.name: delta.live(self._out, table).files for table in _ALL}
        return Before(known, self.batches.folder, tables)

    def _save_positions(self, batch: BatchPlan) -> None:
        """Let retention remove what the tables have."""
        for one in batch.logs.values():
            if is_remote(one.path):
                continue  # nothing removes segments there
            try:
                save_reader(Path(one.path), batch.tables, one.end.sequence)
            except OSError as error:
                self._say(f"{one.path}: cannot save the position for retention: {error}")
