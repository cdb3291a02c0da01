"""Narrow a span of receive times by the filters that Spark passes to a data source.

Spark passes them only with `spark.sql.python.filterPushdown.enabled`, and checks the rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from headwater_spark.plan import EVER, Span

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# By filter: its span, from the first nanosecond of the compared time and the first one after it.
_SPANS: dict[type[Filter], Callable[[int, int], Span]] = {
    EqualTo: Span,
    EqualNullSafe: Span,
    GreaterThan: lambda first, after: Span(after, EVER.until),
    GreaterThanOrEqual: lambda first, after: Span(first, EVER.until),
    LessThan: lambda first, after: Span(EVER.since, first),
    LessThanOrEqual: lambda first, after: Span(EVER.since, after),
}


def narrow(span: Span, filters: Iterable[Filter]) -> Span:
    """Return the part of a span that the filters on `time` and `time_ns` leave."""
    return reduce(Span.within, (_span(one) for one in filters), span)


def _span(given: Any) -> Span:
    make = _SPANS.get(type(given))
    if make is not None and given.attribute == ("time_ns",) and type(given.value) is int:
        return make(given.value, given.value + 1)
    # The column has whole microseconds.
    if make is not None and given.attribute == ("time",) and isinstance(given.value, datetime):
        first = (given.value - _EPOCH) // timedelta(microseconds=1) * 1000
        return make(first, first + 1000)
    return EVER


class PushFilters:
    """The method `pushFilters` of a reader, as an attribute.

    Unless its setting is on, Spark refuses each read by a reader that overrides the method. It compares the method's
    function, so this object has the one that is not overridden.
    """

    def __init__(self, take: Callable[[list[Filter]], None]):
        self._take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Take the filters, and return them all: Spark checks the rows."""
        self._take(filters)
        return filters
