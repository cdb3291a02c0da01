"""The hub beside other servers of messages: what it takes a second, what goes through, how long a message takes.

How it measures is told in ``docs/benchmarks.md``. ``measure`` gives the figures, ``tables`` what is printed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.board import machine
from tools.bench.hubs import alone, load
from tools.bench.hubs.servers import ROWS, SERVERS, processor_seconds, syncs_per_second
from tools.bench.hubs.wires import Fmq, Wire, WireError
from tools.bench.report import Table
from tools.broker import Broker, BrokerError
from tools.toolchain import CACHE

_BUSY_LOAD = 0.5
#: What the others are held against.
_REFERENCE = "amqtt"
_QOS = (0, 1, 2)
#: How often a measurement is tried.
_TRIES = 3
#: Messages a second, at which everybody is idle most of the time.
PACE = 200.0


@dataclass(frozen=True)
class Effort:
    """Rounds; seconds to publish for; messages of which the time is taken; whether each measurement has a server that
    nobody has spoken to yet. Of the hub alone: messages of a burst, messages that are stored, large messages at once
    and their size."""

    rounds: int = 5
    seconds: float = 1.0
    paced: int = 1000
    fresh: bool = True
    burst: int = 400_000
    stored: int = 900_000
    large: int = 50
    large_size: int = 16 << 20


QUICK = Effort(
    rounds=1, seconds=0.1, paced=40, fresh=False, burst=2000, stored=2000, large=2, large_size=1 << 20
)

#: Of one cell: a figure for each round.
Rounds = list[float]


@dataclass
class Figures:
    """By what is measured (``publish 1``), then by row: messages/s (``rates``), µs of the server's CPU time per
    message (``cpu``), milliseconds of the middle message and of the 99th of a hundred (``middle``, ``slow``)."""

    about: str = ""
    load: float = 0.0
    syncs: float = 0.0
    rates: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    cpu: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    middle: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    slow: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    #: Of the hub alone. By what another client does: milliseconds of the median answer, of the 99th of a hundred and of
    #: the last; messages/s of the burst; by what the hub has in memory: MiB, and what its page says.
    fairness: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    burst: Rounds = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    #: Why a measurement failed, and was done again.
    failures: list[str] = field(default_factory=list)


class HubError(Exception):
    """A measurement failed whenever it was tried."""


class _Servers:
    """Starts them, on the first processor; one that takes long only once, and all of them if they need not be
    ``fresh``."""

    def __init__(self, first: int, last: int, fresh: bool):
        self._first, self._last = first, last
        self._fresh = fresh
        self._kept: dict[str, Broker] = {}
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[Broker]:
        """A server. Raises BrokerError."""
        if name in self._kept:
            yield self._kept[name]
            return
        with contextlib.ExitStack() as stack:
            kept = SERVERS[name].slow or not self._fresh
            keeper = self._stack if kept else stack
            # Not in /tmp, which may be in memory.
            CACHE.mkdir(exist_ok=True)
            folder = keeper.enter_context(tempfile.TemporaryDirectory(prefix="bench-hub-", dir=CACHE))
            os.sched_setaffinity(0, {self._first})
            try:
                broker = keeper.enter_context(SERVERS[name].start(Path(folder)))
            finally:
                os.sched_setaffinity(0, {self._last})
            if kept:
                self._kept[name] = broker
            yield broker


def _paced(wire: Wire, effort: Effort) -> load.Outcome:
    return load.paced(wire, PACE, effort.paced)


TASKS: Mapping[str, Callable[[Wire, Effort], load.Outcome]] = {
    "publish": lambda wire, effort: load.publish(wire, effort.seconds),
    "through": lambda wire, effort: load.through(wire, effort.seconds),
    "paced": _paced,
}


def _outcome(
    servers: _Servers, figures: Figures, name: str, task: str, qos: int, effort: Effort
) -> tuple[load.Outcome, float]:
    """What came of a task, and the seconds of CPU time that the server took for it."""
    row = ROWS[name]
    for left in reversed(range(_TRIES)):
        with servers.running(row.server) as broker:
            wire = row.wire(broker.port, qos, f"{time.monotonic_ns():x}")
            before = processor_seconds(*broker.pids)
            try:
                outcome = TASKS[task](wire, effort)
                return outcome, processor_seconds(*broker.pids) - before
            except (WireError, OSError) as error:
                failure = f"{row.label}, {task} at QoS {qos}: {error}"
                if not left:
                    raise HubError(failure) from error
                figures.failures.append(failure)
    raise AssertionError("it is tried at least once")


def _measure(servers: _Servers, figures: Figures, name: str, task: str, qos: int, effort: Effort) -> None:
    outcome, used = _outcome(servers, figures, name, task, qos, effort)
    key = f"{task} {qos}"
    figures.rates.setdefault(key, {}).setdefault(name, []).append(outcome.rate)
    figures.cpu.setdefault(key, {}).setdefault(name, []).append(used / outcome.count * 1e6)
    if outcome.latencies:
        ordered = sorted(outcome.latencies)
        for cells, place in ((figures.middle, 50), (figures.slow, 99)):
            value = ordered[len(ordered) * place // 100] * 1000
            cells.setdefault(key, {}).setdefault(name, []).append(value)


def _alone(servers: _Servers, figures: Figures, effort: Effort) -> None:
    """What only the hub is asked, each time of one that nobody has spoken to yet."""
    with servers.running("headwater") as broker:
        found, rate = alone.burst(Fmq(broker.port, 1, f"{time.monotonic_ns():x}"), effort.burst)
    figures.burst.append(rate)
    for what, waits in found.items():
        waits.sort()
        times = tuple(waits[min(len(waits) * part // 100, len(waits) - 1)] * 1000 for part in (50, 99, 100))
        figures.fairness.setdefault(what, []).append((times[0], times[1], times[2]))
    memory: dict[str, tuple[float, float]] = {}
    with servers.running("headwater") as broker:
        wire = Fmq(broker.port, 1, f"{time.monotonic_ns():x}")
        memory[f"{effort.stored:,} messages stored"] = alone.stored(broker.pid, wire, effort.stored)
    with servers.running("headwater") as broker:
        memory |= alone.large(broker.pid, broker.port, effort.large, effort.large_size)
    for what, (took, says) in memory.items():
        figures.memory.setdefault(what, []).append((took / alone.MIB, says / alone.MIB))


def measure(
    effort: Effort, wanted: Iterable[str] = tuple(ROWS), say: Callable[[str], object] = print
) -> Figures:
    """Measure the rows of ``wanted`` (keys of ``ROWS``); those whose server is not here are left out and named.

    Raises HubError.
    """
    before = os.sched_getaffinity(0)
    # The server has the first processor; the load comes from the last.
    first, last = min(before), max(before)
    busy = os.getloadavg()[0]
    if busy > _BUSY_LOAD:
        say(f"this machine is busy (load {busy:.1f}): the rates below are worth little")
    date = time.strftime("%Y-%m-%d")
    about = f"CPython {platform.python_version()}; {machine()}; {date}; rounds: {effort.rounds}"
    figures = Figures(about, busy)
    servers = _Servers(first, last, effort.fresh)
    os.sched_setaffinity(0, {last})
    try:
        for name in dict.fromkeys([_REFERENCE, *wanted]):
            row = ROWS[name]
            try:
                with servers.running(row.server):
                    figures.labels[name] = f"{row.label} {SERVERS[row.server].version()}".strip()
            except BrokerError as error:
                figures.missing.append(f"{row.label} is left out: {str(error).splitlines()[0]}")
                say(figures.missing[-1])
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            figures.syncs = syncs_per_second(Path(folder))
        for i in range(effort.rounds):
            for task in TASKS:
                for qos in _QOS:
                    names = [name for name in figures.labels if qos in ROWS[name].qos]
                    # In another order each time: nobody always follows the same neighbour.
                    random.Random(i).shuffle(names)
                    for name in names:
                        _measure(servers, figures, name, task, qos, effort)
            if "headwater" in figures.labels:
                _alone(servers, figures, effort)
            say(f"round {i + 1} of {effort.rounds}")
        return figures
    finally:
        servers.close()
        os.sched_setaffinity(0, before)


# -- tables ------------------------------------------------------------------------------------------------------------


def _short(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def _rate(figures: Figures, key: str, name: str) -> str:
    rates = figures.rates.get(key, {}).get(name)
    if rates is None:
        return "–"
    cell = _short(statistics.median(rates))
    reference = figures.rates[key].get(_REFERENCE)
    if name == _REFERENCE or reference is None:
        return f"{cell} ({_short(min(rates))}–{_short(max(rates))})"
    ratios = [rate / of for rate, of in zip(rates, reference, strict=True)]
    return f"{cell} **{statistics.median(ratios):.1f}** ({min(ratios):.1f}–{max(ratios):.1f})"


def _times(figures: Figures, key: str, name: str) -> str:
    if name not in figures.middle.get(key, {}):
        return "–"
    return ", ".join(f"{statistics.median(of[key][name]):.2f}" for of in (figures.middle, figures.slow))


def _cpu(figures: Figures, key: str, name: str) -> str:
    found = figures.cpu.get(key, {}).get(name)
    return "–" if found is None else f"{statistics.median(found):.1f}"


def _table(figures: Figures, title: str, tasks: Mapping[str, str], cell: Callable[[str, str], str]) -> Table:
    keys = {f"{task} {qos}": f"{text} Q{qos}".strip() for task, text in tasks.items() for qos in _QOS}
    rows = [
        [figures.labels[name], *(cell(key, name) for key in keys)] for name in ROWS if name in figures.labels
    ]
    return Table(title, ["", *keys.values()], list(rows))


def tables(figures: Figures) -> list[Table]:
    """Rates, latencies, CPU time."""
    both = {"publish": "publish", "through": "end to end"}
    notes = [f"{figures.about}. This disk syncs {_short(figures.syncs)} times a second.", *figures.missing]
    if figures.load > _BUSY_LOAD:
        notes.append(f"This machine was busy (load {figures.load:.1f}): the rates are worth little.")
    notes += [f"Done again, because it failed: {failure}." for failure in figures.failures]
    rates = _table(
        figures,
        "Messages/s, ratio to amqtt (spread)",
        both,
        lambda key, name: _rate(figures, key, name),
    )
    times = _table(
        figures,
        f"Milliseconds from publisher to subscriber at {PACE:.0f} messages/s: median, 99 %",
        {"paced": ""},
        lambda key, name: _times(figures, key, name),
    )
    used = _table(
        figures,
        "CPU time of the server, µs per message",
        both,
        lambda key, name: _cpu(figures, key, name),
    )
    rates.notes = notes
    return [rates, times, used, *_of_the_hub(figures)]


def _of_the_hub(figures: Figures) -> list[Table]:
    """Fairness and memory, where the hub was measured."""
    if not figures.fairness:
        return []
    fairness = Table(
        "The hub: milliseconds until an answer at QoS 1, while another client …",
        ["", "median", "99 %", "most"],
    )
    for what, rounds in figures.fairness.items():
        fairness.rows.append(
            [what, *(f"{statistics.median(part):.1f}" for part in zip(*rounds, strict=True))]
        )
    fairness.notes = [f"The burst is taken at {_short(statistics.median(figures.burst))} messages/s."]
    memory = Table("The hub: MiB by which its memory grows", ["", "measured", "by docs/hub.md"])
    for what, sizes in figures.memory.items():
        memory.rows.append([what, *(f"{statistics.median(part):.0f}" for part in zip(*sizes, strict=True))])
    return [fairness, memory]
