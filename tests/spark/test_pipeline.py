"""From a capture log to tables: what each holds, that they come all at once, and the same from Spark."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater_host.capture.format import DUPLICATE
from headwater_host.cli.main import main
from headwater_host.mqtt_properties import encode
from headwater_spark import delta, passes, pipeline, report, run
from headwater_spark.pipeline import run_on
from headwater_spark.plan import plan
from headwater_spark.result import Result
from headwater_spark.tables import FRAMES, MESSAGES, QUARANTINE, TABLES, TELEMETRY
from tests.host.command import HEADWATER, PATIENCE_S, environment, headwater
from tests.spark.logs import (
    BEGIN_NS,
    SERIAL,
    InProcess,
    Rec,
    ack,
    assert_same_tables,
    damage,
    publish,
    reading,
    rows,
    write_log,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T_US = BEGIN_NS // 1000
#: Property blocks of MQTT 5.0: empty; a content type; more.
BLOCKS = (
    b"\0",
    encode({"content_type": "application/json"}, 1 << 3),
    encode({"message_expiry_interval": 60, "user_property": [("unit", "K"), ("site", "é")]}, 1 << 3),
)


def records() -> list[Rec]:
    """Two boards, one of them restarted, with duplicates near and far, and most kinds of trouble."""
    found = []
    for seq in range(120):
        for board, peer, connection in (("b1", "mqtt:h:1", 10), ("b2", SERIAL, 20)):
            qos = seq % 3
            boot, number = (2, seq - 80) if board == "b2" and seq >= 80 else (1, seq)
            if board == "b1" and seq in (50, 51):
                continue  # a gap
            payload = reading(
                board, boot, number, t=T_US + seq * 10_000, load1=seq / 8, mem_free=1000 + seq, state="ok"
            )
            # b1 speaks MQTT 5.0.
            version, block = (5, BLOCKS[seq % 3]) if board == "b1" else (4, b"")
            frame = publish(f"hw/{board}", payload, qos=qos, packet_id=seq + 1, block=block)
            at = seq * 10 + 5
            found.append(Rec(frame, at=at, connection=connection, peer=peer, version=version))
            if qos and seq % 10 == 0:  # sent again after a reconnect
                again = publish(f"hw/{board}", payload, qos=qos, packet_id=seq + 1, dup=True, block=block)
                found.append(Rec(again, at=at + 300, connection=connection + 1, peer=peer, version=version))
            if seq == 30:  # kept by the broker, and seen again much later
                found.append(
                    Rec(
                        publish(f"hw/{board}", payload, retain=True, block=block),
                        at=1300,
                        connection=connection + 1,
                        peer=peer,
                        version=version,
                    )
                )
        at = seq * 10 + 6
        found.append(Rec(publish("plain", f"{seq}", qos=1, packet_id=200 + seq), at=at, peer="q"))
        if seq % 40 == 7:
            dup = publish("plain", f"{seq}", qos=1, packet_id=200 + seq, dup=True)
            found.append(Rec(dup, at=at + 394, connection=2, peer="q", mark=DUPLICATE, first=at))
    found += [
        Rec(b"\x36\x05\x00\x01a\x00\x01", at=1),
        Rec(b"\x30\x07\x00\x05a", at=2),
        Rec(publish("hw/b1", reading("b1", 1, 0.5)), at=3),  # type: ignore[arg-type]
        Rec(publish("hw/b1", reading("b1", 1, 7, load1=99)), at=1299),
        Rec(publish("other", {"temperature": 21.5, "ok": True}), at=4),
        Rec(ack(4, 1), at=5, direction=1),
        Rec(b"message of IBM MQ", at=6, protocol=3, version=0),
        Rec(publish("of no version", "x"), at=7, version=9),
    ]
    return sorted(found, key=lambda rec: rec.at)


def capture_of(directory: Path, per_block: int = 13) -> Path:
    some = records()
    return write_log(
        directory, [some[at : at + per_block] for at in range(0, len(some), per_block)], segment_blocks=9
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A run over the log in many parts, in this process."""
    tmp = tmp_path_factory.mktemp("pipeline")
    log = capture_of(tmp / "log")
    return run_on(InProcess(), log, tmp / "out", partition_bytes=3000, report=report.write), tmp / "out"


