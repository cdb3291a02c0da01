"""Positions in a capture log: how far a reader has come, and how far it can go.

Everything before a position is read, and it stays valid while the log grows, is sealed, repaired and pruned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headwater_host.capture.format import parse_segment_name
from headwater_host.capture.manifest import Listing, Segment
from headwater_host.capture.problem import MISSING, TORN, Problem
from headwater_host.capture.scan import BlockInfo, Scan, scanning

_LOG_ID = re.compile("[0-9a-f]{32}")
_LARGEST = (1 << 63) - 1


class Position(NamedTuple):
    """A place between two blocks of a log: everything before it is taken."""

    file: str
    offset: int
    #: Sequence number of the next block.
    sequence: int

    @property
    def segment(self) -> int:
        """Return the number in the segment's name. Raises ValueError if it is not one."""
        name = parse_segment_name(self.file)
        if name is None:
            raise ValueError(f"{self.file!r} is not the name of a segment")
        return name[0]

    def precedes(self, end: Position) -> bool:
        """Return whether blocks at this position are before `end`.

        Of two segments with the same number, the earlier one was removed because nothing was left in it: blocks of
        one are not before a position in the other.
        """
        if self.file == end.file:
            return self.offset < end.offset
        return self.segment < end.segment

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Position:
        """Return the position that `_asdict` wrote. Raises ValueError for anything else."""
        try:
            position = cls(*(found[name] for name in cls._fields))
            counts = all(type(value) is int and 0 <= value <= _LARGEST for value in position[1:])
            if counts and position.segment >= 0:
                return position
        except (KeyError, TypeError, ValueError):
            pass
        raise ValueError(f"{found!r} is not a position in a log")


def parse_positions(found: Any) -> dict[str, Position]:
    """Return positions by log id from JSON: an object by log id, a row of the view `positions`, or a list of rows.

    Raises ValueError for anything else.
    """
    rows = found
    try:
        if isinstance(found, Mapping):
            rows = [found] if "log" in found else [{"log": log} | one for log, one in found.items()]
        positions = {row["log"]: Position.from_json(row) for row in rows}
        if (
            isinstance(rows, list)
            and len(positions) == len(rows)
            and all(_LOG_ID.fullmatch(log) for log in positions)
        ):
            return positions
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{found!r} does not have a position for each of some logs")


def format_positions(positions: Mapping[str, Position]) -> dict[str, Any]:
    """Return positions as a JSON object by log id."""
    return {log: position._asdict() for log, position in positions.items()}


