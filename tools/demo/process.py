"""The demo's processes: start, wait, progress."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tools.demo.boards import DemoBoard
from tools.virtual_board import BoardError


class DemoError(Exception):
    """A part of the demo failed."""


def say(text: str) -> None:
    """Print a line of progress with the seconds since the start."""
    print(f"demo {time.monotonic() - _began:6.1f} s  {text}", flush=True)


_began = time.monotonic()


class Headwater:
    """The command `headwater` in a process; `log` is the file with its output."""

    def __init__(self, log: Path, *arguments: str) -> None:
        """Start it."""
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headwater_host", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Headwater:
        """Return the running process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def text(self) -> str:
        """Return its output."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until its output contains `text`."""
        deadline = time.monotonic() + timeout
        while text not in self.text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the gateway did not print {text!r}; its output:\n{self.text()}")
            time.sleep(0.05)

    def hub_port(self) -> int:
        """Return the port of the gateway's hub."""
        found = re.search(r"listening on \S+, port (\d+)", self.text())
        if found is None:
            raise DemoError(f"the gateway did not print its hub's port; its output:\n{self.text()}")
        return int(found[1])

    def stop(self, timeout: float) -> None:
        """Ask it to stop, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout):
            raise DemoError(
                f"the gateway ended with status {self.process.returncode}; its output:\n{self.text()}"
            )


def wait_until_done(boards: dict[str, DemoBoard], timeout: float) -> None:
    """Wait until every board reports that all its messages are acknowledged."""
    deadline = time.monotonic() + timeout
    for name, board in boards.items():
        try:
            board.board.wait_for("done:", max(0.1, deadline - time.monotonic()))
        except BoardError as error:
            raise DemoError(f"{name} did not finish: {error}; its log:\n{board.board.log[-2000:]}") from None


@contextlib.contextmanager
def progress(boards: dict[str, DemoBoard]) -> Iterator[None]:
    """Print published and acknowledged messages of each board every two seconds."""
    stop = threading.Event()

    def report() -> None:
        while not stop.wait(2):
            records = {name: board.record() for name, board in boards.items()}
            say(
                "   ".join(
                    f"{name}: {len(record.sent)} sent, {len(record.acknowledged)} acknowledged"
                    for name, record in records.items()
                )
            )

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        stop.set()
        reporter.join()
