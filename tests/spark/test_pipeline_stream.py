"""``headwater pipeline stream``: the tables of a stream are those of a batch run, however it is interrupted."""

import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import list_log
from headwater_spark import delta
from headwater_spark.batches import writing
from headwater_spark.pipeline import run_on
from headwater_spark.plan import Log
from headwater_spark.positions import Limits, Position, advance
from headwater_spark.stream import Progress, Stream
from headwater_spark.stream_command import line
from headwater_spark.tables import FRAMES, MESSAGES
from tests.host.command import HEADWATER, PATIENCE_S, environment, headwater
from tests.rows import each_row
from tests.spark import test_logical_pipeline, test_pipeline, test_pipeline_fmq
from tests.spark.logs import InProcess, Rec, assert_same_tables, publish, reading, rows, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def log_of(directory: Path, start: int, *blocks: int, segment_blocks: int = 3) -> Path:
    """Append blocks of so many messages each, with sequence numbers from `start`."""
    made = []
    for count in blocks:
        made.append(
            [
                Rec(publish("t", reading("b1", 1, seq, load=seq / 8)), at=seq)
                for seq in range(start, start + count)
            ]
        )
        start += count
    return write_log(directory, made, segment_blocks=segment_blocks)


def positions(log: Path, records: int) -> list[dict[str, Position]]:
    """Where the micro-batches of at most so many records end."""
    found: list[dict[str, Position]] = []
    at: Position | None = None
    while True:
        end = advance(list_log(log), at, Limits(None, records)).end
        if end is None or end == at:
            return found
        found.append({log_id(log): end})
        at = end


@each_row("records", [5, 12, 1000])
def test_a_stream_makes_the_tables_of_a_batch(tmp_path: Path, records: int) -> None:
    log = log_of(tmp_path / "log", 0, *[5] * 8)
    seen: list[Progress] = []
    stream = Stream(InProcess(), [Log.at(log)], tmp_path / "out", show=seen.append)
    ends = positions(log, records)
    for number, upto in enumerate(ends):
        stream.add(upto, number)
    run_on(InProcess(), log, tmp_path / "batch")
    assert_same_tables(tmp_path / "out", tmp_path / "batch")
    assert sum(progress.result.plan.records for progress in seen) == 40
    assert [progress.behind for progress in seen][-1] == 0
    assert len(ends) == 1 or seen[0].behind > 0
    # Spark runs the last micro-batch again, and a new query without a checkpoint all of them.
    stream.add(ends[-1], len(ends) - 1)
    again = Stream(InProcess(), [Log.at(log)], tmp_path / "out")
    for number, upto in enumerate(ends):
        again.add(upto, number)
    assert_same_tables(tmp_path / "out", tmp_path / "batch")


def logical_log(directory: Path) -> Path:
    some = test_logical_pipeline.records()
    return write_log(directory, [some[at : at + 90] for at in range(0, len(some), 90)], segment_blocks=20)


@each_row(
    "make, size",
    [
        (test_pipeline.capture_of, 100),  # duplicates by identity and by mark, conflicts, malformed frames
        (test_pipeline_fmq.capture_of, 100),
        (test_pipeline_fmq.by_hash, 3),  # names of topics that a later batch has
        (logical_log, 300),  # groups of IBM MQ over several batches
    ],
)
def test_what_later_batches_change_is_as_in_a_batch(
    tmp_path: Path, make: Callable[[Path], Path], size: int
) -> None:
    log = make(tmp_path / "log")
    stream = Stream(InProcess(), [Log.at(log)], tmp_path / "out")
    ends = positions(log, size)
    assert len(ends) > 3
    for number, upto in enumerate(ends):
        stream.add(upto, number)
    run_on(InProcess(), log, tmp_path / "batch")
    assert_same_tables(tmp_path / "out", tmp_path / "batch")


