"""Bring `device_health` and `reconciliation` up to date with the messages of a batch.

The hours of the batch's files of `messages`, changed copies included, are computed again from all messages of these
hours. Tasks read them, some hours each; the driver joins the results with the stored rows (`headwater_spark.health`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headwater_spark import records
from headwater_spark.arrow import Rows, numbers, one
from headwater_spark.delta import Change
from headwater_spark.engine import Engine
from headwater_spark.health import (
    COLUMNS,
    DAY_NS,
    HOUR_NS,
    RECORDED,
    START,
    changed,
    extent,
    reconcile,
    refresh,
    windows,
)
from headwater_spark.part import Job
from headwater_spark.progress import Step
from headwater_spark.tables import DEVICE_HEALTH, MESSAGES, RECONCILIATION, File, Table, Writer

# Approximate number of messages that a task reads.
_TASK_ROWS = 1_000_000


class Span(NamedTuple):
    """Work of a task: messages from one hour up to another, and the files that may have them."""

    first_ns: int
    end_ns: int
    paths: list[str]


def derive(
    engine: Engine,
    job: Job,
    before: Mapping[str, Sequence[File]],
    messages: Change,
    sent: Sequence[str | os.PathLike[str]] = (),
    since: int = 0,
) -> dict[str, Change]:
    """Write the files of both tables and return the tables' changes.

    `before` has the files of each table before the batch, `messages` what the batch changes in that table. `sent` are
    files with boards' own records. `since` is the batch up to which both tables are complete.
    """
    gone = set(messages.remove)
    live = [file for file in before[MESSAGES.name] if file.path not in gone] + messages.add
    touched = _hours(file for file in live if _batch(file) > since)
    if not len(touched):
        return {}
    spans = divide(touched, live, 2 * engine.slots)
    step = Step("updating device_health")
    found = engine.run(range(len(spans)), partial(_windows, job.out / MESSAGES.name, spans), step)
    rows = pa.concat_tables([table.cast(DEVICE_HEALTH.plain) for table in found])
    first_ns, end_ns = extent(touched)
    # Whole days, because a changed day's files are replaced.
    days = {str(np.datetime64(day, "D")) for day in range(first_ns // DAY_NS, (end_ns - 1) // DAY_NS + 1)}
    near = [file for file in before[DEVICE_HEALTH.name] if file.date in days]
    stored = _read(job.out, DEVICE_HEALTH, near)
    after = refresh(stored, rows, touched)
    renewed = changed(stored, after)
    dates = {str(np.datetime64(day, "D")) for day in renewed}
    kept = np.isin(numbers(after["time_ns"]) // DAY_NS, renewed)
    sums = _read(job.out, RECONCILIATION, before[RECONCILIATION.name])
    new_sums = reconcile(sums, stored, after, _recorded(job.out / MESSAGES.name, live, sent))
    changes = {
        DEVICE_HEALTH.name: Change(
            _write(job, DEVICE_HEALTH, after.filter(pa.array(kept))),
            [file.path for file in near if file.date in dates],
        )
    }
    if not new_sums.equals(sums):
        replaced = [file.path for file in before[RECONCILIATION.name]]
        changes[RECONCILIATION.name] = Change(_write(job, RECONCILIATION, new_sums), replaced)
    return changes


def _batch(file: File) -> int:
    """Return the number of the batch that wrote a file: its name begins with it."""
    return int(file.path.rpartition("/")[2].partition("-")[0])


def _hours(files: Iterable[File]) -> Rows:
    """Return the starts of the hours that files may have messages of."""
    spans = [(file.first_ns, file.last_ns) for file in files]
    hours = [
        np.arange(first // HOUR_NS, last // HOUR_NS + 1)
        for first, last in spans
        if first is not None and last is not None
    ]
    found: Rows = np.unique(np.concatenate(hours)) * HOUR_NS if hours else np.zeros(0, np.int64)
    return found


def divide(touched: Rows, files: Sequence[File], tasks: int) -> list[Span]:
    """Divide hours into spans with about equally many messages, at least `tasks` if there are many messages.

    A file's messages count as spread evenly over its hours.
    """
    weight = np.zeros(len(touched))
    for file in files:
        if file.first_ns is None or file.last_ns is None:
            continue
        low, high = file.first_ns // HOUR_NS * HOUR_NS, file.last_ns // HOUR_NS * HOUR_NS
        mine = slice(np.searchsorted(touched, low), np.searchsorted(touched, high, side="right"))
        weight[mine] += file.rows / ((high - low) // HOUR_NS + 1)
    share = min(_TASK_ROWS, max(weight.sum() / tasks, _TASK_ROWS / 10))
    number = (np.cumsum(weight) - weight / 2) // share
    # Hours that are not consecutive are not read together: those between them may have many messages.
    apart = np.cumsum(np.append(0, np.diff(touched) != HOUR_NS))
    edges = np.flatnonzero((np.diff(number) != 0) | (np.diff(apart) != 0)) + 1
    spans = []
    for hours in np.split(touched, edges):
        first_ns, end_ns = int(hours[0]), int(hours[-1]) + HOUR_NS
        paths = [
            file.path
            for file in files
            if file.first_ns is not None
            and file.last_ns is not None
            and file.first_ns < end_ns
            and file.last_ns >= first_ns
        ]
        spans.append(Span(first_ns, end_ns, paths))
    return spans


def _windows(folder: Path, spans: Sequence[Span], number: int) -> Any:
    """Compute the rows of `device_health` of a span."""
    span = spans[number]
    schema = pa.schema([MESSAGES.arrow.field(name) for name in COLUMNS])
    if not span.paths:
        return windows(schema.empty_table())
    files = ds.dataset([str(folder / path) for path in span.paths], schema=schema, format="parquet")
    time_ns = ds.field("time_ns")
    return windows(files.to_table(filter=(time_ns >= span.first_ns) & (time_ns < span.end_ns)))


def _recorded(folder: Path, files: Sequence[File], sent: Sequence[str | os.PathLike[str]]) -> Any:
    """Compare boards' own records with their messages, by start."""
    rows: list[dict[str, Any]] = []
    found = records.read(sent)
    if not found:
        return None
    schema = pa.schema([MESSAGES.plain.field(name) for name in ("board", "boot", "seq")])
    paths = [str(folder / file.path) for file in files]
    chosen = ds.dataset(paths, schema=schema, format="parquet").to_table(
        filter=ds.field("board").isin(pa.array(list(found), pa.string()))
    )
    for board, record in found.items():
        mine = chosen.filter(pc.equal(chosen["board"], board))
        stored = set(zip(mine["boot"].to_pylist(), mine["seq"].to_pylist(), strict=True))
        counts = {
            name: Counter(boot for boot, _ in keys)
            for name, keys in (
                ("sent", record.sent),
                ("acknowledged", record.acknowledged),
                ("lost", record.lost(stored)),
            )
        }
        rows += [
            {"board": board, "boot": boot, **{name: count[boot] for name, count in counts.items()}}
            for boot in counts["sent"]
        ]
    return pa.Table.from_pylist(rows, pa.schema([RECONCILIATION.plain.field(n) for n in (*START, *RECORDED)]))


def _read(out: Path, table: Table, files: Sequence[File]) -> Any:
    if not files:
        return table.arrow.empty_table()
    paths = [str(out / table.name / file.path) for file in files]
    return ds.dataset(paths, schema=table.plain, format="parquet").to_table().cast(table.arrow)


def _write(job: Job, table: Table, rows: Any) -> list[File]:
    with Writer(table, job.out, f"{job.number:06d}") as writer:
        rows = rows.unify_dictionaries()
        writer.write({name: one(rows[name]) for name in table.names})
    return writer.files
