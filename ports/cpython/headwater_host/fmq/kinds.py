"""Python types for values of FMQ that Python lacks; exact conversion of large integers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from headwater_host.fmq.hashes import hash_of

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND = dt.timedelta(microseconds=1)
#: A context that loses no digit.
EXACT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.Inexact, decimal.InvalidOperation],
)


@dataclasses.dataclass(frozen=True, order=True)
class Duration:
    """A duration, in nanoseconds."""

    __slots__ = ("nanoseconds",)
    nanoseconds: int

    @classmethod
    def of(cls, value: dt.timedelta) -> Duration:
        """Convert a timedelta."""
        return cls(value // _MICROSECOND * 1000)

    def timedelta(self) -> dt.timedelta:
        """Convert to a timedelta, rounded down to microseconds. Raises OverflowError beyond its range."""
        return dt.timedelta(microseconds=self.nanoseconds // 1000)


@dataclasses.dataclass(frozen=True, order=True)
class DateTime:
    """A time, in nanoseconds since 1970-01-01T00:00:00Z."""

    __slots__ = ("nanoseconds",)
    nanoseconds: int

    @classmethod
    def of(cls, value: dt.datetime) -> DateTime:
        """Convert a datetime, which must have a time zone."""
        if value.utcoffset() is None:
            raise ValueError(f"{value!r} is without a time zone")
        return cls((value - _EPOCH) // _MICROSECOND * 1000)

    def datetime(self) -> dt.datetime:
        """Convert to a datetime in UTC, rounded down to microseconds. Raises OverflowError beyond its range."""
        return _EPOCH + dt.timedelta(microseconds=self.nanoseconds // 1000)


class Object(tuple[Any, ...]):
    """The field values of an object, in the order of their names' hashes."""

    __slots__ = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Object:
        """Create an object from fields by name."""
        return cls(fields[name] for name in in_order(fields))

    def fields(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values by name; the caller gives the names in any order."""
        ordered = in_order(names)
        if len(ordered) != len(self):
            raise ValueError(f"an object of {len(self)} fields has not {len(ordered)} names")
        return dict(zip(ordered, self, strict=True))


class Pairs(list[tuple[Any, Any]]):
    """Keys and values of a map that a dict cannot represent: 1, 1.0 and True, or a list as a key."""

    __slots__ = ()


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of fields in the order of an object."""
    return tuple(sorted(names, key=hash_of))


def exact(value: int) -> Decimal:
    """Convert an integer of any size without Python's limit on digits, in less than quadratic time."""
    powers: dict[int, Decimal] = {}
    return _exact(value, powers) if value >= 0 else _exact(-value, powers).copy_negate()


def _exact(value: int, powers: dict[int, Decimal]) -> Decimal:
    bits = value.bit_length()
    if bits <= 4096:
        return Decimal(value)
    half = bits >> 1
    high = EXACT.multiply(_exact(value >> half, powers), _power(half, powers))
    return EXACT.add(high, _exact(value & (1 << half) - 1, powers))


def _power(exponent: int, known: dict[int, Decimal]) -> Decimal:
    """Return 2 ** exponent."""
    if exponent <= 4096:
        return Decimal(1 << exponent)
    if exponent not in known:
        half = exponent >> 1
        known[exponent] = EXACT.multiply(_power(half, known), _power(exponent - half, known))
    return known[exponent]
