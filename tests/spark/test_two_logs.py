"""Two logs that carry equal messages: one row for each, whichever log and batch comes first."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headwater_host.capture.format import DUPLICATE
from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import read_manifest
from headwater_host.capture.readers import list_readers
from headwater_spark import delta
from headwater_spark.growth import grow
from headwater_spark.positions import Position
from headwater_spark.result import Result
from headwater_spark.tables import DERIVED, FRAMES, MESSAGES, QUARANTINE, RECONCILIATION, TABLES, TELEMETRY
from tests.rows import each_row
from tests.spark.fmq_bytes import fmq_publish, message_id
from tests.spark.logs import BEGIN_NS, InProcess, Rec, publish, reading, rows, write_log

#: Messages of a board over MQTT and of one over FMQ. Both logs have those from SHARED[0] to SHARED[1].
COUNT = 60
SHARED = range(20, 40)
#: Its payload is another in the second log.
CONFLICT = 25
SEGMENT_BLOCKS = 2


def records(gateway: int) -> list[Rec]:
    """What a gateway receives: its messages, each third one twice, and some without identity."""
    found = []
    some = range(SHARED.stop) if gateway == 0 else range(SHARED.start, COUNT)
    for seq in some:
        at = seq * 10 + gateway * 3
        load = seq + 100 * (gateway and seq == CONFLICT)
        frame = publish("hw/b1", reading("b1", 1, seq, load=load), qos=1, packet_id=1 + seq + 7 * gateway)
        mqtt = Rec(frame, at, 10 + gateway, f"mqtt:gateway-{gateway}:1883")
        ident = message_id(BEGIN_NS + seq * 10**7, process=7)
        fmq = Rec(fmq_publish("f/b2", {"load": seq}, ident), at + 1, 20 + gateway, "fmq:h:1", 0, 2, 0)
        for rec in (mqtt, fmq):
            found += [rec, rec._replace(at=at + 200)] if seq % 3 == gateway else [rec]
        plain = publish("plain", f"{seq}", qos=1, packet_id=1 + seq)
        found.append(Rec(plain, at + 2, 30, "mqtt:same:1"))
        if seq % 5 == 0:
            dup = publish("plain", f"{seq}", qos=1, packet_id=1 + seq, dup=True)
            found.append(Rec(dup, at + 90, 31, "mqtt:same:1", mark=DUPLICATE, first=at + 2))
    return sorted(found, key=lambda rec: rec.at)


class Logs(NamedTuple):
    """The two logs."""

    one: Path
    other: Path

    def of(self, file: str) -> Path:
        """The log of a segment."""
        (log,) = (log for log in self if (log / file).exists())
        return log


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    tmp = tmp_path_factory.mktemp("logs")
    made = []
    for gateway in (0, 1):
        some = records(gateway)
        blocks = [some[at : at + 11] for at in range(0, len(some), 11)]
        made.append(write_log(tmp / f"gateway-{gateway}", blocks, segment_blocks=SEGMENT_BLOCKS))
    return Logs(*made)


def half(log: Path) -> dict[str, Position]:
    """Where the middle of a log is."""
    entries = list(read_manifest(log).entries.values())
    entry = entries[len(entries) // 2]
    return {log_id(log): Position(entry.file, entry.bytes, entry.next_sequence)}


def run(logs: Sequence[Path], out: Path, upto: dict[str, Position] | None = None) -> Result:
    return grow(InProcess(), logs, out, upto=upto, partition_bytes=1500)


#: The logs that each batch of a run has, by number; "half" is the first half of a log.
ORDERS: dict[str, list[list[tuple[int, str]]]] = {
    "both": [[(0, "whole"), (1, "whole")]],
    "both, the other first": [[(1, "whole"), (0, "whole")]],
    "one after the other": [[(0, "whole")], [(1, "whole")]],
    "the other first": [[(1, "whole")], [(0, "whole")]],
    "by turns": [[(0, "half")], [(1, "half")], [(0, "whole")], [(1, "whole")]],
}


def content(out: Path) -> list[Any]:
    return [rows(out, table) for table in (*TABLES, *DERIVED)]


def places(out: Path, table: str, *columns: str) -> dict[tuple[str, int, int], tuple[Any, ...]]:
    found = delta.dataset(out, table).to_table().to_pylist()
    return {
        (row["file"], row["offset"], row["record"]): tuple(row[name] for name in columns) for row in found
    }


@each_row("order", ORDERS)
def test_equal_messages_of_two_logs_are_one_row(logs: Logs, order: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = []
    known: list[Path] = []
    for batch in ORDERS[order]:
        known += [logs[number] for number, _ in batch if logs[number] not in known]
        upto: dict[str, Position] = {}
        for number, extent in batch:
            if extent == "half":
                upto |= half(logs[number])
        results.append(run([logs[number] for number, _ in batch], out, upto or None))
    assert [result.batch for result in results] == [*range(1, 1 + len(results))]
    everything = [rec for gateway in (0, 1) for rec in records(gateway)]

    # Each identity is one row. What counts its frames are copies, and the conflict is in quarantine.
    frames = Counter[tuple[str, int]]()
    for gateway in (0, 1):
        for seq in range(SHARED.stop) if gateway == 0 else range(SHARED.start, COUNT):
            for topic in ("hw/b1", "f/b2"):
                frames[topic, seq] += 1 + (seq % 3 == gateway)
    found = rows(out, MESSAGES, "topic", "seq", "copies", "sent_ns")
    by_seq = {(topic, seq): copies for topic, seq, copies, _ in found if topic == "hw/b1"}
    by_id = {
        (topic, (sent_ns - BEGIN_NS) // 10**7): copies
        for topic, _, copies, sent_ns in found
        if topic == "f/b2"
    }
    assert len(by_seq) + len(by_id) == sum(topic != "plain" for topic, *_ in found)
    conflicts = rows(out, QUARANTINE, "reason", "bytes")
    assert {reason for reason, _ in conflicts} == {"identity_conflict"}
    assert all(json.loads(payload)["seq"] == CONFLICT for _, payload in conflicts)
    assert by_id | by_seq == frames | {("hw/b1", CONFLICT): frames["hw/b1", CONFLICT] - len(conflicts)}
    # Without an identity, nothing says that two messages are equal; marks hold within a log.
    plain = [row for row in found if row[0] == "plain"]
    assert len(plain) == SHARED.stop + COUNT - SHARED.start
    assert sum(copies for _, _, copies, _ in plain) == sum(b"plain" in rec.frame for rec in everything)

    assert not any(rows(out, MESSAGES, "possible_duplicate"))
    # The numbers of the batches say the same.
    assert sum(result.rows[FRAMES.name] for result in results) == len(everything)
    assert sum(result.rows[MESSAGES.name] for result in results) == len(found)
    assert sum(result.duplicates for result in results) == len(everything) - len(found) - len(conflicts)
    (start,) = rows(out, RECONCILIATION, "board", "messages", "copies", "missing")
    assert start == ("b1", COUNT, sum(by_seq.values()), 0)

    # A row is the receipt that it names, and the values in telemetry are of that receipt.
    names = ("time_ns", "connection", "peer", "mark")
    received = places(out, FRAMES.name, *names)
    kept = places(out, MESSAGES.name, *names, "topic", "board", "seq")
    assert len(received) == len(everything)
    for place, (*row, _, _, _) in kept.items():
        assert received[place] == tuple(row)
    values = rows(out, TELEMETRY, "board", "seq", "received_ns")
    assert sorted(row for row in values if row[0]) == sorted(
        (board, seq, time_ns) for time_ns, *_, board, seq in kept.values() if board
    )
    (winner,) = (logs.of(file) for (file, *_), row in kept.items() if row[-2:] == ("b1", CONFLICT))
    assert {logs.of(file) for file in rows(out, QUARANTINE, "file")} == {*logs} - {winner}
    if len(results) == 2:
        # That of the earlier batch stays.
        first = {logs.of(file) for (file, *_), row in kept.items() if row[-1] in SHARED and row[-2]}
        assert first == {known[0]}

    # A rerun adds nothing.
    before, again = content(out), run([logs.one, logs.other], out)
    assert (again.batch, again.rows[FRAMES.name]) == (len(results), 0)
    assert content(out) == before
    for log in logs:
        last = list(read_manifest(log).entries.values())[-1]
        assert {*list_readers(log).values()} == {last.next_sequence}
