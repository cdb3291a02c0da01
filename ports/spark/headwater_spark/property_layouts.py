"""Decode property blocks of MQTT 5.0 that have a layout in common: the same properties and names in the same order.

Layouts are learned from samples and kept, since consecutive batches are alike. A value is expected to have the same
bytes in all blocks if it had in the samples, or else the same size. Everything from one value of unknown size to the
next is one piece, which is compared in all blocks at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.mqtt import properties, spec5
from headwater.wire import get_u16
from headwater_spark.arrow import Bools, Rows, interleaved_ranges
from headwater_spark.property_columns import (
    KINDS,
    PROPERTIES,
    USER_PROPERTIES,
    Ints,
    Octets,
    Part,
    as_strings,
    bad_texts,
    check,
    column,
    maps,
)

#: What the values of all blocks have in common: the bytes, the size, or nothing.
_Known = bytes | int | None
_Heads = tuple[bytes, ...]
#: Byte strings of one size.
_Fixed = npt.NDArray[np.void]

# Blocks to learn from: new layouts if this part of a batch has no known one, or more; otherwise values that vary.
_MANY = 1 / 16
_SAMPLE = 64
_FEW = 8
_STEP = 2_654_435_761
# A layout is learned if this part of the sample has it, or more.
_USUAL = 1 / 8
# Rounds of learning in a batch, layouts that are kept, and bytes in the pieces of a layout.
_MAX_ROUNDS = 6
_MAX_KNOWN = 32
_MAX_SIZE = 1024
# Blocks that are masked together.
_TILE = 256
_TEXTS = (properties.TEXT, properties.NAME)


@dataclass
class _Shape:
    """The parts of a block that are the same in all blocks with a layout."""

    #: The bytes before each value, without the value's length, and those after all values.
    heads: list[bytes] = field(default_factory=list)
    #: The property of each value, and the names of the user properties.
    idents: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    alias: bool = False


@dataclass
class _Piece:
    """Bytes of all blocks, of which those are fixed whose mask is 255; the others are 0."""

    fixed: bytearray = field(default_factory=bytearray)
    mask: bytearray = field(default_factory=bytearray)
    #: Whether the last two bytes are the size of a value that follows.
    sized: bool = False

    def add(self, some: bytes, varies: bool = False) -> None:
        self.fixed += some
        self.mask += (b"\0" if varies else b"\xff") * len(some)

    @cached_property
    def scalar(self) -> Any:
        """The fixed bytes for Arrow."""
        return pa.scalar(bytes(self.fixed), pa.binary(len(self.fixed)))

    def equal(self, blocks: _Fixed) -> Bools:
        """Return which blocks have the fixed bytes. Overwrites the others."""
        octets = blocks.view(np.uint8)
        n, size = len(blocks), len(self.mask)
        if 0 in self.mask:
            whole = n // _TILE * _TILE * size
            for some, rows in ((octets[:whole], _TILE), (octets[whole:], 1)):
                tiles = some.reshape(-1, rows * size)
                tiles &= np.frombuffer(self.mask * rows, np.uint8)
        equal = pc.equal(column(self.scalar.type, n, None, octets), self.scalar)
        if equal.true_count == n:
            return np.ones(n, np.bool_)
        found: Bools = equal.to_numpy(zero_copy_only=False)
        return found


class _Layout:
    """A shape, and what is known of its values."""

    def __init__(self, shape: _Shape, known: list[_Known]):
        self.shape = shape
        self.known = known
        self.pieces = [_Piece()]
        #: The place of each value: the number of its piece, and its offset in it.
        self.places: list[tuple[int, int]] = []
        for head, ident, value in zip(shape.heads, shape.idents, known, strict=False):
            piece = self.pieces[-1]
            piece.add(head)
            size = value if isinstance(value, int) else len(value or b"")
            if KINDS[ident] != properties.FOUR:
                piece.add(size.to_bytes(2, "big"), varies=value is None)
            self.places.append((len(self.pieces) - 1, len(piece.mask)))
            if value is None:
                piece.sized = True
                self.pieces.append(_Piece())
            else:
                piece.add(value if isinstance(value, bytes) else bytes(size), varies=isinstance(value, int))
        self.pieces[-1].add(shape.heads[-1])
        self.size = sum(len(piece.mask) for piece in self.pieces)
        if not self.pieces[-1].mask:
            self.pieces.pop()

    @property
    def varies(self) -> bool:
        """True if the size of the blocks varies."""
        return None in self.known

    def candidates(self, sizes: Ints) -> Bools:
        """Return which blocks may have this layout, by their sizes."""
        return sizes >= self.size if self.varies else sizes == self.size


@dataclass
class _Group:
    """Blocks with one layout: their rows and sizes, the starts of their pieces, and the values of one size that vary.

    A value of unknown size ends where the next piece starts. The last start is the end of the last piece.
    """

    layout: _Layout
    data: Octets
    rows: Rows
    sizes: Ints
    starts: list[Rows]
    values: dict[int, _Fixed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep only the blocks with the layout."""
        for number, piece in enumerate(self.layout.pieces):
            size = len(piece.mask)
            windows: _Fixed = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,))
            # Blocks without the layout may lead anywhere.
            start = self.starts[-1]
            blocks = windows[np.minimum(start, len(windows) - 1) if number else start]
            after = start + size
            if piece.sized:
                after += _part(blocks, ">u2", size - 2)
            self.starts.append(after)
            for i, ((place, at), known) in enumerate(zip(self.layout.places, self.layout.known, strict=True)):
                if place == number and isinstance(known, int):
                    self.values[i] = _part(blocks, f"V{known}", at).copy()
            self._keep(piece.equal(blocks))
            if not len(self.rows):
                return
        if self.layout.varies:
            self._keep(self.starts[-1] == self.starts[0] + self.sizes)

    def _keep(self, where: Bools) -> None:
        if not where.all():
            self.rows, self.sizes = self.rows[where], self.sizes[where]
            self.starts = [start[where] for start in self.starts]
            self.values = {i: some[where] for i, some in self.values.items()}

    def columns(self) -> dict[str, Any]:
        """Return the columns of the blocks, after those with malformed texts were removed."""
        while len(self.rows):
            self._good = np.ones(len(self.rows), np.bool_)
            found = self._columns()
            if self._good.all():
                return found
            self._keep(self._good)
        return {}

    def _columns(self) -> dict[str, Any]:
        found = {}
        idents = self.layout.shape.idents
        for name, (ident, type_) in PROPERTIES.items():
            places = [i for i, each in enumerate(idents) if each == ident]
            if name == USER_PROPERTIES and places:
                found[name] = self._maps(places)
            elif places:
                found[name] = _MAKERS[type_](self, places)
        return found

    def _values(self, places: list[int]) -> Any:
        """Return some values of each block, one after the other, as a binary array."""
        known = [self.layout.known[i] for i in places]
        if None in known:
            return interleaved_ranges(self.data, [self._range(i) for i in places])
        parts = [
            value if isinstance(value, bytes) else self.values[i]
            for i, value in zip(places, known, strict=True)
        ]
        constants = tuple(part for part in parts if isinstance(part, bytes))
        if len(constants) == len(parts):
            return _constant(len(self.rows), pa.binary(), *constants)
        return _interleaved(len(self.rows), parts)

    def _range(self, i: int) -> tuple[Rows, Rows]:
        """Return where the values begin and end."""
        piece, at = self.layout.places[i]
        known, start = self.layout.known[i], self.starts[piece] + at
        if known is None:
            return start, self.starts[piece + 1]
        return start, start + (known if isinstance(known, int) else len(known))

    def _number(self, places: list[int]) -> Any:
        value = self.layout.known[places[0]]
        if isinstance(value, bytes):
            return _constant(len(self.rows), pa.int64(), value)
        return pa.array(self.values[places[0]].view(">u4").astype(np.int64))

    def _text(self, places: list[int]) -> Any:
        value = self.layout.known[places[0]]
        if isinstance(value, bytes):
            return _constant(len(self.rows), pa.string(), value)
        found = self._values(places).dictionary_encode()
        name = KINDS[self.layout.shape.idents[places[0]]] == properties.NAME
        bad = bad_texts(found.dictionary, name)
        if bad.any():
            self._good &= ~bad[found.indices.to_numpy()]
        return pa.DictionaryArray.from_arrays(found.indices, as_strings(found.dictionary), safe=False)

    def _maps(self, places: list[int]) -> Any:
        n, names = len(self.rows), self.layout.shape.names
        keys, items = _constant(n, pa.binary(), *names), self._values(places)
        if not all(isinstance(self.layout.known[i], bytes) for i in places):
            bad = bad_texts(items)
            if bad.any():
                self._good &= ~bad.reshape(n, -1).any(axis=1)
        offsets = np.arange(n + 1, dtype=np.int32) * np.int32(len(names))
        return maps(offsets, None, as_strings(keys), as_strings(items))


