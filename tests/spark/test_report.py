"""The report of a run: numbers per board, and the comparison with the boards' own records."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from headwater_spark import commands, report
from headwater_spark.delta import Tables
from headwater_spark.latency import buckets
from headwater_spark.pipeline import Result, run_on
from headwater_spark.place import Place
from headwater_spark.report import Compared, compare
from headwater_spark.stats import percentile
from headwater_spark.tables import TABLES
from tests.rows import each_row
from tests.spark.logs import BEGIN_NS, InProcess, Rec, publish, reading, write_log

T_US = BEGIN_NS // 1000


def message(
    board: str, boot: int, seq: int, *, at: int = 0, sent: int | None = None, **options: bool | int
) -> Rec:
    """A message that came ``at`` ms, sent at ``sent`` ms."""
    time = {} if sent is None else {"t": T_US + sent * 1000}
    return Rec(publish("t", reading(board, boot, seq, **time), **options), at=at)  # type: ignore[arg-type]


def run(tmp_path: Path, *records: Rec) -> tuple[Result, Path]:
    capture = write_log(tmp_path / "log", [[record] for record in records])
    out = tmp_path / "out"
    return run_on(InProcess(), capture, out, partition_bytes=1, report=report.write), out


def test_numbers_per_board(tmp_path: Path) -> None:
    result, out = run(
        tmp_path,
        message("b1", 1, 5, at=10, sent=0),
        message("b1", 1, 6, at=20, sent=0),
        message("b1", 1, 6, at=30, sent=0),
        message("b1", 1, 9, at=40, sent=0),
        message("b1", 2, 0, at=1050, sent=0),
        message("a", 1, 3, at=60),
        Rec(publish("t", "no identity"), at=70),
    )
    numbers = json.loads((out / "report.json").read_text())
    a, b1, none = numbers["boards"]
    assert b1 == b1 | {"board": "b1", "starts": 2, "received": 5, "stored": 4, "duplicates": 1, "gaps": 2}
    assert b1["p50_ms"] == pytest.approx(20, rel=0.01)
    assert b1["p99_ms"] == pytest.approx(1050, rel=0.01)
    assert (b1["first"], b1["last"]) == ("2026-09-21T14:13:20.010Z", "2026-09-21T14:13:21.050Z")
    assert a == a | {"board": "a", "gaps": 0, "p50_ms": None, "p99_ms": None}
    assert none == none | {"board": "(no identity)", "starts": 0, "received": 1, "stored": 1, "gaps": None}
    assert numbers["duplicates_removed"] == result.duplicates == 1
    assert numbers["possible_duplicates"] == 0
    assert numbers["tables"]["messages"] == 6
    assert numbers["frames_per_second"] > 0


@each_row("share", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_percentiles_of_buckets_are_right_to_a_percent(share: float) -> None:
    chance = random.Random(7)
    values = sorted(int(chance.lognormvariate(8, 2)) for _ in range(5000))
    counts = Counter(buckets(np.array(values)).tolist())
    exact = values[max(0, -(-int(share * 100) * len(values) // 100) - 1)] / 1000
    assert percentile(counts, share) == pytest.approx(exact, rel=0.006, abs=0.001)


def test_percentiles_of_nothing_and_of_clocks_that_differ() -> None:
    assert percentile(Counter(), 0.5) is None
    counts = Counter(buckets(np.array([-5_000_000, -5_000_000, 1000])).tolist())
    assert percentile(counts, 0.5) == pytest.approx(-5000, rel=0.01)
    assert percentile(counts, 1.0) == pytest.approx(1, rel=0.01)


def write_sent(path: Path, *rows: tuple[str, int, int, int, bool]) -> Path:
    names = ("board", "boot", "seq", "qos", "acknowledged")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + '\n{"board": "b1", "bo')
    return path


def test_compare_finds_what_is_lost_and_what_is_left_double(tmp_path: Path) -> None:
    _, out = run(
        tmp_path,
        message("b1", 1, 0, at=4, sent=0),
        message("b1", 1, 1, at=8, sent=0, qos=1),
        message("b1", 1, 1, at=9, sent=0, qos=1, dup=True),
        Rec(publish("another topic", reading("b1", 1, 1)), at=9),
        message("b3", 1, 0),
    )
    b1 = write_sent(
        tmp_path / "b1.jsonl",
        ("b1", 1, 0, 0, False),
        ("b1", 1, 1, 1, False),
        ("b1", 1, 1, 1, True),
        ("b1", 1, 2, 2, False),
        ("b1", 1, 2, 2, True),
        ("b1", 1, 3, 0, False),
        ("b1", 1, 4, 1, False),
        ("b1", 1, 5, 0, True),  # nobody acknowledges QoS 0, and who does loses nothing
    )
    b2 = write_sent(tmp_path / "b2.jsonl", ("b2", 1, 0, 1, True))
    assert compare(out / "messages", [b1, b2]) == [
        Compared("b1", 6, 3, 2, 1, 1, 1, 4.0, 8.0),
        Compared("b2", 1, 1, 0, 0, 0, 1, None, None),
        Compared("b3", 0, 0, 1, 0, 0, 0, None, None),
    ]


def test_a_record_without_acknowledged_says_that_it_was(tmp_path: Path) -> None:
    _, out = run(tmp_path, message("b1", 1, 0))
    sent = tmp_path / "sent.jsonl"
    sent.write_text(
        '{"board": "b1", "boot": 1, "seq": 1, "qos": 1}\n[]\n{"board": 1, "boot": 1, "seq": 1, "qos": 1}\n'
    )
    (row,) = compare(out / "messages", [sent])
    assert (row.sent, row.acknowledged, row.lost) == (1, 1, 1)


def test_a_runs_page_has_its_numbers(tmp_path: Path) -> None:
    _, out = run(tmp_path, message("b", 1, 0, at=5, sent=0), Rec(b"\xf0", at=6))
    page = (out / "report.html").read_text()
    assert f"<h1>{tmp_path / 'log'}</h1>" in page
    for heading in ("Throughput", "Boards", "Quarantine", "Rows written by this run", "Protocols"):
        assert f"<h2>{heading}</h2>" in page
    assert "Problems of the log" not in page


def test_a_run_without_news_says_how_far_the_tables_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = run(tmp_path, message("b", 1, 0, at=5), Rec(b"\xf0", at=61_000))
    log = tmp_path / "log"
    where = f"\n\nThe tables and report.html are in {out}\n"

    def again() -> str:
        numbers: dict[str, Any] = {}

        def write(result: Result, folder: Place) -> None:
            numbers.update(report.write(result, folder))

        run_on(InProcess(), log, out, report=write)
        assert commands.show(numbers, Place.at(out)) == 0
        return capsys.readouterr().out

    everything = "Nothing new: the tables have everything that the logs have"
    assert again() == f"{everything} up to the last frame, received at 2026-09-21T14:14:21.000Z.{where}"
    write_log(log, [[Rec(b"\xf0", at=62_000)]])
    assert again().startswith("1 frames in 1 blocks became 0 messages; ")
    write_log(log, [[Rec(b"\xf0", at=63_000)]])
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "commit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            again()
    assert again().startswith(
        f"Completed batch 3, which was interrupted. {everything.replace('new', 'else is new')}"
    )
    assert again().startswith(everything)
    (tmp_path / "empty").mkdir()
    assert report.up_to_date(Place.at(tables_without_rows(tmp_path / "empty"))) == f"{everything}: no frames."


def tables_without_rows(folder: Path) -> Path:
    out = Tables(Place.at(folder))
    for table in TABLES:
        out.create(table)
    return folder


def test_text_tables_line_up() -> None:
    text = report.text_table(
        [{"board": "b1", "n": 5, "ms": 1.25}, {"board": "longer", "n": 12345, "ms": None}]
    )
    assert text == "board       n    ms\nb1          5  1.25\nlonger  12345     -"