def test_frames_are_all_records(done: tuple[Result, Path]) -> None:
    result, out = done
    assert rows(out, FRAMES, "time_ns", "frame") == sorted(
        ((BEGIN_NS + rec.at * 10**6, rec.frame) for rec in records()), key=repr
    )
    assert result.rows["frames"] == len(records()) == result.plan.records


def test_properties_of_mqtt_5_0_are_columns_of_messages(done: tuple[Result, Path]) -> None:
    """Also of messages that were settled among candidates."""
    result, out = done
    assert result.candidates
    names = (
        "board",
        "seq",
        "content_type",
        "message_expiry",
        "user_properties",
        "response_topic",
        "correlation_data",
    )
    found = {row[1]: row[2:] for row in rows(out, MESSAGES, *names) if row[0] == "b1"}
    assert len(found) == 118
    expected: list[tuple[object, ...]] = [
        (None, None, None, None, None),
        ("application/json", None, None, None, None),
        (None, 60, [("unit", "K"), ("site", "é")], None, None),
    ]
    for seq, properties in found.items():
        assert properties == expected[seq % 3], seq
    assert {row[2:] for row in rows(out, MESSAGES, *names) if row[0] == "b2"} == {(None,) * 5}


def test_messages_of_mqtt_5_0(tmp_path: Path) -> None:
    """Properties are passed over, also between frames of 3.1.1; what is malformed and what has only an alias for a
    topic is set aside."""
    expiry, alias = b"\x05\x02\x00\x00\x00\x3c", b"\x03\x23\x00\x01"
    payload = reading("b5", 1, 1, load=0.5)
    frames = [
        (5, publish("hw/b5", payload, qos=1, packet_id=7, block=expiry)),
        (4, publish("hw/b5", payload)),
        (5, publish("plain", "x", block=b"\x00")),
        (5, publish("plain", "y", qos=2, block=alias)),
        (5, publish("", "z", block=alias)),
        (5, publish("plain", "z", block=b"\x02\x01\x02")),
        (5, ack(4, 7) + b""),
        (5, b"\x40\x03\x00\x07\x10"),
        (5, b"\x40\x01\x00"),
        (5, b"\xf0\x00"),
    ]
    records = [Rec(frame, at=k, version=version) for k, (version, frame) in enumerate(frames)]
    result = run_on(InProcess(), write_log(tmp_path / "log", [records]), tmp_path / "out")
    found = rows(tmp_path / "out", MESSAGES, "topic", "payload", "board", "seq", "copies")
    identified = ("hw/b5", json.dumps(payload).encode(), "b5", 1, 2)
    assert found == [identified, ("plain", b"x", None, None, 1), ("plain", b"y", None, None, 1)]
    assert rows(tmp_path / "out", TELEMETRY, "metric", "value_double") == [("load", 0.5)]
    assert rows(tmp_path / "out", QUARANTINE, "reason", "bytes") == [
        ("bad_property_value", frames[5][1]),
        ("bad_topic_alias", frames[4][1]),
    ]
    assert not result.undecoded


