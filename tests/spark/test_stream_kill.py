"""Streams whose driver, JVM and workers are killed at random: each frame once, in Spark's file sink and in the tables.

``HEADWATER_KILLS=60`` kills so often; a test of the suite kills twice, since each start of Spark takes half a minute.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES
from tests.host.command import PATIENCE_S, environment
from tests.spark.kills import kill, strike
from tests.spark.logs import InProcess, assert_same_tables, publish, rows
from tools.capture_log import LogWriter
from tools.processes import below
from tools.toolchain import ROOT

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HEADWATER_KILLS", "2"))
SEED = int(os.environ.get("HEADWATER_SEED", "20"))


class Driver:
    """The process with the query."""

    def __init__(self, folder: Path, *command: object):
        self.errors = (folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *(str(word) for word in command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=ROOT,
            env=environment(PYSPARK_PYTHON=sys.executable),
            start_new_session=True,
        )

    def end(self) -> None:
        kill([*below(self.process.pid), self.process.pid])
        self.process.wait(PATIENCE_S)
        for file in (self.process.stdin, self.process.stdout, self.errors):
            if file is not None:
                file.close()


class Turns:
    """The turns of a test: each appends to a log, waits for a micro-batch, and kills something soon after."""

    def __init__(self, folder: Path, writer: LogWriter, *command: object):
        self.folder = folder
        self.writer = writer
        self.command = command
        self.chance = random.Random(SEED)
        self.number = 0

    def append(self, blocks: int) -> None:
        """Append blocks of ten messages, each with its own number."""
        for _ in range(blocks):
            for _ in range(10):
                payload = json.dumps({"board": "b1", "boot": 1, "seq": self.number})
                self.writer.append(self.number, 1, "p", 0, 1, 4, publish("t", payload))
                self.number += 1
            self.writer.flush()

    def run(self, checkpoint: Path) -> Driver:
        """Take all turns; return the last process, which may have ended."""
        self.append(20)
        driver = Driver(self.folder, *self.command)
        try:
            for turn in range(KILLS):
                before = committed(checkpoint)
                self.append(self.chance.randrange(10, 30))
                while committed(checkpoint) <= before:
                    if driver.process.poll() is not None:  # a worker was killed four times in one task
                        driver.end()
                        driver = Driver(self.folder, *self.command)
                    time.sleep(0.05)
                self.append(self.chance.randrange(10, 30))
                time.sleep(self.chance.random())
                first = ("worker", "all")
                who = (
                    first[turn] if turn < len(first) else self.chance.choice(["all", "jvm", *["worker"] * 2])
                )
                strike(driver.process.pid, who, self.chance)
                if who != "worker":
                    driver.end()
                    driver = Driver(self.folder, *self.command)
            self.append(5)
        except BaseException:
            driver.end()
            raise
        return driver


def committed(checkpoint: Path) -> int:
    """How many micro-batches are complete."""
    return sum(path.name.isdecimal() for path in checkpoint.rglob("commits/*"))


def test_each_frame_once_in_a_file_sink(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("log", "out", "checkpoint", "result")]
    command = ("tests.spark.stream_process", *places)
    with LogWriter(tmp_path / "log", segment_bytes=6000) as writer:
        turns = Turns(tmp_path, writer, *command)
        driver = turns.run(tmp_path / "checkpoint")
        for _ in range(2):
            driver.process.communicate(b"end\n", PATIENCE_S)
            driver.end()
            if driver.process.returncode == 0:
                break
            driver = Driver(tmp_path, *command)
        driver.end()
        assert driver.process.returncode == 0, (tmp_path / "stderr").read_text()
    found = json.loads((tmp_path / "result").read_text())
    assert sorted(found) == list(range(turns.number)), f"seed {SEED}"


def test_the_tables_of_a_stream_that_is_killed_are_those_of_a_run(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    places = ("--capture", log, "--out", out, "--checkpoint", tmp_path / "checkpoint")
    often = ("--trigger", "0.1", "--bytes-per-trigger", "4000", "--master", "local[2,4]")
    with LogWriter(log, segment_bytes=6000) as writer:
        turns = Turns(tmp_path, writer, "headwater_host", "pipeline", "stream", *places, *often)
        turns.run(tmp_path / "checkpoint").end()
    # The next run completes the batch that was cut short, and takes the rest.
    run_on(InProcess(), log, out)
    run_on(InProcess(), log, tmp_path / "undisturbed")
    assert_same_tables(out, tmp_path / "undisturbed")
    assert sorted(rows(out, MESSAGES, "seq")) == list(range(turns.number)), f"seed {SEED}"
