"""Measure MQTT clients on CPython against mosquitto: messages per second and CPU time per message.

`docs/benchmarks.md` describes the method. The clients are in `hosts`; each measurement is a process. `measure`
returns the figures, `tables` the tables.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tools import toolchain
from tools.bench.board import machine
from tools.bench.floods import BrokerFlood, CannedFlood, FloodError
from tools.bench.hosts import sync
from tools.bench.hosts.job import SIZE, Job
from tools.bench.report import Table
from tools.broker import Mosquitto
from tools.toolchain import CACHE, ROOT

_TIMEOUT_S = 120
_BUSY_LOAD = 0.5
_COUNTER = b"$SYS/broker/publish/bytes/received"


@dataclass(frozen=True)
class Client:
    """One row: its distribution, and the QoS levels at which it publishes."""

    label: str
    distribution: str = ""
    qos: Sequence[int] = (0, 1, 2)


CLIENTS: Mapping[str, Client] = {
    "floor": Client("raw socket (floor)"),
    "blocks": Client("raw socket, 64 messages a write", qos=(0,)),
    "headwater": Client("headwater"),
    "pymosquitto": Client("pymosquitto (C library)", "pymosquitto"),
    "mqttium": Client("mqttium", "mqttium"),
    "gmqtt": Client("gmqtt", "gmqtt"),
    "chumicro": Client("chumicro-mqtt", "chumicro-mqtt", qos=(0, 1)),
    "paho": Client("paho-mqtt", "paho-mqtt"),
    "aiomqtt": Client("aiomqtt", "aiomqtt"),
    "amqtt": Client("amqtt", "amqtt"),
}


@dataclass(frozen=True)
class Task:
    """One column."""

    key: str
    title: str
    task: str
    qos: int
    canned: bool = False

    def done_by(self, name: str) -> bool:
        """Whether a client takes part."""
        return self.qos in CLIENTS[name].qos and (name != "blocks" or self.task == "publish")


TASKS: Sequence[Task] = (
    Task("publish 0", "pub Q0", "publish", 0),
    Task("publish 1", "pub Q1", "publish", 1),
    Task("publish 2", "pub Q2", "publish", 2),
    Task("receive 0", "rx Q0", "receive", 0),
    Task("receive 1", "rx Q1", "receive", 1),
    Task("receive 0 canned", "rx Q0, canned peer", "receive", 0, canned=True),
    Task("receive 1 canned", "rx Q1, canned peer", "receive", 1, canned=True),
)


@dataclass(frozen=True)
class Effort:
    """Rounds, milliseconds to publish for, messages to receive."""

    rounds: int = 7
    ms: int = 250
    messages: int = 20_000


QUICK = Effort(rounds=1, ms=30, messages=500)


@dataclass
class Figures:
    """`rates[task][client]` in messages/s and `cpu[task][client]` in µs of CPU time per message, for each round."""

    interpreter: str = ""
    machine: str = ""
    date: str = ""
    load: float = 0.0
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    cpu: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def ratios(self, task: str, client: str) -> list[float]:
        """Return a client's rates divided by the floor's of the same round."""
        floor = self.rates[task]["floor"]
        return [rate / of for rate, of in zip(self.rates[task][client], floor, strict=True)]


class ClientError(Exception):
    """A measurement failed; the text is the output of the client's process."""


class Counter:
    """The number of messages that the broker has read, from its count of payload bytes, updated every second."""

    def __init__(self, port: int) -> None:
        self._socket = sync.join(port, b"bench-counter")
        sync.subscribe(self._socket, 0, _COUNTER)
        self._rest = b""
        self.value = 0

    def close(self) -> None:
        self._socket.close()

    def expect(self, value: int) -> None:
        """Wait until the broker counts `value`. Raises ClientError if it counts more, or too few in time."""
        deadline = time.monotonic() + 5
        while self.value < value:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            self._rest += sync.some(self._socket)
            while len(self._rest) > 1 and len(self._rest) >= 2 + self._rest[1]:
                body, self._rest = self._rest[2 : 2 + self._rest[1]], self._rest[2 + self._rest[1] :]
                self.value = int(body[2 + len(_COUNTER) :]) // SIZE
        if self.value != value:
            raise ClientError(f"the broker has read {self.value} messages; the client reports {value}")


def installed(client: Client) -> str:
    """Return the client's version, or '' if it is not installed."""
    found = metadata.distributions(name=client.distribution, path=[str(CACHE / "peers"), *sys.path])
    return next((distribution.version for distribution in found), "")


