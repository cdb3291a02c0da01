"""A process with its own Spark that runs the pipeline on request, with the code of this tree or of an earlier commit.

The process needs only what all commits have: `pipeline.run(spark, log, out)`.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tools.processes import below, cpu_seconds, peak_bytes
from tools.toolchain import ROOT

_PROGRAM = """
import json, shutil, sys, time
from pathlib import Path
from headwater_spark import pipeline
from headwater_spark.session import local_session
master, settings = json.loads(sys.argv[1])
spark = local_session("headwater bench", master, settings)
spark.sparkContext.parallelize([1, 2], 2).map(abs).collect()
print("ready", flush=True)
for line in sys.stdin:
    log, out = json.loads(line)
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    pipeline.run(spark, Path(log), Path(out))
    print(time.perf_counter() - began, flush=True)
spark.stop()
"""
#: Memory of the driver is enough for the largest benchmark.
SETTINGS = {"spark.driver.memory": "2g"}


class Cost(NamedTuple):
    """CPU time in s of all processes since they started, and the largest resident set of each kind in bytes."""

    cpu_s: float
    driver: int
    jvm: int
    worker: int


class SparkProcess:
    """A process that runs the pipeline, as a context manager. Raises RuntimeError if it fails."""

    def __init__(self, master: str, settings: dict[str, str] | None = None, tree: Path = ROOT):
        path = os.pathsep.join(str(tree / folder) for folder in ("sdk", "ports/cpython", "ports/spark"))
        given = json.dumps([master, SETTINGS | (settings or {})])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, given],
            env=os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self._answer()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> SparkProcess:
        return self

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the pipeline ended: {self._errors.read()[-2000:]}")
        return line

    def run(self, log: Path, out: Path) -> float:
        """Turn a whole log into new tables. Returns the seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(log), str(out)]) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def cost(self) -> Cost:
        """Return what its processes have used so far."""
        found = below(self._process.pid)
        workers = [pid for pid, command in found.items() if "pyspark.daemon" in command]
        java = [pid for pid, command in found.items() if "java" in command.partition(" ")[0]]
        own = [self._process.pid]
        return Cost(cpu_seconds([*own, *found]), *(peak_bytes(some) for some in (own, java, workers)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()
        self._errors.close()


def tree_of(commit: str, folder: Path) -> Path:
    """Write the packages of a commit to a folder. Raises FileNotFoundError for a commit that is not there."""
    done = subprocess.run(
        ["git", "archive", commit, "sdk", "ports"], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        raise FileNotFoundError(f"commit {commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
