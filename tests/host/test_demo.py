"""What the demo waits for, that the acknowledged messages are in the log; and what it says of the figures."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from headwater.fmq.spec import PUBLISH
from headwater.ibmmq.header import MQMDE
from headwater_host.capture import RECEIVED
from headwater_host.fmq.values import encode
from headwater_host.hub import frames
from headwater_host.mq.structures import encode as encode_header
from tests.host.hub_client import new_id
from tools.capture_log import LogWriter
from tools.demo.result import compare_properties, compare_records, record_of, verdict, wait_for_messages


def test_it_waits_for_what_was_acknowledged_and_names_what_is_missing(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for seq in range(300):
            values = json.dumps({"board": "b", "boot": 1, "seq": seq}).encode()
            # Every byte as a packet id, a brace among them.
            frame = bytes((0x32, len(values) + 5, 0, 1, 0x74, 1, seq & 255)) + values
            log.append(1, 1, "mqtt:h:1", RECEIVED, 1, 4, frame)
        log.append(1, 1, "mqtt:h:1", RECEIVED, 1, 4, b"\xf0no packet {")
        segment = encode_header(MQMDE, {"Offset": 96, "MsgFlags": 4}, big=True, ccsid=819) + b"0123"
        log.append(
            1, 1, "mqtt:h:1", RECEIVED, 1, 4, bytes((0x30, len(segment) + 7, 0, 5)) + b"h/b/r" + segment
        )
        values = encode({"board": "f", "boot": 2, "seq": 7})
        frame = frames.publish(new_id(PUBLISH), frames.message("t", (), values), qos=1)
        log.append(1, 1, "fmq:h:1", RECEIVED, 2, 0, frame)
        log.append(1, 1, "fmq:h:1", RECEIVED, 2, 0, b"\x40no frame")
    assert wait_for_messages(tmp_path, {("b", 1, seq) for seq in range(300)}, 0) == set()
    assert wait_for_messages(tmp_path, {("b", 1, 299), ("b", 1, 300)}, 0) == {("b", 1, 300)}
    assert wait_for_messages(tmp_path, {("b", *record_of(100)), ("b", *record_of(99))}, 0) == {("b", -1, 99)}
    assert wait_for_messages(tmp_path, {("f", 2, 7), ("f", 1, 7)}, 0) == {("f", 1, 7)}


def test_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    def of(*compared: dict[str, Any], starts: int = 2) -> list[str]:
        boards = [{"board": row["board"], "starts": starts} for row in compared]
        path.write_text(json.dumps({"compared": compared, "boards": boards}))
        return verdict(path, ["b1", "b4"], ["b4"])

    good = {"board": "b4", "acknowledged": 9, "lost": 0, "duplicates_left": 0}
    other = good | {"board": "b1"}
    assert of(good, other) == []
    assert of(good) == ["b1: nothing was acknowledged"]
    assert of(good | {"acknowledged": 0}, other) == ["b4: nothing was acknowledged"]
    assert of(good | {"lost": 3}, other) == ["b4: 3 acknowledged messages are lost"]
    assert of(good | {"duplicates_left": 1}, other) == ["b4: 1 duplicates are in messages"]
    assert of(good, other, starts=1) == ["b4: 1 starts, not 2: the power cut did not happen"]


def test_the_records_that_boards_sent_in_segments(tmp_path: Path) -> None:
    table = tmp_path / "logical_messages"
    records = {"b1": tmp_path / "b1.jsonl"}
    records["b1"].write_bytes(b"what b1 wrote")
    assert compare_records(table, records) == ["no board sent its record"]

    def of(*rows: tuple[str, bytes | None]) -> list[str]:
        columns = {
            "topic": [f"headwater/{name}/record" for name, _ in rows],
            "complete": [payload is not None for _, payload in rows],
            "payload": pa.array([payload for _, payload in rows], pa.binary()),
            "missing": pa.array(
                [None if payload is not None else "bytes 5 to 9" for _, payload in rows], pa.string()
            ),
        }
        write_deltalake(table, pa.table(columns), mode="overwrite")
        return compare_records(table, records)

    assert of(("b1", b"what b1 wrote"), ("b2", b"")) == []
    assert of(("b2", b"")) == ["b1: its record arrived 0 times"]
    assert of(("b1", b"what b1 wrote"), ("b1", b"")) == ["b1: its record arrived 2 times"]
    assert of(("b1", None)) == ["b1: its record lacks bytes 5 to 9"]
    assert of(("b1", b"what b2 wrote")) == ["b1: its record differs from what the board wrote"]


def test_the_properties_of_mqtt_5(tmp_path: Path) -> None:
    def of(*rows: tuple[str | None, str | None, int | None, dict[str, str] | None]) -> list[str]:
        names = ["board", "content_type", "message_expiry", "user_properties"]
        columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
        for name, kind in zip(names, (pa.string(), pa.string(), pa.int64()), strict=False):
            columns[name] = pa.array(columns[name], kind)
        columns["user_properties"] = pa.array(
            [None if one is None else list(one.items()) for one in columns["user_properties"]],
            pa.map_(pa.string(), pa.string()),
        )
        write_deltalake(tmp_path, pa.table(columns), mode="overwrite", schema_mode="overwrite")
        return compare_properties(tmp_path, {"b2"})

    good = ("b2", "application/json", 3599, {"board": "b2", "program": "telemetry.py"})
    other = ("b1", None, None, None)
    assert of(good, good, other, (None, None, None, None)) == []
    assert of(other) == ["b2: no message arrived with properties"]
    for k, value in ((1, None), (2, None), (2, 3601), (3, None), (3, {"board": "b1"})):
        assert of(good, (*good[:k], value, *good[k + 1 :])) == [  # type: ignore[arg-type]
            "b2: 1 of 2 messages have properties, not 2"
        ]
    assert of(good, ("b1", *good[1:3], {"board": "b1", "program": "telemetry.py"})) == [
        "b1: 1 of 1 messages have properties, not 0"
    ]
