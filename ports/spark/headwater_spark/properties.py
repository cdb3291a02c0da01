"""Decode the properties of MQTT 5.0's PUBLISH (2.2.2, 3.3.2.3) column by column.

Blocks with a common layout are decoded together (`property_layouts`). The others step through their properties
(`property_walk`), and those that break a rule go through the core one by one. The results are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater import errors, names5
from headwater.mqtt import properties, spec5
from headwater_host.mqtt_properties import decode
from headwater_spark import property_layouts as layouts
from headwater_spark.arrow import Bools, Rows
from headwater_spark.property_columns import PROPERTIES, USER_PROPERTIES, Ints, Octets, Part, check
from headwater_spark.property_walk import Walk

_SPECIFIED = {name: names5.PROPERTIES[ident] for name, (ident, _) in PROPERTIES.items()}


@dataclass
class Found:
    """The property blocks of n packets.

    `end` is where the block ends. `error` is 0 or a code of `headwater.errors`, and `error_at` its offset. `alias` is
    true where there is a topic alias. `columns` has an Arrow array for each of PROPERTIES that a block has; strings are
    dictionaries.
    """

    end: Ints
    error: npt.NDArray[np.int8]
    error_at: Ints
    alias: Bools
    columns: dict[str, Any]


def read(data: Octets, at: Ints, limit: Ints, where: Bools) -> Found:
    """Decode the property blocks that begin at `at`, in packets that end at `limit`.

    The blocks increase and are disjoint. Packets that are not `where` have no properties.
    """
    n = len(at)
    begin, end, error = _lengths(data, at, limit)
    found = Found(end, error, at, np.zeros(n, np.bool_), {})
    sizes = end - begin
    there = where & (sizes > 0) & (error == 0)
    if not there.all():
        sizes[~there] = 0
    if not there.any():
        return found
    parts, left = layouts.split(data, begin, sizes)
    if len(left):
        parts += _others(found, data, begin, left)
    for part in parts:
        if np.any(part.alias):
            found.alias[part.rows] = part.alias
    found.columns = _joined(parts, n)
    return found


def _lengths(data: Octets, at: Ints, limit: Ints) -> tuple[Ints, Ints, npt.NDArray[np.int8]]:
    """Return where the properties of each block begin and end, and the error of its length, or 0."""
    error = np.zeros(len(at), np.int8)
    first = data.take(at, mode="clip") if len(data) else np.zeros(len(at), np.uint8)
    length = first.astype(np.int32)
    begin: Ints = at + np.int32(1)
    rows = np.flatnonzero(first > 127)
    length[rows] &= 127
    for shift in (7, 14, 21):
        if not len(rows):
            break
        error[rows[begin[rows] >= limit[rows]]] = errors.E_FIELD
        rows = rows[error[rows] == 0]
        more = data.take(begin[rows], mode="clip")
        length[rows] |= (more & 127).astype(np.int32) << shift
        begin[rows] += 1
        rows = rows[more > 127]
    end = begin + length
    # The length or its block extends beyond the packet, or the length has a fifth byte.
    beyond = end > limit
    if len(rows) or beyond.any():
        error[beyond] = errors.E_FIELD
        error[rows] = errors.E_LENGTH
    return begin, end, error


def _others(found: Found, data: Octets, begin: Ints, rows: Rows) -> list[Part]:
    """Decode blocks without a usual layout, and record the errors of malformed ones."""
    usual = rows
    while True:
        walk = Walk(data, begin[usual], found.end[usual])
        columns = {} if walk.odd.any() else walk.columns()
        if not walk.odd.any():
            break
        usual = usual[~walk.odd]
    parts = [Part(usual, walk.has(spec5.TOPIC_ALIAS), columns)]
    odd = np.setdiff1d(rows, usual, assume_unique=True)
    if len(odd):
        parts.append(_by_core(found, data, begin, odd))
    return parts


def _joined(parts: list[Part], n: int) -> dict[str, Any]:
    """Return the columns of all blocks."""
    if len(parts) == 1 and len(parts[0].rows) == n:
        return parts[0].columns
    sources = np.zeros(n, np.int32)
    there = np.zeros(n, np.bool_)
    base = 0
    for part in parts:
        sources[part.rows] = np.arange(base, base + len(part.rows), dtype=np.int32)
        there[part.rows] = True
        base += len(part.rows)
    rows = pa.array(sources, mask=None if there.all() else ~there)
    result = {}
    for name, (_, type_) in PROPERTIES.items():
        if not any(name in part.columns for part in parts):
            continue
        stored = pa.dictionary(pa.int32(), type_) if pa.types.is_string(type_) else type_
        chunks = [
            part.columns[name] if name in part.columns else pa.nulls(len(part.rows), stored) for part in parts
        ]
        column = pa.chunked_array(chunks, stored).unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        result[name] = spread(column, rows)
    return result


def spread(column: Any, rows: Any) -> Any:
    """Return the values of a column at some rows."""
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(column.indices.take(rows), column.dictionary, safe=False)
    return column.take(rows)


def _by_core(found: Found, data: Octets, begin: Ints, rows: Rows) -> Part:
    """Decode blocks one by one with the core, and record their errors."""
    checked = [_checked(data[begin[row] : found.end[row]].tobytes()) for row in rows]
    errors, offsets, alias, values = zip(*checked, strict=True)
    found.error[rows] = errors
    found.error_at = found.error_at.copy()
    found.error_at[rows] = begin[rows] + offsets
    columns = {}
    for name, (_, type_) in PROPERTIES.items():
        some = [each.get(name) for each in values]
        if any(value is not None for value in some):
            column = pa.array(some, type_)
            columns[name] = column.dictionary_encode() if pa.types.is_string(type_) else column
    return Part(rows, np.array(alias), columns)


@lru_cache(maxsize=1024)
def _checked(block: bytes) -> tuple[int, int, bool, dict[str, Any]]:
    """Return 0 or an error, its offset, whether there is a topic alias, and the columns' values."""
    packet, status = check(block)
    if status < 0:
        return status, packet.bad_at, False, {}
    found = decode(block, 0, len(block))
    values = {name: found[prop] for name, prop in _SPECIFIED.items() if prop in found}
    if USER_PROPERTIES in values:
        # A map has each name once.
        values[USER_PROPERTIES] = list(dict(values[USER_PROPERTIES]).items())
    return 0, 0, properties.has(packet, spec5.TOPIC_ALIAS), values
