"""What a put, a get and an open refuse, and with which reason code. No I/O; the first thing that is wrong is named.

The order of the checks of an MQMDE is the contract's: a structure that is none (2248) before its fields (2249 to 2253).
"""

from typing import NamedTuple

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import GMO, MD, OD, PMO
from headwater_host.mq.errors import failed
from headwater_host.mq.structures import latin_1

#: The flags that mean something.
_KNOWN = 0x1F
IN_SEGMENTS = CMQC.MQMF_SEGMENT | CMQC.MQMF_LAST_SEGMENT
IN_GROUP = CMQC.MQMF_MSG_IN_GROUP | CMQC.MQMF_LAST_MSG_IN_GROUP
#: With one of these a message needs a GroupId.
NEEDS_GROUP_ID = IN_SEGMENTS | IN_GROUP | CMQC.MQMF_SEGMENTATION_ALLOWED
#: The largest MsgSeqNumber, the largest Offset, and where a segment may end.
HIGHEST = 999_999_999
MAX_PRIORITY = 9
#: The largest message of IBM MQ, in bytes; a channel, a queue manager and a queue may allow less.
LARGEST = 100 << 20
#: The largest of which a dead-letter queue can take any: behind an MQDLH and, when it is a segment, an MQMDE.
LARGEST_DEAD = LARGEST - CMQC.MQDLH_CURRENT_LENGTH - CMQC.MQMDE_CURRENT_LENGTH
#: The bits of Report that ask for reports: MQRO_EXCEPTION, MQRO_EXPIRATION, MQRO_COA and MQRO_COD, each with more or
#: less of the data, MQRO_PAN, MQRO_NAN and MQRO_ACTIVITY.
_REPORTS = 0x07E03F07

_PUT_OPTIONS = (
    CMQC.MQPMO_SYNCPOINT
    | CMQC.MQPMO_NO_SYNCPOINT
    | CMQC.MQPMO_DEFAULT_CONTEXT
    | CMQC.MQPMO_NO_CONTEXT
    | CMQC.MQPMO_SET_IDENTITY_CONTEXT
    | CMQC.MQPMO_SET_ALL_CONTEXT
    | CMQC.MQPMO_NEW_MSG_ID
    | CMQC.MQPMO_NEW_CORREL_ID
    | CMQC.MQPMO_FAIL_IF_QUIESCING
    | CMQC.MQPMO_LOGICAL_ORDER
    | CMQC.MQPMO_SYNC_RESPONSE
)
BROWSING = CMQC.MQGMO_BROWSE_FIRST | CMQC.MQGMO_BROWSE_NEXT | CMQC.MQGMO_BROWSE_MSG_UNDER_CURSOR
UNDER_CURSOR = CMQC.MQGMO_MSG_UNDER_CURSOR | CMQC.MQGMO_BROWSE_MSG_UNDER_CURSOR
#: What needs an MQGMO of version 2.
_GET_VERSION_2 = (
    CMQC.MQGMO_LOGICAL_ORDER
    | CMQC.MQGMO_COMPLETE_MSG
    | CMQC.MQGMO_ALL_MSGS_AVAILABLE
    | CMQC.MQGMO_ALL_SEGMENTS_AVAILABLE
)
_GET_SYNCPOINTS = CMQC.MQGMO_SYNCPOINT | CMQC.MQGMO_NO_SYNCPOINT | CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT
_GET_OPTIONS = (
    _GET_SYNCPOINTS
    | BROWSING
    | _GET_VERSION_2
    | CMQC.MQGMO_WAIT
    | CMQC.MQGMO_MSG_UNDER_CURSOR
    | CMQC.MQGMO_ACCEPT_TRUNCATED_MSG
    | CMQC.MQGMO_FAIL_IF_QUIESCING
    | CMQC.MQGMO_NO_PROPERTIES
)
_MATCH_OPTIONS = (
    CMQC.MQMO_MATCH_MSG_ID
    | CMQC.MQMO_MATCH_CORREL_ID
    | CMQC.MQMO_MATCH_GROUP_ID
    | CMQC.MQMO_MATCH_MSG_SEQ_NUMBER
    | CMQC.MQMO_MATCH_OFFSET
)
_MATCH_VERSION_2 = _MATCH_OPTIONS & ~(CMQC.MQMO_MATCH_MSG_ID | CMQC.MQMO_MATCH_CORREL_ID)
INPUT = CMQC.MQOO_INPUT_AS_Q_DEF | CMQC.MQOO_INPUT_SHARED | CMQC.MQOO_INPUT_EXCLUSIVE
_OPEN_OPTIONS = (
    INPUT
    | CMQC.MQOO_BROWSE
    | CMQC.MQOO_OUTPUT
    | CMQC.MQOO_INQUIRE
    | CMQC.MQOO_SET_IDENTITY_CONTEXT
    | CMQC.MQOO_SET_ALL_CONTEXT
    | CMQC.MQOO_FAIL_IF_QUIESCING
    | CMQC.MQOO_BIND_ON_OPEN
    | CMQC.MQOO_BIND_NOT_FIXED
    | CMQC.MQOO_BIND_ON_GROUP
    | CMQC.MQOO_NO_READ_AHEAD
)


