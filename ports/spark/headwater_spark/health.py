"""Compute the tables `device_health` and `reconciliation` from the table `messages`.

A row of `device_health` depends on the messages of its hour and on the rows of the LOOKBACK before it. So a batch
recomputes the hours of the messages that it has added or changed, and the columns `missing` and `restarted` of the
rows after them; many batches give the same table as one:

    touched = hours(changed["time_ns"])
    rows = windows(messages of these hours)
    before = device_health of extent(touched)
    after = refresh(before, rows, touched)
    reconciliation = reconcile(reconciliation, before, after)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark.arrow import Bools, Rows, codes, numbers, one, strings, times, valid, values
from headwater_spark.tables import DEVICE_HEALTH, RECONCILIATION, Table

#: Columns of `messages` that `windows` reads.
COLUMNS = ("time_ns", "board", "boot", "seq", "sent_ns", "copies", "possible_duplicate")
#: Length of a window, in ns.
HOUR_NS = 3_600_000_000_000
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
_SHARES = {"latency_p50_ms": 0.5, "latency_p90_ms": 0.9, "latency_p99_ms": 0.99, "latency_max_ms": 1.0}
_NONE = np.iinfo(np.int64).min


def hours(time_ns: Any) -> Rows:
    """Return the starts of the hours of a column of times, in order, in ns since 1970."""
    found: Rows = np.unique(numbers(time_ns) // HOUR_NS) * HOUR_NS
    return found


def extent(touched: Rows) -> tuple[int, int]:
    """Return the span of time, from its first ns to before its last, of the rows that `refresh` needs."""
    if not len(touched):
        return 0, 0
    return int(touched[0]) - LOOKBACK * HOUR_NS, int(touched[-1]) + (LOOKBACK + 1) * HOUR_NS


def windows(messages: Any) -> Any:
    """Return the rows of `device_health` for all messages of some hours.

    `messages` is an Arrow table with COLUMNS. The columns `missing` and `restarted` are computed as if there were no
    other hours; `refresh` computes them again.
    """
    messages = _with_codes(messages)
    board, time_ns = codes(messages["board"]), numbers(messages["time_ns"])
    named = board >= 0
    hour = time_ns // HOUR_NS
    boot = np.where(named, numbers(messages["boot"]), 0)
    seq = np.where(named, numbers(messages["seq"]), 0)
    group = _dense(board + 1, boot, hour)
    order = _sorted(group, seq)
    group, seq = group[order], seq[order]
    different = np.append(True, (group[1:] != group[:-1]) | (seq[1:] != seq[:-1]))[: len(seq)]
    edge = _edges(group)
    first = order[edge]
    sums = {
        "messages": np.diff(np.append(edge, len(group))),
        "copies": _reduced(np.add, numbers(messages["copies"]).astype(np.int64)[order], edge),
        "possible_duplicates": _reduced(
            np.add, _flags(messages["possible_duplicate"]).astype(np.int64)[order], edge
        ),
        "sequences": _reduced(np.add, different.astype(np.int64), edge),
        "first_seq": seq[edge],
        "last_seq": _reduced(np.maximum, seq, edge),
        "first_ns": _reduced(np.minimum, time_ns[order], edge),
        "last_ns": _reduced(np.maximum, time_ns[order], edge),
    }
    timed = valid(messages["sent_ns"])
    late = (time_ns - numbers(messages["sent_ns"]))[order][timed[order]]
    latency = _latencies(group[timed[order]], late, len(edge))
    anonymous = ~named[first]
    columns: dict[str, Any] = {
        "time_ns": hour[first] * HOUR_NS,
        "board": strings(board[first], values(messages["board"]), anonymous),
        "boot": pa.array(boot[first], mask=anonymous),
    }
    of_seq = {name: pa.array(sums[name], mask=anonymous) for name in ("sequences", "first_seq", "last_seq")}
    columns |= sums | latency | of_seq
    columns = {
        name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()
    }
    return _chained(columns)


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
    span = pc.add(pc.subtract(columns["last_seq"], columns["first_seq"]), 1)
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


def _with_codes(messages: Any) -> Any:
    """Return COLUMNS with one chunk each, and `board` as a dictionary."""
    messages = messages.select(list(COLUMNS))
    board = messages["board"]
    if not pa.types.is_dictionary(board.type):
        messages = messages.set_column(1, "board", pc.dictionary_encode(board))
    return messages.unify_dictionaries().combine_chunks()


def _dense(*keys: npt.NDArray[Any]) -> Rows:
    """Number the different combinations of keys, in their order."""
    total, count = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        place, width = _from_zero(key)
        if count * width >= 1 << 62:
            different, total = np.unique(total, return_inverse=True)
            count = len(different)
        total, count = total * width + place, count * width
    total, width = _from_zero(total)
    there = np.zeros(width, np.int64)
    there[total] = 1
    return (np.cumsum(there) - 1)[total]


def _from_zero(key: npt.NDArray[Any]) -> tuple[Rows, int]:
    """Return numbers below a limit, not far above the number of rows, in the order of the key."""
    if not len(key):
        return np.zeros(0, np.int64), 1
    low = int(key.min())
    width = int(key.max()) - low + 1
    if width > 4 * len(key) + 1024:
        different, place = np.unique(key, return_inverse=True)
        return place, len(different)
    return (key - low).astype(np.int64), width


def _sorted(group: Rows, seq: Rows) -> Rows:
    """Return the order of rows by group and seq."""
    # Sorting 16-bit numbers takes linear time, and a board's messages are mostly in order of seq.
    if len(group) and int(group.max()) < 0x10000:
        order = np.argsort(group.astype(np.uint16), kind="stable")
        found, rising = group[order], seq[order]
        if bool(np.all((rising[1:] >= rising[:-1]) | (found[1:] != found[:-1]))):
            return order
    key = _keyed(group, seq)
    return np.lexsort((seq, group)) if key is None else np.argsort(key)


def _edges(group: Rows) -> Rows:
    """Return where each group of sorted numbers begins."""
    if not len(group):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(group[1:] != group[:-1]) + 1])


def _reduced(how: Any, column: npt.NDArray[Any], edge: Rows) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = how.reduceat(column, edge) if len(edge) else column[:0]
    return result


def _latencies(group: Rows, late_ns: Rows, groups: int) -> dict[str, Any]:
    """Return the number of latencies of each group, and their percentiles by nearest rank."""
    count = np.bincount(group, minlength=groups)
    key = _keyed(group, late_ns)
    if key is None:
        late_ns = late_ns[np.lexsort((late_ns, group))]
    else:
        key.sort()
        late_ns = _second(key, late_ns)
    begin = np.cumsum(count) - count
    found: dict[str, Any] = {"timed": count}
    for name, share in _SHARES.items():
        rank = np.maximum(np.ceil(share * count).astype(np.int64) - 1, 0)
        at = late_ns[np.minimum(begin + rank, len(late_ns) - 1)] if len(late_ns) else np.zeros(groups)
        found[name] = pa.array(at / 1e6, mask=count == 0)
    return found


def _keyed(group: Rows, second: Rows) -> Rows | None:
    """Return one number for each pair, in the order of group and second, or None if these do not fit 63 bits.

    Sorting one column is several times as fast as sorting two.
    """
    if not len(group):
        return group
    low = int(second.min())
    width = int(second.max()) - low + 1
    if (int(group.max()) + 1) * width >= 1 << 63:
        return None
    return group * width + (second - low)


def _second(key: Rows, second: Rows) -> Rows:
    """Return the second numbers of keys that `_keyed` made of them."""
    if not len(key):
        return key
    low = int(second.min())
    return key % (int(second.max()) - low + 1) + low


def _chained(columns: dict[str, Any], fixed: Bools | None = None) -> Any:
    """Return rows of `device_health` with `missing` and `restarted`; rows that are `fixed` keep theirs."""
    n = len(columns["time_ns"])
    # Rows without an identity have board 0.
    hour, board = numbers(columns["time_ns"]) // HOUR_NS, codes(columns["board"]).astype(np.int64) + 1
    boot, named = numbers(columns["boot"]), board > 0
    last, own = numbers(columns["last_seq"]), numbers(columns["sequences"])
    # By start: the highest seq of the hours before, and whether there are any.
    start = _dense(board, boot)
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
