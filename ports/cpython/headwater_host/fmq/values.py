"""Encode Python values as values of FMQ, and decode them (docs/protocols/fmq.md, section 1).

==========================  ==========================================================================================
FMQ                         Python
==========================  ==========================================================================================
None, String, Bool, Float   None, str, bool, float
Int, BigInt                 int, of any size
Decimal                     ``decimal.Decimal`` except NaN and infinity
Duration                    ``Duration``; ``timedelta`` is encoded as well
DateTime                    ``DateTime``; ``datetime`` with a time zone is encoded as well
List                        list; tuple is encoded as well
Map                         dict; ``Pairs`` if a dict cannot hold the keys
Object                      ``Object``; dataclass instances are encoded as well, and decoded with ``into``
==========================  ==========================================================================================

``encode`` writes the shortest form. ``decode`` accepts longer ones unless it is ``strict``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import math
import struct
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from headwater.errors import E_FIELD, E_UTF8
from headwater.fmq import spec
from headwater.fmq.names import REASONS
from headwater_host.fmq.kinds import EXACT, DateTime, Duration, Object, Pairs, exact, in_order
from headwater_host.malformed import MalformedError

#: The maximum nesting of lists, maps and objects.
DEPTH = 32
#: The maximum scale of a Decimal: beyond it Python's default context does not calculate.
LARGEST_SCALE = 999_999
#: The maximum number of zeros that a positive exponent stands for: all of them are encoded.
MOST_ZEROS = 10_000

_T = TypeVar("_T")


class MalformedValueError(MalformedError, ValueError):
    """The bytes are not a valid value."""

    names = REASONS


# -- writing -----------------------------------------------------------------------------------------------------------


def encode(value: Any, *, depth: int = DEPTH) -> bytes:
    """Encode a value.

    Raises TypeError for a type that FMQ does not have; ValueError for values nested too deeply, strings with
    surrogates, Decimals that are not finite or out of range, and datetimes without a time zone.
    """
    out = bytearray()
    _put(out, value, depth)
    return bytes(out)


def _put(out: bytearray, value: Any, depth: int) -> None:
    put = _PUT.get(type(value))
    if put is None:
        put = _put_of(value)
    put(out, value, depth)


def _put_of(value: Any) -> Callable[[bytearray, Any, int], None]:
    """Return the encoder of a type that is not in the table."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _put_dataclass
    for base in type(value).__mro__:
        if base in _PUT:
            return _PUT[base]
    raise TypeError(f"FMQ has no value for a {type(value).__name__}")


def _put_none(out: bytearray, value: None, depth: int) -> None:
    out.append(spec.NONE << 4)


def _put_bool(out: bytearray, value: bool, depth: int) -> None:
    out.append(spec.BOOL << 4 | value)


def _put_count(out: bytearray, tag: int, count: int) -> None:
    size = (count.bit_length() + 7) // 8
    out.append(tag << 4 | size)
    out += count.to_bytes(size, "little")


def _put_str(out: bytearray, value: str, depth: int) -> None:
    text = value.encode()
    _put_count(out, spec.STRING, len(text))
    out += text


