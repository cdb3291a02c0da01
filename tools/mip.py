"""Writes package.json, which lets ``mpremote mip install`` put headwater on a board: one entry per module.

python -m tools.mip            # write it
python -m tools.mip --check    # say whether it is what it would be (tests/host/test_mip.py)
"""

from __future__ import annotations

import json
import sys

from headwater import __version__
from tools import mpy
from tools.toolchain import ROOT

PACKAGE = ROOT / "package.json"


def package() -> dict[str, object]:
    """What package.json holds: the modules' names on the board, and their files here."""
    urls = [
        [module.as_posix(), (root.relative_to(ROOT) / module).as_posix()]
        for root in (mpy.SDK, mpy.BOARD_PORT)
        for module in mpy.modules(root)
    ]
    return {"version": __version__, "deps": [], "urls": urls}


def text() -> str:
    """The file's text."""
    return json.dumps(package(), indent=1) + "\n"


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv[1:]:
        if PACKAGE.read_text(encoding="utf-8") == text():
            return 0
        print("package.json is not what python -m tools.mip writes", file=sys.stderr)
        return 1
    PACKAGE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
