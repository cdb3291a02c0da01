"""Split a capture log into ranges for Spark, reading only headers.

A `Plan` is a snapshot. Positions in a log never change, so several passes over a plan read the same records while
the gateway continues to write.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from headwater_host.capture.format import parse_segment_name
from headwater_host.capture.manifest import Segment, list_log
from headwater_host.capture.problem import TORN, Problem
from headwater_host.capture.reader import lost_end
from headwater_host.capture.scan import BlockInfo, Scan

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


class Position(NamedTuple):
    """A place between two blocks of a log: everything before it is taken."""

    file: str
    offset: int
    #: Sequence number of the next block.
    sequence: int

    @property
    def segment(self) -> int:
        """Return the number in the segment's name."""
        return _number(self.file)


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
    segments: int
    blocks: int
    bytes: int
    #: Counted from headers, damaged bodies included.
    records: int
    first_ns: int
    last_ns: int
    #: The position after the last range; None for a log without segments.
    end: Position | None = None


def _number(file: str) -> int:
    name = parse_segment_name(file)
    if name is None:
        raise ValueError(f"{file!r} is not the name of a segment")
    return name[0]


class _Walk:
    """One segment: its blocks by their headers, and the offsets where it can be split.

    `start` is the offset of the first block, `until` the offset where the walk ends before the end of the file.
    """

    def __init__(
        self,
        segment: Segment,
        expected: int | None,
        span: Span,
        start: int = 0,
        until: Position | None = None,
    ):
        self.segment = segment
        self.expected = segment.first_sequence if expected is None else expected
        self.start = start
        self.until = until
        self.blocks: list[BlockInfo] = []
        self.problems: list[Problem] = []
        first = self.expected
        fd = os.open(segment.path, os.O_RDONLY)
        try:
            self.end = os.fstat(fd).st_size if until is None else until.offset
            self._headers(fd)
            if segment.is_open and until is None:
                self._tail(fd)
        finally:
            os.close(fd)
        if until is not None:
            self.expected = until.sequence
        elif segment.entry is not None:
            # If the last block is bad, the manifest has the next sequence number.
            self.expected = segment.entry.next_sequence
            self.problems += lost_end(segment, self.end)
        # (offset, expected sequence number): the start, each boundary between adjacent blocks, the end.
        edges = [(start, first)]
        edges += (
            (block.offset, before.header.sequence + 1)
            for before, block in pairwise(self.blocks)
            if before.end == block.offset
        )
        edges.append((self.end, 0))
        #: Where the segment can be split: (start, end, expected sequence number), without what is outside of the span.
        self.pieces: list[tuple[int, int, int]] = []
        blocks, self.blocks = deque(self.blocks), []
        for (start, number), (end, _) in pairwise(edges):
            inside = []
            while blocks and blocks[0].offset < end:
                inside.append(blocks.popleft())
            if not inside or any(span.meets(one.header.first_ns, one.header.last_ns) for one in inside):
                self.blocks += inside
                if end > start:
                    self.pieces.append((start, end, number))

    def _scan(self, fd: int, start: int, expected: int | None, *, bodies: bool) -> Scan:
        segment, until = self.segment, self.until
        return Scan(
            fd,
            segment.path.name,
            segment.salt,
            start=start,
            end=None if until is None else until.offset,
            is_open=segment.is_open and until is None,
            expected=expected,
            bodies=bodies,
        )

    def _headers(self, fd: int) -> None:
        scan = self._scan(fd, self.start, self.expected, bodies=False)
        for found in scan:
            if isinstance(found, Problem):
                self._torn(found)
            else:
                self.blocks.append(found[0])
        self.expected = scan.expected or 0

    def _tail(self, fd: int) -> None:
        """Exclude blocks at the end whose headers are valid but whose bodies are incomplete."""
        while self.blocks:
            block = self.blocks[-1]
            scan = self._scan(fd, block.offset, None, bodies=True)
            if not any(self._torn(found) for found in scan if isinstance(found, Problem)):
                break
            self.blocks.pop()
            self.expected = block.header.sequence

    def _torn(self, problem: Problem) -> bool:
        """Record a torn tail. The range's reader finds all other problems again, with their bytes."""
        if problem.kind != TORN:
            return False
        self.problems = [problem]
        self.end = problem.offset
        return True


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

    The plan begins at `start`, by default at the first segment, and ends at `upto`, by default at the end of the log.
    `Plan.end` is the `start` of a plan that continues this one.

    Segments whose times in the manifest, and blocks whose times in their headers, are outside of `span` are skipped.
    Damaged blocks next to such blocks may be skipped with them.

    The number of partitions is a multiple of `min_partitions`, unless there are too few blocks or partitions would be
    smaller than `least_bytes`. Raises FileNotFoundError or NotADirectoryError without a log.
    """
    listing = list_log(directory)
    segments, problems = listing.segments, listing.problems
    walks: list[_Walk] = []
    expected: int | None = None
    if start is not None:
        # A segment of which nothing was left may have been replaced by one with the same number.
        segments = [segment for segment in segments if segment.first_sequence >= start.segment]
        problems = [
            one for one in problems if (parse_segment_name(one.file) or (start.segment,))[0] >= start.segment
        ]
        expected = start.sequence
    if upto is not None:
        segments = [segment for segment in segments if segment.path.name <= upto.file]
    problems = list(problems)
    end = start
    for segment in segments:
        entry = segment.entry
        name = segment.path.name
        if entry is not None and not span.meets(entry.first_ns, entry.last_ns):
            expected = entry.next_sequence
            end = Position(name, entry.bytes, expected)
            continue
        try:
            walk = _Walk(
                segment,
                expected,
                span,
                start.offset if start is not None and name == start.file else 0,
                upto if upto is not None and name == upto.file else None,
            )
        except FileNotFoundError:
            continue  # retention removed it after the listing
        expected = walk.expected
        end = Position(name, walk.end, expected)
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
        segments=len(walks),
        blocks=len(headers),
        bytes=size,
        records=sum(header.records for header in headers),
        first_ns=min((header.first_ns for header in headers), default=0),
        last_ns=max((header.last_ns for header in headers), default=0),
        end=end,
    )


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
