"""Check the demo's result: damaged bytes, the wait for the log, and the figures of the report."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from headwater.ibmmq.header import MDE_OFFSET, MQMDE, Header, sniff
from headwater_host.capture.format import Record
from headwater_host.capture.reader import CaptureReader
from headwater_host.fmq.values import decode
from headwater_host.inspect.records import decoded
from headwater_spark import delta


class Noise:
    """Damage one byte in `one_in` of a serial line, the same ones for the same seed."""

    def __init__(self, seed: int, one_in: int) -> None:
        """Start without damage."""
        self._random = random.Random(seed)
        self._chance = 1 / one_in
        #: Number of damaged bytes.
        self.damaged = 0

    def __call__(self, number: int, to_board: bool, data: bytes) -> bytes:
        """Return the bytes of line `number` as they arrive."""
        hit = [i for i in range(len(data)) if self._random.random() < self._chance]
        if not hit:
            return data
        damaged = bytearray(data)
        for i in hit:
            damaged[i] ^= self._random.randrange(1, 256)
        self.damaged += len(hit)
        return bytes(damaged)


FMQ = 2
#: Identity of a message: board, boot, seq.
Identity = tuple[str, int, int]


def _identity(record: Record) -> Identity | None:
    """Return the identity of a message; for a segment of a board's record its board, -1, and the offset of its end;
    for bytes that broke a connection, which are in the log as well, None.
    """
    said = decoded(record)
    if said is None or "payload" not in said:
        return None
    payload = bytes.fromhex(said["payload"])
    if sniff(payload, 0, len(payload)):
        header = Header(payload)
        begin = header.look(MQMDE, 0, len(payload), True, 819)
        return said["topic"].split("/")[1], *record_of(header.get(MDE_OFFSET) + len(payload) - begin)
    values = decode(payload) if record.protocol == FMQ else json.loads(payload)
    return values["board"], values["boot"], values["seq"]


def record_of(size: int) -> tuple[int, int]:
    """Return the last segment of a board's record in place of boot and seq."""
    return -1, size


def wait_for_messages(capture: Path, wanted: set[Identity], timeout: float) -> set[Identity]:
    """Wait until the log has the messages. Returns those that are missing after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    reader = CaptureReader(capture)
    missing = set(wanted)
    while True:
        for record in reader.records():
            found = _identity(record)
            if found is not None:
                missing.discard(found)
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.05)


def verdict(report: Path, boards: list[str], restarted: list[str]) -> list[str]:
    """List what is wrong with the figures of `report.json`.

    A run without any acknowledged message or without any fault proves nothing and is wrong as well.
    """
    numbers = json.loads(report.read_text(encoding="utf-8"))
    rows = {row["board"]: row for row in numbers["compared"] or []}
    starts = {row["board"]: row["starts"] for row in numbers["boards"]}
    wrong = []
    for name in boards:
        row = rows.get(name)
        if row is None or row["acknowledged"] == 0:
            wrong.append(f"{name}: nothing was acknowledged")
            continue
        if row["lost"]:
            wrong.append(f"{name}: {row['lost']} acknowledged messages are lost")
        if row["duplicates_left"]:
            wrong.append(f"{name}: {row['duplicates_left']} duplicates are in messages")
    return wrong + [
        f"{name}: {starts.get(name)} starts, not 2: the power cut did not happen"
        for name in restarted
        if starts.get(name) != 2
    ]


def compare_records(logical_messages: Path, records: dict[str, Path]) -> list[str]:
    """List what is wrong with the boards' record files, each of which must arrive complete, byte for byte."""
    if not logical_messages.exists():
        return ["no board sent its record"]
    rows = _rows(logical_messages, ["topic", "complete", "payload", "missing"])
    wrong = []
    for name, path in records.items():
        found = [row for row in rows if row["topic"] == f"headwater/{name}/record"]
        if len(found) != 1:
            wrong.append(f"{name}: its record arrived {len(found)} times")
        elif not found[0]["complete"]:
            wrong.append(f"{name}: its record lacks {found[0]['missing']}")
        elif found[0]["payload"] != path.read_bytes():
            wrong.append(f"{name}: its record differs from what the board wrote")
    return wrong


def compare_properties(messages: Path, boards: set[str]) -> list[str]:
    """List what is wrong with the properties of MQTT 5.0: `boards` send them with each telemetry message."""
    columns = ["board", "content_type", "message_expiry", "user_properties"]
    rows = [row for row in _rows(messages, columns) if row["board"] is not None]
    with_properties = Counter(row["board"] for row in rows if _has_properties(row))
    counts = Counter(row["board"] for row in rows)
    wrong = [f"{name}: no message arrived with properties" for name in sorted(boards - counts.keys())]
    for name, count in sorted(counts.items()):
        wanted = count if name in boards else 0
        if with_properties[name] != wanted:
            wrong.append(f"{name}: {with_properties[name]} of {count} messages have properties, not {wanted}")
    return wrong


def _rows(table: Path, columns: list[str]) -> list[dict[str, Any]]:
    """Return columns of the rows of a Delta table."""
    rows: list[dict[str, Any]] = delta.dataset(table.parent, table.name).to_table(columns=columns).to_pylist()
    return rows


def _has_properties(row: dict[str, Any]) -> bool:
    # The broker subtracts the time for which it had the message.
    return (
        row["content_type"] == "application/json"
        and 0 < (row["message_expiry"] or 0) <= 3600
        and dict(row["user_properties"] or ()) == {"board": row["board"], "program": "telemetry.py"}
    )
