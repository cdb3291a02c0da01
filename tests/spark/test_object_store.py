"""Capture logs in an object store: planned, read and turned into tables as those of a directory are."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater_host.capture.log_id import LogIdError
from headwater_host.capture.manifest import list_log
from headwater_host.capture.scan import scanning
from headwater_host.cli.main import main
from headwater_spark import plan as planning
from headwater_spark.growth import grow
from headwater_spark.pipeline import run_on
from headwater_spark.plan import EVER, Log, Span, plan
from headwater_spark.positions import Limits, advance
from headwater_spark.tables import FRAMES, MESSAGES
from tests.object_store import Bucket
from tests.rows import each_row
from tests.spark.logs import (
    BEGIN_NS,
    InProcess,
    Rec,
    assert_same_tables,
    damage,
    publish,
    reading,
    rows,
    write_log,
)
from tests.spark.test_plan import log_of, read_all, segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def upload(directory: Path, bucket: Bucket, prefix: str = "") -> Log:
    return Log.at(bucket.upload(directory, prefix), bucket.options)


def readings(board: str, start: int, count: int) -> list[list[Rec]]:
    return [
        [Rec(publish("t", reading(board, 1, seq, load=seq / 8)), at=10 * seq, peer=f"serial:{board}")]
        for seq in range(start, start + count)
    ]


@each_row("size", [1, 700, 5000, 1 << 30])
@each_row("span", [EVER, Span(BEGIN_NS + 8 * 10**6, BEGIN_NS + 40 * 10**6)])
def test_ranges_are_those_of_a_directory(tmp_path: Path, bucket: Bucket, size: int, span: Span) -> None:
    log_of(tmp_path, 5, 1, 9, 2, 30, 4, 4, segment_blocks=3)
    damage(segments(tmp_path)[1], 1, 70)
    (tmp_path / "manifest.jsonl").write_bytes(
        b"".join((tmp_path / "manifest.jsonl").read_bytes().splitlines(keepends=True)[:-1])
    )
    log = upload(tmp_path, bucket)
    local = plan(tmp_path, size, 1, span=span)
    remote = plan(log.location, size, 1, span=span, storage=log.storage)
    assert remote._replace(partitions=[]) == local._replace(partitions=[])
    assert [[r[1:6] for r in part] for part in remote.partitions] == [
        [r[1:6] for r in part] for part in local.partitions
    ]
    assert read_all(remote) == read_all(local)


def test_pieces_are_those_of_a_directory(tmp_path: Path, bucket: Bucket) -> None:
    log_of(tmp_path, 5, 1, 9, 2, 30, 4, 4, segment_blocks=3)
    log = upload(tmp_path, bucket)
    at = None
    for _ in range(4):
        end = advance(list_log(tmp_path), at, Limits(900)).end
        assert advance(list_log(*log), at, Limits(900)).end == end
        remote = plan(log.location, 1 << 30, 1, start=at, upto=end, storage=log.storage)
        assert read_all(remote) == read_all(plan(tmp_path, 1 << 30, 1, start=at, upto=end))
        at = end


def test_small_sealed_segments_are_planned_without_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(tmp_path, *[5] * 64, segment_blocks=1)
    whole = plan(tmp_path, 1 << 30, 1)
    read = []

    def counting(location: str, *arguments: Any, **options: Any) -> Any:
        read.append(location)
        return scanning(location, *arguments, **options)

    monkeypatch.setattr(planning, "scanning", counting)
    log = plan(tmp_path, 1 << 30, 4)
    assert (log.segments, log.blocks, log.records, log.first_ns, log.last_ns) == (64, 64, 320, *whole[-2:])
    assert read == []
    sizes = [sum(part.end - part.start for part in ranges) for ranges in log.partitions]
    assert len(sizes) == 4
    assert max(sizes) <= log.bytes / 4 * 1.25
    assert read_all(log)[0] == read_all(whole)[0]
    # Where the span or the position cuts a segment, its headers are read.
    plan(tmp_path, 1 << 30, 4, span=Span(BEGIN_NS + 12 * 10**6, EVER.until))
    assert [Path(one).name for one in read] == [segments(tmp_path)[2].name]


def test_tables_of_several_logs_by_path_and_uri(tmp_path: Path, bucket: Bucket) -> None:
    first = write_log(tmp_path / "a", readings("a", 0, 6), segment_blocks=2)
    second = write_log(tmp_path / "b", readings("b", 0, 4), segment_blocks=3)
    run_on(InProcess(), [first, second], tmp_path / "paths")
    run_on(InProcess(), [first, upload(second, bucket, "b")], tmp_path / "uris")
    assert_same_tables(tmp_path / "uris", tmp_path / "paths")
    assert rows(tmp_path / "uris", MESSAGES, "board", "seq") == [
        *(("a", seq) for seq in range(6)),
        *(("b", seq) for seq in range(4)),
    ]
    # Each log has its own position.
    write_log(second, readings("b", 4, 2))
    assert run_on(InProcess(), [second], tmp_path / "uris").rows["messages"] == 2
    assert run_on(InProcess(), [first, upload(second, bucket, "b")], tmp_path / "uris").rows["messages"] == 0
    write_log(first, readings("a", 6, 1))
    assert run_on(InProcess(), [first, second], tmp_path / "uris").rows["messages"] == 1


def test_a_log_and_its_copy_are_refused(tmp_path: Path, bucket: Bucket) -> None:
    log = write_log(tmp_path / "a", readings("a", 0, 2))
    copy = upload(log, bucket)
    with pytest.raises(LogIdError, match="are copies of one log: name one of them"):
        grow(InProcess(), [Log.at(log), copy], tmp_path / "out")


def test_a_log_without_an_object_is_an_error(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.options.items():
        monkeypatch.setenv(name, value)
    out = str(tmp_path / "out")
    for location, message in (
        (f"{bucket.uri}/none", f"--capture: no capture log in {bucket.uri}/none"),
        ("s3://no-such-bucket/log", "The specified bucket does not exist"),
        ("s3://", "the bucket is missing"),
    ):
        assert main(["pipeline", "run", "--capture", location, "--out", out]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["pipeline", "run", "--capture", bucket.uri, "--out", out, "--storage", "endpoint=x"])
    assert "there is no storage option 'endpoint'" in capsys.readouterr().err


@pytest.mark.needs_java
def test_spark_reads_several_logs_by_path_and_uri(
    spark: "SparkSession", tmp_path: Path, bucket: Bucket
) -> None:
    first = write_log(tmp_path / "a", readings("a", 0, 6), segment_blocks=2)
    second = write_log(tmp_path / "b", readings("b", 0, 4), segment_blocks=3)
    log = upload(second, bucket, "b")
    reader = spark.read.format("headwater").options(**bucket.options)
    columns = ["time_ns", "peer", "file", "offset", "record", "frame"]

    def read(*places: Any) -> list[Any]:
        found = reader.load(str(places[0]) if len(places) == 1 else list(map(str, places)))
        return sorted(found.select(columns).collect())

    assert len(read(log.location)) == 4
    assert read(log.location) == read(second)
    assert read(first, log.location) == read(first, second)


@pytest.mark.needs_java
def test_the_command_reads_from_an_object_store(
    spark: "SparkSession", tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_log(tmp_path / "a", readings("a", 0, 6), segment_blocks=2)
    second = write_log(tmp_path / "b", readings("b", 0, 4), segment_blocks=3)
    log = upload(second, bucket, "b")
    options = [f"--storage={name}={value}" for name, value in bucket.options.items()]
    out = tmp_path / "out"
    logs = ["--capture", str(first), "--capture", log.location]
    assert main(["pipeline", "run", *logs, "--out", str(out), *options]) == 0
    assert len(rows(out, FRAMES, "peer")) == 10
    assert main(["pipeline", "run", *logs, "--out", str(out), *options]) == 0
    assert len(rows(out, FRAMES, "peer")) == 10
    for path in out.rglob("*"):
        if path.is_file():
            assert b"secret" not in path.read_bytes(), path
