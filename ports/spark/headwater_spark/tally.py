"""Count messages by board, start and hour, so that the counts of several parts can be added up.

A *tally* is an Arrow table with the columns of TALLY, one row per board, start and hour. Beside sums and extremes, it
has the ranges of seqs that are there, and how many latencies are in each bucket (`headwater_spark.latency`). A task
takes a tally of the messages that it writes, and leaves it in a file of the batch; `headwater_spark.derived` adds them
up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater_spark import latency
from headwater_spark.arrow import Rows, as_file, codes, flags, numbers, one, strings, valid, values

#: Columns of `messages` that `tally` reads.
COLUMNS = ("time_ns", "board", "boot", "seq", "sent_ns", "copies", "possible_duplicate")
#: Length of a window, in ns.
HOUR_NS = 3_600_000_000_000

# The folder of a batch's work directory with its tallies.
_FOLDER = "tallies"
_SUMS = ("messages", "copies", "possible_duplicates")
TALLY: Any = pa.schema(
    [
        ("time_ns", pa.int64()),  # start of the hour
        ("board", pa.dictionary(pa.int32(), pa.string())),  # null without an identity
        ("boot", pa.int64()),  # 0 without an identity
        *((name, pa.int64()) for name in _SUMS),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("latency_max_ns", pa.int64()),  # null without send times
        # Ranges of seqs, in order and apart: their first and last seqs.
        ("firsts", pa.list_(pa.int64())),
        ("lasts", pa.list_(pa.int64())),
        # Buckets of latencies, in order, and how many latencies each has.
        ("buckets", pa.list_(pa.int64())),
        ("timed", pa.list_(pa.int64())),
    ]
)


class Tallied(NamedTuple):
    """A tally in a batch's work directory: its name, and its rows by the start of the hour in ns."""

    name: str = ""
    hours: Mapping[int, int] = {}


