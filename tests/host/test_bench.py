"""The benchmarks run, and what does not depend on time comes out as promised."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.host.command import quick_bench
from tools.bench import board, report
from tools.bench.clients import HEAP_TASKS, TASKS, clients_of
from tools.bench.report import Table
from tools.toolchain import ROOT

OURS = ("headwater", "headwater_copies", "fmq")


@pytest.fixture(scope="module")
def figures() -> board.Figures:
    """As the command says them."""
    return board.Figures(**quick_bench("board", OURS))


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_headwater_uses_no_heap_for_a_message(figures: board.Figures) -> None:
    assert set(figures.heap_per_message) == {task.key for task in TASKS}
    for client in ("headwater", "fmq"):
        used = {task: found[client] for task, found in figures.heap_per_message.items()}
        assert set(used.values()) == {0}, (client, used)


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_copies_are_seen_on_the_heap(figures: board.Figures) -> None:
    # Otherwise the zeros above would mean nothing.
    copied = [
        found["headwater_copies"] for key, found in figures.heap_per_message.items() if "receive" in key
    ]
    assert copied
    assert all(used > 50 for used in copied), copied


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_every_task_has_the_round_of_every_client_and_a_size(figures: board.Figures) -> None:
    assert set(figures.rates) == {task.key for task in TASKS}
    for task in TASKS:
        rates = figures.rates[task.key]
        assert set(rates) == set(clients_of(task, ["floor", *OURS]))
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in rates.values())
    for client in ("headwater", "fmq"):
        assert figures.size[client]["mpy"] > 1000
        assert figures.size[client]["heap"] > 1000
    assert figures.missing == []


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_tables_have_a_cell_for_every_column(figures: board.Figures) -> None:
    memory, publishing, receiving, fmq = board.tables(figures)
    assert len(memory.columns) == 3 + len(HEAP_TASKS)
    assert len(publishing.columns) + len(receiving.columns) == 2 + len(TASKS)
    for table in (memory, publishing, receiving):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert "umqtt.simple (quoted)" in report.text(table)
        assert all(f"\n{row[0]} " in report.markdown(table) for row in table.rows)
    assert len(fmq.rows) == len(TASKS)
    assert all(len(row) == len(fmq.columns) for row in fmq.rows)
    assert not any("FMQ" in row[0] for table in (publishing, receiving) for row in table.rows)


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_without_fmq_there_is_no_table_of_it(figures: board.Figures) -> None:
    labels = {name: label for name, label in figures.labels.items() if name != "fmq"}
    rates = {
        task: {name: found[name] for name in found if name != "fmq"} for task, found in figures.rates.items()
    }
    assert len(board.tables(replace(figures, labels=labels, rates=rates))) == 3


def test_a_client_that_is_not_installed_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.bench.clients.CACHE", tmp_path)
    from tools.bench.clients import CLIENTS, MissingError, compiled

    with pytest.raises(MissingError, match=r"chumicro-mqtt is not installed: \./run bench installs it"):
        compiled(CLIENTS["chumicro"])


def test_a_table_is_put_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- bench one -->\nold\n<!-- end one -->\nafter\n<!-- bench two -->\n<!-- end two -->\n"
    )
    report.put("one", report.markdown(Table("T", ["a", "b"], [["1", "\\2"]], ["a note"])), page)
    report.put("one", report.markdown(Table("T", ["a", "b"], [["1", "\\2"]], ["a note"])), page)
    assert page.read_text() == (
        "before\n<!-- bench one -->\n**T**\n\n```text\na   b\n-  --\n1  \\2\n```\n\na note\n<!-- end one -->\nafter\n"
        "<!-- bench two -->\n<!-- end two -->\n"
    )
    with pytest.raises(ValueError, match="bench three"):
        report.put("three", "", page)


def test_the_page_has_markers_for_every_benchmark() -> None:
    from tools.bench.__main__ import available

    page = report.DOCUMENT.read_text()
    for name in available():
        assert page.count(f"<!-- bench {name} -->") == page.count(f"<!-- end {name} -->") == 1


def test_an_unknown_name_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench", "bord"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "unknown benchmark 'bord': choose from board" in done.stderr


@pytest.mark.parametrize("rounds", ["0", "-1", "x"])
def test_rounds_are_a_number_above_0(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tools.bench.__main__ import main

    with pytest.raises(SystemExit):
        main(["host", "--rounds", rounds])
    assert "--rounds" in capsys.readouterr().err
