"""Settle rows that may have a copy in another part."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark.arrow import Bools, one, take
from headwater_spark.messages import COLUMNS, UNSETTLED, Groups, Key, Name, in_order, named, receipts, settle
from headwater_spark.overlaps import Runs, rows_in
from headwater_spark.part import Job, Output, Part
from headwater_spark.payload import Parser
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY, Column, FileWriter, Table

#: Candidates are kept in Parquet until Spark shuffles them.
CANDIDATES = Table(
    "candidates",
    "rows that may have a copy in another part",
    (*UNSETTLED, Column("meet", "binary", "equal for rows that have to meet")),
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
        self._file = FileWriter(CANDIDATES, work / CANDIDATES.name / f"{label}.parquet")
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
        shared = np.sort(rows_in(groups, self._aside.ranges))
        if len(shared):
            aside[shared] = True
            rows = take(columns, shared)
            by_id = pc.is_valid(rows["origin"])
            meet = pc.if_else(
                by_id, _join(rows, "origin", "made_ns"), _join(rows, "topic", "board", "boot", "seq")
            )
            self._write(rows, meet)
        keys = self._aside.keys
        if keys:
            first, duplicate = receipts(table, elsewhere)
            times = {key.time_ns for key in keys}
            for where, column in ((first, "time_ns"), (duplicate, "first_ns")):
                found = [row for row, key in named(table, where, column, times) if key in keys]
                aside[found] = True
                rows = take(columns, np.array(found, np.int64))
                self._write(rows, _join(rows, "peer", "packet_id", column))
        return aside

    def _write(self, rows: dict[str, Any], meet: Any) -> None:
        columns = rows | {"meet": meet}
        schema = self._schema
        self._file.write(pa.record_batch([columns[name] for name in schema.names], schema=schema))


def _join(rows: dict[str, Any], *names: str) -> Any:
    texts = [rows[name].cast(pa.string()) for name in names]
    return pc.binary_join_element_wise(*texts, "\0").cast(pa.binary())


def settle_candidates(job: Job, number: int, batches: list[Any]) -> Part:
    """Settle one or more record batches of candidates that have to meet, in any order."""
    pa.set_cpu_count(1)
    part = Part(number)
    # Spark may name the time zone of a timestamp differently.
    rows = pa.Table.from_batches(batches).cast(CANDIDATES.plain).sort_by("position")
    table = _as_columns(rows)
    none = np.zeros(table.num_rows, np.bool_)
    settled = settle(table, Groups(table, none), none)
    parsed = Parser().parse(one(table["payload"]))
    with Output(job, part, f"c{number:05d}", (MESSAGES, TELEMETRY, QUARANTINE)) as output:
        output.settled(table, parsed.metrics, settled)
    return part


def _as_columns(rows: Any) -> Any:
    """Return the rows with the dictionaries of COLUMNS."""
    columns = [
        column.combine_chunks().dictionary_encode()
        if pa.types.is_dictionary(f.type)
        else column.combine_chunks()
        for column, f in zip(rows.select(COLUMNS.names).columns, COLUMNS, strict=True)
    ]
    return in_order([pa.record_batch(columns, schema=COLUMNS)], COLUMNS)
