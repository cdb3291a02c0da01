"""Simulate WiFi faults on a board, and print what becomes of its messages.

    python -m tools.fault_matrix                    # headwater: each fault in each state, on ESP32 and RP2
    python -m tools.fault_matrix --month 30         # a month with a fault every hour or two
    python -m tools.fault_matrix --programs --path mqtt_as/ --path umqtt/   # whole programs, also of other libraries
    python -m tools.fault_matrix --update           # writes the first three tables to docs/wifi-faults.md

The programs run on MicroPython's unix build, in the world of `tools/device/world`: a clock that jumps from event to
event, the radio of the virtual board, and a broker. Each `--path` is a directory with a library's source.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools import toolchain
from tools.toolchain import CACHE, ROOT

PORTS = ("esp32", "rp2")
PAGE = ROOT / "docs/wifi-faults.md"
#: Programs of `tools/device/world/programs`, by what they are written with.
PROGRAMS = {
    "headwater": "with_headwater",
    "mqtt_as": "with_mqtt_as",
    "umqtt.robust": "with_umqtt_robust",
    "MiniMQTT": "with_minimqtt",
}
DAYS = 30
#: The number of faults (`world/rig.py`).
FAULTS = 9
_NAMES = {"esp32": "ESP32", "rp2": "RP2"}
_PLACE = re.compile(r"(<!-- measured: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_DEVICE = ROOT / "tools/device"
_SHIMS = ROOT / "tools/bench/device/shims"
_HEAP = "2M"
_MONTH_HEAP = "700K"

Row = dict[str, Any]


def simulate(module: str, *arguments: object, path: Sequence[Path] = (), heap: str = _HEAP) -> list[Row]:
    """Run a module of `tools/device/world` with MicroPython and return what it prints."""
    program = toolchain.find("micropython")
    if program is None:
        raise FileNotFoundError(f"micropython is missing: {toolchain.TOOLS['micropython'].get}")
    places = [_DEVICE, ROOT / "sdk", ROOT / "ports/micropython", *path]
    done = subprocess.run(
        [str(program), "-X", f"heapsize={heap}", "-m", f"world.{module}", *map(str, arguments)],
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "MICROPYPATH": ":".join([*map(str, places), ".frozen"]),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        raise RuntimeError(f"{module} {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return rows


def matrix(port: str) -> list[Row]:
    """Run headwater's board program through each fault in each state."""
    return simulate("matrix", port)


def month(port: str, days: int = DAYS, seed: int = 1, *options: str) -> Row:
    """Run headwater's board program for `days` with faults by chance; the option "update" adds updates over the air."""
    row = simulate("month", port, days, seed, *options, heap=_MONTH_HEAP)[0]
    return {**row, "growth": row["heap_after"] - row["heap_before"]}


def program(port: str, name: str, fault: int, path: Sequence[Path]) -> Row:
    """Run a whole program through one fault."""
    return simulate("program", port, PROGRAMS[name], fault, path=[*path, CACHE / "peers", _SHIMS])[0]


def _seconds(ms: int) -> str:
    return "0" if ms < 100 else f"{ms / 1000:.0f}" if ms >= 9950 else f"{ms / 1000:.1f}"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---", *("--:" for _ in lines[0][1:])])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def matrix_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: a line for each fault, a column for each state, seconds to recover."""
    states = list(dict.fromkeys(row["state"] for row in rows))
    faults = dict.fromkeys(row["fault"] for row in rows)
    cells = {(row["fault"], row["state"]): _seconds(row["ms"]) for row in rows}
    return _table(["", *states], ([fault, *(cells[fault, state] for state in states)] for fault in faults))


def month_table(rows: Mapping[str, Row]) -> str:
    """Return a Markdown table of simulated months by port."""
    columns = {
        "days": "days",
        "faults": "faults",
        "connections": "connections",
        "restarts of the interface": "restarts",
        "resets": "resets",
        "messages": "accepted",
        "lost": "lost",
        "growth of the heap, bytes": "growth",
    }
    return _table(
        ["", *columns],
        ([_NAMES[port], *(f"{row[key]:,.0f}" for key in columns.values())] for port, row in rows.items()),
    )


def _lines(name: str) -> int:
    """Count the lines of a program that are not empty."""
    text = (_DEVICE / "world/programs" / f"{PROGRAMS[name]}.py").read_text()
    return sum(1 for line in text.splitlines() if line.strip())


def _outcome(row: Row) -> str:
    if row["ended"]:
        return f"ends: {row['ended']}"
    if row["ms"] < 0:
        return "never"
    return _seconds(row["ms"]) + (" *" if row["command_lost"] else "") + ("" if row["subscribed"] else " †")


def program_table(rows: Mapping[str, Sequence[Row]]) -> str:
    """Return a Markdown table: a line for each fault, a column for each program, seconds to recover."""
    faults = [row["fault"] for row in next(iter(rows.values()))]
    body = [
        ["lines of the program", *(str(_lines(name)) for name in rows)],
        ["heap, bytes", *(f"{of[0]['heap']:,}" for of in rows.values())],
    ]
    body += [[fault, *(_outcome(of[i]) for of in rows.values())] for i, fault in enumerate(faults)]
    return _table(["", *rows], body)


def drawings() -> dict[str, str]:
    """Measure everything that the page shows and that needs no other library."""
    tables = {f"matrix-{port}": matrix_table(matrix(port)) for port in PORTS}
    return {**tables, "month": month_table({port: month(port) for port in PORTS})}


def renewed(text: str, tables: Mapping[str, str]) -> str:
    """Return a page's text with `tables` in their places."""

    def fill(found: re.Match[str]) -> str:
        return found[1] + tables[found[2]] + found[3] if found[2] in tables else found[0]

    return _PLACE.sub(fill, text)


def _run_programs(port: str, path: Sequence[Path]) -> dict[str, list[Row]]:
    found = {}
    for name in PROGRAMS:
        try:
            found[name] = [program(port, name, i, path) for i in range(FAULTS)]
        except RuntimeError as error:
            print(f"{name} is left out: {str(error).strip().splitlines()[-1]}")
    return found


def main() -> None:
    """Print or write tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.fault_matrix", description="Simulate WiFi faults on a board."
    )
    parser.add_argument("--port", choices=PORTS, action="append", help="only this port")
    parser.add_argument("--month", metavar="DAYS", type=int, help="simulate so many days instead")
    parser.add_argument("--programs", action="store_true", help="run whole programs instead")
    parser.add_argument("--path", type=Path, action="append", default=[], help="directory of another library")
    parser.add_argument("--update", action="store_true", help=f"write the tables to {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args()
    ports = chosen.port or PORTS
    if chosen.update:
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), drawings()), encoding="utf-8")
    elif chosen.month:
        print(month_table({port: month(port, chosen.month) for port in ports}))
    elif chosen.programs:
        for port in ports:
            print(f"{_NAMES[port]}\n\n{program_table(_run_programs(port, chosen.path))}")
    else:
        for port in ports:
            print(f"{_NAMES[port]}\n\n{matrix_table(matrix(port))}")


if __name__ == "__main__":
    main()
