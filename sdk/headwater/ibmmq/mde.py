"""The MQMDE as a table: what a message says of its group and segment. ``layouts`` explains the rows."""

from headwater.wire import const

#: Numbers of rows.
MDE_STRUC_ID = const(0)
MDE_VERSION = const(1)
MDE_STRUC_LENGTH = const(2)
MDE_ENCODING = const(3)
MDE_CODED_CHAR_SET_ID = const(4)
MDE_FORMAT = const(5)
MDE_FLAGS = const(6)
MDE_GROUP_ID = const(7)
MDE_MSG_SEQ_NUMBER = const(8)
MDE_OFFSET = const(9)
MDE_MSG_FLAGS = const(10)
MDE_ORIGINAL_LENGTH = const(11)

MQMDE = (
    b"MDE ",
    2248,
    72,
    (
        ("StrucId", 0, 4, "c", b"MDE "),
        ("Version", 4, 4, "l", 2),
        ("StrucLength", 8, 4, "l", 72),
        ("Encoding", 12, 4, "l", None),
        ("CodedCharSetId", 16, 4, "l", 0),
        ("Format", 20, 8, "c", b"        "),
        ("Flags", 28, 4, "f", 0),
        ("GroupId", 32, 24, "b", b""),
        ("MsgSeqNumber", 56, 4, "l", 1),
        ("Offset", 60, 4, "l", 0),
        ("MsgFlags", 64, 4, "f", 0),
        ("OriginalLength", 68, 4, "l", -1),
    ),
    (0, 0, 72),
    3,
)
