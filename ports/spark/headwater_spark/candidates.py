"""Settle rows that may have a copy in another part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark.arrow import Bools, Rows, numbers, one, take, valid
from headwater_spark.messages import COLUMNS, UNSETTLED, Groups, Key, Name, in_order, named, receipts, settle
from headwater_spark.overlaps import Runs, rows_in
from headwater_spark.part import Job, Output, Part
from headwater_spark.payload import Parser
from headwater_spark.place import Place
from headwater_spark.table_files import FileWriter
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY, Column, Table

#: Candidates are kept in Parquet until Spark shuffles them.
CANDIDATES = Table(
    "candidates",
    "rows that may have a copy in another part",
    (
        *UNSETTLED,
        Column("meet", "binary", "equal for rows that have to meet"),
        Column("stored", "string", "file of a row that an earlier batch has stored; otherwise null"),
        Column("row", "long", "its row in the file"),
    ),
)


@dataclass(frozen=True)
class Aside:
    """Rows that a second pass sets aside: those with shared identities and receipts that duplicates elsewhere refer to.
    Also the names of topics that are given as a hash.
    """

    ranges: dict[Name, Runs] = field(default_factory=dict)
    keys: frozenset[Key] = frozenset()
    topics: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.keys or self.topics)


class Candidates:
    """Set aside rows of one part, as a context manager. `rows` is their number."""

    def __init__(self, aside: Aside, work: Path, label: str):
        self._aside = aside
        self._file = FileWriter(CANDIDATES, Place.at(work / CANDIDATES.name / f"{label}.parquet"))
        self._schema = CANDIDATES.arrow

    def __enter__(self) -> Candidates:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    @property
    def rows(self) -> int:
        """The number of rows written."""
        return self._file.rows

    def write(self, table: Any, groups: Groups, elsewhere: Bools) -> Bools:
        """Write the candidates among the rows and return where they are."""
        columns = {name: one(table[name]) for name in COLUMNS.names}
        aside = np.zeros(table.num_rows, np.bool_)
        for rows, names in self._find(table, groups, elsewhere):
            aside[rows] = True
            self._write(take(columns, rows), names)
        return aside

    def write_stored(self, keys: Any, file: str, first: int, load: Callable[[], Any]) -> None:
        """Write the candidates among stored rows, numbered from `first` in their file.

        `keys` and what `load` returns are the rows with COLUMNS; in `keys`, those that do not decide may be null.
        """
        none = np.zeros(keys.num_rows, np.bool_)
        columns: dict[str, Any] = {}
        for rows, names in self._find(keys, Groups(keys, none), none):
            if not len(rows):
                continue
            if not columns:
                table = load()
                columns = {name: one(table[name]) for name in COLUMNS.names}
            stored = {"stored": pa.array([file] * len(rows), pa.string()), "row": pa.array(rows + first)}
            self._write(take(columns, rows) | stored, names)

    def _find(self, table: Any, groups: Groups, elsewhere: Bools) -> Iterator[tuple[Rows, Sequence[str]]]:
        """Yield rows, and the columns in which rows that have to meet are equal."""
        shared = np.sort(rows_in(groups, self._aside.ranges))
        if len(shared):
            by_id = valid(table["origin"])[shared]
            yield shared[by_id], ("origin", "made_ns")
            yield shared[~by_id], ("topic", "board", "boot", "seq")
        keys = self._aside.keys
        if keys:
            first, duplicate = receipts(table, elsewhere)
            times = {key.time_ns for key in keys}
            for where, column in ((first, "time_ns"), (duplicate, "first_ns")):
                found = [row for row, key in named(table, where, column, times) if key in keys]
                yield np.array(found, np.int64), ("peer", "packet_id", column)

    def _write(self, rows: dict[str, Any], names: Sequence[str]) -> None:
        schema, count = self._schema, len(rows["topic"])
        columns = {"stored": pa.nulls(count, pa.string()), "row": pa.nulls(count, pa.int64())} | rows
        columns["meet"] = _join(rows, *names)
        self._file.write(pa.record_batch([columns[name] for name in schema.names], schema=schema))


def _join(rows: dict[str, Any], *names: str) -> Any:
    texts = [rows[name].cast(pa.string()) for name in names]
    return pc.binary_join_element_wise(*texts, "\0").cast(pa.binary())


def settle_candidates(job: Job, number: int, batches: list[Any]) -> Part:
    """Settle one or more record batches of candidates that have to meet, in any order."""
    job.begin()
    part = Part(number)
    # Spark may name the time zone of a timestamp differently.
    rows = pa.Table.from_batches(batches).cast(CANDIDATES.plain)
    rows = rows.take(pa.array(_in_order_of_log(rows)))
    table = _as_columns(rows)
    table = table.set_column(
        table.schema.get_field_index("position"), "position", pa.array(np.arange(len(rows), dtype=np.int64))
    )
    none = np.zeros(table.num_rows, np.bool_)
    settled = settle(table, Groups(table, none), none, job.horizon_ns)
    stored = valid(rows["stored"])
    # Stored rows are the first, so they stay and are neither conflicts nor counted again.
    settled.keep &= ~stored
    settled.elsewhere = settled.elsewhere | stored
    for row in np.flatnonzero(stored & (settled.copies > 1)).tolist():
        more = part.receipts.setdefault(rows["stored"][row].as_py(), {})
        more[rows["row"][row].as_py()] = int(settled.copies[row]) - 1
    context = {name: one(table[name]) for name in ("topic", "content_type", "user_properties")}
    parsed = Parser(job.rules).parse(one(table["payload"]), context)
    with Output(job, part, f"c{number:05d}", (MESSAGES, TELEMETRY, QUARANTINE)) as output:
        output.settled(table, parsed.metrics, settled)
    return part


def _in_order_of_log(rows: Any) -> Rows:
    """Return the order of rows in the log: stored ones first, by segment, offset and record."""
    stored = valid(rows["stored"])
    file = pc.rank(one(rows["file"]), tiebreaker="min").to_numpy()
    places = [np.where(stored, one(rows[name]).to_numpy(), 0) for name in ("record", "offset")]
    order: Rows = np.lexsort((numbers(rows["position"]), *places, np.where(stored, file, 0), ~stored))
    return order


def _as_columns(rows: Any) -> Any:
    """Return the rows with the dictionaries of COLUMNS."""
    columns = [
        column.combine_chunks().dictionary_encode()
        if pa.types.is_dictionary(f.type)
        else column.combine_chunks()
        for column, f in zip(rows.select(COLUMNS.names).columns, COLUMNS, strict=True)
    ]
    return in_order([pa.record_batch(columns, schema=COLUMNS)], COLUMNS)
