"""What is whole of a list of segments, and what is missing or contradicts itself: the rules of ``logical``, on lists.

verdict = judge(segments, content)          # everything there is of one GroupId
if verdict.reason == MQRC_NONE:
    for message in verdict.messages.values():
        b"".join(content(i)[skip : skip + length] for i, skip, length in message.pieces)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from headwater_host.mq.CMQC import MQRC_INCOMPLETE_GROUP, MQRC_INCOMPLETE_MSG, MQRC_NONE
from headwater_host.mq.fields import IN_GROUP, SEGMENT, Fault
from headwater_host.mq.reassembly.logical import (
    NOTHING,
    Group,
    Message,
    Missing,
    Named,
    described,
    differ,
    told,
)

#: (index of the segment, bytes of it to leave out in front, bytes to take).
Piece: TypeAlias = "tuple[int, int, int]"


class Segment(NamedTuple):
    """What the rules need to know of a physical message: of its MQMDE (or MQMD 2), and how many bytes it has."""

    seq: int
    offset: int
    length: int
    flags: int
    encoding: int = 0
    ccsid: int = 0


class Verdict(NamedTuple):
    """What can be said of a logical message, or of all that has one GroupId.

    ``reason``: MQRC_NONE when it is whole, else IBM's reason. ``fault`` comes before what is missing. ``length``: bytes
    that are there, each counted once. ``duplicates``: segments that brought nothing new. Of a message: ``pieces`` in
    order, and ``first``, the index of the segment with Offset 0 (-1: not there), whose Format, Encoding and
    CodedCharSetId are the message's. Of a group: ``messages`` by number. Pieces are to be used when it is whole.
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
        """Whether it is whole."""
        return self.reason == MQRC_NONE

    def as_dict(self) -> dict[str, Any]:
        """For JSON: reason, its name, what contradicts what, what is missing."""
        return described(self.reason, self.fault, self.missing)

    def __str__(self) -> str:
        return told(self.reason, self.fault, self.missing)


Content: TypeAlias = "Callable[[int], bytes | bytearray | memoryview]"


def judge_message(segments: Sequence[Segment], content: Content, limit: int | None = None) -> Verdict:
    """Whether these, all that is there under one GroupId and MsgSeqNumber, are a whole logical message.

    ``content(index)`` gives the bytes of a segment, and is called for those only that overlap others. ``limit``: how
    many missing ranges to name at most. The order of arrival says nothing. Takes O(n log n) for n segments, and time in
    proportion to the bytes that are there more than once.
    """
    chosen = range(len(segments))
    return _judge_message(
        [0 if not one.flags & SEGMENT else one.offset for one in segments], chosen, segments, content, limit
    )


def _judge_message(
    offsets: Sequence[int],
    chosen: Iterable[int],
    segments: Sequence[Segment],
    content: Content,
    limit: int | None,
) -> Verdict:
    """The same for those of ``segments`` whose indices are ``chosen``."""
    order = sorted(chosen, key=offsets.__getitem__)
    message = Message(segments[order[0]].seq)
    starts: list[int] = []
    pieces: list[Piece] = []
    covered = duplicates = 0
    # The segment that reaches furthest, and where it starts. As they are sorted, it has all that a later one can share
    # with any before it.
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
    """Whether these, all that is there under one GroupId, are whole: a group, or logical messages that are in none.

    As ``judge_message``, with a verdict of each message in ``messages``. A group is not whole when a message has a
    fault: that message's is then the verdict's. Its reason is MQRC_INCOMPLETE_GROUP when messages are missing, and
    MQRC_INCOMPLETE_MSG when only parts of messages are.
    """
    offsets = [0 if not one.flags & SEGMENT else one.offset for one in segments]
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
    # Whatever of it is named.
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
