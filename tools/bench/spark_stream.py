"""Spark (local[2]): `headwater pipeline stream` beside a batch run, and from a publisher to a row that can be read.

The log of the first rows has frames of 58 bytes; figures are medians of three rounds, batch and stream in turn. For the
last rows a publisher sends messages of about 142 bytes at QoS 1 and a steady rate to mosquitto, the gateway records
them, and the stream runs with its default settings; a reader opens each new version of the table `messages`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.gateway import DEFAULTS, Gateway, GatewayError, Process
from tools.bench.hosts import sync
from tools.bench.spark import extend_log, in_rounds, large, ratio, run_pipeline, say, small, write_log
from tools.bench.spark_process import SETTINGS
from tools.broker import Mosquitto

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = 8_000_000
_QUICK_FRAMES = 100_000
_ROUNDS = 3
#: Bytes per trigger; the log has about 680 MiB.
_SIZES = (64 << 20, 256 << 20)
#: Messages per second, and seconds, of which the first are for warming up.
PACE = 1000
_SECONDS, _WARM_S = 60, 20
_QUICK_SECONDS, _QUICK_WARM_S = 10, 3
_POLL_S = 0.05
_LONG_S = 300.0
_TOPIC = "hw/#"


def _stream(spark: SparkSession, log: Path, out: Path, size: int) -> None:
    """Turn a whole log into new tables, micro-batch by micro-batch."""
    from headwater_spark.engine import SparkEngine
    from headwater_spark.plan import Log
    from headwater_spark.stream import Stream

    shutil.rmtree(out, ignore_errors=True)
    Stream(SparkEngine(spark), [Log.at(log)], out).run(spark, trigger=None, bytes_per_trigger=size)


def _backlog(spark: SparkSession, folder: Path, frames: int, rounds: int) -> Iterator[dict[str, object]]:
    say("writing the log")
    log = write_log(folder / "log", small, frames)
    works: dict[str, Callable[[], object]] = {"batch run": lambda: run_pipeline(spark, log, folder / "out")}
    for size in _SIZES:
        works[f"stream, {size >> 20} MiB per trigger"] = lambda size=size: _stream(  # type: ignore[misc]
            spark, log, folder / "out", size
        )
    seconds = in_rounds(works, rounds)
    for name, found in seconds.items():
        rate = frames / statistics.median(found) / 1e6
        yield {"what": name, "M frames/s": f"{rate:.2f}", "of batch": ratio(seconds["batch run"], found)}


def _increment(spark: SparkSession, folder: Path, frames: int, rounds: int) -> Iterator[dict[str, object]]:
    """Add 1 % to tables of a whole log, and one message."""
    from headwater_spark import pipeline

    log, out = folder / "log", folder / "out"
    whole = statistics.median(in_rounds({"batch run": lambda: run_pipeline(spark, log, out)}, 1)["batch run"])
    at = frames
    for count, what in ((frames // 100, "1 % more"), (1, "one message more")):
        found = []
        for _ in range(rounds + 1):
            extend_log(log, small, at, at + count)
            at += count
            began = time.perf_counter()
            pipeline.run(spark, log, out)
            found.append(time.perf_counter() - began)
        middle = statistics.median(found[1:])
        say(f"{what}: {', '.join(f'{one:.2f}' for one in found)} s")
        yield {"what": what, "of batch": f"{middle / whole:.3f} of its time", "seconds": f"{middle:.2f}"}


def _live(folder: Path, duration_s: int, warm_s: int) -> Iterator[dict[str, object]]:
    out = folder / "live"
    with ExitStack() as stack:
        settings = DEFAULTS | {"max_queued_messages": PACE * duration_s}
        broker = stack.enter_context(Mosquitto(folder / "broker", settings=settings))
        (folder / "gateway").mkdir()
        gateway = Gateway(broker.port, _TOPIC, 1, folder / "gateway", "5.0")
        stack.callback(gateway.process.kill)
        places = ("--capture", gateway.log, "--out", out)
        stream = Process("headwater_host", "pipeline", "stream", *places, "--master", "local[2]")
        stack.callback(stream.kill)
        # The first micro-batches of a Spark process take seconds.
        publish(broker.port, 0, 1)
        _until(lambda: bool(_files(out)), "the stream has no row")
        reader = Process("tools.bench.spark_stream", "read", out, PACE * duration_s + 1)
        stack.callback(reader.kill)
        publisher = Process("tools.bench.spark_stream", "publish", broker.port, 1, PACE * duration_s)
        stack.callback(publisher.kill)
        found = [line.split() for line in iter(reader.line, "end\n")]
        stream.end()
    first = sorted(int(sent) for sent, _ in found)[1]
    late = sorted((int(seen) - int(sent)) / 1e9 for sent, seen in found if int(sent) > first + warm_s * 10**9)
    for share, name in ((0.5, "median"), (0.99, "99 %"), (1.0, "maximum")):
        value = late[min(len(late) - 1, int(len(late) * share))]
        yield {"what": f"published to readable, {PACE}/s, {name}", "seconds": f"{value:.2f}"}


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LONG_S
    while not condition():
        if time.monotonic() > deadline:
            raise GatewayError(what)
        time.sleep(_POLL_S)


def run(quick: bool = False) -> list[dict[str, object]]:
    """Return a row per figure. Raises BrokerError without mosquitto, and GatewayError."""
    from headwater_spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    frames, rounds = (_QUICK_FRAMES, 1) if quick else (FRAMES, _ROUNDS)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        spark = local_session("headwater bench", "local[2]", SETTINGS)
        try:
            rows = list(_backlog(spark, Path(folder), frames, rounds))
            rows += _increment(spark, Path(folder), frames, rounds)
        finally:
            spark.stop()
        rows += _live(Path(folder), *((_QUICK_SECONDS, _QUICK_WARM_S) if quick else (_SECONDS, _WARM_S)))
    columns = ("what", "M frames/s", "of batch", "seconds")
    return [{column: row.get(column, "") for column in columns} for row in rows]


def publish(port: int, start: int, count: int) -> None:
    """Publish messages from number `start` on, with their time, at a steady rate and QoS 1."""
    began = time.time()
    with sync.join(port, b"bench-publisher") as connection:
        connection.setblocking(True)
        for number in range(count):
            wait = began + number / PACE - time.time()
            if wait > 0:
                time.sleep(wait)
                connection.setblocking(False)
                try:
                    while connection.recv(1 << 16):  # PUBACKs
                        pass
                except BlockingIOError:
                    pass
                connection.setblocking(True)
            connection.sendall(large(start + number, time.time_ns() // 1000))
        time.sleep(1)


def _files(out: Path) -> set[str]:
    """Return the files of the table `messages`."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return set(DeltaTable(str(out / "messages")).file_uris())
    except TableNotFoundError:
        return set()


def read(out: Path, count: int) -> None:
    """Print the send time of each message and the time at which its row could be read, in ns; then `end`."""
    import pyarrow.parquet as pq

    seen: set[str] = set()
    rows = 0
    deadline = time.monotonic() + _LONG_S
    while rows < count and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        files = _files(out)
        for path in sorted(files - seen):
            sent = pq.read_table(path, columns=["sent_ns"])["sent_ns"].to_pylist()
            now = time.time_ns()
            rows += len(sent)
            print("\n".join(f"{one} {now}" for one in sent), flush=True)
        seen |= files
    print("end", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        publish(*(int(text) for text in sys.argv[2:]))
    else:
        read(Path(sys.argv[2]), int(sys.argv[3]))