class QueueManagerSettings(NamedTuple):
    """What the rules need to know of the queue manager."""

    ccsid: int = 819
    encoding: int = CMQC.MQENC_NATIVE
    zos: bool = False

    @property
    def big(self) -> bool:
        """Whether it writes integers big-endian."""
        return self.encoding & CMQC.MQENC_INTEGER_MASK == CMQC.MQENC_INTEGER_NORMAL

    @property
    def text_ccsid(self) -> int:
        """How it writes the characters of descriptors, which are Latin-1 here: any of them can be written."""
        return latin_1(self.ccsid)


def several(options: int, exclusive: int) -> bool:
    """Whether more than one of these bits is set."""
    chosen = options & exclusive
    return chosen & (chosen - 1) != 0


def group_fields(md: MD, length: int, *, remote: bool, ordered: bool) -> None:
    """The version-2 fields of a message whose own data are ``length`` bytes: 2249 to 2253.

    ``remote``: whether it goes to a transmission queue; ``ordered``: whether the queue manager gives MsgSeqNumber and
    Offset itself, so that what they say does not matter.
    """
    flags = md.MsgFlags
    unknown = flags & ~_KNOWN
    if unknown & CMQC.MQMF_REJECT_UNSUP_MASK:
        raise failed(CMQC.MQRC_MSG_FLAGS_ERROR, f"MsgFlags {flags:#x} has bits that nobody knows")
    if unknown & CMQC.MQMF_ACCEPT_UNSUP_IF_XMIT_MASK and not remote:
        raise failed(CMQC.MQRC_MSG_FLAGS_ERROR, f"MsgFlags {flags:#x} has bits for transmission queues only")
    if not ordered and not 1 <= md.MsgSeqNumber <= HIGHEST:
        raise failed(
            CMQC.MQRC_MSG_SEQ_NUMBER_ERROR, f"MsgSeqNumber {md.MsgSeqNumber} is not in 1 to {HIGHEST}"
        )
    if not ordered and not 0 <= md.Offset <= HIGHEST:
        raise failed(CMQC.MQRC_OFFSET_ERROR, f"Offset {md.Offset} is not in 0 to {HIGHEST}")
    if not flags & IN_SEGMENTS:
        return
    if not ordered:
        segment_end(md.Offset, length)
    last = flags & CMQC.MQMF_LAST_SEGMENT
    original = md.OriginalLength
    if md.MsgType == CMQC.MQMT_REPORT and (original < length or (original == 0 and not last)):
        raise failed(
            CMQC.MQRC_ORIGINAL_LENGTH_ERROR, f"OriginalLength {original} of a report with {length} bytes"
        )
    if length == 0 and not last:
        raise failed(CMQC.MQRC_SEGMENT_LENGTH_ZERO, "a segment that is not the last has no data")


def segment_end(offset: int, length: int) -> None:
    """Where a segment ends, which has a limit as well: 2251."""
    if offset + length > HIGHEST:
        raise failed(CMQC.MQRC_OFFSET_ERROR, f"a segment of {length} bytes at {offset} ends beyond {HIGHEST}")


def message_descriptor(md: MD) -> None:
    """The fields of an MQMD that every version has."""
    if md.StrucId != CMQC.MQMD_STRUC_ID:
        raise failed(CMQC.MQRC_MD_ERROR, f"StrucId is {md.StrucId!r}")
    if md.Version not in (CMQC.MQMD_VERSION_1, CMQC.MQMD_VERSION_2):
        raise failed(CMQC.MQRC_MD_ERROR, f"Version {md.Version}")
    if not _within(md.MsgType, CMQC.MQMT_SYSTEM_FIRST, CMQC.MQMT_APPL_LAST):
        raise failed(CMQC.MQRC_MSG_TYPE_ERROR, f"MsgType {md.MsgType}")
    if md.Expiry <= 0 and md.Expiry != CMQC.MQEI_UNLIMITED:
        raise failed(CMQC.MQRC_EXPIRY_ERROR, f"Expiry {md.Expiry}")
    if not _within(md.Feedback, CMQC.MQFB_NONE, CMQC.MQFB_APPL_LAST):
        raise failed(CMQC.MQRC_FEEDBACK_ERROR, f"Feedback {md.Feedback}")
    if md.Priority < 0 and md.Priority != CMQC.MQPRI_PRIORITY_AS_Q_DEF:
        raise failed(CMQC.MQRC_PRIORITY_ERROR, f"Priority {md.Priority}")
    if md.Persistence not in (
        CMQC.MQPER_NOT_PERSISTENT,
        CMQC.MQPER_PERSISTENT,
        CMQC.MQPER_PERSISTENCE_AS_Q_DEF,
    ):
        raise failed(CMQC.MQRC_PERSISTENCE_ERROR, f"Persistence {md.Persistence}")
    if (md.MsgType == CMQC.MQMT_REQUEST or md.Report & _REPORTS) and not md.ReplyToQ.strip():
        raise failed(CMQC.MQRC_MISSING_REPLY_TO_Q, "a request, or one for reports, without ReplyToQ")


