"""FMQ and MQTT in one log: one run, the same tables, each message once, and exact counts of everything else."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater_host.fmq.hashes import hash_of
from headwater_spark import passes, pipeline, report
from headwater_spark.pipeline import Result, run_on
from headwater_spark.tables import FRAMES, MESSAGES, QUARANTINE, TELEMETRY
from tests.rows import each_row
from tests.spark.fmq_bytes import Decimal, Nanoseconds, consumeresp, fmq_publish, frame, message_id, value
from tests.spark.logs import (
    BEGIN_NS,
    SERIAL,
    InProcess,
    Rec,
    assert_same_tables,
    publish,
    reading,
    rows,
    write_log,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEVICE = "fmq:192.0.2.7:40000"
HUB = "fmq:192.0.2.1:7654"
COUNT = 150
#: A clock of 2026 may stand before its frame is captured.
LATE_NS = 3_000_000


def fmq(frame_: bytes, at: int, connection: int = 30, peer: str = DEVICE, direction: int = 0) -> Rec:
    return Rec(frame_, at, connection, peer, direction, 2, 0)


def ident(seq: int, process: int = 7, thread: int = 0) -> bytes:
    return message_id(BEGIN_NS + seq * 10_000_000, process, thread)


def readings(seq: int) -> dict[str, Any]:
    return {
        "load": seq / 8,
        "n": seq,
        "ok": seq % 2 == 0,
        "state": "on",
        "since": Nanoseconds(9, seq * 10**9),
    }


MALFORMED = [
    (b"\x36" + ident(1) + b"\x00", "bad_qos", 0),
    (b"\x30" + ident(2) + b"\x05\x11\x05a", "truncated", 17),
    (frame(0x30, ident(3), b"\x11\x02\xc3\x28\xd0"), "bad_utf8", 16),
    (frame(0xC0, ident(4)), "bad_body_length", 13),
    (b"", "truncated", 0),
]


def records() -> list[Rec]:
    found = []
    for seq in range(COUNT):
        at = seq * 10 + 3
        qos = seq % 3
        data = fmq_publish("plant/1", readings(seq), ident(seq), qos=qos, tags=("raw",))
        found.append(fmq(data, at))
        again = fmq_publish("plant/1", readings(seq), ident(seq), qos=qos, dup=qos > 0, tags=("raw",))
        if seq % 10 == 1:  # sent again over another connection, soon
            found.append(fmq(again, at + 2, 31))
        if seq % 50 == 2:  # after an hour
            found.append(fmq(again, at + 3_600_000, 32))
        if seq % 30 == 5:  # the hub passes it on as well
            answer = consumeresp(ident(seq), value(readings(seq)), value(7), "plant/1", ("raw",))
            found.append(fmq(answer, at + 5, 40, HUB))
        # The same times made by another process are other messages.
        other = fmq_publish("plant/2", reading("b9", 1, seq, x=1), ident(seq, 8))
        found.append(fmq(other, at, 33))
        board = publish("hw/b1", reading("b1", 1, seq, load=seq / 4), qos=1, packet_id=seq + 1)
        found.append(Rec(board, at, 10, SERIAL))
        if seq % 25 == 0:
            found.append(Rec(board, at + 50_000, 11, SERIAL))
    found += [fmq(data, 7) for data, _, _ in MALFORMED]
    found += [
        fmq(fmq_publish("plant/1", {"n": 99}, ident(20)), 9_000),  # the id of another message
        fmq(fmq_publish("plant/1", {"board": 1, "boot": 1, "seq": 1}, ident(COUNT)), 8),
        fmq(fmq_publish("plant/1", "21.5", message_id(1 << 56, 0, 0)), 9),  # a board without a clock
        fmq(fmq_publish(0x32E171E7 << 96, b"{}", ident(0, 1 << 40)), 10),
        fmq(fmq_publish(0x32E171E7 << 96, b"{}", ident(0, 1 << 40), qos=1, dup=True), 5_000_000),
        fmq(consumeresp(ident(3, 9), value({"d": Decimal(314, 2)}), value(7)), 33, 40, HUB),
        fmq(frame(0xE0, ident(5), b""), 55, direction=1),
        fmq(frame(0xC0, ident(0, 7, 1), None), 56),
        fmq(fmq_publish("never", "sent by the gateway", ident(1, 77)), 57, direction=1),
        Rec(b"FMQ of a later version", 58, 30, DEVICE, 0, 2, 9),
    ]
    return sorted(found, key=lambda rec: rec.at)


def capture_of(directory: Path) -> Path:
    some = records()
    return write_log(directory, [some[at : at + 17] for at in range(0, len(some), 17)], segment_blocks=9)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A run over the log in many parts, in this process."""
    tmp = tmp_path_factory.mktemp("fmq")
    capture = capture_of(tmp / "log")
    result = run_on(InProcess(), capture, tmp / "out", partition_bytes=3000)
    return result, tmp / "out"


