"""Rows that may have a copy in another part: set aside by the parts, brought together by Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.mqtt.spec import PUBLISH
from headwater_spark.arrow import Bools, codes, numbers, one, take
from headwater_spark.messages import ACKS, COLUMNS, Groups, Key, Name, PacketIds, in_order, settle
from headwater_spark.part import Job, Output, Part
from headwater_spark.payload import Parser
from headwater_spark.runs import Runs, rows_in
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY, Column, Table

_TO_SETTLE = 0

#: Candidates wait in Parquet for their like.
CANDIDATES = Table(
    "candidates",
    "rows that may have a copy in another part",
    (
        *(column for column in MESSAGES.columns if column.name != "copies"),
        Column("position", "long", "place in the log"),
        Column("dup", "boolean", "DUP"),
        Column("packet_id", "int", "packet id"),
        Column("origin", "string", "who made the FMQ message id", repeats=True),
        Column("made_ns", "long", "when"),
        Column(
            "kind",
            "short",
            "0: to settle; else the type of a packet that only shows how a packet id was used",
        ),
        Column("meet", "binary", "equal in rows that have to meet"),
    ),
)


@dataclass(frozen=True)
class Aside:
    """What a second pass knows: what to set aside, which is identities that are shared, and packet ids of repetitions
    without a beginning; and the names of topics that are given by their hash."""

    ranges: dict[Name, Runs] = field(default_factory=dict)
    keys: frozenset[Key] = frozenset()
    topics: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.keys or self.topics)


class Candidates:
    """Sets rows of one part aside."""

    def __init__(self, aside: Aside, output: Output):
        self._aside = aside
        self._output = output

    def write(self, table: Any, groups: Groups, acks: Any, elsewhere: Bools) -> Bools:
        """Write the candidates among the rows; returns where they are."""
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
            self._write(rows, np.zeros(len(shared), np.int16), meet)
        if self._aside.keys:
            used = PacketIds(table).among(self._aside.keys) & (numbers(columns["qos"]) > 0)
            plain = (codes(columns["board"]) < 0) & (codes(columns["origin"]) < 0) & ~elsewhere
            aside |= used & plain
            at = np.flatnonzero(used)
            rows = take(columns, at)
            kind = np.where(plain[at], _TO_SETTLE, PUBLISH).astype(np.int16)
            self._write(rows, kind, _join(rows, "peer", "packet_id"))
            at = np.flatnonzero(PacketIds(acks).among(self._aside.keys))
            rows = take({name: one(acks[name]) for name in ACKS.names}, at)
            kind = numbers(rows.pop("kind"))
            for name in COLUMNS.names:
                rows.setdefault(name, pa.nulls(len(at), COLUMNS.field(name).type))
            self._write(rows, kind, _join(rows, "peer", "packet_id"))
        return aside

    def _write(self, rows: dict[str, Any], kind: Any, meet: Any) -> None:
        self._output.write(CANDIDATES, rows | {"kind": pa.array(kind), "meet": meet})


def _join(rows: dict[str, Any], *names: str) -> Any:
    texts = [rows[name].cast(pa.string()) for name in names]
    return pc.binary_join_element_wise(*texts, "\0").cast(pa.binary())


def settle_candidates(job: Job, number: int, batches: list[Any]) -> Part:
    """Settle candidates, at least one: all of those that have to meet, as record batches in any order."""
    pa.set_cpu_count(1)
    part = Part(number)
    # Spark names the time zone of a timestamp as it likes.
    rows = pa.Table.from_batches(batches).cast(CANDIDATES.plain).sort_by("position")
    kind = numbers(rows["kind"])
    is_publish = (kind == _TO_SETTLE) | (kind == PUBLISH)
    table = _select(rows, is_publish, COLUMNS)
    acks = _select(rows, ~is_publish, ACKS)
    elsewhere = kind[is_publish] == PUBLISH
    settled = settle(table, Groups(table, elsewhere), acks, elsewhere)
    parsed = Parser().parse(one(table["payload"]))
    with Output(job, part, f"c{number:05d}", (MESSAGES, TELEMETRY, QUARANTINE)) as output:
        output.settled(table, parsed.metrics, settled)
    return part


def _select(rows: Any, where: Bools, schema: Any) -> Any:
    """Some rows, with the dictionaries of a schema."""
    chosen = rows.filter(pa.array(where)).select(schema.names)
    columns = [
        column.combine_chunks().dictionary_encode()
        if pa.types.is_dictionary(f.type)
        else column.combine_chunks()
        for column, f in zip(chosen.columns, schema, strict=True)
    ]
    return in_order([pa.record_batch(columns, schema=schema)], schema)
