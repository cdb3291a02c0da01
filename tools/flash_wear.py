"""Measure what each setting of the journal costs a board's flash: the table of docs/stores.md.

    python -m tools.flash_wear             measure and print the table
    python -m tools.flash_wear --update    write it to docs/stores.md

MicroPython's littlefs runs on counting flash in memory (`tools/device/flash_wear.py`). Times are computed from
typical figures of the W25Q16JV, the flash of a Raspberry Pi Pico.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

PROGRAM = ROOT / "tools/device/flash_wear.py"
DOCS = ROOT / "docs/stores.md"
BEGIN = "<!-- wear: begin -->\n"
END = "<!-- wear: end -->"
#: Milliseconds to erase a block of 4 KiB, and to program a page of 256 bytes.
ERASE_MS = 45.0
PAGE_MS = 0.4


class Case(NamedTuple):
    """One row: the settings, and the cost of 1,000 messages."""

    program: int
    qos: int
    payload: int
    limit: int
    sync_every: int
    rewritten: int
    erased: int
    programmed: int
    clean: bool

    @property
    def flash_ms(self) -> float:
        """Return the flash's milliseconds per message."""
        return (self.erased * ERASE_MS + self.programmed / 256 * PAGE_MS) / 1000


def measure() -> list[Case]:
    """Run the program on MicroPython. Raises RuntimeError if it fails."""
    done = run_unix(PROGRAM, path=[mpy.SDK, mpy.BOARD_PORT], heap=8 << 20, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stdout)
    found = []
    for line in done.stdout.splitlines():
        *numbers, outcome = line.split()
        program, qos, payload, limit, every, rewritten, erased, programmed = map(int, numbers)
        clean = outcome == "clean"
        found.append(Case(program, qos, payload, limit, every, rewritten, erased, programmed, clean))
    return found


def table(cases: list[Case]) -> str:
    """Return the table in Markdown: a row for each load, a column for each `limit`."""
    limits = sorted({case.limit for case in cases})
    rows: dict[tuple[int, ...], dict[int, str]] = {}
    for case in cases:
        load = (case.program, case.qos, case.payload, case.sync_every)
        rows.setdefault(load, {})[case.limit] = f"{case.erased / 1000:.2f}, {case.flash_ms:.0f}"
    lines = [["program", "QoS", "payload", "`sync_every`", *map(str, limits)]]
    lines += [[*map(str, load), *(found.get(limit, "–") for limit in limits)] for load, found in rows.items()]
    lines[1:1] = [["--:"] * len(lines[0])]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def documented() -> str:
    """Return the table in docs/stores.md."""
    return DOCS.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.flash_wear",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--update", action="store_true", help="write the table to docs/stores.md")
    chosen = parser.parse_args()
    text = table(measure())
    if chosen.update:
        before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
        DOCS.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