class Limits(NamedTuple):
    """The maximum bytes of the log and records between two positions; None: no limit."""

    bytes: int | None = None
    rows: int | None = None

    def cover(self, size: int, rows: int) -> bool:
        """Return whether a number of bytes and of records is within the limits."""
        return (self.bytes is None or size <= self.bytes) and (self.rows is None or rows <= self.rows)

    def used(self, size: int, rows: int) -> float:
        """Return the share of the limits that bytes and records use: of two shares, the larger one."""
        return max(size / (self.bytes or math.inf), rows / (self.rows or math.inf))

    def left(self, size: int, rows: int) -> Limits:
        """Return what is left of the limits after some bytes and records."""
        return Limits(
            None if self.bytes is None else max(0, self.bytes - size),
            None if self.rows is None else max(0, self.rows - rows),
        )

    def part(self, count: int) -> Limits:
        """Return one of `count` equal parts."""
        return Limits(*(None if limit is None else limit // count for limit in self))


UNLIMITED = Limits()


class Reach(NamedTuple):
    """The result of `advance`: a position, the bytes and records up to it, and the torn tail after it.

    `end` is None if the start is None and the log has no blocks. Without a limit of records, `rows` is approximate.
    """

    end: Position | None
    bytes: int = 0
    rows: int = 0
    torn: Problem | None = None


def rest(listing: Listing, start: Position | None) -> Iterator[tuple[Segment, int]]:
    """Yield the segments that may have blocks after `start`, each with the offset to read from."""
    for segment in listing.segments:
        # A segment of which nothing was left may have been replaced by one with the same number.
        if start is None or segment.first_sequence >= start.segment:
            yield segment, start.offset if start is not None and segment.name == start.file else 0


def later(listing: Listing, start: Position | None, upto: Position) -> Position:
    """Return the later one of two positions."""
    if start is None:
        return upto
    replaced = start.segment == upto.segment and start.file != upto.file
    if replaced:
        # One of the two segments was removed because nothing was left in it.
        return start if any(segment.name == start.file for segment in listing.segments) else upto
    return start if upto.precedes(start) else upto


def removed_before(listing: Listing, start: Position | None, end: Position | None) -> Problem | None:
    """Return a problem if segments with blocks between `start` and `end` were removed."""
    if start is None or end is None:
        return None
    first = next(rest(listing, start), None)
    if first is not None and first[0].name == start.file:
        return None
    left = end.sequence if first is None else min(end.sequence, first[0].first_sequence)
    if left <= start.sequence:
        return None
    gone = f"blocks {start.sequence} to {left - 1} were removed before they were read"
    return Problem(MISSING, start.file, start.offset, 0, gone)


def advance(
    listing: Listing, start: Position | None, limits: Limits = UNLIMITED, until: Position | None = None
) -> Reach:
    """Return the last position that is at most `limits` after `start`, and not after `until`.

    `start` None is the log's beginning. A block that exceeds the limits alone is taken alone. The position is before
    a torn tail. Reads headers only, and those of sealed segments only where a limit is reached.
    """
    walk = _Advance(start, limits)
    for segment, at in rest(listing, start):
        if until is not None and not Position(segment.name, at, 0).precedes(until):
            break
        try:
            if not walk.take(segment, at, until):
                break
        except FileNotFoundError:
            continue  # retention removed it after the listing
    return Reach(walk.end, walk.bytes, walk.rows, walk.torn)


class Unread(NamedTuple):
    """A log to read from `start`, and not after `until`."""

    listing: Listing
    start: Position
    until: Position | None = None


def advance_all(logs: Mapping[str, Unread], limits: Limits) -> dict[str, Position]:
    """Return how far to read in each of several logs: in all, at most `limits`, but at least one block of each.

    Each log may use an equal part of the limits, and what a log does not need is shared by the others.
    """
    reaches = {log: advance(*one[:2], limits, one.until) for log, one in logs.items()}
    # The smallest first: what it leaves is for the others.
    order = sorted(reaches, key=lambda log: limits.used(*reaches[log][1:3]))
    left = limits
    for number, log in enumerate(order):
        part, one = left.part(len(order) - number), logs[log]
        if not part.cover(*reaches[log][1:3]):
            reaches[log] = advance(*one[:2], part, one.until)
        left = left.left(*reaches[log][1:3])
    return {log: reach.end for log, reach in reaches.items() if reach.end is not None}


class _Advance:
    """The state of `advance`."""

    def __init__(self, start: Position | None, limits: Limits):
        self.start = start
        self.end = start
        self.limits = limits
        self.bytes = 0
        self.rows = 0
        self.torn: Problem | None = None

    def _fits(self, size: int, rows: int) -> bool:
        return self.limits.cover(self.bytes + size, self.rows + rows)

    def take(self, segment: Segment, at: int, until: Position | None) -> bool:
        """Advance in a segment, at most to `until`. Return False if a limit is reached."""
        name, entry = segment.name, segment.entry
        stop = until.offset if until is not None and until.file == name else None
        counted = at == 0 or self.limits.rows is None  # the manifest has no rows for a part of a segment
        if entry is not None and stop is None and counted and self._fits(entry.bytes - at, entry.records):
            # At least the size in the manifest: a lost end of the file is reported once.
            size = max(segment.size(), entry.bytes)
            if size > at:
                self.end = Position(name, size, entry.next_sequence)
                self.bytes += size - at
                self.rows += entry.records
            return True
        expected = self.start.sequence if self.start is not None and at else segment.first_sequence
        options: dict[str, Any] = {"start": at, "end": stop, "is_open": segment.is_open, "expected": expected}
        with scanning(
            segment.location, segment.salt, storage=segment.storage, bodies=False, **options
        ) as scan:
            last: BlockInfo | None = None
            for found in scan:
                if isinstance(found, Problem):
                    if found.kind == TORN:
                        self.torn = found
                    continue
                info = found[0]
                edge = at if last is None else last.end
                if self.bytes and edge == info.offset and not self._fits(info.length, info.header.records):
                    return False
                self._to(Position(name, info.end, info.header.sequence + 1), info, edge)
                last = info
        if stop is not None:
            self.end = until or self.end
        else:
            self._finish(segment, scan, last)
        return True

    def _to(self, end: Position, info: BlockInfo, edge: int) -> None:
        self.end = end
        self.bytes += info.end - edge
        self.rows += info.header.records

    def _finish(self, segment: Segment, scan: Scan, last: BlockInfo | None) -> None:
        """Include damage at the end of a complete segment; exclude an unfinished last block of the open one."""
        name, entry = segment.name, segment.entry
        if not segment.is_open:
            size, sequence = scan.size, scan.expected or 0
            if entry is not None:
                size, sequence = max(size, entry.bytes), entry.next_sequence
            if size > (self.end.offset if self.end is not None and self.end.file == name else 0):
                self.end = Position(name, size, sequence)
        elif last is not None:
            torn = unfinished(segment, last)
            if torn is not None:
                self.torn = torn
                self.bytes -= last.length
                self.end = Position(name, last.offset, last.header.sequence)


def unfinished(segment: Segment, last: BlockInfo) -> Problem | None:
    """Return the torn tail of an open segment that begins with its last block, if that has not all of its bytes."""
    options: dict[str, Any] = {"start": last.offset, "is_open": True}
    with scanning(segment.location, segment.salt, storage=segment.storage, **options) as scan:
        found = next(iter(scan))
    return found if isinstance(found, Problem) and found.kind == TORN else None
