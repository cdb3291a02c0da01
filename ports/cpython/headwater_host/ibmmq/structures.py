"""IBM MQ's headers as dictionaries by IBM's names: numbers, text with its blanks, and bytes.

The tables are those of ``headwater.ibmmq.layouts``. ``decode`` and ``encode`` are exact inverses, whatever the bytes
are: each of the 256 is one character, in EBCDIC (037, 500, 1047, 1140) as in all others, which are read as Latin-1.
"""

import struct
from collections.abc import Mapping
from functools import cache, lru_cache

from headwater.errors import E_TRUNCATED
from headwater.ibmmq import ebcdic
from headwater.ibmmq.header import Header, is_ebcdic
from headwater.ibmmq.layouts import MQDLH, MQMD, MQMD1, MQMDE, MQXQH
from headwater.types import Bytes, Layout

Fields = dict[str, "int | str | bytes"]

#: Layouts by name.
LAYOUTS: dict[str, Layout] = {"MQMD": MQMD, "MQMD1": MQMD1, "MQMDE": MQMDE, "MQXQH": MQXQH, "MQDLH": MQDLH}


class HeaderError(ValueError):
    """A header, or what was to become one, is wrong: ``reason`` is IBM's reason code, ``field`` IBM's name of the
    field, ``offset`` where it is, in bytes from the beginning of the data or of the structure that was to be made."""

    def __init__(self, reason: int, field: str, offset: int, detail: str):
        super().__init__(f"{field} at offset {offset}: {detail} (reason {reason})")
        self.reason = reason
        self.field = field
        self.offset = offset
        self.detail = detail


def name_of(layout: Layout) -> str:
    """What IBM calls a structure: ``MQMD`` for either version."""
    return "MQ" + layout[0].decode().rstrip()


@cache
def _packer(
    layout: Layout, big: bool, version: int
) -> tuple[struct.Struct, tuple[str, ...], tuple[int, ...]]:
    """A structure's ``struct``, the names of its fields, and which of them are text."""
    rows = [row for row in layout[3] if row[1] < (324 if layout is MQMD and version == 1 else layout[2])]
    kinds = {"l": "i", "f": "I"}
    form = "".join(kinds.get(kind) or f"{size}s" for _, _, size, kind, _ in rows)
    texts = tuple(i for i, row in enumerate(rows) if row[3] == "c")
    return struct.Struct((">" if big else "<") + form), tuple(row[0] for row in rows), texts


@lru_cache(maxsize=8)
def _alphabet(ccsid: int) -> str:
    return ebcdic.decode(bytes(range(256)), ccsid)


@lru_cache(maxsize=8)
def _codes(ccsid: int) -> dict[str, int]:
    return {character: code for code, character in enumerate(_alphabet(ccsid))}


def to_text(data: Bytes, ccsid: int) -> str:
    """The characters of these bytes, one each."""
    if not is_ebcdic(ccsid):
        return str(data, "latin-1")
    alphabet = _alphabet(ccsid)
    return "".join([alphabet[code] for code in bytes(data)])


def to_bytes(text: str, ccsid: int) -> bytes:
    """The bytes of these characters, one each; KeyError or UnicodeEncodeError when the character set has not all."""
    if not is_ebcdic(ccsid):
        return text.encode("latin-1")
    codes = _codes(ccsid)
    return bytes([codes[character] for character in text])


def check(layout: Layout, data: Bytes, at: int = 0, *, big: bool, ccsid: int) -> int:
    """The offset behind a header, when StrucId, Version, StrucLength and the number of bytes are right; HeaderError."""
    header = Header(data)
    end = header.look(layout, at, len(data), big, ccsid)
    if end < 0:
        raise header_error(header, end)
    return end


def header_error(header: Header, code: int) -> HeaderError:
    """The error that a ``Header`` of the core has noted."""
    detail = "the data end before it does" if code == E_TRUNCATED else "it is not what it must be here"
    return HeaderError(header.reason, header.bad_field, header.bad_at, detail)


def decode(layout: Layout, data: Bytes, at: int = 0, *, big: bool, ccsid: int) -> Fields:
    """The fields of the header at ``at``; HeaderError. It takes ``length(fields)`` bytes."""
    end = check(layout, data, at, big=big, ccsid=ccsid)
    packer, names, texts = _packer(layout, big, 1 if end - at == 324 else layout[4])
    values = list(packer.unpack_from(data, at))
    for i in texts:
        values[i] = to_text(values[i], ccsid)
    return dict(zip(names, values, strict=True))


def encode(layout: Layout, fields: Mapping[str, object], *, big: bool, ccsid: int) -> bytes:
    """A header of these fields, and the defaults of all others; HeaderError names the field that cannot be so."""
    version = fields.get("Version", layout[4])
    if layout is MQMD and version == 1:
        layout = MQMD1
    packer, names, _ = _packer(layout, big, layout[4])
    unknown = set(fields).difference(names)
    if unknown:
        raise HeaderError(layout[1], sorted(unknown)[0], 0, f"{name_of(layout)} has no such field")
    values: list[int | bytes] = []
    for name, offset, size, kind, default in layout[3][: len(names)]:
        if name in fields:
            try:
                values.append(_value(fields[name], size, kind, ccsid))
            except (ValueError, KeyError) as error:
                raise HeaderError(layout[1], name, offset, str(error)) from None
        elif isinstance(default, bytes):
            values.append(to_bytes(default.decode("ascii"), ccsid))
        else:
            values.append((273 if big else 546) if default is None else default)
    if "Version" not in fields:
        values[1] = layout[4]
    data = packer.pack(*values)
    check(layout, data, big=big, ccsid=ccsid)
    return data


def _value(value: object, size: int, kind: str, ccsid: int) -> int | bytes:
    """What is packed for a value; ValueError or KeyError when the field cannot be so."""
    if kind in "lf":
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be an integer, not {value!r}")
        if not -(1 << 31) <= value < (1 << (32 if kind == "f" else 31)):
            raise ValueError(f"{value} is out of range")
        return value & 0xFFFFFFFF if kind == "f" else value
    if kind == "c":
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {value!r}")
        try:
            data = to_bytes(value, ccsid)
        except (KeyError, UnicodeEncodeError):
            raise ValueError(f"{value!r} has characters that are not in character set {ccsid}") from None
        if len(data) > size:
            raise ValueError(f"{value!r} is longer than {size} characters")
        return data + to_bytes(" ", ccsid) * (size - len(data))
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"must be bytes, not {value!r}")
    if len(value) > size:
        raise ValueError(f"is longer than {size} bytes")
    return bytes(value) + bytes(size - len(value))