def tally(messages: Any) -> Any:
    """Return the tally of an Arrow table with COLUMNS."""
    messages = _with_codes(messages)
    if not messages.num_rows:
        return TALLY.empty_table()
    board, time_ns = codes(messages["board"]), numbers(messages["time_ns"])
    named = board >= 0
    hour = time_ns // HOUR_NS
    boot = np.where(named, numbers(messages["boot"]), 0)
    seq = np.where(named, numbers(messages["seq"]), 0)
    group = dense(board + 1, boot, hour)
    order = _sorted(group, seq)
    group, seq, time_ns = group[order], seq[order], time_ns[order]
    edge = edges(group)
    first = order[edge]
    copies = numbers(messages["copies"]).astype(np.int64)[order]
    doubtful = flags(pc.fill_null(one(messages["possible_duplicate"]), False)).astype(np.int64)[order]
    timed = valid(messages["sent_ns"])[order]
    late_ns = time_ns[timed] - numbers(messages["sent_ns"])[order][timed]
    late_of = group[timed]
    slowest, has = _maxima(late_of, late_ns, len(edge))
    cells = _cells(late_of, latency.buckets(late_ns // 1000), None)
    return _table(
        {
            "time_ns": hour[first] * HOUR_NS,
            "board": strings(board[first], values(messages["board"]), ~named[first]),
            "boot": boot[first],
            "messages": np.diff(np.append(edge, len(group))),
            "copies": np.add.reduceat(copies, edge),
            "possible_duplicates": np.add.reduceat(doubtful, edge),
            "first_ns": np.minimum.reduceat(time_ns, edge),
            "last_ns": np.maximum.reduceat(time_ns, edge),
            "latency_max_ns": pa.array(slowest, mask=~has),
        },
        _ranges(group, seq, seq),
        cells,
    )


def merge(tallies: Sequence[Any]) -> Any:
    """Return one tally with the counts of several."""
    table = pa.concat_tables([TALLY.empty_table(), *tallies]).unify_dictionaries().combine_chunks()
    if not table.num_rows:
        return table
    board, hour = codes(table["board"]), numbers(table["time_ns"]) // HOUR_NS
    group = dense(board + 1, numbers(table["boot"]), hour)
    order = np.argsort(group, kind="stable")
    edge = edges(group[order])
    first = order[edge]
    reduced = {
        name: how.reduceat(numbers(table[name])[order], edge)
        for how, names in ((np.add, _SUMS), (np.minimum, ("first_ns",)), (np.maximum, ("last_ns",)))
        for name in names
    }
    timed = valid(table["latency_max_ns"])
    slowest, has = _maxima(group[timed], numbers(table["latency_max_ns"])[timed], len(edge))
    return _table(
        {
            "time_ns": hour[first] * HOUR_NS,
            "board": strings(board[first], values(table["board"]), board[first] < 0),
            "boot": numbers(table["boot"])[first],
            **reduced,
            "latency_max_ns": pa.array(slowest, mask=~has),
        },
        _joined(*_flat(group, table, "firsts", "lasts")),
        _cells(*_flat(group, table, "buckets", "timed")),
    )


def more_copies(messages: Any) -> Any:
    """Return what is added to a tally when stored messages have more `copies`: only these count. Changes COLUMNS."""
    none = {
        "sent_ns": pa.nulls(len(messages), pa.int64()),
        "possible_duplicate": pa.nulls(len(messages), pa.bool_()),
    }
    for name, column in none.items():
        messages = messages.set_column(messages.schema.get_field_index(name), name, column)
    tallied = tally(messages)
    at = TALLY.get_field_index("messages")
    return tallied.set_column(at, TALLY.field(at), pa.array(np.zeros(len(tallied), np.int64)))


def write(tallied: Any, work: Path, name: str) -> Tallied:
    """Leave a tally in a batch's work directory."""
    path = _path(work, name)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(as_file(tallied))
    partial.replace(path)
    hours, rows = np.unique(numbers(tallied["time_ns"]), return_counts=True)
    return Tallied(name, dict(zip(hours.tolist(), rows.tolist(), strict=True)))


def read(work: Path, names: Iterable[str], first_ns: int, end_ns: int) -> Iterator[Any]:
    """Yield what some tallies have of a span of time."""
    for name in names:
        with pa.memory_map(str(_path(work, name))) as file:
            table = pa.ipc.open_file(file).read_all()
        time_ns = numbers(table["time_ns"])
        yield table.filter(pa.array((time_ns >= first_ns) & (time_ns < end_ns)))


def decode(data: bytes) -> Any:
    """Return the tally in an Arrow file."""
    return pa.ipc.open_file(data).read_all()


def _path(work: Path, name: str) -> Path:
    return work / _FOLDER / f"{name}.arrow"


def _table(columns: Mapping[str, Any], *lists: tuple[Rows, Rows, Rows]) -> Any:
    """Return a tally. `lists` has, for both pairs of lists, the rows of their elements, in order, and these."""
    found, n = dict(columns), len(columns["time_ns"])
    for (first, second), (of, *elements) in zip(
        (("firsts", "lasts"), ("buckets", "timed")), lists, strict=True
    ):
        offsets = pa.array(np.searchsorted(of, np.arange(n + 1)).astype(np.int32))
        for name, column in zip((first, second), elements, strict=True):
            found[name] = pa.ListArray.from_arrays(offsets, pa.array(column))
    return pa.table([found[name] for name in TALLY.names], TALLY)


def _flat(group: Rows, table: Any, *names: str) -> tuple[Rows, ...]:
    """Return the elements of lists of equal lengths, after the group of each."""
    lists = [one(table[name]) for name in names]
    lengths = pc.list_value_length(lists[0]).to_numpy()
    return np.repeat(group, lengths), *(found.flatten().to_numpy() for found in lists)


def _ranges(group: Rows, first: Rows, reach: Rows) -> tuple[Rows, Rows, Rows]:
    """Join seqs in order of group and seq into ranges: the group, first and last seq of each.

    `reach` has the highest seq of the group up to each.
    """
    apart = (group[1:] != group[:-1]) | (first[1:] - 1 > reach[:-1])
    begin = np.flatnonzero(np.append(True, apart)[: len(group)])
    end = np.append(begin[1:], len(group))[: len(begin)] - 1
    return group[begin], first[begin], reach[end]


def _joined(group: Rows, first: Rows, last: Rows) -> tuple[Rows, Rows, Rows]:
    """Join ranges of seqs, in any order, that overlap or follow each other."""
    order = np.lexsort((first, group))
    group, first, last = group[order], first[order], last[order]
    # Places instead of seqs, because a group and a seq need not fit 64 bits.
    seqs, place = np.unique(last, return_inverse=True)
    reach = np.maximum.accumulate(group * len(seqs) + place) % max(1, len(seqs))
    return _ranges(group, first, seqs[reach])


def _cells(group: Rows, bucket: Rows, count: Rows | None) -> tuple[Rows, Rows, Rows]:
    """Count the latencies in each bucket of each group: the group, bucket and count. Groups need no order."""
    if not len(group):
        return group, bucket, bucket
    low = int(bucket.min())
    width = int(bucket.max()) - low + 1
    cell = group * width + (bucket - low)
    if int(cell.max()) < 4 * len(cell) + 1024:
        sums = np.bincount(cell, count).astype(np.int64)
        cells = np.flatnonzero(sums)
        sums = sums[cells]
    else:
        order = np.argsort(cell, kind="stable")
        edge = edges(cell[order])
        cells = cell[order][edge]
        sums = np.diff(np.append(edge, len(cell))) if count is None else np.add.reduceat(count[order], edge)
    return cells // width, cells % width + low, sums


def _maxima(group: Rows, column: Rows, groups: int) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return the maximum of each group, and which groups there are."""
    found = np.full(groups, np.iinfo(np.int64).min)
    np.maximum.at(found, group, column)
    return found, np.bincount(group, minlength=groups) > 0


def _with_codes(messages: Any) -> Any:
    """Return COLUMNS with one chunk each, and `board` as a dictionary."""
    messages = messages.select(list(COLUMNS))
    board = messages["board"]
    if not pa.types.is_dictionary(board.type):
        messages = messages.set_column(1, "board", pc.dictionary_encode(board.cast(pa.string())))
    return messages.unify_dictionaries().combine_chunks()


def dense(*keys: npt.NDArray[Any]) -> Rows:
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
    low = int(seq.min()) if len(seq) else 0
    width = int(seq.max()) - low + 1 if len(seq) else 1
    if len(group) and (int(group.max()) + 1) * width >= 1 << 63:
        return np.lexsort((seq, group))
    # Sorting one column is several times as fast as sorting two.
    return np.argsort(group * width + (seq - low))


def edges(group: Rows) -> Rows:
    """Return where each group of sorted numbers begins."""
    if not len(group):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(group[1:] != group[:-1]) + 1])
