"""Spark (local[2]): captured frames per second, decoded and turned into tables.

The logs have messages of four boards: JSON with an identity in MQTT packets of 58 bytes with one value, or of 142
bytes with a time and four values; or the former as an FMQ Map in frames of 66 bytes. Each round runs everything on one
log, after one that warms up; rates and ratios are medians. *Copy*: Spark reads the Parquet files of all tables of the
same log and writes them, with the same compression. *Scan*: Spark reads those of `messages`. *Without health*: without
`device_health` and `reconciliation`. `--beside COMMIT` runs the pipeline of that commit as well.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench.spark_process import SETTINGS, SparkProcess, tree_of
from tools.capture_log import LogWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = 2_000_000
_QUICK_FRAMES = 100_000
_ROUNDS = 3
_PEER = "mqtt:127.0.0.1:1883"
_BEGIN_US = 1_763_700_000_000_000


def small(number: int) -> bytes:
    """Return a packet of 58 bytes: QoS 0, one value."""
    payload = b'{"board":"b%d","boot":3,"seq":%d,"load":0.%04d}' % (
        number % 4,
        1_000_000 + number // 4,
        number % 10_000,
    )
    return b"\x30\x38\x00\x03b/%d%b" % (number % 4, payload)


def large(number: int, time_us: int | None = None) -> bytes:
    """Return a packet of about 142 bytes: QoS 1, a time and four values."""
    payload = (
        b'{"board":"board%d","boot":3,"seq":%d,"t":%d,"load1":0.%02d,"mem_free":%d,"disk":%d,"net_rx":%d}'
        % (
            number % 4,
            1_000_000 + number // 4,
            _BEGIN_US + number * 500 - 2000 if time_us is None else time_us,
            number % 100,
            100_000 + number % 1000,
            5555,
            number,
        )
    )
    topic = b"hw/board%d/telemetry" % (number % 4)
    body = len(topic).to_bytes(2, "big") + topic + (number % 65535 + 1).to_bytes(2, "big") + payload
    return b"\x32%c%c%b" % (len(body) & 127 | 128, len(body) >> 7, body)


def fmq(number: int) -> bytes:
    """Return an FMQ frame at QoS 0 with the content of `small` as a Map; its id has the time."""
    board = number % 4
    pairs = b"\x11\x05board\x11\x02b%d\x11\x04boot\x31\x03\x11\x03seq\x33%b\x11\x04load\x48%b" % (
        board,
        (1_000_000 + number // 4).to_bytes(3, "little"),
        struct.pack("<d", number % 10_000 / 10_000),
    )
    body = b"\x11\x03b/%d\xd0\xe1\x04%b" % (board, pairs)
    made = ((_BEGIN_US + number * 500 - 2000) * 1000).to_bytes(8, "little")
    return b"\x30\x31%c\x00\xb0%b%c%c%b" % (board + 1, made, 0x10 | len(body) & 15, len(body) >> 4, body)


#: The logs: protocol, version and frames.
_LOGS = {"58": (1, 4, small), "142": (1, 4, large), "FMQ": (2, 0, fmq)}


def write_log(
    directory: Path, frame: Callable[[int], bytes], count: int, protocol: int = 1, version: int = 4
) -> Path:
    """Write a log of `count` frames, half a millisecond apart."""
    return extend_log(directory, frame, 0, count, protocol, version)


def extend_log(
    directory: Path, frame: Callable[[int], bytes], first: int, end: int, protocol: int = 1, version: int = 4
) -> Path:
    """Append the frames from number `first` up to `end` to a log."""
    # The log need not survive a power cut.
    with LogWriter(directory, datasync=lambda fd: None) as writer:
        for number in range(first, end):
            time_ns = (_BEGIN_US + number * 500) * 1000
            writer.append(time_ns, 5 << 20, _PEER, 0, protocol, version, frame(number))
    return directory


def run_pipeline(spark: SparkSession, log: Path, out: Path, **settings: Any) -> None:
    """Turn a whole log into new tables."""
    from headwater_spark import pipeline

    shutil.rmtree(out, ignore_errors=True)
    pipeline.run(spark, log, out, **settings)


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def in_rounds(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Run each of `works` once to warm up, then once in each round. Returns the seconds, by name.

    A work that returns a number has measured its seconds itself. The order of the works rotates.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(rounds + 1):
        for name in names:
            began = time.perf_counter()
            found = works[name]()
            took = found if isinstance(found, float) else time.perf_counter() - began
            if number:
                seconds[name].append(took)
        if number:
            names.append(names.pop(0))
    for name, found in seconds.items():
        say(f"{name}: {', '.join(f'{one:.2f}' for one in found)} s")
    return seconds


def ratio(base: Sequence[float], seconds: Sequence[float]) -> str:
    """Return how many times as fast as `base` something is: the median of the rounds, and in brackets all of them."""
    ratios = sorted(one / other for one, other in zip(base, seconds, strict=True))
    spread = f" ({ratios[0]:.2f}–{ratios[-1]:.2f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}{spread}"


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _copy(spark: SparkSession, out: Path, to: Path) -> None:
    """Copy all tables with Spark, from Parquet to Parquet."""
    from headwater_spark import delta
    from headwater_spark.tables import DERIVED, TABLES

    for table in (*TABLES, *DERIVED):
        files = [str(out / table.name / file.path) for file in delta.live(out, table).files]
        if files:
            writer = spark.read.parquet(*files).write.mode("overwrite").option("compression", "zstd")
            writer.parquet(str(to / table.name))


def _decoder_alone(log: Path, name: str) -> Callable[[], object]:
    from headwater_spark import fmq as fmq_decoder
    from headwater_spark import mqtt
    from headwater_spark.columns import Batch, read
    from headwater_spark.plan import plan

    decode: Callable[..., object] = fmq_decoder.decode if name == "FMQ" else mqtt.decode
    batches = [batch for part in plan(log, 1 << 30, 1).partitions for batch in read(part, 1 << 15)]
    frames = [(batch.data, batch.starts) for batch in batches if isinstance(batch, Batch)]
    return lambda: [decode(*each) for each in frames] and None


def _views(spark: SparkSession, log: Path) -> dict[str, Callable[[], object]]:
    def load(view: str, schema: str = "") -> Any:
        reader = spark.read.format("headwater").option("view", view).option("minPartitions", 2)
        return (reader.schema(schema) if schema else reader).load(str(log))

    some = "time_ns long, qos short, topic string, payload binary"
    return {
        "frames, all columns, into Spark": lambda: _noop(load("frames")),
        "frames, time_ns and frame, into Spark": lambda: _noop(load("frames", "time_ns long, frame binary")),
        "decoded, all columns, into Spark": lambda: _noop(load("decoded")),
        "decoded, time_ns, qos, topic and payload, into Spark": lambda: _noop(load("decoded", some)),
    }


def _measures(
    spark: SparkSession, folder: Path, frames: int, rounds: int, beside: SparkProcess | None, commit: str
) -> Iterator[dict[str, object]]:
    out = folder / "out"
    for name, (protocol, version, frame) in _LOGS.items():
        say(f"writing the log, {name}")
        log = write_log(folder / "log", frame, frames, protocol, version)
        pipeline = (
            f"pipeline, capture log to tables, frames {'of FMQ' if name == 'FMQ' else f'of {name} bytes'}"
        )
        # The copy reads the tables of the run before it.
        works: dict[str, Callable[[], object]] = {
            pipeline: lambda log=log: run_pipeline(spark, log, out),  # type: ignore[misc]
            "copy by Spark": lambda: _copy(spark, out, folder / "copy"),
            "- without health": lambda log=log: run_pipeline(  # type: ignore[misc]
                spark, log, folder / "less", derive_every_s=math.inf
            ),
        }
        if beside is not None:
            works[f"- of {commit}"] = lambda log=log: beside.run(log, folder / "beside")  # type: ignore[misc]
        if name != "142":
            works["decoder alone, one core"] = _decoder_alone(log, name)
        if name == "58":
            works |= _views(spark, log)
            works["scan of messages by Spark"] = lambda: _noop(spark.read.parquet(str(out / "messages")))
        seconds = in_rounds(works, rounds)
        copy, old = seconds["copy by Spark"], seconds.get(f"- of {commit}")
        for what, found in seconds.items():
            yield {
                "what": what,
                "M frames/s": f"{frames / statistics.median(found) / 1e6:.2f}",
                "of the copy": ratio(copy, found),
                **({f"of {commit}": ratio(old, found)} if old else {}),
            }
        shutil.rmtree(folder / "log")


def run(quick: bool = False, beside: str = "") -> list[dict[str, object]]:
    """Return a row per figure, with its ratio to the copy. Raises FileNotFoundError if there is no commit `beside`."""
    from headwater_spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    frames, rounds = (_QUICK_FRAMES, 1) if quick else (FRAMES, _ROUNDS)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        other = None
        if beside:
            other = stack.enter_context(SparkProcess("local[2]", tree=tree_of(beside, folder / "tree")))
        spark = local_session("headwater bench", "local[2]", SETTINGS)
        stack.callback(spark.stop)
        return list(_measures(spark, folder, frames, rounds, other, beside))
