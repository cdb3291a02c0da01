"""Convert between Arrow columns and numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def one(column: Any) -> Any:
    """Return a column as one array, without a copy if it has one chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def codes(column: Any) -> npt.NDArray[np.int32]:
    """Return the indexes of a dictionary column, -1 for null."""
    indices = one(column).indices
    result: npt.NDArray[np.int32] = (indices.fill_null(-1) if indices.null_count else indices).to_numpy()
    return result


def values(column: Any) -> list[str]:
    """Return the dictionary of a dictionary column of strings."""
    result: list[str] = one(column).dictionary.to_pylist()
    return result


def numbers(column: Any) -> npt.NDArray[Any]:
    """Return a column of numbers, 0 for null."""
    array = one(column)
    result: npt.NDArray[Any] = (array.fill_null(0) if array.null_count else array).to_numpy()
    return result


def null_codes(n: int) -> Any:
    """Return a dictionary column of `n` null strings."""
    return pa.DictionaryArray.from_arrays(pa.nulls(n, pa.int32()), pa.array([], pa.string()))


def flags(column: Any) -> Bools:
    """Return a column of booleans without nulls."""
    result: Bools = one(column).to_numpy(zero_copy_only=False)
    return result


def valid(column: Any) -> Bools:
    """Return where a column is not null."""
    array = one(column)
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    result: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return result


def octets(column: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the n + 1 offsets of a binary column's n values, and the bytes that they refer to."""
    _, starts, data = column.buffers()
    offsets = np.frombuffer(starts or bytes(4), np.int32)[column.offset : column.offset + len(column) + 1]
    return offsets, np.frombuffer(data or b"", np.uint8)


def ranges(
    data: npt.NDArray[np.uint8], at: npt.NDArray[Any], end: npt.NDArray[Any], missing: Bools | None = None
) -> Any:
    """Return a binary column of byte ranges with increasing, disjoint offsets, null where `missing`."""
    return interleaved_ranges(data, [(at, end)], missing)


def interleaved_ranges(
    data: npt.NDArray[np.uint8],
    edges: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    missing: Bools | None = None,
) -> Any:
    """Return a binary column of several byte ranges for each row. The offsets of all increase and are disjoint."""
    n, step = len(edges[0][0]) * len(edges), 2 * len(edges)
    pieces = np.zeros(2 * n + 1, np.int32)
    for k, (at, end) in enumerate(edges):
        pieces[2 * k : -1 : step] = at
        pieces[2 * k + 1 :: step] = end
    pieces[-1] = pieces[-2] if n else 0
    buffers = [None, pa.py_buffer(pieces), pa.py_buffer(data)]
    whole = pa.Array.from_buffers(pa.binary(), 2 * n, buffers)
    return whole.take(pa.array(np.arange(0, 2 * n, 2, dtype=np.int32), mask=missing))


def number(texts: Iterable[str], known: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return the number of each text in `known`, which grows."""
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)


def times(ns: npt.NDArray[np.int64], missing: Bools | None = None) -> Any:
    """Return a column of timestamps, null where `missing`."""
    return pa.array(ns // 1000, mask=missing).cast(pa.timestamp("us", tz="UTC"))


def strings(index: npt.NDArray[Any], names: list[str], missing: Bools | None = None) -> Any:
    """Return a dictionary column of strings, null where `missing`."""
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), pa.array(names, pa.string()))


def take(columns: dict[str, Any], rows: npt.NDArray[Any]) -> dict[str, Any]:
    """Select rows of each column."""
    indices = pa.array(rows)
    return {name: column.take(indices) for name, column in columns.items()}


def as_file(table: Any) -> bytes:
    """Return a table as an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    result: bytes = sink.getvalue().to_pybytes()
    return result
