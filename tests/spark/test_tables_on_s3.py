"""Tables in an object store: the same as in a directory, however a run is interrupted and however many run at once."""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater_host.capture.filesystem import Storage, parse_storage
from headwater_host.cli.main import main
from headwater_spark import batches, delta, report, run
from headwater_spark.engine import LocalEngine
from headwater_spark.growth import compact, grow, requarantine
from headwater_spark.part import Job
from headwater_spark.pipeline import run_on
from headwater_spark.place import Place
from headwater_spark.tables import FRAMES, MESSAGES, QUARANTINE
from tests.object_store import Bucket
from tests.spark import test_requarantine
from tests.spark.logs import InProcess, assert_same_tables, rows
from tests.spark.test_growth import block, extend, killing
from tests.spark.test_pipeline import records
from tests.spark.test_table_source import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tables_in(bucket: Bucket, name: str = "tables") -> Place:
    return Place.at(f"{bucket.uri}/{name}", bucket.storage)


def objects(place: Place) -> list[str]:
    """The names of all objects in a place."""
    from pyarrow.fs import FileSelector, FileType

    found, path = place.arrow()
    return sorted(
        info.path.removeprefix(f"{path}/")
        for info in found.get_file_info(FileSelector(path, recursive=True))
        if info.type == FileType.File
    )


def test_tables_grow_as_in_a_directory(tmp_path: Path, bucket: Bucket) -> None:
    out = tables_in(bucket)
    some = records()
    for at in range(0, len(some), 90):
        log = extend(tmp_path / "log", some[at : at + 50], some[at + 50 : at + 90])
        for place in (out, tmp_path / "out"):
            run_on(InProcess(), log, place, report=report.write, partition_bytes=2000)
    assert_same_tables(out, tmp_path / "out")
    assert [name for name in objects(out) if "/" not in name] == ["report.html", "report.json"]
    assert (out / "report.html").read() == (tmp_path / "out/report.html").read_bytes()
    found = compact(LocalEngine(), out)
    assert found.after["messages"] < found.before["messages"]
    assert_same_tables(out, tmp_path / "out")
    messages = out / "messages"
    assert read(messages, "seq", **bucket.options) == read(tmp_path / "out/messages", "seq")


def test_frames_in_quarantine_are_decoded_again(tmp_path: Path, bucket: Bucket) -> None:
    log = test_requarantine.log_of(tmp_path / "log")
    for place in (tables_in(bucket), tmp_path / "out"):
        grow(InProcess(), [log], place, decoders={"raw/+": test_requarantine.strict})
        found = requarantine(InProcess(), place, decoders={"raw/+": test_requarantine.mended})
        assert found.taken
    assert_same_tables(tables_in(bucket), tmp_path / "out")


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_any_point_is_completed_by_the_next(
    after: bool, tmp_path: Path, bucket: Bucket
) -> None:
    log, whole = tmp_path / "log", tmp_path / "whole"
    points = 2 + 5 + 1  # five tables have rows
    for at in range(1, points + 1):
        extend(log, block(4 * at))
        with killing(at, after=after) as killed:
            grow(InProcess(), [log], tables_in(bucket))
        assert killed == [1]
    extend(log, block(4 * points + 4))
    grow(InProcess(), [log], tables_in(bucket))
    run_on(InProcess(), log, whole)
    assert_same_tables(tables_in(bucket), whole)


