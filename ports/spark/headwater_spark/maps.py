"""Decode payloads that are FMQ Maps column by column: the values at the top level, by key.

numpy decodes Maps of strings, booleans, integers, floats, decimals, durations and times under distinct string keys.
Every other Map (nested, large, malformed) goes through the core's decoder (`fmq_core.load_map`), with the same
result.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.fmq.spec import BOOL, DATETIME, DECIMAL, DURATION, FLOAT, INT, NONE, STRING
from headwater_spark.arrow import Bools, Rows, octets, ranges
from headwater_spark.words import Data, Offsets, Words

# Limits of numpy's decoder: pairs of a Map, distinct keys.
_MAX_PAIRS = 32
_MAX_KEYS = 256
#: Alternative tag of an Int.
_INT_TOO = 5
# By tag byte: the number of bytes that follow, or -1 if another byte determines it or the core decodes it.
_SIZE = np.full(256, -1, np.int64)
_SIZE[[0x00, 0x10, 0x20, 0x21, 0x40, 0x41, 0x4F]] = 0
_SIZE[[0x42, 0x44, 0x48]] = 2, 4, 8
# By low nibble: the number of bytes of an integer.
_INT_SIZE = np.array([low & 7 or 8 for low in range(16)], np.int64)
for _tag in (INT, _INT_TOO, DURATION, DATETIME):
    _SIZE[_tag << 4 : (_tag + 1) << 4] = _INT_SIZE
_FLOATS = {0: np.nan, 1: 0.0, 15: np.inf}
# Powers of ten and integers that a double holds exactly.
_TENS = 10.0 ** np.arange(23)
_EXACT = np.uint64(1 << 53)
_BEYOND = np.uint64(1 << 63)
_LEAST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Column:
    """Values of one key in some rows: doubles, or strings as an Arrow array."""

    name: str
    rows: Rows
    values: Any


@dataclass(frozen=True)
class Whole:
    """Integers of one key in some rows."""

    rows: Rows
    values: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Maps:
    """The Maps among n payloads that numpy understands: `good`.

    `columns` have all values except None. For the requested keys, `integers` and `times` (ns since 1970) have exact
    values where they fit.
    """

    good: Bools
    columns: list[Column]
    integers: dict[str, Whole]
    times: dict[str, Whole]


class _Pairs:
    """The pairs of some Maps in order: the row of each and the offsets of its key and value."""

    def __init__(self, data: Data, at: Offsets, end: Offsets):
        octets = data.octets
        some = octets[at] == 0xE1
        count = np.where(some, octets[at + 1], 0).astype(np.int64)
        good = (octets[at] == 0xE0) | (some & (count > 0) & (count <= _MAX_PAIRS))
        at = at + np.where(some, 2, 1)
        most = int(count[good].max(initial=0))
        found: list[tuple[Offsets, tuple[Offsets, ...]]] = []
        for k in range(most):
            here = np.flatnonzero(good & (count > k))
            key = at[here] + 2
            key_end = key + octets[key - 1]
            fits = (octets[key - 2] == 0x11) & (key_end > key) & (key_end < end[here])
            value = np.where(fits, key_end, end[here])
            value_end = _ends(data, value)
            fits &= (value_end > value) & (value_end <= end[here])
            found.append((here, (key, key_end, value, value_end)))
            at[here] = np.where(fits, value_end, at[here])
            good[here] &= fits
        good &= at == end
        count[~good] = 0
        self.good = good
        self.row = np.repeat(np.arange(len(at)), count)
        # The first pair of each Map.
        first = np.cumsum(count) - count
        places = np.empty((4, len(self.row)), np.int64)
        for k, (here, columns) in enumerate(found):
            still = good[here]
            target = first[here[still]] + k
            for place, column in zip(places, columns, strict=True):
                place[target] = column[still]
        self.key_at, self.key_end, self.at, self.end = places
        self.tag = octets[self.at] >> 4
        self.low = octets[self.at] & 15


def _ends(data: Data, at: Offsets) -> Offsets:
    """Return where the values at `at` end, or `at` itself for values that the core must decode."""
    head = data.octets[at]
    size = _SIZE[head]
    end = at + 1 + size
    short, long = head == 0x11, head == 0x12
    if short.any():
        end = np.where(short, at + 2 + data.octets[at + 1], end)
    if long.any():
        end = np.where(long, at + 3 + data.integers(at + 1, np.full(len(at), 2)).astype(np.int64), end)
    decimal = head >> 4 == DECIMAL
    if decimal.any():
        # The byte after the integer has the sizes of the precision, at least 1, and of the scale.
        widths_at = at + 1 + _INT_SIZE[head & 15]
        widths = data.octets[np.where(decimal, widths_at, at)]
        decimal &= widths > 15
        end = np.where(decimal, widths_at + 1 + (widths >> 4) + (widths & 15), end)
    return np.where((size >= 0) | short | long | decimal, end, at)


def _numbers(data: Data, pairs: _Pairs) -> tuple[npt.NDArray[np.float64], Words, Bools]:
    """Return each value as a double and as an integer in two's complement, and which ones the core must decode."""
    tag, low = pairs.tag, pairs.low
    magnitude = data.integers(pairs.at + 1, _INT_SIZE[low])
    # A negative integer is stored as its complement.
    negative = low > 7
    whole = np.where(negative, ~magnitude, magnitude)
    doubles = np.where(negative, whole.view(np.int64).astype(np.float64), magnitude.astype(np.float64))
    integers = _SIZE[tag << 4] == 8
    refused = integers & negative & (magnitude >= _BEYOND)
    refused |= (tag == DATETIME) & ((magnitude >= _BEYOND) | (whole.view(np.int64) == _LEAST))
    # The division is the only rounding.
    refused |= ((tag == DURATION) | (tag == DECIMAL)) & (magnitude >= _EXACT)
    doubles[tag == DURATION] /= 1e9
    rows = np.flatnonzero(tag == DECIMAL)
    if len(rows):
        scale, wrong = _scales(data, pairs.at[rows] + 1 + _INT_SIZE[low[rows]])
        refused[rows[wrong]] = True
        doubles[rows] /= _TENS[scale]
    rows = np.flatnonzero(tag == BOOL)
    doubles[rows] = low[rows]
    rows = np.flatnonzero(tag == FLOAT)
    if len(rows):
        widths = low[rows]
        for special, value in _FLOATS.items():
            doubles[rows[widths == special]] = value
        for width in (2, 4, 8):
            here = rows[widths == width]
            words = data.integers(pairs.at[here] + 1, np.full(len(here), width)).astype(f"u{width}")
            # Arithmetic turns a signalling NaN into a quiet one.
            with np.errstate(invalid="ignore"):
                doubles[here] = words.view(f"f{width}")
    return doubles, whole, refused


