"""Group and segment fields.

``checks`` takes the fields of one message as integers, or those of many as numpy arrays.
"""

from typing import Any, NamedTuple

from headwater_host.mq import CMQC

#: Flags of a segment, and of a member of a group. The second of each implies the first.
SEGMENT = CMQC.MQMF_SEGMENT | CMQC.MQMF_LAST_SEGMENT
IN_GROUP = CMQC.MQMF_MSG_IN_GROUP | CMQC.MQMF_LAST_MSG_IN_GROUP
#: Flags of a message that has others beside it.
PART = SEGMENT | IN_GROUP
#: With one of these flags a message needs a GroupId.
NEEDS_GROUP_ID = PART | CMQC.MQMF_SEGMENTATION_ALLOWED
#: Flags without a meaning that MQPUT refuses everywhere.
UNKNOWN = CMQC.MQMF_REJECT_UNSUP_MASK & ~NEEDS_GROUP_ID

#: The largest MsgSeqNumber, the largest Offset, and where a segment ends at the latest.
HIGHEST = 999_999_999
#: The highest Priority.
MAX_PRIORITY = 9
#: The largest message of IBM MQ, in bytes; a channel, a queue manager and a queue may allow less.
LARGEST = 100 << 20
#: The largest message that always fits into a dead-letter queue: after an MQDLH and, if it is a segment, an MQMDE.
LARGEST_DEAD = LARGEST - CMQC.MQDLH_CURRENT_LENGTH - CMQC.MQMDE_CURRENT_LENGTH

_FLAGS = CMQC.MQRC_MSG_FLAGS_ERROR, "MsgFlags"
_NUMBER = CMQC.MQRC_MSG_SEQ_NUMBER_ERROR, "MsgSeqNumber"
_OFFSET = CMQC.MQRC_OFFSET_ERROR, "Offset"
_LENGTH = CMQC.MQRC_ORIGINAL_LENGTH_ERROR, "OriginalLength"
_CCSIDS = CMQC.MQRC_INCONSISTENT_CCSIDS, "CodedCharSetId"
_ENCODINGS = CMQC.MQRC_INCONSISTENT_ENCODINGS, "Encoding"
_NO_GROUP = CMQC.MQRC_GROUP_ID_ERROR, "GroupId"
_EMPTY = CMQC.MQRC_SEGMENT_LENGTH_ZERO, "MsgFlags"
#: kind -> (reason, field, text about ``seq`` and ``offset``).
FAULTS = {
    "flags": (*_FLAGS, "message {seq} has unknown flags, at {offset}"),
    "group id": (*_NO_GROUP, "message {seq} is a segment, or in a group, and has no GroupId"),
    "number": (*_NUMBER, f"MsgSeqNumber {{seq}} is not in 1 to {HIGHEST}"),
    "offset": (
        *_OFFSET,
        f"message {{seq}} has Offset {{offset}}, which is below 0, or its segment ends beyond {HIGHEST}",
    ),
    "original length": (
        *_LENGTH,
        "message {seq} is a report on a segment at {offset} with an OriginalLength below the length of its data",
    ),
    "empty": (*_EMPTY, "message {seq} has an empty segment at {offset} that is not the last"),
    "overlap": (*_OFFSET, "message {seq} has segments that differ from byte {offset} on"),
    "ends": (*_FLAGS, "message {seq} has two last segments; one ends at byte {offset}"),
    "behind end": (*_OFFSET, "message {seq} has a segment behind its last, at {offset}"),
    "mixed": (*_FLAGS, "message {seq} is a segment and a whole message, at {offset}"),
    "encodings": (*_ENCODINGS, "message {seq} has segments of different Encoding, at {offset}"),
    "ccsids": (*_CCSIDS, "message {seq} has segments of different CodedCharSetId, at {offset}"),
    "membership": (*_FLAGS, "message {seq} is in a group and in none, or others of its GroupId are"),
    "lasts": (*_FLAGS, "the group has two last messages; one is {seq}"),
    "behind last": (*_NUMBER, "the group has message {seq} behind its last"),
}


class Fault(NamedTuple):
    """A contradiction; a message or group that has one never becomes complete. ``kind`` is a key of ``FAULTS``.

    For segments whose bytes differ, ``offset`` is that of the first such byte in the message; for Encoding and
    CodedCharSetId, that of the segment that differs from those before it.
    """

    kind: str
    seq: int
    offset: int = 0

    @property
    def reason(self) -> int:
        """IBM's reason code: of the call that refuses the message, or of the field that contradicts."""
        return FAULTS[self.kind][0]

    def __str__(self) -> str:
        return FAULTS[self.kind][2].format(seq=self.seq, offset=self.offset)


def checks(
    seq: Any,
    offset: Any,
    length: Any,
    flags: Any,
    nameless: Any = False,
    *,
    refused_flags: int = UNKNOWN,
    original_length: int = HIGHEST,
    strict: bool = False,
) -> tuple[tuple[str, Any], ...]:
    """Return the kinds of faults of a message by itself, in IBM's order, each with whether it has that fault.

    Args:
        seq, offset, flags: MsgSeqNumber, Offset, MsgFlags.
        length: bytes of data.
        nameless: whether it has no GroupId. A queue manager gives such a message one of its own.
        refused_flags: the bits of MsgFlags that count as unknown.
        original_length: OriginalLength of a report.
        strict: whether the Offset of a message that is no segment counts.
    """
    is_segment = flags & SEGMENT != 0
    goes_on = is_segment & (flags & CMQC.MQMF_LAST_SEGMENT == 0)
    outside = (offset < 0) | (offset + length * is_segment > HIGHEST)
    return (
        ("flags", flags & refused_flags != 0),
        ("number", (seq < 1) | (seq > HIGHEST)),
        ("offset", (is_segment | strict) & outside),
        ("original length", is_segment & ((original_length < length) | ((original_length == 0) & goes_on))),
        ("empty", goes_on & (length == 0)),
        ("group id", nameless & (flags & PART != 0)),
    )


def refused(
    seq: int,
    offset: int,
    length: int,
    flags: int,
    group_id: bytes | None = None,
    *,
    refused_flags: int = UNKNOWN,
    original_length: int = HIGHEST,
    strict: bool = False,
) -> Fault | None:
    """Return the first fault of a message by itself, or None. See ``checks``; a GroupId of None passes."""
    # The usual message: five times as fast as the checks.
    if (
        length
        and 0 < seq <= HIGHEST
        and 0 <= offset <= HIGHEST - length
        and not flags & refused_flags
        and original_length == HIGHEST
        and group_id != CMQC.MQGI_NONE
    ):
        return None
    found = checks(
        seq,
        offset,
        length,
        flags,
        group_id == CMQC.MQGI_NONE,
        refused_flags=refused_flags,
        original_length=original_length,
        strict=strict,
    )
    return next((Fault(kind, seq, offset) for kind, wrong in found if wrong), None)
