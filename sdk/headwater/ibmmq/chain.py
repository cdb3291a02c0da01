"""Chains of headers; the tables of MQMD, MQXQH and MQDLH (docs/protocols/ibm-mq.md).

Format, Encoding and CodedCharSetId of each header describe what follows it, up to the data:

    chain = Chain(buf)
    chain.start(0, end, big, ccsid)
    while chain.next() > 0:
        ...                     # chain.header is the next header

Then the data begin at ``chain.at``. Only ``encoding`` and ``ccsid`` allocate, for numbers that are objects on a 32-bit
board and that no Encoding or character set has. ``headwater.ibmmq.header`` explains layouts.
"""

from headwater.errors import E_CODE
from headwater.ibmmq.header import MQMDE, Header, same_name
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout


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

#: MQXQH. The MQMD after it is a separate header.
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
#: For both versions; version 2 is written.
MQMD = (b"MD  ", 2026, 364, _MD_ROWS, (0, 324, 364), 6)
#: For version 1: all rows except the last five.
MQMD1 = (b"MD  ", 2026, 324, _MD_ROWS, (0, 324), 6)
#: Without the MQMD after it; IBM's length of 428 bytes includes it.
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


#: Formats, and the headers that they announce.
KNOWN = ((b"MQHMDE  ", MQMDE), (b"MQDEAD  ", MQDLH), (b"MQXMIT  ", MQXQH))


def _header_of(name: "Bytes") -> "Layout | None":
    """Return the layout that a Format (ASCII) announces."""
    for i in range(len(KNOWN)):
        if same_name(KNOWN[i][0], 0, 8, name, False):
            return KNOWN[i][1]
    return None


class Chain:
    """Walks the headers in ``buf``.

    ``header`` is the last header, ``at`` the offset after it. ``row`` is its row of Encoding, which CodedCharSetId and
    Format follow, or -1 if it has none; ``given`` is the Format at the start.

    The Encoding of an MQMDE, MQMD or MQDLH gives the byte order of what follows; before a known header it must be
    valid. CodedCharSetId gives the character set: -2 (MQCCSI_INHERIT) is that of the header, 0 in an MQMD that of the
    queue manager, with which the walk started; 0 elsewhere (MQCCSI_UNDEFINED) means that of the header, and
    numbers beyond 2**30 mean 0. A version-1 MQMD follows an MQXQH in the same form.
    """

    def __init__(self, buf: "Bytes"):
        self.header = Header(buf)
        self.at = 0
        self.end = 0
        self.row = -1
        self.given: Bytes = b""
        self._big = True
        self._ccsid = 0
        self._q_mgr_ccsid = 0
        # The layout of the next header.
        self._next: Layout | None = None
        self._status = 0

    def start(self, at: int, end: int, big: bool, ccsid: int, format: "Bytes | None" = None) -> None:
        """Start at ``at`` with the byte order and character set of the first header.

        ``format`` (ASCII) names the first header; without it, it is an MQXQH or an MQMD, by StrucId.
        """
        self.at = at
        self.end = end
        self.row = -1
        self._big = big
        self._ccsid = ccsid
        self._q_mgr_ccsid = ccsid
        self._status = 1
        self._start(format)

    def _start(self, format: "Bytes | None") -> None:
        header = self.header
        header.place(MQXQH, self.at, self._big, self._ccsid)
        if format is not None:
            self.given = format
            self._next = _header_of(format)
            return
        self.given = b""
        self._next = MQXQH if self.end - self.at >= 4 and header.is_name(0, MQXQH[0]) else MQMD

    def next(self) -> int:
        """Go to the next header. Return 1.

        Returns 0 at the data, which begin at ``at``, or a negative error, which ``header`` describes.
        """
        if self._status <= 0:
            return self._status
        layout = self._next
        if layout is None:
            self._status = 0
        elif self.row >= 0 and not self._follow():
            self._status = E_CODE
        else:
            at = self._look(layout)
            if at < 0:
                self._status = at
                self.row = -1
            else:
                self.at = at
                self.row = layout[5]
                self._next = MQMD1 if self.row < 0 else self._announced()
        return self._status

    def _look(self, layout: "Layout") -> int:
        return self.header.look(layout, self.at, self.end, self._big, self._ccsid)

    def _announced(self) -> "Layout | None":
        """Return the layout that the Format of the last header announces."""
        for i in range(len(KNOWN)):
            if self.header.is_name(self.row + 2, KNOWN[i][0]):
                return KNOWN[i][1]
        return None

    def _follow(self) -> bool:
        """Take byte order and character set of the next header from ``header``. Return whether they are valid."""
        header = self.header
        integers = header.low(self.row) & 15
        if integers != 1 and integers != 2:
            header.fault(E_CODE, self.row)
            return False
        self._big = integers == 1
        high = header.high(self.row + 1)
        low = header.low(self.row + 1)
        if high == 0 and low == 0:
            if header.layout[0] == MQMD[0]:
                self._ccsid = self._q_mgr_ccsid
        elif high != -1 or low != 65534:
            # A number that is an object on a 32-bit board is not a character set.
            self._ccsid = high << 16 | low if -16384 <= high < 16384 else 0
        return True

    def is_format(self, name: "Bytes") -> bool:
        """Return whether what follows has this Format (ASCII), padded with blanks."""
        if self.row >= 0:
            return self.header.is_name(self.row + 2, name)
        given = self.given
        return same_name(given, 0, len(given), name, False) or same_name(name, 0, len(name), given, False)

    def encoding(self) -> int:
        """Return the Encoding of what follows."""
        if self.row >= 0:
            return self.header.get(self.row)
        return 273 if self._big else 546

    def ccsid(self) -> int:
        """Return the CodedCharSetId of what follows, with -2, and 0 in an MQMD, resolved."""
        if self.row < 0:
            return self._ccsid
        header = self.header
        found = header.get(self.row + 1)
        if found == -2:
            return header.ccsid
        return self._q_mgr_ccsid if found == 0 and header.layout[0] == MQMD[0] else found
