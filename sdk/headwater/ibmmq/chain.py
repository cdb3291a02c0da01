"""A chain of headers: each says by Format, Encoding and CodedCharSetId what follows it, up to the data.

    chain = Chain(buf)
    chain.start(0, end, big, ccsid)
    while chain.next() > 0:
        ...                     # chain.header is the next one

Then the data begin at ``chain.at``. Nothing here allocates but ``format``, and ``encoding`` and ``ccsid`` of what is an
object on a 32-bit board: numbers that no Encoding and no character set has.
"""

from headwater.errors import E_CODE
from headwater.ibmmq.header import Header, same_name
from headwater.ibmmq.layouts import MQDLH, MQMD, MQMD1, MQMDE, MQXQH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout

#: Headers, and the Formats that announce them.
KNOWN = ((b"MQHMDE  ", MQMDE), (b"MQDEAD  ", MQDLH), (b"MQXMIT  ", MQXQH))


class Chain:
    """Walks the headers in ``buf``. ``header`` is the one that was found last, ``at`` where what follows it begins.

    Of what follows an MQMDE, MQMD or MQDLH its Encoding says the byte order, and must, where that is a known header.
    Its CodedCharSetId is the character set; -2 (MQCCSI_INHERIT) is the header's own, 0 in an MQMD the queue manager's,
    which is the one the walk began with, and 0 elsewhere (MQCCSI_UNDEFINED) taken for the header's own. An MQXQH is
    followed by a version-1 MQMD, written as it is.
    """

    def __init__(self, buf: "Bytes"):
        self.header = Header(buf)
        self.at = 0
        self.end = 0
        self._big = True
        self._ccsid = 0
        self._q_mgr_ccsid = 0
        # What follows when it is a header, and by which Format when that was given.
        self._next: Layout | None = None
        self._given: Bytes = b""
        # The first of the three rows of ``header`` that say what follows, or -1.
        self._row = -1
        self._status = 0

    def start(self, at: int, end: int, big: bool, ccsid: int, format: "Bytes | None" = None) -> None:
        """Begin at ``at``, where integers are big-endian or not, and characters in ``ccsid``: with what ``format``
        (ASCII) says; without it with an MQXQH or an MQMD, whichever StrucId tells."""
        self.at = at
        self.end = end
        self._big = big
        self._ccsid = ccsid
        self._q_mgr_ccsid = ccsid
        self._next = None
        self._given = b"" if format is None else format
        self._row = -1
        self._status = 1
        header = self.header
        header.place(MQXQH, at, big, ccsid)
        if format is None:
            found = end - at >= 4 and header.is_name(0, MQXQH[0])
            self._next = MQXQH if found else MQMD
        else:
            for i in range(len(KNOWN)):
                if same_name(KNOWN[i][0], 0, 8, format, False):
                    self._next = KNOWN[i][1]

    def next(self) -> int:
        """1: ``header`` is the next one. 0: there are no more, and the data begin at ``at``. Less than 0: an error,
        which ``header`` names."""
        if self._status <= 0:
            return self._status
        layout = self._next
        if layout is None:
            self._status = 0
            return 0
        if self._row >= 0 and not self._follow():
            self._status = E_CODE
            return E_CODE
        header = self.header
        at = header.look(layout, self.at, self.end, self._big, self._ccsid)
        if at < 0:
            self._status = at
            return at
        self.at = at
        row = layout[5]
        self._row = row
        self._next = None if row >= 0 else MQMD1
        for i in range(len(KNOWN)):
            if row >= 0 and header.is_name(row + 2, KNOWN[i][0]):
                self._next = KNOWN[i][1]
        return 1

    def _follow(self) -> bool:
        """Take from ``header`` how the next one is written: whether it says so."""
        header = self.header
        integers = header.low(self._row) & 15
        if integers != 1 and integers != 2:
            header.fault(E_CODE, self._row)
            return False
        self._big = integers == 1
        high = header.high(self._row + 1)
        low = header.low(self._row + 1)
        if high == 0 and low != 0:
            self._ccsid = low
        elif high == 0:
            if header.layout[0] == MQMD[0]:
                self._ccsid = self._q_mgr_ccsid
        elif high != -1 or low != 65534:
            # No character set has such a number, and none of EBCDIC's.
            self._ccsid = 0
        return True

    def format(self) -> str:
        """The Format of what follows, with its blanks; blanks when nothing says."""
        if self._row >= 0:
            return self.header.text(self._row + 2)
        given = "".join([chr(b) for b in self._given])
        return given + " " * (8 - len(given))

    def is_format(self, name: "Bytes") -> bool:
        """Whether what follows has this Format (ASCII), filled up with blanks."""
        if self._row >= 0:
            return self.header.is_name(self._row + 2, name)
        given = self._given
        return same_name(given, 0, len(given), name, False) or same_name(name, 0, len(name), given, False)

    def encoding(self) -> int:
        """The Encoding of what follows."""
        if self._row >= 0:
            return self.header.get(self._row)
        return 273 if self._big else 546

    def ccsid(self) -> int:
        """The CodedCharSetId of what follows, but what -2, and 0 in an MQMD, stand for; 0 elsewhere is as it stands."""
        if self._row < 0:
            return self._ccsid
        header = self.header
        found = header.get(self._row + 1)
        if found == -2:
            return header.ccsid
        return self._q_mgr_ccsid if found == 0 and header.layout[0] == MQMD[0] else found
