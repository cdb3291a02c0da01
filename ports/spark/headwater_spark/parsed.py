"""Collect the identities and metrics of parsed payloads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater_spark.arrow import Bools, Rows, number, numbers, one, valid
from headwater_spark.fmq_core import Time, time_text
from headwater_spark.identity import PARTS, SLOTS, TIME, Identity, whole_number
from headwater_spark.maps import Maps, Whole

_BOARD = PARTS[0]
_STRING, _LONG, _UNSIGNED, _BOOL = pa.string(), pa.int64(), pa.uint64(), pa.bool_()
#: The latest time that fits a timestamp in ns, in the year 2255.
_MAX_TIME = 9_000_000_000_000_000
_MAX_INTEGER = (1 << 63) - 1
_NO_ROWS = np.zeros(0, np.int64)
_NO_INTEGERS = Whole(_NO_ROWS, _NO_ROWS)
# Values of a slot: none, as it must be, of a wrong type.
_NONE, _GOOD, _BAD = range(3)


@dataclass(frozen=True)
class Metric:
    """One metric's values in some rows: numbers (booleans are 0 and 1), or strings as an Arrow array."""

    name: str
    rows: Rows
    numbers: npt.NDArray[np.float64] | None
    strings: Any


@dataclass(frozen=True)
class Parsed:
    """n parsed payloads. `board` is an index into `boards`, -1 without an identity. `sent_us` is -1 if unknown."""

    board: npt.NDArray[np.int32]
    boards: list[str]
    boot: Rows
    seq: Rows
    sent_us: Rows
    #: The identity has a wrong type, or a decoder failed.
    bad: Bools
    metrics: list[Metric]
    #: Why a decoder failed, by row.
    failed: dict[int, str] = field(default_factory=dict)