def test_a_batch_run_beside_a_stream_takes_nothing_twice(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", 0, *[5] * 8)
    stream = Stream(InProcess(), [Log.at(log)], tmp_path / "out")
    ends = positions(log, 10)
    stream.add(ends[0], 0)
    run_on(InProcess(), log, tmp_path / "out")
    for number, upto in enumerate(ends[1:], 1):
        stream.add(upto, number)
    log_of(log, 40, 5)
    stream.add(positions(log, 1000)[-1], len(ends))
    assert sorted(rows(tmp_path / "out", MESSAGES, "seq")) == list(range(45))
    assert len(rows(tmp_path / "out", FRAMES, "offset")) == 45


def test_a_stream_waits_while_another_run_writes(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", 0, 5)
    said: list[str] = []
    stream = Stream(InProcess(), [Log.at(log)], tmp_path / "out", say=said.append)
    (upto,) = positions(log, 10)
    with writing(tmp_path / "out"):
        thread = threading.Thread(target=stream.add, args=(upto, 0))
        thread.start()
        while not said:
            thread.join(0.01)
    thread.join(PATIENCE_S)
    assert "another" in said[0]
    assert said[0].endswith(": waiting")
    assert sorted(rows(tmp_path / "out", MESSAGES, "seq")) == list(range(5))


def test_several_logs_and_one_that_does_not_exist_yet(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("a", "b", "c")]
    log_of(logs[0], 0, 5)
    log_of(logs[1], 5, 5)
    seen: list[Progress] = []
    stream = Stream(InProcess(), [Log.at(log) for log in logs], tmp_path / "out", show=seen.append)
    stream.add(positions(logs[0], 10)[0], 0)
    log_of(logs[2], 10, 5)
    stream.add(positions(logs[1], 10)[0] | positions(logs[2], 10)[0], 1)
    assert sorted(rows(tmp_path / "out", MESSAGES, "seq")) == list(range(15))
    assert seen[0].behind > 0
    assert seen[1].behind == 0


def test_small_files_are_merged_now_and_then(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", 0, *[5] * 8)
    said: list[str] = []
    stream = Stream(InProcess(), [Log.at(log)], tmp_path / "out", say=said.append, compact_every=3)
    for number, upto in enumerate(positions(log, 5)):
        stream.add(upto, number)
    assert len([text for text in said if text.startswith("merged files")]) == 2
    assert len(delta.live(tmp_path / "out", MESSAGES).files) == 3
    run_on(InProcess(), log, tmp_path / "batch")
    assert_same_tables(tmp_path / "out", tmp_path / "batch")


def test_a_line_for_each_batch(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", 0, 5, 5)
    seen: list[Progress] = []
    stream = Stream(InProcess(), [Log.at(log)], tmp_path / "out", show=seen.append)
    stream.add(positions(log, 5)[0], 0)
    text = line(seen[0]._replace(seconds=0.5, behind=2_500_000))
    assert text == "batch 1: 5 records, 0.0 MB in 0.5 s, 10/s, 2.5 MB left"


@pytest.mark.needs_java
def test_a_stream_in_spark(spark: "SparkSession", tmp_path: Path) -> None:
    from headwater_spark.engine import SparkEngine

    log = log_of(tmp_path / "log", 0, *[5] * 6)
    seen: list[Progress] = []

    def run(size: int) -> None:
        stream = Stream(SparkEngine(spark), [Log.at(log)], tmp_path / "out", show=seen.append)
        stream.run(spark, trigger=None, bytes_per_trigger=size)

    for start in (30, 35, 40):
        run(3000)
        log_of(log, start, 5)
    run(1 << 20)
    assert len(seen) > 4
    run_on(InProcess(), log, tmp_path / "batch")
    assert_same_tables(tmp_path / "out", tmp_path / "batch")


@pytest.mark.needs_java
def test_the_command_waits_for_a_log_and_ends_with_a_signal(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = [*HEADWATER, "pipeline", "stream", "--capture", str(log), "--out", str(out)]
    command += ["--trigger", "0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        said = []
        for text in process.stderr:
            said.append(text)
            if "waiting for a log" in text:
                log_of(log, 0, 5, 5)
            if ": batch 1: 10 records" in text:
                process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, said
    assert "pipeline: ending after this batch\n" in said
    assert not any("Traceback" in text or "ERROR" in text for text in said), said
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(10))


def test_the_log_itself_is_no_place_for_tables(tmp_path: Path) -> None:
    done = headwater("pipeline", "stream", "--capture", tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert b"is the capture log itself" in done.stderr