_MAKERS = {pa.string(): _Group._text, pa.int64(): _Group._number, pa.binary(): _Group._values}


def _part(rows: _Fixed, dtype: Any, at: int) -> npt.NDArray[Any]:
    """Return the bytes at an offset of each element."""
    found: npt.NDArray[Any] = np.ndarray(rows.shape, dtype, rows, at, rows.strides)
    return found


def _constant(n: int, type_: pa.DataType, *values: bytes) -> Any:
    """Return n rows of the same value or values."""
    return _constants(1 << (n - 1).bit_length(), type_, values)[: n * len(values)]


@lru_cache(maxsize=8)
def _constants(n: int, type_: pa.DataType, values: tuple[bytes, ...]) -> Any:
    if pa.types.is_string(type_):
        indices = pa.array(np.zeros(n, np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([values[0].decode()]))
    if pa.types.is_integer(type_):
        return pa.array(np.full(n, int.from_bytes(values[0], "big")))
    return _interleaved(n, values)


def _interleaved(n: int, parts: Sequence[bytes | _Fixed]) -> Any:
    """Return a binary array of n rows of values, one after the other; bytes are in all rows."""
    *begins, size = accumulate(
        (len(part) if isinstance(part, bytes) else part.itemsize for part in parts), initial=0
    )
    rows = np.arange(n, dtype=np.int32) * np.int32(size)
    offsets = np.full(n * len(parts) + 1, n * size, np.int32)
    for k, begin in enumerate(begins):
        np.add(rows, np.int32(begin), out=offsets[k : -1 : len(parts)])
    octets = parts[0]
    if len(parts) > 1 or isinstance(octets, bytes):
        row = b"".join(part if isinstance(part, bytes) else bytes(part.itemsize) for part in parts)
        octets = np.frombuffer(row * n, np.uint8)
        for begin, part in zip(begins, parts, strict=True):
            if not isinstance(part, bytes):
                octets = octets if octets.flags.writeable else octets.copy()
                np.ndarray((n,), part.dtype, octets, begin, (size,))[:] = part
    return column(pa.binary(), n * len(parts), None, offsets, octets)


# The known layouts by their heads, those first that the last batch had.
_KNOWN: dict[_Heads, _Layout] = {}


def split(data: Octets, at: Ints, sizes: Ints) -> tuple[list[Part], Rows]:
    """Decode blocks with layouts. Return them, and the rows of the other blocks that have a size.

    Blocks are `data[at[i] : at[i] + sizes[i]]`, properties without their length. The sizes of decoded blocks become 0.
    """
    n = len(at)
    starts = at.astype(np.intp)
    count = left = int(np.count_nonzero(sizes))
    parts: list[Part] = []
    used: dict[_Heads, int] = {}
    layouts = list(_KNOWN.values())
    for _ in range(_MAX_ROUNDS):
        for layout in layouts:
            some = layout.candidates(sizes)
            every = some.all()
            rows = np.arange(n) if every else np.flatnonzero(some)
            if not left or not len(rows):
                continue
            group = (
                _Group(layout, data, rows, sizes, [starts])
                if every
                else _Group(layout, data, rows, sizes[rows], [starts[rows]])
            )
            columns = group.columns()
            if len(group.rows):
                parts.append(Part(group.rows, layout.shape.alias, columns))
                used[tuple(layout.shape.heads)] = len(group.rows)
                left -= len(group.rows)
                sizes[group.rows] = 0
        layouts = _learned(data, at, sizes, left > _MANY * count) if left else []
        if not layouts:
            break
    known = sorted(_KNOWN, key=lambda heads: (heads not in used, _KNOWN[heads].varies, -used.get(heads, 0)))
    for heads in known:
        layout = _KNOWN.pop(heads)
        if len(_KNOWN) < _MAX_KNOWN:
            _KNOWN[heads] = layout
    return parts, np.flatnonzero(sizes)


def _learned(data: Octets, at: Ints, sizes: Ints, many: bool) -> list[_Layout]:
    """Learn from a sample of the blocks that have a size, and return the changed layouts; new ones only from many."""
    rows = np.flatnonzero(sizes)
    most = _SAMPLE if many else _FEW
    if len(rows) > most:
        # The step has no period in common with the rows.
        rows = rows[np.arange(most) * _STEP % len(rows)]
    alike: dict[_Heads, list[list[bytes]]] = {}
    shapes = {}
    for row in rows:
        shape, values = _parsed(data[at[row] : at[row] + sizes[row]].tobytes())
        if shape is not None:
            heads = tuple(shape.heads)
            shapes[heads] = shape
            alike.setdefault(heads, []).append(values)
    found = []
    for heads, some in alike.items():
        old: list[_Known] = _KNOWN[heads].known if heads in _KNOWN else list(some[0])
        known = [reduce(_common, values, first) for first, *values in zip(old, *some, strict=True)]
        layout = _Layout(shapes[heads], known)
        usual = heads in _KNOWN or (many and len(some) >= _USUAL * len(rows))
        if usual and layout.size <= _MAX_SIZE:
            _KNOWN[heads] = layout
            found.append(layout)
    return found


def _common(known: _Known, value: bytes) -> _Known:
    """Return what is known of values after another one."""
    if known in (value, len(value)):
        return known
    return len(value) if isinstance(known, bytes) and len(known) == len(value) else None


def _parsed(block: bytes) -> tuple[_Shape | None, list[bytes]]:
    """Return the shape and the values of a block; no shape if it is malformed or repeats a name."""
    packet, status = check(block)
    shape = _Shape()
    values: list[bytes] = []
    if status < 0:
        return None, values
    shape.alias = properties.has(packet, spec5.TOPIC_ALIAS)
    at = head = 0
    while at < len(block):
        ident, begin, at = block[at], at + 1, properties.skip(block, at)
        kind = KINDS[ident]
        if kind == properties.PAIR:
            end = begin + 2 + get_u16(block, begin)
            shape.names.append(block[begin + 2 : end])
            begin = end
        elif kind != properties.FOUR and kind != properties.BINARY and kind not in _TEXTS:
            continue
        shape.heads.append(block[head:begin])
        shape.idents.append(ident)
        values.append(block[begin if kind == properties.FOUR else begin + 2 : at])
        head = at
    shape.heads.append(block[head:])
    return (shape if len(set(shape.names)) == len(shape.names) else None), values