def _within(value: int, lowest: int, highest: int) -> bool:
    return lowest <= value <= highest


def put_options(pmo: PMO, *, put1: bool) -> None:
    """The options of MQPUT and MQPUT1."""
    if pmo.StrucId != CMQC.MQPMO_STRUC_ID or not 1 <= pmo.Version <= CMQC.MQPMO_CURRENT_VERSION:
        raise failed(CMQC.MQRC_PMO_ERROR, f"StrucId {pmo.StrucId!r}, Version {pmo.Version}")
    options = pmo.Options
    contexts = (
        CMQC.MQPMO_DEFAULT_CONTEXT
        | CMQC.MQPMO_NO_CONTEXT
        | CMQC.MQPMO_SET_IDENTITY_CONTEXT
        | CMQC.MQPMO_SET_ALL_CONTEXT
    )
    if (
        options & ~_PUT_OPTIONS
        or several(options, CMQC.MQPMO_SYNCPOINT | CMQC.MQPMO_NO_SYNCPOINT)
        or several(options, contexts)
        or (put1 and options & CMQC.MQPMO_LOGICAL_ORDER)
    ):
        raise failed(CMQC.MQRC_OPTIONS_ERROR, f"MQPMO.Options {options:#x}")


def get_options(gmo: GMO, md: MD) -> int:
    """The options of MQGET; returns the match options that count."""
    if gmo.StrucId != CMQC.MQGMO_STRUC_ID or not 1 <= gmo.Version <= CMQC.MQGMO_CURRENT_VERSION:
        raise failed(CMQC.MQRC_GMO_ERROR, f"StrucId {gmo.StrucId!r}, Version {gmo.Version}")
    if md.StrucId != CMQC.MQMD_STRUC_ID or md.Version not in (CMQC.MQMD_VERSION_1, CMQC.MQMD_VERSION_2):
        raise failed(CMQC.MQRC_MD_ERROR, f"StrucId {md.StrucId!r}, Version {md.Version}")
    options = gmo.Options
    if (
        options & ~_GET_OPTIONS
        or several(options, _GET_SYNCPOINTS)
        or several(options, BROWSING | CMQC.MQGMO_MSG_UNDER_CURSOR)
        or (options & BROWSING and options & (CMQC.MQGMO_SYNCPOINT | CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT))
        or (options & CMQC.MQGMO_COMPLETE_MSG and options & CMQC.MQGMO_SYNCPOINT_IF_PERSISTENT)
    ):
        raise failed(CMQC.MQRC_OPTIONS_ERROR, f"MQGMO.Options {options:#x}")
    if options & _GET_VERSION_2 and gmo.Version < CMQC.MQGMO_VERSION_2:
        raise failed(CMQC.MQRC_WRONG_GMO_VERSION, "these options need an MQGMO of version 2")
    if options & CMQC.MQGMO_WAIT and gmo.WaitInterval < CMQC.MQWI_UNLIMITED:
        raise failed(CMQC.MQRC_WAIT_INTERVAL_ERROR, f"WaitInterval {gmo.WaitInterval}")
    if gmo.Version < CMQC.MQGMO_VERSION_2:
        return CMQC.MQMO_MATCH_MSG_ID | CMQC.MQMO_MATCH_CORREL_ID
    if gmo.MatchOptions & ~_MATCH_OPTIONS:
        raise failed(CMQC.MQRC_MATCH_OPTIONS_ERROR, f"MatchOptions {gmo.MatchOptions:#x}")
    if gmo.MatchOptions & _MATCH_VERSION_2 and md.Version < CMQC.MQMD_VERSION_2:
        raise failed(CMQC.MQRC_WRONG_MD_VERSION, "these match options need an MQMD of version 2")
    return gmo.MatchOptions


def object_descriptor(od: OD) -> None:
    """The structure that says which queue is meant."""
    if od.StrucId != CMQC.MQOD_STRUC_ID or od.Version != CMQC.MQOD_VERSION_1 or od.ObjectType != CMQC.MQOT_Q:
        raise failed(CMQC.MQRC_OD_ERROR, "only queues, with an MQOD of version 1")


def open_options(options: int) -> None:
    """The options of MQOPEN."""
    binds = CMQC.MQOO_BIND_ON_OPEN | CMQC.MQOO_BIND_NOT_FIXED | CMQC.MQOO_BIND_ON_GROUP
    contexts = CMQC.MQOO_SET_IDENTITY_CONTEXT | CMQC.MQOO_SET_ALL_CONTEXT
    if (
        options & ~_OPEN_OPTIONS
        or several(options, INPUT)
        or several(options, binds)
        or (options & contexts and not options & CMQC.MQOO_OUTPUT)
        or not options & (INPUT | CMQC.MQOO_BROWSE | CMQC.MQOO_OUTPUT | CMQC.MQOO_INQUIRE)
    ):
        raise failed(CMQC.MQRC_OPTIONS_ERROR, f"options {options:#x} of an open")