def _scales(data: Data, at: Offsets) -> tuple[Offsets, Bools]:
    """Return the scales of decimals, and which ones the core must decode. `at` is after the unscaled values."""
    widths = data.octets[at].astype(np.int64)
    size = widths & 15
    scale = data.integers(at + 1 + (widths >> 4), np.minimum(size, 8))
    wrong = (size > 8) | (scale >= len(_TENS))
    return np.where(wrong, 0, scale).astype(np.int64), wrong


def _strings(texts: Any) -> tuple[Any, Bools]:
    """Convert a binary array to strings; also return where it is not UTF-8, which becomes empty."""
    bad = np.zeros(len(texts), np.bool_)
    try:
        return texts.cast(pa.string()), bad
    except pa.ArrowInvalid:
        found = texts.to_pylist()
    for i, text in enumerate(found):
        try:
            text.decode()
        except UnicodeDecodeError:
            bad[i] = True
            found[i] = b""
    return pa.array(found, pa.binary()).cast(pa.string()), bad


def read(payloads: Any, wanted: Collection[str]) -> Maps:
    """Decode a binary Arrow array without nulls. `wanted` are the keys whose exact integers and times are requested."""
    offsets, everything = octets(payloads)
    data = Data(everything[offsets[0] : offsets[-1]])
    starts = offsets.astype(np.int64) - offsets[0]
    pairs = _Pairs(data, starts[:-1], starts[1:])
    doubles, whole, refused = _numbers(data, pairs)

    keys = ranges(data.octets, pairs.key_at, pairs.key_end).dictionary_encode()
    names, bad = _strings(keys.dictionary)
    key = keys.indices.to_numpy()
    refused |= (bad | (np.arange(len(bad)) >= _MAX_KEYS))[key]
    order = np.argsort(key.astype(np.uint16) if len(bad) <= 0x10000 else key, kind="stable")
    # Sorted by key, then by row, so duplicate keys of a Map are adjacent.
    row = pairs.row[order]
    again = row[1:] == row[:-1]
    if again.any():
        refused[order[1:][again & (key[order[1:]] == key[order[:-1]])]] = True

    head = data.octets[pairs.at]
    text = np.flatnonzero(pairs.tag == STRING)
    # The empty key has no length.
    text_at = pairs.at[text] + 1 + (head[text] & 15)
    strings, bad = _strings(ranges(data.octets, text_at, pairs.end[text]))
    refused[text[bad]] = True
    if refused.any():
        pairs.good[pairs.row[refused]] = False
        order = order[pairs.good[row]]
    edges = np.searchsorted(key[order], np.arange(min(len(names), _MAX_KEYS) + 1)).tolist()
    index = np.zeros(len(key), np.int64)
    index[text] = np.arange(len(text))
    found = Maps(pairs.good, [], {}, {})
    for k, name in enumerate(names.to_pylist()[:_MAX_KEYS]):
        here = order[edges[k] : edges[k + 1]]
        tag = pairs.tag[here]
        exact = whole[here].view(np.int64)
        times = tag == DATETIME
        for where, values in (
            ((tag != NONE) & (tag != STRING) & ~times, lambda at: doubles[at]),
            (tag == STRING, lambda at: strings.take(pa.array(index[at]))),
            (times, lambda at: _time_texts(whole[at].view("M8[ns]"))),
        ):
            if where.any():
                at = here if where.all() else here[where]
                found.columns.append(Column(name, pairs.row[at], values(at)))
        if name in wanted:
            fits = ((tag == INT) | (tag == _INT_TOO)) & ((exact >= 0) | (pairs.low[here] > 7))
            found.integers[name] = Whole(pairs.row[here[fits]], exact[fits])
            found.times[name] = Whole(pairs.row[here[times]], exact[times])
    return found


def _time_texts(times: npt.NDArray[Any]) -> Any:
    """Format times as `fmq_core.time_text` does."""
    return pa.array(np.strings.add(np.datetime_as_string(times), "Z").tolist(), pa.string())
