"""IBM MQ's headers, read in another way than the core's: in one go, with Python's own codecs. For tests only."""

import struct
from typing import Any

#: Name, how the newest version is made up, its length by version, the reason code of what is wrong with it.
_MDE = (
    "StrucId:4s Version:i StrucLength:i Encoding:i CodedCharSetId:i Format:8s Flags:I GroupId:24b MsgSeqNumber:i "
    "Offset:i MsgFlags:I OriginalLength:i"
)
_MD = (
    "StrucId:4s Version:i Report:I MsgType:i Expiry:i Feedback:i Encoding:i CodedCharSetId:i Format:8s Priority:i "
    "Persistence:i MsgId:24b CorrelId:24b BackoutCount:i ReplyToQ:48s ReplyToQMgr:48s UserIdentifier:12s "
    "AccountingToken:32b ApplIdentityData:32s PutApplType:i PutApplName:28s PutDate:8s PutTime:8s ApplOriginData:4s "
    "GroupId:24b MsgSeqNumber:i Offset:i MsgFlags:I OriginalLength:i"
)
_XQH = "StrucId:4s Version:i RemoteQName:48s RemoteQMgrName:48s"
_DLH = (
    "StrucId:4s Version:i Reason:i DestQName:48s DestQMgrName:48s Encoding:i CodedCharSetId:i Format:8s "
    "PutApplType:i PutApplName:28s PutDate:8s PutTime:8s"
)
HEADERS: dict[str, tuple[str, str, dict[int, int], int]] = {
    "MQMDE": ("MDE ", _MDE, {2: 72}, 2248),
    "MQMD": ("MD  ", _MD, {1: 324, 2: 364}, 2026),
    "MQMD1": ("MD  ", _MD, {1: 324}, 2026),
    "MQXQH": ("XQH ", _XQH, {1: 104}, 2260),
    "MQDLH": ("DLH ", _DLH, {1: 172}, 2141),
}
FORMATS = {"MQHMDE  ": "MQMDE", "MQDEAD  ": "MQDLH", "MQXMIT  ": "MQXQH"}

_CODECS = {37: "cp037", 500: "cp500", 1140: "cp1140"}
#: Where Python has no codec: 1047 is 037 but for these, which change places.
_1047 = dict(zip("¬^[Ý]¨", "^¬Ý[¨]", strict=True))


class MalformedError(Exception):
    """Reason, field, offset."""


def text(data: bytes, ccsid: int) -> str:
    """The characters of these bytes."""
    if ccsid == 1047:
        return "".join(_1047.get(character, character) for character in data.decode("cp037"))
    return data.decode(_CODECS.get(ccsid, "latin-1"))


def header(name: str, data: bytes, at: int, big: bool, ccsid: int) -> tuple[dict[str, Any], int]:
    """The fields of a header and where it ends; MalformedError."""
    ident, form, lengths, reason = HEADERS[name]
    fields: dict[str, Any] = {}
    end = at + max(lengths.values())
    start = at
    missing: tuple[str, int] | None = None
    for part in form.split():
        field, _, kind = part.partition(":")
        size = 4 if kind in "iI" else int(kind[:-1])
        if at >= end:
            break
        raw = data[at : at + size]
        if len(raw) < size:
            missing = missing or (field, at)
            break
        value: Any = raw
        if kind in "iI":
            (value,) = struct.unpack((">" if big else "<") + kind, raw)
        elif kind.endswith("s"):
            value = text(raw, ccsid)
        wrong = field == "StrucId" and value != ident
        wrong |= field == "Version" and value not in lengths
        wrong |= field == "StrucLength" and value != end - start
        if wrong:
            raise MalformedError(reason, field, at)
        if field == "Version":
            end = start + lengths[value]
        fields[field] = value
        at += size
    if missing:
        raise MalformedError(reason, *missing)
    return fields, end


def chain(
    data: bytes, at: int, big: bool, ccsid: int, given: str | None
) -> tuple[list[tuple[str, int, dict[str, Any]]], int | tuple[Any, ...], tuple[Any, ...]]:
    """Headers; where the data begin, or what is wrong; Format, Encoding and CodedCharSetId of what follows."""
    found: list[tuple[str, int, dict[str, Any]]] = []
    own = ccsid
    follows: tuple[Any, ...] = (given or "").ljust(8), 273 if big else 546, ccsid
    kind = FORMATS.get(given.ljust(8)) if given is not None else "MQMD"
    if given is None and text(data[at : at + 4], ccsid) == "XQH ":
        kind = "MQXQH"
    last: tuple[int, int] | None = None
    while kind is not None:
        if last is not None:
            reason, where = last
            if follows[1] & 15 not in (1, 2):
                return found, (reason, "Encoding", where), follows
            big = follows[1] & 15 == 1
            if follows[2] != 0:
                ccsid = follows[2] if -(1 << 30) <= follows[2] < 1 << 30 else 0
        try:
            fields, end = header(kind, data, at, big, ccsid)
        except MalformedError as error:
            return found, error.args, follows
        found.append((kind.rstrip("1"), at, fields))
        last = None
        if kind == "MQXQH":
            kind = "MQMD1"
            follows = " " * 8 if given is None else given.ljust(8), 273 if big else 546, ccsid
        else:
            charset = fields["CodedCharSetId"]
            if charset == -2 or (charset == 0 and kind.startswith("MQMD") and kind != "MQMDE"):
                charset = ccsid if charset == -2 else own
            follows = fields["Format"], fields["Encoding"], charset
            last = HEADERS[kind][3], at + {"MQMDE": 12, "MQDLH": 108}.get(kind, 24)
            kind = FORMATS.get(fields["Format"])
        at = end
    return found, at, follows
