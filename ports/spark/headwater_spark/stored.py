"""Find and change rows that earlier batches have stored.

A row of `messages` that new rows may repeat joins them as a candidate (`headwater_spark.candidates`), and the segments
of a group that goes on are reassembled with the new ones. Only files whose times are near are read, key columns first.
A changed row is a changed copy of its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark import buckets, fmq, mqmde, tally
from headwater_spark.arrow import Bools, null_codes, numbers, one, strings, valid
from headwater_spark.candidates import CANDIDATES, Aside, Candidates
from headwater_spark.messages import COLUMNS
from headwater_spark.part import Job, Part
from headwater_spark.segments import Hashes, hashes
from headwater_spark.table_files import File, Writer, open_parquet
from headwater_spark.tables import MESSAGES, Table
from headwater_spark.topics import with_names

#: Columns of `messages` that decide whether a row is a candidate.
_KEYS = ["time_ns", "topic", "qos", "message_id", "board", "boot", "seq", "packet_id", "mark", "peer"]
_NO_GROUPS: Hashes = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Edit:
    """Changes of a stored file's rows."""

    table: Table
    file: File
    #: Further frames by row, for `messages`.
    receipts: dict[int, int] = field(default_factory=dict)
    #: Groups whose rows are replaced, for `logical_messages`.
    groups: Hashes = field(default_factory=lambda: _NO_GROUPS)
    #: Names of topics that are given as a hash.
    names: dict[str, str] = field(default_factory=dict)


class _Source(NamedTuple):
    """A stored file, by row groups."""

    file: Any

    @classmethod
    def open(cls, job: Job, table: Table, file: File) -> _Source:
        return cls(open_parquet(job.out / table.name / file.path))

    def group(self, number: int, columns: Sequence[str] | None = None) -> Any:
        # The partition is in the path, not in the file.
        return self.file.read_row_group(number, columns=columns)

    @property
    def groups(self) -> range:
        return range(self.file.num_row_groups)


def find_copies(job: Job, files: Sequence[File], aside: Aside, number: int) -> Part:
    """Set aside the rows of a file of `messages` that new rows may repeat."""
    job.begin()
    source = _Source.open(job, MESSAGES, files[number])
    with Candidates(aside, job.work, f"stored-{number:06d}") as candidates:
        first = 0
        for group in source.groups:
            keys = _unsettled(source.group(group, _KEYS))
            candidates.write_stored(keys, files[number].path, first, partial(_rows, source, group))
            first += keys.num_rows
    return Part(number, rows=Counter({CANDIDATES.name: candidates.rows}))


def _rows(source: _Source, group: int) -> Any:
    return _unsettled(source.group(group))


def _unsettled(rows: Any) -> Any:
    """Return rows of `messages` with COLUMNS; those that are not there are null."""
    n = rows.num_rows
    columns: dict[str, Any] = {}
    for f in COLUMNS:
        encoded = pa.types.is_dictionary(f.type)
        if f.name in rows.schema.names:
            column = one(rows[f.name])
            columns[f.name] = column.dictionary_encode().cast(f.type) if encoded else column
        else:
            columns[f.name] = null_codes(n) if encoded else pa.nulls(n, f.type)
    columns |= {"doubtful": pa.array(np.zeros(n, np.bool_)), "position": pa.array(np.zeros(n, np.int64))}
    ids = one(rows["message_id"])
    has = valid(ids)
    if has.any():
        origin, made_ns = fmq.parse_ids(ids.drop_null())
        place = np.cumsum(has) - 1
        columns["origin"] = strings(
            origin.indices.to_numpy()[np.where(has, place, 0)], origin.dictionary.to_pylist(), ~has
        )
        columns["made_ns"] = pa.array(made_ns[np.where(has, place, 0)], mask=~has)
    return pa.table([columns[name] for name in COLUMNS.names], COLUMNS)


