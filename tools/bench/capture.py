"""The capture log: frames of 58 bytes, thousands of records per second, one fdatasync per block.

Figures are medians of `ROUNDS`. Writing ends with the last block on disk, so it measures the disk as well; TMPDIR
selects the disk. Reading is from the page cache and checks every CRC: `columns` returns each block's columns as for
Spark, `records` creates an object for every record.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from headwater_host.capture import CaptureReader, list_blocks
from headwater_host.capture.block_builder import BlockBuilder
from tools.capture_log import LogWriter

ROUNDS = 5
FRAME = bytes(58)
PEERS = ("serial:/dev/ttyACM0", "serial:/dev/ttyACM1", "mqtt:127.0.0.1:1883")
BEGIN_NS = 1_790_000_000 * 10**9

# block_bytes, records per round. The first has a block and an fdatasync for each record.
SIZES = ((25, 300), (4 << 10, 20_000), (64 << 10, 200_000), (1 << 20, 200_000), (8 << 20, 200_000))


def _append(take: Callable[..., object], count: int) -> None:
    for number in range(count):
        take(BEGIN_NS + number, 1 << 40, PEERS[number % 3], 0, 1, 4, FRAME)


def _write(directory: Path, block_bytes: int, count: int) -> None:
    with LogWriter(directory, block_bytes=block_bytes, segment_bytes=1 << 30) as writer:
        _append(writer.append, count)


def _columns(directory: Path) -> int:
    return sum(block.header.records for block in CaptureReader(directory).blocks())


def _records(directory: Path) -> int:
    return sum(1 for _ in CaptureReader(directory).records())


def _round(directory: Path, block_bytes: int, count: int) -> dict[str, float]:
    """Return the seconds for all records, and the bytes and number of blocks."""
    clock = time.perf_counter
    marks = [clock()]
    # Append to one block that is never encoded.
    _append(BlockBuilder(32 << 20).append, count)
    marks.append(clock())
    _write(directory, block_bytes, count)
    marks.append(clock())
    read = [_columns(directory)]
    marks.append(clock())
    read.append(_records(directory))
    marks.append(clock())
    if read != [count, count]:
        raise AssertionError(f"{read} of {count} records were read")
    names = ("append", "write", "columns", "records")
    seconds = {name: end - begin for name, (begin, end) in zip(names, pairwise(marks), strict=True)}
    blocks = list_blocks(directory)
    return seconds | {"bytes": sum(block.length for block in blocks), "blocks": len(blocks)}


def _size(block_bytes: int, count: int) -> dict[str, object]:
    rounds = []
    for _ in range(ROUNDS):
        with TemporaryDirectory(prefix="headwater-bench-") as place:
            rounds.append(_round(Path(place), block_bytes, count))
    median = {what: statistics.median(one[what] for one in rounds) / count for what in rounds[0]}
    return {
        "block": f"{block_bytes >> 10} KiB" if block_bytes >= 1024 else "1 record",
        "records per block": f"{1 / median['blocks']:.0f}",
        "bytes per record": f"{median['bytes']:.1f}",
        "append, µs": f"{median['append'] * 1e6:.2f}",
        "write, k/s": f"{1e-3 / median['write']:.1f}",
        "read columns, k/s": f"{1e-3 / median['columns']:.0f}",
        "read records, k/s": f"{1e-3 / median['records']:.0f}",
    }


def run() -> list[dict[str, object]]:
    """Return a row for each block size."""
    return [_size(*size) for size in SIZES]


if __name__ == "__main__":
    for row in run():
        print(row)
