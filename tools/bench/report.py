"""Format tables of results for the terminal, and write them to `docs/benchmarks.md` between markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.toolchain import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"


@dataclass
class Table:
    """A title, column heads, and rows whose first cell is the row's name."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: Sequence[str] = ()


def text(table: Table) -> str:
    """Format the table for a terminal."""
    return "\n".join([table.title, "", *_aligned(table), *(f"  {note}" for note in table.notes)])


def markdown(table: Table) -> str:
    """Format the table for the page: aligned as on a terminal, with the notes as text."""
    lines = (line.replace("**", "") for line in _aligned(table))
    return "\n".join(
        [f"**{table.title}**", "", "```text", *lines, "```", *(f"\n{note}" for note in table.notes)]
    )


def _aligned(table: Table) -> list[str]:
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    out = []
    for line in lines:
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        out.append("  ".join([first, *rest]).rstrip())
    out[1:1] = ["  ".join("-" * width for width in widths)]
    return out


def put(name: str, body: str, document: Path = DOCUMENT) -> None:
    """Replace the text between the markers `<!-- bench NAME -->` and `<!-- end NAME -->`.

    Raises ValueError if the document lacks them.
    """
    begin, end = f"<!-- bench {name} -->", f"<!-- end {name} -->"
    old = document.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(old)) != 1:
        raise ValueError(f"{document.name} needs '{begin}' and '{end}', once each")
    document.write_text(pattern.sub(lambda _: f"{begin}\n{body}\n{end}", old))
