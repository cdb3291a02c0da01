"""Measure the gateway behind mosquitto with default settings, beside a subscriber that only writes and syncs.

`docs/benchmarks.md` describes the method. `measure` returns the figures, `tables` the tables.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headwater_host.capture import CaptureReader, list_blocks
from tools.bench.board import machine
from tools.bench.hubs import load
from tools.bench.hubs.servers import processor_seconds, syncs_per_second
from tools.bench.hubs.wires import SIZE, Mqtt
from tools.bench.report import Table
from tools.broker import HOST, Mosquitto
from tools.toolchain import CACHE, ROOT

#: mosquitto's defaults instead of the settings of ``Mosquitto`` for tests.
DEFAULTS = {"max_queued_messages": 1000, "set_tcp_nodelay": "false", "log_type": "notice"}
_BUSY_LOAD = 0.5
_QOS = (0, 1, 2)
#: Messages in a burst: at most as many as mosquitto queues for a subscriber without dropping any.
BURSTS = {"3.1.1": 400, "5.0": 2000}
#: Maximum seconds of a burst and of the end of a process.
_LONG_S = 60.0
#: Rate and budgets of the second table, per second; 0: no limit.
PACE = 1000
BUDGETS = (0, 200, 100, 50, 20, 5)
_DAY = 86400


@dataclass(frozen=True)
class Effort:
    """Rounds, bursts of each, and seconds at a steady rate for each budget."""

    rounds: int = 5
    bursts: int = 10
    seconds: float = 8.0


QUICK = Effort(rounds=1, bursts=1, seconds=0.3)

#: The figures of one cell, one for each round.
Rounds = list[float]


@dataclass
class Budget:
    """Costs of a budget of syncs at a steady rate: per second, per record, per message."""

    syncs: Rounds = field(default_factory=list)
    written: Rounds = field(default_factory=list)
    record: Rounds = field(default_factory=list)
    cpu: Rounds = field(default_factory=list)
    middle: Rounds = field(default_factory=list)
    slow: Rounds = field(default_factory=list)


@dataclass
class Figures:
    """By row and QoS: messages recorded per second, and milliseconds to the acknowledgement (median, 99 %). `budgets`
    are by syncs per second.
    """

    about: str = ""
    load: float = 0.0
    syncs: float = 0.0
    rates: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    middle: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    slow: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)


class GatewayError(Exception):
    """A started process does not behave as expected."""


class Process:
    """A process of this benchmark and its output."""

    def __init__(self, *arguments: object):
        path = os.pathsep.join(str(ROOT / folder) for folder in ("sdk", "ports/cpython", "ports/spark"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", *(str(argument) for argument in arguments)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self) -> str:
        """Stop it and return the rest of its output. Raises GatewayError."""
        self._process.send_signal(signal.SIGTERM)
        out, errors = self._process.communicate(timeout=_LONG_S)
        if self._process.returncode:
            raise GatewayError(errors)
        return out

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Recorder:
    """The subscriber that only writes and syncs."""

    def __init__(self, port: int, topic: str, qos: int, folder: Path, version: str):
        self._file = folder / "payloads"
        window = [RECEIVE_MAXIMUM] if version == "5.0" else []
        self.process = Process("tools.bench.gateways.recorder", port, topic, qos, self._file, *window)
        if self.process.line() != "subscribed\n":
            raise GatewayError("the subscriber could not subscribe")

    def recorded(self) -> int:
        return self._file.stat().st_size // SIZE

    def times(self) -> list[int]:
        """Stop it and return the receive time of each message in ns."""
        return [int(time) for time in self.process.end().split()]


class Gateway:
    """The gateway."""

    def __init__(self, port: int, topic: str, qos: int, folder: Path, version: str, *options: object):
        self.log = folder / "log"
        config = folder / "gateway.toml"
        config.write_text(
            f'capture = "{self.log}"\n[[broker]]\nhost = "{HOST}"\nport = {port}\n'
            f'topics = ["{topic}:{qos}"]\nprotocol = "{version}"\nreceive_maximum = {RECEIVE_MAXIMUM}\n'
        )
        self.process = Process("headwater_host", "gateway", "--config", config, *options)
        self._wait("subscribed")

    def _wait(self, text: str) -> None:
        errors = self.process._process.stderr
        assert errors is not None
        for line in errors:
            if text in line:
                return
        raise GatewayError("the gateway could not subscribe")

    def recorded(self) -> int:
        try:
            return sum(block.header.records for block in list_blocks(self.log))
        except FileNotFoundError:
            return 0

    def times(self) -> list[int]:
        """Stop it and return the receive time of each message in ns."""
        self.process.end()
        return [record.time_ns for record in CaptureReader(self.log).records()]


#: Label, kind and version of MQTT.
ROWS: dict[str, tuple[str, type[_Recorder | Gateway], str]] = {
    "subscriber-3.1.1": ("writes and syncs only, 3.1.1", _Recorder, "3.1.1"),
    "gateway-3.1.1": ("headwater gateway, 3.1.1", Gateway, "3.1.1"),
    "subscriber-5.0": ("writes and syncs only, 5.0", _Recorder, "5.0"),
    "gateway-5.0": ("headwater gateway, 5.0", Gateway, "5.0"),
}
#: Receive Maximum at MQTT 5.0, the gateway's default.
RECEIVE_MAXIMUM = 4096
#: The row that others are compared with.
_FLOORS = {"gateway-3.1.1": "subscriber-3.1.1", "gateway-5.0": "subscriber-5.0"}
#: The row for which budgets are measured.
_BUDGETED = "gateway-5.0"


def _until_recorded(receiver: _Recorder | Gateway, count: int, broker: Mosquitto) -> None:
    deadline = time.monotonic() + _LONG_S
    while (recorded := receiver.recorded()) < count:
        if time.monotonic() > deadline:
            said = broker.log_text()[-200:]
            raise GatewayError(
                f"only {recorded} of {count} messages are recorded after {_LONG_S:.0f} s; {said}"
            )
        time.sleep(0.02)


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    # Not in /tmp, which may be in memory, unless TMPDIR is set.
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="bench-gateway-", dir=None if "TMPDIR" in os.environ else CACHE
    ) as name:
        yield Path(name)


@contextlib.contextmanager
def _receiving(
    row: str, qos: int, *options: object, tapped: bool = False
) -> Iterator[tuple[Mosquitto, _Recorder | Gateway, Process | None]]:
    """Run a broker, a receiver, and optionally a tap between them."""
    _, kind, version = ROWS[row]
    with _place() as folder, contextlib.ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(folder / "broker", settings=DEFAULTS))
        port, tap = broker.port, None
        if tapped:
            tap = Process("tools.bench.gateways.tap", broker.port)
            stack.callback(tap.kill)
            port = int(tap.line())
        receiver = kind(port, Mqtt(broker.port, qos, "x").topic(0), qos, folder, version, *options)
        stack.callback(receiver.process.kill)
        yield broker, receiver, tap


def _bursts(figures: Figures, row: str, qos: int, bursts: int) -> None:
    """Measure bursts: at QoS 0 until all messages arrived, otherwise through a tap until all are acknowledged."""
    size = BURSTS[ROWS[row][2] if qos else "5.0"]
    with _receiving(row, qos, tapped=qos > 0) as (broker, receiver, tap):
        wire = Mqtt(broker.port, qos, "x")
        for number in range(1, bursts + 1):
            load.burst(wire, size)
            _until_recorded(receiver, number * size, broker)
        came = [(time / 1e9, time / 1e9) for time in receiver.times()]
        if tap is not None:
            came = _tapped(tap)
            middle, slow = _percentiles(came)
            _note(figures.middle, row, qos, middle)
            _note(figures.slow, row, qos, slow)
    took = sum(came[at + size - 1][1] - came[at][0] for at in range(0, len(came), size))
    _note(figures.rates, row, qos, size * bursts / took)


def _tapped(tap: Process) -> list[tuple[float, float]]:
    lines = (line.split() for line in tap.end().splitlines())
    return [(float(passed), float(acknowledged)) for passed, acknowledged in lines]


def _percentiles(came: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the milliseconds to the acknowledgement: median and 99 %."""
    times = sorted((acknowledged - passed) * 1000 for passed, acknowledged in came)
    return times[len(times) // 2], times[len(times) * 99 // 100]


def _note(cells: dict[str, dict[str, Rounds]], row: str, qos: int, value: float) -> None:
    cells.setdefault(row, {}).setdefault(str(qos), []).append(value)


def _bytes_written(folder: Path) -> int:
    """Return the bytes written by the device of `folder`, or 0 if the kernel does not count them."""
    device = folder.stat().st_dev
    try:
        stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
    except OSError:
        return 0
    return int(stat.split()[6]) * 512


def _budget(figures: Figures, rate: int, seconds: float) -> None:
    options = ("--syncs-per-second", rate, "--sync-credit", 1)
    count = int(PACE * seconds)
    with _receiving(_BUDGETED, 1, *options, tapped=True) as (broker, gateway, tap):
        assert isinstance(gateway, Gateway)
        os.sync()
        wire = Mqtt(broker.port, 1, "x")
        used, written = processor_seconds(gateway.process.pid), _bytes_written(gateway.log)
        began = time.perf_counter()
        load.steady(wire, PACE, count)
        _until_recorded(gateway, count, broker)
        took = time.perf_counter() - began
        used = processor_seconds(gateway.process.pid) - used
        os.sync()
        written = _bytes_written(gateway.log) - written
        gateway.process.end()
        blocks = list_blocks(gateway.log)
        assert tap is not None
        middle, slow = _percentiles(_tapped(tap))
    found = figures.budgets.setdefault(str(rate), Budget())
    found.syncs.append(len(blocks) / took)
    found.written.append(written / took)
    found.record.append(sum(block.length for block in blocks) / count)
    found.cpu.append(used / count)
    found.middle.append(middle)
    found.slow.append(slow)


def measure(
    effort: Effort, wanted: Iterable[str] = tuple(ROWS), say: Callable[[str], object] = print
) -> Figures:
    """Measure the rows `wanted` (keys of `ROWS`) and the budgets of syncs. Raises BrokerError and GatewayError."""
    busy = os.getloadavg()[0]
    if busy > _BUSY_LOAD:
        say(f"this machine is busy (load {busy:.1f}): the rates below are unreliable")
    about = f"CPython {platform.python_version()}; {machine()}; {time.strftime('%Y-%m-%d')}"
    figures = Figures(f"{about}; rounds: {effort.rounds}", busy)
    with _place() as folder:
        figures.syncs = syncs_per_second(folder)
    rows = [row for row in ROWS if row in set(wanted)]
    for number in range(effort.rounds):
        for qos in _QOS:
            for row in rows:
                _bursts(figures, row, qos, effort.bursts)
        for rate in BUDGETS if _BUDGETED in rows else ():
            _budget(figures, rate, effort.seconds)
        say(f"round {number + 1} of {effort.rounds}")
    return figures


# -- tables ------------------------------------------------------------------------------------------------------------


def _rate(figures: Figures, row: str, qos: str) -> str:
    rates = figures.rates[row][qos]
    cell = f"{statistics.median(rates) / 1000:.1f}k"
    floor = figures.rates.get(_FLOORS.get(row, ""), {}).get(qos)
    if floor is None:
        return f"{cell} ({min(rates) / 1000:.1f}k–{max(rates) / 1000:.1f}k)"
    ratios = [rate / of for rate, of in zip(rates, floor, strict=True)]
    return f"{cell} **{statistics.median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f})"


def _times(figures: Figures, row: str, qos: str) -> str:
    return ", ".join(f"{statistics.median(of[row][qos]):.2f}" for of in (figures.middle, figures.slow))


def tables(figures: Figures) -> list[Table]:
    """Return the tables of bursts and of budgets."""
    notes = [f"{figures.about}. This disk syncs {figures.syncs / 1000:.1f}k times a second."]
    if figures.load > _BUSY_LOAD:
        notes.append(f"This machine was busy (load {figures.load:.1f}): the rates are unreliable.")
    bursts = Table(
        "Bursts from mosquitto: messages recorded per second, ratio to the subscriber (spread); "
        "milliseconds to the acknowledgement, median and 99 %",
        ["", "QoS 0", "QoS 1", "QoS 2", "ms, QoS 1", "ms, QoS 2"],
        [
            [
                ROWS[row][0],
                *(_rate(figures, row, str(qos)) for qos in _QOS),
                *(_times(figures, row, str(qos)) for qos in (1, 2)),
            ]
            for row in figures.rates
        ],
        notes,
    )
    if not figures.budgets:
        return [bursts]
    middle = statistics.median
    budgets = Table(
        f"Budget of syncs, {PACE} messages/s at QoS 1, credit spent",
        [
            "`syncs_per_second`",
            "syncs/s",
            "GB a day that the disk writes",
            "log, bytes per record (GB a day)",
            "CPU time, µs per message",
            "ms to the acknowledgement, median, 99 %",
        ],
        [
            [
                rate if rate != "0" else "no limit",
                f"{middle(found.syncs):.0f}",
                f"{middle(found.written) * _DAY / 1e9:.1f}",
                f"{middle(found.record):.0f} ({middle(found.record) * PACE * _DAY / 1e9:.1f})",
                f"{middle(found.cpu) * 1e6:.0f}",
                f"{middle(found.middle):.1f}, {middle(found.slow):.1f}",
            ]
            for rate, found in figures.budgets.items()
        ],
    )
    return [bursts, budgets]
