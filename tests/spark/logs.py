"""Capture logs for the Spark tests, written by the real writer, and a pipeline engine without Spark."""

import json
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from headwater_spark import delta
from headwater_spark.engine import Settle, T, Work
from headwater_spark.part import Part
from headwater_spark.place import Place
from headwater_spark.tables import DERIVED, TABLES, Table
from tools.capture_log import LogWriter

BEGIN_NS = 1_790_000_000_000_000_000
BROKER = "mqtt:127.0.0.1:1883"
SERIAL = "serial:/dev/ttyACM0"
RECEIVED, SENT = 0, 1


class Rec(NamedTuple):
    """A record of a log; what a test does not say is as usual. ``at`` is in ms; ``first`` as well: the receipt that a
    DUPLICATE repeats."""

    frame: bytes
    at: int = 0
    connection: int = 1
    peer: str = BROKER
    direction: int = RECEIVED
    protocol: int = 1
    version: int = 4
    mark: int = 0
    first: int = 0


def varint(n: int) -> bytes:
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def packet(head: int, body: bytes) -> bytes:
    return bytes([head]) + varint(len(body)) + body


def publish(
    topic: str | bytes,
    payload: bytes | str | dict[str, Any] = b"",
    *,
    qos: int = 0,
    packet_id: int = 1,
    dup: bool = False,
    retain: bool = False,
    block: bytes = b"",
) -> bytes:
    """A PUBLISH; ``block``: MQTT 5.0's block of properties, its length included."""
    name = topic.encode() if isinstance(topic, str) else topic
    if isinstance(payload, dict):
        payload = json.dumps(payload)
    if isinstance(payload, str):
        payload = payload.encode()
    head = 0x30 | dup << 3 | qos << 1 | retain
    ident = packet_id.to_bytes(2, "big") if qos else b""
    return packet(head, len(name).to_bytes(2, "big") + name + ident + block + payload)


def ack(kind: int, packet_id: int) -> bytes:
    return packet(kind << 4 | (2 if kind == 6 else 0), packet_id.to_bytes(2, "big"))


def reading(board: str, boot: int, seq: int, **values: Any) -> dict[str, Any]:
    return {"board": board, "boot": boot, "seq": seq, **values}


def write_log(directory: Path, blocks: Iterable[Sequence[Rec]], *, segment_blocks: int = 10**9) -> Path:
    """A log with these records, block by block; sealed segments of ``segment_blocks`` blocks."""
    writer = LogWriter(directory)
    try:
        for number, block in enumerate(blocks, 1):
            for rec in block:
                time_ns = BEGIN_NS + rec.at * 10**6
                first_ns = BEGIN_NS + rec.first * 10**6
                writer.append(time_ns, *rec[2:7], rec.frame, rec.mark, first_ns)
            writer.flush()
            if number % segment_blocks == 0:
                writer.close()
                writer = LogWriter(directory)
    finally:
        writer.close()
    return directory


def damage(path: Path, block: int, at: int) -> list[int]:
    """Flip a bit at an offset of a block of a segment; the offsets of all its blocks."""
    data = bytearray(path.read_bytes())
    starts = [i for i in range(len(data)) if data[i : i + 4] == b"HWB1"]
    data[starts[block] + at] ^= 1
    path.write_bytes(data)
    return starts


class InProcess:
    """Runs the pipeline's work in this process: what Spark does, one task after the other, through pickle."""

    slots = 1

    def run(self, numbers: Sequence[int], work: Work[T], step: object = None) -> list[T]:
        work = pickle.loads(pickle.dumps(work))
        return [pickle.loads(pickle.dumps(work(number))) for number in numbers]

    def settle(self, folder: Path, tasks: int, first: int, settle: Settle) -> list[Part]:
        rows = ds.dataset(folder, format="parquet").to_table()
        sets: list[list[int]] = [[] for _ in range(tasks)]
        for i, meet in enumerate(rows["meet"].to_pylist()):
            sets[sum(meet) % tasks].append(i)
        return [
            settle(first + k, rows.take(pa.array(chosen)).to_batches())
            for k, chosen in enumerate(sets)
            if chosen
        ]


def rows(out: Path | Place, table: Table, *columns: str) -> list[Any]:
    """A table's rows as tuples of some columns, in the order of time; a single column without tuples."""
    found = delta.dataset(out, table.name).to_table().select(columns or table.names)
    lines = sorted(zip(*(found[name].to_pylist() for name in found.column_names), strict=True), key=repr)
    return [line[0] for line in lines] if len(columns) == 1 else lines


def assert_same_tables(out: Path | Place, other: Path) -> None:
    """Compare the tables of two runs, without the names of segments, which have random salts."""
    for table in (*TABLES, *DERIVED):
        names = [name for name in table.names if name != "file"]
        assert rows(out, table, *names) == rows(other, table, *names)
