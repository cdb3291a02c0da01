"""FMQ's values as the vector file writes them: read with the cursor, and written with the functions that there are."""

import struct

from headwater.fmq import numbers, spec
from headwater.fmq import values as fmq
from headwater.fmq.names import VALUES
from headwater.fmq.values import Value, put_bool, put_count, put_int, put_none, put_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]

TAGS = {name: tag for tag, name in VALUES.items()}
INTEGERS = ("Int", "BigInt", "Duration", "DateTime")
#: The tag of what is beyond Int's range.
BIG = {"Int": 6, "BigInt": 6, "Decimal": 8, "Duration": 10, "DateTime": 12}


def double(bits: str) -> float:
    """The float whose big-endian bytes these are; on a board whose floats are single, the nearest to it."""
    return struct.unpack(">d", bytes([int(bits[i : i + 2], 16) for i in range(0, 16, 2)]))[0]  # type: ignore[no-any-return]


def is_exact(bits: str) -> bool:
    """Whether a float here can be this one."""
    value = double(bits)
    return value != value or bytes_of(value) == bits


def bytes_of(value: float) -> str:
    """A float's big-endian bytes."""
    return "".join(["%02x" % byte for byte in struct.pack(">d", value)])


def decimal(text: str) -> "tuple[int, int]":
    """A decimal's unscaled value and scale."""
    digits, _, exponent = text.partition("E")
    whole, _, fraction = digits.partition(".")
    scale = len(fraction) - int(exponent or "0")
    unscaled = int(whole + fraction)
    return (unscaled, scale) if scale >= 0 else (unscaled * 10**-scale, 0)


def said(v: Value, at: int, end: int) -> "tuple[object, int]":
    """The value at ``at`` as a row has it, and the offset behind it: every accessor, on what ``read`` says is right."""
    at = fmq.read(v, at, end)
    assert at > 0, at
    kind = v.kind
    if kind >= spec.LIST:
        count = v.count
        found: list[object] = []
        for _ in range(count):
            one, at = said(v, at, end)
            if kind == spec.MAP:
                other, at = said(v, at, end)
                one = [one, other]
            found.append(one)
        return found, at
    if kind == spec.NONE:
        return None, at
    if kind == spec.BOOL:
        return v.low == 1, at
    if kind == spec.STRING:
        return str(bytes(v.buf[v.at : v.end]), "utf-8"), at
    if kind == spec.FLOAT:
        return numbers.float_of(v), at
    if kind == spec.DECIMAL:
        return (fmq.number(v), numbers.scale(v)), at
    return fmq.number(v), at


def expected(row: "Row") -> object:
    """What ``said`` makes of a row."""
    if row["type"] == "Object":
        return [row["fields"][name] for name in row["order"]]
    if row["type"] == "Float":
        return double(row["double"])
    if row["type"] == "Decimal":
        return decimal(row["value"])
    return int(row["value"]) if row["type"] in INTEGERS else row["value"]


def put_plain(buf: bytearray, at: int, limit: int, value: "Any") -> int:
    """Write what a list or a map of a row has in it."""
    if value is None:
        return put_none(buf, at, limit)
    if isinstance(value, bool):
        return put_bool(buf, at, limit, value)
    if isinstance(value, int):
        return put_int(buf, at, limit, value)
    if isinstance(value, float):
        return numbers.put_float(buf, at, limit, value)
    if isinstance(value, str):
        return put_text(buf, at, limit, value.encode())
    at = put_count(buf, at, limit, spec.LIST, len(value))
    for one in value:
        at = put_plain(buf, at, limit, one)
    return at


def put(buf: bytearray, at: int, limit: int, row: "Row") -> int:
    """Write a row."""
    kind = row["type"]
    if kind == "Float":
        return numbers.put_float(buf, at, limit, double(row["double"]))
    if kind == "Decimal":
        return numbers.put_decimal(buf, at, limit, *decimal(row["value"]))
    if kind in INTEGERS:
        return put_int(buf, at, limit, int(row["value"]), spec.INT if kind == "BigInt" else TAGS[kind])
    if kind == "Map":
        at = put_count(buf, at, limit, spec.MAP, len(row["value"]))
        for key, value in row["value"]:
            at = put_plain(buf, put_plain(buf, at, limit, key), limit, value)
        return at
    if kind == "Object":
        at = put_count(buf, at, limit, spec.OBJECT, len(row["order"]))
        for name in row["order"]:
            at = put_plain(buf, at, limit, row["fields"][name])
        return at
    return put_plain(buf, at, limit, row["value"])
