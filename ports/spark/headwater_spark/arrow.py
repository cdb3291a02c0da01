"""Convert between Arrow columns and numpy arrays."""

from __future__ import annotations

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


def strings(index: npt.NDArray[np.int32], names: list[str], missing: Bools | None = None) -> Any:
    """Return a dictionary column of strings, null where `missing`."""
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), pa.array(names, pa.string()))


def take(columns: dict[str, Any], rows: npt.NDArray[Any]) -> dict[str, Any]:
    """Select rows of each column."""
    indices = pa.array(rows)
    return {name: column.take(indices) for name, column in columns.items()}
