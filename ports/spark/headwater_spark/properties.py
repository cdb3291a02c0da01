"""Decode the properties of MQTT 5.0's PUBLISH (2.2.2, 3.3.2.3) column by column.

Most blocks have the same properties with values of the same sizes: a *layout*, whose values are found without looking
at each property. All others step through their properties together, and numpy checks each step by the core's rules.
Blocks that break a rule, or that have more than `_MAX_STEPS` properties, go through the core one by one. The results
are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater import names5
from headwater.mqtt import properties, spec5
from headwater.mqtt.spec import PUBLISH
from headwater.wire import put_varint
from headwater_host.mqtt_properties import decode
from headwater_host.topics import check_name
from headwater_spark.arrow import Bools, Rows, octets, ranges

Ints = npt.NDArray[np.int32]
Octets = npt.NDArray[np.uint8]
_Span = tuple[int, int]

_MAP = pa.map_(pa.string(), pa.string())
#: Columns: the property, and the column's type.
PROPERTIES = {
    "content_type": (spec5.CONTENT_TYPE, pa.string()),
    "message_expiry": (spec5.MESSAGE_EXPIRY_INTERVAL, pa.int64()),
    "response_topic": (spec5.RESPONSE_TOPIC, pa.string()),
    "correlation_data": (spec5.CORRELATION_DATA, pa.binary()),
    "user_properties": (spec5.USER_PROPERTY, _MAP),
}
_NAMES = {ident: name for name, (ident, _) in PROPERTIES.items()}
_SPECIFIED = {name: names5.PROPERTIES[ident] for name, (ident, _) in PROPERTIES.items()}
_IN_PUBLISH = 1 << PUBLISH
#: Types of the properties that PUBLISH may have.
_KINDS = {i: properties.kind_of(i) for i in range(properties.LAST + 1) if properties.allowed(i) & _IN_PUBLISH}
_WIDTHS = {
    properties.BYTE: 1,
    properties.TWO: 2,
    properties.TWO_NOT_0: 2,
    properties.FOUR: 4,
    properties.FOUR_NOT_0: 4,
}
_MAX_STEPS = 64
# Layouts: blocks in the sample, the longest block, and the number of layouts.
_SAMPLE = 128
_MAX_LAYOUT = 1024
_MAX_LAYOUTS = 8


@dataclass(frozen=True)
class Found:
    """The properties of n blocks.

    `error` is 0 or a code of `headwater.errors`, and `error_at` its offset in the block's properties. `alias` is true
    where there is a topic alias. `columns` has an Arrow array for each of PROPERTIES that a block has; strings are
    dictionaries.
    """

    error: npt.NDArray[np.int8]
    error_at: Ints
    alias: Bools
    columns: dict[str, Any]


@dataclass
class _Part:
    """The columns of some blocks: block `rows[i]` has the values `index[i]`."""

    rows: Rows
    index: Rows
    columns: dict[str, Any]


def read(data: Octets, at: Ints, end: Ints) -> Found:
    """Decode the properties `data[at[i] : end[i]]`, without their length. The ranges increase and are disjoint."""
    n = len(at)
    found = Found(np.zeros(n, np.int8), np.zeros(n, np.int32), np.zeros(n, np.bool_), {})
    parts: list[_Part] = []
    left = np.arange(n)
    while len(left) and len(parts) < _MAX_LAYOUTS:
        begins, ends = (at[left], end[left]) if parts else (at, end)
        alike = _alike(data, begins, ends, n // 16)
        if alike is None:
            break
        if not parts and alike.matches.all():
            return replace(found, alias=np.full(n, alike.layout.alias), columns=alike.columns)
        rows = left[alike.matches]
        found.alias[rows] = alike.layout.alias
        parts.append(_Part(rows, np.arange(len(rows)), alike.columns))
        left = left[~alike.matches]
    if len(left):
        parts += _read_others(found, data, at, end, left)
    found.columns.update(_joined(parts, n))
    return found


def _read_others(found: Found, data: Octets, at: Ints, end: Ints, rows: Rows) -> list[_Part]:
    """Decode blocks that have many layouts."""
    step = len(rows) // _SAMPLE + 1
    sample = ranges(data, at[rows[::step]], end[rows[::step]]).dictionary_encode()
    # Blocks that repeat are decoded once.
    blocks = None
    index = np.arange(len(rows))
    begins, ends = at[rows], end[rows]
    if 4 * len(sample.dictionary) < len(sample):
        blocks = ranges(data, begins, ends).dictionary_encode()
        index = blocks.indices.to_numpy()
        starts, data = octets(blocks.dictionary)
        begins, ends = starts[:-1], starts[1:]
    usual = np.arange(len(begins))
    while True:
        walk = _Walk(data, begins[usual], ends[usual])
        columns = {} if walk.odd.any() else walk.columns()
        if not walk.odd.any():
            break
        usual = usual[~walk.odd]
    odd = np.ones(len(begins), np.bool_)
    odd[usual] = False
    place = np.cumsum(~odd) - 1
    where = odd[index]
    mine = rows[~where]
    found.alias[mine] = walk.has(spec5.TOPIC_ALIAS)[place[index[~where]]]
    parts = [_Part(mine, place[index[~where]], columns)]
    if where.any():
        place = np.cumsum(odd) - 1
        strange = np.flatnonzero(odd)
        core = _by_core(data, begins[strange], ends[strange])
        mine, index = rows[where], place[index[where]]
        found.error[mine], found.error_at[mine] = core.error[index], core.error_at[index]
        found.alias[mine] = core.alias[index]
        parts.append(_Part(mine, index, core.columns))
    return parts


def _joined(parts: list[_Part], n: int) -> dict[str, Any]:
    """Return the columns of all blocks."""
    if len(parts) == 1 and np.array_equal(parts[0].index, np.arange(n)):
        return parts[0].columns
    sources = np.zeros(n, np.int64)
    sizes = [int(part.index.max(initial=-1)) + 1 for part in parts]
    base = 0
    for part, size in zip(parts, sizes, strict=True):
        sources[part.rows] = base + part.index
        base += size
    rows = pa.array(sources)
    result = {}
    for name, (_, type_) in PROPERTIES.items():
        if not any(name in part.columns for part in parts):
            continue
        stored = pa.dictionary(pa.int32(), type_) if pa.types.is_string(type_) else type_
        chunks = [
            part.columns[name] if name in part.columns else pa.nulls(size, stored)
            for part, size in zip(parts, sizes, strict=True)
        ]
        column = pa.chunked_array(chunks, stored).unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        result[name] = spread(column, rows)
    return result


def spread(column: Any, rows: Any) -> Any:
    """Return the values of a column at some rows."""
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(column.indices.take(rows), column.dictionary)
    return column.take(rows)


# -- layouts -----------------------------------------------------------------------------------------------------------


@dataclass
class _Layout:
    """The properties and the sizes of their values that many blocks have in common, found in a sample.

    The bytes at the same places of these blocks have the same meaning. Some also have the same value in the sample,
    among them all that are no text, binary data or number of four bytes.
    """

    #: An example, and which bytes have its value in all blocks with this layout.
    block: Octets
    same: Bools
    #: The places of values by identifier, and those of the keys and values of user properties.
    spans: dict[int, _Span]
    pairs: list[tuple[_Span, _Span]]
    alias: bool

    def matching(self, data: Octets, at: Ints, end: Ints) -> tuple[Bools, Octets]:
        """Return which blocks have this layout, and these blocks as rows of bytes."""
        size = len(self.block)
        matches: Bools = end - at == size
        if not matches.all():
            at = at[matches]
        # The rows are of whole words, which must be within the data.
        padded, mask = np.zeros((2, -(-size // 8) * 8), np.uint8)
        padded[:size] = self.block
        mask[:size][self.same] = 255
        width = len(padded)
        last = len(data) - width
        windows: Any = np.ndarray((last + 1,), f"V{width}", data, strides=(1,))
        blocks = windows[np.minimum(at, last)].view(np.uint8).reshape(len(at), width)
        for row in np.flatnonzero(at > last).tolist():
            blocks[row, :size] = data[at[row] : at[row] + size]
        words = blocks.view(np.uint64)
        wanted, care = padded.view(np.uint64), mask.view(np.uint64)
        equal = np.ones(len(at), np.bool_)
        for k in np.flatnonzero(care).tolist():
            equal &= words[:, k] & care[k] == wanted[k] & care[k]
        if equal.all():
            return matches, blocks
        matches[matches] = equal
        return matches, blocks[equal]

    def columns(self, blocks: Octets) -> dict[str, Any] | None:
        """Return the columns of matching blocks, or None if a text is malformed."""
        result: dict[str, Any] = {}
        for name, (ident, type_) in PROPERTIES.items():
            if ident not in self.spans:
                continue
            begin, end = span = self.spans[ident]
            if _KINDS[ident] == properties.FOUR:
                some = blocks[:1] if self._are_same([span]) else blocks
                words = np.ascontiguousarray(some[:, begin:end]).view(">u4").ravel()
                column = pa.array(np.ascontiguousarray(np.broadcast_to(words.astype(np.int64), len(blocks))))
            elif pa.types.is_string(type_) and self.same[begin:end].all():
                text = pa.array([self.block[begin:end].tobytes()], pa.binary()).cast(pa.string())
                column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(blocks), np.int32)), text)
            else:
                column = self._values(blocks, [span])
                if pa.types.is_string(type_):
                    if _bad_texts(column, wildcards=_KINDS[ident] == properties.NAME).any():
                        return None
                    column = _as_strings(column).dictionary_encode()
            result[name] = column
        if self.pairs:
            sides = []
            for spans in ([key for key, _ in self.pairs], [value for _, value in self.pairs]):
                sides.append(self._values(blocks, spans))
                if not self._are_same(spans) and _bad_texts(sides[-1]).any():
                    return None
            offsets = np.arange(0, len(blocks) * len(self.pairs) + 1, len(self.pairs), dtype=np.int32)
            result[_NAMES[spec5.USER_PROPERTY]] = _map(offsets, None, *map(_as_strings, sides))
        return result

    def _are_same(self, spans: list[_Span]) -> bool:
        return all(self.same[begin:end].all() for begin, end in spans)

    def _values(self, blocks: Octets, spans: list[tuple[int, int]]) -> Any:
        """Return the values at some places as a binary array with these values of each block."""
        n = len(blocks)
        data: bytes | Octets
        if self._are_same(spans):
            data = b"".join(self.block[begin:end].tobytes() for begin, end in spans) * n
        else:
            sides = [blocks[:, begin:end] for begin, end in spans]
            data = np.ascontiguousarray(sides[0] if len(sides) == 1 else np.concatenate(sides, axis=1))
        sizes = [end - begin for begin, end in spans]
        places = np.arange(n, dtype=np.int32) * np.int32(sum(sizes))
        offsets = np.empty(n * len(spans) + 1, np.int32)
        for k, before in enumerate(accumulate(sizes[:-1], initial=0)):
            np.add(places, before, out=offsets[k : -1 : len(spans)])
        offsets[-1] = n * sum(sizes)
        return pa.Array.from_buffers(
            pa.binary(), n * len(spans), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )


# The last layout that was found for blocks of each size: consecutive batches are alike.
_KNOWN: dict[int, _Layout] = {}


class _Alike(NamedTuple):
    """Blocks that have one layout: where they are, and their columns."""

    layout: _Layout
    matches: Bools
    columns: dict[str, Any]


def _alike(data: Octets, at: Ints, end: Ints, least: int) -> _Alike | None:
    """Return blocks with one layout, of the size that is most frequent in a sample; None if they are not more than
    `least`.
    """
    rows = np.arange(0, len(at), len(at) // _SAMPLE + 1)
    sizes = end[rows] - at[rows]
    size = int(np.bincount(np.minimum(sizes, _MAX_LAYOUT + 1)).argmax())
    if size > _MAX_LAYOUT or len(data) < size + 7:
        return None
    rows = rows[sizes == size]
    known = _KNOWN.get(size)
    for layout in (known, None):
        if layout is None:
            layout = _layout(data, at[rows], end[rows])
        if layout is None:
            break
        matches, blocks = layout.matching(data, at, end)
        # What is known may fit only a part of them.
        enough = least if layout is not known else max(least, np.count_nonzero(end - at == size) // 2)
        if len(blocks) > enough:
            columns = layout.columns(blocks)
            if columns is not None:
                _KNOWN[size] = layout
                return _Alike(layout, matches, columns)
    return None


def _layout(data: Octets, at: Ints, end: Ints) -> _Layout | None:
    """Return the layout of the first of some blocks of one size, or None."""
    walk = _Walk(data, at[:1], end[:1])
    if walk.odd.any():
        return None
    maps = walk.columns().get(_NAMES[spec5.USER_PROPERTY])
    pairs = walk.pair_spans()
    # The core decides which value of a repeated name counts.
    if walk.odd.any() or (maps is not None and len(maps[0]) < len(pairs)):
        return None
    spans = {ident: span for ident, _ in PROPERTIES.values() if (span := walk.span(ident)) is not None}
    sample = data[at[:, None] + np.arange(end[0] - at[0])]
    # Different keys of a block could become equal, so several keys do not vary.
    varying = [*spans.values(), *(value for _, value in pairs), *(key for key, _ in pairs if len(pairs) == 1)]
    fixed = np.ones(sample.shape[1], np.bool_)
    for span in varying:
        fixed[slice(*span)] = False
    block = sample[0].copy()
    same = (sample[(sample[:, fixed] == block[fixed]).all(axis=1)] == block).all(axis=0)
    for span in varying:
        # The first digits of a counter are the same for a while only.
        same[slice(*span)] = same[slice(*span)].all()
    return _Layout(block, same, spans, pairs, bool(walk.has(spec5.TOPIC_ALIAS)[0]))


# -- any blocks --------------------------------------------------------------------------------------------------------


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
class _Walk:
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

    def span(self, ident: int) -> _Span | None:
        """Return the offsets of a property's value in the first block, or None."""
        places = self._places.get(ident)
        return (
            None
            if places is None
            else (int(places.at[0] - self.begin[0]), int(places.end[0] - self.begin[0]))
        )

    def pair_spans(self) -> list[tuple[_Span, _Span]]:
        """Return the offsets of the keys and values in the first block."""
        found = [[int(place[0] - self.begin[0]) for place in pairs.places] for pairs in self._pairs]
        return [((key, key_end), (value, end)) for key, key_end, value, end in found]

    def columns(self) -> dict[str, Any]:
        """Return the columns. Blocks with malformed text become odd."""
        makers = {properties.BINARY: self._binary, properties.TEXT: self._text, properties.NAME: self._name}
        result = {}
        for name, (ident, _) in PROPERTIES.items():
            places = self._places.get(ident)
            if places is not None:
                column = makers.get(_KINDS[ident], self._number)(places)
                result[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
        if self._pairs:
            result[_NAMES[spec5.USER_PROPERTY]] = self._maps()
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
        kind = _KINDS.get(ident, 0)
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
        found = self._binary(places)
        empty = places.at == places.end
        if places.there is not None:
            empty &= places.there
        self.odd |= empty
        return self._checked(found, wildcards=True)

    def _checked(self, found: Any, rows: npt.NDArray[Any] | None = None, wildcards: bool = False) -> Any:
        """Return a binary array as strings. Blocks with malformed text become odd; row i is in block `rows[i]`."""
        bad = _bad_texts(found, wildcards)
        if bad.any():
            self.odd[bad if rows is None else rows[bad]] = True
            # The caller drops the column. A map aborts the process if a name is null.
            return pa.array([""] * len(found), pa.string())
        return _as_strings(found)

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
        return _map(offsets, count > 0, keys, items)


_ENTRIES = (_MAP.key_field, _MAP.item_field)


def _map(offsets: Ints, there: Bools | None, keys: Any, items: Any) -> Any:
    """Return a map for each row, null where not `there`."""
    entries = pa.StructArray.from_arrays([keys, items], fields=list(_ENTRIES))
    valid = None if there is None or there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(_MAP, len(offsets) - 1, [valid, pa.py_buffer(offsets)], children=[entries])


def _as_strings(found: Any) -> Any:
    """Return a binary array of UTF-8 as strings."""
    return pa.Array.from_buffers(pa.string(), len(found), found.buffers(), offset=found.offset)


def _bad_texts(found: Any, wildcards: bool = False) -> Bools:
    """Return which values of a binary array are no UTF-8 or have U+0000; with `wildcards`, also those with # or +."""
    starts, data = octets(found)
    some = data[starts[0] : starts[-1]]
    bad = np.zeros(len(found), np.bool_)
    if len(some):
        if some.min() == 0:
            _mark(bad, starts, some == 0)
        if wildcards:
            _mark(bad, starts, (some == 0x23) | (some == 0x2B))
        if some.max() > 127:
            bad |= _not_utf8(found)
    return bad


def _mark(bad: Bools, starts: Ints, where: Bools) -> None:
    """Mark the rows of bytes."""
    at = np.flatnonzero(where)
    if len(at):
        bad[np.searchsorted(starts, at + starts[0], side="right") - 1] = True


def _not_utf8(found: Any) -> Bools:
    """Return which values of a binary array are not UTF-8."""
    bad = np.zeros(len(found), np.bool_)
    try:
        pa.Array.from_buffers(pa.string(), len(found), found.buffers(), offset=found.offset).validate(
            full=True
        )
    except pa.ArrowInvalid:
        for i, text in enumerate(found.to_pylist()):
            try:
                (text or b"").decode()
            except UnicodeDecodeError:
                bad[i] = True
    return bad


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


def _by_core(data: Octets, at: Ints, end: Ints) -> Found:
    """Decode blocks one by one with the core."""
    blocks = ranges(np.ascontiguousarray(data), at, end).to_pylist()
    checked = [_core_block(block) for block in blocks]
    error, error_at, alias = (
        np.array(column) for column in zip(*(each[:3] for each in checked), strict=True)
    )
    columns = {}
    for name, (_, type_) in PROPERTIES.items():
        values = [each[3].get(name) for each in checked]
        if any(value is not None for value in values):
            column = pa.array(values, type_)
            columns[name] = column.dictionary_encode() if pa.types.is_string(type_) else column
    return Found(error.astype(np.int8), error_at.astype(np.int32), alias, columns)


def _core_block(block: bytes) -> tuple[int, int, bool, dict[str, Any]]:
    """Return 0 or an error, its offset, whether there is a topic alias, and the columns' values."""
    front = bytearray(4)
    size = put_varint(front, 0, len(block))
    whole = bytes(front[:size]) + block
    p = properties.Packet5(whole, check_name)
    status = properties.check(p, 0, len(whole), _IN_PUBLISH)
    if status < 0:
        return status, p.bad_at - size, False, {}
    found = decode(block, 0, len(block))
    values = {name: found[prop] for name, prop in _SPECIFIED.items() if prop in found}
    pairs = values.get(_NAMES[spec5.USER_PROPERTY])
    if pairs is not None:
        # A map has each name once.
        values[_NAMES[spec5.USER_PROPERTY]] = list(dict(pairs).items())
    return 0, 0, properties.has(p, spec5.TOPIC_ALIAS), values
