"""Carry out batches of a set of tables: write their files, list them, and commit them to each table once.

`headwater_spark.growth` decides which batches there are.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from headwater_host.capture.filesystem import is_remote
from headwater_host.capture.readers import save_reader
from headwater_host.exits import explain
from headwater_spark import buckets
from headwater_spark.batches import GROW, WORK, Batches, BatchFiles, BatchPlan, BusyError, LogRange
from headwater_spark.columns import Stored
from headwater_spark.compaction import COMPACT, KEEP_HOURS, merge_files
from headwater_spark.decoders import Decoder
from headwater_spark.delta import Change, OldTablesError, Tables
from headwater_spark.derived import derive, remember, tallies_of
from headwater_spark.engine import Engine
from headwater_spark.identity import Identity
from headwater_spark.known import Known
from headwater_spark.part import Job
from headwater_spark.passes import Before, process
from headwater_spark.payload import Rules
from headwater_spark.place import Place
from headwater_spark.plan import Log, Plan, Range, combine, plan
from headwater_spark.positions import Position
from headwater_spark.requarantine import REQUARANTINE, take
from headwater_spark.result import Result
from headwater_spark.sizes import BATCH_ROWS, PARTITION_BYTES
from headwater_spark.tables import DERIVED, MESSAGES, QUARANTINE, TABLES

#: All tables, in the order of their commits.
ALL = (*TABLES, *DERIVED)
# Minimum bytes of a part.
_LEAST_BYTES = 1 << 20
# Beginning of the names of batches' directories.
_WORK = "headwater-batch-"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Options of a run. Which rows there are does not depend on them, except on the decoders."""

    partition_bytes: int = PARTITION_BYTES
    batch_rows: int = BATCH_ROWS
    decoders: tuple[Decoder, ...] = ()
    #: Files with boards' own records.
    sent: Sequence[str | os.PathLike[str]] = ()
    #: Least time between updates of the derived tables, in s.
    derive_every_s: float = 0
    #: Directory for files that a batch needs only while it runs, which all executors see. By default `_work` in the
    #: tables' directory; a temporary directory of this machine for tables in an object store.
    work: Path | None = None
    say: Say = lambda text: None


