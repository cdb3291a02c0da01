"""Read ranges of a capture log as batches of numpy columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headwater_host.capture.format import DUPLICATE, HEADER_BYTES, Block
from headwater_host.capture.problem import Problem
from headwater_host.capture.scan import BlockInfo, scanning
from headwater_spark.arrow import number, numbers, octets
from headwater_spark.plan import EVER, OFFSET_BITS, Range, Span

Ints = npt.NDArray[np.int64]
#: A batch ends at this many bytes of frames, whatever its number of records.
BATCH_BYTES = 16 << 20
#: The columns of a batch with a number for each record: first indexes, which joined batches renumber.
_STORED_NUMBERS = ("time_ns", "connection", "first_ns", "offset", "record")
_OCTETS = ("direction", "protocol", "version", "mark")
# Rows of a batch of stored frames.
_STORED_ROWS = 1 << 12
_PER_RECORD = (
    *("peer", "file"),
    *("time_ns", "connection", "direction", "protocol", "version", "mark", "first_ns"),
    *("offset", "record", "position"),
)


@dataclass(frozen=True)
class Batch:
    """A batch of n records. `data[starts[i] : starts[i + 1]]` is the frame of record i.

    `first_ns` is 0 except for duplicates. `position` increases in the order of the log. `peer` and `file` are
    indexes into `peers` and `files`. `offset` is the offset of the record's block, and `record` its index in the
    block.
    """

    time_ns: Ints
    connection: Ints
    direction: npt.NDArray[np.uint8]
    protocol: npt.NDArray[np.uint8]
    version: npt.NDArray[np.uint8]
    mark: npt.NDArray[np.uint8]
    first_ns: Ints
    peer: npt.NDArray[np.int32]
    peers: list[str]
    file: npt.NDArray[np.int32]
    files: list[str]
    offset: Ints
    record: npt.NDArray[np.int32]
    position: Ints
    starts: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.time_ns)

    def slice(self, start: int, end: int) -> Batch:
        """Return records `start` to `end` without a copy."""
        part = slice(start, end)
        return replace(self, **self._each(lambda column: column[part]), starts=self.starts[start : end + 1])

    def select(self, rows: Ints) -> Batch:
        """Return some records, with a copy of their frames."""
        _, starts, data = self.frames().take(pa.array(rows)).buffers()
        return replace(
            self,
            **self._each(lambda column: column[rows]),
            starts=np.frombuffer(starts, np.int32)[: len(rows) + 1],
            data=np.frombuffer(data or b"", np.uint8),
        )

    def within(self, span: Span) -> Batch:
        """Return the records of a span of receive times; this batch if it has no others."""
        if span == EVER:
            return self
        inside = self.time_ns >= span.since
        if span.until != EVER.until:
            inside &= self.time_ns < span.until
        return self if inside.all() else self.select(np.flatnonzero(inside))

    def _each(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> dict[str, Any]:
        return {name: change(getattr(self, name)) for name in _PER_RECORD}

    def frames(self) -> Any:
        """Return the frames as an Arrow binary array over the same bytes."""
        buffers = [None, pa.py_buffer(self.starts), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)

    def frame(self, i: int) -> bytes:
        """Return the frame of record `i`."""
        return self.data[self.starts[i] : self.starts[i + 1]].tobytes()


def _array(column: memoryview, dtype: str) -> npt.NDArray[Any]:
    # The block's memoryviews have native byte order.
    return np.frombuffer(column, dtype)


def _from_block(info: BlockInfo, block: Block, number: int) -> Batch:
    n = info.header.records
    starts = np.empty(n + 1, np.int32)
    starts[0] = 0
    np.cumsum(_array(block.length, "u4"), out=starts[1:])
    mark = _array(block.mark, "u1")
    first_ns = np.zeros(n, np.int64)
    if block.first_ns:
        first_ns[mark == DUPLICATE] = _array(block.first_ns, "i8")
    first = (number << OFFSET_BITS) + info.offset + HEADER_BYTES
    return Batch(
        time_ns=_array(block.time_ns, "i8"),
        # Connection ids are below 2**63 until the year 2248; larger ones keep their bits.
        connection=_array(block.connection, "i8"),
        direction=_array(block.direction, "u1"),
        protocol=_array(block.protocol, "u1"),
        version=_array(block.version, "u1"),
        mark=mark,
        first_ns=first_ns,
        peer=_array(block.peer, "u2").astype(np.int32),
        peers=block.peers,
        file=np.zeros(n, np.int32),
        files=[info.file],
        offset=np.full(n, info.offset, np.int64),
        record=np.arange(n, dtype=np.int32),
        # The position of the record's receive time is unique.
        position=np.arange(first, first + 8 * n, 8, dtype=np.int64),
        starts=starts,
        data=np.frombuffer(block.body, np.uint8)[block.frames_at :],
    )


def _codes(
    parts: Sequence[tuple[npt.NDArray[np.int32], list[str]]],
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Merge columns of indexes with their own lists into one column with one list."""
    known: dict[str, int] = {}
    columns = []
    for codes, strings in parts:
        # A string table may contain a string twice.
        columns.append(number(strings, known)[codes])
    return np.concatenate(columns), list(known)


