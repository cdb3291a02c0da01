"""One header, read and written in place; the table of the MQMDE.

A layout is ``(StrucId, its MQRC_*_ERROR, length, rows, lengths by Version, the row of Encoding or -1)``. A length of 0
means that the version does not exist; the newest version is written. A row is ``(name, offset, size, kind, default)``.
Kinds: ``"c"`` characters, ``"l"`` an MQLONG, ``"f"`` an MQLONG of flags, which is read as unsigned, ``"b"`` bytes. A
default of None is the Encoding of the written byte order; empty defaults are NULs. Encoding, CodedCharSetId and Format
have consecutive rows.

Fields are named by the numbers of their rows. Fields that are not accessed stay as they are. ``headwater.ibmmq.text``
handles characters that are not in names.

Only ``raw`` allocates, and ``get`` and ``put`` of integers that are objects on a 32-bit board: from 2**30 on, and below
-2**30. ``high`` and ``low`` return their halves without allocating.
"""

from headwater.errors import E_ARGUMENT, E_CODE, E_TOO_LARGE, E_TRUNCATED
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Layout, Row


#: Results of ``sniff``: the byte order of an MQMDE, and EBCDIC characters.
BIG = const(1)
LITTLE = const(2)
EBCDIC = const(4)

_NONE = (b"", 0, 0, (), (), -1)


def is_ebcdic(ccsid: int) -> bool:
    """Return whether a character set is a known EBCDIC one. All others are read as ASCII."""
    return ccsid == 500 or ccsid == 1047 or ccsid == 37 or ccsid == 1140


def coded(character: int, ebcdic: bool) -> int:
    """Return the byte of an ASCII character.

    In EBCDIC this is for letters, digits, blank, NUL and ``.%/_``, the same in all four sets; -1 for others.
    """
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
    """Return whether the ``size`` characters at ``at`` are ``name`` (ASCII), padded with blanks."""
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
    """Return whether the MQLONG at ``at`` is ``value``, below 256."""
    if buf[at + 1] or buf[at + 2] or buf[at if big else at + 3]:
        return False
    return buf[at + 3 if big else at] == value


def sniff(buf: "Bytes", at: int, end: int) -> int:
    """Detect an MQMDE at the start of ``buf[at:end]``. Return 0, or BIG or LITTLE, ``| EBCDIC``.

    It checks StrucId, Version and StrucLength, the first 12 bytes.
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
    """A header in ``buf[at:end]``, with big-endian integers if ``big``, and characters in ``ccsid``.

    After an error, ``reason`` is IBM's reason code, ``bad_field`` IBM's name of the field, ``bad_at`` its offset in
    ``buf``. The object is reusable, also for another buffer. Writing needs a bytearray or a memoryview of one.
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
        """Set layout, offset, byte order and character set, as ``begin`` and ``look`` do."""
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
        """Write the defaults. Return the offset after the header, or E_TOO_LARGE if the buffer is too short."""
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
        """Check StrucId, Version and StrucLength of the header at ``at``, and that it ends before ``end``.

        Returns the offset after it, E_CODE or E_TRUNCATED. Then its fields can be read and written.
        """
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
        """Record the field of an error. Return ``code``."""
        self.reason = self.layout[1]
        self.bad_field = self.layout[3][row][0]
        self.bad_at = self.at + self.layout[3][row][1]
        return code

    def _short(self, end: int) -> int:
        """Record the first field that is truncated."""
        rows = self.layout[3]
        row = 0
        while self.at + rows[row][1] + rows[row][2] <= end:
            row += 1
        return self.fault(E_TRUNCATED, row)

    def has(self, row: int) -> bool:
        """Return whether this header has the field: a version-1 MQMD does not have the last five."""
        return self.at + self.layout[3][row][1] < self.end

    # -- numbers -------------------------------------------------------------------------------------------------------

    def high(self, row: int) -> int:
        """Return the upper 16 bits of an MQLONG, signed."""
        at = self.at + self.layout[3][row][1]
        buf = self.buf
        value = buf[at] << 8 | buf[at + 1] if self.big else buf[at + 3] << 8 | buf[at + 2]
        return value - 65536 if value > 32767 else value

    def low(self, row: int) -> int:
        """Return the lower 16 bits of an MQLONG, unsigned."""
        at = self.at + self.layout[3][row][1]
        buf = self.buf
        return buf[at + 2] << 8 | buf[at + 3] if self.big else buf[at + 1] << 8 | buf[at]

    def get(self, row: int) -> int:
        """Return an MQLONG: signed, flags unsigned; its default if this header does not have the field."""
        if not self.has(row):
            return self.layout[3][row][4]  # type: ignore[return-value]
        high = self.high(row)
        if high < 0 and self.layout[3][row][3] == "f":
            high += 65536
        return high << 16 | self.low(row)

    def put(self, row: int, value: int) -> int:
        """Write an MQLONG; flags may be signed or unsigned.

        Return 0, or E_ARGUMENT if it is out of range or the field does not exist.
        """
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
        """Return whether a field of characters is ``name`` (ASCII), padded with blanks."""
        at = self.at + self.layout[3][row][1]
        return same_name(self.buf, at, self.layout[3][row][2], name, self.ebcdic)

    def put_name(self, row: int, name: "Bytes") -> int:
        """Write a field of ASCII letters, digits, blanks and ``.%/_``, padded with blanks; NULs if ``name`` is empty.

        Return 0, E_TOO_LARGE if the field is shorter, or E_ARGUMENT for other characters.
        """
        if len(name) > self.layout[3][row][2]:
            return E_TOO_LARGE
        for i in range(len(name)):
            if coded(name[i], True) < 0:
                return E_ARGUMENT
        at = self.at + self.layout[3][row][1]
        _put_name(self.buf, at, self.layout[3][row][2], name, self.ebcdic)
        return 0

    def raw(self, row: int) -> bytes:
        """Return the bytes of any field; NULs if this header does not have it."""
        size = self.layout[3][row][2]
        if not self.has(row):
            return bytes(size)
        at = self.at + self.layout[3][row][1]
        return bytes(self.buf[at : at + size])

    def put_raw(self, row: int, data: "Bytes") -> int:
        """Write the bytes of any field, padded with NULs.

        Return 0, E_TOO_LARGE if the field is shorter, or E_ARGUMENT if this header does not have it.
        """
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


# The MQMDE, which identifies the group and segment of a message.

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