def test_messages_are_each_message_once(done: tuple[Result, Path]) -> None:
    result, out = done
    known = [row for row in rows(out, MESSAGES, "board", "boot", "seq", "copies") if row[0] is not None]
    wanted = [("b1", 1, seq) for seq in range(120) if seq not in (50, 51)]
    wanted += [("b2", 1, seq) for seq in range(80)] + [("b2", 2, seq) for seq in range(40)]
    assert sorted(row[:3] for row in known) == sorted(wanted)
    copies = {row[:3]: row[3] for row in known}
    assert copies["b1", 1, 10] == copies["b1", 1, 100] == copies["b2", 2, 20] == 2
    assert copies["b1", 1, 30] == copies["b2", 1, 30] == 2  # QoS 0, retained
    assert copies["b1", 1, 11] == 1
    plain = [row for row in rows(out, MESSAGES, "payload", "copies", "topic") if row[2] == "plain"]
    assert len(plain) == 120
    assert {int(payload) for payload, n, _ in plain if n == 2} == {7, 47, 87}
    assert result.duplicates == sum(n - 1 for n in rows(out, MESSAGES, "copies"))
    assert result.again > 1
    assert result.candidates


def test_a_message_has_its_first_receipt(done: tuple[Result, Path]) -> None:
    columns = ("board", "boot", "seq", "time_ns", "sent_ns", "connection", "peer", "qos", "retain", "topic")
    (row,) = [row for row in rows(done[1], MESSAGES, *columns) if row[:3] == ("b2", 2, 20)]
    assert row[3:] == (BEGIN_NS + 1_005_000_000, BEGIN_NS + 1_000_000_000, 20, SERIAL, 1, False, "hw/b2")
    (file, offset, record) = next(
        row[3:]
        for row in rows(done[1], MESSAGES, "board", "boot", "seq", "file", "offset", "record")
        if row[:3] == ("b2", 2, 20)
    )
    frames = [
        row
        for row in rows(done[1], FRAMES, "file", "offset", "record", "frame")
        if row[:3] == (file, offset, record)
    ]
    assert b'"seq": 20' in frames[0][3]


def test_telemetry_has_a_row_per_value(done: tuple[Result, Path]) -> None:
    _, out = done
    found = rows(out, TELEMETRY, "board", "boot", "seq", "metric", "value_double", "value_string")
    assert [row[3:] for row in found if row[:3] == ("b1", 1, 30)] == [
        ("load1", 3.75, None),
        ("mem_free", 1030.0, None),
        ("state", None, "ok"),
    ]
    assert len([row for row in found if row[0] is not None]) == 3 * 238
    # The payloads of "plain" are numbers.
    plain = [("value", float(seq), None) for seq in range(120)]
    unknown = sorted(row[3:] for row in found if row[0] is None)
    assert unknown == sorted([("ok", 1.0, None), ("temperature", 21.5, None), *plain])
    late = {
        row[0]
        for row in rows(out, TELEMETRY, "latency_ms", "board", "topic", "received_ns", "time")
        if row[1] is not None
    }
    assert late == {5.0}


def test_quarantine_has_what_was_refused_with_its_bytes(done: tuple[Result, Path]) -> None:
    result, out = done
    found = rows(out, QUARANTINE, "kind", "reason", "error_at", "bytes", "length")
    assert found == sorted(
        [
            ("frame", "bad_qos", 0, b"\x36\x05\x00\x01a\x00\x01", 7),
            ("frame", "truncated", 5, b"\x30\x07\x00\x05a", 5),
            ("message", "bad_identity", None, b'{"board": "b1", "boot": 1, "seq": 0.5}', 38),
            ("message", "identity_conflict", None, b'{"board": "b1", "boot": 1, "seq": 7, "load1": 99}', 49),
        ],
        key=repr,
    )
    assert result.quarantined == {name: 1 for _, name, *_ in found}
    assert result.undecoded == {(3, 0): 1, (1, 9): 1}


def test_a_damaged_block_is_quarantined(tmp_path: Path) -> None:
    capture = capture_of(tmp_path / "log")
    damage(sorted(capture.glob("segment-*.hwc"))[1], 1, 64)
    result = run_on(InProcess(), capture, tmp_path / "out", partition_bytes=5000)
    (row,) = [row for row in rows(tmp_path / "out", QUARANTINE) if row[0] == "block"]
    found = dict(zip(QUARANTINE.names, row, strict=True))
    data = (capture / found["file"]).read_bytes()
    assert found["bytes"] == data[found["offset"] : found["offset"] + found["length"]]
    assert found["bytes"].startswith(b"HWB1")
    assert "body CRC is wrong" in found["detail"]
    assert found["reason"] == "bad_block"
    assert result.rows["frames"] == len(records()) - 13
    assert [problem.offset for problem in result.problems] == [found["offset"]]


