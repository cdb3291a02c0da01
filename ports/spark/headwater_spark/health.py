"""Compute the tables `device_health` and `reconciliation` from tallies of `messages`.

A row of `device_health` depends on the messages of its hour and on the rows of the LOOKBACK before it. So a batch
recomputes the hours of the messages that it has added or changed, and the columns `missing` and `restarted` of the
rows after them; many batches give the same table as one:

    touched = hours with changed messages
    rows = windows(tally of all messages of these hours)
    before = device_health of extent(touched)
    after = refresh(before, rows, touched)
    reconciliation = reconcile(reconciliation, before, after)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark.arrow import Bools, Rows, codes, numbers, one, times
from headwater_spark.latency import in_ms
from headwater_spark.tables import DEVICE_HEALTH, RECONCILIATION, Table
from headwater_spark.tally import HOUR_NS, dense

DAY_NS = 24 * HOUR_NS
#: Number of earlier hours that `missing` and `restarted` depend on.
LOOKBACK = 24

#: The columns that name a start of a board.
START = ("board", "boot")
#: Columns of `reconciliation` that come from boards' own records.
RECORDED = ("sent", "acknowledged", "lost")

_COUNTS = ("stored", "messages", "copies")
_AGGREGATES = {name: (name, "sum") for name in _COUNTS} | {
    **{name: (name, "min") for name in ("first_ns", "first_seq")},
    **{name: (name, "max") for name in ("last_ns", "last_seq")},
}
_SHARES = {"latency_p50_ms": 0.5, "latency_p90_ms": 0.9, "latency_p99_ms": 0.99}
# Columns that a tally has as they are.
_TALLIED = ("time_ns", "board", "messages", "copies", "possible_duplicates", "first_ns", "last_ns")
_NONE = np.iinfo(np.int64).min


def extent(touched: Rows) -> tuple[int, int]:
    """Return the span of time, from its first ns to before its last, of the rows that `refresh` needs."""
    if not len(touched):
        return 0, 0
    return int(touched[0]) - LOOKBACK * HOUR_NS, int(touched[-1]) + (LOOKBACK + 1) * HOUR_NS


def windows(tallied: Any) -> Any:
    """Return the rows of `device_health` for the tally of all messages of some hours, one row for each of its rows.

    The columns `missing` and `restarted` are computed as if there were no other hours; `refresh` computes them again.
    """
    named = codes(tallied["board"]) >= 0
    firsts, lasts, buckets, timed = (
        _elements(tallied[name]) for name in ("firsts", "lasts", "buckets", "timed")
    )
    end = np.cumsum(_lengths(tallied["firsts"]))
    of_seq = {
        "boot": numbers(tallied["boot"]),
        "sequences": _sums(tallied["firsts"], lasts - firsts + 1),
        "first_seq": firsts[np.append(0, end)[:-1]],
        "last_seq": lasts[end - 1],
    }
    count = _sums(tallied["timed"], timed)
    slowest, none = numbers(tallied["latency_max_ns"]) / 1e6, count == 0
    columns = {name: one(tallied[name]) for name in _TALLIED}
    columns |= {name: pa.array(column, mask=~named) for name, column in of_seq.items()}
    columns |= {"timed": pa.array(count), "latency_max_ms": pa.array(slowest, mask=none)}
    for name, share in _SHARES.items():
        ms = _percentiles(share, count, timed, buckets)
        columns[name] = pa.array(np.minimum(ms, slowest), mask=none)
    return _chained(columns)


def _lengths(lists: Any) -> Rows:
    found: Rows = pc.list_value_length(one(lists)).to_numpy()
    return found


def _elements(lists: Any) -> Rows:
    found: Rows = one(lists).flatten().to_numpy()
    return found


def _sums(lists: Any, elements: Rows) -> Rows:
    """Return the sums of some elements by list; the lists tell how many there are in each."""
    total, end = np.append(0, np.cumsum(elements)), np.append(0, np.cumsum(_lengths(lists)))
    found: Rows = total[end[1:]] - total[end[:-1]]
    return found


def _percentiles(share: float, count: Rows, timed: Rows, buckets: Rows) -> Any:
    """Return the percentile by nearest rank of each row, in ms, from the rows' numbers of latencies in all buckets."""
    if not len(buckets):
        return np.zeros(len(count))
    rank = np.cumsum(count) - count + np.maximum(np.ceil(share * count), 1)
    at = np.searchsorted(np.cumsum(timed), rank)
    return in_ms(buckets[np.minimum(at, len(buckets) - 1)])


