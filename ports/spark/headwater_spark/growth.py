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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater_host.capture.filesystem import Location
from headwater_host.capture.log_id import log_id
from headwater_spark.batches import BatchPlan, writing
from headwater_spark.compaction import COMPACT, KEEP_HOURS, TARGET_BYTES, Compacted, small_files
from headwater_spark.decoders import Decoder, registered
from headwater_spark.engine import Engine
from headwater_spark.identity import Identity
from headwater_spark.messages import HORIZON_NS
from headwater_spark.place import Place
from headwater_spark.plan import Log, by_id, combine
from headwater_spark.positions import Position
from headwater_spark.requarantine import REQUARANTINE
from headwater_spark.result import Result
from headwater_spark.run import ALL, Options, Run, Say
from headwater_spark.sizes import BATCH_ROWS, MAX_MESSAGE, PARTITION_BYTES

#: A streaming query's id and its number of the batch.
BatchId = tuple[str, int]


def grow(
    engine: Engine,
    logs: Sequence[Log | Location],
    out: Location | Place,
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
    work: Path | None = None,
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
    `reconciliation`: a batch that comes earlier leaves them to a later one, which may have no messages. `work` is a
    directory for files that are needed only while a batch runs, and that all executors see; by default, it is in `out`,
    or this machine's directory for temporary files if `out` is in an object store.

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
    options = Options(partition_bytes, batch_rows, registered(decoders), sent, derive_every_s, work, say)
    place = Place.at(out)
    with writing(place):
        known = _by_id(logs)
        captures = [log.location for log in known.values()]
        run = Run(engine, place, options, known)
        completed = run.complete()
        while True:
            before = run.last or BatchPlan(0, f"tables-{secrets.token_hex(4)}", {}, {}, settings)
            queries = dict(before.queries)
            if batch_id is not None:
                query, number = batch_id
                if queries.get(query, -1) >= number:
                    return Result(captures, combine([]), before.number, completed)
                queries[query] = number
            for table in ALL:
                run.tables.create(table)
            ranges, plans = run.news(before.positions, upto)
            if not any(one.partitions for one in plans) and batch_id is None and not run.late():
                return Result(captures, combine(plans), before.number, completed)
            positions = before.positions | {log: part.end for log, part in ranges.items()}
            batch = BatchPlan(before.number + 1, before.tables, ranges, positions, settings, queries)
            if run.plan(batch):
                break
            completed += run.complete()
        _warn_of_changes(before, settings, say)
        result = run.carry_out(batch, plans)
        result.completed = completed
        result.seconds = time.monotonic() - began
        return result


def _warn_of_changes(before: BatchPlan, settings: Mapping[str, Any], say: Say) -> None:
    """Say which settings differ from those of the batch before, so that duplicates across the two are not found."""
    if before.kind == REQUARANTINE:
        return  # its identity is for what it takes out of quarantine
    for name, what in (("identity", "the sources of the identity"), ("horizon_ns", "the horizon")):
        if name in before.settings and before.settings[name] != settings[name]:
            say(
                f"warning: {what} changed since batch {before.number}: duplicates of messages that the tables have "
                "may be stored"
            )


def compact(
    engine: Engine,
    out: Location | Place,
    *,
    target_bytes: int = TARGET_BYTES,
    keep_hours: int = KEEP_HOURS,
    work: Path | None = None,
    say: Say = lambda text: None,
) -> Compacted:
    """Merge small files of the tables in `out` and remove files that no table needs.

    Files of one date become files of up to `target_bytes`. Readers of the versions before are not disturbed: replaced
    files, and files of interrupted runs, are removed when they are older than `keep_hours`, which must be longer than
    any query and any run. Raises as `grow` does, FileNotFoundError without tables, and BusyError when a batch was
    interrupted before its files were listed.
    """
    place = Place.at(out)
    with writing(place):
        run = Run(engine, place, Options(work=work, say=say))
        run.complete()
        if run.last is None:
            raise FileNotFoundError(f"{out} has no tables")
        result = Compacted(_count(run))
        while any(small_files(run.tables.live(table).files, target_bytes) for table in ALL):
            settings = run.last.settings | {COMPACT: {"target_bytes": target_bytes}}
            batch = _after(run.last, settings, COMPACT)
            if run.plan(batch):
                run.carry_out(batch)
                break
            run.complete()
        for table in ALL:
            result.removed += run.tables.vacuum(table, keep_hours)
        result.after = _count(run)
        return result


def _count(run: Run) -> dict[str, int]:
    return {table.name: len(run.tables.live(table).files) for table in ALL}


def requarantine(
    engine: Engine,
    out: Location | Place,
    *,
    batch_rows: int = BATCH_ROWS,
    identity: Mapping[str, str] | Iterable[str] | None = None,
    decoders: Mapping[str, Callable[..., Any]] | Iterable[Decoder] = (),
    work: Path | None = None,
    say: Say = lambda text: None,
) -> Result:
    """Decode the frames and messages in quarantine again, as one batch. Returns its numbers.

    Those that are good now go into the tables, as if they were new; the others stay, with the reasons of today. A
    message whose decoder failed is decoded only if `decoders` has its filter. `identity` is by default that of the
    last batch. After a crash, nothing has changed, or the next run completes the batch. Raises as `compact` does, and
    FileNotFoundError without tables.
    """
    began = time.monotonic()
    place = Place.at(out)
    with writing(place):
        options = Options(batch_rows=batch_rows, decoders=registered(decoders), work=work, say=say)
        run = Run(engine, place, options)
        completed = run.complete()
        while True:
            if run.last is None:
                raise FileNotFoundError(f"{place} has no tables")
            settings = dict(run.last.settings)
            if identity is not None:
                settings["identity"] = Identity.parse(identity).texts()
            batch = _after(run.last, settings, REQUARANTINE)
            if run.plan(batch):
                break
            completed += run.complete()
        result = run.decode_again(batch)
        result.completed = completed
        result.seconds = time.monotonic() - began
        return result


def _after(last: BatchPlan, settings: dict[str, Any], kind: str) -> BatchPlan:
    """Return the batch after `last`, one that reads no log."""
    return replace(last, number=last.number + 1, logs={}, settings=settings, kind=kind)


def _by_id(given: Sequence[Log | Location]) -> dict[str, Log]:
    """Return logs by their ids. Raises LogIdError if two have the same."""
    logs = [log if isinstance(log, Log) else Log.at(log) for log in given]
    return by_id((log_id(*log), log) for log in logs)
