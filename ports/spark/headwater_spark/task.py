"""What one Spark task does with one part of the log: decode it, settle it, write its rows of every table.

Only numbers go back to the driver. A part is settled by itself at first. When the driver finds that
messages may be shared between parts, these parts run again and set the shared rows aside as *candidates*
(``headwater_spark.candidates``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.mqtt.spec import PUBACK, PUBCOMP, PUBREL
from headwater_host.capture.format import RECEIVED, SENT
from headwater_host.capture.problem import GAP, Problem
from headwater_spark import mqtt
from headwater_spark.arrow import Bools, Rows, strings, take
from headwater_spark.candidates import CANDIDATES, Aside, Candidates
from headwater_spark.columns import Batch, read
from headwater_spark.messages import ACKS, COLUMNS, Groups, in_order, settle
from headwater_spark.part import BAD_IDENTITY, BLOCK_BYTES, Job, Output, Part
from headwater_spark.payload import Metric, Parser
from headwater_spark.runs import runs_of
from headwater_spark.tables import FRAMES, MESSAGES, QUARANTINE, TELEMETRY

#: Frames of MQTT that are decoded: protocol and levels (3.1 and 3.1.1).
MQTT = 1
LEVELS = (3, 4)
# Which acknowledgements end the exchange of a received message, by direction.
_ENDS = ((PUBACK, SENT), (PUBREL, RECEIVED), (PUBCOMP, SENT))

_FIRST_PASS = (FRAMES, MESSAGES, TELEMETRY, QUARANTINE)
_SECOND_PASS = (MESSAGES, TELEMETRY, QUARANTINE, CANDIDATES)


def run(job: Job, number: int, aside: Aside | None = None) -> Part:
    """Work on one part.

    With ``aside``, again: ``frames`` stays as it is, the rest is written anew, without what is set aside.
    """
    pa.set_cpu_count(1)  # Spark counts on one core per task
    part = Part(number)
    tables = _FIRST_PASS if aside is None else _SECOND_PASS
    with Output(job, part, f"{number:06d}", tables) as output:
        _Work(job, output).run(aside)
    return part


class _Work:
    """One task's state while it goes through its part."""

    def __init__(self, job: Job, output: Output):
        self.job = job
        self.output = output
        self.part = output.part
        self.ranges = job.partitions[self.part.number]
        self.parser = Parser()
        self.batches: list[Any] = []
        self.acks: list[Any] = []
        self.metrics: list[Metric] = []
        self.bad: list[Bools] = [np.zeros(0, np.bool_)]
        self.rows = 0

    def run(self, aside: Aside | None) -> None:
        for found in read(self.ranges, self.job.batch_rows):
            if isinstance(found, Problem):
                self._problem(found)
            else:
                self._batch(found)
        table = in_order(self.batches, COLUMNS)
        acks = in_order(self.acks, ACKS)
        elsewhere = np.concatenate(self.bad)
        groups = Groups(table, elsewhere)
        if aside is not None:
            elsewhere = elsewhere | Candidates(aside, self.output).write(table, groups, acks, elsewhere)
            groups = Groups(table, elsewhere)
        settled = settle(table, groups, acks, elsewhere)
        self.part.runs = runs_of(groups)
        # In front of the first part there is nothing.
        self.part.unresolved = settled.unresolved if self.part.number else set()
        self.output.settled(table, self.metrics, settled)

    def _problem(self, problem: Problem) -> None:
        self.part.problems.append(problem)
        if problem.kind == GAP:
            return  # there are no bytes
        path = next(part.path for part in self.ranges if part.file == problem.file)
        with Path(path).open("rb") as file:
            file.seek(problem.offset)
            self.output.refuse_block(problem, file.read(min(problem.length, BLOCK_BYTES)))

    def _batch(self, batch: Batch) -> None:
        frames = frame_columns(batch)
        self.output.write(FRAMES, frames)
        packets = mqtt.decode(batch.data, batch.starts)
        decoded = is_decoded(batch)
        if not decoded.all():
            others = zip(batch.protocol[~decoded].tolist(), batch.version[~decoded].tolist(), strict=True)
            self.part.undecoded.update(others)
        malformed = np.flatnonzero(decoded & (packets.error != 0))
        if len(malformed):
            error_at = packets.error_at[malformed]
            self.output.refuse_frames(packets.error[malformed], error_at, take(frames, malformed))
        received = np.flatnonzero(decoded & packets.publish & (batch.direction == RECEIVED))
        if len(received):
            self._messages(frames, batch, packets, received)
        self._acknowledgements(frames, batch, packets, decoded)

    def _messages(self, frames: dict[str, Any], batch: Batch, packets: mqtt.Packets, rows: Rows) -> None:
        columns = {name: frames[name] for name in frames if name in COLUMNS.names}
        columns |= {"topic": packets.topic, "payload": packets.payload}
        if len(rows) < len(batch):
            columns = take(columns, rows)
        parsed = self.parser.parse(columns["payload"])
        if parsed.bad.any():
            bad = np.flatnonzero(parsed.bad)
            self.output.refuse_messages(BAD_IDENTITY, take(columns, bad))
        unknown = parsed.board < 0
        columns |= {
            "qos": pa.array(packets.qos[rows].astype(np.int16)),
            "retain": pa.array(packets.retain[rows]),
            "board": strings(np.maximum(parsed.board, 0), parsed.boards, unknown),
            "boot": pa.array(parsed.boot, mask=unknown),
            "seq": pa.array(parsed.seq, mask=unknown),
            "sent_ns": pa.array(parsed.sent_us * 1000, mask=parsed.sent_us < 0),
            "position": pa.array(batch.position[rows]),
            "dup": pa.array(packets.dup[rows]),
            "packet_id": pa.array(packets.packet_id[rows]),
        }
        self.batches.append(pa.record_batch([columns[name] for name in COLUMNS.names], schema=COLUMNS))
        self.bad.append(parsed.bad)
        self.metrics += (Metric(m.name, m.rows + self.rows, m.numbers, m.strings) for m in parsed.metrics)
        self.rows += len(rows)

    def _acknowledgements(
        self, frames: dict[str, Any], batch: Batch, packets: mqtt.Packets, decoded: Bools
    ) -> None:
        found = np.zeros(len(batch), np.bool_)
        for kind, direction in _ENDS:
            found |= (packets.kind == kind) & (batch.direction == direction)
        rows = np.flatnonzero(found & decoded & (packets.error == 0))
        if not len(rows):
            return
        at = packets.body[rows]
        columns = {
            **take({name: frames[name] for name in ("peer", "connection")}, rows),
            "position": pa.array(batch.position[rows]),
            "kind": pa.array(packets.kind[rows].astype(np.int16)),
            "packet_id": pa.array(batch.data[at].astype(np.int32) << 8 | batch.data[at + 1]),
        }
        self.acks.append(pa.record_batch([columns[name] for name in ACKS.names], schema=ACKS))


