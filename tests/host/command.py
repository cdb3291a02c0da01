"""Runs ``headwater`` as a user does: a process of its own, its output, its exit code."""

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from headwater_host.cli.main import main
from tools.toolchain import ROOT

#: How long what must come may take on a machine with much else to do; only a test that fails waits so long.
PATIENCE_S = 300
HEADWATER = [sys.executable, "-m", "headwater_host"]
PACKAGES = [str(ROOT / folder) for folder in ("sdk", "ports/cpython", "ports/spark")]


def environment(**more: str) -> dict[str, str]:
    """The process's environment, with the packages of this tree first."""
    path = os.pathsep.join([*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path} | more


def write_commands(folder: Path, **commands: object) -> str:
    """Write ``headwater``, ``python`` and other commands to ``folder``; return the PATH that finds them first."""
    folder.mkdir()
    for name, command in {"headwater": " ".join(HEADWATER), "python": sys.executable, **commands}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def headwater(*arguments: object, data: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end."""
    return subprocess.run(
        HEADWATER + [str(argument) for argument in arguments],
        input=data,
        capture_output=True,
        env=environment(**more),
        check=False,
        timeout=PATIENCE_S,
    )


def ended(*arguments: object) -> object:
    """Run the command in this process to its end, and return its exit code: for rows of wrong command lines."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def headwater_here(*arguments: object, data: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """As ``headwater``, in this process: for many commands in a row, because a process starts in half a second."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8")),
        mock.patch.dict(os.environ, more),
    ):
        code = ended(*arguments)
    return subprocess.CompletedProcess(
        [str(word) for word in arguments],
        int(str(code)),
        *(stream.buffer.getvalue() for stream in (out, errors)),
    )


def quick_bench(name: str, clients: Iterable[str]) -> dict[str, Any]:
    """What ``./run bench`` finds out in one short round."""
    command = [sys.executable, "-m", "tools.bench", name, "--quick", "--json"]
    command += [word for client in clients for word in ("--client", client)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)[name]
    return figures


class Running:
    """A ``headwater`` that runs; what it says on standard error is in ``errors``."""

    def __init__(
        self, arguments: list[str], directory: Path, command: Sequence[str] = HEADWATER, **options: Any
    ) -> None:
        self._errors = directory / f"stderr-{time.monotonic_ns()}.txt"
        self._out = directory / f"stdout-{time.monotonic_ns()}.txt"
        with self._errors.open("wb") as stderr, self._out.open("wb") as stdout:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=stdout, stderr=stderr, env=environment(), **options
            )

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    @property
    def output(self) -> bytes:
        return self._out.read_bytes()

    def wait_for(self, text: str, seconds: float = PATIENCE_S) -> None:
        """Wait until standard error has ``text``."""
        self.wait_for_count(text, 1, seconds)

    def wait_for_count(self, text: str, count: int, seconds: float = PATIENCE_S) -> None:
        """Wait until standard error has ``text`` so many times."""
        deadline = time.monotonic() + seconds
        while self.errors.count(text) < count:
            assert time.monotonic() < deadline, f"{text!r} is not in:\n{self.errors}"
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.errors}"
            time.sleep(0.01)

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def limit_files(self, size: int) -> None:
        """Let no file of the process grow beyond ``size`` from now on, as on a full disk."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait: the exit code."""
        self.process.send_signal(how)
        return self.wait()


@contextlib.contextmanager
def running(*arguments: object, directory: Path, **options: Any) -> Iterator[Running]:
    """A ``headwater`` that runs, and is killed at the end if it still does."""
    command = Running([str(argument) for argument in arguments], directory, **options)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait()


@contextlib.contextmanager
def hub_at(directory: Path, *options: object) -> Iterator[int]:
    """A ``headwater hub``, by its port, which ends as it should."""
    with running("hub", *options, "--storage", directory / "hub.db", directory=directory) as process:
        process.wait_for("storage in")
        found = re.search(r"port (\d+)", process.errors)
        assert found is not None
        yield int(found[1])
        assert process.end() == 0