def refresh(existing: Any, rows: Any, touched: Rows) -> Any:
    """Return `existing` with the hours `touched` replaced by `rows`, the result of `windows` for these hours.

    `existing` has all rows of `device_health` in `extent(touched)`, and may have others, which stay as they are.
    """
    existing = _conform(DEVICE_HEALTH, existing)
    outside = ~np.isin(numbers(existing["time_ns"]), touched)
    joined = pa.concat_tables([existing.filter(pa.array(outside)), _conform(DEVICE_HEALTH, rows)])
    joined = joined.unify_dictionaries().combine_chunks()
    if not len(touched):
        return joined
    # Rows at the start of `existing` lack the hours that they depend on; those after `extent` do not change.
    fixed = (numbers(joined["time_ns"]) < touched[0]) | (
        numbers(joined["time_ns"]) > touched[-1] + LOOKBACK * HOUR_NS
    )
    return _chained({name: one(joined[name]) for name in joined.schema.names}, fixed)


def changed(before: Any, after: Any) -> list[int]:
    """Return the days, in days since 1970, on which two versions of `device_health` differ."""
    versions = []
    for table in (before, after):
        table = _sort(_conform(DEVICE_HEALTH, table))
        versions.append((numbers(table["time_ns"]) // DAY_NS, table))
    days = np.unique(np.concatenate([day for day, _ in versions])).tolist()

    def of(day: int) -> list[Any]:
        return [table.filter(pa.array(found == day)).cast(DEVICE_HEALTH.plain) for found, table in versions]

    return [day for day in days if not of(day)[0].equals(of(day)[1])]


def reconcile(existing: Any, before: Any, after: Any, recorded: Any = None) -> Any:
    """Return `reconciliation` after a change of `device_health`.

    `existing` is the whole table, `before` and `after` are rows of `device_health` that contain all that have
    changed. `recorded` has the columns of RECORDED of the boards' own records; they replace those of the same starts.
    """
    existing = _conform(RECONCILIATION, existing)
    found = [_counts(existing, "stored", 1), _counts(before, "sequences", -1), _counts(after, "sequences", 1)]
    table = pa.concat_tables(found).group_by(list(START)).aggregate([*_AGGREGATES.values()])
    table = table.rename_columns([*START, *_AGGREGATES])
    said = existing.select([*START, *RECORDED]).filter(pc.is_valid(existing["sent"]))
    said = said.set_column(0, "board", said["board"].cast(pa.string()))
    if recorded is not None:
        replaced = recorded.select([*START, *RECORDED]).cast(said.schema)
        said = pa.concat_tables(
            [said.join(replaced.select(START), list(START), join_type="left anti"), replaced]
        )
    table = table.join(said, list(START), join_type="full outer")
    # A record may tell of a start of which no message is stored.
    table = table.filter(pc.or_kleene(pc.greater(table["messages"], 0), pc.is_valid(table["sent"])))
    columns = {name: table[name] for name in table.column_names}
    for name in ("stored", "messages", "copies"):
        columns[name] = pc.fill_null(columns[name], 0)
    # A start with the least and the greatest seq has one more than a long can say.
    gap = pc.subtract(columns["last_seq"], columns["first_seq"])
    span = pc.add(pc.min_element_wise(gap, np.iinfo(np.int64).max - 1, skip_nulls=False), 1)
    columns["expected"] = pc.fill_null(span, 0)
    columns["missing"] = pc.subtract(columns["expected"], columns["stored"])
    result = pa.table({name: columns[name] for name in RECONCILIATION.names})
    return _conform(RECONCILIATION, result.sort_by([(name, "ascending") for name in START]))


def _counts(table: Any, stored: str, sign: int) -> Any:
    """Return the columns of _AGGREGATES by start, with the counts multiplied by `sign`."""
    table = table.filter(pc.is_valid(table["board"]))
    columns = {"board": table["board"].cast(pa.string()), "boot": table["boot"]}
    for name in _AGGREGATES:
        column = table[stored if name == "stored" else name]
        columns[name] = pc.multiply(column, sign) if name in _COUNTS else column
    return pa.table(columns)


def _conform(kind: Table, table: Any) -> Any:
    """Return a table with the columns and types of `kind`, whatever types its reader gave to strings."""
    return table.select(kind.names).cast(kind.plain).cast(kind.arrow)


def _chained(columns: dict[str, Any], fixed: Bools | None = None) -> Any:
    """Return rows of `device_health` with `missing` and `restarted`; rows that are `fixed` keep theirs."""
    n = len(columns["time_ns"])
    # Rows without an identity have board 0.
    hour, board = numbers(columns["time_ns"]) // HOUR_NS, codes(columns["board"]).astype(np.int64) + 1
    boot, named = numbers(columns["boot"]), board > 0
    last, own = numbers(columns["last_seq"]), numbers(columns["sequences"])
    # By start: the highest seq of the hours before, and whether there are any.
    start = dense(board, boot)
    order = np.lexsort((hour, start))
    low = _first_since(start[order], hour[order])
    before = np.zeros(n, np.int64)
    before[order] = _highest(last[order], low, np.arange(n))
    known = before != _NONE
    floor = np.where(known, before, numbers(columns["first_seq"]) - 1)
    missing = np.maximum(last, floor) - floor - own
    # By board: whether a lower boot has an hour up to this one.
    order = np.lexsort((hour, board))
    joint = _joint(board[order], hour[order])
    end = np.searchsorted(joint, joint, side="right")
    lowest = np.zeros(n, np.int64)
    lowest[order] = -_highest(-boot[order], _first_since(board[order], hour[order]), end)
    restarted = ~known & (lowest < boot) & named
    if fixed is not None:
        missing = np.where(fixed, numbers(columns["missing"]), missing)
        restarted = np.where(fixed, _flags(columns["restarted"]), restarted)
    columns = columns | {
        "time": times(hour * HOUR_NS),
        "missing": pa.array(missing, mask=~named),
        "restarted": pa.array(restarted, mask=~named),
    }
    return _sort(pa.table([columns[f.name].cast(f.type) for f in DEVICE_HEALTH.arrow], DEVICE_HEALTH.arrow))


def _first_since(key: Rows, hour: Rows) -> Rows:
    """Return for each row, in the order of key and hour, the first row of its key within LOOKBACK before its hour."""
    since: Rows = np.searchsorted(_joint(key, hour), _joint(key, np.maximum(hour - LOOKBACK, 0)))
    return since


def _joint(key: Rows, hour: Rows) -> Rows:
    """Return numbers in the order of key and hour. The hours of all times in ns fit 22 bits."""
    return key.astype(np.int64) << 22 | hour


def _highest(column: Rows, low: Rows, end: Rows) -> Rows:
    """Return the maximum of each range of rows, _NONE for an empty one."""
    length = end - low
    found = np.full(len(column), _NONE)
    size, level = 1, column
    # `level` has the maximum of `size` rows from each row on; two of them cover a range of less than 2 * size.
    while len(column) and size <= int(length.max()):
        mine = (length >= size) & (length < 2 * size)
        found[mine] = np.maximum(level[low[mine]], level[end[mine] - size])
        level = np.maximum(level[:-size], level[size:]) if len(level) > size else level[:0]
        size *= 2
    return found


def _sort(table: Any) -> Any:
    keys = [(name, "ascending") for name in ("time_ns", "board", "boot")]
    plain = table.set_column(2, "board", table["board"].cast(pa.string()))
    return table.take(pc.sort_indices(plain, sort_keys=keys))


def _flags(column: Any) -> Bools:
    result: Bools = one(pc.fill_null(column, False)).to_numpy(zero_copy_only=False)
    return result
