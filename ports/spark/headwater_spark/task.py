"""Process one part of the log in a Spark task: decode it, settle it, write its rows of every table.

Only counts return to the driver. If the driver finds that parts may share messages, these parts run again and set
the shared rows aside as *candidates* (`headwater_spark.candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.fmq.names import REASONS as FMQ_REASONS
from headwater.reasons import REASONS as MQTT_REASONS
from headwater_host.capture.filesystem import open_file
from headwater_host.capture.format import DUPLICATE, ORIGINAL, RECEIVED, UNCERTAIN
from headwater_host.capture.problem import GAP, Problem
from headwater_spark import buckets, fmq, mqtt
from headwater_spark.arrow import Bools, Rows, strings, take, times
from headwater_spark.assembly import assemble
from headwater_spark.candidates import CANDIDATES, Aside, Candidates
from headwater_spark.columns import Batch, Stored, read
from headwater_spark.messages import COLUMNS, Groups, in_order, settle
from headwater_spark.overlaps import runs_of
from headwater_spark.parsed import Metric
from headwater_spark.part import BLOCK_BYTES, Job, Output, Part, Texts, count_each
from headwater_spark.payload import Parser
from headwater_spark.plan import Range
from headwater_spark.progress import add_rows
from headwater_spark.table_files import Writer
from headwater_spark.tables import FRAMES, LOGICAL_MESSAGES, MESSAGES, QUARANTINE, TELEMETRY
from headwater_spark.topics import hashes_in, names_in, with_names

MQTT, FMQ = 1, 2
#: Decoded versions by protocol.
VERSIONS = {MQTT: mqtt.LEVELS, FMQ: (0,)}
# Clients without a clock make FMQ ids with times from 1972, which never reach 2010.
_CLOCK_NS = 1_262_304_000 * 10**9

# The approximate shares of a task's time until its frames are decoded, and until its messages are settled.
_DECODED, _SETTLED = 0.5, 0.3

_FIRST_PASS = (FRAMES, MESSAGES, TELEMETRY, QUARANTINE)
_SECOND_PASS = (MESSAGES, TELEMETRY, QUARANTINE)


def run(job: Job, number: int, aside: Aside | None = None) -> Part:
    """Process one part.

    With `aside`, for the second time: `frames` is kept, and the other tables are written without the rows to set
    aside.
    """
    job.begin()
    part = Part(number)
    # Stored frames are in the table.
    stored = any(isinstance(one, Stored) for one in job.partitions[number])
    tables = _SECOND_PASS if stored or aside is not None else _FIRST_PASS
    with Output(job, part, f"{number:06d}", tables) as output:
        _Work(job, output).run(aside)
    return part


class _Work:
    """The state of a task."""

    def __init__(self, job: Job, output: Output):
        self.job = job
        self.output = output
        self.part = output.part
        self.ranges = job.partitions[self.part.number]
        self.parser = Parser(job.rules)
        self.topics: dict[str, str] = {}
        self.batches: list[Any] = []
        self.metrics: list[Metric] = []
        self.bad: list[Bools] = [np.zeros(0, np.bool_)]
        self.rows = 0

    def run(self, aside: Aside | None) -> None:
        if aside is not None:
            self.topics = aside.topics
        rows = 0
        for found in read(self.ranges, self.job.batch_rows):
            if isinstance(found, Problem):
                self._problem(found)
            else:
                self._batch(found)
                add_rows(_DECODED * len(found))
                rows += len(found)
        table = in_order(self.batches, COLUMNS)
        elsewhere = np.concatenate(self.bad)
        groups = Groups(table, elsewhere)
        if aside is not None:
            with Candidates(aside, self.job.work, f"{self.part.number:06d}") as candidates:
                elsewhere = elsewhere | candidates.write(table, groups, elsewhere)
            self.part.rows[CANDIDATES.name] = candidates.rows
            groups = Groups(table, elsewhere)
        settled = settle(table, groups, elsewhere, self.job.horizon_ns)
        add_rows(_SETTLED * rows)
        self.part.runs = runs_of(groups)
        self.part.span = settled.span
        self.part.unresolved = settled.unresolved
        self.output.settled(table, self.metrics, settled)
        add_rows((1 - _DECODED - _SETTLED) * rows)

    def _problem(self, problem: Problem) -> None:
        self.part.problems.append(problem)
        if problem.kind == GAP:
            return  # no bytes to quarantine
        part = next(part for part in self.ranges if isinstance(part, Range) and part.file == problem.file)
        with closing(open_file(part.path, part.storage)) as file:
            self.output.refuse_block(problem, file.pread(min(problem.length, BLOCK_BYTES), problem.offset))

    def _batch(self, batch: Batch) -> None:
        frames = frame_columns(batch)
        self.output.write(FRAMES, frames)
        self.part.frames += count_each(batch.protocol)
        for protocol, version, rows, some in by_version(batch):
            if protocol is None:
                self.part.undecoded.update(zip(some.protocol.tolist(), some.version.tolist(), strict=True))
                continue
            mine = frames if some is batch else take(frames, rows)
            if protocol == MQTT:
                self._mqtt(mine, some, version)
            else:
                self._fmq(mine, some)

    def _mqtt(self, frames: dict[str, Any], batch: Batch, level: int) -> None:
        packets = mqtt.decode(batch.data, batch.starts, level)
        self._malformed(MQTT_REASONS, frames, packets)
        rows = np.flatnonzero(packets.publish & (batch.direction == RECEIVED))
        if len(rows):
            self._messages(
                frames,
                batch,
                packets,
                rows,
                {
                    "qos": pa.array(packets.qos[rows].astype(np.int16)),
                    "retain": pa.array(packets.retain[rows]),
                    "doubtful": pa.array(_doubtful(packets.dup[rows], batch.mark[rows])),
                    "packet_id": pa.array(packets.packet_id[rows], mask=packets.qos[rows] == 0),
                    **(packets.properties if len(rows) == len(batch) else take(packets.properties, rows)),
                },
            )

    def _fmq(self, frames: dict[str, Any], batch: Batch) -> None:
        packets = fmq.decode(batch.data, batch.starts)
        self._malformed(FMQ_REASONS, frames, packets)
        self.part.names |= names_in(packets.topic) | fmq.registered(batch.data, batch.starts, packets)
        rows = np.flatnonzero(packets.message & (batch.direction == RECEIVED))
        if len(rows):
            answer, odd = ~packets.publish[rows], packets.odd[rows]
            made_ns = packets.made_ns[rows]
            self.part.hashes |= hashes_in(packets.topic)
            self._messages(
                frames,
                batch,
                packets,
                rows,
                {
                    "qos": pa.array(packets.qos[rows].astype(np.int16), mask=answer),
                    "retain": pa.array(packets.retain[rows], mask=answer),
                    # Only the rule for marks needs it.
                    "doubtful": pa.array(np.zeros(len(rows), np.bool_)),
                    **take(
                        {
                            "topic": with_names(packets.topic, self.topics),
                            "tags": packets.tags,
                            "message_id": packets.id,
                            "origin": packets.origin,
                        },
                        rows,
                    ),
                    "process": pa.array(packets.process[rows], mask=odd),
                    "thread": pa.array(packets.thread[rows], mask=odd),
                    "made_ns": pa.array(made_ns),
                },
                np.where(made_ns >= _CLOCK_NS, made_ns, -1),
            )

    def _malformed(self, texts: Texts, frames: dict[str, Any], packets: mqtt.Packets | fmq.Packets) -> None:
        rows = np.flatnonzero(packets.error)
        if len(rows):
            self.output.refuse_frames(texts, packets.error[rows], packets.error_at[rows], take(frames, rows))

    def _messages(
        self,
        frames: dict[str, Any],
        batch: Batch,
        packets: mqtt.Packets | fmq.Packets,
        rows: Rows,
        own: dict[str, Any],
        made_ns: Rows | None = None,
    ) -> None:
        """Add messages. `own` are the columns of their protocol, `made_ns` the times of their ids."""
        columns = {name: frames[name] for name in frames if name in COLUMNS.names}
        if columns["first_ns"].null_count == len(batch):
            del columns["first_ns"]  # a column that every batch lacks is created once
        columns |= {"topic": packets.topic, "payload": packets.payload}
        if len(rows) < len(batch):
            columns = take(columns, rows)
        parsed = self.parser.parse(columns["payload"], columns | own)
        if parsed.bad.any():
            self.output.refuse_parsed(parsed, columns)
        unknown = parsed.board < 0
        sent_ns = parsed.sent_us * 1000
        if made_ns is not None:
            sent_ns = np.where(sent_ns < 0, made_ns, sent_ns)
        columns |= own | {
            "board": strings(np.maximum(parsed.board, 0), parsed.boards, unknown),
            "boot": pa.array(parsed.boot, mask=unknown),
            "seq": pa.array(parsed.seq, mask=unknown),
            "sent_ns": pa.array(sent_ns, mask=sent_ns < 0),
            "position": pa.array(batch.position[rows]),
        }
        schema = pa.schema([f for f in COLUMNS if f.name in columns])
        self.batches.append(pa.record_batch([columns[name] for name in schema.names], schema=schema))
        self.bad.append(parsed.bad)
        self.metrics += (Metric(m.name, m.rows + self.rows, m.numbers, m.strings) for m in parsed.metrics)
        self.rows += len(rows)


def _first_ns(batch: Batch) -> Any:
    duplicate = batch.mark == DUPLICATE
    return pa.array(batch.first_ns, mask=~duplicate) if duplicate.any() else pa.nulls(len(batch), pa.int64())


def _doubtful(dup: Bools, mark: npt.NDArray[np.uint8]) -> Bools:
    """Return where the receiver was uncertain, or where there is DUP without a mark."""
    doubtful: Bools = (mark == UNCERTAIN) | (dup & (mark != ORIGINAL) & (mark != DUPLICATE))
    return doubtful


def reassemble(job: Job, bucket: int) -> Part:
    """Write the logical messages of one bucket of segments."""
    job.begin()
    part = Part(bucket)
    with Writer(LOGICAL_MESSAGES, job.out, f"{job.number:06d}-{bucket:06d}") as writer:
        for columns in assemble(buckets.read(job.work, bucket), max_message=job.logical.max_message):
            part.logical += buckets.kinds(columns)
            writer.write(columns)
    part.rows[LOGICAL_MESSAGES.name] = writer.rows
    part.files[LOGICAL_MESSAGES.name] = writer.files
    return part


def by_version(batch: Batch) -> Iterator[tuple[int | None, int, Rows, Batch]]:
    """Yield protocol, version, row numbers and records of each decoded version, and of all others under None.

    Does not copy if all records are alike.
    """
    left = np.ones(len(batch), np.bool_)
    for protocol, versions in VERSIONS.items():
        of_protocol = batch.protocol == protocol
        for version in versions if of_protocol.any() else ():
            mine = of_protocol & (batch.version == version)
            if mine.any():
                yield protocol, version, *_some(batch, mine)
                left &= ~mine
    if left.any():
        yield None, 0, *_some(batch, left)


def _some(batch: Batch, where: Bools) -> tuple[Rows, Batch]:
    rows = np.flatnonzero(where)
    return rows, batch if len(rows) == len(batch) else batch.select(rows)


def frame_columns(batch: Batch, names: Collection[str] = FRAMES.names) -> dict[str, Any]:
    """Return the columns `names` of the table `frames`."""
    return {name: make(batch) for name, make in _FRAME_COLUMNS.items() if name in names}


_FRAME_COLUMNS: dict[str, Callable[[Batch], Any]] = {
    "time": lambda batch: times(batch.time_ns),
    "time_ns": lambda batch: pa.array(batch.time_ns),
    "connection": lambda batch: pa.array(batch.connection),
    "peer": lambda batch: strings(batch.peer, batch.peers),
    "direction": lambda batch: pa.array(batch.direction.astype(np.int16)),
    "protocol": lambda batch: pa.array(batch.protocol.astype(np.int16)),
    "version": lambda batch: pa.array(batch.version.astype(np.int16)),
    "mark": lambda batch: pa.array(batch.mark.astype(np.int16)),
    "first_ns": _first_ns,
    "frame": lambda batch: batch.frames(),
    "file": lambda batch: strings(batch.file, batch.files),
    "offset": lambda batch: pa.array(batch.offset),
    "record": lambda batch: pa.array(batch.record),
}
