"""Parse payloads into identities and metrics.

An object with non-null `board`, `boot` and `seq` has an identity. `board` must be a string, `boot` and `seq`
integers from 0 to 2**63 - 1; otherwise the message is bad. With an identity, an integer `t` is the send time in µs
since 1970. Every other number, boolean and string at the top level is a metric, also without an identity. Nested
values and nulls stay in the payload.

A payload that is a number in JSON's notation, optionally between blanks, is the metric `value` without an identity.

In a Map, decimals are numbers, durations seconds, and times ISO 8601 strings; `t` may be a time.

Arrow parses many payloads at once. Payloads that Arrow refuses, or could read differently from Python's `json`, go
through `json` one by one, with the same result.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headwater.fmq.spec import MAP
from headwater_spark import maps
from headwater_spark.arrow import Bools, Rows, number, numbers, octets, one, valid
from headwater_spark.fmq_core import Time, load_map, time_text
from headwater_spark.maps import Maps, Whole

_IDENTITY = ("board", "boot", "seq")
_TIME = "t"
#: The latest time that fits a timestamp in ns, in the year 2255.
_MAX_TIME = 9_000_000_000_000_000
_MAX_INTEGER = (1 << 63) - 1
#: Maximum keys announced to Arrow: each is a column of the batch, and senders are untrusted.
_MAX_KEYS = 256
#: Maximum number of refused payloads that Python parses at once.
_SMALL = 32
_STRING, _DOUBLE, _LONG, _BOOL = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_NO_ROWS = np.zeros(0, np.int64)
_NO_INTEGERS = Whole(_NO_ROWS, _NO_ROWS)
#: The metric of a payload that is only a number, and the longest such payload.
VALUE = "value"
_LONGEST_NUMBER = 64
_NUMBER = r"^[ \t\r\n]*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?[ \t\r\n]*$"
_KINDS = {int: _DOUBLE, float: _DOUBLE, str: _STRING, bool: _BOOL, type(None): _DOUBLE}
# Types of the identity. Arrow refuses others, which Python then examines.
_RESERVED = {"board": _STRING, "boot": _LONG, "seq": _LONG, _TIME: _LONG}


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
    bad: Bools
    metrics: list[Metric]


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# As for Arrow: NaN and Infinity are not JSON.
_loads = json.JSONDecoder(parse_constant=_no_constant).decode


def load(payload: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a payload, or None."""
    try:
        value = _loads(payload.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_integer(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INTEGER


class Parser:
    """Parse payloads, and remember their keys to announce them to Arrow in the next batch."""

    def __init__(self) -> None:
        self._keys: dict[str, Any] = dict(_RESERVED)
        # Keys whose values were all null so far.
        self._tentative: set[str] = set()

    def parse(self, payloads: Any) -> Parsed:
        """Parse a binary Arrow array. Null is neither JSON nor a Map."""
        result = _Result(len(payloads))
        others = _maps(payloads, result)
        if others is not None:
            _plain_numbers(others, result)
            self._objects(others, result)
        return result.parsed()

    def _objects(self, payloads: Any, result: _Result) -> None:
        candidates, risky = _triage(payloads)
        rows = candidates[~risky]
        if len(rows):
            # The first payloads show which keys to announce.
            self._python(payloads, rows[:_SMALL], result)
            self._arrow(payloads, rows[_SMALL:], result)
        self._python(payloads, candidates[risky], result)

    def _arrow(self, payloads: Any, rows: Rows, result: _Result) -> None:
        """Parse with Arrow, and halve what it refuses until the faulty payloads are isolated."""
        if len(rows) <= _SMALL:
            self._python(payloads, rows, result)
            return
        whole = len(rows) == len(payloads)
        table = self._read(payloads if whole else payloads.take(pa.array(rows)))
        if table is not None:
            result.add_columns(rows, table)
            return
        middle = len(rows) // 2
        self._arrow(payloads, rows[:middle], result)
        self._arrow(payloads, rows[middle:], result)

    def _read(self, payloads: Any) -> Any:
        """Return a table with one row per payload, or None."""
        lines = pc.binary_join_element_wise(payloads, pa.scalar(b""), pa.scalar(b"\n"))
        starts, _ = octets(lines)
        start, end = int(starts[0]), int(starts[-1])
        try:
            table = pj.read_json(
                pa.BufferReader(lines.buffers()[2].slice(start, end - start)),
                # One block, because Arrow infers types for each block.
                pj.ReadOptions(use_threads=False, block_size=end - start + 1),
                pj.ParseOptions(
                    explicit_schema=pa.schema(list(self._keys.items())), unexpected_field_behavior="error"
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != len(payloads):
            return None
        for column in table.columns:
            # Arrow accepts NaN and Infinity, which are not JSON.
            if column.type == _DOUBLE and not math.isfinite(pc.sum(pc.abs(column), min_count=0).as_py()):
                return None
        return table

    def _python(self, payloads: Any, rows: Rows, result: _Result) -> None:
        for row, payload in zip(rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True):
            value = load(payload)
            if value is not None:
                self._learn(value)
                result.add(row, value)

    def _learn(self, value: dict[str, Any]) -> None:
        for key, item in value.items():
            if key in self._keys and key not in self._tentative:
                continue
            kind = _KINDS.get(type(item))
            if kind is None or not _is_text(key) or len(self._keys) >= _MAX_KEYS:
                continue
            self._keys[key] = kind
            if item is None:
                self._tentative.add(key)
            else:
                self._tentative.discard(key)


def _mask(n: int, *rows: Rows) -> Bools:
    """Return a mask of some of n rows."""
    result = np.zeros(n, np.bool_)
    for some in rows:
        result[some] = True
    return result


def _maps(payloads: Any, result: _Result) -> Any:
    """Parse payloads that may be Maps. Returns the others, with null in place of Maps, or None if there are none."""
    where = _begin_with_tag(payloads, MAP)
    if where is None:
        return payloads
    rows = np.flatnonzero(where)
    every = len(rows) == len(payloads)
    chosen = payloads if every else payloads.take(pa.array(rows))
    found = maps.read(chosen, (*_IDENTITY, _TIME))
    result.add_maps(rows, found)
    for i in np.flatnonzero(~found.good).tolist():
        value = load_map(chosen[i].as_py())
        if value is not None:
            result.add(int(rows[i]), value)
    return None if every else pc.if_else(pa.array(where), None, payloads)


# By the first byte: whether a payload may be a number.
_NUMERIC = np.zeros(256, np.bool_)
_NUMERIC[[9, 10, 13, 32, 0x2D, *range(0x30, 0x3A)]] = True


def _plain_numbers(payloads: Any, result: _Result) -> None:
    """Add the payloads that are only a number."""
    starts, data = octets(payloads)
    if not len(payloads) or not len(data):
        return
    sizes = starts[1:] - starts[:-1]
    likely = _NUMERIC[data.take(starts[:-1], mode="clip")] & (sizes > 0) & (sizes <= _LONGEST_NUMBER)
    rows = np.flatnonzero(likely & valid(payloads))
    if not len(rows):
        return
    texts = payloads.take(pa.array(rows))
    good = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    if not good.any():
        return
    found = [float(text) for text in texts.filter(pa.array(good)).to_pylist()]
    result.metrics.append(Metric(VALUE, rows[good], np.array(found, np.float64), None))


def _begin_with_tag(payloads: Any, tag: int) -> Bools | None:
    """Return where payloads begin with an FMQ value of this tag, or None if nowhere."""
    starts, data = octets(payloads)
    if not len(payloads) or not len(data):
        return None
    found: Bools = data.take(starts[:-1], mode="clip") >> 4 == tag
    if not found.any():
        return None
    found &= (starts[1:] > starts[:-1]) & valid(payloads)
    return found


def _is_text(value: str) -> bool:
    """Return whether a string can be UTF-8; a JSON escape may produce half a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _triage(payloads: Any) -> tuple[Rows, Bools]:
    """Return the rows that may be JSON objects, and which of these must not reach Arrow.

    Arrow reads one object per line and does not check UTF-8. A line break or two objects in a payload would shift
    the rows, and deep nesting could exhaust its stack. Without such payloads, as many lines as rows means one line
    per row.
    """
    starts, everything = octets(payloads)
    first, end = int(starts[0]), int(starts[-1])
    data = everything[first:end]
    begins = starts[:-1] - first
    ends = starts[1:] - first
    filled = ends > begins
    if payloads.null_count:
        filled &= payloads.is_valid().to_numpy(zero_copy_only=False)
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    last = len(data) - 1
    opens = filled & (data[np.minimum(begins, last)] == 0x7B) & (data[np.maximum(ends - 1, 0)] == 0x7D)
    # Blanks around an object are rare; Python checks them.
    blank = np.zeros(256, np.bool_)
    blank[[9, 10, 13, 32]] = True
    padded = filled & ~opens & (blank[data[np.minimum(begins, last)]] | blank[data[np.maximum(ends - 1, 0)]])
    risky = padded.copy()
    odd: list[npt.NDArray[np.intp]] = []
    if data.min() < 0x20:
        odd.append(np.flatnonzero(data < 0x20))
    if data.max() > 0x7F and not _is_utf8(payloads):
        odd.append(np.flatnonzero(data > 0x7F))
    nested = data == 0x5B
    if nested.any():
        odd.append(np.flatnonzero(nested))
    braces = data == 0x7B
    if int(np.count_nonzero(braces)) != int(np.count_nonzero(opens)):
        at = np.flatnonzero(braces)
        # All bytes of a row except the first.
        row = np.searchsorted(starts, at + first, side="right") - 1
        odd.append(at[at != begins[row]])
    for at in odd:
        risky[np.searchsorted(starts, at + first, side="right") - 1] = True
    rows = np.flatnonzero(opens | padded)
    return rows, risky[rows]


def _is_utf8(payloads: Any) -> bool:
    buffers = payloads.buffers()
    try:
        pa.Array.from_buffers(_STRING, len(payloads), buffers, offset=payloads.offset).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class _Result:
    """Results so far; rows may arrive in any order."""

    def __init__(self, n: int):
        self.n = n
        self.board = np.full(n, -1, np.int32)
        self.numbers: dict[str, int] = {}
        self.boot = np.zeros(n, np.int64)
        self.seq = np.zeros(n, np.int64)
        self.sent_us = np.full(n, -1, np.int64)
        self.bad = np.zeros(n, np.bool_)
        self.metrics: list[Metric] = []
        self.single: dict[tuple[str, bool], list[tuple[int, Any]]] = defaultdict(list)

    def add(self, row: int, value: dict[str, Any]) -> None:
        """Add one payload that Python parsed."""
        reserved: tuple[str, ...] = ()
        if all(value.get(key) is not None for key in _IDENTITY):
            board, boot, seq = (value[key] for key in _IDENTITY)
            if not (isinstance(board, str) and _is_text(board) and _is_integer(boot) and _is_integer(seq)):
                self.bad[row] = True
                return
            self.board[row] = self.numbers.setdefault(board, len(self.numbers))
            self.boot[row] = boot
            self.seq[row] = seq
            reserved = _IDENTITY
            sent = value.get(_TIME)
            if isinstance(sent, Time):
                sent = int(sent) // 1000
            if type(sent) is int and 0 <= sent <= _MAX_TIME:
                self.sent_us[row] = sent
                reserved = (*_IDENTITY, _TIME)
        for key, item in value.items():
            if key in reserved or not _is_text(key):
                continue
            if isinstance(item, str):
                if _is_text(item):
                    self.single[key, True].append((row, item))
            elif isinstance(item, Time):
                self.single[key, True].append((row, time_text(item)))
            elif isinstance(item, (int, float)):
                self.single[key, False].append((row, _double(item)))

    def add_columns(self, rows: Rows, table: Any) -> None:
        """Add payloads that Arrow parsed: a column per key, null where the key is missing or null."""
        columns = {name: one(table[name]) for name in table.schema.names}
        there = {name: valid(column) for name, column in columns.items() if column.null_count < len(column)}
        none = np.zeros(len(rows), np.bool_)
        claimed = there.get("board", none) & there.get("boot", none) & there.get("seq", none)
        timed = none
        if claimed.any():
            claimed, timed = self._identities(rows, columns, claimed, there.get(_TIME, none))
        bad = self.bad[rows]
        for name, where in there.items():
            # An identity and its time are not metrics.
            if name in _IDENTITY:
                where = where & ~claimed
            elif name == _TIME:
                where = where & ~timed
            self._metric(name, rows, columns[name], where & ~bad if bad.any() else where)

    def _identities(
        self, rows: Rows, columns: dict[str, Any], claimed: Bools, timed: Bools
    ) -> tuple[Bools, Bools]:
        """Record identities. Returns where there is one, and where `t` is its time."""
        board = columns["board"]
        boots, seqs = numbers(columns["boot"]), numbers(columns["seq"])
        good = claimed & (boots >= 0) & (seqs >= 0)
        self.bad[rows[claimed & ~good]] = True
        at = rows[good]
        names = board.dictionary_encode()
        own = number(names.dictionary.to_pylist(), self.numbers)
        every = len(at) == len(rows)
        codes = numbers(names.indices)
        self.board[at] = own[codes if every else codes[good]]
        self.boot[at] = boots if every else boots[good]
        self.seq[at] = seqs if every else seqs[good]
        timed = timed & good
        if timed.any():
            times = numbers(columns[_TIME])
            timed &= (times >= 0) & (times <= _MAX_TIME)
            self.sent_us[rows[timed]] = times[timed]
        return claimed, timed

    def add_maps(self, rows: Rows, found: Maps) -> None:
        """Add Maps that numpy parsed."""
        claimed = found.good.copy()
        for name in _IDENTITY:
            claimed &= _mask(len(rows), *(column.rows for column in found.columns if column.name == name))
        timed = np.zeros(len(rows), np.bool_)
        if claimed.any():
            claimed, timed = self._map_identities(rows, found, claimed)
        bad = self.bad[rows]
        for column in found.columns:
            # An identity and its time are not metrics.
            hidden = bad
            if column.name in _IDENTITY:
                hidden = hidden | claimed
            elif column.name == _TIME:
                hidden = hidden | timed
            at, values = column.rows, column.values
            if hidden.any():
                shown = ~hidden[at]
                at = at[shown]
                values = values[shown] if isinstance(values, np.ndarray) else values.filter(pa.array(shown))
            if len(at):
                is_number = isinstance(values, np.ndarray)
                self.metrics.append(
                    Metric(
                        column.name, rows[at], values if is_number else None, None if is_number else values
                    )
                )

    def _map_identities(self, rows: Rows, found: Maps, claimed: Bools) -> tuple[Bools, Bools]:
        """Record identities of Maps. Returns where there is one, and where `t` is its time."""
        n = len(rows)
        good = claimed.copy()
        for name, target in (("boot", self.boot), ("seq", self.seq)):
            whole = found.integers.get(name, _NO_INTEGERS)
            natural = whole.values >= 0
            target[rows[whole.rows[natural]]] = whole.values[natural]
            good &= _mask(n, whole.rows[natural])
        boards = [c for c in found.columns if c.name == "board" and not isinstance(c.values, np.ndarray)]
        timely = found.times.get("board", _NO_INTEGERS).rows
        good &= _mask(n, *(column.rows for column in boards)) & ~_mask(n, timely)
        self.bad[rows[claimed & ~good]] = True
        for column in boards:
            names = column.values.dictionary_encode()
            own = number(names.dictionary.to_pylist(), self.numbers)
            mine = good[column.rows]
            self.board[rows[column.rows[mine]]] = own[numbers(names.indices)[mine]]
        timed = np.zeros(n, np.bool_)
        for whole, unit in (
            (found.integers.get(_TIME, _NO_INTEGERS), 1),
            (found.times.get(_TIME, _NO_INTEGERS), 1000),
        ):
            sent = whole.values // unit
            fits = good[whole.rows] & (sent >= 0) & (sent <= _MAX_TIME)
            self.sent_us[rows[whole.rows[fits]]] = sent[fits]
            timed[whole.rows[fits]] = True
        return claimed, timed

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
        return Parsed(
            self.board,
            list(self.numbers),
            self.boot,
            self.seq,
            self.sent_us,
            self.bad,
            [*self.metrics, *self._singles()],
        )

    def _singles(self) -> Iterator[Metric]:
        for (name, is_string), items in self.single.items():
            rows = np.array([row for row, _ in items], np.int64)
            values = [value for _, value in items]
            if is_string:
                yield Metric(name, rows, None, pa.array(values, _STRING))
            else:
                yield Metric(name, rows, np.array(values, np.float64), None)


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
