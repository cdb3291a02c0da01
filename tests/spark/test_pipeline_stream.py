"""``headwater pipeline stream``: the tables of a stream are those of a batch run, however it is interrupted."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import list_log
from headwater_host.cli.main import main
from headwater_spark import delta
from headwater_spark.batches import Batches, LogRange, writing
from headwater_spark.pipeline import run_on
from headwater_spark.plan import Log
from headwater_spark.positions import Limits, Position, advance
from headwater_spark.stream import CHECKPOINTS, Progress, Stream
from headwater_spark.stream_command import line
from headwater_spark.tables import DEVICE_HEALTH, FRAMES, MESSAGES
from tests.host.command import HEADWATER, PATIENCE_S, environment, headwater
from tests.rows import each_row
from tests.spark import test_logical_pipeline, test_pipeline, test_pipeline_fmq
from tests.spark.logs import InProcess, Rec, assert_same_tables, publish, reading, rows, write_log
from tools.toolchain import ROOT

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
def test_a_checkpoint_is_a_directory_of_this_machine(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name, Java's current directory and Hadoop's default file system are."""
    from headwater_spark.engine import SparkEngine

    monkeypatch.chdir(tmp_path)
    seen: list[Progress] = []
    stream = Stream(
        SparkEngine(spark), [Log.at(log_of(tmp_path / "log", 0, 5))], tmp_path / "out", show=seen.append
    )
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "viewfs://c/")
    hadoop.set("fs.viewfs.mounttable.c.linkFallback", (tmp_path / "hadoop").as_uri())
    try:
        stream.run(spark, checkpoint=Path("a:b c%20#d"), trigger=None)
    finally:
        hadoop.set("fs.defaultFS", before)
    assert [progress.result.plan.records for progress in seen] == [5]
    assert (tmp_path / "a:b c%20#d" / "commits" / "0").exists()
    assert not (tmp_path / "hadoop").exists()


@pytest.mark.needs_java
@each_row("every_s", [0.5, 1e9])
def test_derived_tables_are_complete_when_a_stream_is_idle_or_ends(
    spark: "SparkSession", tmp_path: Path, every_s: float
) -> None:
    from headwater_spark.engine import SparkEngine

    log, out = log_of(tmp_path / "log", 0, *[5] * 6), tmp_path / "out"

    def counted() -> int:
        return sum(rows(out, DEVICE_HEALTH, "messages")) if (out / "_batches").exists() else 0

    stream = Stream(SparkEngine(spark), [Log.at(log)], out, derive_every_s=every_s)
    thread = threading.Thread(
        target=stream.run, args=[spark], kwargs={"trigger": 0.1, "bytes_per_trigger": 1000}
    )
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while (len(rows(out, MESSAGES, "seq")) if counted() else 0) < 30 or (every_s < 1 and counted() < 30):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    if every_s > 1:
        assert counted() < 30
    stream.stop()
    thread.join(PATIENCE_S)
    assert counted() == 30
    run_on(InProcess(), log, tmp_path / "batch")
    assert_same_tables(out, tmp_path / "batch")


@pytest.mark.needs_java
def test_a_log_is_added_to_a_stream_and_another_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    from headwater_spark.engine import SparkEngine

    logs = [tmp_path / name for name in ("a", "b", "c")]
    seen: list[Progress] = []

    def run(*some: Path) -> list[int]:
        """The records of each batch."""
        seen.clear()
        where = [Log.at(log) for log in some]
        Stream(SparkEngine(spark), where, tmp_path / "out", show=seen.append).run(spark, trigger=None)
        return [progress.result.plan.records for progress in seen]

    for number, log in enumerate(logs):
        log_of(log, 10 * number, 5)
    assert run(*logs[:2]) == [10]
    assert run(*logs) == [5]
    (checkpoint,) = (tmp_path / "out" / CHECKPOINTS).iterdir()
    log_of(logs[0], 30, 5)
    log_of(logs[1], 40, 5)
    # A log that is left out goes on where it was.
    assert run(logs[0], logs[2]) == [5]
    assert run(*logs) == [5]
    # Without a checkpoint, the tables' positions are the beginning.
    shutil.rmtree(checkpoint)
    assert run(*logs) == []
    log_of(logs[2], 50, 5)
    assert run(*logs) == [5]
    assert seen[0].behind == 0
    run_on(InProcess(), logs, tmp_path / "batch")
    assert_same_tables(tmp_path / "out", tmp_path / "batch")


