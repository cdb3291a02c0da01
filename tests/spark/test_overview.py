"""The report from the tables: its numbers, its verdict, and its page, which a browser shows."""

import html
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headwater_spark import health, overview, page, report
from headwater_spark.options import parse_time
from headwater_spark.overview import NO_BOARD, Options, Slots
from headwater_spark.pipeline import run_on
from headwater_spark.tables import RECONCILIATION
from headwater_spark.verdict import duration, explain, headline, label, percent, verdict
from tests.conftest import require
from tests.host.command import headwater_here
from tests.rows import each_row
from tests.spark.logs import BEGIN_NS, InProcess, Rec, publish, reading, rows, write_log

SECOND = 1000
HOUR = 3600 * SECOND


def message(
    board: str,
    boot: int,
    seq: int,
    at: int,
    *,
    qos: int = 1,
    sent: int = 5,
    values: dict[str, float] | None = None,
) -> Rec:
    """A message that came ``at`` ms, sent ``sent`` ms before."""
    time = BEGIN_NS // 1000 + (at - sent) * 1000
    payload = reading(board, boot, seq, t=time, **(values or {}))
    return Rec(publish("t", payload, qos=qos, packet_id=1 + seq), at=at)


def tables(tmp_path: Path, *records: Rec) -> Path:
    run_on(InProcess(), write_log(tmp_path / "log", [list(records)]), tmp_path / "out")
    return tmp_path / "out"


def texts(found: overview.Overview) -> list[str]:
    return [f"{level}: {text}" for level, text in verdict(found)]


def test_boards_gaps_and_their_causes(tmp_path: Path) -> None:
    out = tables(
        tmp_path,
        *(message("b1", 1, seq, seq * SECOND, qos=seq % 2) for seq in range(20) if seq != 7),
        *(message("b2", 1, seq, seq * SECOND) for seq in range(10)),
        *(message("b2", 1, seq, 90 * SECOND + seq * SECOND) for seq in range(14, 20)),
        *(message("b3", 1, seq, seq * SECOND) for seq in range(5) if seq != 2),
        *(message("b3", 2, seq, 50 * SECOND + seq) for seq in range(2)),
        Rec(publish("t", "no identity"), at=5),
        message("b2", 1, 0, 0)._replace(at=200 * SECOND),
    )
    found = overview.overview(out)
    assert [(board.name, board.messages, board.missing, board.duplicates) for board in found.boards] == [
        ("b1", 19, 1, 0),
        ("b2", 16, 4, 1),
        ("b3", 6, 1, 0),
        (None, 1, 0, 0),
    ]
    assert [(board.starts, board.restarts) for board in found.boards] == [(1, 0), (1, 0), (2, 1), (0, 0)]
    (b2,) = found.gaps["b2"]
    assert (b2.boot, b2.first_seq, b2.last_seq) == (1, 10, 13)
    assert b2.after_ns - b2.before_ns == 95 * 10**9
    boards = {board.name: board for board in found.boards}
    causes = {name: explain(gaps[0], boards[name]) for name, gaps in found.gaps.items()}
    assert causes == {
        "b1": "lost on the way at QoS 0, at which the board sends 53 % of its messages",
        "b2": "offline for 1 min 35 s; its store was full, or it has not sent them yet",
        "b3": "never sent, or still in the board's store: it sends at QoS 1 and 2, which are retransmitted",
    }
    assert texts(found) == [
        "look: 6 of 47 messages (13 %) are missing by their sequence numbers: b2 4, b1 1, b3 1.",
        "look: 1 restart: b3 1.",
        "ok: 1 duplicate was removed.",
    ]


def test_a_board_with_the_name_of_messages_without_an_identity(tmp_path: Path) -> None:
    out = tables(
        tmp_path,
        *(message(NO_BOARD, 1, seq, seq * SECOND, values={"c": 20 + seq}) for seq in (0, 1, 3)),
        Rec(publish("t", b'{"v": 1}'), at=5 * SECOND),
        Rec(publish("t", b'{"v": 2}'), at=6 * SECOND),
    )
    found = overview.overview(out)
    assert [(board.name, board.messages, board.missing) for board in found.boards] == [
        (NO_BOARD, 3, 1),
        (None, 2, 0),
    ]
    assert [board.rate.sum() for board in found.boards] == [3, 2]
    assert [sum(board.qos.values()) for board in found.boards] == [3, 2]
    assert list(found.gaps) == [NO_BOARD]
    assert {name: [one.metric for one in series] for name, series in found.series.items()} == {
        NO_BOARD: ["c"],
        None: ["v"],
    }
    assert "look: 1 of 4 messages (25 %) are missing by their sequence numbers: (no identity) 1." in texts(
        found
    )
    text = page.render(found, "x")
    assert text.count("messages of (no identity) over time") == 2
    assert "1 board" in text
    assert len(overview.overview(out, Options(boards=(NO_BOARD,))).series) == 2


