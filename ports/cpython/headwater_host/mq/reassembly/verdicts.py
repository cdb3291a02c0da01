"""Apply the rules to lists of segments.

verdict = judge(segments, content)          # all segments of one GroupId
if verdict.reason == MQRC_NONE:
    for message in verdict.messages.values():
        b"".join(content(i)[skip : skip + length] for i, skip, length in message.pieces)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from headwater_host.mq.CMQC import MQRC_INCOMPLETE_GROUP, MQRC_INCOMPLETE_MSG, MQRC_NONE
from headwater_host.mq.errors import REASONS
from headwater_host.mq.fields import IN_GROUP, SEGMENT, Fault
from headwater_host.mq.reassembly.logical import NOTHING, Group, Message, Missing, Named, differ

#: (index of the segment, bytes to skip, bytes to take).
Piece: TypeAlias = "tuple[int, int, int]"


class Segment(NamedTuple):
    """The fields of a physical message, from its MQMDE or MQMD of version 2, and its length."""

    seq: int
    offset: int
    length: int
    flags: int
    encoding: int = 0
    ccsid: int = 0


class Verdict(NamedTuple):
    """The verdict on a logical message, or on a GroupId.

    ``reason``: MQRC_NONE if complete, else IBM's reason code. ``fault``: a contradiction, else ``missing``. ``length``:
    bytes present, each counted once. ``duplicates``: segments without new bytes. For a message: ``pieces`` in order,
    valid if it is complete, and ``first``, the index of the segment at Offset 0 or -1, whose Format, Encoding and
    CodedCharSetId apply. For a GroupId: ``messages`` by number.
    """

    reason: int
    fault: Fault | None = None
    missing: Missing = NOTHING
    length: int = 0
    duplicates: int = 0
    pieces: Sequence[Piece] = ()
    first: int = -1
    messages: "dict[int, Verdict]" = {}  # noqa: RUF012 (never changed)

    @property
    def complete(self) -> bool:
        """True if it is complete."""
        return self.reason == MQRC_NONE

    def as_dict(self) -> dict[str, Any]:
        """Convert for JSON."""
        return {
            "reason": self.reason,
            "name": REASONS.get(self.reason, ""),
            "fault": self.fault and {**self.fault._asdict(), "text": str(self.fault)},
            "missing": self.missing.as_dict() if self.missing else None,
        }

    def __str__(self) -> str:
        if self.complete:
            return "whole"
        said = str(self.fault) if self.fault else f"missing: {self.missing}"
        return f"{said} ({self.reason} {REASONS.get(self.reason, '')})"


Content: TypeAlias = "Callable[[int], bytes | bytearray | memoryview]"


def _judge_message(
    offsets: Sequence[int],
    chosen: Iterable[int],
    segments: Sequence[Segment],
    content: Content,
    limit: int | None,
) -> Verdict:
    """Judge the segments of one message, which have the indices ``chosen``.

    Takes O(n log n) for n segments, and time in proportion to the bytes that occur more than once.
    """
    order = sorted(chosen, key=offsets.__getitem__)
    message = Message(segments[order[0]].seq)
    starts: list[int] = []
    pieces: list[Piece] = []
    covered = duplicates = 0
    # The segment with the highest end, and its offset. As they are sorted, it holds all bytes that a later one can
    # share with an earlier one.
    far, far_offset = 0, 0
    for index in order:
        _, _, length, flags, encoding, ccsid = segments[index]
        offset = offsets[index]
        stop = offset + length
        ended = message.end >= 0
        fault = message.meet(offset, length, flags, encoding, ccsid)
        if fault is None and length and offset < covered:
            shared = min(stop, covered)
            theirs = memoryview(content(far))[offset - far_offset : shared - far_offset]
            at = differ(offset, memoryview(content(index))[: shared - offset], theirs)
            fault = Fault("overlap", message.seq, at) if at >= 0 else None
        if fault is not None:
            return Verdict(fault.reason, fault, length=message.covered)
        begin = max(offset, covered)
        if begin < stop:
            starts.append(begin)
            pieces.append((index, begin - offset, stop - begin))
            message.covered += stop - begin
            covered = stop
            far, far_offset = index, offset
        elif ended or message.end < 0:
            duplicates += 1
    first = order[0] if offsets[order[0]] == 0 else -1
    found = message.covered
    if message.whole:
        return Verdict(MQRC_NONE, None, NOTHING, found, duplicates, pieces, first)
    ranges = message.missing((start, start + one[2]) for start, one in zip(starts, pieces, strict=True))
    missing = Named(limit)
    missing.segments(message.seq, ranges)
    return Verdict(MQRC_INCOMPLETE_MSG, None, missing.result(), found, duplicates, pieces, first)


def judge(segments: Sequence[Segment], content: Content, limit: int | None = None) -> Verdict:
    """Judge all segments with one GroupId: a group, or logical messages outside groups.

    ``content(index)`` returns the bytes of a segment; it is called only for segments that overlap. ``limit``: maximum
    number of missing ranges. The order of segments does not matter. ``messages`` has a verdict on each message. The
    fault of a message is the fault of its group. The reason is MQRC_INCOMPLETE_GROUP if messages are missing,
    MQRC_INCOMPLETE_MSG if only segments are.
    """
    offsets = [one.offset if one.flags & SEGMENT else 0 for one in segments]
    numbers: dict[int, list[int]] = {}
    flags: dict[tuple[int, int], None] = {}
    for index, one in enumerate(segments):
        numbers.setdefault(one.seq, []).append(index)
        flags[one.seq, one.flags & IN_GROUP] = None
    ordered = sorted(numbers)
    group = Group()
    fault: Fault | None = None
    for seq, bits in sorted(flags):
        fault = fault or group.meet(seq, bits)
    missing = Named(limit)
    if group.grouped and fault is None:
        missing.messages(group.missing(ordered))
    # Also beyond the limit of named ranges.
    lacks_messages = bool(missing.result())
    verdicts: dict[int, Verdict] = {}
    reason = MQRC_NONE
    for seq in ordered:
        one_verdict = verdicts[seq] = _judge_message(offsets, numbers[seq], segments, content, limit)
        fault = fault or one_verdict.fault
        reason = reason or one_verdict.reason
        for number, ranges in one_verdict.missing.segments.items():
            missing.segments(number, iter(ranges))
        missing.more += one_verdict.missing.more
    named = missing.result()
    if fault is not None:
        reason = fault.reason
    elif lacks_messages:
        reason = MQRC_INCOMPLETE_GROUP
    return Verdict(
        reason,
        fault,
        NOTHING if fault else named,
        sum(one.length for one in verdicts.values()),
        sum(one.duplicates for one in verdicts.values()),
        messages=verdicts,
    )
