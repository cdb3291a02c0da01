"""Show the progress of steps that take longer than two seconds: share, rows, bytes, rate and time left.

On a terminal one line is rewritten; otherwise a line is printed every few seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

#: Returns the completed share of a step, from 0 to 1.
Share = Callable[[], float]


class Step(NamedTuple):
    """A step of a run: its name, and its rows and bytes if they are known."""

    what: str
    rows: int = 0
    size: int = 0


class Display:
    """Show steps on a stream.

    A step is shown after `delay` seconds, then every `every` seconds: by default .5 on a terminal and 5 elsewhere.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        delay: float = 2.0,
        every: float | None = None,
        prefix: str = "pipeline: ",
    ):
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._delay = delay
        self._every = every if every is not None else 0.5 if self._terminal else 5.0
        self._prefix = prefix

    @contextmanager
    def step(self, step: Step, share: Share, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Show a step while the block runs.

        `share`, and `detail`, which returns text after the step's name, are called in another thread; their errors end
        the display.
        """
        ended = threading.Event()
        shown = threading.Thread(target=self._show, args=(step, share, detail, ended), daemon=True)
        shown.start()
        try:
            yield
        finally:
            ended.set()
            shown.join()

    def say(self, text: str) -> None:
        """Print a line, in place of the step that a terminal shows."""
        self._write(f"\r{text}\x1b[K\n" if self._terminal else f"{text}\n")

    def _show(self, step: Step, share: Share, detail: Callable[[], str], ended: threading.Event) -> None:
        began = time.monotonic()
        wait = self._delay
        while not ended.wait(wait):
            wait = self._every
            try:
                named = step._replace(what=step.what + detail())
                text = describe(named, share(), time.monotonic() - began)
            except Exception:
                break  # the step goes on without a display
            # On a terminal, the cursor goes back, and what a longer line has left is erased.
            self._write(f"\r{self._prefix}{text}\x1b[K" if self._terminal else f"{self._prefix}{text}\n")
        if self._terminal and wait == self._every:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def describe(step: Step, share: float, seconds: float) -> str:
    """Describe a step of which a share was completed in some seconds."""
    share = min(max(share, 0.0), 1.0)
    parts = [f"{step.what}: {100 * share:.0f} %"]
    for total, unit in ((step.rows, " rows"), (step.size, "B")):
        if total:
            parts.append(f"{_amount(share * total)}{unit} of {_amount(total)}{unit}")
    rate, unit = (step.rows, " rows") if step.rows else (step.size, "B")
    if share and rate:
        parts.append(f"{_amount(share * rate / seconds)}{unit}/s")
    if share:
        parts.append(f"{_length(seconds / share - seconds)} left")
    return ", ".join(parts)


def _amount(count: float) -> str:
    """Return a count with three digits, followed by a space and its unit's prefix."""
    for prefix, of in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= of:
            return f"{count / of:.3g} {prefix}"
    return f"{count:.0f}"


def _length(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