def is_decoded(batch: Batch) -> Bools:
    """The frames that the decoder is for."""
    result: Bools = (batch.protocol == MQTT) & np.isin(batch.version, LEVELS)
    return result


def frame_columns(batch: Batch, names: Collection[str] = FRAMES.names) -> dict[str, Any]:
    """The columns of the table ``frames``, those of ``names``."""
    return {name: make(batch) for name, make in _FRAME_COLUMNS.items() if name in names}


_FRAME_COLUMNS: dict[str, Callable[[Batch], Any]] = {
    "time": lambda batch: pa.array(batch.time_ns // 1000).cast(pa.timestamp("us", tz="UTC")),
    "time_ns": lambda batch: pa.array(batch.time_ns),
    "connection": lambda batch: pa.array(batch.connection),
    "peer": lambda batch: strings(batch.peer, batch.peers),
    "direction": lambda batch: pa.array(batch.direction.astype(np.int16)),
    "protocol": lambda batch: pa.array(batch.protocol.astype(np.int16)),
    "version": lambda batch: pa.array(batch.version.astype(np.int16)),
    "frame": lambda batch: batch.frames(),
    "file": lambda batch: strings(batch.file, batch.files),
    "offset": lambda batch: pa.array(batch.offset),
    "record": lambda batch: pa.array(batch.record),
}
