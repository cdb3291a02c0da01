"""Decode and encode IBM MQ's headers as dictionaries by IBM's names: numbers, text with its blanks, bytes.

The tables are those of ``headwater.ibmmq.chain``. ``decode`` and ``encode`` are exact inverses for any bytes: each byte
is one character, in EBCDIC (037, 500, 1047, 1140) and in all other character sets, which are read as Latin-1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import E_TRUNCATED
from headwater.ibmmq import text as core_text
from headwater.ibmmq.chain import MQDLH, MQMD, MQMD1, MQXQH, Chain
from headwater.ibmmq.header import MQMDE, Header, is_ebcdic
from headwater_host.mq import CMQC

if TYPE_CHECKING:
    from headwater.types import Bytes, Layout

Fields = dict[str, int | str | bytes]

#: Layouts by IBM's names; ``MQMD1`` is an MQMD of version 1.
LAYOUTS: dict[str, Layout] = {"MQMD": MQMD, "MQMD1": MQMD1, "MQMDE": MQMDE, "MQXQH": MQXQH, "MQDLH": MQDLH}


class HeaderError(ValueError):
    """A header is malformed, or its fields cannot be encoded.

    ``reason`` is IBM's reason code, ``field`` IBM's name of the field, ``offset`` its offset in the data, or in the
    structure to be encoded, in bytes.
    """

    def __init__(self, reason: int, field: str, offset: int, detail: str):
        super().__init__(f"{field} at offset {offset}: {detail} (reason {reason})")
        self.reason = reason
        self.field = field
        self.offset = offset
        self.detail = detail


class Found(NamedTuple):
    """A header of a chain: IBM's name of the structure, its offset, its fields."""

    name: str
    at: int
    fields: Fields


class Data(NamedTuple):
    """The data after the headers of a chain: the offset, and Format, Encoding and CodedCharSetId of the last header.

    ``ccsid`` is resolved as in ``headwater.ibmmq.chain``.
    """

    at: int
    format: str
    encoding: int
    ccsid: int


def name_of(layout: Layout) -> str:
    """Return IBM's name of a structure: ``MQMD`` for either version."""
    return "MQ" + layout[0].decode().rstrip()


# -- text --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _alphabet(ccsid: int) -> str:
    return core_text.decode(bytes(range(256)), ccsid)


@lru_cache(maxsize=8)
def _codes(ccsid: int) -> dict[str, int]:
    return {character: code for code, character in enumerate(_alphabet(ccsid))}


def to_text(data: Bytes, ccsid: int) -> str:
    """Decode bytes to characters, one each."""
    text = str(data, "latin-1")
    return text.translate(_alphabet(ccsid)) if is_ebcdic(ccsid) else text


def to_bytes(text: str, ccsid: int) -> bytes:
    """Encode characters to bytes, one each. Raises ValueError if the character set lacks one."""
    try:
        if not is_ebcdic(ccsid):
            return text.encode("latin-1")
        codes = _codes(ccsid)
        return bytes([codes[character] for character in text])
    except (KeyError, UnicodeEncodeError):
        raise ValueError(f"{text!r} has characters that are not in character set {ccsid}") from None


def latin_1(ccsid: int) -> int:
    """Return the character set that holds all of Latin-1: 037 instead of 1140, whose euro sign replaces the currency
    sign."""
    return 37 if ccsid == 1140 else ccsid


# -- headers -----------------------------------------------------------------------------------------------------------


@cache
def _packer(
    layout: Layout, big: bool, version: int
) -> tuple[struct.Struct, tuple[str, ...], tuple[int, ...]]:
    """Return the ``struct`` of a structure, the names of its fields, and the indices of text fields."""
    rows = [row for row in layout[3] if row[1] < layout[4][version]]
    form = "".join({"l": "i", "f": "I"}.get(kind) or f"{size}s" for _, _, size, kind, _ in rows)
    texts = tuple(i for i, row in enumerate(rows) if row[3] == "c")
    return struct.Struct((">" if big else "<") + form), tuple(row[0] for row in rows), texts


@cache
def _front(layout: Layout, big: bool, ebcdic: bool) -> bytes:
    """Return the first bytes of the newest version, which hold all that is checked."""
    header = Header(bytearray(layout[2]))
    header.begin(layout, 0, big, 500 if ebcdic else 0)
    return bytes(header.buf[: 12 if layout[3][2][0] == "StrucLength" else 8])


