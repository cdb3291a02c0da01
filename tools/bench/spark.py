"""Spark (local[2]): captured frames per second, decoded and turned into tables.

The logs have messages of four boards: JSON with an identity in MQTT packets of 58 bytes with one value, or of 142
bytes with a time and four values; or the former as an FMQ Map in frames of 66 bytes. Figures are the best of three
runs. The floor is Spark's own scan of the Parquet table `messages` of the same run.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.capture_log import LogWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = 2_000_000
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
    # The log need not survive a power cut.
    with LogWriter(directory, datasync=lambda fd: None) as writer:
        for number in range(count):
            time_ns = (_BEGIN_US + number * 500) * 1000
            writer.append(time_ns, 5 << 20, _PEER, 0, protocol, version, frame(number))
    return directory


def _best(work: Callable[[], object]) -> float:
    """Return the least seconds of several runs after one run to warm up."""
    work()
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def run_pipeline(spark: SparkSession, log: Path, out: Path) -> None:
    """Turn a whole log into new tables."""
    from headwater_spark import pipeline

    shutil.rmtree(out, ignore_errors=True)
    pipeline.run(spark, log, out)


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _measures(spark: SparkSession, folder: Path) -> Iterator[tuple[str, float]]:
    from headwater_spark import fmq as fmq_decoder
    from headwater_spark import mqtt
    from headwater_spark.columns import Batch, read
    from headwater_spark.plan import plan

    logs = {
        name: write_log(folder / name, frame, FRAMES, protocol, version)
        for name, (protocol, version, frame) in _LOGS.items()
    }

    def load(view: str, schema: str = "") -> Any:
        reader = spark.read.format("headwater").option("view", view).option("minPartitions", 2)
        return (reader.schema(schema) if schema else reader).load(str(logs["58"]))

    decoders: dict[str, Callable[..., object]] = {"58": mqtt.decode, "FMQ": fmq_decoder.decode}
    for name, decode in decoders.items():
        batches = [batch for part in plan(logs[name], 1 << 30, 1).partitions for batch in read(part, 1 << 15)]
        frames = [(batch.data, batch.starts) for batch in batches if isinstance(batch, Batch)]
        what = "decoder alone, one core" + (", FMQ" if name == "FMQ" else "")
        yield what, _best(lambda decode=decode, frames=frames: [decode(*each) for each in frames])  # type: ignore[misc]
        del batches, frames
    yield "frames, all columns, into Spark", _best(lambda: _noop(load("frames")))
    yield (
        "frames, time_ns and frame, into Spark",
        _best(lambda: _noop(load("frames", "time_ns long, frame binary"))),
    )
    yield "decoded, all columns, into Spark", _best(lambda: _noop(load("decoded")))
    columns = "time_ns long, qos short, topic string, payload binary"
    yield (
        "decoded, time_ns, qos, topic and payload, into Spark",
        _best(lambda: _noop(load("decoded", columns))),
    )
    for name, log in logs.items():
        size = "FMQ" if name == "FMQ" else f"of {name} bytes"
        what = f"pipeline, capture log to five tables, frames {size}"
        yield what, _best(lambda log=log: run_pipeline(spark, log, folder / "out"))  # type: ignore[misc]
        if name == "58":
            scan = partial(spark.read.parquet, str(folder / "out/messages"))
            yield "floor: Parquet scan of messages", _best(lambda scan=scan: _noop(scan()))  # type: ignore[misc]


def run() -> list[dict[str, object]]:
    """Return a row per figure, with its ratio to the floor."""
    from headwater_spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = local_session("headwater bench", "local[2]", {"spark.driver.memory": "2g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
            found = {}
            for what, seconds in _measures(spark, Path(folder)):
                print(f"bench: {what}: {seconds:.2f} s", file=sys.stderr, flush=True)
                found[what] = FRAMES / seconds / 1e6
    finally:
        spark.stop()
    floor = next(rate for what, rate in found.items() if what.startswith("floor"))
    return [
        {"what": what, "M frames/s": f"{rate:.2f}", "of the floor": f"{rate / floor:.2f}"}
        for what, rate in found.items()
    ]
