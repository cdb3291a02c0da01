"""Hold a task's segments column by column: the fields of their MQMDEs and where their payloads are."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater_spark import mqmde
from headwater_spark.arrow import number, numbers

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# Odd numbers without a pattern mix a GroupId's three words.
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def hashes(topics: Any, group_id: Hashes) -> Hashes:
    """Return a number for each (topic, GroupId), equal on every machine. `topics` is a dictionary column without
    nulls.
    """
    digests = [blake2b(text.encode(), digest_size=8).digest() for text in topics.dictionary.to_pylist()]
    mixed: Hashes = np.frombuffer(b"".join(digests), np.uint64)[topics.indices.to_numpy()]
    for k in range(3):
        mixed = (mixed ^ group_id[:, k]) * _MIX[k]
        mixed ^= mixed >> np.uint64(29)
    mixed ^= mixed >> np.uint64(32)
    return mixed


class _Spool:
    """Collect bytes and read them back: in memory up to a limit, then in a file."""

    def __init__(self, memory: int):
        self._memory = memory
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._file: IO[bytes] | None = None
        self.size = 0

    def add(self, data: npt.NDArray[np.uint8]) -> None:
        self.size += len(data)
        self._pieces.append(data)
        if self._file is None and self.size > self._memory:
            self._file = tempfile.TemporaryFile(prefix="headwater-")  # noqa: SIM115 (until it is read)
        if self._file is not None:
            for piece in self._pieces:
                self._file.write(piece.data)
            self._pieces.clear()

    def read(self) -> npt.NDArray[np.uint8]:
        if self._file is None:
            return np.concatenate(self._pieces)
        self._file.flush()
        with self._file as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)


class Segments(NamedTuple):
    """Segments in their original order, as columns.

    `topic` and `format` are indexes into `topics` and `formats`; `hash` is that of (topic, GroupId). The data of
    segment i are `data[edges[2 * i] : edges[2 * i + 1]]`.
    """

    topic: npt.NDArray[np.int32]
    group_id: Hashes
    hash: Hashes
    seq: Ints
    offset: Ints
    length: Ints
    flags: Ints
    encoding: npt.NDArray[np.int32]
    ccsid: npt.NDArray[np.int32]
    format: npt.NDArray[np.int32]
    time_ns: Ints
    edges: Ints
    topics: list[str]
    formats: list[str]
    data: npt.NDArray[np.uint8]

    def content(self, i: int) -> memoryview:
        """Return the data of a segment."""
        return self.data[self.edges[2 * i] : self.edges[2 * i + 1]].data


def _codes(column: Any, numbers_: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return a dictionary column as indexes into `numbers_`, which grows."""
    result: npt.NDArray[np.int32] = number(column.dictionary.to_pylist(), numbers_)[column.indices.to_numpy()]
    return result


def _texts(column: Any, rows: Any) -> Any:
    """Return rows of a column of strings as a dictionary column without nulls."""
    some = column if isinstance(rows, slice) else column.take(pa.array(rows))
    if some.null_count:
        some = some.fill_null("")
    return some.dictionary_encode()


def collect(batches: Iterable[Any], memory: int) -> Segments | None:
    """Collect the segments of record batches with `topic` (string), `payload` and `time_ns`.

    Returns None if there are none. Payloads beyond `memory` bytes go to a file.
    """
    spool = _Spool(memory)
    topics: dict[str, int] = {}
    formats: dict[str, int] = {}
    columns: list[tuple[Any, ...]] = []
    for batch in batches:
        found = mqmde.decode(batch["payload"])
        good: Any = np.flatnonzero(found.reason == 0)
        if not len(good):
            continue
        if len(good) == len(found.rows):
            good = slice(None)
        rows: Any = found.rows[good]
        if len(rows) == batch.num_rows:
            rows = slice(None)
        group_id, flags, at, length = (
            found.group_id[good],
            found.flags[good],
            found.at[good],
            found.length[good],
        )
        topic = _texts(batch["topic"], rows)
        begin, end = int(at[0]), int(at[-1] + mqmde.SIZE + length[-1])
        edges = np.empty((len(at), 2), np.int64)
        edges[:, 0] = at + mqmde.SIZE - begin + spool.size
        edges[:, 1] = edges[:, 0] + length
        spool.add(found.data[begin:end])
        columns.append(
            (
                _codes(topic, topics),
                group_id,
                hashes(topic, group_id),
                found.seq[good],
                found.offset[good],
                length,
                flags,
                found.encoding[good],
                found.ccsid[good],
                _codes(found.format, formats)[good],
                numbers(batch["time_ns"])[rows],
                edges.ravel(),
            )
        )
    if not columns:
        return None
    joined: list[Any] = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return Segments._make([*joined, list(topics), list(formats), spool.read()])
