"""Read the values at the top level of a CBOR map (RFC 8949)."""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Any

#: Maximum nesting depth of skipped values, and maximum size of a map.
_DEPTH = 32
_MAX_MAP = 1 << 20
# Major types.
_NATURAL, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_INDEFINITE = 31
_BREAK = 0xFF
#: The tag that marks data as CBOR (3.4.6).
_SELF_DESCRIBED = b"\xd9\xd9\xf7"
_ARGUMENTS = {24: Struct(">B"), 25: Struct(">H"), 26: Struct(">I"), 27: Struct(">Q")}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_CONSTANTS = {20: False, 21: True, 22: None, 23: None}


class _RefusedError(Exception):
    """The bytes are not well-formed, or are nested too deeply."""


def load_cbor(payload: bytes) -> dict[str, Any] | None:
    """Return the values of a CBOR map, or None if the payload is not exactly one map of at most 1 MiB.

    Values are strings, booleans, integers and floats, or None for other types. Keys that are not strings are omitted.
    """
    at = len(_SELF_DESCRIBED) if payload.startswith(_SELF_DESCRIBED) else 0
    if len(payload) > _MAX_MAP or at >= len(payload) or payload[at] >> 5 != _MAP:
        return None
    found: dict[str, Any] = {}
    try:
        count, at = _argument(payload, at)
        while count != 0:
            if count is None and payload[at] == _BREAK:
                at += 1
                break
            key, at = _item(payload, at, _DEPTH)
            value, at = _item(payload, at, _DEPTH)
            if isinstance(key, str):
                found[key] = value
            count = None if count is None else count - 1
    except (IndexError, _RefusedError, UnicodeDecodeError):
        return None
    return found if at == len(payload) else None


def _argument(data: bytes, at: int) -> tuple[int | None, int]:
    """Return the argument of the head at `at`, None if indefinite, and the offset after it."""
    info = data[at] & 31
    at += 1
    if info < 24:
        return info, at
    if info == _INDEFINITE:
        return None, at
    form = _ARGUMENTS.get(info)
    if form is None or at + form.size > len(data):
        raise _RefusedError
    return form.unpack_from(data, at)[0], at + form.size


def _item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value at `at`, None unless it is a string, boolean or number, and the offset after it."""
    head = at
    major, info = data[at] >> 5, data[at] & 31
    if major == _SIMPLE and info == _INDEFINITE:
        raise _RefusedError  # a break in the wrong place
    argument, at = _argument(data, at)
    if major == _SIMPLE:
        if info in _FLOATS:
            return unpack_from(_FLOATS[info], data, head + 1)[0], at
        if info == 24 and data[head + 1] < 32:
            raise _RefusedError  # reserved (3.3)
        return _CONSTANTS.get(info), at
    if major in (_BYTES, _TEXT):
        return _string(data, at, major, argument)
    if major in (_NATURAL, _NEGATIVE):
        if argument is None:
            raise _RefusedError
        return (argument if major == _NATURAL else -1 - argument), at
    if depth == 0 or (major == _TAG and argument is None):
        raise _RefusedError
    count = 1 if major == _TAG else argument if major == _ARRAY or argument is None else 2 * argument
    skipped = 0
    while count is None or skipped < count:
        if count is None and data[at] == _BREAK and (major == _ARRAY or skipped % 2 == 0):
            at += 1
            break
        _, at = _item(data, at, depth - 1)
        skipped += 1
    return None, at


def _string(data: bytes, at: int, major: int, size: int | None) -> tuple[str | None, int]:
    """Return a text, or None for bytes, and the offset after it."""
    if size is None:
        parts = []
        while data[at] != _BREAK:
            if data[at] >> 5 != major:
                raise _RefusedError
            size, at = _argument(data, at)
            if size is None:
                raise _RefusedError
            part, at = _string(data, at, major, size)
            parts.append(part)
        return ("".join(part or "" for part in parts) if major == _TEXT else None), at + 1
    if at + size > len(data):
        raise _RefusedError
    return (data[at : at + size].decode() if major == _TEXT else None), at + size
