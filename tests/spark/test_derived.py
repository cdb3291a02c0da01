"""The derived tables may be brought up to date later: then they are those of one batch as well."""

import json
from pathlib import Path
from typing import Any

import pytest

from headwater_spark import derived
from headwater_spark.growth import compact, grow
from headwater_spark.tables import DEVICE_HEALTH, MESSAGES, RECONCILIATION
from tests.rows import each_row
from tests.spark.logs import BEGIN_NS, InProcess, Rec, assert_same_tables, publish, reading, rows, write_log

HOUR = 3_600_000


def test_batches_may_leave_the_update_to_a_later_one(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"

    def batch(number: int, every: float) -> list[int]:
        """Add messages of three hours, and return the stored ones by hour."""
        records = [
            Rec(publish("t", reading("b", 1, 100 * number + k)), at=(number + k) * HOUR + k) for k in range(3)
        ]
        write_log(log, [records])
        grow(InProcess(), [log], out, derive_every_s=every)
        return rows(out, DEVICE_HEALTH, "messages")

    assert batch(0, 1e9) == [1, 1, 1]  # there was no update yet
    assert batch(1, 1e9) == [1, 1, 1]
    assert batch(2, 1e9) == [1, 1, 1]
    assert sum(batch(3, 0)) == 12
    assert sum(batch(4, 1e9)) == 12
    compact(InProcess(), out)
    assert sum(batch(6, 1e9)) == 12
    assert sum(batch(5, 0)) == 21
    assert rows(out, RECONCILIATION, "stored") == [21]
    grow(InProcess(), [log], tmp_path / "one")
    assert_same_tables(out, tmp_path / "one")


def test_a_run_without_news_completes_the_update(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    for seq in range(2):
        write_log(log, [[Rec(publish("t", reading("b", 1, seq)), at=seq)]])
        grow(InProcess(), [log], out, derive_every_s=1e9)
    assert rows(out, DEVICE_HEALTH, "messages") == [1]
    assert grow(InProcess(), [log], out, derive_every_s=1e9).batch == 2
    assert rows(out, DEVICE_HEALTH, "messages") == [1]
    assert grow(InProcess(), [log], out).batch == 3
    assert rows(out, DEVICE_HEALTH, "messages") == [2]
    assert grow(InProcess(), [log], out).batch == 3
    grow(InProcess(), [log], tmp_path / "one")
    assert_same_tables(out, tmp_path / "one")


def test_records_of_boards_count_without_new_messages(tmp_path: Path) -> None:
    log, out, sent = tmp_path / "log", tmp_path / "out", tmp_path / "sent.jsonl"
    write_log(log, [[Rec(publish("t", reading("b", 1, seq)), at=seq) for seq in range(3)]])
    grow(InProcess(), [log], out)
    assert rows(out, RECONCILIATION, "sent", "acknowledged", "lost") == [(None, None, None)]
    records = [{"board": "b", "boot": 1, "seq": seq, "qos": 1, "acknowledged": seq < 4} for seq in range(5)]
    sent.write_text("".join(json.dumps(record) + "\n" for record in records))
    grow(InProcess(), [log], out, sent=[sent])
    assert rows(out, RECONCILIATION, "sent", "acknowledged", "lost") == [(5, 4, 1)]


@each_row("ends", [(120, 125, 250), (250,), tuple(range(10, 251, 10))])
def test_only_hours_without_a_stored_tally_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...]
) -> None:
    records = [Rec(publish("t", reading(f"b{n % 7}", 1 + n % 2, n)), at=n * HOUR // 40) for n in range(200)]
    records += [Rec(publish("t", "none"), at=n * HOUR // 10) for n in range(50)]
    records.sort(key=lambda record: record.at)
    log = tmp_path / "log"
    monkeypatch.setattr(derived, "_TASK_ROWS", 20)
    monkeypatch.setattr(derived, "_READ_ROWS", 3)
    reads: list[Any] = []
    open_files = derived._dataset

    def opening(out: Any, table: Any, *given: Any) -> Any:
        if table is MESSAGES:
            reads.append(given)
        return open_files(out, table, *given)

    monkeypatch.setattr(derived, "_dataset", opening)

    def batch(some: list[Rec], every: float = 0) -> bool:
        """Add messages; whether stored ones are read."""
        write_log(log, [some])
        reads.clear()
        grow(InProcess(), [log], tmp_path / "out", derive_every_s=every)
        return bool(reads)

    begin = 0
    for end in ends:
        assert not batch(records[begin:end], 1e9 if end % 50 == 0 else 0)
        begin = end
    hours = [(BEGIN_NS // 10**6 + record.at) // HOUR for record in records]
    last = hours[-1] * HOUR - BEGIN_NS // 10**6
    # The tables may lack more hours than there are tallies of.
    assert batch([Rec(publish("t", reading("b1", 9, 0)), at=last)]) is (len(ends) == 3)
    # A late message and a copy of one are in the first hour.
    assert batch([Rec(publish("t", reading("b1", 9, 1)), at=7)])
    assert batch([records[3]])
    assert not batch([records[-3]])
    assert not batch([Rec(publish("t", reading("b1", 9, 2)), at=10**7 * HOUR // 10**4)])  # a wrong clock
    assert not batch([Rec(publish("t", reading("b1", 9, 3)), at=last + 5)])
    compact(InProcess(), tmp_path / "out")
    assert not batch([Rec(publish("t", reading("b1", 9, 4)), at=last + 6)])
    grow(InProcess(), [log], tmp_path / "whole")
    assert_same_tables(tmp_path / "out", tmp_path / "whole")
