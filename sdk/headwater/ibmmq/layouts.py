"""The headers as tables: each of them is described here, and nowhere else.

A layout is ``(StrucId, its MQRC_*_ERROR, length, rows, lengths by Version, the row of Encoding or -1)``, where a length
of 0 says that there is no such version, and the newest is written. A row is ``(name, offset, size, kind, default)``.
Kinds: ``"c"`` characters, ``"l"`` an MQLONG, ``"f"`` an MQLONG of which each bit is a flag, and which is read as
unsigned, ``"b"`` bytes. A default of None is the Encoding of the byte order that is written; characters and bytes whose
default is empty are NULs.

What Encoding, CodedCharSetId and Format say of what follows stands in rows next to each other.
"""

from headwater.ibmmq import mde
from headwater.wire import const

#: Numbers of rows: MQMD.
MD_STRUC_ID = const(0)
MD_VERSION = const(1)
MD_REPORT = const(2)
MD_MSG_TYPE = const(3)
MD_EXPIRY = const(4)
MD_FEEDBACK = const(5)
MD_ENCODING = const(6)
MD_CODED_CHAR_SET_ID = const(7)
MD_FORMAT = const(8)
MD_PRIORITY = const(9)
MD_PERSISTENCE = const(10)
MD_MSG_ID = const(11)
MD_CORREL_ID = const(12)
MD_BACKOUT_COUNT = const(13)
MD_REPLY_TO_Q = const(14)
MD_REPLY_TO_Q_MGR = const(15)
MD_USER_IDENTIFIER = const(16)
MD_ACCOUNTING_TOKEN = const(17)
MD_APPL_IDENTITY_DATA = const(18)
MD_PUT_APPL_TYPE = const(19)
MD_PUT_APPL_NAME = const(20)
MD_PUT_DATE = const(21)
MD_PUT_TIME = const(22)
MD_APPL_ORIGIN_DATA = const(23)
MD_GROUP_ID = const(24)
MD_MSG_SEQ_NUMBER = const(25)
MD_OFFSET = const(26)
MD_MSG_FLAGS = const(27)
MD_ORIGINAL_LENGTH = const(28)

#: MQXQH. The MQMD behind it is a header of its own.
XQH_STRUC_ID = const(0)
XQH_VERSION = const(1)
XQH_REMOTE_Q_NAME = const(2)
XQH_REMOTE_Q_MGR_NAME = const(3)

#: MQDLH.
DLH_STRUC_ID = const(0)
DLH_VERSION = const(1)
DLH_REASON = const(2)
DLH_DEST_Q_NAME = const(3)
DLH_DEST_Q_MGR_NAME = const(4)
DLH_ENCODING = const(5)
DLH_CODED_CHAR_SET_ID = const(6)
DLH_FORMAT = const(7)
DLH_PUT_APPL_TYPE = const(8)
DLH_PUT_APPL_NAME = const(9)
DLH_PUT_DATE = const(10)
DLH_PUT_TIME = const(11)

# A name of its own: a bundle passes on no names that it imports.
MQMDE = mde.MQMDE
_MD_ROWS = (
    ("StrucId", 0, 4, "c", b"MD  "),
    ("Version", 4, 4, "l", 2),
    ("Report", 8, 4, "f", 0),
    ("MsgType", 12, 4, "l", 8),
    ("Expiry", 16, 4, "l", -1),
    ("Feedback", 20, 4, "l", 0),
    ("Encoding", 24, 4, "l", None),
    ("CodedCharSetId", 28, 4, "l", 0),
    ("Format", 32, 8, "c", b"        "),
    ("Priority", 40, 4, "l", -1),
    ("Persistence", 44, 4, "l", 2),
    ("MsgId", 48, 24, "b", b""),
    ("CorrelId", 72, 24, "b", b""),
    ("BackoutCount", 96, 4, "l", 0),
    ("ReplyToQ", 100, 48, "c", b""),
    ("ReplyToQMgr", 148, 48, "c", b""),
    ("UserIdentifier", 196, 12, "c", b""),
    ("AccountingToken", 208, 32, "b", b""),
    ("ApplIdentityData", 240, 32, "c", b""),
    ("PutApplType", 272, 4, "l", 0),
    ("PutApplName", 276, 28, "c", b""),
    ("PutDate", 304, 8, "c", b""),
    ("PutTime", 312, 8, "c", b""),
    ("ApplOriginData", 320, 4, "c", b""),
    ("GroupId", 324, 24, "b", b""),
    ("MsgSeqNumber", 348, 4, "l", 1),
    ("Offset", 352, 4, "l", 0),
    ("MsgFlags", 356, 4, "f", 0),
    ("OriginalLength", 360, 4, "l", -1),
)
#: Of either version; what is new is version 2.
MQMD = (b"MD  ", 2026, 364, _MD_ROWS, (0, 324, 364), 6)
#: Of version 1 only: all but the last five rows.
MQMD1 = (b"MD  ", 2026, 324, _MD_ROWS, (0, 324), 6)
#: Without the MQMD behind it: IBM counts 428 bytes.
MQXQH = (
    b"XQH ",
    2260,
    104,
    (
        ("StrucId", 0, 4, "c", b"XQH "),
        ("Version", 4, 4, "l", 1),
        ("RemoteQName", 8, 48, "c", b""),
        ("RemoteQMgrName", 56, 48, "c", b""),
    ),
    (0, 104),
    -1,
)
MQDLH = (
    b"DLH ",
    2141,
    172,
    (
        ("StrucId", 0, 4, "c", b"DLH "),
        ("Version", 4, 4, "l", 1),
        ("Reason", 8, 4, "l", 0),
        ("DestQName", 12, 48, "c", b""),
        ("DestQMgrName", 60, 48, "c", b""),
        ("Encoding", 108, 4, "l", 0),
        ("CodedCharSetId", 112, 4, "l", 0),
        ("Format", 116, 8, "c", b"        "),
        ("PutApplType", 124, 4, "l", 0),
        ("PutApplName", 128, 28, "c", b""),
        ("PutDate", 156, 8, "c", b""),
        ("PutTime", 164, 8, "c", b""),
    ),
    (0, 172),
    5,
)
