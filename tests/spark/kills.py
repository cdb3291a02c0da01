"""Kill processes that write tables and copies of a log; compare the result with that of processes left alone.

``python -m tests.spark.kills [--kills 60] [--named] [--seed 1] [--only KIND]...``: a log grows piece by piece, and
after each piece a process of one of ``KINDS`` runs: batches, streams, compactions and shipments to an object store, all
on the same log and tables. Each is killed with SIGKILL at a random time, alone or with what it has started, or loses
its JVM, an executor or a Python worker. ``--named`` first kills one at each boundary of its kind. The next process,
of whichever kind, completes what is left open.
"""

import argparse
import io
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from headwater_host.capture import ship
from headwater_host.cli.main import main as headwater
from headwater_spark import batches, delta, run, stream
from headwater_spark.engine import LocalEngine
from headwater_spark.growth import grow
from headwater_spark.place import Place
from headwater_spark.plan import Log
from tests import object_store
from tests.host.command import PATIENCE_S, environment
from tests.spark.logs import assert_same_tables, write_log
from tests.spark.test_pipeline import records
from tools import spark_classes
from tools.processes import below
from tools.toolchain import ROOT

_PARTITION_BYTES = "1500"


class Places(NamedTuple):
    """A log and its tables, and the log's copy in an object store and the tables of that."""

    log: str
    out: str
    copy: str
    second: str


# -- what a process does ----------------------------------------------------------------------------------------------


def _grow(places: Places) -> int:
    grow(LocalEngine(), [places.log], Path(places.out), partition_bytes=int(_PARTITION_BYTES))
    return 0


def _compact(places: Places) -> int:
    return headwater(["pipeline", "compact", "--out", places.out, "--keep", "1"])


def _ship(places: Places) -> int:
    return headwater(["capture", "ship", places.log, places.copy])


def _read(places: Places) -> int:
    grow(LocalEngine(), [Log.at(places.copy)], places.second, partition_bytes=int(_PARTITION_BYTES))
    return 0


def _run(places: Places) -> int:
    given = ["--capture", places.log, "--out", places.out, "--partition-bytes", _PARTITION_BYTES]
    return headwater(["pipeline", "run", *given])


def _stream(places: Places) -> int:
    given = ["--capture", places.log, "--out", places.out, "--partition-bytes", _PARTITION_BYTES]
    return headwater(["pipeline", "stream", *given, "--available-now", "--bytes-per-trigger", "2000"])


class Kind(NamedTuple):
    """A kind of process: what it does, the master of its Spark, what is killed, and its named boundaries."""

    act: Callable[[Places], int]
    master: str = ""
    victims: tuple[str, ...] = ("driver",)
    points: tuple[str, ...] = ()


_COMMITS = ("plan", "files", "commit", "position")
_LOCAL = ("all", "driver", "jvm", "worker", "worker")
#: Whose loss ends a process.
_FATAL = ("all", "driver", "jvm")
KINDS: dict[str, Kind] = {
    "grow": Kind(_grow, points=_COMMITS),
    "compact": Kind(_compact, points=_COMMITS[:3]),
    "ship": Kind(_ship, points=("copy", "manifest")),
    "read": Kind(_read, points=_COMMITS[:3]),
    "run": Kind(_run, "local[2,4]", _LOCAL, _COMMITS),
    "stream": Kind(_stream, "local[2,4]", _LOCAL, (*_COMMITS, "micro-batch")),
    "cluster": Kind(_run, "local-cluster[2,1,512]", ("all", "executor", "executor", "worker")),
}
#: Those that need no Java.
PLAIN = tuple(name for name, kind in KINDS.items() if not kind.master)
#: Named boundaries: before and after a call of these. Spark stores a micro-batch's offsets before `micro-batch`, and
#: that it is complete after it.
POINTS: dict[str, tuple[Any, str]] = {
    "plan": (batches.Batches, "plan"),
    "files": (batches.Batches, "list_files"),
    "commit": (delta.Tables, "commit"),
    "position": (run, "save_reader"),
    "micro-batch": (stream.Stream, "_batch"),
    "copy": (ship._Copy, "add"),
    "manifest": (ship._Copy, "finish"),
}


class Moment(NamedTuple):
    """A named boundary: before or after a call of a function. Of the commits it is the second table's."""

    point: str
    after: bool

    @property
    def call(self) -> int:
        return 2 if self.point == "commit" else 1


MOMENTS = [Moment(point, after) for point in POINTS for after in (False, True)]


def dying(moment: Moment, die: Callable[[], object]) -> tuple[Any, str, Callable[..., Any]]:
    """The function of a named boundary, for `setattr`: it calls `die` before or after its work."""
    where, name = POINTS[moment.point]
    original = getattr(where, name)
    calls = 0

    @wraps(original)
    def step(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == moment.call and not moment.after:
            die()
        result = original(*args, **more)
        if calls == moment.call and moment.after:
            die()
        return result

    return where, name, step


_plan = run.Run._plan
#: Defects that only kills show, and these must: where they are, and what is there instead.
MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "an interrupted batch is forgotten": (run.Run, "complete", lambda self: []),
    "a retry reads to the log's end": (
        *(run.Run, "_plan"),
        lambda self, log, start, end: _plan(self, log, start, None),
    ),
}


