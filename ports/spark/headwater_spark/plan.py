"""Split a capture log into ranges for Spark, reading only the manifest and headers.

A `Plan` is a snapshot. Positions in a log never change, so several passes over a plan read the same records while
the gateway continues to write.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

from headwater_host.capture.filesystem import (
    Location,
    Storage,
    base_name,
    is_remote,
    local_path,
    parse_storage,
)
from headwater_host.capture.log_id import LogIdError
from headwater_host.capture.manifest import Listing, Segment, list_log
from headwater_host.capture.problem import Problem
from headwater_host.capture.reader import lost_end
from headwater_host.capture.scan import BlockInfo, scanning
from headwater_spark.positions import Position, Reach, advance, later, removed_before, rest

#: A position as one number in the order of the log: the segment's number in the plan, then the offset.
OFFSET_BITS = 40
# The smallest number of complete segments that make a partition. Larger segments are split, so their headers are read.
_WHOLE = 4


class Log(NamedTuple):
    """A capture log to read: its path or URI, and storage options."""

    location: str
    storage: Storage = ()

    @classmethod
    def at(cls, location: Location, storage: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Log:
        """Return the log at a location, with an absolute path. Raises LocationError."""
        found = os.fspath(location) if is_remote(location) else str(local_path(location).absolute())
        return cls(found, parse_storage(storage))


def by_id(logs: Iterable[tuple[str, Log]]) -> dict[str, Log]:
    """Return logs by their ids. Raises LogIdError if two have the same."""
    found: dict[str, Log] = {}
    for name, log in logs:
        known = found.setdefault(name, log)
        if known != log:
            raise LogIdError(f"{known.location} and {log.location} are copies of one log: name one of them")
    return found


class Span(NamedTuple):
    """Receive times from `since`, up to but without `until`, in ns since 1970."""

    since: int
    until: int

    def meets(self, first_ns: int, last_ns: int) -> bool:
        """Return whether records between these times, both included, may be in the span."""
        return first_ns < self.until and last_ns >= self.since

    def within(self, other: Span) -> Span:
        """Return the times that are in both spans."""
        return Span(max(self.since, other.since), min(self.until, other.until))


#: All times.
EVER = Span(-(1 << 63), 1 << 63)


class Range(NamedTuple):
    """Consecutive blocks of one segment, damaged ones included."""

    #: Path or URI.
    path: str
    salt: int
    #: The segment's index in the plan.
    number: int
    start: int
    end: int
    #: The expected sequence number of the first block.
    expected: int
    storage: Storage = ()

    @property
    def file(self) -> str:
        """Return the segment's file name."""
        return base_name(self.path)


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
    #: By the manifest or the headers, damaged bodies included.
    records: int
    first_ns: int
    last_ns: int


class _Part(NamedTuple):
    """The blocks of a segment from `start` to `stop`, by default up to the last."""

    segment: Segment
    start: int
    stop: int | None
    #: Of the file.
    size: int
    #: The expected sequence number of the first block; None: that after the part before.
    expected: int | None

    @property
    def bytes(self) -> int:
        """The bytes of the part."""
        return (self.size if self.stop is None else min(self.stop, self.size)) - self.start

    @property
    def has_end(self) -> bool:
        """Return whether the part ends where a sealed segment ends."""
        entry = self.segment.entry
        return entry is not None and (self.stop is None or self.stop >= entry.bytes)

    def is_whole(self, span: Span) -> bool:
        """Return whether this is a complete sealed segment whose records are all in the span."""
        entry = self.segment.entry
        return (
            entry is not None
            and self.has_end
            and (self.start, self.size) == (0, entry.bytes)
            and span.since <= entry.first_ns
            and entry.last_ns < span.until
        )


class _Walk:
    """The blocks of a part of a segment, and the offsets where it can be split."""

    def __init__(self, part: _Part, expected: int):
        self.segment = part.segment
        #: The sequence number after the part.
        self.expected = expected
        self.problems: list[Problem] = []
        self.blocks = self.records = self.first_ns = self.last_ns = 0
        #: Where the segment can be split: (start, end, expected sequence number), without what is outside of the span.
        self.pieces: list[tuple[int, int, int]] = []

    def take_whole(self, part: _Part) -> None:
        """Take a complete sealed segment as one piece, by its line in the manifest."""
        entry = part.segment.entry
        assert entry is not None
        self.blocks, self.records = entry.blocks, entry.records
        self.first_ns, self.last_ns = entry.first_ns, entry.last_ns
        self.pieces.append((0, entry.bytes, self.expected))
        self.expected = entry.next_sequence

    def read(self, part: _Part, span: Span) -> None:
        """Read the headers. Raises FileNotFoundError if retention has removed the segment."""
        segment, start, first = part.segment, part.start, self.expected
        options: dict[str, Any] = {"start": start, "end": part.stop, "expected": first}
        with scanning(
            segment.location, segment.salt, storage=segment.storage, bodies=False, **options
        ) as scan:
            # The range's reader finds the problems again, with their bytes.
            blocks = deque(found[0] for found in scan if not isinstance(found, Problem))
        self.expected = scan.expected or 0
        size = scan.size if part.stop is None else min(part.stop, scan.size)
        if segment.entry is not None and part.has_end:
            # If the last block is bad, the manifest has the next sequence number.
            self.expected = segment.entry.next_sequence
            self.problems += lost_end(segment, size, start)
        # (offset, expected sequence number): the start, each boundary between adjacent blocks, the end.
        edges = [(start, first)]
        edges += (
            (block.offset, before.header.sequence + 1)
            for before, block in pairwise(blocks)
            if before.end == block.offset
        )
        edges.append((size, 0))
        for (at, number), (end, _) in pairwise(edges):
            inside = []
            while blocks and blocks[0].offset < end:
                inside.append(blocks.popleft())
            if not inside or any(span.meets(one.header.first_ns, one.header.last_ns) for one in inside):
                self._count(inside)
                if end > at:
                    self.pieces.append((at, end, number))

    def _count(self, blocks: list[BlockInfo]) -> None:
        for block in blocks:
            header = block.header
            first, last = (self.first_ns, self.last_ns) if self.blocks else (header.first_ns, header.last_ns)
            self.first_ns, self.last_ns = min(first, header.first_ns), max(last, header.last_ns)
            self.blocks += 1
            self.records += header.records