def test_the_verdict_of_a_board_that_is_silent_and_of_damage(tmp_path: Path) -> None:
    out = tables(
        tmp_path,
        *(message("b1", 1, seq, seq * 60 * SECOND) for seq in range(10)),
        *(message("b2", 1, seq, seq * 600 * SECOND) for seq in range(20)),
        Rec(b"\xf0", at=10),
    )
    found = texts(overview.overview(out))
    assert found == [
        "look: 1 row is in quarantine: reserved_packet_type 1.",
        "look: b1 has been silent for 3 h 1 min; before, it sent a message every 1 min.",
        "ok: The sequence numbers of 2 boards have no gaps.",
    ]
    assert headline(verdict(overview.overview(out))) == "2 things to look at"


def test_lost_messages_come_first(tmp_path: Path) -> None:
    record = tmp_path / "sent.jsonl"
    record.write_text(
        "".join(
            json.dumps({"board": "b1", "boot": boot, "seq": seq, "qos": 1, "acknowledged": told}) + "\n"
            for boot, seq, told in ((1, 0, True), (1, 1, False), (1, 2, True), (1, 3, True), (2, 0, False))
        )
    )
    records = [message("b1", 1, seq, seq * SECOND) for seq in (0, 1, 3)]
    log = write_log(tmp_path / "log", [records])
    run_on(InProcess(), log, tmp_path / "out", sent=[record])
    out = tmp_path / "out"
    names = ("boot", "expected", "stored", "missing", *health.RECORDED)
    assert rows(out, RECONCILIATION, *names) == [(1, 4, 3, 1, 3 + 1, 3, 1), (2, 0, 0, 0, 1, 0, 0)]
    found = verdict(overview.overview(out))
    assert found[0] == (
        "bad",
        "1 acknowledged message of b1 is lost: in the board's own record, but not in the tables.",
    )
    assert headline(found) == "1 serious problem"
    # The next batch keeps what the record told.
    write_log(log, [[message("b1", 1, 4, 9 * SECOND)]])
    run_on(InProcess(), log, out)
    assert rows(out, RECONCILIATION, *names)[0] == (1, 5, 4, 1, 4, 3, 1)


def test_a_span_of_time_and_named_boards(tmp_path: Path) -> None:
    records = [
        message(f"b{k}", 1, n, n * HOUR + k, values={"celsius": float(n)})
        for n in range(48)
        for k in range(20)
    ]
    out = tables(tmp_path, *records)
    whole = overview.overview(out)
    assert (whole.messages, len(whole.boards), len(whole.series)) == (960, 20, overview.MAX_BOARDS)
    since, until = BEGIN_NS + 10 * HOUR * 10**6, BEGIN_NS + 20 * HOUR * 10**6
    some = overview.overview(out, Options(since, until, ("b7", "b19")))
    assert set(some.series) == {"b7", "b19"}
    values = some.series["b7"][0]
    assert values.metric == "celsius"
    assert [float(np.nanmin(values.low)), float(np.nanmax(values.high))] == [10, 19]
    # `device_health` has whole hours: the one before BEGIN_NS's minutes belongs to the span.
    assert 200 <= some.messages <= 240
    none = overview.overview(out, Options(until_ns=1))
    assert texts(none) == ["look: There are no messages in this span of time."]
    assert none.quarantine == []
    assert "There are no messages" in page.render(none, "none")


