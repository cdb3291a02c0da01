"""Statistics of each board.

Latencies are counted in buckets (`headwater_spark.latency`). A board's start is a (board, boot). Its gaps are the
sequence numbers missing between its first and last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headwater_spark import tally
from headwater_spark.latency import in_ms
from headwater_spark.messages import Settled

_GROUPS = ["board", "boot", "count_all"]

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


def percentile(latency: Counter[int], share: float) -> float | None:
    """Return the latency in ms that a `share` (0 to 1) of the messages does not exceed, or None without messages."""
    left = max(1, math.ceil(share * sum(latency.values())))
    for bucket in sorted(latency):
        left -= latency[bucket]
        if left <= 0:
            return float(in_ms(bucket))
    return None


def count(table: Any, settled: Settled, tallied: Any) -> Stats:
    """Return the statistics of settled rows (`messages.COLUMNS`) with the tally of those that are kept."""
    result: Stats = {}
    starts = tally.merge([tallied.set_column(0, "time_ns", pa.array(np.zeros(len(tallied), np.int64)))])
    columns = ["board", "boot", "messages", "first_ns", "last_ns", "firsts", "lasts", "buckets", "timed"]
    for board, boot, stored, first_ns, last_ns, firsts, lasts, *counts in zip(
        *(starts[name].to_pylist() for name in columns), strict=True
    ):
        latency = Counter(dict(zip(*counts, strict=True)))
        result[board, boot] = Stat(stored, stored, firsts[0], lasts[-1], first_ns, last_ns, latency)
    others = np.flatnonzero(~settled.keep & ~settled.elsewhere)
    if len(others):
        found = table.select(["board", "boot"]).take(pa.array(others))
        found = found.group_by(["board", "boot"]).aggregate([([], "count_all")])
        for board, boot, n in zip(*(column.to_pylist() for column in found.select(_GROUPS)), strict=True):
            result.setdefault((board, boot or 0), Stat()).received += n
    return result


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
