"""Write a part's rows to the tables."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater_host.capture.format import RECEIVED
from headwater_host.capture.problem import Problem
from headwater_spark import buckets, mqmde, tally
from headwater_spark.arrow import Rows, numbers, one, strings, take, times, valid
from headwater_spark.columns import Stored
from headwater_spark.messages import HORIZON_NS, Key, Settled
from headwater_spark.overlaps import PartRuns
from headwater_spark.parsed import Metric, Parsed
from headwater_spark.payload import Rules
from headwater_spark.place import Place
from headwater_spark.plan import Range
from headwater_spark.stats import Stats, count
from headwater_spark.table_files import File, Writer
from headwater_spark.tables import MESSAGES, QUARANTINE, TELEMETRY, Table
from headwater_spark.tally import Tallied

#: Maximum bytes of a damaged block in the quarantine.
BLOCK_BYTES = 1 << 20

#: By the core's code: its name and its description.
Texts = Mapping[int, tuple[str, str]]

BAD_BLOCK = "bad_block"
BAD_IDENTITY = "bad_identity"
IDENTITY_CONFLICT = "identity_conflict"
BAD_MQMDE = "bad_mqmde"
DECODER_FAILED = "decoder_failed"
_DETAILS = {
    BAD_IDENTITY: "board must be a string, boot and seq integers from 0",
    IDENTITY_CONFLICT: "payload differs from the message with the same identity",
}


#: By a stored file's path: rows, and how many further frames each has.
Receipts = dict[str, dict[int, int]]


def count_each(values: npt.NDArray[Any]) -> Counter[int]:
    """Count each of some small numbers."""
    counts = np.bincount(values)
    return Counter({value: int(counts[value]) for value in np.flatnonzero(counts).tolist()})


@dataclass(frozen=True)
class Job:
    """The data that every task of a batch has."""

    #: The place of the tables, and a directory for the batch's other files.
    out: Place
    work: Path
    #: The batch's number, in the names of its files.
    number: int
    partitions: list[list[Range]] | list[list[Stored]]
    batch_rows: int
    logical: buckets.Options = field(default_factory=buckets.Options)
    horizon_ns: int = HORIZON_NS
    rules: Rules = field(default_factory=Rules)

    def begin(self) -> None:
        """Begin a task. Raises NotADirectoryError if this machine does not see the batch's directories."""
        pa.set_cpu_count(1)  # Spark counts on one core per task
        for folder in (self.out.path, self.work):
            if folder is not None and not folder.is_dir():
                raise NotADirectoryError(
                    f"{folder} does not exist on {socket.gethostname()}: the directories of --out and --work must be "
                    "on a file system that all executors share"
                )


@dataclass
class Part:
    """The report of a task."""

    number: int
    #: Rows written, by table.
    rows: Counter[str] = field(default_factory=Counter)
    files: dict[str, list[File]] = field(default_factory=dict)
    #: Paths of files that these replace, by table.
    replaced: dict[str, list[str]] = field(default_factory=dict)
    #: Frames and kept messages, by protocol.
    frames: Counter[int] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    #: Messages with an MQMDE to reassemble; logical messages by kind.
    segments: int = 0
    logical: Counter[str] = field(default_factory=Counter)
    #: Undecoded frames by (protocol, version).
    undecoded: Counter[tuple[int, int]] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    stats: Stats = field(default_factory=dict)
    runs: PartRuns = field(default_factory=dict)
    unresolved: set[Key] = field(default_factory=set)
    span: tuple[int, int] | None = None
    #: The task's tally.
    tallied: Tallied = field(default_factory=Tallied)
    #: Kept messages that may be duplicates.
    doubtful: int = 0
    #: FMQ topics given as a hash, and topics given by name.
    hashes: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    #: Hashes of (topic, GroupId) of IBM MQ groups and of messages in segments.
    groups: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    #: Further frames of stored messages: by file and row, how many.
    receipts: Receipts = field(default_factory=dict)


