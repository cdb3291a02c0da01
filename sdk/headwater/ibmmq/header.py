"""One of IBM MQ's headers in the caller's buffer, read and written in place, by its table in ``layouts`` or ``mde``.

What a header does not know, and what nobody asks for, stays as it is. Fields are meant by the number of their row.
``text`` reads and writes characters that are more than names.

Nothing here allocates but ``raw``, and ``get`` and ``put`` of what is an object on a 32-bit board: integers from 2**30
on, and those below -2**30. ``high`` and ``low`` tell these without making one.
"""

from headwater.errors import E_ARGUMENT, E_CODE, E_TOO_LARGE, E_TRUNCATED
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout, Row


#: What ``sniff`` finds: how an MQMDE's integers are written, and that its characters are EBCDIC.
BIG = const(1)
LITTLE = const(2)
EBCDIC = const(4)

_NONE = (b"", 0, 0, (), (), -1)


def is_ebcdic(ccsid: int) -> bool:
    """Whether this is one of the EBCDIC character sets known here. All others are read as ASCII's family."""
    return ccsid == 500 or ccsid == 1047 or ccsid == 37 or ccsid == 1140


def coded(character: int, ebcdic: bool) -> int:
    """The byte for an ASCII character: in EBCDIC for letters, digits, blank, NUL and ``.%/_``, which all four write
    alike, and -1 for others."""
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
    """Whether the ``size`` characters at ``at`` are ``name`` (ASCII), filled up with blanks."""
    if len(name) > size:
        return False
    while size:
        size -= 1
        character = coded(name[size] if size < len(name) else 32, ebcdic)
        if buf[at + size] != character:
            return False
    return True


def _put_name(buf: bytearray, at: int, size: int, name: "Bytes", ebcdic: bool) -> None:
    while size:
        size -= 1
        buf[at + size] = coded(name[size] if size < len(name) else 32 if name else 0, ebcdic)


def _is_number(buf: "Bytes", at: int, big: bool, value: int) -> bool:
    """Whether the MQLONG at ``at`` is ``value``, below 256."""
    if buf[at + 1] or buf[at + 2] or buf[at if big else at + 3]:
        return False
    return buf[at + 3 if big else at] == value


def sniff(buf: "Bytes", at: int, end: int) -> int:
    """Whether ``buf[at:end]`` begins with an MQMDE, where nothing before it says so: 0, or BIG or LITTLE, ``| EBCDIC``.

    It does when StrucId, Version and StrucLength, its first 12 bytes, are an MQMDE's.
    """
    if end - at < 12:
        return 0
    ebcdic = buf[at] != 77
    if not same_name(buf, at, 4, b"MDE ", ebcdic):
        return 0
    big = buf[at + 4] == 0
    if not _is_number(buf, at + 4, big, 2) or not _is_number(buf, at + 8, big, 72):
        return 0
    return (BIG if big else LITTLE) | (EBCDIC if ebcdic else 0)


