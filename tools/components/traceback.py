"""Translate a traceback of a board that runs components: files, lines and functions of the sources.

    python -m tools.components.traceback < board.log
    python -m tools.components.traceback --names release/names.json board.log

Lines that are not of a component pass unchanged. A private name in a message gets its old names behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headwater_host.board.tracebacks import translate
from tools.components.__main__ import OUTPUT
from tools.components.build import NAMES


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
