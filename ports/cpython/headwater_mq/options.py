"""Check the options of MQPUT, MQGET and MQOPEN."""

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD, Structure, chars, number
from headwater_host.mq.errors import failed

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
#: Options that need an MQGMO of version 2.
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


class PMO(Structure):
    """MQPMO: put message options."""

    StrucId: bytes = chars(4, CMQC.MQPMO_STRUC_ID)
    Version: int = number(CMQC.MQPMO_VERSION_1)
    Options: int = number(CMQC.MQPMO_NONE)
    Timeout: int = number(-1)
    Context: int = number()
    KnownDestCount: int = number()
    UnknownDestCount: int = number()
    InvalidDestCount: int = number()
    ResolvedQName: bytes = chars(48)
    ResolvedQMgrName: bytes = chars(48)


class GMO(Structure):
    """MQGMO: get message options.

    MQGET sets ``ResolvedQName``; from version 2 on ``GroupStatus``, ``SegmentStatus`` and ``Segmentation``; from
    version 3 on ``ReturnedLength``, in bytes.
    """

    StrucId: bytes = chars(4, CMQC.MQGMO_STRUC_ID)
    Version: int = number(CMQC.MQGMO_VERSION_1)
    Options: int = number(CMQC.MQGMO_NO_WAIT)
    WaitInterval: int = number()
    Signal1: int = number()
    Signal2: int = number()
    ResolvedQName: bytes = chars(48)
    MatchOptions: int = number(CMQC.MQMO_MATCH_MSG_ID | CMQC.MQMO_MATCH_CORREL_ID)
    GroupStatus: int = number(CMQC.MQGS_NOT_IN_GROUP)
    SegmentStatus: int = number(CMQC.MQSS_NOT_A_SEGMENT)
    Segmentation: int = number(CMQC.MQSEG_INHIBITED)
    Reserved1: bytes = chars(1)
    MsgToken: bytes = chars(16, CMQC.MQMTOK_NONE, kind="b")
    ReturnedLength: int = number(CMQC.MQRL_UNDEFINED)


class OD(Structure):
    """MQOD: the queue ``ObjectName``, of another queue manager if ``ObjectQMgrName`` is set."""

    StrucId: bytes = chars(4, CMQC.MQOD_STRUC_ID)
    Version: int = number(CMQC.MQOD_VERSION_1)
    ObjectType: int = number(CMQC.MQOT_Q)
    ObjectName: bytes = chars(48)
    ObjectQMgrName: bytes = chars(48)
    DynamicQName: bytes = chars(48, b"AMQ.*")
    AlternateUserId: bytes = chars(12)


def several(options: int, exclusive: int) -> bool:
    """Tell whether more than one of these bits is set."""
    chosen = options & exclusive
    return chosen & (chosen - 1) != 0


def check_put_options(pmo: PMO, *, put1: bool) -> None:
    """Check the options of MQPUT and MQPUT1."""
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


def check_get_options(gmo: GMO, md: MD) -> int:
    """Check the options of MQGET and return the match options that apply."""
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


def check_object_descriptor(od: OD) -> None:
    """Check the object descriptor."""
    if od.StrucId != CMQC.MQOD_STRUC_ID or od.Version != CMQC.MQOD_VERSION_1 or od.ObjectType != CMQC.MQOT_Q:
        raise failed(CMQC.MQRC_OD_ERROR, "only queues can be opened, with an MQOD of version 1")


def check_open_options(options: int) -> None:
    """Check the options of MQOPEN."""
    binds = CMQC.MQOO_BIND_ON_OPEN | CMQC.MQOO_BIND_NOT_FIXED | CMQC.MQOO_BIND_ON_GROUP
    contexts = CMQC.MQOO_SET_IDENTITY_CONTEXT | CMQC.MQOO_SET_ALL_CONTEXT
    if (
        options & ~_OPEN_OPTIONS
        or several(options, INPUT)
        or several(options, binds)
        or (options & contexts and not options & CMQC.MQOO_OUTPUT)
        or not options & (INPUT | CMQC.MQOO_BROWSE | CMQC.MQOO_OUTPUT | CMQC.MQOO_INQUIRE)
    ):
        raise failed(CMQC.MQRC_OPTIONS_ERROR, f"options {options:#x} of MQOPEN")