def at_once(*actions: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def act(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=[action]) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_runs_at_once_are_one(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs meet before each document and each commit."""
    log, out = extend(tmp_path / "log", block(0), block(4)), tables_in(bucket)
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")  # which is ignored
    for where, name in ((batches.Batches, "plan"), (batches.Batches, "list_files"), (delta.Tables, "commit")):
        original = getattr(where, name)
        barrier = threading.Barrier(3)

        def meet(*args: Any, _original: Any = original, _barrier: Any = barrier, **more: Any) -> Any:
            with suppress(threading.BrokenBarrierError):
                _barrier.wait(5)
            return _original(*args, **more)

        monkeypatch.setattr(where, name, meet)
    at_once(*(lambda: grow(InProcess(), [log], out),) * 3)
    monkeypatch.undo()
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(8))
    assert len([name for name in objects(out) if name.endswith((".plan", ".files"))]) == 2
    # Two programs that create a table at once make a version each, and the second one is empty.
    versions = [name for name in objects(out) if re.fullmatch(r"messages/_delta_log/\d+\.json", name)]
    assert sum(b'"txn"' in (out / name).read() for name in versions) == 1


def test_a_batch_that_another_run_has_planned_comes_first(tmp_path: Path, bucket: Bucket) -> None:
    """Also a compaction, which is another kind of batch."""
    log, out = tmp_path / "log", tables_in(bucket)
    for k in range(3):
        grow(InProcess(), [extend(log, block(4 * k))], out)
    extend(log, block(12))
    with pytest.MonkeyPatch.context() as patch:
        original = run.Run.plan

        def late(self: Any, batch: Any) -> bool:
            patch.setattr(run.Run, "plan", original)
            compact(LocalEngine(), out)
            return original(self, batch)

        patch.setattr(run.Run, "plan", late)
        result = grow(InProcess(), [log], out)
    assert (result.batch, result.completed, result.rows["messages"]) == (5, [4], 4)
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(16))


def test_work_is_in_a_directory_that_every_task_sees(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, work = extend(tmp_path / "log", block(0), block(2)), tmp_path / "work"
    seen: list[Path] = []
    original = Job.begin

    def begin(self: Job) -> None:
        seen.append(self.work)
        original(self)

    monkeypatch.setattr(Job, "begin", begin)
    grow(InProcess(), [log], tables_in(bucket), work=work)
    assert {path.parent for path in seen} == {work}
    assert list(work.iterdir()) == []

    def elsewhere(self: Job) -> None:
        self.work.rmdir()
        original(self)

    monkeypatch.setattr(Job, "begin", elsewhere)
    extend(log, block(20))
    with pytest.raises(
        NotADirectoryError, match=r"work/.* does not exist on .*: the directories of --out and"
    ):
        grow(InProcess(), [log], tables_in(bucket), work=work)
    monkeypatch.undo()
    assert grow(InProcess(), [log], tables_in(bucket), work=work).completed == [2]


def failing_after(good: int, original: Callable[..., Any], wrong: Storage) -> Callable[..., Any]:
    """A step whose first calls are good; for the others, the server is away."""
    calls = count(1)

    def step(self: Place, *args: Any) -> Any:
        return original(self if next(calls) <= good else Place(self.location, wrong), *args)

    return step


def test_a_request_that_fails_leaves_a_batch_to_the_next_run(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out = extend(tmp_path / "log", block(0)), tables_in(bucket)
    grow(InProcess(), [log], out)
    extend(log, block(4))
    wrong = parse_storage(dict(out.storage) | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    for step, good in (("open_output", 2), ("create", 1), ("read", 3)):
        with monkeypatch.context() as patch:
            patch.setattr(Place, step, failing_after(good, getattr(Place, step), wrong))
            with pytest.raises(OSError, match=r"[cC]onnect|127\.0\.0\.1:1/"):
                grow(InProcess(), [log], out)
    grow(InProcess(), [log], out)
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(8))


ACTIONS = (
    ["run", "--capture", "LOG", "--out"],
    ["stream", "--capture", "LOG", "--checkpoint", "LOG/checkpoint", "--out"],
    ["compact", "--out"],
    ["requarantine", "--out"],
    ["report", "--tables"],
    ["files"],
)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action[0])
def test_wrong_options_are_errors_of_one_line(
    action: list[str], tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    log = extend(tmp_path / "log", block(0))
    words = [word.replace("LOG", str(log)) for word in action]
    for location, wrong, message in (
        ("s3://no-such-bucket/tables", {}, "bucket does not exist|no-such-bucket"),
        ("s3://", {}, "the bucket is missing"),
        ("gs://bucket/tables", {}, "tables need a directory or S3"),
        (f"{bucket.uri}/t", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, r"127\.0\.0\.1:1|connect|s3://"),
        (f"{bucket.uri}/t", {"AWS_ENDPOINT_URL": "127.0.0.1"}, "expected http://HOST:PORT"),
    ):
        options = [f"--storage={name}={value}" for name, value in (bucket.options | wrong).items()]
        assert main(["pipeline", *words, location, *options]) in (1, 2), location
        err = capsys.readouterr().err
        assert re.search(message, err), err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert "\x1b" not in err


def test_the_commands(tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    out = tables_in(bucket)
    for k in range(3):
        run_on(InProcess(), extend(tmp_path / "log", block(4 * k)), out)
    options = [f"--storage={name}={value}" for name, value in bucket.options.items()]
    table = str(out / "messages")
    assert main(["pipeline", "files", table, *options]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["pipeline", "compact", "--out", str(out), *options]) == 0
    assert re.search(r"messages +3 +1$", capsys.readouterr().out, re.MULTILINE)
    assert main(["pipeline", "files", table, *options]) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert path.startswith(f"{table}/date=")
    assert main(["pipeline", "requarantine", "--out", str(out), *options]) == 0
    assert "0 frames decoded again" in capsys.readouterr().out
    assert main(["pipeline", "report", "--tables", str(out), *options]) == 0
    assert f"The report is {out}/report.html" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["pipeline", "report", "--tables", str(out), "--out", str(page), *options]) == 0
    assert b"12 messages" in page.read_bytes()
    assert main(["pipeline", "files", str(out), *options]) == 2
    assert "is not a table" in capsys.readouterr().err
    assert main(["pipeline", "stream", "--capture", "x", "--out", str(out), *options]) == 2
    assert "--checkpoint: name a directory" in capsys.readouterr().err


@pytest.mark.needs_java
def test_runs_and_streams_of_spark(
    spark: "SparkSession", tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tables_in(bucket), tmp_path / "log"
    options = [f"--storage={name}={value}" for name, value in bucket.options.items()]
    arguments = ["--capture", str(log), "--out", str(out), "--partition-bytes", "1k", *options]
    some = records()
    extend(log, some[:100], some[100:200])
    assert main(["pipeline", "run", *arguments]) == 0
    assert f"The tables and report.html are in {out}" in capsys.readouterr().out
    extend(log, some[200:300], some[300:])
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint"), "--available-now", "--compact-every", "1"]
    assert main(["pipeline", "stream", *arguments, *checkpoint]) == 0
    run_on(InProcess(), log, tmp_path / "whole")
    assert_same_tables(out, tmp_path / "whole")
    reader = spark.read.format("headwater.table").options(**bucket.options)
    for table in (FRAMES, QUARANTINE):
        assert reader.load(str(out / table.name)).count() == len(rows(out, table))
