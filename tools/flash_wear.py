"""What a journal costs a board's flash, for each setting: the table of docs/stores.md.

    python -m tools.flash_wear             measure, and print the table
    python -m tools.flash_wear --update    write it to docs/stores.md

It measures MicroPython's littlefs on flash in memory that counts (``tools/device/flash_wear.py``): files that the
journal rewrites, blocks that are erased, bytes that are programmed. The time is what a chip would take for that, by
the typical figures of the W25Q16JV, the flash of a Raspberry Pi Pico.
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
HEAD = (
    "| program | QoS | payload | `limit` | `sync_every` "
    "| files rewritten per 1,000 messages | blocks erased per message | bytes programmed | flash, ms |\n"
    "|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
)


class Case(NamedTuple):
    """One line: what was set, and what 1000 messages cost."""

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
        """How long the flash takes for a message."""
        return (self.erased * ERASE_MS + self.programmed / 256 * PAGE_MS) / 1000

    def row(self) -> str:
        """The case as a row of the table."""
        return (
            f"| {self.program} | {self.qos} | {self.payload} | {self.limit} | {self.sync_every} | {self.rewritten} "
            f"| {self.erased / 1000:.2f} | {self.programmed / 1000:,.0f} | {self.flash_ms:.0f} |\n"
        )


def measure() -> list[Case]:
    """Run the program on MicroPython; raises RuntimeError when it fails."""
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
    """The table, in Markdown."""
    return HEAD + "".join(case.row() for case in cases)


def documented() -> str:
    """The table that docs/stores.md has."""
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
