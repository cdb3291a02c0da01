"""Rules of reassembly: whether a logical message or a group is complete, contradictory or missing segments.

A logical message is all that has one GroupId and one MsgSeqNumber: one message, or segments whose bytes by Offset have
no gap up to the end of the one with MQMF_LAST_SEGMENT. A group is logical messages 1, 2, 3 ... up to the one with
MQMF_LAST_MSG_IN_GROUP. Segments may arrive in any order, and more than once.

``Message`` and ``Group`` apply the rules to one segment at a time; ``verdicts`` applies them to lists. No files, no
clocks. Ranges of bytes and message numbers are half-open, (start, stop); stop is None while the end is unknown.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from headwater_host.mq.CMQC import MQMF_LAST_MSG_IN_GROUP, MQMF_LAST_SEGMENT
from headwater_host.mq.fields import IN_GROUP, SEGMENT, Fault, refused

Range: TypeAlias = "tuple[int, int | None]"


class Missing(NamedTuple):
    """Missing ranges.

    ``messages``: numbers of missing messages; the last range is open while the last message is unknown. ``segments``:
    missing bytes of each incomplete message; the last range is open while the last segment is unknown. ``more``: number
    of further ranges.
    """

    messages: tuple[Range, ...] = ()
    segments: "dict[int, tuple[Range, ...]]" = {}  # noqa: RUF012 (never changed)
    more: int = 0

    def __bool__(self) -> bool:
        return bool(self.messages or self.segments or self.more)

    def as_dict(self) -> dict[str, Any]:
        """Convert for JSON: ranges as [start, stop], with null for an unknown stop."""
        return {
            "messages": [list(one) for one in self.messages],
            "segments": {str(seq): [list(one) for one in ranges] for seq, ranges in self.segments.items()},
            "more": self.more,
        }

    def __str__(self) -> str:
        parts = []
        if self.messages:
            parts.append("messages " + ", ".join(_words(one, "the last") for one in self.messages))
        for seq, ranges in self.segments.items():
            parts.append(f"of message {seq} bytes " + ", ".join(_words(one, "its end") for one in ranges))
        if self.more:
            parts.append(f"{self.more} more ranges")
        return "; ".join(parts)


#: Nothing is missing.
NOTHING = Missing()


def _words(one: Range, end: str) -> str:
    start, stop = one
    if stop is None:
        return f"{start} to {end}, which is not known"
    return str(start) if stop == start + 1 else f"{start} to {stop - 1}"


def gaps(ranges: Iterable[tuple[int, int]], start: int, stop: int | None) -> Iterator[Range]:
    """Yield the gaps between ``start`` and ``stop`` of ordered ranges that do not overlap.

    With ``stop`` None the last gap is open.
    """
    for begin, end in ranges:
        if begin > start:
            yield start, begin
        start = max(start, end)
    if stop is None or start < stop:
        yield start, stop


class Message:
    """The state of one logical message. The caller tracks which bytes are there and adds to ``covered``."""

    __slots__ = ("ccsid", "covered", "encoding", "end", "flags", "reach", "seq")

    def __init__(self, seq: int):
        self.seq = seq
        #: The flags of all segments; -1 before the first.
        self.flags = -1
        self.encoding = self.ccsid = 0
        #: Its length, -1 while unknown; the highest end of a segment.
        self.end = -1
        self.reach = 0
        #: Bytes present, each counted once.
        self.covered = 0

    def meet(self, offset: int, length: int, flags: int, encoding: int, ccsid: int) -> Fault | None:
        """Add a segment; return its contradiction, apart from content. Outside segments ``offset`` must be 0."""
        fault = refused(self.seq, offset, length, flags)
        if fault is not None:
            return fault
        last = not flags & SEGMENT or flags & MQMF_LAST_SEGMENT
        stop = offset + length
        kind = ""
        if self.flags >= 0 and bool(self.flags & SEGMENT) != bool(flags & SEGMENT):
            kind = "mixed"
        elif last and self.end not in (-1, stop):
            kind, offset = "ends", stop
        elif last and stop < self.reach:
            kind, offset = "behind end", self.reach
        elif self.end != -1 and stop > self.end:
            kind = "behind end"
        elif self.flags >= 0 and encoding != self.encoding:
            kind = "encodings"
        elif self.flags >= 0 and ccsid != self.ccsid:
            kind = "ccsids"
        if kind:
            return Fault(kind, self.seq, offset)
        if last:
            self.end = stop
        if stop > self.reach:
            self.reach = stop
        if self.flags < 0:
            self.flags, self.encoding, self.ccsid = flags, encoding, ccsid
        else:
            self.flags |= flags
        return None

    @property
    def whole(self) -> bool:
        """True if the message is complete."""
        return self.covered == self.end

    def missing(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Range]:
        """Yield missing ranges of bytes; ``ranges`` are those present, ordered and disjoint."""
        return gaps(ranges, 0, None if self.end < 0 else self.end)


class Group:
    """The state of a GroupId: one group, or logical messages outside groups.

    The caller tracks which messages are complete and adds to ``whole_messages``.
    """

    __slots__ = ("grouped", "highest", "last", "whole_messages")

    def __init__(self) -> None:
        #: True if it is a group; None before the first message.
        self.grouped: bool | None = None
        #: The number of its last message, 0 while unknown; the highest number so far.
        self.last = self.highest = 0
        self.whole_messages = 0

    def meet(self, seq: int, flags: int) -> Fault | None:
        """Add a message or segment; return its contradiction."""
        grouped = bool(flags & IN_GROUP)
        if self.grouped not in (None, grouped):
            return Fault("membership", seq)
        if grouped and flags & MQMF_LAST_MSG_IN_GROUP:
            if self.last not in (0, seq):
                return Fault("lasts", seq)
            if seq < self.highest:
                return Fault("behind last", self.highest)
            self.last = seq
        elif self.last and seq > self.last:
            return Fault("behind last", seq)
        self.grouped = grouped
        self.highest = max(self.highest, seq)
        return None

    @property
    def whole(self) -> bool:
        """True if it is a complete group."""
        return self.whole_messages == self.last != 0

    def missing(self, numbers: Iterable[int]) -> Iterator[Range]:
        """Yield ranges of missing messages; ``numbers`` are those present, in order."""
        return gaps(((seq, seq + 1) for seq in numbers), 1, self.last + 1 if self.last else None)


def differ(offset: int, one: "bytes | memoryview", other: "bytes | memoryview") -> int:
    """Return the offset of the first difference of two versions of the bytes from ``offset`` on, or -1."""
    if one == other:
        return -1
    one, other = memoryview(one), memoryview(other)
    start, stop = 0, len(one)
    while stop - start > 1:
        half = (start + stop) // 2
        if one[start:half] == other[start:half]:
            start = half
        else:
            stop = half
    return offset + start


class Named:
    """Collects missing ranges; beyond ``limit`` only their number."""

    def __init__(self, limit: int | None):
        self._left = limit
        self._messages: tuple[Range, ...] = ()
        self._segments: dict[int, tuple[Range, ...]] = {}
        #: Number of further ranges.
        self.more = 0

    def messages(self, ranges: Iterator[Range]) -> None:
        """Add ranges of missing messages; must be called first."""
        self._messages = self._take(ranges)

    def segments(self, seq: int, ranges: Iterator[Range]) -> None:
        """Add missing ranges of bytes of a message."""
        taken = self._take(ranges)
        if taken:
            self._segments[seq] = taken

    def _take(self, ranges: Iterator[Range]) -> tuple[Range, ...]:
        taken = tuple(islice(ranges, self._left))
        if self._left is not None:
            self._left -= len(taken)
            self.more += sum(1 for _ in ranges)
        return taken

    def result(self) -> Missing:
        """Return the collected ranges."""
        return Missing(self._messages, self._segments, self.more)