class Header:
    """A header in ``buf[at:end]``, whose integers are big-endian when ``big``, and whose characters are in ``ccsid``.

    After an error, ``reason`` is IBM's reason code, ``bad_field`` IBM's name of the field, ``bad_at`` its offset in
    ``buf``. It can be used again and again, also for another buffer. Writing takes a bytearray, or a memoryview of one.
    """

    def __init__(self, buf: "Bytes"):
        self.buf: bytearray = buf  # type: ignore[assignment]
        self.layout: Layout = _NONE
        self.at = 0
        self.end = 0
        self.big = True
        self.ccsid = 0
        self.ebcdic = False
        self.reason = 0
        self.bad_field = ""
        self.bad_at = 0

    def place(self, layout: "Layout", at: int, big: bool, ccsid: int) -> None:
        """Say which header is to be at ``at``, and how it is written. ``begin`` and ``look`` do."""
        self.big = big
        self.ccsid = ccsid
        self._place(layout, at)

    def _place(self, layout: "Layout", at: int) -> None:
        self.layout = layout
        self.at = at
        self.end = at
        self.ebcdic = is_ebcdic(self.ccsid)
        self.reason = 0
        self.bad_field = ""
        self.bad_at = at

    def begin(self, layout: "Layout", at: int, big: bool, ccsid: int) -> int:
        """Write the defaults: the offset behind the header, or E_TOO_LARGE when the buffer ends before it."""
        self.big = big
        self.ccsid = ccsid
        self._place(layout, at)
        if at + layout[2] > len(self.buf):
            return E_TOO_LARGE
        self.end = at + layout[2]
        self._put_defaults(layout[3])
        self.put(1, len(layout[4]) - 1)
        return self.end

    def _put_defaults(self, rows: "tuple[Row, ...]") -> None:
        for i in range(self.at, self.end):
            self.buf[i] = 0
        for i in range(len(rows)):
            if self.has(i):
                self._put_default(i, rows[i][3], rows[i][4])

    def _put_default(self, row: int, kind: str, default: "int | bytes | None") -> None:
        if kind == "c":
            self.put_name(row, default)  # type: ignore[arg-type]
        elif default is None:
            self.put(row, 273 if self.big else 546)
        elif kind != "b":
            self.put(row, default)  # type: ignore[arg-type]

    def look(self, layout: "Layout", at: int, end: int, big: bool, ccsid: int) -> int:
        """Check StrucId, Version and StrucLength of the header at ``at``, and that all of it is in front of ``end``:
        the offset behind it, or E_CODE or E_TRUNCATED. From then on its fields can be read and written."""
        self.big = big
        self.ccsid = ccsid
        self._place(layout, at)
        return self._check(layout, at, end)

    def _check(self, layout: "Layout", at: int, end: int) -> int:
        if end - at < 4:
            return self._short(end)
        if not self.is_name(0, layout[0]):
            return self.fault(E_CODE, 0)
        if end - at < 8:
            return self._short(end)
        version = self.low(1)
        if self.high(1) != 0 or version >= len(layout[4]) or layout[4][version] == 0:
            return self.fault(E_CODE, 1)
        length = layout[4][version]
        if layout[3][2][0] == "StrucLength" and end - at >= 12:
            if self.high(2) != 0 or self.low(2) != length:
                return self.fault(E_CODE, 2)
        if at + length > end:
            return self._short(end)
        self.end = at + length
        return self.end

    def fault(self, code: int, row: int) -> int:
        """Note in which field an error is; returns ``code``."""
        self.reason = self.layout[1]
        self.bad_field = self.layout[3][row][0]
        self.bad_at = self.at + self.layout[3][row][1]
        return code

    def _short(self, end: int) -> int:
        """The bytes end within a field, or in front of it."""
        rows = self.layout[3]
        row = 0
        while self.at + rows[row][1] + rows[row][2] <= end:
            row += 1
        return self.fault(E_TRUNCATED, row)

    def has(self, row: int) -> bool:
        """Whether this header has the field: a version-1 MQMD has not the last five."""
        return self.at + self.layout[3][row][1] < self.end

    # -- numbers -------------------------------------------------------------------------------------------------------

    def high(self, row: int) -> int:
        """The upper 16 bits of an MQLONG, signed."""
        at = self.at + self.layout[3][row][1]
        buf = self.buf
        value = buf[at] << 8 | buf[at + 1] if self.big else buf[at + 3] << 8 | buf[at + 2]
        return value - 65536 if value > 32767 else value

    def low(self, row: int) -> int:
        """The lower 16 bits of an MQLONG, unsigned."""
        at = self.at + self.layout[3][row][1]
        buf = self.buf
        return buf[at + 2] << 8 | buf[at + 3] if self.big else buf[at + 1] << 8 | buf[at]

    def get(self, row: int) -> int:
        """An MQLONG, signed, but one of flags unsigned; its default when this header has no such field."""
        if not self.has(row):
            return self.layout[3][row][4]  # type: ignore[return-value]
        high = self.high(row)
        if high < 0 and self.layout[3][row][3] == "f":
            high += 65536
        return high << 16 | self.low(row)

    def put(self, row: int, value: int) -> int:
        """Write an MQLONG, flags signed or unsigned: 0, or E_ARGUMENT when it is out of range, or this header has no
        such field."""
        high = value >> 16
        if high < -32768 or high > (65535 if self.layout[3][row][3] == "f" else 32767) or not self.has(row):
            return E_ARGUMENT
        at = self.at + self.layout[3][row][1]
        buf = self.buf
        if self.big:
            buf[at] = high >> 8 & 255
            buf[at + 1] = high & 255
            buf[at + 2] = value >> 8 & 255
            buf[at + 3] = value & 255
        else:
            buf[at + 3] = high >> 8 & 255
            buf[at + 2] = high & 255
            buf[at + 1] = value >> 8 & 255
            buf[at] = value & 255
        return 0

    # -- names and bytes -----------------------------------------------------------------------------------------------

    def is_name(self, row: int, name: "Bytes") -> bool:
        """Whether a field of characters is ``name`` (ASCII), filled up with blanks."""
        at = self.at + self.layout[3][row][1]
        return same_name(self.buf, at, self.layout[3][row][2], name, self.ebcdic)

    def put_name(self, row: int, name: "Bytes") -> int:
        """Write a field of characters: ASCII letters, digits, blanks and ``.%/_``, filled up with blanks, or NULs when
        ``name`` is empty. 0, or E_TOO_LARGE when the field is shorter, E_ARGUMENT when there are other characters."""
        if len(name) > self.layout[3][row][2]:
            return E_TOO_LARGE
        for i in range(len(name)):
            if coded(name[i], True) < 0:
                return E_ARGUMENT
        at = self.at + self.layout[3][row][1]
        _put_name(self.buf, at, self.layout[3][row][2], name, self.ebcdic)
        return 0

    def raw(self, row: int) -> bytes:
        """The bytes of a field, of whatever kind; NULs when this header has no such field."""
        size = self.layout[3][row][2]
        if not self.has(row):
            return bytes(size)
        at = self.at + self.layout[3][row][1]
        return bytes(self.buf[at : at + size])

    def put_raw(self, row: int, data: "Bytes") -> int:
        """Write a field of whatever kind, filled up with NULs: 0, or E_TOO_LARGE when the field is shorter, E_ARGUMENT
        when this header has no such field."""
        n = len(data)
        if n > self.layout[3][row][2]:
            return E_TOO_LARGE
        if not self.has(row):
            return E_ARGUMENT
        at = self.at + self.layout[3][row][1]
        self.buf[at : at + n] = data
        while n < self.layout[3][row][2]:
            self.buf[at + n] = 0
            n += 1
        return 0


# The MQMDE as a table: what a message says of its group and segment. ``layouts`` explains the rows.

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
