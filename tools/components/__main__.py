"""Build what a board gets: the components of headwater, compiled, in a few files each.

    python -m tools.components                              all of them, in out/components
    mpremote mip install out/components/headwater-mqtt.json

For each component NAME there are NAME.json (for mip), NAME.manifest.py (to freeze it into firmware) and NAME.romfs (an
image for ``mpremote romfs deploy``). ``names.json`` is for ``python -m tools.components.traceback``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import mpy
from tools.components.build import build, write
from tools.components.program import BundleError
from tools.toolchain import ROOT

OUTPUT = ROOT / "out" / "components"


def main() -> int:
    """Build the components, and print their sizes."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.components",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FOLDER", help="output folder")
    parser.add_argument("--names", action="store_true", help="keep private names")
    chosen = parser.parse_args()
    try:
        made = write(build(short=not chosen.names), chosen.output)
    except (BundleError, mpy.CompileError, OSError) as error:
        print(f"components: {error}", file=sys.stderr)
        return 1
    for component, files in made.items():
        rom = (chosen.output / f"{component}.romfs").stat().st_size
        size = sum(path.stat().st_size for path in files.values())
        print(f"{size:>8,}  {component}: {len(files)} files; ROMFS image {rom:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
