"""Rules of MQPUT: an MQMDE in the data, dead letters, numbers of groups and segments, segmentation.

No I/O. ``read`` interprets the message, ``number`` assigns GroupId, MsgSeqNumber and Offset on a queue handle,
``split`` segments a message, ``dead_letter`` handles segments after an MQDLH. Errors are MQMIError.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwater.ibmmq.chain import MQDLH
from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD, V2_FIELDS, QueueManagerSettings
from headwater_host.mq.errors import failed
from headwater_host.mq.fields import HIGHEST, IN_GROUP, NEEDS_GROUP_ID, SEGMENT, UNKNOWN, refused
from headwater_host.mq.structures import HeaderError, latin_1

NO_MQMDE, AS_DATA, HONOURED = "no-mqmde", "treated-as-data", "honoured"

#: The bits of Report that request reports: MQRO_EXCEPTION, MQRO_EXPIRATION, MQRO_COA and MQRO_COD, each with or without
#: data, MQRO_PAN, MQRO_NAN and MQRO_ACTIVITY.
_REPORTS = 0x07E03F07

_MDE = CMQC.MQMDE_LENGTH_2
_DLH = CMQC.MQDLH_LENGTH_1


class Read(NamedTuple):
    """An interpreted message: ``outcome`` is one of the above, ``md`` has version 2 and describes ``data``."""

    outcome: str
    md: MD
    data: memoryview


def read(
    given: MD,
    body: "bytes | bytearray | memoryview",
    settings: QueueManagerSettings,
    *,
    index_type: int = CMQC.MQIT_NONE,
    remote: bool = False,
    ordered: bool = False,
) -> Read:
    """Interpret a message, with its checks in IBM's order. ``given`` and ``body`` are not changed.

    ``index_type``: the queue's, for z/OS; ``remote``, ``ordered``: see ``check_group_fields``. Raises MQMIError.
    """
    md = given.copy()
    data = _bytes(body)
    if md.Version == CMQC.MQMD_VERSION_1:
        md.reset_v2()
        md.Version = CMQC.MQMD_VERSION_2
    # In an MQMD both values mean the queue manager's.
    if md.CodedCharSetId in (CMQC.MQCCSI_Q_MGR, CMQC.MQCCSI_INHERIT):
        md.CodedCharSetId = settings.ccsid
    outcome = NO_MQMDE
    if md.Format == CMQC.MQFMT_MD_EXTENSION:
        found = _extension(given, md, data, settings, index_type)
        if found is not None:
            check_group_fields(found, own_length(found, data[_MDE:]), remote=remote, ordered=ordered)
        outcome = AS_DATA
        if found is not None and md.has_defaults():
            outcome = HONOURED
            md, data = found, data[_MDE:]
    length = own_length(md, data)
    check_group_fields(md, length, remote=remote, ordered=ordered)
    if md.MsgFlags & CMQC.MQMF_LAST_SEGMENT:
        md.MsgFlags |= CMQC.MQMF_SEGMENT
    if md.MsgFlags & CMQC.MQMF_LAST_MSG_IN_GROUP:
        md.MsgFlags |= CMQC.MQMF_MSG_IN_GROUP
    if not md.MsgFlags & SEGMENT:
        md.OriginalLength = CMQC.MQOL_UNDEFINED
    elif md.MsgType != CMQC.MQMT_REPORT:
        md.OriginalLength = length
    return Read(outcome, md, data)


def _bytes(body: object) -> memoryview:
    try:
        return memoryview(body).cast("B")  # type: ignore[arg-type]
    except TypeError:
        said = "encode text first: text.encode()" if isinstance(body, str) else "pass bytes"
        raise TypeError(f"a message is bytes, not {type(body).__name__}; {said}") from None


def _extension(
    given: MD, md: MD, data: memoryview, settings: QueueManagerSettings, index_type: int
) -> MD | None:
    """Return ``md`` with the fields of the MQMDE, or None if the MQMDE is data. Raises MQRC_MDE_ERROR."""
    if md.CodedCharSetId != settings.ccsid or md.Encoding != settings.encoding:
        return None
    if settings.zos and given.Version == CMQC.MQMD_VERSION_1 and index_type != CMQC.MQIT_GROUP_ID:
        return None
    try:
        mde = structures.decode(MQMDE, data, big=settings.big, ccsid=settings.text_ccsid)
    except HeaderError as error:
        if error.field == "Version" and len(data) >= _MDE:
            return None
        raise failed(CMQC.MQRC_MDE_ERROR, f"the MQMDE: {error.field} at {error.offset}") from None
    found = md.copy()
    found.set(**{name: mde[name] for name in (*V2_FIELDS, "Encoding", "CodedCharSetId")})
    found.Format = str(mde["Format"]).encode("latin-1")
    if found.CodedCharSetId == CMQC.MQCCSI_INHERIT:
        found.CodedCharSetId = md.CodedCharSetId
    if found.CodedCharSetId <= 0:
        raise failed(CMQC.MQRC_MDE_ERROR, f"the MQMDE: CodedCharSetId {found.CodedCharSetId}")
    return found


def own_length(md: MD, data: memoryview) -> int:
    """Return the length of the data without an MQDLH."""
    if md.Format == CMQC.MQFMT_DEAD_LETTER_HEADER:
        return max(len(data) - _DLH, 0)
    return len(data)


def check_message_descriptor(md: MD) -> None:
    """Check the fields that an MQMD of any version has."""
    persistence = (CMQC.MQPER_NOT_PERSISTENT, CMQC.MQPER_PERSISTENT, CMQC.MQPER_PERSISTENCE_AS_Q_DEF)
    types = range(CMQC.MQMT_SYSTEM_FIRST, CMQC.MQMT_APPL_LAST + 1)
    feedback = range(CMQC.MQFB_NONE, CMQC.MQFB_APPL_LAST + 1)
    for valid, reason, field in (
        (md.StrucId == CMQC.MQMD_STRUC_ID, CMQC.MQRC_MD_ERROR, "StrucId"),
        (md.Version in (CMQC.MQMD_VERSION_1, CMQC.MQMD_VERSION_2), CMQC.MQRC_MD_ERROR, "Version"),
        (md.MsgType in types, CMQC.MQRC_MSG_TYPE_ERROR, "MsgType"),
        (md.Expiry > 0 or md.Expiry == CMQC.MQEI_UNLIMITED, CMQC.MQRC_EXPIRY_ERROR, "Expiry"),
        (md.Feedback in feedback, CMQC.MQRC_FEEDBACK_ERROR, "Feedback"),
        (md.Priority >= CMQC.MQPRI_PRIORITY_AS_Q_DEF, CMQC.MQRC_PRIORITY_ERROR, "Priority"),
        (md.Persistence in persistence, CMQC.MQRC_PERSISTENCE_ERROR, "Persistence"),
    ):
        if not valid:
            raise failed(reason, f"{field} {md[field]!r}")
    if (md.MsgType == CMQC.MQMT_REQUEST or md.Report & _REPORTS) and not md.ReplyToQ.strip():
        raise failed(CMQC.MQRC_MISSING_REPLY_TO_Q, "a request, or a request for reports, needs ReplyToQ")


def check_group_fields(md: MD, length: int, *, remote: bool, ordered: bool) -> None:
    """Check the group and segment fields of a message with ``length`` bytes of its own: reasons 2249 to 2253.

    ``remote``: whether it goes to a transmission queue; ``ordered``: whether the queue manager sets MsgSeqNumber and
    Offset, so that the caller's do not count.
    """
    seq, offset = (1, 0) if ordered else (md.MsgSeqNumber, md.Offset)
    original = md.OriginalLength if md.MsgType == CMQC.MQMT_REPORT else HIGHEST
    _refuse(seq, offset, length, md.MsgFlags, remote=remote, original=original)


def check_segment_end(seq: int, offset: int, length: int) -> None:
    """Check where a segment ends: reason 2251."""
    _refuse(seq, offset, length, CMQC.MQMF_LAST_SEGMENT)


def _refuse(
    seq: int, offset: int, length: int, flags: int, *, remote: bool = True, original: int = HIGHEST
) -> None:
    unknown = UNKNOWN if remote else UNKNOWN | CMQC.MQMF_ACCEPT_UNSUP_IF_XMIT_MASK
    fault = refused(seq, offset, length, flags, refused_flags=unknown, original_length=original, strict=True)
    if fault is not None:
        raise failed(fault.reason, str(fault))


# -- the special case --------------------------------------------------------------------------------------------------


def is_dead_letter(md: MD) -> bool:
    """Return whether a message is a segment after an MQDLH."""
    return bool(md.MsgFlags & SEGMENT) and md.Format == CMQC.MQFMT_DEAD_LETTER_HEADER


def dead_letter(md: MD, data: memoryview, settings: QueueManagerSettings) -> "tuple[MD, bytes] | None":
    """Return descriptor and data of a segment after an MQDLH as stored, with an MQMDE between MQDLH and data.

    Returns None for other messages. Raises MQRC_DLH_ERROR if there is no MQDLH.
    """
    if not is_dead_letter(md):
        return None
    order = md.Encoding & CMQC.MQENC_INTEGER_MASK
    big = order == CMQC.MQENC_INTEGER_NORMAL
    ccsid = latin_1(md.CodedCharSetId)
    try:
        dlh = structures.decode(MQDLH, data, big=big, ccsid=ccsid)
    except HeaderError as error:
        raise failed(CMQC.MQRC_DLH_ERROR, f"the MQDLH: {error.field} at {error.offset}") from None
    mde: dict[str, object] = {name: md[name] for name in V2_FIELDS}
    mde |= {name: dlh[name] for name in ("Encoding", "CodedCharSetId", "Format")}
    if mde["CodedCharSetId"] == CMQC.MQCCSI_INHERIT:
        mde["CodedCharSetId"] = md.CodedCharSetId
    linked = dlh | {
        "Encoding": settings.encoding,
        "CodedCharSetId": settings.ccsid,
        "Format": CMQC.MQFMT_MD_EXTENSION.decode(),
    }
    kept = md.copy()
    kept.reset_v2()
    body = (
        structures.encode(MQDLH, linked, big=big, ccsid=ccsid)
        + structures.encode(MQMDE, mde, big=settings.big, ccsid=settings.text_ccsid)
        + data[_DLH:]
    )
    return kept, body


# -- groups and segments, one after the other --------------------------------------------------------------------------


class Place(NamedTuple):
    """Position of a queue handle in a group, a logical message, or both. ``offset`` is that of the next segment."""

    group_id: bytes
    seq: int
    offset: int
    in_group: bool
    in_message: bool
    #: The group flags of the logical message.
    flags: int
    persistence: int
    syncpoint: bool
    #: True if the last call requested logical order.
    ordered: bool

    @property
    def incomplete(self) -> int:
        """The reason code if the handle leaves this position."""
        return CMQC.MQRC_INCOMPLETE_MSG if self.in_message else CMQC.MQRC_INCOMPLETE_GROUP


def behind(md: MD, length: int, *, syncpoint: bool, ordered: bool) -> Place | None:
    """Return the position after this message, or None if it completes its group or message."""
    in_message = bool(md.MsgFlags & SEGMENT) and not md.MsgFlags & CMQC.MQMF_LAST_SEGMENT
    in_group = bool(md.MsgFlags & IN_GROUP) and (in_message or not md.MsgFlags & CMQC.MQMF_LAST_MSG_IN_GROUP)
    if not in_message and not in_group:
        return None
    step = md.OriginalLength if md.MsgType == CMQC.MQMT_REPORT and md.OriginalLength > 0 else length
    flags = md.MsgFlags & IN_GROUP
    offset = md.Offset + step if in_message else 0
    place = (md.GroupId, md.MsgSeqNumber, offset, in_group, in_message, flags, md.Persistence)
    return Place(*place, syncpoint, ordered)


def number(
    md: MD,
    length: int,
    place: Place | None,
    new_group_id: Callable[[], bytes],
    *,
    syncpoint: bool,
    ordered: bool,
) -> int:
    """Set GroupId, MsgSeqNumber and Offset of ``md`` at the position ``place``; return the reason of a warning.

    In logical order they follow from the message before. Otherwise they stay, except a needed GroupId that is missing,
    MsgSeqNumber outside a group (1) and Offset outside a segment (0). Raises MQMIError.
    """
    if not ordered:
        if not md.MsgFlags & IN_GROUP:
            md.MsgSeqNumber = 1
        if not md.MsgFlags & SEGMENT:
            md.Offset = 0
        if not md.MsgFlags & NEEDS_GROUP_ID:
            md.GroupId = CMQC.MQGI_NONE
        elif md.GroupId == CMQC.MQGI_NONE:
            md.GroupId = new_group_id()
        return place.incomplete if place is not None and place.ordered else CMQC.MQRC_NONE
    segment = bool(md.MsgFlags & SEGMENT)
    if place is None:
        group_id = new_group_id() if md.MsgFlags & NEEDS_GROUP_ID else CMQC.MQGI_NONE
        md.set(GroupId=group_id, MsgSeqNumber=1, Offset=0)
        return CMQC.MQRC_NONE
    if place.in_message and (not segment or md.MsgFlags & IN_GROUP != place.flags):
        raise failed(CMQC.MQRC_INCOMPLETE_MSG, f"message {place.seq} needs segments from {place.offset} on")
    if place.in_group and not md.MsgFlags & IN_GROUP:
        raise failed(CMQC.MQRC_INCOMPLETE_GROUP, f"the group needs messages after {place.seq}")
    if md.Persistence != place.persistence:
        raise failed(
            CMQC.MQRC_INCONSISTENT_PERSISTENCE, "all messages of a group must have the same Persistence"
        )
    if syncpoint != place.syncpoint:
        raise failed(
            CMQC.MQRC_INCONSISTENT_UOW,
            "one group or message must be all inside or all outside a unit of work",
        )
    seq, offset = (place.seq, place.offset) if place.in_message else (place.seq + 1, 0)
    if seq > HIGHEST:
        raise failed(CMQC.MQRC_MSG_SEQ_NUMBER_ERROR, f"the group has more than {HIGHEST} messages")
    if segment:
        check_segment_end(seq, offset, length)
    md.set(GroupId=place.group_id, MsgSeqNumber=seq, Offset=offset)
    return CMQC.MQRC_NONE


# -- the queue manager's own segments ----------------------------------------------------------------------------------


def split(md: MD, data: memoryview, most: int) -> Iterator[tuple[MD, memoryview]]:
    """Yield segments of at most ``most`` bytes, which is at least 16, split at multiples of 16."""
    size = most // 16 * 16
    last = not md.MsgFlags & SEGMENT or md.MsgFlags & CMQC.MQMF_LAST_SEGMENT
    at = 0
    while True:
        piece = data[at : at + size]
        part = md.copy()
        part.MsgFlags = md.MsgFlags & ~CMQC.MQMF_LAST_SEGMENT | CMQC.MQMF_SEGMENT
        part.Offset = md.Offset + at
        part.OriginalLength = len(piece)
        at += size
        if at >= len(data):
            if last:
                part.MsgFlags |= CMQC.MQMF_LAST_SEGMENT
            yield part, piece
            return
        yield part, piece