def test_what_no_pipeline_made_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out/messages").mkdir(parents=True)
    (tmp_path / "out/messages/part-0.parquet").touch()
    with pytest.raises(FileExistsError, match="messages was not made by a pipeline"):
        run_on(InProcess(), capture_of(tmp_path / "log"), tmp_path / "out")


def test_an_empty_log_gives_empty_tables(tmp_path: Path) -> None:
    result = run_on(InProcess(), write_log(tmp_path / "log", []), tmp_path / "out", report=report.write)
    for table in TABLES:
        assert delta.dataset(tmp_path / "out", table.name).schema.names == [*table.names, "date"]
        assert rows(tmp_path / "out", table) == []
    assert result.duplicates == 0
    assert "There are no messages" in (tmp_path / "out/report.html").read_text()


def test_parquet_types_are_those_of_the_tables(done: tuple[Result, Path]) -> None:
    for table in TABLES:
        for path in (done[1] / table.name).rglob("*.parquet"):
            stored = pq.read_schema(path)
            plain = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in stored]
            assert plain == table.plain.types


@pytest.mark.needs_java
def test_spark_gives_the_same_tables(
    spark: "SparkSession", done: tuple[Result, Path], tmp_path: Path
) -> None:
    capture = capture_of(tmp_path / "log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_CANDIDATES", 20)
        result = pipeline.run(spark, capture, tmp_path / "out", partition_bytes=4000)
    assert_same_tables(tmp_path / "out", done[1])
    assert result.stats == done[0].stats
    assert result.candidates
    for table in TABLES:
        frame = spark.read.format("headwater.table").load(str(tmp_path / "out" / table.name))
        assert [f"{name} {type_}" for name, type_ in frame.drop("date").dtypes] == [
            re.sub(r"short$", "smallint", f"{column.name} {column.type}").replace(" long", " bigint")
            for column in table.columns
        ]
        assert frame.count() == done[0].rows[table.name]
    by_board = (
        spark.read.format("headwater.table")
        .load(str(tmp_path / "out/telemetry"))
        .groupBy("board", "metric")
        .count()
        .collect()
    )
    assert {(row.board, row.metric): row["count"] for row in by_board}["b1", "load1"] == 118


