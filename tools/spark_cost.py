"""Measure what messages of many boards cost in Spark, and project a year.

    python -m tools.spark_cost
    python -m tools.spark_cost --messages 2000000 --boards 20000 --interval 30

Writes a capture log as a gateway does, with one message per board and interval, and runs the pipeline on it in this
process: first on all but the last hour, then on that hour, as an hourly run does. CPU time hardly depends on what else
the machine does; Spark's own time is in `./run bench spark`.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headwater_spark import delta
from headwater_spark.growth import grow
from headwater_spark.tables import DERIVED, TABLES
from tools.capture_log import LogWriter

_PEER = "mqtt:127.0.0.1:1883"
_BEGIN_NS = 1_790_000_000_000_000_000 // (3600 * 10**9) * 3600 * 10**9
_YEAR_S = 365 * 86400


class _Alone:
    """Run the work in this process."""

    slots = 1

    def run(self, numbers: Sequence[int], work: Callable[[int], Any], step: object = None) -> list[Any]:
        return [work(number) for number in numbers]

    def settle(self, folder: Path, tasks: int, first: int, settle: Callable[[int, Any], Any]) -> list[Any]:
        return [settle(first, pq.read_table(folder).combine_chunks().to_batches())]


def frames(messages: int, boards: int, interval_s: float) -> Iterator[tuple[int, bytes]]:
    """Yield receive time and PUBLISH (QoS 1) of each message, in order of time. Times and values are noisy."""
    chance = random.Random(1)
    step = int(interval_s * 10**9) // boards
    for number in range(messages):
        time_ns = _BEGIN_NS + number * step + chance.randrange(step)
        board, seq = number % boards, number // boards
        payload = b'{"board":"board-%05d","boot":3,"seq":%d,"t":%d,"celsius":%d.%02d,"humidity":%d.%d}' % (
            board,
            seq,
            time_ns // 1000 - int(chance.lognormvariate(10.5, 0.7)),
            15 + board % 11,
            chance.randrange(100),
            40 + board % 17,
            chance.randrange(10),
        )
        topic = b"plant/board-%05d" % board
        body = len(topic).to_bytes(2, "big") + topic + (number % 65535 + 1).to_bytes(2, "big") + payload
        yield time_ns, b"\x32%c%c%b" % (len(body) & 127 | 128, len(body) >> 7, body)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("segment-*.hwc"))


def _run(log: Path, out: Path) -> float:
    """Run the pipeline and return its CPU time in s."""
    began = time.process_time()
    grow(_Alone(), [log], out)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--messages", type=int, default=1_200_000, help="messages to measure; default: %(default)s"
    )
    parser.add_argument("--boards", type=int, default=10_000, help="boards; default: %(default)s")
    parser.add_argument(
        "--interval", type=float, default=60, help="seconds between messages; default: %(default)s"
    )
    chosen = parser.parse_args(arguments)
    hour = int(3600 / chosen.interval * chosen.boards)
    if not hour < chosen.messages:
        parser.error(f"--messages: an hour has {hour} messages; measure more")
    folder = Path(tempfile.mkdtemp(prefix="headwater-"))
    try:
        log, out = folder / "log", folder / "tables"
        first = chosen.messages - hour
        sizes, seconds = [], []
        writer = LogWriter(log)
        for number, (time_ns, frame) in enumerate(frames(chosen.messages, chosen.boards, chosen.interval)):
            if number == first:
                writer.close()
                sizes.append(_size(log))
                seconds.append(_run(log, out))
                writer = LogWriter(log)
            writer.append(time_ns, 1, _PEER, 0, 1, 4, frame, 0, 0)
        writer.close()
        sizes.append(_size(log))
        seconds.append(_run(log, out))
        _print(chosen, first, hour, sizes, seconds, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _print(
    chosen: argparse.Namespace, first: int, hour: int, sizes: list[int], seconds: list[float], out: Path
) -> None:
    year = chosen.boards * _YEAR_S / chosen.interval
    print(
        f"{chosen.boards:,} boards, a message every {chosen.interval:g} s: {year / 1e9:.2f} G messages a year\n"
    )
    rows = [("log", sizes[-1] / chosen.messages)]
    for table in (*TABLES, *DERIVED):
        size = sum(file.size for file in delta.live(out, table).files)
        if size:
            rows.append((table.name, size / chosen.messages))
    print(f"{'':18}{'bytes/message':>14}{'GB/year':>9}")
    for name, size in rows:
        print(f"{name:18}{size:14.1f}{size * year / 1e9:9.0f}")
    million = seconds[0] / first * 1e6
    print(f"\nCPU time: {million:.2f} s per million messages ({first:,} in one run)")
    hourly = seconds[1]
    print(f"a run each hour: {hourly:.1f} s for {hour:,} messages, {24 * hourly:.0f} s a day")
    print(
        f"a run each day: {million * year / 365 / 1e6:.0f} s; a whole year at once: {million * year / 3.6e9:.1f} h"
    )


if __name__ == "__main__":
    sys.exit(main())
