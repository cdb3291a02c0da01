"""Split a capture log into ranges for Spark, reading only headers.

A `Plan` is a snapshot. Positions in a log never change, so several passes over a plan read the same records while
the gateway continues to write.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from headwater_host.capture.manifest import Segment, list_log
from headwater_host.capture.problem import TORN, Problem
from headwater_host.capture.reader import lost_end
from headwater_host.capture.scan import BlockInfo, Scan

#: A position as one number in the order of the log: the segment's number in the plan, then the offset.
OFFSET_BITS = 40


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


class _Walk:
    """One segment: its blocks by their headers, and the offsets where it can be split."""

    def __init__(self, segment: Segment, expected: int | None):
        self.segment = segment
        self.expected = segment.first_sequence if expected is None else expected
        self.blocks: list[BlockInfo] = []
        self.problems: list[Problem] = []
        first = self.expected
        fd = os.open(segment.path, os.O_RDONLY)
        try:
            self.end = os.fstat(fd).st_size
            self._headers(fd)
            if segment.is_open:
                self._tail(fd)
        finally:
            os.close(fd)
        if segment.entry is not None:
            # If the last block is bad, the manifest has the next sequence number.
            self.expected = segment.entry.next_sequence
            self.problems += lost_end(segment, self.end)
        #: (offset, expected sequence number): the start, each boundary between adjacent blocks, the end.
        self.edges: list[tuple[int, int]] = [(0, first)]
        self.edges += (
            (block.offset, before.header.sequence + 1)
            for before, block in pairwise(self.blocks)
            if before.end == block.offset
        )
        self.edges.append((self.end, 0))

    def _scan(self, fd: int, start: int, expected: int | None, *, bodies: bool) -> Scan:
        segment = self.segment
        return Scan(
            fd,
            segment.path.name,
            segment.salt,
            start=start,
            is_open=segment.is_open,
            expected=expected,
            bodies=bodies,
        )

    def _headers(self, fd: int) -> None:
        scan = self._scan(fd, 0, self.expected, bodies=False)
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
    directory: str | os.PathLike[str], partition_bytes: int, min_partitions: int, least_bytes: int = 0
) -> Plan:
    """Split the log in `directory` into partitions of at most `partition_bytes`.

    Their number is a multiple of `min_partitions`, unless there are too few blocks or partitions would be smaller
    than `least_bytes`. Raises FileNotFoundError or NotADirectoryError without a log.
    """
    listing = list_log(directory)
    problems = list(listing.problems)
    walks: list[_Walk] = []
    expected: int | None = None
    for segment in listing.segments:
        try:
            walk = _Walk(segment, expected)
        except FileNotFoundError:
            continue  # retention removed it after the listing
        expected = walk.expected
        problems += walk.problems
        walks.append(walk)
    size = sum(walk.end for walk in walks)
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
    )


def _cut(walks: Sequence[_Walk], target: float) -> list[list[Range]]:
    """Split at the first block boundary at or after each multiple of `target` bytes."""
    partitions: list[list[Range]] = []
    current: list[Range] = []
    before = 0  # bytes of the preceding segments
    for number, walk in enumerate(walks):
        path = str(walk.segment.path.absolute())
        start, expected = walk.edges[0]
        for end, following in walk.edges[1:]:
            full = before + end >= target * (len(partitions) + 1)
            if end > start and (full or end == walk.end):
                current.append(Range(path, walk.segment.salt, number, start, end, expected))
                start, expected = end, following
            if full and current:
                partitions.append(current)
                current = []
        before += walk.end
    if current:
        partitions.append(current)
    return partitions
