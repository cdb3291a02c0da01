"""Spark: the pipeline's time and memory by the size of the log, and two executors beside one.

Each size is a run in a Spark of its own, `local[2]`, of one log that grows: PUBLISH packets of 58 bytes. CPU time is
that of all processes; memory is the largest resident set of a Python worker, of Java and of the driver's Python. Java
takes the memory that it may have (2 GB). The executors are those of `local-cluster`, with one core each, beside the
driver; rounds alternate, and the ratio is that of the medians.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tools.bench.spark import extend_log, say, small
from tools.bench.spark_process import SparkProcess

_MILLION = 1_000_000
#: Millions of frames.
_SIZES = (1, 2, 4, 8, 16)
_QUICK = (0.1, 0.2, 0.4)
#: Millions of frames for the executors.
_EXECUTORS_SIZE = 4
_ROUNDS = 3
_MEMORY_MB = 1024
_COLUMNS = ("what", "s", "s per M", "CPU s per M", "worker MB", "Java MB", "driver MB", "of one")


def _sizes(folder: Path, sizes: tuple[float, ...]) -> Iterator[dict[str, object]]:
    written, log = 0, folder / "log"
    for size in sizes:
        frames = int(size * _MILLION)
        extend_log(log, small, written, frames)
        written = frames
        with SparkProcess("local[2]") as process:
            before = process.cost().cpu_s
            seconds = process.run(log, folder / "out")
            cost = process.cost()
        cpu = cost.cpu_s - before
        say(f"{size:g} million frames: {seconds:.2f} s, {cpu:.2f} s of CPU time")
        yield {
            "what": f"{size:g} M frames",
            "s": f"{seconds:.2f}",
            "s per M": f"{seconds / size:.2f}",
            "CPU s per M": f"{cpu / size:.2f}",
            "worker MB": f"{cost.worker / 1e6:.0f}",
            "Java MB": f"{cost.jvm / 1e6:.0f}",
            "driver MB": f"{cost.driver / 1e6:.0f}",
        }


def _executors(folder: Path, size: float, rounds: int) -> Iterator[dict[str, object]]:
    log = folder / "executors"
    extend_log(log, small, 0, int(size * _MILLION))
    settings = {"spark.executor.cores": "1", "spark.executor.memory": f"{_MEMORY_MB}m"}
    # Both must be there before the first task.
    settings |= {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        processes = {
            number: stack.enter_context(SparkProcess(f"local-cluster[{number},1,{_MEMORY_MB}]", settings))
            for number in seconds
        }
        for round_number in range(rounds + 1):
            for number, process in processes.items():
                took = process.run(log, folder / "out")
                if round_number:  # the first one warms up
                    seconds[number].append(took)
                    say(f"{number} executors, round {round_number} of {rounds}: {took:.2f} s")
    one = statistics.median(seconds[1])
    for number, found in seconds.items():
        middle = statistics.median(found)
        yield {
            "what": f"{size:g} M frames, {'one executor' if number == 1 else 'two executors'}",
            "s": f"{middle:.2f}",
            "s per M": f"{middle / size:.2f}",
            "of one": f"{one / middle:.2f}",
        }


def run(quick: bool = False) -> list[dict[str, object]]:
    """Return a row for each size, and for one and two executors."""
    sizes = _QUICK if quick else _SIZES
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        rows = list(_sizes(Path(folder), sizes))
        rows += _executors(Path(folder), *((_QUICK[-1], 1) if quick else (_EXECUTORS_SIZE, _ROUNDS)))
    cores = len(os.sched_getaffinity(0))
    rows[-1]["what"] = f"{rows[-1]['what']}; {cores} cores"
    return [{column: row.get(column, "") for column in _COLUMNS} for row in rows]
