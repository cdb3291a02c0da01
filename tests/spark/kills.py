"""Kill runs of the pipeline with SIGKILL at random times; compare the tables with those of an undisturbed run.

``python -m tests.spark.kills [KILLS] [SEED]``: a log grows piece by piece; after each piece a process adds it to the
tables, and now and then one compacts them. Most of these processes are killed, some of them several times. A last run
completes what is left.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headwater_spark.engine import LocalEngine
from headwater_spark.growth import compact, grow
from tests.spark.logs import Rec, assert_same_tables, write_log
from tests.spark.test_pipeline import records

_PARTITION_BYTES = 1500


def act(action: str, log: Path, out: Path) -> None:
    """Do what a process of a test does."""
    if action == "compact":
        compact(LocalEngine(), out, keep_hours=1)
    else:
        grow(LocalEngine(), [log], out, partition_bytes=_PARTITION_BYTES)


def disturb(folder: Path, kills: int, seed: int, piece: int = 12) -> dict[str, int]:
    """Kill runs until there were so many kills. Returns how many processes were killed, by action, and how many of the
    others ended by themselves."""
    chosen = random.Random(seed)
    some: Sequence[Rec] = records()
    pieces = [some[at : at + piece] for at in range(0, len(some), piece)]
    log, out = folder / "log", folder / "out"
    found = {"grow": 0, "compact": 0, "completed": 0}
    seconds = 0.0
    while pieces or found["grow"] + found["compact"] < kills:
        write_log(log, [pieces.pop(0) if pieces else some[:3]], segment_blocks=2)
        left = kills - found["grow"] - found["compact"]
        for _ in range(round(left / (len(pieces) + 1)) if seconds else 0):
            action = "compact" if chosen.random() < 0.25 else "grow"
            process = _start(action, log, out)
            try:
                process.wait(chosen.uniform(0, 1.2 * seconds))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            if process.wait() == -signal.SIGKILL:
                found[action] += 1
            elif process.returncode and action == "grow":
                # A compaction leaves an interrupted batch to the pipeline.
                raise RuntimeError(f"{action} ended with {process.returncode}")
        if not seconds or chosen.random() < 0.6:
            process, began = _start("grow", log, out), time.monotonic()
            if process.wait():
                raise RuntimeError(f"grow ended with {process.returncode}")
            seconds = time.monotonic() - began
            found["completed"] += 1
    act("grow", log, out)
    act("compact", log, out)
    grow(LocalEngine(), [log], folder / "undisturbed", partition_bytes=1 << 30)
    assert_same_tables(out, folder / "undisturbed")
    return found


def _start(action: str, log: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.spark.kills", action, str(log), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    # The time to import modules is not part of the run.
    process.stdout.readline()
    process.stdout.close()
    return process


def main(arguments: Sequence[str]) -> None:
    """Be a process of the test, or the test."""
    if arguments and not arguments[0].isdecimal():
        print("ready", flush=True)
        act(arguments[0], Path(arguments[1]), Path(arguments[2]))
        return
    kills, seed = (int(text) for text in (*arguments, *("60", "1")[len(arguments) :]))
    with tempfile.TemporaryDirectory() as folder:
        print(f"{disturb(Path(folder), kills, seed)}: tables equal to an undisturbed run's")


if __name__ == "__main__":
    main(sys.argv[1:])