def test_a_stream_completes_an_interrupted_batch_before_it_begins(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", 0, 5)
    (end,) = positions(log, 10)
    stream = Stream(InProcess(), [Log.at(log), Log.at(tmp_path / "later")], tmp_path / "out")
    stream.add(end, 0)
    log_of(log, 5, 5)
    plan = Batches(tmp_path / "out").last()
    assert plan is not None
    (upto,) = positions(log, 100)[-1:]
    ranges = {name: LogRange(str(log), end[name], upto[name]) for name in upto}
    Batches(tmp_path / "out").plan(replace(plan, number=2, logs=ranges, positions=upto))
    stream._begin()
    assert sorted(rows(tmp_path / "out", MESSAGES, "seq")) == list(range(10))
    assert stream._reached == upto


def test_logs_of_a_stream_share_their_storage_options(tmp_path: Path) -> None:
    logs = [Log.at("s3://bucket/a", (("AWS_REGION", "eu-central-1"),)), Log.at("s3://bucket/b")]
    for some in (logs, []):
        with pytest.raises(ValueError, match="a stream needs logs, all with the same storage options"):
            Stream(InProcess(), some, tmp_path)


@pytest.mark.needs_java
def test_the_command_waits_for_a_log_and_ends_with_a_signal(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    (tmp_path / "empty").mkdir()
    command = [*HEADWATER, "pipeline", "stream", "--capture", str(log), "--capture", str(tmp_path / "empty")]
    command += ["--out", str(out), "--trigger", "0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        said = []
        for text in process.stderr:
            said.append(text)
            if f"{log} has no capture log yet: waiting for it" in text:
                log_of(log, 0, 5, 5)
            if ": batch 1: 10 records" in text:
                process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, said
    assert f"pipeline: {tmp_path}/empty has no capture log yet: waiting for it\n" in said
    assert "pipeline: ending after this batch\n" in said
    assert not any("Traceback" in text or "ERROR" in text for text in said), said
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(10))


@each_row(
    "words, code, message",
    [
        (["--capture", "{tmp}/file"], 2, "--capture: {tmp}/file is not a directory"),
        (
            ["--capture", "{tmp}/log", "--out", "{tmp}/file/out"],
            1,
            "--out: cannot write to {tmp}/file/out: Not",
        ),
        (["--out", "/sys/headwater"], 1, "--out: cannot write to /sys/headwater: "),
        (["--checkpoint", "{tmp}/file"], 1, "--checkpoint: cannot write to {tmp}/file: "),
        ([], 1, "Spark needs Java 17 or newer: PATH has no java: apt-get install"),
        (["--bytes-per-trigger", "0"], 2, "0: a size here is 1 to 1024g"),
        (["--trigger", "x"], 2, "argument --trigger: 'x' is not a number of seconds"),
    ],
)
def test_errors_of_the_command_come_at_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "file").touch()
    log_of(tmp_path / "log", 0, 1)
    given = ["--capture", str(tmp_path / "log"), "--out", str(tmp_path / "out")]
    given += [word.format(tmp=tmp_path) for word in words]
    try:
        found = main(["pipeline", "stream", *given])
    except SystemExit as error:
        found = int(error.code or 0)
    said = capsys.readouterr().err
    assert message.format(tmp=tmp_path) in said
    assert "Traceback" not in said
    assert found == code


@each_row(
    "script, message",
    [
        (
            "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2",
            "{java} is Java 11, but Spark needs Java 17 or newer: install it and set JAVA_HOME",
        ),
        (
            "echo 'java version \"1.8.0_202\"' >&2",
            "{java} is Java 8, but Spark needs Java 17 or newer: install it and set JAVA_HOME",
        ),
        ("echo broken >&2; exit 1", "{java} is not a Java that works: broken"),
        ("exit 3", "{java} is not a Java that works: exit code 3"),
        ("", "{java} is not a Java that works: exit code 0"),
        (None, "{java} does not start: Exec format error"),
    ],
)
def test_a_java_that_does_not_work_is_told_from_an_old_one(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    message: str,
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("\0" if script is None else f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    log = log_of(tmp_path / "log", 0, 1)
    assert main(["pipeline", "stream", "--capture", str(log), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"headwater: {message.format(java=java)}\n"


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs unshare (util-linux)")
    for number, name in enumerate("abc"):
        log_of(tmp_path / "log" / name, 100 * number, 50, 50)
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "-rm", sys.executable, "-m", "tests.spark.full_disk"]
    command += [str(tmp_path / "log"), str(disk)]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT, check=True)
    full = "No space left on device"
    assert json.loads(shown.stdout) == {
        "compact": [1, f"headwater: cannot write to {disk}/out: {full}\n"],
        "run": f"[Errno 28] {full}",
        "stream": [1, f"headwater: --out: cannot write to {disk}/other: {full}\n"],
        # With room again, the run completes its batch.
        "again": 0,
        "messages": 300,
        "files": 1,
    }


def test_the_log_itself_is_no_place_for_tables(tmp_path: Path) -> None:
    done = headwater("pipeline", "stream", "--capture", tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert b"is the capture log itself" in done.stderr
