"""Split a capture log into ranges for Spark, reading only headers.

A `Plan` is a snapshot. Positions in a log never change, so several passes over a plan read the same records while
the gateway continues to write.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from headwater_host.capture.manifest import Segment, list_log
from headwater_host.capture.problem import Problem
from headwater_host.capture.reader import lost_end
from headwater_host.capture.scan import BlockInfo, scanning
from headwater_spark.positions import Position, advance, later, removed_before, rest

#: A position as one number in the order of the log: the segment's number in the plan, then the offset.
OFFSET_BITS = 40


class Span(NamedTuple):
    """Receive times from `since`, up to but without `until`, in ns since 1970."""

    since: int
    until: int

    def meets(self, first_ns: int, last_ns: int) -> bool:
        """Return whether records between these times, both included, may be in the span."""
        return first_ns < self.until and last_ns >= self.since


#: All times.
EVER = Span(-(1 << 63), 1 << 63)


class Range(NamedTuple):
    """Consecutive blocks of one segment, damaged ones included."""

    path: str
    salt: int
    #: The segment's index in the plan.
    number: int
    start: int
    end: int
    #: The expected sequence number of the first block.
    expected: int

    @property
    def file(self) -> str:
        """Return the segment's file name."""
        return os.path.basename(self.path)  # noqa: PTH119  # a path object per use would cost more than the name


class Plan(NamedTuple):
    """The ranges of each partition, the number of records, and problems of the log outside of blocks."""

    partitions: list[list[Range]]
    #: Missing segments, a damaged manifest, a torn tail. Readers report problems within ranges.
    problems: list[Problem]
    #: The blocks before the plan that were removed before they were read; also one of the problems.
    removed: Problem | None
    #: The start of a plan that continues this one; None for a log without blocks.
    end: Position | None
    segments: int
    blocks: int
    bytes: int
    #: Counted from headers, damaged bodies included.
    records: int
    first_ns: int
    last_ns: int


class _Walk:
    """A segment's blocks from `start` to `stop`, by their headers, and the offsets where it can be split."""

    def __init__(self, segment: Segment, start: int, stop: int | None, expected: int, span: Span):
        self.segment = segment
        self.blocks: list[BlockInfo] = []
        options: dict[str, Any] = {"start": start, "end": stop, "expected": expected}
        with scanning(segment.path, segment.salt, bodies=False, **options) as scan:
            # The range's reader finds the problems again, with their bytes.
            self.blocks += (found[0] for found in scan if not isinstance(found, Problem))
        self.end = scan.size if stop is None else min(stop, scan.size)
        self.expected = scan.expected or 0
        self.problems: list[Problem] = []
        entry = segment.entry
        if entry is not None and (stop is None or stop >= entry.bytes):
            # If the last block is bad, the manifest has the next sequence number.
            self.expected = entry.next_sequence
            self.problems += lost_end(segment, self.end, start)
        # (offset, expected sequence number): the start, each boundary between adjacent blocks, the end.
        edges = [(start, expected)]
        edges += (
            (block.offset, before.header.sequence + 1)
            for before, block in pairwise(self.blocks)
            if before.end == block.offset
        )
        edges.append((self.end, 0))
        #: Where the segment can be split: (start, end, expected sequence number), without what is outside of the span.
        self.pieces: list[tuple[int, int, int]] = []
        blocks, self.blocks = deque(self.blocks), []
        for (at, number), (end, _) in pairwise(edges):
            inside = []
            while blocks and blocks[0].offset < end:
                inside.append(blocks.popleft())
            if not inside or any(span.meets(one.header.first_ns, one.header.last_ns) for one in inside):
                self.blocks += inside
                if end > at:
                    self.pieces.append((at, end, number))


