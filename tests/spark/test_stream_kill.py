"""A streaming query whose driver, JVM and workers are killed at random: each frame once in Spark's file sink.

``HEADWATER_KILLS=60`` kills so often; a test of the suite kills twice, since each start of Spark takes half a minute.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.host.command import PATIENCE_S, environment
from tests.spark.logs import publish
from tools.capture_log import LogWriter
from tools.toolchain import ROOT

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HEADWATER_KILLS", "2"))
SEED = int(os.environ.get("HEADWATER_SEED", "20"))


def processes_below(pid: int) -> dict[int, str]:
    """The command lines of all processes that this one has started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            waiting.append(child)
    return found


def kill(victims: list[int]) -> None:
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Driver:
    """The process with the query."""

    def __init__(self, folder: Path):
        names = ("log", "out", "checkpoint", "result")
        command = [
            sys.executable,
            "-m",
            "tests.spark.stream_process",
            *(str(folder / name) for name in names),
        ]
        self.errors = (folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=ROOT,
            env=environment(PYSPARK_PYTHON=sys.executable),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"started\n", (folder / "stderr").read_text()

    def kill(self, who: str) -> None:
        """Kill the driver with all that belongs to it, its JVM alone, or a worker."""
        below = processes_below(self.process.pid)
        if who == "driver":
            kill([self.process.pid, *below])
        elif who == "jvm":
            kill([pid for pid, command in below.items() if "org.apache.spark" in command])
        else:
            workers = [pid for pid, command in below.items() if "pyspark.daemon" in command]
            kill(random.choices(workers, k=1) if workers else [])

    def end(self) -> None:
        kill([*processes_below(self.process.pid), self.process.pid])
        self.process.wait(PATIENCE_S)
        for file in (self.process.stdin, self.process.stdout, self.errors):
            if file is not None:
                file.close()


def committed(checkpoint: Path) -> int:
    """How many micro-batches are complete."""
    return sum(path.name.isdecimal() for path in (checkpoint / "commits").glob("*"))


def wait_for_batch(checkpoint: Path, before: int) -> None:
    """Wait until a micro-batch more is complete."""
    deadline = time.monotonic() + PATIENCE_S
    while committed(checkpoint) <= before:
        assert time.monotonic() < deadline, "no micro-batch"
        time.sleep(0.05)


def test_each_frame_once_although_everything_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    number = 0
    with LogWriter(tmp_path / "log", segment_bytes=6000) as writer:

        def append(blocks: int) -> None:
            nonlocal number
            for _ in range(blocks):
                for _ in range(10):
                    writer.append(number, 1, "p", 0, 1, 4, publish("t", f"{number}"))
                    number += 1
                writer.flush()

        append(20)
        driver = Driver(tmp_path)
        try:
            for turn in range(KILLS):
                before = committed(tmp_path / "checkpoint")
                append(chance.randrange(10, 30))
                wait_for_batch(tmp_path / "checkpoint", before)
                append(chance.randrange(10, 30))
                time.sleep(chance.random())
                first = ("worker", "driver")
                who = (
                    first[turn] if turn < len(first) else chance.choice(["driver", "jvm", "worker", "worker"])
                )
                driver.kill(who)
                if who != "worker":
                    driver.end()
                    driver = Driver(tmp_path)
            append(5)
            # A worker's death may have ended the query: Spark gives up a task after four attempts.
            process = driver.process
            process.communicate(b"end\n", PATIENCE_S)
            if process.returncode:
                driver.end()
                driver = Driver(tmp_path)
                driver.process.communicate(b"end\n", PATIENCE_S)
                assert driver.process.returncode == 0, (tmp_path / "stderr").read_text()
        finally:
            driver.end()
    found = json.loads((tmp_path / "result").read_text())
    assert sorted(found) == list(range(number)), f"seed {SEED}"
