"""Statistics of each board.

Latencies are counted in buckets 1.1 % wide, so that percentiles of several parts can be computed; a percentile is
accurate to 0.6 % or 1 µs. A board's start is a (board, boot). Its gaps are the sequence numbers missing between its
first and last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater_spark.arrow import codes, numbers, one, valid
from headwater_spark.messages import Settled

#: Buckets per factor of 2.
_FINE = 64

#: (board, boot), or (None, 0) for messages without an identity.
Start = tuple[str | None, int]


@dataclass
class Stat:
    """One start of a board. Times are ns since 1970; `latency` counts by bucket."""

    received: int = 0
    stored: int = 0
    low: int = 0
    high: int = 0
    first_ns: int = 0
    last_ns: int = 0
    latency: Counter[int] = field(default_factory=Counter)

    def add(self, other: Stat) -> None:
        """Add the counts of another part."""
        if other.stored:
            if not self.stored:
                self.low, self.high = other.low, other.high
                self.first_ns, self.last_ns = other.first_ns, other.last_ns
            self.low = min(self.low, other.low)
            self.high = max(self.high, other.high)
            self.first_ns = min(self.first_ns, other.first_ns)
            self.last_ns = max(self.last_ns, other.last_ns)
        self.received += other.received
        self.stored += other.stored
        if self.latency:
            self.latency.update(other.latency)
        else:
            self.latency = other.latency.copy()


Stats = dict[Start, Stat]


def buckets(latency_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of each latency; a negative latency (clocks differ) has a negative bucket."""
    size = np.rint(_FINE * np.log2(1 + np.abs(latency_us.astype(np.float64)))).astype(np.int64)
    result: npt.NDArray[np.int64] = np.where(latency_us < 0, -size, size)
    return result


def percentile(latency: Counter[int], share: float) -> float | None:
    """Return the latency in ms that a `share` (0 to 1) of the messages does not exceed, or None without messages."""
    left = max(1, math.ceil(share * sum(latency.values())))
    for bucket in sorted(latency):
        left -= latency[bucket]
        if left <= 0:
            return math.copysign(2 ** (abs(bucket) / _FINE) - 1, bucket) / 1000
    return None


def count(table: Any, settled: Settled) -> Stats:
    """Return the statistics of settled rows (`messages.COLUMNS`)."""
    result: Stats = {}
    if not table.num_rows:
        return result
    seq, time_ns, sent_ns = numbers(table["seq"]), numbers(table["time_ns"]), numbers(table["sent_ns"])
    boards: list[str | None] = [None, *one(table["board"]).dictionary.to_pylist()]
    boot_values = one(table["boot"]).dictionary_encode()
    boots: list[int] = [0, *boot_values.dictionary.to_pylist()]
    wide = (codes(table["board"]) + 1) * len(boots) + codes(boot_values) + 1
    received = np.bincount(wide[~settled.elsewhere], minlength=len(boards) * len(boots))
    names = np.flatnonzero(received)
    start = (np.cumsum(received > 0) - 1)[wide]
    stats = [Stat(received=n) for n in received[names].tolist()]
    rows = np.flatnonzero(settled.keep)
    # Sorting 16-bit numbers takes linear time.
    small = start[rows].astype(np.uint16) if len(names) <= 0x10000 else start[rows]
    rows = rows[np.argsort(small, kind="stable")]
    edges = np.searchsorted(start[rows], np.arange(len(names) + 1))
    stored = np.diff(edges)
    # Only starts with kept rows have extremes; the others' slices would be empty.
    kept = np.flatnonzero(stored)
    extremes = [
        how.reduceat(column[rows], edges[kept]).tolist() if len(kept) else []
        for column in (time_ns, seq)
        for how in (np.minimum, np.maximum)
    ]
    for k, n, *found in zip(kept.tolist(), stored[kept].tolist(), *extremes, strict=True):
        stat = stats[k]
        stat.stored = n
        stat.first_ns, stat.last_ns, stat.low, stat.high = found
    for stat, name in zip(stats, names.tolist(), strict=True):
        board, boot = divmod(name, len(boots))
        result[boards[board], boots[boot]] = stat
    timed = rows[valid(table["sent_ns"])[rows]]
    _spread(stats, start[timed], buckets((time_ns[timed] - sent_ns[timed]) // 1000))
    return result


def _spread(stats: list[Stat], start: npt.NDArray[np.intp], bucket: npt.NDArray[np.int64]) -> None:
    """Count the latencies of each start by bucket."""
    if not len(start):
        return
    low = int(bucket.min())
    width = int(bucket.max()) - low + 1
    cells, counts = np.unique(start * width + (bucket - low), return_counts=True)
    of, found = cells // width, (cells % width + low).tolist()
    edges = np.flatnonzero(np.diff(of, prepend=-1)).tolist()
    numbers_ = counts.tolist()
    for k, begin, end in zip(of[edges].tolist(), edges, [*edges[1:], len(cells)], strict=True):
        stats[k].latency = Counter(dict(zip(found[begin:end], numbers_[begin:end], strict=True)))


def add(parts: Iterable[Stats]) -> Stats:
    """Add up the statistics of several parts."""
    total: Stats = {}
    for part in parts:
        for start, stat in part.items():
            known = total.get(start)
            if known is None:
                known = total[start] = Stat()
            known.add(stat)
    return total
