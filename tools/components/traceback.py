"""Translate a traceback of a board that runs components: files, lines and functions of the sources.

    python -m tools.components.traceback < board.log
    python -m tools.components.traceback --names release/names.json board.log

Lines that are not of a component pass unchanged. A private name in a message gets its old names behind it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.components.__main__ import OUTPUT
from tools.components.build import NAMES

_FRAME = re.compile(r'^(?P<before>\s*File )"(?P<file>[^"]+)", line (?P<line>\d+)(, in (?P<name>\S+))?')
_QUOTED = re.compile(r"'(?P<name>_?\w+)'")


def translate(text: str, known: Mapping[str, Any]) -> Iterator[str]:
    """Translate the lines of a log; ``known`` is what ``names.json`` holds."""
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame:
            yield _frame(line, frame, known["lines"])
        elif re.match(r"\w*Error: ", line):
            yield _QUOTED.sub(lambda found: _named(found["name"], known["names"]), line)
        else:
            yield line


def _frame(line: str, frame: re.Match[str], lines: Mapping[str, Any]) -> str:
    file = frame["file"].removeprefix("/lib/").removeprefix("/rom/lib/").replace(".mpy", ".py")
    number = int(frame["line"])
    before = [row for row in lines.get(file, ()) if row[0] <= number]
    if not before:
        return line
    _, source, old, function = max(before, key=lambda row: row[0])
    return f'{frame["before"]}"{source}", line {old}, in {function or "<module>"}'


def _named(name: str, names: Mapping[str, Any]) -> str:
    old = names.get(name)
    return f"'{name}' ({', '.join(old)})" if old else f"'{name}'"


def main() -> int:
    """Translate files, or the standard input."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.components.traceback",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--names", type=Path, default=OUTPUT / NAMES, metavar="FILE", help="names.json of the release"
    )
    parser.add_argument("log", nargs="*", type=Path, metavar="LOG", help="default: the standard input")
    chosen = parser.parse_args()
    try:
        known = json.loads(chosen.names.read_text(encoding="utf-8"))
        texts = [path.read_text(encoding="utf-8") for path in chosen.log] or [sys.stdin.read()]
    except (OSError, ValueError) as error:
        print(f"traceback: {error}", file=sys.stderr)
        return 1
    for text in texts:
        for line in translate(text, known):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
