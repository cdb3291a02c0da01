"""The display of steps that take long: on a terminal, elsewhere, and what it says."""

import io
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater_spark.engine import SparkEngine
from headwater_spark.progress import Display, Step, describe
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


@pytest.mark.needs_java
def test_sparks_completed_tasks_are_counted(spark: "SparkSession", tmp_path: Path) -> None:
    stream, go = Stream(False), tmp_path / "go"

    def work(number: int) -> int:
        # Half of the tasks wait until the display has shown the others.
        while number > 1 and not go.exists():
            time.sleep(0.05)
        return number

    def release() -> None:
        try:
            wait_for(stream, "halves: 50 %, 2 rows of 4 rows")
        finally:
            go.touch()

    waiting = threading.Thread(target=release)
    waiting.start()
    engine = SparkEngine(spark, Display(stream, delay=0.05, every=0.05))
    for _ in range(2):
        assert engine.run(range(4), work, Step("halves", 4)) == [0, 1, 2, 3]
    waiting.join()
    assert "halves: 50 %, 2 rows of 4 rows" in stream.getvalue()
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