def test_only_the_last_messages_are_read_for_details(tmp_path: Path) -> None:
    out = tables(
        tmp_path, *(message("b1", 1, n, n * HOUR // 10, values={"celsius": float(n)}) for n in range(200))
    )
    found = overview.overview(out, Options(detail_rows=50))
    assert found.messages == 200
    assert found.rate.sum() == 200
    assert found.slots.width_ns == 10**9 * 3600
    assert 40 <= found.series["b1"][0].count <= 50
    assert "They and QoS are from" in page.render(found, "")


def test_values_are_at_their_send_times_unless_the_clock_is_wrong(tmp_path: Path) -> None:
    late = [
        message("b1", 1, n, 100 * SECOND, sent=(100 - n) * SECOND, values={"celsius": float(n)})
        for n in reversed(range(101))  # the newest value arrives first
    ]
    wrong = [message("b2", 1, n, n * SECOND, sent=10**9, values={"celsius": float(n)}) for n in range(101)]
    out = tables(tmp_path, *wrong, *late)
    found = overview.overview(out).series
    for name in ("b1", "b2"):
        (values,) = found[name]
        there = values.mean[~np.isnan(values.mean)]
        assert len(there) > 90
        assert (np.diff(there) > 0).all()
        assert values.last == 100


def test_constants_and_values_beyond_the_limit_are_listed(tmp_path: Path) -> None:
    names = [f"m{k:02}" for k in range(20)]
    records = [
        message("b1", 1, n, n * SECOND, values={**dict.fromkeys(names, float(n)), "fixed": 7})
        for n in range(5)
    ]
    found = overview.overview(tables(tmp_path, *records))
    assert len(found.series["b1"]) == overview.MAX_METRICS
    assert found.constants == {"b1": [("fixed", 7.0)]}
    assert found.omitted["b1"] == [f"m{k:02}" for k in range(overview.MAX_METRICS, 20)]
    text = page.render(found, "")
    assert "Constant: fixed = 7." in text
    assert "Not drawn, beyond 12 values: m12" in text


@each_row("seconds", [0.001, 1, 14.9, 15, 3600, 86400, 30 * 86400, 5 * 365 * 86400])
def test_slots_are_round_and_few(seconds: float) -> None:
    last = BEGIN_NS + int(seconds * 10**9)
    slots = Slots.over(BEGIN_NS, last)
    assert slots.first_ns <= BEGIN_NS
    assert slots.of(np.array([BEGIN_NS, last])).tolist() == [0, slots.count - 1]
    assert 1 <= slots.count <= 151
    assert slots.width_ns % (86400 * 10**9) == 0 or 86400 * 10**9 % slots.width_ns == 0


@each_row(
    "ns, text",
    [
        (5 * 10**6, "5 ms"),
        (1_500_000_000, "1.5 s"),
        (90 * 10**9, "1 min 30 s"),
        (3600 * 10**9, "1 h"),
        (86400 * 10**9 * 3 + 7200 * 10**9, "3 d 2 h"),
    ],
)
def test_durations(ns: int, text: str) -> None:
    assert duration(ns) == text


@each_row("part, whole, text", [(1, 300, "0.33"), (5, 60, "8.3"), (1, 4, "25"), (10**18 - 1, 10**18, "100")])
def test_percentages(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


@each_row(
    "name, text", [("b1", "b1"), ("", '""'), (" ", '" "'), ("x" * 80, "x" * 80), ("y" * 81, "y" * 79 + "…")]
)
def test_names_are_short_and_never_blank(name: str, text: str) -> None:
    assert label(name) == text


def test_charts_of_the_largest_numbers(tmp_path: Path) -> None:
    """Neither a sum nor the range of values need fit in a double."""
    large = (1e308, -1e308, 1.1e308, 1.2e308)
    records = [
        message("b1", 1, seq, 0 if value > 1e308 else seq * SECOND, values={"v": value})
        for seq, value in enumerate(large)
    ]
    out = tables(tmp_path, *records)
    (series,) = overview.overview(out).series["b1"]
    drawn = series.mean[~np.isnan(series.mean)]
    assert np.isfinite(drawn).all()
    assert (drawn <= 1.2e308).all()
    report.write_page(out, tmp_path / "page.html")
    assert not re.search(r"\b(nan|inf)\b", (tmp_path / "page.html").read_text())


def test_a_page_lists_constants_and_some_of_many_values(tmp_path: Path) -> None:
    many = {f"v{k:03d}": 1.5 for k in range(50)}
    varied = [
        message("b2", 1, seq, seq * SECOND, values={f"w{k:03d}": float(seq) for k in range(60)})
        for seq in range(3)
    ]
    out = tables(tmp_path, *(message("b1", 1, seq, seq * SECOND, values=many) for seq in range(3)), *varied)
    report.write_page(out, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert re.search(r"<h3>b1</h3>.*?Constant: v000 = 1\.5, .*v029 = 1\.5, and 20 more\.", text)
    assert re.search(r"beyond 12 values: w012, .*w041, and 18 more\.", text)


EVIL = "<script>alert(1)</script>$\\frac"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A page with names of attackers, and long ones."""
    names = (EVIL, "_b", "\x00\x1b[2J", "long-" * 20)
    records = [
        message(name, 1, seq, seq * SECOND, values={f"{name} value": seq * 1.5, "w" * 80: float(seq)})
        for name in names
        for seq in (0, 1, 2, 5)
    ]
    out = tables(tmp_path, *records, Rec(b"\xf0", at=10))
    report.write_page(out, tmp_path / "page.html", title=EVIL)
    return tmp_path / "page.html"


def test_the_page_is_safe_and_needs_nothing_else(evil: Path) -> None:
    text = evil.read_text()
    assert "<script" not in text
    assert html.escape(EVIL) in text
    assert "\x1b" not in text
    assert not re.search(r"https?:|//|url\(|@import|<link|<img|src=", text)


def test_a_browser_shows_the_page_at_400_pixels_and_in_the_dark(evil: Path, tmp_path: Path) -> None:
    """Nothing is wider than the window, no text is invisible, and no request leaves the page."""
    chromium = require("chromium")
    probe = """
    <script>
    const frame = document.querySelector("iframe");
    onload = () => {
      const page = frame.contentDocument, style = (x) => getComputedStyle(x);
      const number = (color) => color.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + +b, 0);
      const low = [...page.querySelectorAll("p, li, td, th, figcaption, summary, h1, h2, h3")].filter(
        (x) => Math.abs(number(style(x).color) - number(style(page.body).backgroundColor)) < 150);
      document.title = JSON.stringify({
        width: page.documentElement.scrollWidth,
        charts: [...page.querySelectorAll("svg")].filter((x) => x.getBoundingClientRect().height < 8).length,
        count: page.querySelectorAll("svg").length,
        low: low.length,
        dark: number(style(page.body).backgroundColor) < 200,
        requests: frame.contentWindow.performance.getEntriesByType("resource").length,
      });
    };
    </script>"""
    frame = f'<iframe style="width:400px;height:900px;border:0" srcdoc="{html.escape(evil.read_text())}"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!doctype html><title></title>{frame}{probe}")
    found = {}
    for dark in (0, 1):
        done = subprocess.run(
            [
                chromium,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *(
                    "--disable-background-networking",
                    "--no-first-run",
                    f"--user-data-dir={tmp_path / str(dark)}",
                ),
                f"--blink-settings=preferredColorScheme={1 - dark}",
                "--dump-dom",
                (tmp_path / "frame.html").as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
        assert title, done.stderr
        found[dark] = json.loads(title[1])
    for dark, page_ in found.items():
        assert page_.pop("count") > 10
        assert page_.pop("width") <= 400
        assert page_ == {"charts": 0, "low": 0, "dark": bool(dark), "requests": 0}


def test_a_span_without_bounds(tmp_path: Path) -> None:
    """The default begin is 7 days before the last message, not before a later end."""
    out = tables(tmp_path, *(message("b1", 1, seq, seq * HOUR) for seq in range(3)))
    for since, until in (("0001-01-01", "9999-12-31"), (None, "9999-12-31"), ("0001-01-01", None)):
        since_ns, until_ns = (None if text is None else parse_time(text) for text in (since, until))
        assert overview.overview(out, Options(since_ns, until_ns)).messages == 3
    for bound in (-(1 << 63), (1 << 63) - 1):
        assert overview.overview(out, Options(bound, bound)).messages == 0
        assert overview.overview(out, Options(until_ns=bound)).messages == (3 if bound > 0 else 0)


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Neither the verdict nor the table of a run prints control characters of a board's name."""
    name = "\x1b[2J\u202ex"
    out = tables(tmp_path, *(message(name, 1, seq, seq * SECOND) for seq in (0, 1, 3)))
    done = headwater_here("pipeline", "report", "--tables", out)
    assert "sequence numbers: \ufffd[2J\ufffdx 1." in done.stdout.decode()
    assert "\x1b" not in report.text_table([{"board": name}])


def test_the_command(tmp_path: Path) -> None:
    out = tables(tmp_path, *(message("b1", 1, seq, seq * SECOND) for seq in (0, 1, 3)))
    done = headwater_here("pipeline", "report", "--tables", out)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == (
        "1 thing to look at:\n"
        "look  1 of 4 messages (25 %) are missing by their sequence numbers: b1 1.\n\n"
        f"The report is {out / 'report.html'}\n"
    )
    assert "<h2>1 thing to look at</h2>" in (out / "report.html").read_text()
    for options, text in (
        (["--tables", tmp_path / "nothing"], "is not a directory"),
        (["--tables", tmp_path], "has no table device_health"),
        (["--tables", out, "--since", "soon"], "soon: not a time such as 2026-11-22T08:00:00Z"),
        (["--tables", out, "--out", tmp_path / "no" / "page.html"], "page.html: No such file or directory"),
        (["--tables", out, "--board", "b9"], "--board b9: no message of this board is in the span"),
        (
            ["--tables", out, "--since", "2026-10-01", "--until", "2026-09-01"],
            "--since is not before --until",
        ),
    ):
        done = headwater_here("pipeline", "report", *options)
        assert done.returncode in (1, 2)
        assert text in done.stderr.decode()
