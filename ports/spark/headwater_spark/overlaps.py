"""Find messages that may be in several parts.

Each part reports its runs of `seq` for each topic, board and boot, or of times for each FMQ origin. A part of a
hundred thousand messages has few runs, because boards count upwards; close runs are joined if there are many. A
message outside of overlapping runs has no copy elsewhere. All others are *shared* and have to meet. Joining runs
may mark a row as shared that has no copy, never the reverse.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headwater_spark.messages import Groups, Name

#: Maximum runs per part and group.
MAX_RUNS = 1024


class Runs(NamedTuple):
    """First and last seq of each run of one group in one part, in order and disjoint."""

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]


#: The runs of one part by group.
PartRuns = dict[Name, Runs]


class Shared(NamedTuple):
    """Ranges of seq, ends included, that may be in several parts, and the parts with a run there.

    `before` are the indexes of earlier batches with a run there.
    """

    ranges: dict[Name, Runs]
    parts: set[int]
    before: set[int]


def runs_of(groups: Groups) -> PartRuns:
    """Return the runs of one part."""
    parts = list(groups.parts())
    if not parts:
        return {}
    seq = groups.seq
    # Of all groups at once: there may be a group for each of ten thousand boards.
    cuts = np.flatnonzero((np.diff(seq) > 1) | (np.diff(groups.group) != 0))
    begins = np.append(0, cuts + 1)
    low, high = seq[begins], seq[np.append(cuts, len(seq) - 1)]
    bounds = np.searchsorted(begins, [0, *(place.stop for _, place in parts)]).tolist()
    return {
        name: Runs(low[start:end], high[start:end]) if end - start <= MAX_RUNS else _few_runs(seq[place])
        for (name, place), (start, end) in zip(parts, pairwise(bounds), strict=True)
    }


def _few_runs(seq: npt.NDArray[np.int64]) -> Runs:
    cuts = widest(np.diff(seq))
    return Runs(seq[np.append(0, cuts + 1)], seq[np.append(cuts, len(seq) - 1)])


def widest(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where steps exceed 1, in order; if these make more than MAX_RUNS runs, only the widest."""
    cuts = np.flatnonzero(steps > 1)
    if len(cuts) < MAX_RUNS:
        return cuts
    return np.sort(cuts[np.argpartition(steps[cuts], -MAX_RUNS + 1)[-MAX_RUNS + 1 :]])


def shared(parts: Iterable[tuple[int, PartRuns]], before: Sequence[PartRuns] = ()) -> Shared:
    """Return where runs of different parts overlap each other, and those of earlier batches, `before`."""
    by_name: dict[Name, list[tuple[int, int, int]]] = defaultdict(list)
    for part, runs in parts:
        for name, (low, high) in runs.items():
            by_name[name] += ((lo, hi, part) for lo, hi in zip(low.tolist(), high.tolist(), strict=True))
    result = Shared({}, set(), set())
    for name, runs_ in by_name.items():
        # Number -1 - k is batch k.
        olds = [
            (lo, hi, -1 - k)
            for k, runs in enumerate(before)
            if name in runs
            for lo, hi in zip(*(ends.tolist() for ends in runs[name]), strict=True)
        ]
        ranges = _overlaps(runs_ + _union(olds))
        if not ranges:
            continue
        runs_ += olds
        low, high = (np.array(ends, np.int64) for ends in zip(*ranges, strict=True))
        result.ranges[name] = Runs(low, high)
        highs = high.tolist()
        for lo, hi, part in runs_:
            # The first range that does not end before the run.
            at = bisect_right(highs, lo - 1)
            if at < len(ranges) and ranges[at][0] <= hi:
                if part >= 0:
                    result.parts.add(part)
                else:
                    result.before.add(-1 - part)
    return result


def _union(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return disjoint runs with the same values, so that earlier batches do not overlap each other."""
    found: list[tuple[int, int, int]] = []
    for low, high, number in sorted(runs):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high), number)
        else:
            found.append((low, high, number))
    return found


def _overlaps(runs: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return disjoint ranges that lie in two or more runs. The runs of one part never overlap."""
    ranges: list[tuple[int, int]] = []
    reach = -1  # the last seq of the runs so far
    for low, high, _ in sorted(runs):
        common = min(high, reach)
        if low <= common:
            if ranges and low <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(common, ranges[-1][1]))
            else:
                ranges.append((low, common))
        reach = max(reach, high)
    return ranges


def rows_in(groups: Groups, ranges: dict[Name, Runs]) -> npt.NDArray[np.int64]:
    """Return the rows of a part whose identity lies in the ranges."""
    found = [np.zeros(0, np.int64)]
    for name, place in groups.parts():
        runs = ranges.get(name)
        if runs is None:
            continue
        seq = groups.seq[place]
        at = np.searchsorted(runs.high, seq)
        inside = at < len(runs.high)
        inside[inside] = runs.low[at[inside]] <= seq[inside]
        found.append(groups.rows[place][inside])
    return np.concatenate(found)
