"""One of IBM MQ's headers in the caller's buffer, read and written in place, by its table in ``layouts`` or ``mde``.

What a header does not know, or what nobody asks for, stays as it is. Nothing here allocates but ``text``, ``put_text``
and ``raw``, and what says so of large numbers: on a 32-bit board an integer beyond 2**30 is an object.
"""

from headwater.errors import E_ARGUMENT, E_CODE, E_TOO_LARGE, E_TRUNCATED
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout, Row

#: What ``sniff`` says: whether an MQMDE's integers are big-endian or little-endian, and that its characters are EBCDIC.
BIG = const(1)
LITTLE = const(2)
EBCDIC = const(4)

_STRUC_LENGTH = "StrucLength"


def is_ebcdic(ccsid: int) -> bool:
    """Whether this is one of the EBCDIC character sets that are known here. All others are taken for ASCII's family."""
    return ccsid == 500 or ccsid == 1047 or ccsid == 37 or ccsid == 1140


def coded(character: int, ebcdic: bool) -> int:
    """The byte of a character that all four EBCDICs write alike: an ASCII letter or digit, blank, NUL, or one of
    ``.%/_``. -1 for others."""
    if not ebcdic:
        return character
    if 48 <= character < 58:
        return character + 192
    i = (character | 32) - 97
    if 0 <= i < 26:
        i += 129 if i < 9 else 136 if i < 18 else 144
        return i if character & 32 else i + 64
    if character == 32:
        return 64
    if character == 46:
        return 75
    if character == 37:
        return 108
    if character == 95:
        return 109
    return 97 if character == 47 else 0 if character == 0 else -1


def same_name(buf: "Bytes", at: int, size: int, name: "Bytes", ebcdic: bool) -> bool:
    """Whether these characters are ``name`` (ASCII), filled up with blanks."""
    n = len(name)
    if n > size:
        return False
    for i in range(size):
        if buf[at + i] != coded(name[i] if i < n else 32, ebcdic):
            return False
    return True


def sniff(buf: "Bytes", at: int, end: int) -> int:
    """Whether a payload begins with an MQMDE, which nothing before it describes: BIG or LITTLE, and EBCDIC; 0 when not.

    It does when its StrucId, Version and StrucLength (12 bytes) are those of an MQMDE.
    """
    if end - at < 12:
        return 0
    found = 0
    if not same_name(buf, at, 4, b"MDE ", False):
        if not same_name(buf, at, 4, b"MDE ", True):
            return 0
        found = EBCDIC
    for order in (BIG, LITTLE):
        low = 3 if order == BIG else 0
        for i in range(4):
            if buf[at + 4 + i] != (2 if i == low else 0) or buf[at + 8 + i] != (72 if i == low else 0):
                break
        else:
            return found | order
    return 0