def _be(kind: Kind, places: Places, mutant: str) -> None:
    """Be a process of the test: start Spark, if needed, then act for each line of stdin, and report the exit code.

    A line may name the boundary at which the process dies.
    """
    if mutant:
        setattr(*MUTANTS[mutant])
    if kind.master:
        from headwater_spark.session import local_session

        # The command uses the session that is there.
        settings = {
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": spark_classes.options(),
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        }
        spark = local_session("kills", kind.master, settings)
        spark.sparkContext.parallelize([1, 2], 2).map(abs).collect()
    print("ready", flush=True)
    for line in sys.stdin:
        if moment := json.loads(line):
            setattr(*dying(Moment(*moment), lambda: os.kill(os.getpid(), signal.SIGKILL)))
        with redirect_stdout(sys.stderr):
            code = kind.act(places)
        print(code, flush=True)


# -- the test ---------------------------------------------------------------------------------------------------------


def kill(pids: Iterable[int]) -> int:
    """Kill processes; returns how many there were."""
    count = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        count += 1
    return count


def strike(pid: int, who: str, chance: random.Random) -> int:
    """Kill a driver, everything that belongs to it, its JVM, one executor or one worker. Returns the number killed."""
    others = below(pid)
    if who in ("all", "driver"):
        return kill([pid, *others][: None if who == "all" else 1])
    sign = {"jvm": "org.apache.spark", "executor": "CoarseGrainedExecutor", "worker": "pyspark.daemon"}[who]
    found = [one for one, command in others.items() if sign in command]
    return kill(found if who == "jvm" else chance.sample(found, min(1, len(found))))


