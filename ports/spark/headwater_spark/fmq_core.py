"""Decode unusual FMQ frames and values with the core."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from struct import unpack_from
from typing import Any

from headwater.fmq import spec
from headwater.fmq.numbers import check
from headwater.fmq.values import Value, number
from headwater_host.capture.fmq_frame import id_parts, message_at, read_fmq, topic_text
from headwater_host.malformed import MalformedError

#: Maximum nesting depth of a value.
DEPTH = 32
# Longer integers have no double. Larger Maps and longer decimals stay in the payload.
_MAX_INTEGER = 128
_MAX_MAP = 1 << 20
_MAX_SCALE = 1000
_EPOCH = datetime(1970, 1, 1)
_FLOATS = {0: math.nan, 1: 0.0, 15: math.inf}
_INTEGERS = (spec.INT, spec.BIGINT, spec.DECIMAL, spec.DURATION, spec.DATETIME)
_FORMATS = {2: "<e", 4: "<f", 8: "<d"}


class Time(int):
    """A DateTime: nanoseconds since 1970."""


def time_text(ns: int) -> str:
    """Format a time as ISO 8601 in UTC with nanoseconds, or as a number outside of the calendar."""
    seconds, rest = divmod(ns, 10**9)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return str(ns)
    return f"{moment.isoformat()}.{rest:09d}Z"


class CoreFrame:
    """One frame as the core's decoder sees it.

    `error` and `error_at` are as in `fmq.Packets`. Offsets: the id lies between the first byte and `id_end`. Topic,
    tags and payload begin at `topic_at`, `topic_end` and `tags_end`, each value with its tag; for types other than
    PUBLISH and CONSUMERESP all three are the start of the body. `fits` is true if process and thread number have at
    most 32 and 28 bits and `made` at most 63 without a sign.
    """

    def __init__(self, data: bytes):
        self.kind = data[0] >> 4 if data else 0
        self.error = self.error_at = 0
        try:
            f = read_fmq(data)
        except MalformedError as error:
            self.error, self.error_at = error.code, error.offset
            return
        self.id_end = f.id_end
        self.topic_at = self.topic_end = self.tags_end = f.body
        if self.kind in (spec.PUBLISH, spec.CONSUMERESP):
            self.topic_at, self.topic_end, self.tags_end = message_at(f)
        self.process, self.thread, self.made = id_parts(data, f.id_at)
        self.fits = self.process >> 32 == 0 and self.thread >> 28 == 0 and 0 <= self.made < 1 << 63


def registered_topic(data: bytes) -> str:
    """Return the topic of a well-formed REGISTER."""
    f = read_fmq(data)
    return topic_text(data[f.at[0] :]) or ""


def is_plain_topic(raw: bytes) -> bool:
    """Return whether a topic that numpy found is certainly valid."""
    return raw[0] >> 4 != spec.STRING or _is_plain(raw[2:] if raw[0] == 0x11 else raw[3:], b"+#\0")


def are_plain_tags(raw: bytes) -> bool:
    """Return whether tags that numpy found are certainly valid. Each has two bytes before its text."""
    at = 2
    while at < len(raw):
        end = at + 2 + raw[at + 1]
        if not _is_plain(raw[at + 2 : end], b"\0"):
            return False
        at = end
    return True


def _is_plain(text: bytes, without: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return not any(byte in text for byte in without)


def load_map(payload: bytes) -> dict[str, Any] | None:
    """Return the values of an FMQ Map, or None if the payload is not a Map.

    Values are strings, booleans, numbers, `Time`, or None for other types. Keys that are not strings are omitted. A
    decimal becomes a float, a duration a float of seconds. Integers over 128 bytes and decimals with more than
    1,000 places are None, and so is a Map over 1 MiB.
    """
    v = Value(payload, DEPTH)
    end = len(payload)
    if end > _MAX_MAP or check(v, 0, end) != end or v.kind != spec.MAP:
        return None
    found = {}
    at = v.at
    for _ in range(v.count):
        at = check(v, at, end)
        name = payload[v.at : v.end].decode() if v.kind == spec.STRING else None
        at = check(v, at, end)
        if name is not None:
            found[name] = _plain(v)
    return found


def _plain(v: Value) -> Any:
    kind = v.kind
    if kind == spec.STRING:
        return bytes(v.buf[v.at : v.end]).decode()
    if kind == spec.BOOL:
        return v.low == 1
    if kind == spec.FLOAT:
        return unpack_from(_FORMATS[v.low], v.buf, v.at)[0] if v.low in _FORMATS else _FLOATS[v.low]
    if kind not in _INTEGERS or v.end - v.at > _MAX_INTEGER:
        return None
    value = number(v)
    if kind == spec.DURATION:
        return _quotient(value, 10**9)
    if kind == spec.DECIMAL:
        return _decimal(v, value)
    return Time(value) if kind == spec.DATETIME else value


def _quotient(a: int, b: int) -> float:
    """Return the double nearest to `a / b`, or infinity beyond the largest."""
    try:
        return a / b
    except OverflowError:
        return math.copysign(math.inf, a)


def _decimal(v: Value, unscaled: int) -> float | None:
    """Return the double nearest to the decimal at a cursor."""
    widths = v.buf[v.end]
    at = v.end + 1 + (widths >> 4)
    scale = int.from_bytes(v.buf[at : at + (widths & 15)], "little")
    return None if scale > _MAX_SCALE else _quotient(unscaled, 10**scale)
