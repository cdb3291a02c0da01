"""Logical messages as a table of the pipeline: as by the plain rules, whatever the parts, and however often."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater_host.capture.format import DUPLICATE
from headwater_spark import pipeline, report
from headwater_spark.logical import logical_messages
from headwater_spark.pipeline import Result, run_on
from headwater_spark.sizes import MAX_MESSAGE
from headwater_spark.tables import LOGICAL_MESSAGES, MESSAGES, QUARANTINE
from tests.spark.fmq_bytes import fmq_publish, message_id
from tests.spark.logs import BEGIN_NS, SENT, InProcess, Rec, publish, rows, write_log
from tests.spark.mq_bytes import LS, Come, in_order, mqmde, plain, segmented, some_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def records() -> list[Rec]:
    """The same over MQTT and FMQ, with a segment that is sent again and one that is refused."""
    found = []
    for k, one in enumerate(sorted(some_groups())):
        if k % 2:
            found.append(Rec(publish(one.topic, one.payload), at=k))
        else:
            frame = fmq_publish(one.topic, one.payload, message_id(BEGIN_NS + k))
            found.append(Rec(frame, at=k, protocol=2, version=0))
    again = publish("again", mqmde(b"again", LS), qos=1)
    dup = publish("again", mqmde(b"again", LS), qos=1, dup=True)
    found += [Rec(again, at=1), Rec(dup, at=900, mark=DUPLICATE, first=1)]
    found.append(Rec(publish("t/0", mqmde(b"not received", LS)), at=2, direction=SENT))
    return sorted(found, key=lambda rec: rec.at)


def table(out: Path) -> list[dict[str, Any]]:
    names = LOGICAL_MESSAGES.names
    return in_order(dict(zip(names, row, strict=True)) for row in rows(out, LOGICAL_MESSAGES))


def by_rules(out: Path, chosen: str = "") -> list[dict[str, Any]]:
    """What the plain rules make of the table ``messages``."""
    found = rows(out, MESSAGES, "topic", "payload", "time_ns", "file", "offset", "record")
    order = sorted(found, key=lambda row: row[2:])
    return plain([Come(*row[:3]) for row in order if row[0].startswith(chosen)], MAX_MESSAGE)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    some = records()
    blocks = [some[k : k + 90] for k in range(0, len(some), 90)]
    return write_log(tmp_path_factory.mktemp("logical") / "log", blocks, segment_blocks=20)


@pytest.fixture(scope="module")
def done(log: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A run over the log in many parts, in this process."""
    out = tmp_path_factory.mktemp("logical") / "out"
    return run_on(InProcess(), log, out, partition_bytes=20_000, report=report.write), out


def test_the_pipeline_writes_the_table(done: tuple[Result, Path]) -> None:
    result, out = done
    assert len(result.plan.partitions) > 3
    found = table(out)
    assert found == by_rules(out)
    assert len(found) == result.rows["logical_messages"] > 410
    assert result.logical == {
        "whole": sum(row["complete"] for row in found),
        "incomplete": sum(row["reason"] == 2242 for row in found),
    }
    assert result.logical["incomplete"] >= 10
    assert sum(row["duplicates"] for row in found) == 20
    # A frame that was sent again is one message.
    assert [row["duplicates"] for row in found if row["topic"] == "again"] == [0]
    assert not (out / "current/segments").exists()


def test_segments_are_messages_as_well_and_what_is_refused_says_why(done: tuple[Result, Path]) -> None:
    result, out = done
    bad = mqmde(b"x", seq=0)
    assert rows(out, QUARANTINE, "kind", "reason", "detail", "error_at", "bytes", "direction") == [
        ("message", "bad_mqmde", "MQMDE: MsgSeqNumber at byte 56: 2250 MQRC_MSG_SEQ_NUMBER_ERROR", 56, bad, 0)
    ]
    assert result.quarantined == {"bad_mqmde": 1}
    payloads = rows(out, MESSAGES, "payload")
    assert len(payloads) == len(records()) - 2
    assert bad in payloads


def test_the_report_counts_them(done: tuple[Result, Path]) -> None:
    result, out = done
    numbers = json.loads((out / "report.json").read_text())
    assert numbers["logical_messages"] == dict(result.logical)
    assert (
        f"{result.logical['whole']} logical messages whole, {result.logical['incomplete']} incomplete"
        in report.headline(numbers)
    )
    assert "<h2>Logical messages of IBM MQ</h2>" in (out / "report.html").read_text()


def test_again_gives_the_same_files(log: Path, tmp_path: Path) -> None:
    files = []
    for name in ("one", "other"):
        run_on(InProcess(), log, tmp_path / name, partition_bytes=20_000)
        folder = tmp_path / name / "logical_messages"
        files.append(sorted(path.read_bytes() for path in folder.glob("date=*/*.parquet")))
    assert files[0] == files[1]
    assert files[0]


@pytest.mark.parametrize("partition_bytes", [1, 1 << 30])
def test_parts_make_no_difference(
    partition_bytes: int, log: Path, done: tuple[Result, Path], tmp_path: Path
) -> None:
    engine = InProcess()
    engine.slots = 3
    run_on(engine, log, tmp_path / "out", partition_bytes=partition_bytes)
    assert table(tmp_path / "out") == table(done[1])


def test_topics_that_count_and_rows_that_may_be_large(log: Path, tmp_path: Path) -> None:
    result = run_on(InProcess(), log, tmp_path / "out", logical_topics=["t/1", "again/#"], max_message=30)
    found = table(tmp_path / "out")
    assert {row["topic"] for row in found} == {"t/1", "again"}
    large = [row for row in found if row["reason"] == 2030]
    assert {row["length"] > 30 for row in large} == {True}
    assert max(row["length"] for row in found if row["complete"]) == 30
    assert result.logical["too large"] == len(large) > 5
    # Nobody looks at what does not count.
    assert not result.quarantined


def test_parts_that_run_again_lay_theirs_aside_again(tmp_path: Path) -> None:
    """A duplicate in another part, and one that has nothing else."""
    pieces = segmented(b"0123456789", 3)
    frames = [publish("t", piece, qos=1, packet_id=k + 1) for k, piece in enumerate(pieces)]
    again = [publish("t", piece, qos=1, packet_id=k + 1, dup=True) for k, piece in enumerate(pieces)]
    n = len(frames)
    records = [Rec(frame, at=k) for k, frame in enumerate(frames)]
    records += [Rec(frame, at=n + k, mark=DUPLICATE, first=k) for k, frame in enumerate(again)]
    log = write_log(tmp_path / "log", [[rec] for rec in records])
    result = run_on(InProcess(), log, tmp_path / "out", partition_bytes=1)
    assert result.again > 1
    (row,) = table(tmp_path / "out")
    assert (row["payload"], row["segments"], row["duplicates"]) == (b"0123456789", 4, 0)


@pytest.mark.needs_java
def test_spark_writes_the_same_table(
    spark: "SparkSession", log: Path, done: tuple[Result, Path], tmp_path: Path
) -> None:
    result = pipeline.run(spark, log, tmp_path / "out", partition_bytes=20_000)
    assert table(tmp_path / "out") == table(done[1])
    assert result.logical == done[0].logical
    frame = spark.read.format("headwater.table").load(str(tmp_path / "out/logical_messages"))
    assert frame.where("complete").count() == result.logical["whole"]
    assert len(list((tmp_path / "out/logical_messages").iterdir())) == 2
    # The table messages is a frame like any other.
    again = logical_messages(spark.read.format("headwater.table").load(str(tmp_path / "out/messages")))
    assert again.where("complete").count() == result.logical["whole"]
