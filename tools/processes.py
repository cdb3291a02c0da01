"""What a process and those that it has started cost: CPU time and memory, as Linux counts them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def below(pid: int) -> dict[int, str]:
    """Return the command lines of all processes that a process has started, directly or not, by their ids."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(_fields(path)[1]), []).append(int(path.parent.name))
        except OSError:
            continue
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


def _fields(path: Path) -> list[str]:
    """Return the fields of a `stat` behind the command's name."""
    return path.read_text().rpartition(")")[2].split()


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of processes and of their children that have ended, in s."""
    ticks = 0
    for pid in pids:
        try:
            # utime, stime, cutime, cstime
            ticks += sum(int(field) for field in _fields(Path(f"/proc/{pid}/stat"))[11:15])
        except OSError:
            continue
    return ticks / _TICKS


def peak_bytes(pids: Iterable[int]) -> int:
    """Return the largest resident set that any of these processes has had; 0 without any."""
    peak = 0
    for pid in pids:
        try:
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except OSError:
            continue
        if found:
            peak = max(peak, int(found[1]) << 10)
    return peak
