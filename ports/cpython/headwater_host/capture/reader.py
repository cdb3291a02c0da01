"""Read a capture log: blocks and records in order, damage, and ranges for parallel readers."""

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
    """A position in a log: the file name of a segment and the offset of a block in it."""

    file: str
    offset: int


class CaptureReader:
    """Reads the log in ``directory`` from ``start``, by default from its beginning.

    Bad blocks are skipped and reported: appended to ``problems``, or passed to ``on_problem``. ``torn`` is the torn
    tail at which the last walk ended, or None. ``position`` is where the next walk begins: to follow a log that is
    being written, walk again.
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
        """Yield the good blocks from ``position`` on. Raises OSError if the log cannot be read."""
        for _, block in self._walk(bodies=True):
            assert block is not None
            yield block

    def records(self) -> Iterator[Record]:
        """Yield the records of these blocks. ``position`` moves by whole blocks."""
        for block in self.blocks():
            yield from block.records()

    def infos(self) -> Iterator[BlockInfo]:
        """Yield position and header of each block, without reading bodies."""
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
                continue  # removed by retention; otherwise the sequence numbers show the gap
            try:
                yield from self._walk_segment(segment, fd, start, bodies)
            finally:
                os.close(fd)

    def _start(self) -> tuple[int, Position | None]:
        """Return the number of the first segment and the position in it.

        A segment that was removed because it was empty has a successor with its number and another salt.
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
        # If the last block is bad, the manifest has the next sequence number.
        self._expected = scan.expected if segment.entry is None else segment.entry.next_sequence
        for problem in _lost_end(segment, scan.size, start):
            self.position = Position(name, problem.offset + problem.length)  # report it once
            self._report(problem)


def _lost_end(segment: Segment, size: int, start: int = 0) -> Iterator[Problem]:
    if segment.entry is not None and start <= size < segment.entry.bytes:
        lost = segment.entry.bytes - size
        yield Problem(BAD, segment.path.name, size, lost, "the end of a sealed segment is missing")


def read_range(
    path: str | os.PathLike[str], offset: int, length: int, on_problem: Callable[[Problem], None]
) -> Iterator[Block]:
    """Yield the good blocks that begin in bytes ``offset`` to ``offset + length`` of the segment ``path``.

    The range must begin and end at block boundaries (``list_blocks``). Anything else in it is reported.
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
    """List position and header of every block from ``start`` on, in order, for splitting a job.

    Reads only headers: blocks with damaged bodies are listed, a torn tail is not.
    """
    return list(CaptureReader(directory, start=start, on_problem=on_problem).infos())


class SegmentTotals(NamedTuple):
    """Totals of one segment. ``first_ns`` and ``last_ns`` are None without records."""

    file: str
    bytes: int
    blocks: int
    records: int
    first_ns: int | None
    last_ns: int | None
    sealed: bool


class Report(NamedTuple):
    """The state of a log: totals per segment, damage, torn tails (not damage), and records by protocol."""

    segments: list[SegmentTotals]
    problems: list[Problem]
    torn: list[Problem]
    #: Records by protocol; empty if no bodies were read.
    protocols: Counter[int]

    @property
    def damaged(self) -> bool:
        """Whether there is damage. A torn tail is not damage."""
        return bool(self.problems)


def verify(directory: str | os.PathLike[str], *, bodies: bool = True) -> Report:
    """Read the whole log and compare it with its manifest.

    ``bodies``: False reads only headers, which is faster but finds no damage in bodies. Raises OSError if the log
    cannot be read.
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
            continue  # removed by retention
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
    """Return totals and problems of one segment, and the expected first sequence number of the next one.

    Adds its records to ``protocols``.
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
    if counted != entry[1:] and not problems:  # otherwise the problems explain the difference
        said = f"the manifest says {entry[1:]}, the segment has {counted}"
        problems.append(Problem(MANIFEST, name, 0, 0, said))
    return totals, problems, entry.next_sequence


def _check_times(info: BlockInfo, block: Block | None) -> Iterator[Problem]:
    """Check the times in the header: readers that search for a time trust them."""
    if block is None:
        return
    said = (info.header.first_ns, info.header.last_ns)
    found = (min(block.time_ns), max(block.time_ns))
    if said != found:
        reason = f"header says times {said}, the records have {found}"
        yield Problem(BAD, info.file, info.offset, info.length, reason)