def test_counts(done: tuple[Result, Path]) -> None:
    result, out = done
    assert result.rows["frames"] == len(records())
    protocols = Counter(rows(out, MESSAGES, "protocol"))
    # Two processes, a board without a clock, an id beyond the columns, one from the hub alone.
    assert protocols == {1: COUNT, 2: 2 * COUNT + 3}
    near, far, hub, odd, mqtt = 15, 3, 5, 1, 6
    assert result.duplicates == near + far + hub + odd + mqtt
    assert result.quarantined == {
        "bad_qos": 1,
        "truncated": 2,
        "bad_utf8": 1,
        "bad_body_length": 1,
        "identity_conflict": 1,
        "bad_identity": 1,
    }
    assert result.undecoded == {(2, 9): 1}
    assert result.again > 1
    # Few rows had to meet: copies that are far, and what lies between in a part that has them.
    assert 0 < result.candidates < len(records()) // 2
    numbers = report.summary(result)
    assert numbers["tables"]["messages"] == 3 * COUNT + 3
    frames = Counter(rec.protocol for rec in records())
    assert numbers["protocols"] == [
        {"protocol": "mqtt", "frames": frames[1], "messages": COUNT},
        {"protocol": "fmq", "frames": frames[2], "messages": 2 * COUNT + 3},
    ]
    boards = {row["board"]: (row["received"], row["stored"], row["gaps"]) for row in numbers["boards"]}
    assert boards["b9"] == (COUNT, COUNT, 0)
    assert boards["b1"] == (COUNT + mqtt, COUNT, 0)


def test_a_message_has_its_id_and_its_copies(done: tuple[Result, Path]) -> None:
    names = [
        *("message_id", "process", "thread", "copies", "topic", "tags", "connection", "peer"),
        *("qos", "sent_ns"),
    ]
    found = {row[0]: row[1:] for row in rows(done[1], MESSAGES, *names) if row[0] is not None}
    sent = BEGIN_NS + 65 * 10_000_000
    assert found[ident(65)] == (7, 0, 2, "plant/1", ["raw"], 30, DEVICE, 2, sent)
    copies = Counter({seq: found[ident(seq)][2] for seq in range(COUNT)})
    wanted = Counter(dict.fromkeys(range(COUNT), 1))
    wanted.update(seq for seq in range(COUNT) if seq % 10 == 1)
    wanted.update(seq for seq in range(COUNT) if seq % 50 == 2)
    wanted.update(seq for seq in range(COUNT) if seq % 30 == 5)
    assert copies == wanted
    assert found[message_id(1 << 56, 0, 0)] == (0, 0, 1, "plant/1", [], 30, DEVICE, 0, None)
    hashed = f"#{0x32E171E7 << 96:032x}"
    assert found[ident(0, 1 << 40)] == (None, None, 2, hashed, [], 30, DEVICE, 0, None)
    assert found[ident(3, 9)] == (9, 0, 1, None, [], 40, HUB, None, BEGIN_NS + 30_000_000)


def test_telemetry_of_both(done: tuple[Result, Path]) -> None:
    names = ("topic", "received_ns", "metric", "value_double", "value_string", "latency_ms")
    found = [row for row in rows(done[1], TELEMETRY, *names) if row[0] == "plant/1"]
    # One payload is a number.
    assert [row[2:4] for row in found if row[2] == "value"] == [("value", 21.5)]
    assert len(found) == 5 * COUNT + 1
    at = BEGIN_NS + 123 * 10_000_000 + LATE_NS
    assert sorted(row[2:] for row in found if row[1] == at) == [
        ("load", 15.375, None, 3.0),
        ("n", 123.0, None, 3.0),
        ("ok", 0.0, None, 3.0),
        ("since", 123.0, None, 3.0),
        ("state", None, "on", 3.0),
    ]
    by_board = Counter(rows(done[1], TELEMETRY, "board"))
    assert by_board == {None: 5 * COUNT + 2, "b9": COUNT, "b1": COUNT}
    assert [row[2:4] for row in rows(done[1], TELEMETRY, *names) if row[0] is None] == [("d", 3.14)]