class Run:
    """One run: it completes an open batch and adds another."""

    def __init__(self, engine: Engine, place: Place, options: Options, logs: Mapping[str, Log] | None = None):
        """Open the tables. `logs` has the logs by id; without, only batches that read none can be completed.

        Raises OldTablesError when the place has something else under a table's name.
        """
        self._engine = engine
        self._place = place
        self._logs = logs
        self._options = options
        self._batches = Batches(place)
        #: The last batch, when the run began.
        self.last = self._batches.last()
        # Opened later, so that they have the commits of all batches before the last.
        self.tables = Tables(place)
        for name in self.tables.repair(ALL):
            options.say(f"removed {name}, which a power cut has damaged")
        self.tables.check(ALL)

    def complete(self) -> list[int]:
        """Complete the last batch if a crash has left it open. Returns the numbers of such batches.

        Raises BusyError if the batch reads logs and this run has none, OldTablesError if a table or the positions were
        removed.
        """
        last = self.last
        missing = [table.name for table in ALL if not self.tables.has(table)] if last is not None else []
        removed = sorted(self._batches.tables().intersection(missing)) if missing else []
        if removed:
            raise OldTablesError(
                f"{self._place / removed[0]} is missing, but earlier runs have written to it: restore it, or choose "
                "another directory for new tables"
            )
        if last is None:
            # The tables would take the next batches for those that they have, and stay as they are.
            if (
                any(self.tables.has(table) and self.tables.done(table.name, 1) for table in ALL)
                and self._batches.last() is None
            ):
                raise OldTablesError(
                    f"{self._place} has tables, but not their positions ({self._batches.folder}): restore that "
                    "directory, or choose another one for new tables"
                )
            return []
        files = self._batches.files(last.number)
        if files is None and last.kind == GROW and self._logs is None:
            raise BusyError(f"batch {last.number} was interrupted: run the pipeline, which completes it")
        if files is not None and all(
            self.tables.done(name, last.number) for name, change in files.changes.items() if change
        ):
            return []
        self._options.say(f"completing batch {last.number}, which was interrupted")
        self.carry_out(last)
        return [last.number]

    def late(self) -> bool:
        """Return whether the derived tables are due for an update by a batch without messages."""
        if self.last is None:
            return False
        known = self._before(self.last.number + 1).known
        return self._due(known) and (known.derived < self.last.number or bool(self._options.sent))

    def _due(self, known: Known) -> bool:
        now_s = time.time()
        return now_s < known.derived_s or now_s - known.derived_s >= self._options.derive_every_s

    def news(
        self, positions: Mapping[str, Position], upto: Mapping[str, Position] | None
    ) -> tuple[dict[str, LogRange], list[Plan]]:
        """Return what is new in each log, and its parts."""
        ranges, plans = {}, []
        for log, one in (self._logs or {}).items():
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
            self._options.partition_bytes,
            slots,
            _LEAST_BYTES,
            start=start,
            upto=end,
            storage=log.storage,
        )

    def plan(self, batch: BatchPlan) -> bool:
        """Plan a batch. Returns False if another run has planned one with its number, to be completed first."""
        self.last = self._batches.plan(batch)
        return self.last == batch

    def carry_out(self, batch: BatchPlan, plans: list[Plan] | None = None) -> Result:
        """Write a planned batch's files, unless they are listed, and commit them.

        `plans` are those of its ranges, if they were just made.
        """
        files = self._batches.files(batch.number)
        result = Result([one.path for one in batch.logs.values()], combine([]), batch.number)
        if files is None and batch.kind == REQUARANTINE:
            # Only the command has the decoders; what it has not finished stays in quarantine.
            files = self._batches.list_files(
                batch.number, BatchFiles({}, asdict(self._before(batch.number).known))
            )
        if files is None and batch.kind != GROW:
            files = self._write_other(batch)
        if files is None:
            plans = plans or [
                self._plan((self._logs or {}).get(log, Log(one.path)), one.start, one.end)
                for log, one in batch.logs.items()
            ]
            result, files = self._write(batch, combine(plans))
        note = {"batch": batch.number, "positions": batch.positions}
        for table in ALL:
            change = files.changes.get(table.name)
            if change:
                is_new = batch.kind != COMPACT
                self.tables.commit(table, batch.number, change, note, data_change=is_new)
        self._save_positions(batch)
        self._batches.forget(Known.from_json(files.known).files())
        if self._place.path is not None:
            # This run has the lock, so what is left is of runs that were killed.
            shutil.rmtree(self._place.path / WORK, ignore_errors=True)
        return result

    def _write(self, batch: BatchPlan, log: Plan) -> tuple[Result, BatchFiles]:
        result = Result([one.path for one in batch.logs.values()], log, batch.number)
        self._options.say(
            f"records: {log.records}, blocks: {log.blocks}, parts: {len(log.partitions)}, MB: {log.bytes / 1e6:.1f}"
        )
        span = (log.first_ns, log.last_ns)
        with self._work(batch) as work:
            files = self._process(batch, result, work, log.partitions, span, log.bytes, log.records)
            return result, self._batches.list_files(batch.number, files)

    def decode_again(self, batch: BatchPlan) -> Result:
        """Carry out a planned batch of what the frames in quarantine give today.

        Raises BusyError when another run has completed it without them.
        """
        result = self._decode_again(batch)
        self.carry_out(batch)
        return result

    def _decode_again(self, batch: BatchPlan) -> Result:
        """Write the files of a batch, and list them unless nothing has changed."""
        result = Result([], combine([]), batch.number)
        with self._work(batch) as work:
            files = self.tables.live(QUARANTINE).files
            filters = [decoder.filter for decoder in self._options.decoders]
            taken = take(self._place, files, batch.number, work / batch.kind, filters)
            if not taken.count:
                return result
            result.taken = taken.count
            self._options.say(f"decoding {taken.count} frames in quarantine again")
            span = (taken.first_ns, taken.last_ns)
            found = self._process(batch, result, work, taken.partitions, span, taken.size, taken.count)
            # If all are as bad as before, the files that were written belong to no table.
            if result.rows[QUARANTINE.name] < taken.count:
                found.changes[QUARANTINE.name].add += taken.change.add
                found.changes[QUARANTINE.name].remove += taken.change.remove
                if self._batches.list_files(batch.number, found).changes != found.changes:
                    raise BusyError(f"another run has ended batch {batch.number}: run this again")
            return result

    @contextmanager
    def _work(self, batch: BatchPlan) -> Iterator[Path]:
        """Provide a directory for the files that a batch needs only while it runs."""
        folder = self._place.path
        root = self._options.work or (Path(tempfile.gettempdir()) if folder is None else folder / WORK)
        _sweep(root)
        work = root.absolute() / f"{_WORK}{batch.number:06d}-{secrets.token_hex(4)}"
        work.mkdir(parents=True)
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
            self._place,
            work,
            batch.number,
            partitions,
            self._options.batch_rows,
            logical,
            batch.settings["horizon_ns"],
            Rules(Identity.parse(batch.settings["identity"]), self._options.decoders),
        )
        before = self._before(batch.number)
        known = before.known
        done = process(self._engine, job, span, before, self._options.say, records)
        result.again, result.candidates = done.again, done.candidates
        result.collect(done.parts)
        files = BatchFiles({table.name: Change() for table in TABLES})
        for part in done.parts:
            for name, added in part.files.items():
                files.changes[name].add += added
            for name, replaced in part.replaced.items():
                files.changes[name].remove += replaced
        tallies = tallies_of(before, done.parts)
        if self._due(known):
            changed = files.changes[MESSAGES.name]
            files.changes |= derive(self._engine, job, before, changed, tallies, self._options.sent)
            known.derived, known.derived_s = batch.number, time.time()
        remember(job, before, tallies)
        files.known = asdict(known)
        return files

    def _write_other(self, batch: BatchPlan) -> BatchFiles:
        """Write the files of a batch that reads no log."""
        before = self._before(batch.number)
        with self._work(batch) as work:
            job = Job(self._place, work, batch.number, [], self._options.batch_rows)
            changes = merge_files(self._engine, job, before.files, **batch.settings[COMPACT])
        known = before.known
        if known.derived == batch.number - 1:
            known.derived = batch.number
        # These files have the same messages.
        if known.recent.batch == batch.number - 1:
            known.recent = known.recent._replace(batch=batch.number)
        return self._batches.list_files(batch.number, BatchFiles(changes, asdict(known)))

    def _before(self, number: int) -> Before:
        files = self._batches.files(number - 1)
        known = Known.from_json({} if files is None else files.known)
        tables = {table.name: self.tables.live(table).files for table in ALL}
        return Before(known, self._batches.folder, tables)

    def _save_positions(self, batch: BatchPlan) -> None:
        """Let retention remove what the tables have."""
        for one in batch.logs.values():
            if is_remote(one.path):
                continue  # nothing removes segments there
            try:
                save_reader(Path(one.path), batch.tables, one.end.sequence)
            except OSError as error:
                self._options.say(f"{one.path}: cannot save the position for retention: {explain(error)}")


def _sweep(root: Path) -> None:
    """Remove the directories of batches that were killed."""
    with suppress(OSError):
        for path in root.glob(f"{_WORK}*"):
            if time.time() - path.stat().st_mtime > KEEP_HOURS * 3600:
                shutil.rmtree(path, ignore_errors=True)