class Header:
    """A header in ``buf[at:end]``, whose integers are big-endian when ``big``, and whose characters are in ``ccsid``.

    After an error ``reason`` is one of IBM's reason codes, ``bad_field`` the name of the field, ``bad_at`` its offset
    in ``buf``. Fields are meant by the number of their row. A row that a version-1 MQMD has not reads as its default.
    """

    def __init__(self, buf: "Bytes"):
        self.buf = buf
        self.layout: Layout | None = None
        self.rows: tuple[Row, ...] = ()
        self.at = 0
        self.end = 0
        self.big = True
        self.ccsid = 0
        self.ebcdic = False
        self.reason = 0
        self.bad_field = ""
        self.bad_at = 0

    def begin(self, layout: "Layout", at: int, big: bool, ccsid: int) -> int:
        """Write the defaults: the offset behind the header, or E_TOO_LARGE when the buffer ends before."""
        self._take(layout, at, big, ccsid)
        end = at + layout[2]
        if end > len(self.buf):
            return E_TOO_LARGE
        self.end = end
        buf = self.buf
        for i in range(at, end):
            buf[i] = 0  # type: ignore[index]
        rows = layout[3]
        for i in range(len(rows)):
            row = rows[i]
            default = row[4]
            if row[1] >= layout[2]:
                break
            if row[3] == "c":
                self.put_name(i, default)  # type: ignore[arg-type]
            elif default is None:
                self.put(i, 273 if big else 546)
            elif row[3] != "b":
                self.put(i, default)  # type: ignore[arg-type]
        self.put(1, layout[4])
        return end

    def look(self, layout: "Layout", at: int, end: int, big: bool, ccsid: int) -> int:
        """Check StrucId, Version and StrucLength, and that all of it is in ``buf[at:end]``: the offset behind it, or
        E_CODE or E_TRUNCATED."""
        self._take(layout, at, big, ccsid)
        self.reason = 0
        length = layout[2]
        if end - at < 4:
            return self._short(end)
        if not same_name(self.buf, at, 4, layout[0], self.ebcdic):
            return self.fault(E_CODE, 0)
        if end - at < 8:
            return self._short(end)
        self.end = at + 8
        version = self.low(1)
        if self.high(1) != 0 or (version != layout[4] and (version != 1 or length != 364)):
            return self.fault(E_CODE, 1)
        if version == 1 and length == 364:
            length = 324
        if layout[3][2][0] == _STRUC_LENGTH:
            if end - at < 12:
                return self._short(end)
            self.end = at + 12
            if self.high(2) != 0 or self.low(2) != length:
                return self.fault(E_CODE, 2)
        self.end = at + length
        return self.end if self.end <= end else self._short(end)

    def _take(self, layout: "Layout", at: int, big: bool, ccsid: int) -> None:
        self.layout = layout
        self.rows = layout[3]
        self.at = at
        self.end = at
        self.big = big
        self.ccsid = ccsid
        self.ebcdic = is_ebcdic(ccsid)

    def fault(self, code: int, row: int) -> int:
        """Note what is wrong with which field; returns ``code``."""
        assert self.layout is not None
        self.reason = self.layout[1]
        self.bad_field = self.rows[row][0]
        self.bad_at = self.at + self.rows[row][1]
        return code

    def _short(self, end: int) -> int:
        """The bytes end within a field, or before it."""
        row = 0
        while self.at + self.rows[row][1] + self.rows[row][2] <= end:
            row += 1
        return self.fault(E_TRUNCATED, row)

    def has(self, row: int) -> bool:
        """Whether the header has this field: a version-1 MQMD has not all."""
        return self.at + self.rows[row][1] < self.end

    # -- numbers -------------------------------------------------------------------------------------------------------

    def high(self, row: int) -> int:
        """The upper 16 bits of an MQLONG, signed. With ``low`` it compares any number without an allocation."""
        at = self.at + self.rows[row][1]
        value = self.buf[at] << 8 | self.buf[at + 1] if self.big else self.buf[at + 3] << 8 | self.buf[at + 2]
        return value - 65536 if value > 32767 else value

    def low(self, row: int) -> int:
        """The lower 16 bits of an MQLONG, unsigned."""
        at = self.at + self.rows[row][1]
        return self.buf[at + 2] << 8 | self.buf[at + 3] if self.big else self.buf[at + 1] << 8 | self.buf[at]

    def get(self, row: int) -> int:
        """An MQLONG, signed, or unsigned when its bits are flags. What is beyond 2**30 allocates on a 32-bit board."""
        if not self.has(row):
            return self.rows[row][4]  # type: ignore[return-value]
        high = self.high(row)
        if high < 0 and self.rows[row][3] == "f":
            high += 65536
        return high << 16 | self.low(row)

    def put(self, row: int, value: int) -> int:
        """Write an MQLONG: 0, or E_ARGUMENT when it is out of range, or the header has no such field.

        Flags may be given signed or unsigned. What is beyond 2**30 is an object on a 32-bit board already."""
        high = value >> 16
        what = self.rows[row]
        if not -32768 <= high <= (65535 if what[3] == "f" else 32767) or not self.has(row):
            return E_ARGUMENT
        at = self.at + what[1]
        buf = self.buf
        if self.big:
            buf[at] = high >> 8 & 255  # type: ignore[index]
            buf[at + 1] = high & 255  # type: ignore[index]
            buf[at + 2] = value >> 8 & 255  # type: ignore[index]
            buf[at + 3] = value & 255  # type: ignore[index]
        else:
            buf[at + 3] = high >> 8 & 255  # type: ignore[index]
            buf[at + 2] = high & 255  # type: ignore[index]
            buf[at + 1] = value >> 8 & 255  # type: ignore[index]
            buf[at] = value & 255  # type: ignore[index]
        return 0

    # -- names, text, bytes --------------------------------------------------------------------------------------------

    def is_name(self, row: int, name: "Bytes") -> bool:
        """Whether characters are ``name`` (ASCII), filled up with blanks."""
        what = self.rows[row]
        return self.has(row) and same_name(self.buf, self.at + what[1], what[2], name, self.ebcdic)

    def put_name(self, row: int, name: "Bytes") -> int:
        """Write ASCII letters, digits, blanks and ``.%/_``, filled up with blanks; nothing at all is written as NULs.

        0, E_TOO_LARGE when it is longer than the field, or E_ARGUMENT when it has other characters."""
        what = self.rows[row]
        n = len(name)
        if n > what[2]:
            return E_TOO_LARGE
        ebcdic = self.ebcdic
        for i in range(n):
            if coded(name[i], True) < 0:
                return E_ARGUMENT
        at = self.at + what[1]
        for i in range(what[2]):
            self.buf[at + i] = coded(name[i] if i < n else 32 if n else 0, ebcdic)  # type: ignore[index]
        return 0

    def text(self, row: int) -> str:
        """Characters as they stand, with their blanks: in EBCDIC, or a byte a character (Latin-1). Allocates."""
        data = self.raw(row)
        if self.ebcdic:
            from headwater.ibmmq import ebcdic

            return ebcdic.decode(data, self.ccsid)
        return "".join([chr(b) for b in data])

    def put_text(self, row: int, text: str) -> int:
        """Write characters, filled up with blanks: 0, E_TOO_LARGE, or E_ARGUMENT when the character set has not all of
        them. Allocates."""
        what = self.rows[row]
        size = what[2]
        if len(text) > size:
            return E_TOO_LARGE
        if not self.has(row):
            return E_ARGUMENT
        while len(text) < size:
            text += " "
        if self.ebcdic:
            from headwater.ibmmq import ebcdic

            data = ebcdic.encode(text, self.ccsid)
            if data is None:
                return E_ARGUMENT
        else:
            data = bytearray(size)
            for i, character in enumerate(text):
                if ord(character) > 255:
                    return E_ARGUMENT
                data[i] = ord(character)
        return self.put_raw(row, data)

    def raw(self, row: int) -> bytes:
        """The bytes of a field, whatever it is. Allocates."""
        what = self.rows[row]
        if not self.has(row):
            return bytes(what[2])
        return bytes(self.buf[self.at + what[1] : self.at + what[1] + what[2]])

    def put_raw(self, row: int, data: "Bytes") -> int:
        """Write bytes, filled up with NULs: 0, E_TOO_LARGE, or E_ARGUMENT when the header has no such field."""
        what = self.rows[row]
        n = len(data)
        if n > what[2]:
            return E_TOO_LARGE
        if not self.has(row):
            return E_ARGUMENT
        at = self.at + what[1]
        buf = self.buf
        buf[at : at + n] = data  # type: ignore[index]
        for i in range(at + n, at + what[2]):
            buf[i] = 0  # type: ignore[index]
        return 0
