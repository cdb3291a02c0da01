"""A chain of headers: each says by Format, Encoding and CodedCharSetId what follows it, up to the data.

    chain = Chain(buf)
    chain.start(0, end, big, ccsid)
    while chain.next() > 0:
        ...                     # chain.header is the next one

Then the data begin at ``chain.at``. Nothing here allocates but ``encoding`` and ``ccsid`` of what is an object on a
32-bit board: numbers that no Encoding and no character set has.
"""

from headwater.errors import E_CODE
from headwater.ibmmq.header import Header, same_name
from headwater.ibmmq.layouts import MQDLH, MQMD, MQMD1, MQMDE, MQXQH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout

#: Headers, and the Formats that announce them.
KNOWN = ((b"MQHMDE  ", MQMDE), (b"MQDEAD  ", MQDLH), (b"MQXMIT  ", MQXQH))


def _header_of(name: "Bytes") -> "Layout | None":
    """The header that this Format (ASCII) announces."""
    for i in range(len(KNOWN)):
        if same_name(KNOWN[i][0], 0, 8, name, False):
            return KNOWN[i][1]
    return None


class Chain:
    """Walks the headers in ``buf``. ``header`` is the one that was found last, ``at`` where what follows it begins.
    ``row`` is the first of its three rows that say what follows, Encoding, CodedCharSetId and Format, or -1 when there
    is none, and ``given`` the Format that the walk began with.

    Of what follows an MQMDE, MQMD or MQDLH its Encoding says the byte order, and must, where that is a known header.
    Its CodedCharSetId is the character set; -2 (MQCCSI_INHERIT) is the header's own, 0 in an MQMD the queue manager's,
    which is the one the walk began with, and 0 elsewhere (MQCCSI_UNDEFINED) taken for the header's own; what is beyond
    2**30 is taken for 0. An MQXQH is followed by a version-1 MQMD, written as it is.
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
        # What follows when it is a header.
        self._next: Layout | None = None
        self._status = 0

    def start(self, at: int, end: int, big: bool, ccsid: int, format: "Bytes | None" = None) -> None:
        """Begin at ``at``, where integers are big-endian or not, and characters in ``ccsid``: with what ``format``
        (ASCII) says; without it with an MQXQH or an MQMD, whichever StrucId tells."""
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
        """1: ``header`` is the next one. 0: there are no more, and the data begin at ``at``. Less than 0: an error,
        which ``header`` names; what follows is then not known."""
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
        """The header that the last one's Format announces."""
        for i in range(len(KNOWN)):
            if self.header.is_name(self.row + 2, KNOWN[i][0]):
                return KNOWN[i][1]
        return None

    def _follow(self) -> bool:
        """Take from ``header`` how the next one is written: whether it says so."""
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
            # What would be an object on a 32-bit board is no character set.
            self._ccsid = high << 16 | low if -16384 <= high < 16384 else 0
        return True

    def is_format(self, name: "Bytes") -> bool:
        """Whether what follows has this Format (ASCII), filled up with blanks."""
        if self.row >= 0:
            return self.header.is_name(self.row + 2, name)
        given = self.given
        return same_name(given, 0, len(given), name, False) or same_name(name, 0, len(name), given, False)

    def encoding(self) -> int:
        """The Encoding of what follows."""
        if self.row >= 0:
            return self.header.get(self.row)
        return 273 if self._big else 546

    def ccsid(self) -> int:
        """The CodedCharSetId of what follows, but what -2, and 0 in an MQMD, stand for; 0 elsewhere is as it stands."""
        if self.row < 0:
            return self._ccsid
        header = self.header
        found = header.get(self.row + 1)
        if found == -2:
            return header.ccsid
        return self._q_mgr_ccsid if found == 0 and header.layout[0] == MQMD[0] else found
