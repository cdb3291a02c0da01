"""Bring `device_health` and `reconciliation` up to date with the messages of a batch.

The hours of the batch's messages, changed copies included, are computed again from all messages of these hours. Tasks
took tallies of the batch's own messages when they wrote them (`headwater_spark.tally`). Those of the last hours are
stored with each batch (`headwater_spark.known`); of other hours, tasks read the stored messages. The driver joins the
results with the stored rows (`headwater_spark.health`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headwater_host.progress import Step
from headwater_spark import records, tally
from headwater_spark.arrow import Rows, numbers, one
from headwater_spark.delta import Change
from headwater_spark.engine import Engine
from headwater_spark.health import (
    DAY_NS,
    RECORDED,
    START,
    changed,
    extent,
    reconcile,
    refresh,
    windows,
)
from headwater_spark.known import Recent
from headwater_spark.part import Job, Part
from headwater_spark.passes import Before
from headwater_spark.place import Place
from headwater_spark.table_files import File, Writer
from headwater_spark.tables import DEVICE_HEALTH, MESSAGES, RECONCILIATION, Table
from headwater_spark.tally import HOUR_NS, Tallied

# Approximate number of messages that a task reads, if they are of several hours.
_TASK_ROWS = 1_000_000
# Number of hours whose tally is stored with a batch: messages may be late.
_RECENT_HOURS = 3
# Tallies are merged however far apart their hours are: a clock may be wrong.
_ANY_NS = 1 << 62
# Number of messages that a task reads at a time.
_READ_ROWS = 1 << 18


class Tallies(NamedTuple):
    """The tallies that a batch has, and the hours for which they are enough."""

    #: The tallies of its own messages.
    new: list[Tallied]
    #: Those of further copies of stored messages.
    copies: list[Tallied]
    #: The starts of the hours whose earlier messages are in tallies that are stored, in ns.
    recent: frozenset[int]
    #: The starts of the hours that have no messages but all of these.
    complete: frozenset[int]
    #: The files with the batch's own messages.
    files: frozenset[str]


class Span(NamedTuple):
    """Work of a task: messages from one hour up to another, in files and in tallies."""

    first_ns: int
    end_ns: int
    paths: list[str]
    tallies: list[str]


def tallies_of(before: Before, parts: Sequence[Part]) -> Tallies:
    """Return the tallies of a batch's tasks, and for which hours they are enough with the stored ones."""
    own = [part for part in parts if part.tallied.hours and not part.replaced]
    new = [part.tallied for part in own]
    copies = [part.tallied for part in parts if part.tallied.hours and part.replaced]
    stored, recent = before.files.get(MESSAGES.name, ()), before.known.recent
    complete = {hour for one in new for hour in one.hours} - set(_hours(stored).tolist())
    valid = all(_batch(file) <= recent.batch for file in stored)
    counted = frozenset(recent.hours if valid else ())
    files = frozenset(file.path for part in own for file in part.files.get(MESSAGES.name, ()))
    return Tallies(new, copies, counted, frozenset(complete | counted), files)


def _recall(job: Job, before: Before, hours: frozenset[int]) -> list[Tallied]:
    """Make the stored tallies of some hours one tally in the batch's work directory."""
    if not hours:
        return []
    found = tally.merge(
        [one for _, one in before.known.near("tallies", before.folder, min(hours), max(hours))]
    )
    some = found.filter(pa.array(np.isin(numbers(found["time_ns"]), list(hours))))
    return [tally.write(some, job.work, "recent")]


def remember(job: Job, before: Before, tallies: Tallies) -> None:
    """Store the batch's tally of the last hours. Changes what is known."""
    known, added = before.known, [*tallies.new, *tallies.copies]
    if not added:
        return
    new = {hour for one in tallies.new for hour in one.hours}
    hours = [*sorted(new, reverse=True), *sorted(tallies.complete - new, reverse=True)]
    kept = [hour for hour in hours if hour in tallies.complete][:_RECENT_HOURS]
    found = [some for hour in kept for some in tally.read(job.work, _with(added, hour), hour, hour + HOUR_NS)]
    entries = known.entries["tallies"]
    if kept:
        span = min(kept), max(kept)
        known.add("tallies", before.folder, job.number, tally.merge(found), span, _ANY_NS)
    entries[:] = [one for one in entries if any(one.near(hour, hour) for hour in kept)]
    known.recent = Recent(job.number, kept)


