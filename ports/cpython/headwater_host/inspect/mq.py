"""Decode IBM MQ's headers for display. Fields have IBM's names."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from headwater.errors import E_TRUNCATED
from headwater.ibmmq.chain import MQDLH, MQMD, MQXQH, Chain
from headwater.ibmmq.header import MQMDE, Header
from headwater.ibmmq.text import format_of
from headwater.types import Layout
from headwater_host.malformed import MalformedError
from headwater_host.mq import CMQC
from headwater_host.mq.structures import decode, name_of, to_text
from headwater_host.mq.uplink.mqi_reasons import REASONS

Fields = dict[str, Any]
Frames = Iterator[tuple[int, int, Fields]]

#: The headers that a chain may begin with, and their Formats; without a Format the StrucId decides.
_FIRST: tuple[tuple[Layout, bytes | None], ...] = (
    (MQMD, None),
    (MQXQH, CMQC.MQFMT_XMIT_Q_HEADER),
    (MQMDE, CMQC.MQFMT_MD_EXTENSION),
    (MQDLH, CMQC.MQFMT_DEAD_LETTER_HEADER),
)
_BY_FORMAT = {form: layout for layout, form in _FIRST}
#: The usual Encodings.
_ORDERS = [273, 546, 785, 1041]


class Writing(NamedTuple):
    """The known properties of the first header's byte order and character set."""

    big: bool | None = None
    ccsid: int | None = None


_UNKNOWN = Writing()


class MalformedHeaderError(MalformedError):
    """The input is no header, or not all of one: ``mqrc`` is IBM's reason code, ``field`` IBM's name of the field."""

    def __init__(self, code: int, header: Header):
        super().__init__(code, header.bad_at)
        self.mqrc = header.reason
        self.field = header.bad_field
        self._what = "the input ends before it does" if code == E_TRUNCATED else _wrong(header)

    def shown(self) -> Fields:
        """Return the error for programs."""
        return {
            "reason": self.mqrc,
            "offset": self.offset,
            "reason_name": reason_name(self.mqrc),
            "field": self.field,
        }

    @property
    def description(self) -> str:
        """For people."""
        return f"{reason_name(self.mqrc)} ({self.mqrc}): {self.field}, {self._what}"


def _wrong(header: Header) -> str:
    """Return the found and the required value of an invalid field, which always has 4 bytes."""
    layout = header.layout
    found = bytes(header.buf[header.bad_at : header.bad_at + 4])
    if header.bad_field == "StrucId":
        return (
            f"it is {json.dumps(to_text(found, header.ccsid))} and must be {json.dumps(layout[0].decode())}"
        )
    if header.bad_field == "Encoding":
        allowed, must = _ORDERS, "names no order of integers, as 273 and 546 do"
    else:
        allowed = [version for version, length in enumerate(layout[4]) if length]
        if header.bad_field == "StrucLength":
            allowed = [layout[4][header.low(1)]]
        must = f"must be {' or '.join(map(str, allowed))}"
    value, turned = (
        int.from_bytes(found, "big" if big else "little", signed=True) for big in (header.big, not header.big)
    )
    hint = f": in the other byte order it is {turned}" if turned in allowed else ""
    return f"it is {value} and {must}{hint}"


def extension(data: bytes, known: Writing = _UNKNOWN) -> Frames:
    """The MQMDE that ``data`` begins with, and its payload: one object. Raises MalformedHeaderError."""
    header = Header(data)
    big, ccsid = _writing(header, MQMDE, known)
    end = header.look(MQMDE, 0, len(data), big, ccsid)
    if end < 0:
        raise MalformedHeaderError(end, header)
    yield 0, len(data), {"fields": _fields(header), "payload": data[end:].hex()}


def chain(data: bytes, known: Writing = _UNKNOWN, form: str | None = None) -> Frames:
    """Yield the headers of ``data``, then the data after them. ``form``, a Format, names the first header."""
    given = None if form is None else form.ljust(8).encode("latin-1")
    header = Header(data)
    ways = [(form, *_writing(header, layout, known)) for layout, form in _FIRST if given in (None, form)]
    usual = (given, bool(known.big), 819 if known.ccsid is None else known.ccsid)
    first, big, ccsid = max(
        ways, key=lambda way: _understood(header, _BY_FORMAT[way[0]], *way[1:]), default=usual
    )
    walk = Chain(data)
    walk.start(0, len(data), big, ccsid, first)
    at = 0
    status = walk.next()
    while status > 0:
        yield at, walk.at - at, {"type": name_of(walk.header.layout), "fields": _fields(walk.header)}
        at = walk.at
        status = walk.next()
    if status < 0:
        raise MalformedHeaderError(status, walk.header)
    follows = {"Format": format_of(walk), "Encoding": walk.encoding(), "CodedCharSetId": walk.ccsid()}
    yield at, len(data) - at, {"type": "data"} | follows | {"payload": data[at:].hex()}


def _writing(header: Header, layout: Layout, known: Writing) -> tuple[bool, int]:
    """Return byte order and character set of a header; unknown ones are guessed. EBCDIC is read as 500."""
    orders = (False, True) if known.big is None else (known.big,)
    sets = (819, 500) if known.ccsid is None else (known.ccsid,)
    ways = [(big, ccsid) for ccsid in sets for big in orders]
    return max(ways, key=lambda way: _understood(header, layout, *way))


def _understood(header: Header, layout: Layout, big: bool, ccsid: int) -> int:
    """Return the number of valid bytes of a header with this byte order and character set."""
    end = header.look(layout, 0, len(header.buf), big, ccsid)
    return end if end >= 0 else header.bad_at


def _fields(header: Header) -> Fields:
    """All fields: numbers, text with its blanks, and bytes as hex."""
    found = decode(header.layout, header.buf, header.at, big=header.big, ccsid=header.ccsid)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in found.items()}


def reason_name(reason: int) -> str:
    """IBM's name of a reason code; empty when it is not known here."""
    return REASONS[reason][1] if reason in REASONS else names("MQRC_").get(reason, "")


def names(prefix: str) -> dict[int, str]:
    """Return the constants whose names begin with ``prefix``, by their values."""
    return {
        value: name
        for name, value in vars(CMQC).items()
        if name.startswith(prefix) and value.__class__ is int
    }


def flags(value: int, prefix: str = "MQMF_") -> str:
    """Flags by their names without ``prefix``, and what has none in hexadecimal."""
    found = []
    for bit, name in sorted(names(prefix).items()):
        if bit & (bit - 1) == 0 and value & bit:
            found.append(name.removeprefix(prefix))
            value &= ~bit
    return "|".join(found + ([hex(value)] if value else []))