class _Run:
    def __init__(self, effort: Effort, port: int, counter: Counter, cpu: int) -> None:
        self.effort = effort
        self.port = port
        self.cpu = cpu
        self.counter = counter
        self.published = counter.value

    def measure(self, name: str, task: Task) -> dict[str, Any]:
        """Do one task with one client; what it claims is held against what the broker counts."""
        with contextlib.ExitStack() as stack:
            flood = None
            if task.task == "receive":
                work = task.qos, self.effort.messages
                flood = stack.enter_context(
                    contextlib.closing(CannedFlood(*work) if task.canned else BrokerFlood(self.port, *work))
                )
            result = self._result(name, task, flood)
        if not task.canned:
            self.published += result["messages"]
        try:
            self.counter.expect(self.published)
        except ClientError as error:
            raise ClientError(f"{name}, {task.title}: {error}") from None
        return result

    def _result(self, name: str, task: Task, flood: BrokerFlood | CannedFlood | None) -> dict[str, Any]:
        effort = self.effort
        port = flood.port if flood else self.port
        job = Job(name, task.task, task.qos, port, effort.ms, effort.messages, self.cpu)
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.hosts", json.dumps(asdict(job))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            if flood and process.stdout.readline() == "ready\n":
                flood.start()
            output, problems = process.communicate(timeout=_TIMEOUT_S)
            result: dict[str, Any] = json.loads(output.removeprefix("ready\n"))
        except (subprocess.TimeoutExpired, ValueError, FloodError) as error:
            process.kill()
            output, problems = process.communicate()
            raise ClientError(f"{name}, {task.title}:\n{output}{problems}{error}") from None
        return result


def measure(
    effort: Effort, wanted: Sequence[str] = tuple(CLIENTS), say: Callable[[str], object] = print
) -> Figures:
    """Measure the clients `wanted` (keys of `CLIENTS`); those that are not installed are named and skipped.

    Raises BrokerError (no mosquitto) and ClientError.
    """
    before = os.sched_getaffinity(0)
    # The client gets the first processor; the broker and its publisher the last.
    first, last = min(before), max(before)
    load = os.getloadavg()[0]
    if load > _BUSY_LOAD:
        say(f"this machine is busy (load {load:.1f}): the rates below are unreliable")
    version = platform.python_version()
    figures = Figures(f"CPython {version}", machine(), time.strftime("%Y-%m-%d"), load)
    for name in dict.fromkeys(["floor", *wanted]):
        client = CLIENTS[name]
        found = installed(client) if client.distribution else ""
        if client.distribution and not found:
            figures.missing.append(f"{client.label} is not installed: ./run bench installs it")
            say(figures.missing[-1])
        else:
            figures.labels[name] = f"{client.label} {found}".strip()
    os.sched_setaffinity(0, {last})
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-bench-")))
            settings = {"log_type": "error", "sys_interval": 1}
            broker = stack.enter_context(Mosquitto(folder, settings=settings))
            counter = stack.enter_context(contextlib.closing(Counter(broker.port)))
            figures.interpreter += f", mosquitto {_mosquitto()}"
            run = _Run(effort, broker.port, counter, first)
            for i in range(effort.rounds):
                _round(run, figures, i)
                say(f"round {i + 1} of {effort.rounds}")
        return figures
    finally:
        os.sched_setaffinity(0, before)


def _round(run: _Run, figures: Figures, i: int) -> None:
    for task in TASKS:
        names = [name for name in figures.labels if task.done_by(name)]
        # The order changes, so that no client always follows the same one.
        random.Random(i).shuffle(names)
        for name in names:
            result = run.measure(name, task)
            rates = figures.rates.setdefault(task.key, {}).setdefault(name, [])
            rates.append(result["messages"] / result["seconds"])
            used = figures.cpu.setdefault(task.key, {}).setdefault(name, [])
            used.append(result["cpu_seconds"] / result["messages"] * 1e6)


def _mosquitto() -> str:
    program = toolchain.find("mosquitto")
    done = subprocess.run([str(program), "-h"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\S+)", done.stdout)
    return found[1] if found else "?"


def _rate_cell(figures: Figures, task: str, name: str) -> str:
    rates = figures.rates.get(task, {}).get(name)
    if rates is None:
        return "–"
    ratios = sorted(figures.ratios(task, name))
    cell = f"{statistics.median(rates) / 1000:.1f}k"
    if name == "floor":
        return f"{cell} ({min(rates) / 1000:.0f}k–{max(rates) / 1000:.0f}k)"
    return f"{cell} **{statistics.median(ratios):.2f}** ({ratios[0]:.2f}–{ratios[-1]:.2f})"


def _cpu_cell(figures: Figures, task: str, name: str) -> str:
    used = figures.cpu.get(task, {}).get(name)
    return "–" if used is None else f"{statistics.median(used):.1f}"


def _table(figures: Figures, title: str, cell: Callable[[Figures, str, str], str]) -> Table:
    table = Table(title, ["", *(task.title for task in TASKS)])
    for name, label in figures.labels.items():
        table.rows.append([label, *(cell(figures, task.key, name) for task in TASKS)])
    return table


def tables(figures: Figures) -> list[Table]:
    """Return the figures as two tables. The first names the machine and the date."""
    rates = _table(figures, "Messages/s, ratio to the floor (spread)", _rate_cell)
    rates.notes = (
        f"{figures.interpreter}; {figures.machine}; {figures.date}.",
        *(f"Left out: {reason}." for reason in figures.missing),
    )
    return [rates, _table(figures, "CPU time of the client, µs per message", _cpu_cell)]