class Output:
    """The output files of one part, as a context manager: they exist only if it ends without an exception."""

    def __init__(self, job: Job, part: Part, label: str, tables: Iterable[Table]):
        self.part = part
        self._job = job
        self._label = label
        self._files = ExitStack()
        name = f"{job.number:06d}-{label}"
        self._writers = {table.name: Writer(table, job.out, name) for table in tables}

    def __enter__(self) -> Output:
        for writer in self._writers.values():
            self._files.enter_context(writer)
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)
        for name, writer in self._writers.items():
            self.part.rows[name] += writer.rows
            self.part.files[name] = writer.files

    def write(self, table: Table, columns: dict[str, Any]) -> None:
        """Append rows to a table, if this part writes it."""
        if table.name in self._writers:
            self._writers[table.name].write(columns)

    def settled(self, table: Any, metrics: Iterable[Metric], settled: Settled) -> None:
        """Write kept messages and their telemetry, quarantine conflicts, and count."""
        self.part.messages = count_each(numbers(table["protocol"])[settled.keep])
        columns = {name: one(table[name]) for name in table.schema.names}
        conflicts = np.flatnonzero(settled.conflict)
        if len(conflicts):
            self.refuse_messages(IDENTITY_CONFLICT, take(columns, conflicts))
        self._telemetry(columns, metrics, settled)
        columns["copies"] = pa.array(settled.copies)
        columns["possible_duplicate"] = pa.array(settled.doubtful)
        self.part.doubtful = int(np.count_nonzero(settled.doubtful))
        kept = columns if settled.keep.all() else take(columns, np.flatnonzero(settled.keep))
        self.write(MESSAGES, kept)
        tallied = tally.tally(pa.table({name: kept[name] for name in tally.COLUMNS}))
        self.part.stats = count(table, settled, tallied)
        self.part.tallied = tally.write(tallied, self._job.work, self._label)
        self._segments(kept)

    def _segments(self, kept: dict[str, Any]) -> None:
        """Set aside messages with an MQMDE. A message with a refused MQMDE stays and is quarantined as well."""
        found = mqmde.decode(kept["payload"])
        counts = self._job.logical.counts(kept["topic"])[found.rows]
        bad = np.flatnonzero(counts & (found.reason != 0))
        if len(bad):
            details = [
                mqmde.refusal(*both)
                for both in zip(found.reason[bad].tolist(), found.error_at[bad].tolist(), strict=True)
            ]
            self.refuse_messages(
                BAD_MQMDE, take(kept, found.rows[bad]), details, pa.array(found.error_at[bad])
            )
        good = np.flatnonzero(counts & (found.reason == 0))
        self.part.segments = len(good)
        self.part.groups = buckets.write(
            self._job.work, self._label, self._job.logical.buckets, kept, found, good
        )

    def _telemetry(self, columns: dict[str, Any], metrics: Iterable[Metric], settled: Settled) -> None:
        if TELEMETRY.name not in self._writers:
            return
        received, sent, timed = (
            numbers(columns["time_ns"]),
            numbers(columns["sent_ns"]),
            valid(columns["sent_ns"]),
        )
        all_kept = bool(settled.keep.all())
        names = ["board", "boot", "seq", "topic"]
        source = {name: columns[name] for name in names}
        source["time"] = times(sent, ~timed)
        source["received_ns"] = columns["time_ns"]
        source["latency_ms"] = pa.array((received - sent) / 1e6, mask=~timed)
        for metric in metrics:
            kept = None if all_kept else settled.keep[metric.rows]
            rows = metric.rows if kept is None else metric.rows[kept]
            if not len(rows):
                continue
            n = len(rows)
            doubles, texts = pa.nulls(n, pa.float64()), pa.nulls(n, pa.string())
            if metric.numbers is not None:
                doubles = pa.array(metric.numbers if kept is None else metric.numbers[kept])
            else:
                texts = metric.strings if kept is None else metric.strings.filter(pa.array(kept))
            name = strings(np.zeros(n, np.int32), [metric.name])
            self.write(
                TELEMETRY,
                _rows(source, rows) | {"metric": name, "value_double": doubles, "value_string": texts},
            )

    def refuse_parsed(self, parsed: Parsed, columns: dict[str, Any]) -> None:
        """Quarantine messages with a wrong identity, and those whose decoder failed. `columns` has all messages."""
        failed = sorted(parsed.failed)
        wrong = parsed.bad.copy()
        wrong[failed] = False
        if wrong.any():
            self.refuse_messages(BAD_IDENTITY, take(columns, np.flatnonzero(wrong)))
        if failed:
            details = [parsed.failed[row] for row in failed]
            self.refuse_messages(DECODER_FAILED, take(columns, np.array(failed, np.int64)), details)

    def refuse_messages(
        self, reason: str, rows: dict[str, Any], details: list[str] | None = None, error_at: Any = None
    ) -> None:
        """Quarantine messages with a refused payload. `rows` has columns of `messages`."""
        n = len(rows["payload"])
        columns = {
            "bytes": rows["payload"],
            "error_at": pa.nulls(n, pa.int32()) if error_at is None else error_at,
            "direction": pa.array(np.full(n, RECEIVED, np.int16)),
        }
        self._refuse("message", [reason] * n, details or [_DETAILS[reason]] * n, rows | columns)

    def refuse_frames(
        self, texts: Texts, codes: npt.NDArray[Any], error_at: npt.NDArray[Any], rows: dict[str, Any]
    ) -> None:
        """Quarantine malformed frames by the core's codes; `texts` are the protocol's texts of these.

        `rows` has the columns of `frames`.
        """
        columns = {"bytes": rows["frame"], "error_at": pa.array(error_at)}
        found = [texts[code] for code in codes.tolist()]
        self._refuse("frame", [name for name, _ in found], [text for _, text in found], rows | columns)

    def _refuse(self, kind: str, reasons: list[str], details: list[str], rows: dict[str, Any]) -> None:
        self.part.quarantined.update(reasons)
        rows = rows | {
            "kind": pa.array([kind] * len(reasons)).dictionary_encode(),
            "reason": pa.array(reasons).dictionary_encode(),
            "detail": pa.array(details, pa.string()),
            "length": pc.binary_length(rows["bytes"]).cast(pa.int64()),
        }
        self.write(QUARANTINE, {name: rows[name] for name in QUARANTINE.names})

    def refuse_block(self, problem: Problem, data: bytes) -> None:
        """Quarantine a damaged block. `data` is its beginning."""
        self.part.quarantined[BAD_BLOCK] += 1
        row = {
            "kind": "block",
            "reason": BAD_BLOCK,
            "detail": problem.reason,
            "file": problem.file,
            "offset": problem.offset,
            "length": problem.length,
            "bytes": data,
        }
        schema, plain = QUARANTINE.arrow, QUARANTINE.plain
        self.write(
            QUARANTINE,
            {f.name: pa.array([row.get(f.name)], plain.field(f.name).type).cast(f.type) for f in schema},
        )


def _rows(columns: dict[str, Any], rows: Rows) -> dict[str, Any]:
    n = len(columns["topic"])
    # A metric of every row of a batch occupies consecutive rows.
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool(np.all(rows[1:] > rows[:-1])):
        if len(rows) == n:
            return dict(columns)
        return {name: column.slice(int(rows[0]), len(rows)) for name, column in columns.items()}
    return take(columns, rows)
