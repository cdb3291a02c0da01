"""Read a capture log: blocks and records in order, damage, and ranges for parallel readers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwater_host.capture.filesystem import Location, Storage
from headwater_host.capture.format import Block, Record, parse_segment_name
from headwater_host.capture.manifest import Entry, Segment, list_log
from headwater_host.capture.problem import BAD, MANIFEST, TORN, Problem
from headwater_host.capture.scan import BlockInfo, scanning


class Position(NamedTuple):
    """A position in a log: the file name of a segment and the offset of a block in it."""

    file: str
    offset: int


class CaptureReader:
    """Reads the log in ``directory``, a path or URI, from ``start``, by default from its beginning.

    Bad blocks are skipped and reported: appended to ``problems``, or passed to ``on_problem``. ``torn`` is the torn
    tail at which the last walk ended, or None. ``position`` is where the next walk begins: to follow a log that is
    being written, walk again.
    """

    def __init__(
        self,
        directory: Location,
        *,
        start: Position | None = None,
        on_problem: Callable[[Problem], None] | None = None,
        storage: Storage = (),
    ) -> None:
        self.directory = directory
        self.storage = storage
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
        for segment in list_log(self.directory, self.storage).segments:
            if segment.first_sequence < number:
                continue
            start = start_at.offset if start_at and start_at.file == segment.name else 0
            yield from self._walk_segment(segment, start, bodies)

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
        self, segment: Segment, start: int, bodies: bool
    ) -> Iterator[tuple[BlockInfo, Block | None]]:
        name = segment.name
        expected = self._expected
        if start == 0 and expected is None:
            expected = segment.first_sequence
        options = {"start": start, "is_open": segment.is_open, "expected": expected, "bodies": bodies}
        with contextlib.ExitStack() as stack:
            try:
                scan = stack.enter_context(
                    scanning(segment.location, segment.salt, storage=segment.storage, **options)
                )
            except FileNotFoundError:
                return  # removed by retention; otherwise the sequence numbers show the gap
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
        for problem in lost_end(segment, scan.size, start):
            self.position = Position(name, problem.offset + problem.length)  # report it once
            self._report(problem)


def lost_end(segment: Segment, size: int, start: int = 0) -> Iterator[Problem]:
    """Yield a problem if a sealed segment of ``size`` bytes has lost its end."""
    if segment.entry is not None and start <= size < segment.entry.bytes:
        lost = segment.entry.bytes - size
        yield Problem(BAD, segment.name, size, lost, "the end of a sealed segment is missing")


def list_blocks(
    directory: Location,
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
        """True if there is damage. A torn tail is not damage."""
        return bool(self.problems)


def verify(
    directory: Location,
    *,
    bodies: bool = True,
    storage: Storage = (),
    on_block: Callable[[BlockInfo], object] = lambda info: None,
) -> Report:
    """Read the whole log and compare it with its manifest.

    ``bodies``: False reads only headers, which is faster but finds no damage in bodies. ``on_block``: called
    after each good block. Raises OSError if the log cannot be read.
    """
    listing = list_log(directory, storage)
    problems = list(listing.problems)
    segments = []
    protocols: Counter[int] = Counter()
    expected: int | None = None
    for segment in listing.segments:
        if expected is None:
            expected = segment.first_sequence
        try:
            totals, found, expected = _survey(segment, expected, bodies, protocols, on_block)
        except FileNotFoundError:
            continue  # removed by retention
        segments.append(totals)
        problems += found
    damage = [problem for problem in problems if problem.is_damage]
    return Report(segments, damage, [problem for problem in problems if not problem.is_damage], protocols)


def _survey(
    segment: Segment,
    expected: int,
    bodies: bool,
    protocols: Counter[int],
    on_block: Callable[[BlockInfo], object],
) -> tuple[SegmentTotals, list[Problem], int | None]:
    """Return totals and problems of one segment, and the expected first sequence number of the next one.

    Adds its records to ``protocols``.
    """
    name, entry = segment.name, segment.entry
    counted = Entry.begin(name, segment.first_sequence)
    problems: list[Problem] = []
    options = {"is_open": segment.is_open, "expected": expected, "bodies": bodies}
    with scanning(segment.location, segment.salt, storage=segment.storage, **options) as scan:
        for found in scan:
            if isinstance(found, Problem):
                problems.append(found)
                continue
            counted = counted.extend(found[0].header)
            problems += _check_times(*found)
            if found[1] is not None:
                protocols.update(bytes(found[1].protocol))
            on_block(found[0])
    problems += lost_end(segment, scan.size)
    first_ns, last_ns = (counted.first_ns, counted.last_ns) if counted.blocks else (None, None)
    counts = (counted.blocks, counted.records)
    totals = SegmentTotals(name, scan.size, *counts, first_ns, last_ns, entry is not None)
    if entry is None:
        return totals, problems, scan.expected
    counted = counted._replace(bytes=scan.size, next_sequence=scan.expected or 0)
    if counted != entry and not problems:  # otherwise the problems explain the difference
        said = f"the manifest says {entry[1:]}, the segment has {counted[1:]}"
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
