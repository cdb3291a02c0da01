"""Measure MQTT and FMQ clients on MicroPython (unix build, 64 bits): heap, code size, messages per second.

`docs/benchmarks.md` describes the method. Code that runs on MicroPython is in `device`; each measurement is a
process. `measure` returns the figures, `tables` the tables.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import toolchain
from tools.bench import canned
from tools.bench.clients import (
    CLIENTS,
    DEVICE,
    HEAP_TASKS,
    QUOTED,
    TASKS,
    MissingError,
    Task,
    clients_of,
    compiled,
    label_of,
)
from tools.bench.dialects import MQTT
from tools.bench.peers import Peers
from tools.bench.report import Table

# Twice the heap of a Pico W, because objects on 64 bits are twice as large.
_HEAP = "384K"
# Room for all messages without a collection.
_HEAP_UNCOLLECTED = "64M"
_TIMEOUT_S = 120
_BUSY_LOAD = 0.5


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds, milliseconds per task, messages queued or counted for heap."""

    rounds: int = 7
    ms: int = 250
    queued: int = 6000
    messages: int = 64


QUICK = Effort(rounds=1, ms=30, queued=1200, messages=64)


@dataclass
class Figures:
    """`rates[task][client]` in messages/s for each round; `heap_per_message[task][client]` in bytes; `size[client]`:
    bytes of .mpy files and of heap once connected.
    """

    interpreter: str = ""
    machine: str = ""
    date: str = ""
    load: float = 0.0
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    heap_per_message: dict[str, dict[str, float]] = field(default_factory=dict)
    size: dict[str, dict[str, int]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def ratios(self, task: str, client: str) -> list[float]:
        """Return a client's rates divided by the floor's of the same round."""
        floor = self.rates[task]["floor"]
        return [rate / of for rate, of in zip(self.rates[task][client], floor, strict=True)]


def _micropython() -> Path:
    program = toolchain.find("micropython")
    if program is None:
        raise FileNotFoundError(f"micropython is missing: {toolchain.TOOLS['micropython'].get}")
    return program


class DeviceError(Exception):
    """A measurement failed on MicroPython; the text is its output."""


def device(name: str, job: Mapping[str, object], heap: str = _HEAP) -> dict[str, Any]:
    """Run one measurement; `device/run.py` describes `job`."""
    path = [DEVICE, *compiled(CLIENTS[name])]
    words = [str(_micropython()), "-X", f"heapsize={heap}", str(DEVICE / "run.py")]
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    environment["MICROPYPATH"] = ":".join([*map(str, path), ".frozen"])
    done = subprocess.run(
        [*words, json.dumps({"client": name, **job})],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    try:
        return dict(json.loads(done.stdout.strip().rpartition("\n")[2]))
    except ValueError:
        raise DeviceError(f"{name}, {dict(job)}:\n{done.stdout}{done.stderr}") from None


class _Run:
    """One run of the benchmark and its figures so far."""

    def __init__(self, effort: Effort, peers: Peers, say: Callable[[str], object]) -> None:
        self.effort = effort
        self.peers = peers
        self.say = say
        self.figures = Figures()

    def job(self, name: str, task: Task, measure: str) -> dict[str, Any]:
        """Run one task with one client."""
        queued = self.effort.queued if task.is_queued else 0
        peer = task.canned or CLIENTS[name].broker
        if queued:
            self.peers.queue(peer, task.qos, queued)
        job = {
            "task": task.task,
            "measure": measure,
            "qos": task.qos,
            "window": task.window,
            "host": canned.HOST,
            "port": self.peers.port(peer),
            "queued": queued,
            "ms": self.effort.ms,
            "messages": self.effort.messages,
        }
        result = device(name, job, _HEAP_UNCOLLECTED if measure == "heap" else _HEAP)
        if task.canned:
            count = self.peers.bytes_read(peer)
            wrong = count != result.get("sent", 0) * len(CLIENTS[name].dialect.publish(0, 0))
            if task.canned == "sink" and measure == "rate" and wrong:
                raise DeviceError(
                    f"{name} reports {result['sent']} sent messages; the peer read {count} bytes"
                )
        return result

    def sizes(self, names: Sequence[str]) -> None:
        task = next(task for task in TASKS if task.key == "publish 1")
        for name in names:
            result = self.job(name, task, "size")
            files = [Path(file) for file in result["files"] if file.endswith(".mpy")]
            self.figures.size[name] = {
                "mpy": sum(file.stat().st_size for file in files),
                "heap": result["heap"],
            }

    def heaps(self, wanted: Sequence[str]) -> None:
        for task in TASKS:
            found = self.figures.heap_per_message[task.key] = {}
            for name in clients_of(task, wanted):
                if CLIENTS[name].is_floor:
                    continue
                result = self.job(name, task, "heap")
                found[name] = result["heap"] / result["messages"]
            self.say(f"heap, {task.task} {task.title}")

    def rates(self, wanted: Sequence[str]) -> None:
        for task in TASKS:
            self.figures.rates[task.key] = {name: [] for name in clients_of(task, wanted)}
        for i in range(self.effort.rounds):
            for task in TASKS:
                found = self.figures.rates[task.key]
                names = list(found)
                # The order changes, so that no client always follows the same one.
                random.Random(i).shuffle(names)
                for name in names:
                    result = self.job(name, task, "rate")
                    found[name].append(result["messages"] * 1e6 / result["us"])
            self.say(f"round {i + 1} of {self.effort.rounds}")


def interpreter() -> str:
    """Return the name and version of the measured MicroPython."""
    code = "import sys; print(sys.version.split('; ')[1].split(' on ')[0], '.'.join(map(str, sys.implementation[1])))"
    done = subprocess.run([str(_micropython()), "-c", code], capture_output=True, text=True, check=True)
    name, build, version = done.stdout.split()
    return f"{name} {version.replace('..', '.').strip('.')} ({build}), unix build, 64 bit"


def machine() -> str:
    """Describe this machine in neutral words."""
    return f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} {platform.system()}"


def measure(
    effort: Effort, wanted: Sequence[str] = tuple(CLIENTS), say: Callable[[str], object] = print
) -> Figures:
    """Measure the clients `wanted` (keys of `CLIENTS`); those that are not installed are named and skipped.

    Raises FileNotFoundError (no MicroPython), BrokerError (no mosquitto) and DeviceError.
    """
    before = os.sched_getaffinity(0)
    # MicroPython inherits the first processor; the peers get the last.
    first, last = min(before), max(before)
    load = os.getloadavg()[0]
    if load > _BUSY_LOAD:
        say(f"this machine is busy (load {load:.1f}): the rates below are unreliable")
    names, missing = [], []
    for name in ["floor", *(name for name in wanted if name != "floor")]:
        try:
            compiled(CLIENTS[name])
            names.append(name)
        except MissingError as reason:
            missing.append(str(reason))
            say(str(reason))
    os.sched_setaffinity(0, {first})
    try:
        with Peers(last) as peers:
            run = _Run(effort, peers, say)
            run.figures = Figures(interpreter(), machine(), time.strftime("%Y-%m-%d"), load, missing=missing)
            run.figures.labels = {name: label_of(name) for name in names}
            run.sizes(names)
            run.heaps(names)
            run.rates(names)
            return run.figures
    finally:
        os.sched_setaffinity(0, before)


# ---- the tables ------------------------------------------------------------------------------------------------------


def _thousands(rate: float) -> str:
    return (
        f"{rate / 1000:.0f}k" if rate >= 10000 else f"{rate / 1000:.1f}k" if rate >= 1000 else f"{rate:.0f}"
    )


def _ratio(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _rate_cell(figures: Figures, task: str, name: str) -> str:
    rates = figures.rates[task].get(name)
    if rates is None:
        return "–"
    ratios = sorted(figures.ratios(task, name))
    cell = _thousands(statistics.median(rates))
    if name == "floor":
        spread = f"{_thousands(min(rates))}–{_thousands(max(rates))}"
        return f"{cell} ({spread})"
    return f"{cell} **{_ratio(statistics.median(ratios))}** ({_ratio(ratios[0])}–{_ratio(ratios[-1])})"


def _rate_table(figures: Figures, kind: str, title: str) -> Table:
    tasks = [task for task in TASKS if task.task == kind]
    table = Table(title, ["messages/s, ratio to the floor (spread)", *(task.title for task in tasks)])
    for name, label in figures.labels.items():
        if CLIENTS[name].dialect is not MQTT:
            continue
        cells = [_rate_cell(figures, task.key, name) for task in tasks]
        if any(cell != "–" for cell in cells):
            table.rows.append([label, *cells])
    quoted = [_ratio(QUOTED.ratio[task.key]) if task.key in QUOTED.ratio else "–" for task in tasks]
    table.rows.append([QUOTED.label, *quoted])
    return table


def _fmq_table(figures: Figures) -> Table:
    """Return a row for each task with MQTT and FMQ; with a broker and a hub, the servers differ as well."""
    table = Table("FMQ beside MQTT, both headwater's", ["messages/s, ratio (spread)", "peers", "MQTT", "FMQ"])
    for task in TASKS:
        mqtt, fmq = (figures.rates[task.key].get(name) for name in ("headwater", "fmq"))
        if mqtt and fmq:
            of = sorted(one / other for one, other in zip(fmq, mqtt, strict=True))
            spread = f"**{_ratio(statistics.median(of))}** ({_ratio(of[0])}–{_ratio(of[-1])})"
            rates = [_thousands(statistics.median(rates)) for rates in (mqtt, fmq)]
            peers = "canned" if task.canned else "mosquitto; hub"
            what = f"{task.task}, {task.title.partition(', canned')[0].partition(', mosquitto')[0]}"
            table.rows.append([what, peers, rates[0], f"{rates[1]} {spread}"])
    return table


def _memory_table(figures: Figures) -> Table:
    columns = [".mpy files", "heap held", *HEAP_TASKS.values()]
    table = Table(
        "Memory, in bytes: code, heap after import and connect, heap used by a message", ["", *columns]
    )
    for name, label in figures.labels.items():
        size = figures.size[name]
        cells = [str(size["mpy"]) if size["mpy"] else "–", str(size["heap"])]
        for task in HEAP_TASKS:
            used = figures.heap_per_message[task].get(name)
            cells.append("–" if used is None else f"{used:.0f}")
        table.rows.append([label, *cells])
    used_by_quoted = [str(QUOTED.heap_per_message.get(task, "–")) for task in HEAP_TASKS]
    table.rows.append([QUOTED.label, str(QUOTED.mpy), str(QUOTED.heap), *used_by_quoted])
    return table


def tables(figures: Figures) -> list[Table]:
    """Return the figures as tables, FMQ's if it was measured. The first names the machine and the date."""
    memory = _memory_table(figures)
    memory.notes = (
        f"{figures.interpreter}; {figures.machine}; {figures.date}.",
        *(f"Left out: {reason}." for reason in figures.missing),
    )
    fmq = _fmq_table(figures)
    return [
        memory,
        _rate_table(figures, "publish", "Publishing"),
        _rate_table(figures, "receive", "Receiving"),
        *([fmq] if fmq.rows else []),
    ]