def find_segments(job: Job, files: Sequence[File], groups: Hashes, number: int) -> Part:
    """Pass on the segments in a file of `messages` that belong to some groups."""
    job.begin()
    part = Part(number)
    source = _Source.open(job, MESSAGES, files[number])
    for group in source.groups:
        rows = source.group(group, ["topic", "payload", "time_ns"])
        columns = {name: one(rows[name]) for name in rows.schema.names}
        columns["topic"] = columns["topic"].cast(pa.string()).dictionary_encode()
        found = mqmde.decode(columns["payload"])
        good = np.flatnonzero(job.logical.counts(columns["topic"])[found.rows] & (found.reason == 0))
        if len(good):
            good = good[np.isin(_keys(columns["topic"], found.rows[good], found.group_id[good]), groups)]
        # Before the labels of parts: segments are read in the order of the log.
        buckets.write(job.work, f"0-{number:06d}-{group:06d}", job.logical.buckets, columns, found, good)
        part.segments += len(good)
    return part


def _keys(topic: Any, rows: Any, group_id: Hashes) -> Hashes:
    texts = topic.cast(pa.string()).fill_null("").dictionary_encode()
    return hashes(texts.take(pa.array(rows)), group_id)


def edit(job: Job, edits: Sequence[Edit], number: int) -> Part:
    """Write a changed copy of a file. Without a changed row there is none."""
    job.begin()
    one_edit = edits[number]
    table, part = one_edit.table, Part(number)
    source = _Source.open(job, table, one_edit.file)
    if not any(_changed(one_edit, source, group) for group in source.groups):
        return part
    label = f"e{number:06d}"
    more: list[Any] = []
    with Writer(table, job.out, f"{job.number:06d}-{label}") as writer:
        first = 0
        for group in source.groups:
            rows = source.group(group)
            columns = as_written(rows, table)
            if "topic" in columns:
                columns["topic"] = with_names(columns["topic"], one_edit.names)
            if "copies" in columns:
                copies = columns["copies"]
                columns["copies"] = _more(copies, one_edit.receipts, first)
                more.append(_added(columns, copies))
            first += rows.num_rows
            if len(one_edit.groups):
                keep = pa.array(~_replaced(columns, one_edit.groups))
                columns = {name: column.filter(keep) for name, column in columns.items()}
            writer.write(columns)
    if more:
        part.tallied = tally.write(tally.more_copies(pa.concat_tables(more)), job.work, label)
    part.rows[table.name] = writer.rows - one_edit.file.rows
    part.files[table.name] = writer.files
    part.replaced[table.name] = [one_edit.file.path]
    return part


def as_written(rows: Any, table: Table) -> dict[str, Any]:
    """Return rows that were read from a file as columns for a Writer. A column that the file does not have is null."""
    columns = {}
    for f in table.arrow:
        encoded = pa.types.is_dictionary(f.type)
        kind = f.type.value_type if encoded else f.type
        column = (
            one(rows[f.name]).cast(kind) if f.name in rows.schema.names else pa.nulls(rows.num_rows, kind)
        )
        columns[f.name] = column.dictionary_encode() if encoded else column
    return columns


def _changed(one_edit: Edit, source: _Source, group: int) -> bool:
    if one_edit.receipts:
        return True
    rows = source.group(group, ["topic", *(["group_id"] if len(one_edit.groups) else [])])
    columns = {name: one(rows[name]) for name in rows.schema.names}
    texts = set(pc.unique(columns["topic"]).to_pylist())
    if not texts.isdisjoint(one_edit.names):
        return True
    return bool(len(one_edit.groups) and _replaced(columns, one_edit.groups).any())


def _replaced(columns: dict[str, Any], groups: Hashes) -> Bools:
    """Return the rows of `logical_messages` that belong to some groups."""
    words = np.frombuffer(b"".join(columns["group_id"].to_pylist()), np.uint64).reshape(-1, 3)
    rows = np.arange(len(words))
    found: Bools = np.isin(_keys(columns["topic"], rows, words), groups)
    return found


def _added(columns: dict[str, Any], before: Any) -> Any:
    """Return the messages with more copies than before, and how many."""
    copies = pc.subtract(columns["copies"], before)
    rows = pa.table({name: columns[name] for name in tally.COLUMNS} | {"copies": copies})
    return rows.filter(pc.greater(copies, 0))


def _more(copies: Any, receipts: dict[int, int], first: int) -> Any:
    found = numbers(copies).copy()
    for row, count in receipts.items():
        if first <= row < first + len(found):
            found[row - first] += count
    return pa.array(found)