class Process:
    """A process of a kind, which is ready to act."""

    def __init__(self, folder: Path, name: str, places: Places, mutant: str):
        self._errors = folder / f"{name}.stderr"
        self._before = 0
        with self._errors.open("wb") as errors:
            self._process = self._started(errors, name, places, mutant)
        self.pid = self._process.pid
        # The time to import modules and to start Spark is not part of the run.
        if self.answer(PATIENCE_S) != "ready":
            raise RuntimeError(f"{name} did not start: {self.text()}")

    @staticmethod
    def _started(errors: BinaryIO, name: str, places: Places, mutant: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.kills", "--be", json.dumps([name, places, mutant])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            cwd=ROOT,
            env=environment(PYSPARK_PYTHON=sys.executable),
        )

    def act(self, moment: Moment | None = None) -> None:
        """Let it act; at a moment it kills itself."""
        assert self._process.stdin is not None
        self._before = self._errors.stat().st_size
        self._process.stdin.write(json.dumps(moment).encode() + b"\n")

    def answer(self, seconds: float) -> str | None:
        """Return what it answers, empty if it has died; None if it does neither for so long."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        # The pipe may stay open without the process: its JVM has it as well.
        while not select.select([self._process.stdout], [], [], 0.02)[0]:
            if self._process.poll() is not None:
                return ""
            if time.monotonic() > deadline:
                return None
        return self._process.stdout.readline().decode().strip()

    def text(self) -> str:
        """What was written to stderr since it began to act."""
        return self._errors.read_bytes()[self._before :].decode(errors="replace")

    def end(self) -> None:
        """End it with all that belongs to it."""
        kill([*below(self.pid), self.pid])
        self._process.wait(PATIENCE_S)
        for file in (self._process.stdin, self._process.stdout):
            assert file is not None
            file.close()


class Test:
    """The log, the tables, the processes, and what was killed so far."""

    def __init__(
        self, folder: Path, bucket: object_store.Bucket | None, seed: int, pieces: int, mutant: str = ""
    ):
        self._folder = folder
        self._mutant = mutant
        copy = f"{bucket.uri}/log" if bucket else str(folder / "copy")
        os.environ.update(bucket.options if bucket else {})
        second = f"{bucket.uri}/second" if bucket else str(folder / "second")
        self.places = Places(str(folder / "log"), str(folder / "out"), copy, second)
        self._chance = random.Random(seed)
        self._some = records()
        size = -(-len(self._some) // pieces)
        self._pieces = [self._some[at : at + size] for at in range(0, len(self._some), size)]
        self._seconds: dict[str, float] = {}
        self._processes: dict[str, Process] = {}
        self.killed: Counter[str] = Counter()
        self.completed = 0

    def _extend(self) -> None:
        piece = self._pieces.pop(0) if self._pieces else self._chance.sample(self._some, 3)
        write_log(Path(self.places.log), [piece[::2], piece[1::2] or piece], segment_blocks=1)

    def _act(self, name: str, moment: Moment | None = None) -> Process:
        """Let a process of this kind act on something new."""
        self._extend()
        if name == "read":
            # There must be something to read.
            self.here("ship")
        process = self._processes.get(name)
        if process is None:
            process = self._processes[name] = Process(self._folder, name, self.places, self._mutant)
        process.act(moment)
        return process

    def here(self, name: str) -> None:
        """Act in this process."""
        with redirect_stdout(io.StringIO()):
            KINDS[name].act(self.places)

    def _check(self, name: str, process: Process, answer: str | None, who: str) -> None:
        """Raise RuntimeError if a process fails that should get over the loss of `who`; forget one that has died."""
        text = process.text()
        if not answer or who in _FATAL:
            process.end()
            del self._processes[name]
        # A compaction leaves an interrupted batch to the pipeline.
        refused = name == "compact" and "was interrupted: run the pipeline" in text
        # PySpark itself prints the traceback of a thread that loses its connection to the JVM.
        if who == "jvm" and "headwater_spark/" in text:
            raise RuntimeError(f"{name}, without its JVM: {text}")
        # Spark gives a Python process ten seconds to connect, and does not start one of its source again.
        busy = "failed to connect back" in text or "reading the port number from pyspark.daemon" in text
        if answer != "0" and not refused and not busy and who not in _FATAL:
            raise RuntimeError(f"{name}, {who or 'undisturbed'}: {answer!r}: {text}")
        self.completed += answer == "0"

    def at(self, name: str, moment: Moment) -> None:
        """Kill a process of this kind at a named boundary."""
        process = self._act(name, moment)
        answer = process.answer(PATIENCE_S)
        if answer and name == "compact":  # it has refused
            self.killed["compact refused"] += 1
        elif answer != "":
            raise RuntimeError(f"{name} was not killed at {moment}: {answer}: {process.text()}")
        else:
            self.killed[f"{name} at a boundary"] += 1
        process.end()
        del self._processes[name]

    def at_random(self, name: str) -> bool:
        """Kill a process of this kind, or a part of it, at a random time; whether it was there to be killed."""
        who = self._chance.choice(KINDS[name].victims)
        seconds = self._seconds.setdefault(name, 4 if KINDS[name].master else 0.5)
        process = self._act(name)
        began = time.monotonic()
        answer = process.answer(self._chance.uniform(0, 1.1 * seconds))
        killed = 0
        if answer is None:
            killed = strike(process.pid, who, self._chance)
            self.killed[f"{name} {who}"] += bool(killed)
            # Orphans of a driver may go on for a while, beside the next process.
            answer = process.answer(PATIENCE_S)
        if answer == "0":
            self._seconds[name] = time.monotonic() - began
        self._check(name, process, answer, who if killed else "")
        return bool(killed)

    def end(self) -> None:
        """Complete what is left, and compare. Raises AssertionError."""
        self.stop()
        for name in ("grow", "compact", "ship", "read"):
            self._extend()
            self.here(name)
        for name in ("grow", "ship", "read"):
            self.here(name)
        whole = self._folder / "undisturbed"
        grow(LocalEngine(), [self.places.log], whole, partition_bytes=1 << 30)
        assert_same_tables(Path(self.places.out), whole)
        assert_same_tables(Place.at(self.places.second), whole)

    def stop(self) -> None:
        """End all processes."""
        while self._processes:
            self._processes.popitem()[1].end()


def disturb(
    folder: Path,
    bucket: object_store.Bucket | None = None,
    *,
    kills: int = 0,
    named: Sequence[Moment] = (),
    kinds: Sequence[str] = tuple(KINDS),
    seed: int = 1,
    mutant: str = "",
    say: Callable[[str], object] = lambda text: None,
) -> Test:
    """Kill processes of these kinds at the named boundaries, and at random until there were so many kills.

    With a `bucket`, the log is shipped to it, and what reads the copy keeps its tables there. Raises AssertionError if
    the tables differ from those of an undisturbed run, RuntimeError if a process fails for another reason.
    """
    boundaries = [(name, moment) for name in kinds for moment in named if moment.point in KINDS[name].points]
    test = Test(folder, bucket, seed, max(2, 2 * kills // 3 + len(boundaries)), mutant)
    try:
        for name, moment in boundaries:
            test.at(name, moment)
            say(f"{name}: killed {'after' if moment.after else 'before'} {moment.point}")
        done = 0
        while done < kills:
            done += test.at_random(kinds[done % len(kinds)])
            say(f"{done} of {kills}: {dict(test.killed)}, completed: {test.completed}")
        test.end()
    finally:
        test.stop()
    return test


def main() -> int:
    """Be a process of the test, or the test."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=tuple(KINDS))
    parser.add_argument("--mutant", choices=tuple(MUTANTS), default="")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        name, places, mutant = json.loads(options.be)
        _be(KINDS[name], Places(*places), mutant)
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, object_store.running() as store:
        test = disturb(
            Path(folder),
            store.bucket(),
            kills=options.kills,
            named=MOMENTS if options.named else (),
            kinds=options.only or tuple(KINDS),
            seed=options.seed,
            mutant=options.mutant,
            say=lambda text: print(f"{time.monotonic() - began:.0f} s: {text}", flush=True),
        )
    print(
        f"{sum(test.killed.values())} kills ({dict(test.killed)}), {test.completed} completed: equal tables"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
