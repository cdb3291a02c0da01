"""What FMQ's values are in Python where Python has no value of its own; and numbers, however large."""

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
#: Where no digit is lost.
EXACT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.Inexact, decimal.InvalidOperation],
)


@dataclasses.dataclass(frozen=True, order=True)
class Duration:
    """A length of time."""

    __slots__ = ("nanoseconds",)
    nanoseconds: int

    @classmethod
    def of(cls, value: dt.timedelta) -> Duration:
        """As long as a timedelta."""
        return cls(value // _MICROSECOND * 1000)

    def timedelta(self) -> dt.timedelta:
        """To the microsecond below. Raises OverflowError when a timedelta does not go so far."""
        return dt.timedelta(microseconds=self.nanoseconds // 1000)


@dataclasses.dataclass(frozen=True, order=True)
class DateTime:
    """A point in time: ``nanoseconds`` since 1970-01-01T00:00:00Z."""

    __slots__ = ("nanoseconds",)
    nanoseconds: int

    @classmethod
    def of(cls, value: dt.datetime) -> DateTime:
        """The same as a datetime, which must have a time zone."""
        if value.utcoffset() is None:
            raise ValueError("a datetime without a time zone is no point in time")
        return cls((value - _EPOCH) // _MICROSECOND * 1000)

    def datetime(self) -> dt.datetime:
        """In UTC, to the microsecond below. Raises OverflowError when a datetime does not go so far."""
        return _EPOCH + dt.timedelta(microseconds=self.nanoseconds // 1000)


class Object(tuple[Any, ...]):
    """An object's field values, in the order in which they are written: that of their names' hashes."""

    __slots__ = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Object:
        """The object with these fields."""
        return cls(fields[name] for name in in_order(fields))

    def fields(self, names: Iterable[str]) -> dict[str, Any]:
        """The values by their names, which the reader brings, in any order."""
        ordered = in_order(names)
        if len(ordered) != len(self):
            raise ValueError(f"an object of {len(self)} fields has not {len(ordered)} names")
        return dict(zip(ordered, self, strict=True))


class Pairs(list[tuple[Any, Any]]):
    """A map's keys and values, some of which a dict cannot tell apart (1, 1.0 and True), or not hold (a list)."""

    __slots__ = ()


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of fields in the order in which an object has them."""
    return tuple(sorted(names, key=hash_of))


def exact(value: int) -> Decimal:
    """The same number, however large: without Python's limit on digits, and in much less than quadratic time."""
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
    """2 ** exponent."""
    if exponent <= 4096:
        return Decimal(1 << exponent)
    if exponent not in known:
        half = exponent >> 1
        known[exponent] = EXACT.multiply(_power(half, known), _power(exponent - half, known))
    return known[exponent]