def test_quarantine(done: tuple[Result, Path]) -> None:
    found = rows(done[1], QUARANTINE, "kind", "reason", "error_at", "bytes", "peer")
    wanted: list[tuple[Any, ...]] = [("frame", reason, at, data, DEVICE) for data, reason, at in MALFORMED]
    wanted.append(("message", "identity_conflict", None, value({"n": 99}), DEVICE))
    wanted.append(("message", "bad_identity", None, value({"board": 1, "boot": 1, "seq": 1}), DEVICE))
    assert found == sorted(wanted, key=repr)
    details = dict(rows(done[1], QUARANTINE, "reason", "detail"))
    assert details["bad_body_length"] == "bytes follow the last field of the body"


def test_the_same_however_it_is_cut(done: tuple[Result, Path], tmp_path: Path) -> None:
    run_on(InProcess(), capture_of(tmp_path / "log"), tmp_path / "out")
    assert_same_tables(tmp_path / "out", done[1])


@pytest.mark.needs_java
def test_spark_gives_the_same_tables(
    spark: "SparkSession", done: tuple[Result, Path], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_CANDIDATES", 20)
        result = pipeline.run(spark, capture_of(tmp_path / "log"), tmp_path / "out", partition_bytes=4000)
    assert result.candidates
    assert_same_tables(tmp_path / "out", done[1])
    frame_ = spark.read.format("headwater.table").load(str(tmp_path / "out/messages"))
    assert frame_.where("array_contains(tags, 'raw') and process = 7").count() == COUNT
    assert spark.read.parquet(str(tmp_path / "out" / FRAMES.name)).count() == len(records())


def by_hash(directory: Path) -> Path:
    """A log in whose parts topics are given by name, by hash, and by both."""
    known, other, registered = map(hash_of, ("plant/1", "only/sent", "only/registered"))
    some = [
        fmq(fmq_publish(known, {"a": 1}, ident(0)), 1),
        fmq(fmq_publish(0x32E171E7 << 96, {"a": 2}, ident(1)), 2),
        fmq(fmq_publish("plant/2", {"a": 3}, ident(2)), 3),
        fmq(fmq_publish(known, {"a": 1}, ident(0), dup=True, qos=1), 4),
        fmq(fmq_publish("plant/1", {"a": 4}, ident(3)), 5),
        fmq(fmq_publish(known, {"a": 5}, ident(4)), 6),
        fmq(fmq_publish("only/sent", {}, ident(5)), 7, direction=1),
        fmq(consumeresp(ident(6), value({"a": 6}), value(7), other), 8),
        fmq(fmq_publish(registered, {"a": 7}, ident(7)), 9),
        fmq(frame(0x20, ident(8), value("only/registered") + value(3)), 10),
        fmq(frame(0x20, ident(9), value("plant/2")), 11),
    ]
    return write_log(directory, [[rec] for rec in some], segment_blocks=2)


TOPICS = [
    ("plant/1", 2),
    (f"#{0x32E171E7 << 96:032x}", 1),
    ("plant/2", 1),
    ("plant/1", 1),
    ("plant/1", 1),
    ("only/sent", 1),
    ("only/registered", 1),
]


@each_row("partition_bytes", [1, 1 << 20], ids=["a part a block", "one part"])
def test_topics_by_hash_have_the_names_that_the_log_knows(tmp_path: Path, partition_bytes: int) -> None:
    result = run_on(InProcess(), by_hash(tmp_path / "log"), tmp_path / "out", partition_bytes=partition_bytes)
    found = sorted(rows(tmp_path / "out", MESSAGES, "time_ns", "topic", "copies"))
    assert [row[1:] for row in found] == TOPICS
    values = {row[1]: row[0] for row in rows(tmp_path / "out", TELEMETRY, "topic", "value_double")}
    assert values == {float(n): topic for n, (topic, _) in enumerate(TOPICS, 1)}
    assert result.rows["frames"] == 11
    assert result.duplicates == 1
    assert not sum(result.quarantined.values())


def test_a_log_without_hashes_is_read_once(tmp_path: Path) -> None:
    capture = write_log(tmp_path / "log", [[fmq(fmq_publish("a", b"x", ident(n)), n)] for n in range(9)])
    assert run_on(InProcess(), capture, tmp_path / "out", partition_bytes=1).again == 0


@pytest.mark.needs_java
def test_spark_finds_the_names_of_hashes(spark: "SparkSession", tmp_path: Path) -> None:
    pipeline.run(spark, by_hash(tmp_path / "log"), tmp_path / "out", partition_bytes=1)
    found = sorted(rows(tmp_path / "out", MESSAGES, "time_ns", "topic", "copies"))
    assert [row[1:] for row in found] == TOPICS