def derive(
    engine: Engine,
    job: Job,
    before: Before,
    messages: Change,
    tallies: Tallies,
    sent: Sequence[str | os.PathLike[str]] = (),
) -> dict[str, Change]:
    """Write the files of both tables and return the tables' changes.

    `messages` is what the batch changes in that table. `sent` are files with boards' own records.
    """
    files, since = before.files, before.known.derived
    gone = set(messages.remove)
    live = [file for file in files[MESSAGES.name] if file.path not in gone] + messages.add
    others = [file for file in live if file.path not in tallies.files]
    touched = np.union1d(
        _hours(file for file in files[MESSAGES.name] if _batch(file) > since),
        np.array([hour for one in (*tallies.new, *tallies.copies) for hour in one.hours], np.int64),
    )
    if not len(touched) and not sent:
        return {}
    complete = np.isin(touched, list(tallies.complete))
    recent = _recall(job, before, tallies.recent)
    spans = divide(touched[complete], [], [*recent, *tallies.new, *tallies.copies], 2 * engine.slots)
    spans += divide(touched[~complete], others, tallies.new, 2 * engine.slots)
    if len(spans) == 1 and not spans[0].paths:
        found = [_rows(job, spans[0])]  # done before Spark would have begun
    else:
        step = Step("updating device_health")
        found = engine.run(range(len(spans)), partial(_task, job, spans), step)
    none = DEVICE_HEALTH.plain.empty_table()
    rows = pa.concat_tables([none, *(table.cast(DEVICE_HEALTH.plain) for table in found)])
    first_ns, end_ns = extent(touched)
    # Whole days, because a changed day's files are replaced.
    days = {str(np.datetime64(day, "D")) for day in range(first_ns // DAY_NS, (end_ns - 1) // DAY_NS + 1)}
    near = [file for file in files[DEVICE_HEALTH.name] if file.date in days]
    stored = _read(job.out, DEVICE_HEALTH, near)
    after = refresh(stored, rows, touched)
    renewed = changed(stored, after)
    dates = {str(np.datetime64(day, "D")) for day in renewed}
    kept = np.isin(numbers(after["time_ns"]) // DAY_NS, renewed)
    sums = _read(job.out, RECONCILIATION, files[RECONCILIATION.name])
    new_sums = reconcile(sums, stored, after, _recorded(job.out, live, sent))
    changes = {
        DEVICE_HEALTH.name: Change(
            _write(job, DEVICE_HEALTH, after.filter(pa.array(kept))),
            [file.path for file in near if file.date in dates],
        )
    }
    if not new_sums.equals(sums):
        replaced = [file.path for file in files[RECONCILIATION.name]]
        changes[RECONCILIATION.name] = Change(_write(job, RECONCILIATION, new_sums), replaced)
    return changes


def _with(tallies: Sequence[Tallied], hour: int) -> list[str]:
    return [one.name for one in tallies if hour in one.hours]


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


def divide(touched: Rows, files: Sequence[File], tallies: Sequence[Tallied], tasks: int) -> list[Span]:
    """Divide hours into spans with about equally many rows, at least `tasks` if there are many.

    A file's messages count as spread evenly over its hours.
    """
    if not len(touched):
        return []
    weight = np.zeros(len(touched))
    for file in files:
        if file.first_ns is None or file.last_ns is None:
            continue
        low, high = file.first_ns // HOUR_NS * HOUR_NS, file.last_ns // HOUR_NS * HOUR_NS
        mine = slice(np.searchsorted(touched, low), np.searchsorted(touched, high, side="right"))
        weight[mine] += file.rows / ((high - low) // HOUR_NS + 1)
    for one_tally in tallies:
        hours, rows = (
            np.array([*column], np.int64) for column in (one_tally.hours, one_tally.hours.values())
        )
        here = np.isin(hours, touched)
        weight[np.searchsorted(touched, hours[here])] += rows[here]
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
        names = [one.name for one in tallies if any(first_ns <= hour < end_ns for hour in one.hours)]
        spans.append(Span(first_ns, end_ns, paths, names))
    return spans


def _task(job: Job, spans: Sequence[Span], number: int) -> Any:
    job.begin()
    return _rows(job, spans[number])


def _rows(job: Job, span: Span) -> Any:
    """Compute the rows of `device_health` of a span."""
    found = [*tally.read(job.work, span.tallies, span.first_ns, span.end_ns)]
    if span.paths:
        schema = pa.schema([MESSAGES.arrow.field(name) for name in tally.COLUMNS])
        time_ns = ds.field("time_ns")
        inside = (time_ns >= span.first_ns) & (time_ns < span.end_ns)
        files = _dataset(job.out, MESSAGES, span.paths, schema)
        # The tallies of many boards are not much smaller than the messages.
        for batch in files.to_batches(filter=inside, batch_size=_READ_ROWS):
            found = [tally.merge([*found, tally.tally(pa.table(batch))])]
    return windows(tally.merge(found))


def _recorded(out: Place, files: Sequence[File], sent: Sequence[str | os.PathLike[str]]) -> Any:
    """Compare boards' own records with their messages, by start."""
    rows: list[dict[str, Any]] = []
    found = records.read(sent)
    if not found:
        return None
    schema = pa.schema([MESSAGES.plain.field(name) for name in ("board", "boot", "seq")])
    chosen = _dataset(out, MESSAGES, [file.path for file in files], schema).to_table(
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


def _dataset(out: Place, table: Table, paths: Sequence[str], schema: Any) -> Any:
    """Return files of a table as a pyarrow dataset."""
    found, folder = (out / table.name).arrow()
    files = [f"{folder}/{path}" for path in paths]
    return ds.dataset(files, schema=schema, format="parquet", filesystem=found)


def _read(out: Place, table: Table, files: Sequence[File]) -> Any:
    if not files:
        return table.arrow.empty_table()
    found = _dataset(out, table, [file.path for file in files], table.plain)
    return found.to_table().cast(table.arrow)


def _write(job: Job, table: Table, rows: Any) -> list[File]:
    with Writer(table, job.out, f"{job.number:06d}") as writer:
        rows = rows.unify_dictionaries()
        writer.write({name: one(rows[name]) for name in table.names})
    return writer.files