def plan(
    directory: str | os.PathLike[str],
    partition_bytes: int,
    min_partitions: int,
    least_bytes: int = 0,
    span: Span = EVER,
    start: Position | None = None,
    upto: Position | None = None,
) -> Plan:
    """Split the log in `directory` into partitions of at most `partition_bytes`.

    The plan begins at `start`, by default at the first segment, and ends at `upto`, by default at the end of the log,
    before a torn tail. `Plan.end` is the `start` of a plan that continues this one; it is never before `start`.

    Segments whose times in the manifest, and blocks whose times in
    their headers, are outside of `span` are skipped. Damaged blocks next to such blocks may be skipped with them.

    The number of partitions is a multiple of `min_partitions`, unless there are too few blocks or partitions would be
    smaller than `least_bytes`. Raises FileNotFoundError or NotADirectoryError without a log.
    """
    listing = list_log(directory)
    problems = _outside(listing.problems, start, upto)
    end, torn = (later(listing, start, upto), None) if upto is not None else advance(listing, start)[::2]
    removed = removed_before(listing, start, end)
    problems += [problem for problem in (torn, removed) if problem is not None]
    walks: list[_Walk] = []
    expected: int | None = None
    for segment, at in rest(listing, start):
        name, entry = segment.name, segment.entry
        if end is None or not Position(name, at, 0).precedes(end):
            break
        if expected is None:
            expected = start.sequence if start is not None and at else segment.first_sequence
        if entry is not None and not span.meets(entry.first_ns, entry.last_ns):
            expected = entry.next_sequence
            continue
        try:
            walk = _Walk(segment, at, end.offset if name == end.file else None, expected, span)
        except FileNotFoundError:
            continue  # retention removed it after the listing
        expected = walk.expected
        problems += walk.problems
        walks.append(walk)
    size = sum(end - start for walk in walks for start, end, _ in walk.pieces)
    headers = [block.header for walk in walks for block in walk.blocks]
    count = min_partitions * max(1, -(-size // (partition_bytes * min_partitions)))
    if least_bytes:
        count = min(count, max(1, size // min(least_bytes, partition_bytes)))
    return Plan(
        partitions=_cut(walks, size / count),
        problems=problems,
        removed=removed,
        end=end,
        segments=len(walks),
        blocks=len(headers),
        bytes=size,
        records=sum(header.records for header in headers),
        first_ns=min((header.first_ns for header in headers), default=0),
        last_ns=max((header.last_ns for header in headers), default=0),
    )


def _outside(problems: Sequence[Problem], start: Position | None, upto: Position | None) -> list[Problem]:
    """Return the problems of the listing between two positions; those of the manifest itself with the log's start."""
    return [
        problem
        for problem in problems
        if (start is None or start.file < problem.file) and (upto is None or problem.file < upto.file)
    ]


def _cut(walks: Sequence[_Walk], target: float) -> list[list[Range]]:
    """Split at the first block boundary at or after each multiple of `target` bytes."""
    partitions: list[list[Range]] = []
    current: list[Range] = []
    taken = 0
    for number, walk in enumerate(walks):
        path = str(walk.segment.path.absolute())
        joins = False
        for start, end, expected in walk.pieces:
            if joins and current[-1].end == start:
                current[-1] = current[-1]._replace(end=end)
            else:
                current.append(Range(path, walk.segment.salt, number, start, end, expected))
            taken += end - start
            joins = taken < target * (len(partitions) + 1)
            if not joins:
                partitions.append(current)
                current = []
    if current:
        partitions.append(current)
    return partitions


def combine(plans: Iterable[Plan]) -> Plan:
    """Return the plans of several logs as one, without an `end`."""
    found = list(plans)
    partitions: list[list[Range]] = []
    segments = 0
    for one in found:
        partitions += [
            [part._replace(number=part.number + segments) for part in ranges] for ranges in one.partitions
        ]
        segments += one.segments
    times = [(one.first_ns, one.last_ns) for one in found if one.blocks]
    return Plan(
        partitions=partitions,
        problems=[problem for one in found for problem in one.problems],
        removed=next((one.removed for one in found if one.removed), None),
        end=None,
        segments=segments,
        blocks=sum(one.blocks for one in found),
        bytes=sum(one.bytes for one in found),
        records=sum(one.records for one in found),
        first_ns=min((first for first, _ in times), default=0),
        last_ns=max((last for _, last in times), default=0),
    )