def is_text(value: str) -> bool:
    """Return whether a string can be UTF-8; a JSON escape may produce half a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_integer(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INTEGER


class Result:
    """Identities and metrics of n payloads so far. Rows arrive in any order."""

    def __init__(self, n: int, identity: Identity):
        self.n = n
        self.fields = identity.fields()
        self.numbers: dict[str, int] = {}
        #: By slot, each row's value, of a board its number; and _NONE, _GOOD or _BAD.
        self.values = {slot: np.zeros(n, np.int64) for slot in SLOTS}
        self.states = {slot: np.zeros(n, np.uint8) for slot in SLOTS}
        self.failed: dict[int, str] = {}
        self.metrics: list[Metric] = []
        #: Metrics that belong to the identity of some rows: slot, name, rows and Arrow array.
        self.reserved: list[tuple[str, str, Rows, Any]] = []
        self.single: dict[tuple[str, bool], list[tuple[int, Any]]] = defaultdict(list)

    def fail(self, row: int, where: str, error: BaseException) -> None:
        """Note that the decoder of a topic failed."""
        try:
            text = str(error)
        except Exception:
            text = "its error has no text"
        # Half a surrogate pair has no place in a column.
        text = text.encode("utf-8", "backslashreplace").decode()
        self.failed[row] = f"{where}: {type(error).__name__}: {text}"[:1000]

    def add(self, row: int, value: Mapping[str, Any]) -> None:
        """Add one payload that Python parsed."""
        for key, item in value.items():
            if not is_text(key):
                continue
            slot = self.fields.get(key)
            if slot is not None and item is not None:
                self._set(row, slot, item)
            if isinstance(item, str):
                if is_text(item):
                    self.single[key, True].append((row, item))
            elif isinstance(item, Time):
                self.single[key, True].append((row, time_text(item)))
            elif isinstance(item, (int, float)):
                self.single[key, False].append((row, _double(item)))

    def _set(self, row: int, slot: str, item: Any) -> None:
        good = True
        if slot == _BOARD:
            good = isinstance(item, str) and is_text(item)
            item = self.numbers.setdefault(item, len(self.numbers)) if good else 0
        elif slot == TIME:
            item = int(item) // 1000 if isinstance(item, Time) else item
            good = type(item) is int and 0 <= item <= _MAX_TIME
        else:
            good = _is_integer(item)
        self.values[slot][row] = item if good else 0
        self.states[slot][row] = _GOOD if good else _BAD

    def _set_column(self, slot: str, rows: Rows, column: Any) -> None:
        """Set a slot in some rows from an Arrow array without nulls."""
        if slot == _BOARD:
            good = np.full(len(rows), column.type == _STRING)
            found = np.zeros(len(rows), np.int64)
            if column.type == _STRING:
                names = column.dictionary_encode()
                found = number(names.dictionary.to_pylist(), self.numbers)[numbers(names.indices)]
        elif column.type in (_LONG, _UNSIGNED):
            found = numbers(column)
            good = (found >= 0) & (found <= (_MAX_TIME if slot == TIME else _MAX_INTEGER))
            found = found.astype(np.int64)
        else:
            found = np.zeros(len(rows), np.int64)
            good = np.zeros(len(rows), np.bool_)
        self.values[slot][rows] = found
        self.states[slot][rows] = np.where(good, _GOOD, _BAD)

    def add_texts(self, slot: str, texts: Any) -> None:
        """Set a slot from texts that are not in the payload, null where there is none."""
        there = valid(texts)
        if not there.any():
            return
        rows = np.flatnonzero(there)
        texts = texts.drop_null()
        if slot == _BOARD:
            self._set_column(slot, rows, texts)
            return
        found = texts.dictionary_encode()
        names = found.dictionary.to_pylist()
        good = [whole_number(text) for text in names]
        whole = [int(text) if fine else -1 for text, fine in zip(names, good, strict=True)]
        self._set_column(slot, rows, pa.array(np.array(whole, np.int64)[numbers(found.indices)]))

    def add_columns(self, rows: Rows, table: Any) -> None:
        """Add payloads as columns of strings, doubles, booleans and longs, null where a key is missing or null."""
        for name in table.schema.names:
            column = one(table[name])
            if column.null_count == len(column):
                continue
            there = valid(column)
            slot = self.fields.get(name)
            if slot is None:
                self._metric(name, rows, column, there)
                continue
            every = bool(there.all())
            mine = rows if every else rows[there]
            column = column if every else column.drop_null()
            self._set_column(slot, mine, column)
            self.reserved.append((slot, name, mine, column))

    def add_maps(self, rows: Rows, found: Maps) -> None:
        """Add Maps that numpy parsed."""
        for name, own in self.fields.items():
            self._add_slot(own, name, rows, found)
        for column in found.columns:
            at = rows[column.rows]
            slot = self.fields.get(column.name)
            is_number = isinstance(column.values, np.ndarray)
            if slot is not None:
                self.reserved.append(
                    (slot, column.name, at, pa.array(column.values) if is_number else column.values)
                )
            elif len(at):
                self.metrics.append(
                    Metric(
                        column.name,
                        at,
                        column.values if is_number else None,
                        None if is_number else column.values,
                    )
                )

    def _add_slot(self, slot: str, name: str, rows: Rows, found: Maps) -> None:
        """Set a slot from Maps."""
        times = found.times.get(name, _NO_INTEGERS)
        for column in found.columns:
            if column.name == name:
                self.states[slot][rows[column.rows]] = _BAD
                if slot == _BOARD and not isinstance(column.values, np.ndarray):
                    self._set_column(slot, rows[column.rows], column.values)
        if slot == _BOARD:
            self.states[slot][rows[times.rows]] = _BAD
            return
        whole = found.integers.get(name, _NO_INTEGERS)
        self._set_column(slot, rows[whole.rows], pa.array(whole.values))
        if slot == TIME:
            self._set_column(slot, rows[times.rows], pa.array(times.values // 1000))

    def _metric(self, name: str, rows: Rows, column: Any, where: Bools) -> None:
        count = int(np.count_nonzero(where))
        if not count:
            return
        every = count == len(where)
        here = rows if every else rows[where]
        if column.type == _STRING:
            self.metrics.append(Metric(name, here, None, column if every else column.filter(pa.array(where))))
            return
        values = numbers(column.cast(pa.uint8()) if column.type == _BOOL else column).astype(
            np.float64, copy=False
        )
        self.metrics.append(Metric(name, here, values if every else values[where], None))

    def parsed(self) -> Parsed:
        """Return the results."""
        claimed = np.logical_and.reduce([self.states[slot] != _NONE for slot in PARTS])
        good = np.logical_and.reduce([self.states[slot] == _GOOD for slot in PARTS])
        bad = claimed & ~good
        bad[list(self.failed)] = True
        good &= ~bad
        timed = good & (self.states[TIME] == _GOOD)
        # An identity and its time are not metrics.
        hidden = {slot: bad | (timed if slot == TIME else claimed) for slot in SLOTS}
        for slot, name, rows, column in self.reserved:
            shown = ~hidden[slot][rows]
            if shown.any():
                self._metric(name, rows, column, shown)
        metrics = [*self.metrics, *self._singles()]
        if bad.any() or self.single:
            metrics = [
                found
                for metric in metrics
                if (found := _shown(metric, hidden.get(self.fields.get(metric.name, ""), bad))) is not None
            ]
        return Parsed(
            np.where(good, self.values[_BOARD], -1).astype(np.int32),
            list(self.numbers),
            self.values[PARTS[1]],
            self.values[PARTS[2]],
            np.where(timed, self.values[TIME], -1),
            bad,
            metrics,
            self.failed,
        )

    def _singles(self) -> Iterator[Metric]:
        for (name, is_string), items in self.single.items():
            rows = np.array([row for row, _ in items], np.int64)
            values = [value for _, value in items]
            if is_string:
                yield Metric(name, rows, None, pa.array(values, _STRING))
            else:
                yield Metric(name, rows, np.array(values, np.float64), None)


def _shown(metric: Metric, hidden: Bools) -> Metric | None:
    """Return a metric without its values in some rows, or None if nothing is left."""
    hide = hidden[metric.rows]
    if not hide.any():
        return metric
    if hide.all():
        return None
    show = ~hide
    texts = None if metric.strings is None else metric.strings.filter(pa.array(show))
    return Metric(
        metric.name, metric.rows[show], None if metric.numbers is None else metric.numbers[show], texts
    )


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