def check(layout: Layout, data: Bytes, at: int = 0, *, big: bool, ccsid: int) -> int:
    """Check StrucId, Version, StrucLength and length of the header at ``at``; return the offset after it.

    Raises HeaderError.
    """
    header = Header(data)
    end = header.look(layout, at, len(data), big, ccsid)
    if end < 0:
        raise error_of(header, end)
    return end


def error_of(header: Header, code: int) -> HeaderError:
    """Return the error that a header of the core has noted."""
    what = name_of(header.layout)
    detail = f"the {what} is truncated" if code == E_TRUNCATED else f"not that of an {what}"
    if header.bad_field == "Encoding" and code != E_TRUNCATED:
        detail = "does not give the byte order of the next header"
    return HeaderError(header.reason, header.bad_field, header.bad_at, detail)


def decode(layout: Layout, data: Bytes, at: int = 0, *, big: bool, ccsid: int) -> Fields:
    """Return the fields of the header at ``at``, by IBM's names. Raises HeaderError."""
    version = len(layout[4]) - 1
    front = _front(layout, big, is_ebcdic(ccsid))
    # The core checks unusual headers.
    if len(data) - at < layout[2] or data[at : at + len(front)] != front:
        version = layout[4].index(check(layout, data, at, big=big, ccsid=ccsid) - at)
    packer, names, texts = _packer(layout, big, version)
    values: list[int | str | bytes] = list(packer.unpack_from(data, at))
    for i in texts:
        values[i] = to_text(values[i], ccsid)  # type: ignore[arg-type]
    return dict(zip(names, values, strict=True))


def encode(layout: Layout, fields: Mapping[str, object], *, big: bool, ccsid: int) -> bytes:
    """Encode a header with these fields and defaults for the others. Raises HeaderError, naming the field.

    Text is padded with blanks, bytes with NULs. Flags may be signed. Headers that ``decode`` refuses are refused.
    """
    if layout is MQMD and fields.get("Version") == 1:
        layout = MQMD1
    version = len(layout[4]) - 1
    packer, names, _ = _packer(layout, big, version)
    for name in fields:
        if name not in names:
            raise HeaderError(
                layout[1], name, 0, f"an {name_of(layout)} of version {version} has no such field"
            )
    values: list[object] = []
    for name, offset, size, kind, default in layout[3][: len(names)]:
        if name in fields:
            try:
                values.append(_value(fields[name], size, kind, ccsid))
            except ValueError as error:
                raise HeaderError(layout[1], name, offset, str(error)) from None
        elif name == "Version":
            values.append(version)
        elif isinstance(default, bytes):
            values.append(to_bytes(default.decode("ascii"), ccsid))
        else:
            values.append((273 if big else 546) if default is None else default)
    data = packer.pack(*values)
    check(layout, data, big=big, ccsid=ccsid)
    return data


def _value(value: object, size: int, kind: str, ccsid: int) -> int | bytes:
    """Convert a value for ``struct``. Raises ValueError."""
    if kind in "lf":
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be an integer, not {value!r}")
        if not -(1 << 31) <= value < 1 << (32 if kind == "f" else 31):
            raise ValueError(f"{value} is out of range")
        return value & 0xFFFFFFFF if kind == "f" else value
    if kind == "c":
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {value!r}")
        if len(value) > size:
            raise ValueError(f"{value!r} is longer than {size} characters")
        return to_bytes(value.ljust(size), ccsid)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"must be bytes, not {value!r}")
    if len(value) > size:
        raise ValueError(f"is longer than {size} bytes")
    return bytes(value).ljust(size, b"\0")


def walk(
    data: Bytes, at: int = 0, *, big: bool, ccsid: int, format: str | None = None
) -> tuple[list[Found], Data]:
    """Decode a chain of headers from ``at`` on; return them and the data after. Raises HeaderError.

    The first header is an MQXQH or MQMD, or the one that ``format`` names.
    """
    if format is not None and not format.isascii():
        raise HeaderError(CMQC.MQRC_FORMAT_ERROR, "Format", at, f"{format!r} is not ASCII")
    chain = Chain(data)
    chain.start(at, len(data), big, ccsid, None if format is None else format.encode("ascii"))
    found = []
    status = chain.next()
    while status > 0:
        header = chain.header
        fields = decode(header.layout, data, header.at, big=header.big, ccsid=header.ccsid)
        found.append(Found(name_of(header.layout), header.at, fields))
        status = chain.next()
    if status < 0:
        raise error_of(chain.header, status)
    return found, Data(chain.at, core_text.format_of(chain), chain.encoding(), chain.ccsid())
