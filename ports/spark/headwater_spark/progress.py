"""Report the rows that tasks have done, for the display of a run's progress.

Tasks report within their parts: each process of Spark's workers writes the rows that it has done into a file of its
own, in a folder of the driver. On other machines there is no such folder, and only completed tasks count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class _Report:
    """The rows that this process has done in a step."""

    def __init__(self) -> None:
        self.folder = ""
        self._fd = -1
        self._rows = 0.0

    def begin(self, folder: str) -> None:
        """Begin to report to a folder, or continue."""
        if folder == self.folder:
            return
        if self._fd >= 0:
            os.close(self._fd)
        self.folder, self._rows = folder, 0.0
        try:
            self._fd = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            self._fd = -1  # the driver is on another machine

    def add(self, rows: float) -> None:
        """Add rows."""
        self._rows += rows
        if self._fd >= 0:
            with suppress(OSError):  # a full disk
                os.pwrite(self._fd, b"%20d" % self._rows, 0)


_report = _Report()


def reporting(folder: str, work: Callable[[int], T], number: int) -> T:
    """Return `work(number)`, whose rows (`add_rows`) are reported to `folder`."""
    _report.begin(folder)
    return work(number)


def add_rows(rows: float) -> None:
    """Report further rows that the running task has done."""
    _report.add(rows)


def rows_in(folder: str) -> int:
    """Return how many rows all processes have reported to a folder."""
    return sum(int(path.read_bytes() or 0) for path in Path(folder).iterdir())
