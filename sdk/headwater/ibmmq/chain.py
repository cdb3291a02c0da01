"""A chain of headers: each says by Format, Encoding and CodedCharSetId what follows it, up to the data.

    chain = Chain(buf)
    chain.start(0, len(buf), big, ccsid)
    while chain.next() > 0:
        chain.header            # the one that was found
    chain.at                    # where the data begin, when next() said 0

Nothing here allocates but ``format``, and what says so of large numbers.
"""

from headwater.errors import E_CODE
from headwater.ibmmq.header import Header, same_name
from headwater.ibmmq.layouts import MQDLH, MQMD, MQMD1, MQMDE, MQXQH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout

#: Headers by the Format that announces them.
KNOWN: "tuple[tuple[bytes, Layout], ...]" = (
    (b"MQHMDE  ", MQMDE),
    (b"MQDEAD  ", MQDLH),
    (b"MQXMIT  ", MQXQH),
)


class Chain:
    """Walks headers in ``buf``. ``header`` is the last that was found, ``at`` where what follows it begins."""

    def __init__(self, buf: "Bytes"):
        self.header = Header(buf)
        self.at = 0
        self.end = 0
        # How what follows is written.
        self._big = True
        self._ccsid = 0
        # What an MQMD means by 0.
        self._q_mgr_ccsid = 0
        # What follows, when that is a header, and the Format that was given.
        self._next: Layout | None = None
        self._given: Bytes = b""
        # The row of ``header`` that says what follows, or -1.
        self._row = -1
        self._status = 0

    def start(self, at: int, end: int, big: bool, ccsid: int, format: "Bytes | None" = None) -> None:
        """Begin at ``at``, where integers are big-endian or not and characters are in ``ccsid``: with the header that
        ``format`` (8 ASCII characters) names; without one, with an MQXQH or an MQMD, which is told by StrucId."""
        self.at = at
        self.end = end
        self._big = big
        self._ccsid = ccsid
        self._q_mgr_ccsid = ccsid
        self._row = -1
        self._status = 1
        self._next = None
        self._given = b""
        header = self.header
        header._take(MQMD, at, big, ccsid)
        header.reason = 0
        if format is None:
            is_xqh = end - at >= 4 and same_name(header.buf, at, 4, MQXQH[0], header.ebcdic)
            self._next = MQXQH if is_xqh else MQMD
        else:
            self._given = format
            for i in range(len(KNOWN)):
                if same_name(format, 0, 8, KNOWN[i][0], False):
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
        if self._row >= 0 and self._follow() < 0:
            return self._status
        header = self.header
        at = header.look(layout, self.at, self.end, self._big, self._ccsid)
        if at < 0:
            self._status = at
            return at
        self.at = at
        row = layout[5]
        self._row = row
        if row < 0:
            # Only version 1 is embedded, and it is written as the MQXQH is.
            self._next = MQMD1
            return 1
        self._next = None
        for i in range(len(KNOWN)):
            if header.is_name(row + 2, KNOWN[i][0]):
                self._next = KNOWN[i][1]
        return 1

    def _follow(self) -> int:
        """Take from ``header`` how the next one is written."""
        header = self.header
        integers = header.low(self._row) & 15
        if integers != 1 and integers != 2:
            self._status = header.fault(E_CODE, self._row)
            return self._status
        self._big = integers == 1
        high = header.high(self._row + 1)
        low = header.low(self._row + 1)
        if high == 0 and low != 0:
            self._ccsid = low
        elif high == 0 and (header.layout is MQMD or header.layout is MQMD1):
            self._ccsid = self._q_mgr_ccsid
        elif high != 0 and (high != -1 or low != 65534):
            # No character set has such a number: what is no EBCDIC that is known is taken for ASCII.
            self._ccsid = 0
        return 0

    def format(self) -> str:
        """The Format of what follows, with its blanks. Allocates."""
        if self._row >= 0:
            return self.header.text(self._row + 2)
        return "".join([chr(b) for b in self._given])

    def is_format(self, name: "Bytes") -> bool:
        """Whether what follows has this Format (ASCII), filled up with blanks."""
        if self._row >= 0:
            return self.header.is_name(self._row + 2, name)
        return len(self._given) == 8 and same_name(self._given, 0, 8, name, False)

    def encoding(self) -> int:
        """The Encoding of what follows. What is beyond 2**30 allocates on a 32-bit board."""
        if self._row >= 0:
            return self.header.get(self._row)
        return 273 if self._big else 546

    def ccsid(self) -> int:
        """The CodedCharSetId of what follows, with that of the structure or of the queue manager put in for what stands
        for it. What is beyond 2**30 allocates on a 32-bit board."""
        if self._row < 0:
            return self._ccsid
        header = self.header
        found = header.get(self._row + 1)
        if found == -2:
            return header.ccsid
        if found == 0 and (header.layout is MQMD or header.layout is MQMD1):
            return self._q_mgr_ccsid
        return found
