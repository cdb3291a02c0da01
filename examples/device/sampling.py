"""Sample what a board can measure of itself. Each sampler returns a dictionary of numbers.

Under MicroPython's unix build the figures come from /proc of the machine, on a microcontroller from the heap.
"""

import gc
import sys


def _first_line(path: str) -> "list[str]":
    with open(path) as f:
        line: str = f.readline()
        return line.split()


def _columns(path: str, skip: int) -> "list[list[str]]":
    with open(path) as f:
        return [line.replace(":", " ").split() for line in f.read().split("\n")[skip:] if line.strip()]


def sample_machine() -> "dict[str, float]":
    """Return load, memory (kB), CPU jiffies, disk sectors and network bytes of the machine."""
    load = _first_line("/proc/loadavg")
    memory = {row[0]: int(row[1]) for row in _columns("/proc/meminfo", 0)[:5]}
    cpu = _first_line("/proc/stat")
    values = {
        "load1": float(load[0]),
        "mem_total_kb": memory["MemTotal"],
        "mem_available_kb": memory["MemAvailable"],
        "cpu_user": int(cpu[1]),
        "cpu_system": int(cpu[3]),
        "cpu_idle": int(cpu[4]),
        "disk_read": 0,
        "disk_written": 0,
        "net_received": 0,
        "net_sent": 0,
    }
    for row in _columns("/proc/diskstats", 0):
        values["disk_read"] += int(row[5])
        values["disk_written"] += int(row[9])
    for row in _columns("/proc/net/dev", 2):
        values["net_received"] += int(row[1])
        values["net_sent"] += int(row[9])
    return values


def sample_board() -> "dict[str, float]":
    """Return the heap use of a microcontroller in bytes."""
    return {"heap_free": gc.mem_free(), "heap_used": gc.mem_alloc()}


sample = sample_machine if sys.platform == "linux" else sample_board
