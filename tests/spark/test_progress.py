"""The display of steps that take long: on a terminal, elsewhere, and what it says."""

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater_host.progress import Display, Step, describe
from headwater_spark.engine import LocalEngine, SparkEngine
from headwater_spark.progress import add_rows, reporting, rows_in
from tests.rows import each_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@each_row(
    "step, share, seconds, text",
    [
        (
            Step("reading", 9_600_000, 540_000_000),
            0.25,
            4.0,
            "reading: 25 %, 2.4 M rows of 9.6 M rows, 135 MB of 540 MB, 600 k rows/s, 12 s left",
        ),
        (
            Step("reading", 0, 2_000_000_000),
            0.5,
            100,
            "reading: 50 %, 1 GB of 2 GB, 10 MB/s, 1 min 40 s left",
        ),
        (Step("working"), 0.001, 10, "working: 0 %, 2 h 46 min left"),
        (Step("working", 100), 0, 10, "working: 0 %, 0 rows of 100 rows"),
        (Step("working"), 1.5, 10, "working: 100 %, 0 s left"),
    ],
)
def test_what_it_says(step: Step, share: float, seconds: float, text: str) -> None:
    assert describe(step, share, seconds) == text


def wait_for(stream: Stream, text: str) -> None:
    deadline = time.monotonic() + 100
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.01)


def test_lines_elsewhere() -> None:
    stream, shares = Stream(False), iter([0.1, 0.2, 0.3])
    with Display(stream, delay=0.01, every=0.01).step(Step("reading"), lambda: next(shares)):
        wait_for(stream, "30 %")
    lines = stream.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"pipeline: reading: {n} %" for n in (10, 20, 30)]


def test_one_line_on_a_terminal_that_is_erased() -> None:
    stream = Stream(True)
    with Display(stream, delay=0.01, every=0.01).step(Step("reading"), lambda: 0.5):
        wait_for(stream, "50 %")
    text = stream.getvalue()
    assert text.startswith("\rpipeline: reading: 50 %")
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


@pytest.mark.parametrize("terminal", [False, True])
def test_short_steps_are_not_shown_and_errors_pass(terminal: bool) -> None:
    stream = Stream(terminal)
    with pytest.raises(KeyError), Display(stream, delay=100).step(Step("reading"), lambda: 0.5):
        raise KeyError
    assert stream.getvalue() == ""


def half_and_wait(go: Path, number: int) -> int:
    """A task of 100 rows, which waits when it has done half of them."""
    add_rows(20)
    add_rows(30)
    while not go.exists():
        time.sleep(0.05)
    add_rows(50)
    return number


@contextmanager
def go_after(stream: Stream, text: str, go: Path) -> Iterator[None]:
    """Let tasks go on when the display has shown a text."""

    def release() -> None:
        try:
            wait_for(stream, text)
        finally:
            go.touch()

    waiting = threading.Thread(target=release)
    waiting.start()
    yield
    waiting.join()
    assert text in stream.getvalue()


def test_rows_within_a_task_are_counted(tmp_path: Path) -> None:
    stream, go = Stream(False), tmp_path / "go"
    engine = LocalEngine(Display(stream, delay=0.05, every=0.05))
    for numbers, text in ([1], "first: 50 %, 50 rows of 100 rows"), ([1, 2], "second: 25 %, 50 rows of 200"):
        go.unlink(missing_ok=True)
        with go_after(stream, text, go):
            step = Step(text.partition(":")[0], 100 * len(numbers))
            assert engine.run(numbers, partial(half_and_wait, go), step) == numbers
    assert engine.run([], partial(half_and_wait, go)) == []


def test_a_task_on_another_machine_reports_nothing(tmp_path: Path) -> None:
    def work(number: int) -> int:
        add_rows(number / 2)
        return number

    assert reporting(str(tmp_path / "none"), work, 7) == 7
    reporting(str(tmp_path), work, 2)
    reporting(str(tmp_path), work, 3)
    assert rows_in(str(tmp_path)) == 2


@pytest.mark.needs_java
def test_rows_within_a_task_of_spark_are_counted(spark: "SparkSession", tmp_path: Path) -> None:
    stream, go = Stream(False), tmp_path / "go"

    def work(number: int) -> int:
        return half_and_wait(go, number)

    with go_after(stream, "reading: 50 %, 50 rows of 100 rows", go):
        engine = SparkEngine(spark, Display(stream, delay=0.05, every=0.05))
        assert engine.run([3], work, Step("reading", 100)) == [3]


@pytest.mark.needs_java
def test_sparks_completed_tasks_are_counted(spark: "SparkSession", tmp_path: Path) -> None:
    stream, go = Stream(False), tmp_path / "go"

    def work(number: int) -> int:
        # Half of the tasks wait until the display has shown the others.
        while number > 1 and not go.exists():
            time.sleep(0.05)
        return number

    engine = SparkEngine(spark, Display(stream, delay=0.05, every=0.05))
    with go_after(stream, "halves: 50 %, 2 rows of 4 rows", go):
        for _ in range(2):
            assert engine.run(range(4), work, Step("halves", 4)) == [0, 1, 2, 3]
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