@pytest.mark.needs_java
def test_the_command(spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = capture_of(tmp_path / "log")
    damage(sorted(capture.glob("segment-*.hwc"))[1], 1, 64)
    sent = tmp_path / "sent.jsonl"
    lines = [
        {"board": "b1", "boot": 1, "seq": 11, "qos": 2, "acknowledged": True},
        {"board": "b1", "boot": 1, "seq": 50, "qos": 2, "acknowledged": True},
        {"board": "b1", "boot": 1, "seq": 51, "qos": 0, "acknowledged": False},
    ]
    sent.write_text("\n".join(map(json.dumps, lines)))
    places = ["--capture", str(capture), "--out", str(tmp_path / "out"), "--sent", str(sent)]
    assert main(["pipeline", "run", *places]) == 1  # b1's message 50 is lost
    printed = capsys.readouterr().out
    assert "duplicates removed" in printed
    assert re.search(r"^b2 +2 ", printed, re.MULTILINE)
    assert re.search(r"^bad_block +1$", printed, re.MULTILINE)
    assert spark.range(3).count() == 3  # a session that was there stays
    numbers = json.loads((tmp_path / "out/report.json").read_text())
    (b1,) = [row for row in numbers["compared"] if row["board"] == "b1"]
    assert (b1["sent"], b1["acknowledged"], b1["lost"], b1["duplicates_left"]) == (3, 2, 1, 0)
    page = (tmp_path / "out/report.html").read_text()
    assert "1 acknowledged message of b1 is lost" in page
    assert "<h2>Comparison with the boards" in page


@pytest.mark.needs_java
def test_the_command_says_what_a_task_failed_on(
    spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes a segment after the plan was made."""
    capture = capture_of(tmp_path / "log")

    def plan_and_lose(*arguments: Any, **more: Any) -> Any:
        made = plan(*arguments, **more)
        sorted(capture.glob("segment-*.hwc"))[1].unlink()
        return made

    monkeypatch.setattr(run, "plan", plan_and_lose)
    assert main(["pipeline", "run", "--capture", str(capture), "--out", str(tmp_path / "out")]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("headwater: a Spark task failed: FileNotFoundError: ")
    assert "segment-" in last
    monkeypatch.undo()
    # The interrupted batch does without the segment that is gone.
    assert main(["pipeline", "run", "--capture", str(capture), "--out", str(tmp_path / "out")]) == 0
    assert 0 < len(rows(tmp_path / "out", FRAMES)) < len(records())


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OSError, match="out"):
        run_on(InProcess(), capture_of(tmp_path / "log"), tmp_path / "out")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--capture", "/no/such/place"], "/no/such/place does not exist"),
        (["--capture", "empty"], "no capture log in"),
        (["--capture", ".", "--sent", "/no/such/file"], "is not a file"),
        (["--capture", ".", "--sent", "/etc/passwd"], "/etc/passwd: no line is a message such as"),
        (["--capture", "http://host/log"], "http://host/log: this URI cannot be read"),
        (["--capture", ".", "--partition-bytes", "2g"], "a size here is 1 to 1g"),
        (["--capture", ".", "--partition-bytes", "x"], "x: not a size such as"),
        (["--capture", ".", "--batch-rows", "0"], "is not a whole number from 1"),
        (["--capture", ".", "--batch-rows", "x"], "is not a whole number from 1"),
        (["--capture", ".", "--out", "."], "is the capture log itself"),
        (["--capture", ".", "--out", ""], "the directory name is empty"),
        (["--capture", ".", "--out", "gs://bucket/out"], "gs://bucket/out: tables need a directory or S3"),
        (["--capture", ".", "--conf", "key"], "expected KEY=VALUE"),
        (["--capture", ".", "--logical-topic", "a/#/b"], "a/#/b: not a valid topic filter"),
        (["--capture", ".", "--max-message", "2g"], "2g: a size here is 1 to 1g"),
        ([], "--capture"),
        (["stream", "--available-now", "--capture", "/no/such/place"], "/no/such/place does not exist"),
        (["stream", "--available-now", "--capture", "empty"], "no capture log in"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    words = options if options[:1] == ["stream"] else ["run", *options]
    try:
        code = main(["pipeline", words[0], "--out", str(tmp_path / "out"), *words[1:]])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    err = capsys.readouterr().err
    assert message in err
    assert "starting Spark" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_an_interrupt_while_java_starts_ends_java(tmp_path: Path) -> None:
    """Java that finds nobody to report to would wait for ever, after a stack trace on the terminal."""
    java = shutil.which("java")
    started = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/java"
    # Only the driver's Java is slow.
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *-version* | *launcher.Main*) exec {java} "$@";; esac\n'
        f"echo $$ >{started}.new; mv {started}.new {started}; exec sleep 600\n"
    )
    script.chmod(0o755)
    log = write_log(tmp_path / "log", [[Rec(publish("t", "x"))]])
    command = [*HEADWATER, "pipeline", "run", "--capture", str(log), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, env=environment(JAVA_HOME=str(tmp_path)), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(started.exists)
        process.send_signal(signal.SIGINT)
        # Java has the pipe open as well.
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, "pipeline: starting Spark\n")


def java_of(process: subprocess.Popen[str]) -> int:
    """Return the id of the Java process that runs a command's Spark, or 0 while there is none."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):
                if b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return 0


@pytest.mark.needs_java
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_an_interrupt_ends_the_real_java_that_starts(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [[Rec(publish("t", "x"))]])
    command = [*HEADWATER, "pipeline", "run", "--capture", str(log), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: java_of(process))
        process.send_signal(signal.SIGINT)
        # Java has the pipe open as well.
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "pipeline: starting Spark\n" in err
    assert "Traceback" not in err


@pytest.mark.needs_java
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_a_run_whose_java_is_killed_says_so(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [[Rec(publish("t", "x"))]])
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "def decode(payload):\n"
        "    if pathlib.Path('wait').exists():\n"
        "        pathlib.Path('wait').rename('decoding')\n"
        "        time.sleep(600)\n"
        "    return {'length': len(payload)}\n"
    )
    (tmp_path / "wait").touch()
    places = ["--capture", str(log), "--out", str(tmp_path / "out"), "--master", "local[1]"]
    command = [*HEADWATER, "pipeline", "run", *places, "--decoder", "t=slow:decode"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until((tmp_path / "decoding").exists)
        os.kill(java_of(process), signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "headwater: Java, which runs Spark, has ended; run the command again"
    assert "Traceback" not in err
    again = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert "completing batch 1, which was interrupted" in again.stderr
    assert len(rows(tmp_path / "out", MESSAGES)) == 1


@pytest.mark.parametrize(
    "home, path, message",
    [
        ("/no/such/place", None, "JAVA_HOME=/no/such/place: /no/such/place/bin/java does not exist"),
        ("", "", "JAVA_HOME is empty, and PATH has no java"),
        (None, "", "Spark needs Java 17 or newer: PATH has no java"),
    ],
)
def test_a_java_that_is_not_there_is_named(
    home: str | None,
    path: str | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("JAVA_HOME", home), ("PATH", path)):
        if value is not None:
            monkeypatch.setenv(name, value)
        elif name == "JAVA_HOME":
            monkeypatch.delenv(name, raising=False)
    log = write_log(tmp_path / "log", [[Rec(publish("t", "x"))]])
    assert main(["pipeline", "run", "--capture", str(log), "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_cannot_grow_is_no_traceback(tmp_path: Path) -> None:
    """As on a full disk: a limit of the system on the size of files."""
    blocks = [[Rec(publish("t", os.urandom(20_000)), at=k) for k in range(20)]]
    log = write_log(tmp_path / "log", blocks)
    words = ["pipeline", "run", "--capture", log, "--out", tmp_path / "out", "--master", "local[1]"]
    # In blocks of 512 bytes.
    shell = ["sh", "-c", 'ulimit -f 256 && exec "$@"', "sh", sys.executable, "-m", "headwater_host"]
    shown = subprocess.run(
        [*shell, *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1
    assert "File too large" in shown.stderr.splitlines()[-1]
    assert shown.stderr.splitlines()[-1].startswith("headwater: a Spark task failed: OSError: ")
    assert "Traceback" not in shown.stderr
    assert "\tat " not in shown.stderr


def test_a_master_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = capture_of(tmp_path / "log")
    words = ["pipeline", "run", "--capture", str(log), "--out", str(tmp_path / "out"), "--master", "nonsense"]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(
        "headwater: --master nonsense: expected local[*], local[N], spark://"
    )


def test_a_spark_that_does_not_start_is_no_traceback(tmp_path: Path) -> None:
    log = capture_of(tmp_path / "log")
    places = ("--capture", log, "--out", tmp_path / "out")
    shown = headwater("pipeline", "run", *places, "--conf=spark.driver.memory=200m")
    last = shown.stderr.splitlines()[-1]
    assert last.startswith(b"headwater: Spark does not start; check --master and --conf: ")
    assert b"Insufficient driver memory" in last
    assert b"Traceback" not in shown.stderr
    assert b"\tat " not in shown.stderr
    assert shown.returncode == 1
