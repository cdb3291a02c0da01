"""Topic filters as a program writes them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from headwater_host.errors import ArgumentError

#: A filter or several, each with its QoS or without: see ``filters_of``.
Filters: TypeAlias = str | tuple[str, int] | Sequence[str | tuple[str, int]] | Mapping[str, int]


def filters_of(filters: object, qos: int = 0) -> list[tuple[str, int]]:
    """Return filters with their QoS, given as "a", ("a", 1), ["a", ("b", 1)] or {"a": 1}.

    ``qos`` is for filters without one. Raises ArgumentError.
    """
    if isinstance(filters, str) or _is_pair(filters):
        filters = [filters]
    elif isinstance(filters, Mapping):
        filters = filters.items()
    if not isinstance(filters, Iterable) or isinstance(filters, bytes | bytearray):
        raise ArgumentError(f"{filters!r}: a topic filter, or several")
    found: list[tuple[str, int]] = []
    for one in filters:
        if isinstance(one, str):
            found.append((one, qos))
        elif _is_pair(one):
            found.append((one[0], one[1]))
        else:
            raise ArgumentError(f"{one!r}: a topic filter, or a pair of a filter and its QoS")
    return found


def _is_pair(value: Any) -> bool:
    """Return whether this is a filter and its QoS rather than two filters."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and isinstance(value[0], str)
        and not isinstance(value[1], str | tuple | list)
    )