def _put_int(out: bytearray, value: int, depth: int, tag: int = spec.INT) -> None:
    if -(1 << 63) <= value < 1 << 64:
        rest = ~value if value < 0 else value
        size = (rest.bit_length() + 7) // 8 or 1
        out.append(tag << 4 | (8 if value < 0 else 0) | size & 7)
        out += rest.to_bytes(size, "little")
        return
    tag = spec.BIGINT if tag == spec.INT else tag + 1
    # Two's complement has a bit for the sign.
    size = (value.bit_length() + 7) // 8 if value > 0 else (~value).bit_length() // 8 + 1
    data = value.to_bytes(size, "big", signed=value < 0)
    _put_count(out, tag, size)
    if value < 0:
        out[-((size.bit_length() + 7) // 8) - 1] |= 8
    out += data


def _put_float(out: bytearray, value: float, depth: int) -> None:
    if value == 0 or not math.isfinite(value):
        out += _SPECIAL[math.copysign(1, value), value == 0] if value == value else b"\x40"
        return
    for width, form in _FORMS.items():
        try:
            data = form.pack(value)
        except OverflowError:
            continue
        if form.unpack(data)[0] == value:
            out.append(spec.FLOAT << 4 | width)
            out += data
            return


#: By how many bytes.
_FORMS = {2: struct.Struct("<e"), 4: struct.Struct("<f"), 8: struct.Struct("<d")}
#: By sign, and whether it is zero.
_SPECIAL = {
    (1.0, True): b"\x41",
    (-1.0, True): b"\x42\x00\x80",
    (1.0, False): b"\x4f",
    (-1.0, False): b"\x42\x00\xfc",
}


def _put_decimal(out: bytearray, value: Decimal, depth: int) -> None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError(f"FMQ has no value for Decimal({str(value)!r})")
    if not -LARGEST_SCALE <= exponent <= MOST_ZEROS:
        raise ValueError(f"a Decimal's exponent is from {-LARGEST_SCALE} to {MOST_ZEROS}, not {exponent}")
    scale = max(0, -exponent)
    unscaled = int(EXACT.scaleb(value, scale))
    _put_int(out, unscaled, depth, spec.DECIMAL)
    count = value.adjusted() + scale + 1 if unscaled else 1
    precision = count.to_bytes((count.bit_length() + 7) // 8, "little")
    places = scale.to_bytes((scale.bit_length() + 7) // 8, "little")
    out.append(len(precision) << 4 | len(places))
    out += precision + places


def _put_duration(out: bytearray, value: Duration, depth: int) -> None:
    _put_int(out, value.nanoseconds, depth, spec.DURATION)


def _put_datetime(out: bytearray, value: DateTime, depth: int) -> None:
    _put_int(out, value.nanoseconds, depth, spec.DATETIME)


def _put_list(out: bytearray, value: Iterable[Any], depth: int, tag: int = spec.LIST) -> None:
    values = tuple(value)
    if depth == 0:
        raise ValueError("lists, maps and objects are nested too deeply")
    _put_count(out, tag, len(values))
    for one in values:
        _put(out, one, depth - 1)


def _put_object(out: bytearray, value: Object, depth: int) -> None:
    _put_list(out, value, depth, spec.OBJECT)


@functools.lru_cache(maxsize=1024)
def _order(cls: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields in the order of an object."""
    return in_order(field.name for field in dataclasses.fields(cls))


def _put_dataclass(out: bytearray, value: Any, depth: int) -> None:
    names = _order(type(value))  # type: ignore[arg-type]  # a class is hashable
    _put_list(out, (getattr(value, name) for name in names), depth, spec.OBJECT)


def _put_pairs(out: bytearray, value: Iterable[tuple[Any, Any]], depth: int) -> None:
    pairs = tuple(value)
    if depth == 0:
        raise ValueError("lists, maps and objects are nested too deeply")
    _put_count(out, spec.MAP, len(pairs))
    for key, one in pairs:
        _put(out, key, depth - 1)
        _put(out, one, depth - 1)


def _put_map(out: bytearray, value: Mapping[Any, Any], depth: int) -> None:
    _put_pairs(out, value.items(), depth)


_PUT: dict[type, Callable[[bytearray, Any, int], None]] = {
    type(None): _put_none,
    bool: _put_bool,
    str: _put_str,
    int: _put_int,
    float: _put_float,
    Decimal: _put_decimal,
    Duration: _put_duration,
    DateTime: _put_datetime,
    dt.timedelta: lambda out, value, depth: _put_duration(out, Duration.of(value), depth),
    dt.datetime: lambda out, value, depth: _put_datetime(out, DateTime.of(value), depth),
    Object: _put_object,
    Pairs: _put_pairs,
    list: _put_list,
    tuple: _put_list,
    dict: _put_map,
}


# -- reading -----------------------------------------------------------------------------------------------------------


def decode(data: bytes, *, depth: int = DEPTH, strict: bool = False, into: type[Any] | None = None) -> Any:
    """Decode the value ``data``, which must end with it. Raises MalformedValueError.

    ``strict`` refuses longer forms than necessary. ``into`` is the dataclass for an object (``filled``).
    """
    value, stop = decode_at(data, 0, len(data), depth=depth)
    if stop < len(data):
        raise MalformedValueError(spec.E_FORM, stop)
    if strict:
        shortest = encode(value, depth=depth)
        if shortest != data:
            differs = (i for i, (a, b) in enumerate(zip(shortest, data, strict=False)) if a != b)
            raise MalformedValueError(spec.E_FORM, next(differs, len(shortest)))
    return value if into is None else filled(value, into)


def decode_at(data: bytes, at: int, end: int, *, depth: int = DEPTH) -> tuple[Any, int]:
    """Decode the value at ``at``; return it and the offset after it.

    Raises MalformedValueError if it exceeds ``end``.
    """
    if at >= end:
        raise MalformedValueError(E_FIELD, at)
    tag = data[at]
    return _READ[tag >> 4](data, at, end, tag & 15, depth)


_Read = Callable[[bytes, int, int, int, int], tuple[Any, int]]


def _length(data: bytes, at: int, end: int, size: int) -> int:
    """Decode the number of ``size`` bytes after the tag at ``at``; it cannot exceed the remaining bytes."""
    start = at + 1 + size
    length = int.from_bytes(data[at + 1 : start], "little")
    if length > end - start:
        raise MalformedValueError(E_FIELD, at)
    return length


def _none(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[None, int]:
    if low:
        raise MalformedValueError(spec.E_FORM, at)
    return None, at + 1


def _bool(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[bool, int]:
    if low > 1:
        raise MalformedValueError(spec.E_FORM, at)
    return low == 1, at + 1


def _str(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[str, int]:
    length = _length(data, at, end, low)
    start = at + 1 + low
    try:
        return data[start : start + length].decode(), start + length
    except UnicodeDecodeError as error:
        raise MalformedValueError(E_UTF8, start + error.start) from None


def _int(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[int, int]:
    stop = at + 1 + (low & 7 or 8)
    if stop > end:
        raise MalformedValueError(E_FIELD, at)
    value = int.from_bytes(data[at + 1 : stop], "little")
    if low & 8:
        value = ~value
        if value < -(1 << 63):
            raise MalformedValueError(spec.E_FORM, at)
    return value, stop


def _big(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[int, int]:
    length = _length(data, at, end, low & 7)
    start = at + 1 + (low & 7)
    if length == 0 or (low & 8 and data[start] < 128):
        raise MalformedValueError(spec.E_FORM, at)
    stop = start + length
    return int.from_bytes(data[start:stop], "big", signed=low & 8 != 0), stop


_ALONE = {0: math.nan, 1: 0.0, 15: math.inf}


def _float(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[float, int]:
    form = _FORMS.get(low)
    if form is None:
        if low not in _ALONE:
            raise MalformedValueError(spec.E_FORM, at)
        return _ALONE[low], at + 1
    if at + 1 + low > end:
        raise MalformedValueError(E_FIELD, at)
    return form.unpack_from(data, at + 1)[0], at + 1 + low


def _decimal(read: _Read, data: bytes, at: int, end: int, low: int, depth: int) -> tuple[Decimal, int]:
    unscaled, i = read(data, at, end, low, depth)
    if i >= end:
        raise MalformedValueError(E_FIELD, at)
    precision, places = data[i] >> 4, data[i] & 15
    if precision == 0:
        raise MalformedValueError(spec.E_FORM, at)
    start = i + 1 + precision
    stop = start + places
    if stop > end:
        raise MalformedValueError(E_FIELD, at)
    scale = int.from_bytes(data[start:stop], "little")
    if scale > LARGEST_SCALE:
        raise MalformedValueError(spec.E_FORM, at)
    return EXACT.scaleb(exact(unscaled), -scale), stop


def _values(data: bytes, at: int, end: int, low: int, depth: int, each: int = 1) -> tuple[list[Any], int]:
    """Decode the values of a list or object, or with ``each`` 2 those of a map."""
    count = _length(data, at, end, low) * each
    i = at + 1 + low
    if count > end - i:
        raise MalformedValueError(E_FIELD, at)
    if depth == 0:
        raise MalformedValueError(spec.E_DEPTH, at)
    found = []
    for _ in range(count):
        # ``decode_at`` without the call: this runs for every value of a list.
        if i >= end:
            raise MalformedValueError(E_FIELD, i)
        value, i = _READ[data[i] >> 4](data, i, end, data[i] & 15, depth - 1)
        found.append(value)
    return found, i


def _map(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[dict[Any, Any] | Pairs, int]:
    found, stop = _values(data, at, end, low, depth, 2)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    try:
        made = dict(pairs)
    except TypeError:
        return Pairs(pairs), stop
    return (made if len(made) == len(pairs) else Pairs(pairs)), stop


def _object(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[Object, int]:
    found, stop = _values(data, at, end, low, depth)
    return Object(found), stop


def _as(make: Callable[[Any], Any], read: _Read) -> _Read:
    def as_made(data: bytes, at: int, end: int, low: int, depth: int) -> tuple[Any, int]:
        value, stop = read(data, at, end, low, depth)
        return make(value), stop

    return as_made


#: By tag.
_READ: tuple[_Read, ...] = (
    _none,
    _str,
    _bool,
    _int,
    _float,
    _int,
    _big,
    functools.partial(_decimal, _int),
    functools.partial(_decimal, _big),
    _as(Duration, _int),
    _as(Duration, _big),
    _as(DateTime, _int),
    _as(DateTime, _big),
    _values,
    _map,
    _object,
)


def filled(value: Any, cls: type[_T]) -> _T:
    """Create a dataclass instance from a decoded object, also for fields that are dataclasses or lists of them.

    Fields annotated as ``datetime`` or ``timedelta`` are converted. Raises TypeError if the value is not an object,
    ValueError if its number of fields differs.
    """
    if not isinstance(value, Object):
        raise TypeError(f"{cls.__name__} is made of an Object, not of a {type(value).__name__}")
    hints = typing.get_type_hints(cls)
    names = _order(cls)  # type: ignore[arg-type]  # a class is hashable
    if len(names) != len(value):
        raise ValueError(f"{cls.__name__} has {len(names)} fields, the object {len(value)}")
    return cls(**{name: _fitted(one, hints[name]) for name, one in zip(names, value, strict=True)})


def _fitted(value: Any, hint: Any) -> Any:
    if isinstance(value, Object) and dataclasses.is_dataclass(hint):
        return filled(value, hint)  # type: ignore[arg-type]  # a hint is no instance
    if isinstance(value, DateTime) and hint is dt.datetime:
        return value.datetime()
    if isinstance(value, Duration) and hint is dt.timedelta:
        return value.timedelta()
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        fits = (_fitted(value, one) for one in arguments)
        return next((one for one in fits if one is not value), value)
    if isinstance(value, list) and arguments:
        return [_fitted(one, arguments[0]) for one in value]
    return value
