"""Decode property blocks of MQTT 5.0 step by step: all blocks step through their properties together.

numpy checks each step by the core's rules. Blocks that break one, or that have more than `_MAX_STEPS` properties, are
left to the core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.mqtt import properties
from headwater_spark.arrow import Bools, octets, ranges
from headwater_spark.property_columns import (
    KINDS,
    PROPERTIES,
    USER_PROPERTIES,
    Ints,
    Octets,
    as_strings,
    bad_texts,
    maps,
)

_WIDTHS = {
    properties.BYTE: 1,
    properties.TWO: 2,
    properties.TWO_NOT_0: 2,
    properties.FOUR: 4,
    properties.FOUR_NOT_0: 4,
}
_MAX_STEPS = 64


class _Places:
    """Byte ranges of the values of one property, in the rows `there` (None: in all rows)."""

    def __init__(self, n: int):
        self.at = np.zeros(n, np.int32)
        self.end = np.zeros(n, np.int32)
        self.there: Bools | None = np.zeros(n, np.bool_)


@dataclass
class _Pairs:
    """Pairs of texts, at most one in each of `rows`."""

    rows: npt.NDArray[Any]
    #: The places of the key, and those of the value.
    places: tuple[Ints, Ints, Ints, Ints]


@dataclass
class Walk:
    """Step through the properties of n blocks. `odd` blocks are left to the core."""

    data: Octets
    begin: Ints
    end: Ints
    odd: Bools = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.begin)
        self.odd = np.zeros(n, np.bool_)
        self._places: dict[int, _Places] = {}
        self._pairs: list[_Pairs] = []
        rows, at, end = np.arange(n), self.begin, self.end
        for _ in range(_MAX_STEPS):
            left = at < end
            if not left.all():
                rows, at, end = rows[left], at[left], end[left]
            if not len(rows):
                return
            at = self._step(rows, at, end)
            wrong = self.odd[rows]
            if wrong.any():
                rows, at, end = rows[~wrong], at[~wrong], end[~wrong]
        self.odd[rows[at < end]] = True

    def has(self, ident: int) -> Bools:
        """Return which blocks have a property."""
        places = self._places.get(ident)
        if places is None:
            return np.zeros(len(self.begin), np.bool_)
        return np.ones(len(self.begin), np.bool_) if places.there is None else places.there

    def columns(self) -> dict[str, Any]:
        """Return the columns. Blocks with malformed text become odd."""
        makers = {properties.BINARY: self._binary, properties.TEXT: self._text, properties.NAME: self._name}
        result = {}
        for name, (ident, _) in PROPERTIES.items():
            places = self._places.get(ident)
            if places is not None:
                column = makers.get(KINDS[ident], self._number)(places)
                result[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
        if self._pairs:
            result[USER_PROPERTIES] = self._maps()
        return result

    def _byte(self, at: Ints) -> Octets:
        # All other bytes are within a packet; this is faster than a check of the bounds.
        return self.data.take(at, mode="clip")

    def _u16(self, at: Ints) -> Ints:
        result: Ints = self._byte(at).astype(np.int32) << 8 | self._byte(at + 1)
        return result

    def _step(self, rows: npt.NDArray[Any], at: Ints, end: Ints) -> Ints:
        """Pass over one property of some blocks. Return where the next ones begin."""
        idents = self._byte(at)
        first = int(idents[0])
        if (idents == first).all():
            return self._property(first, rows, at, end)
        after: Ints = at.copy()
        for ident in np.flatnonzero(np.bincount(idents)).tolist():
            here = np.flatnonzero(idents == ident)
            after[here] = self._property(ident, rows[here], at[here], end[here])
        return after

    def _property(self, ident: int, rows: npt.NDArray[Any], at: Ints, end: Ints) -> Ints:
        """Pass over a property that some blocks have at `at`."""
        kind = KINDS.get(ident, 0)
        at = at + 1
        if kind in _WIDTHS:
            after = at + _WIDTHS[kind]
            wrong = after > end
            if kind == properties.BYTE:
                wrong |= self._byte(at) > 1
            elif kind == properties.TWO_NOT_0:
                wrong |= self._u16(at) == 0
        elif kind == properties.VARINT:
            after, wrong = self._varint(at, end)
        elif kind == properties.PAIR:
            key_end = at + 2 + self._u16(at)
            after = key_end + 2 + self._u16(key_end)
            wrong = after > end
            self._pairs.append(_Pairs(rows, (at + 2, key_end, key_end + 2, after)))
        elif kind:
            after = at + 2 + self._u16(at)
            wrong = after > end
            at = at + 2
        else:
            after, wrong = at, np.ones(len(at), np.bool_)
        if kind and not properties.many(ident):
            wrong |= self._note(ident, rows, at, after)
        if wrong.any():
            self.odd[rows[wrong]] = True
        return after

    def _varint(self, at: Ints, end: Ints) -> tuple[Ints, Bools]:
        """Return the ends of some variable byte integers, and which are 0 or malformed."""
        last = self._byte(at)
        value = last & 127
        after = at + 1
        more = np.flatnonzero(last > 127)
        for _ in range(3):
            if not len(more):
                break
            last = self._byte(after[more])
            value[more] |= last & 127
            after[more] += 1
            more = more[last > 127]
        wrong = (after > end) | (value == 0)
        wrong[more] = True
        return after, wrong

    def _note(self, ident: int, rows: npt.NDArray[Any], at: Ints, end: Ints) -> Bools:
        """Record a property's places. Return which blocks have it already."""
        n = len(self.begin)
        places = self._places.get(ident)
        if places is None:
            places = self._places[ident] = _Places(0 if len(rows) == n else n)
            if len(rows) == n:
                places.at, places.end, places.there = at, end, None
                return np.zeros(n, np.bool_)
        again = np.ones(len(rows), np.bool_) if places.there is None else places.there[rows]
        if places.there is not None:
            places.at[rows], places.end[rows], places.there[rows] = at, end, True
        return again

    def _number(self, places: _Places) -> Any:
        value = np.zeros(len(places.at), np.int64)
        for k in range(4):
            value = value << 8 | self._byte(places.at + k)
        return pa.array(value, mask=None if places.there is None else ~places.there)

    def _binary(self, places: _Places) -> Any:
        if places.there is None:
            return ranges(self.data, places.at, places.end)
        # An empty range keeps the order.
        at, end = (np.where(places.there, edge, self.begin) for edge in (places.at, places.end))
        return ranges(self.data, at, end, ~places.there)

    def _text(self, places: _Places) -> Any:
        return self._checked(self._binary(places))

    def _name(self, places: _Places) -> Any:
        return self._checked(self._binary(places), names=True)

    def _checked(self, found: Any, rows: npt.NDArray[Any] | None = None, names: bool = False) -> Any:
        """Return a binary array as strings. Blocks with malformed text become odd; row i is in block `rows[i]`."""
        bad = bad_texts(found, names)
        if bad.any():
            self.odd[bad if rows is None else rows[bad]] = True
            # The caller drops the column. A map aborts the process if a name is null.
            return pa.array([""] * len(found), pa.string())
        return as_strings(found)

    def _maps(self) -> Any:
        """Return the pairs of each block as a map."""
        n = len(self.begin)
        count = np.zeros(n, np.int32)
        ordinals = []
        for pairs in self._pairs:
            ordinals.append(count[pairs.rows])
            count[pairs.rows] += 1
        offsets = np.zeros(n + 1, np.int32)
        np.cumsum(count, out=offsets[1:])
        total = int(offsets[-1])
        edges = np.zeros(4 * total + 1, np.int32)
        for pairs, ordinal in zip(self._pairs, ordinals, strict=True):
            target = 4 * (offsets[pairs.rows] + ordinal)
            for k, place in enumerate(pairs.places):
                edges[target + k] = place
        edges[-1] = edges[-2]
        pieces = pa.Array.from_buffers(
            pa.binary(), 4 * total, [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        )
        rows = np.repeat(np.arange(n), count)
        values = np.arange(total)
        again = _repeated(rows, pieces, values, int(count.max()))
        keep = values
        if again.any():
            # A value that is not kept is checked as well.
            self._checked(pieces.take(pa.array(4 * keep + 2)), rows)
            keep = np.flatnonzero(~again)
            rows = rows[keep]
            np.cumsum(np.bincount(rows, minlength=n), out=offsets[1:])
        keys = self._checked(pieces.take(pa.array(4 * keep)), rows)
        items = self._checked(pieces.take(pa.array(4 * values[keep] + 2)), rows)
        return maps(offsets, count > 0, keys, items)


def _repeated(rows: npt.NDArray[Any], pieces: Any, values: npt.NDArray[Any], most: int) -> Bools:
    """Return which pairs repeat a key of their row, whose first pair gets the last value: an index in `values`.

    Piece 4 * i is the key of pair i. A row has `most` pairs or fewer.
    """
    again = np.zeros(len(rows), np.bool_)
    if most < 2:
        return again
    edges, data = octets(pieces)
    key_at = edges[0:-1:4]
    size = edges[1::4] - key_at
    for step in range(1, most):
        # Nearly all keys of a row differ in their size or in their last bytes.
        maybe = (rows[step:] == rows[:-step]) & (size[step:] == size[:-step])
        first = np.flatnonzero(maybe)
        for back in (1, 2):
            ends = key_at[first] + size[first] - back
            others = key_at[first + step] + size[first] - back
            equal = data.take(ends, mode="clip") == data.take(others, mode="clip")
            first = first[equal | (size[first] < back)]
        if not len(first):
            continue
        keys, others = (pieces.take(pa.array(4 * pairs)) for pairs in (first, first + step))
        first = first[pc.equal(keys, others).to_numpy(zero_copy_only=False)]
        again[first + step] = True
        values[first] = first + step
    return again
