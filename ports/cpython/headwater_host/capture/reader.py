"""Read a capture log: its blocks and records in order, the damage it has, and the ranges it can be split into."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from headwater_host.capture.format import Block, Record, parse_segment_name
from headwater_host.capture.manifest import Segment, list_log
from headwater_host.capture.problem import BAD, MANIFEST, TORN, Problem
from headwater_host.capture.scan import BlockInfo, Scan


class Position(NamedTuple):
    """A place in a log: the file name of a segment, and the offset in it at which a block begins or will."""

    file: str
    offset: int


class CaptureReader:
    """Reads the log in ``directory``, from ``start`` (a Position, default the log's beginning).

    Bad blocks are passed over and reported: appended to ``problems``, or given to ``on_problem`` instead.
    ``torn`` is the torn tail at which the last walk ended, or None. ``position`` is where the next walk begins;
    walking again goes on behind the last block that was yielded, which is how to follow a log that is being written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        start: Position | None = None,
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.position = start
        self.problems: list[Problem] = []
        self.torn: Problem | None = None
        self._report = on_problem or self.problems.append
        self._expected: int | None = None

    def blocks(self) -> Iterator[Block]:
        """The good blocks from ``position`` on, each checked.

        Raises OSError when the log is not there or cannot be read.
        """
        for _, block in self._walk(bodies=True):
            assert block is not None
            yield block

    def records(self) -> Iterator[Record]:
        """The records of these blocks. ``position`` moves by whole blocks."""
        for block in self.blocks():
            yield from block.records()

    def infos(self) -> Iterator[BlockInfo]:
        """The blocks' places and headers, without reading their bodies."""
        for info, _ in self._walk(bodies=False):
            yield info

    def _walk(self, *, bodies: bool) -> Iterator[tuple[BlockInfo, Block | None]]:
        self.torn = None
        number, start_at = self._start()
        for segment in list_log(self.directory).segments:
            if segment.first_sequence < number:
                continue
            start = start_at.offset if start_at and start_at.file == segment.path.name else 0
            try:
                fd = os.open(segment.path, os.O_RDONLY)
            except FileNotFoundError:
                continue  # retention was faster; the sequence numbers show it if it was not retention
            try:
                yield from self._walk_segment(segment, fd, start, bodies)
            finally:
                os.close(fd)

    def _start(self) -> tuple[int, Position | None]:
        """The number of the segment to begin with, and the place in it.

        The salt has no order: a segment that was removed because nothing of it was left has a successor of its number.
        """
        if self.position is None:
            return 0, None
        parsed = parse_segment_name(self.position.file)
        if parsed is None:
            raise ValueError(f"{self.position.file!r} is not the name of a segment")
        return parsed[0], self.position

    def _walk_segment(
        self, segment: Segment, fd: int, start: int, bodies: bool
    ) -> Iterator[tuple[BlockInfo, Block | None]]:
        name = segment.path.name
        expected = self._expected
        if start == 0 and expected is None:
            expected = segment.first_sequence
        scan = Scan(
            fd, name, segment.salt, start=start, is_open=segment.is_open, expected=expected, bodies=bodies
        )
        self.position = Position(name, start)
        for found in scan:
            self._expected = scan.expected
            if not isinstance(found, Problem):
                self.position = Position(name, found[0].end)
                yield found
            elif found.kind == TORN:
                self.torn = found
            else:
                self.position = Position(name, found.offset + found.length)
                self._report(found)
        # Where the last block is bad, the manifest knows how the numbers go on.
        self._expected = scan.expected if segment.entry is None else segment.entry.next_sequence
        for problem in _lost_end(segment, scan.size, start):
            self.position = Position(name, problem.offset + problem.length)  # once is enough
            self._report(problem)


def _lost_end(segment: Segment, size: int, start: int = 0) -> Iterator[Problem]:
    if segment.entry is not None and start <= size < segment.entry.bytes:
        lost = segment.entry.bytes - size
        yield Problem(BAD, segment.path.name, size, lost, "the end of a sealed segment is missing")


def read_range(
    path: str | os.PathLike[str],
    offset: int,
    length: int,
    on_problem: Callable[[Problem], None],
) -> Iterator[Block]:
    """The good blocks that begin in bytes ``offset`` to ``offset + length`` of the segment ``path``.

    For ranges between block boundaries, as ``list_blocks`` gives them; what is not a good block there is reported.
    """
    name = Path(path).name
    parsed = parse_segment_name(name)
    fd = os.open(path, os.O_RDONLY)
    try:
        end = offset + length
        scan = Scan(fd, name, parsed[1] if parsed else None, start=offset, end=end)
        for found in scan:
            if isinstance(found, Problem):
                on_problem(found)
            else:
                assert found[1] is not None
                yield found[1]
        if scan.size < end:
            on_problem(Problem(BAD, name, scan.size, end - scan.size, "the file ends before the range does"))
    finally:
        os.close(fd)


def list_blocks(
    directory: str | os.PathLike[str],
    *,
    start: Position | None = None,
    on_problem: Callable[[Problem], None] | None = None,
) -> list[BlockInfo]:
    """Place and header of every block of the log from ``start`` on, in order: what a job is split by.

    Reads headers only, so a block with a damaged body is listed as well. A torn tail is not.
    """
    return list(CaptureReader(directory, start=start, on_problem=on_problem).infos())


class SegmentTotals(NamedTuple):
    """What is in one segment. ``first_ns`` and ``last_ns`` are None when no record is."""

    file: str
    bytes: int
    blocks: int
    records: int
    first_ns: int | None
    last_ns: int | None
    sealed: bool


class Report(NamedTuple):
    """The state of a log: totals per segment, damage, the torn tail that is no damage, and what the records are."""

    segments: list[SegmentTotals]
    problems: list[Problem]
    torn: list[Problem]
    #: Records by protocol; nothing when no bodies were read.
    protocols: Counter[int]

    @property
    def damaged(self) -> bool:
        """Whether anything is wrong beside a torn tail."""
        return bool(self.problems)


def verify(directory: str | os.PathLike[str], *, bodies: bool = True) -> Report:
    """Read the whole log and hold it against its manifest.

    ``bodies``: False reads headers only (fast; does not see damage inside bodies).
    Raises OSError when the log is not there or cannot be read.
    """
    listing = list_log(directory)
    problems = list(listing.problems)
    segments = []
    protocols: Counter[int] = Counter()
    expected: int | None = None
    for segment in listing.segments:
        try:
            fd = os.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # retention was faster
        try:
            if expected is None:
                expected = segment.first_sequence
            totals, found, expected = _survey(segment, fd, expected, bodies, protocols)
        finally:
            os.close(fd)
        segments.append(totals)
        problems += found
    damage = [problem for problem in problems if problem.is_damage]
    return Report(segments, damage, [problem for problem in problems if not problem.is_damage], protocols)


def _survey(
    segment: Segment, fd: int, expected: int, bodies: bool, protocols: Counter[int]
) -> tuple[SegmentTotals, list[Problem], int | None]:
    """Totals and problems of one segment, and the sequence number with which the next should begin.

    Counts its records by protocol.
    """
    name, entry = segment.path.name, segment.entry
    scan = Scan(fd, name, segment.salt, is_open=segment.is_open, expected=expected, bodies=bodies)
    headers = []
    problems: list[Problem] = []
    for found in scan:
        if isinstance(found, Problem):
            problems.append(found)
        else:
            headers.append(found[0].header)
            problems += _check_times(*found)
            if found[1] is not None:
                protocols.update(bytes(found[1].protocol))
    problems += _lost_end(segment, scan.size)
    totals = SegmentTotals(
        name,
        scan.size,
        len(headers),
        sum(header.records for header in headers),
        min((header.first_ns for header in headers), default=None),
        max((header.last_ns for header in headers), default=None),
        entry is not None,
    )
    if entry is None:
        return totals, problems, scan.expected
    counted = (*totals[1:4], totals.first_ns or 0, totals.last_ns or 0, segment.first_sequence, scan.expected)
    if counted != entry[1:] and not problems:  # otherwise they say why
        said = f"the manifest says {entry[1:]}, the segment has {counted}"
        problems.append(Problem(MANIFEST, name, 0, 0, said))
    return totals, problems, entry.next_sequence


def _check_times(info: BlockInfo, block: Block | None) -> Iterator[Problem]:
    """Who looks for a span of time trusts the header: it must be true."""
    if block is None:
        return
    said = (info.header.first_ns, info.header.last_ns)
    found = (min(block.time_ns), max(block.time_ns))
    if said != found:
        reason = f"header says times {said}, the records have {found}"
        yield Problem(BAD, info.file, info.offset, info.length, reason)