def _join(parts: Sequence[Batch]) -> Batch:
    """Join whole blocks into one batch."""
    if len(parts) == 1:
        return parts[0]
    sizes = [int(part.starts[-1]) for part in parts]
    starts = [np.zeros(1, np.int32)]
    starts += (part.starts[1:] + at for part, at in zip(parts, accumulate(sizes, initial=0), strict=False))
    peer, peers = _codes([(part.peer, part.peers) for part in parts])
    file, files = _codes([(part.file, part.files) for part in parts])
    return Batch(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _PER_RECORD[2:]},
        peer=peer,
        peers=peers,
        file=file,
        files=files,
        starts=np.concatenate(starts),
        data=np.concatenate([part.data[:size] for part, size in zip(parts, sizes, strict=True)]),
    )


def scan(ranges: Iterable[Range]) -> Iterator[tuple[Range, tuple[BlockInfo, Block] | Problem]]:
    """Yield the good blocks of the ranges and the problems between them, in the order of the log.

    Raises FileNotFoundError when a segment has been removed since the plan was made.
    """
    for part in ranges:
        options: dict[str, Any] = {"start": part.start, "end": part.end, "expected": part.expected}
        with scanning(part.path, part.salt, storage=part.storage, **options) as blocks:
            for found in blocks:
                if isinstance(found, Problem):
                    yield part, found
                elif found[1] is not None:
                    yield part, (found[0], found[1])


class Stored(NamedTuple):
    """A Parquet file with columns of the table `frames`, in the order of the log, in place of ranges of a log."""

    path: str
    number: int
    #: The difference is the size in bytes, like that of a range.
    start: int
    end: int


def _read_stored(part: Stored, batch_rows: int) -> Iterator[Batch]:
    first = part.number << OFFSET_BITS
    for rows in pq.ParquetFile(part.path).iter_batches(min(batch_rows, _STORED_ROWS)):
        n = rows.num_rows
        starts, data = octets(rows["frame"])
        names = {name: rows[name].dictionary_encode() for name in ("peer", "file")}
        columns: dict[str, Any] = {name: numbers(rows[name]) for name in _STORED_NUMBERS}
        columns |= {name: numbers(rows[name]).astype(np.uint8) for name in _OCTETS}
        yield Batch(
            **columns,
            peer=numbers(names["peer"].indices),
            peers=names["peer"].dictionary.to_pylist(),
            file=numbers(names["file"].indices),
            files=names["file"].dictionary.to_pylist(),
            position=np.arange(first, first + 8 * n, 8, dtype=np.int64),
            starts=starts - starts[0],
            data=data[starts[0] : starts[-1]],
        )
        first += 8 * n


def read(parts: Iterable[Range] | Iterable[Stored], batch_rows: int) -> Iterator[Batch | Problem]:
    """Yield the records of ranges or stored frames in batches of at most `batch_rows`; small blocks are joined.

    Batches with many bytes are smaller. Problems are yielded in the order of the log, soon before their batches.
    """
    waiting: list[Batch] = []
    rows = size = 0
    ranges: list[Range] = []
    for one in parts:
        if isinstance(one, Stored):
            yield from _read_stored(one, batch_rows)
        else:
            ranges.append(one)
    for part, found in scan(ranges):
        if isinstance(found, Problem):
            yield found
            continue
        batch = _from_block(*found, part.number)
        waiting.append(batch)
        rows += len(batch)
        size += len(batch.data)
        if rows >= batch_rows or size >= BATCH_BYTES:
            yield from _split(_join(waiting), batch_rows)
            waiting = []
            rows = size = 0
    if waiting:
        yield from _split(_join(waiting), batch_rows)


def _split(batch: Batch, batch_rows: int) -> Iterator[Batch]:
    """Yield pieces of about equal size, of at most `batch_rows` records and about BATCH_BYTES."""
    n = len(batch)
    pieces = max(-(-n // batch_rows), -(-int(batch.starts[-1] - batch.starts[0]) // BATCH_BYTES))
    for k in range(min(pieces, n)):
        yield batch.slice(n * k // pieces, n * (k + 1) // pieces)