def plan(
    directory: Location,
    partition_bytes: int,
    min_partitions: int,
    least_bytes: int = 0,
    span: Span = EVER,
    start: Position | None = None,
    upto: Position | None = None,
    storage: Storage = (),
) -> Plan:
    """Split the log in `directory`, a path or URI, into partitions of at most `partition_bytes`.

    The plan begins at `start`, by default at the first segment, and ends at `upto`, by default at the end of the log,
    before a torn tail. `Plan.end` is the `start` of a plan that continues this one; it is never before `start`.

    Segments whose times in the manifest, and blocks whose times in
    their headers, are outside of `span` are skipped. Damaged blocks next to such blocks may be skipped with them.

    The number of partitions is a multiple of `min_partitions`, unless there are too few blocks or partitions would be
    smaller than `least_bytes`. Raises FileNotFoundError or NotADirectoryError without a log.
    """
    listing = list_log(directory, storage)
    problems = _outside(listing.problems, start, upto)
    reach = Reach(later(listing, start, upto)) if upto is not None else advance(listing, start)
    end = reach.end
    removed = removed_before(listing, start, end)
    problems += [problem for problem in (reach.torn, removed) if problem is not None]
    parts = _parts(listing, start, end, span)

    def target(size: int) -> float:
        count = min_partitions * max(1, -(-size // (partition_bytes * min_partitions)))
        if least_bytes:
            count = min(count, max(1, size // min(least_bytes, partition_bytes)))
        return size / count

    walks = _walk(parts, span, target(sum(part.bytes for part in parts)) / _WHOLE)
    problems += [problem for walk in walks for problem in walk.problems]
    size = sum(end - start for walk in walks for start, end, _ in walk.pieces)
    some = [walk for walk in walks if walk.blocks]
    return Plan(
        partitions=_cut(walks, target(size)),
        problems=problems,
        removed=removed,
        end=end,
        segments=len(walks),
        blocks=sum(walk.blocks for walk in walks),
        bytes=size,
        records=sum(walk.records for walk in walks),
        first_ns=min((walk.first_ns for walk in some), default=0),
        last_ns=max((walk.last_ns for walk in some), default=0),
    )


def _parts(listing: Listing, start: Position | None, end: Position | None, span: Span) -> list[_Part]:
    """Return the segments between two positions that may have records in the span."""
    parts: list[_Part] = []
    before: Segment | None = None
    for segment, at in rest(listing, start):
        if end is None or not Position(segment.name, at, 0).precedes(end):
            break
        expected: int | None = None
        if before is None:
            expected = start.sequence if start is not None and at else segment.first_sequence
        elif before.entry is not None:
            expected = before.entry.next_sequence
        before, entry = segment, segment.entry
        if entry is None or span.meets(entry.first_ns, entry.last_ns):
            try:
                size = segment.size()
            except FileNotFoundError:
                size = at  # retention removed it after the listing
            stop = end.offset if segment.name == end.file else None
            parts.append(_Part(segment, at, stop, size, expected))
    return parts


def _walk(parts: Sequence[_Part], span: Span, largest: float) -> list[_Walk]:
    """Return the parts that are still there. Complete segments of at most `largest` bytes are not read."""
    if not parts:
        return []

    def walk(part: _Part, expected: int) -> _Walk | None:
        found = _Walk(part, expected)
        try:
            if part.bytes <= largest and part.is_whole(span):
                found.take_whole(part)
            else:
                found.read(part, span)
        except FileNotFoundError:
            return None  # retention removed it after the listing
        return found

    walks: list[_Walk] = []
    firsts: list[int] = []
    futures: list[Future[_Walk | None]] = []
    with ThreadPoolExecutor(parts[0].segment.folder.threads) as pool:
        for part in parts:
            first = part.expected
            if first is None:
                before = futures[-1].result()
                first = firsts[-1] if before is None else before.expected
            firsts.append(first)
            futures.append(pool.submit(walk, part, first))
    lost: int | None = None
    for first, future in zip(firsts, futures, strict=True):
        found = future.result()
        if found is None:
            lost = first if lost is None else lost
            continue
        if lost is not None and found.pieces:
            # The reader reports the gap.
            found.pieces[0] = (*found.pieces[0][:2], min(lost, found.pieces[0][2]))
        lost = None
        walks.append(found)
    return walks


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
        path = walk.segment.location
        joins = False
        for start, end, expected in walk.pieces:
            if joins and current[-1].end == start:
                current[-1] = current[-1]._replace(end=end)
            else:
                current.append(
                    Range(path, walk.segment.salt, number, start, end, expected, walk.segment.storage)
                )
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
