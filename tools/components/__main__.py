"""Makes headwater small for a board: all that a program needs of the core in one .mpy file, without what it does not.

    python -m tools.components examples/device/telemetry.py         what this program imports
    python -m tools.components headwater.mqtt.client headwater.mqtt.keeper headwater_board.tcp
    python -m tools.components --only-used main.py                  and nothing that it makes no use of
    python -m tools.components --bytes headwater.mqtt.client             what the bytes are
    python -m tools.components --romfs headwater.mqtt.client             also an image, to be run from flash

Programs go on importing as the documentation says (``from headwater.mqtt.client import Client``), and public names,
also those of parameters and attributes, stay as they are. Modules of ``headwater_board`` that a program imports go
along.
The result is for a board alone: it cannot be mixed with modules of the core that were left out, and a class of an
application that inherits from one of the core's must not have attributes called as built-in functions are.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from tools import mpy, sizes
from tools.components.build import Options, ask, build, write
from tools.components.contents import contents
from tools.components.program import PACKAGE, BundleError
from tools.components.romfs import image
from tools.toolchain import ROOT


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how to bundle."""
    parser.add_argument("--lines", action="store_true", help="keep line numbers, those of FOLDER/source")
    parser.add_argument("--names", action="store_true", help="keep private names, for reading tracebacks")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="NAME", help="keep the name of this private attribute"
    )
    parser.add_argument(
        "--only-used",
        action="store_true",
        help="drop what the programs given make no use of: methods, hooks, choices, names of attributes",
    )
    parser.add_argument("--no-texts", action="store_true", help="drop the texts of exceptions")


def options_of(chosen: argparse.Namespace) -> Options:
    """What ``add_options`` has understood."""
    return Options(
        lines=chosen.lines,
        names=chosen.names,
        keep=frozenset(chosen.keep),
        only_used=chosen.only_used,
        texts=not chosen.no_texts,
    )


def main() -> int:
    """Make a bundle, and say how large it is."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.components",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="+", metavar="WHAT", help="a module, or a Python file that imports some"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=ROOT / "out" / "bundle",
        metavar="FOLDER",
        help="default: out/bundle",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="also list what was dropped and merged")
    parser.add_argument(
        "--romfs", action="store_true", help="also write FOLDER/bundle.romfs, for mpremote romfs deploy"
    )
    parser.add_argument("--bytes", action="store_true", help="also list what the bytes are, by function")
    add_options(parser)
    chosen = parser.parse_args()
    options = options_of(chosen)
    try:
        bundle = build(chosen.what, options)
        made = write(bundle, chosen.output, options)
        plain = _plain(chosen.what)
        rom = image(made) if chosen.romfs else b""
        listing = _bytes(chosen.what, options, made[f"{PACKAGE}/__init__.mpy"]) if chosen.bytes else []
    except (BundleError, mpy.CompileError, OSError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    if rom:
        (chosen.output / "bundle.romfs").write_bytes(rom)
    if chosen.verbose:
        for title, names in (
            ("dropped", bundle.dropped),
            ("merged", bundle.merged),
            ("settled", bundle.settled),
        ):
            print(f"{title}: {', '.join(names) or 'nothing'}")
    print("\n".join([*listing, ""]) if listing else "", end="")
    for name, path in sorted(made.items()):
        print(f"{path.stat().st_size:>8,}  {name}")
    print(
        f"{sum(path.stat().st_size for path in made.values()):>8,}  together; as {plain[0]} modules {plain[1]:,}"
    )
    if rom:
        print(f"{len(rom):>8,}  bundle.romfs")
    return 0


def _bytes(what: list[str], options: Options, path: Path) -> list[str]:
    """What the bytes of a bundle's module are, the largest function first."""
    readable = build(what, replace(options, names=True))
    found = contents(path.read_bytes(), readable.sources["__init__"])
    rows = sorted(found.code.items(), key=lambda row: (-row[1], row[0]))
    return [
        f"{found.names:>8,}  names",
        f"{found.constants:>8,}  constants",
        f"{sum(found.code.values()):>8,}  code, in {len(rows)} functions:",
        *(f"{size:>8,}  {name.removeprefix(f'{PACKAGE}_').replace('__', '.', 1)}" for name, size in rows),
    ]


def _plain(what: list[str]) -> tuple[int, int]:
    """How many modules the same would be without a bundle, and their bytes."""
    asked = ask(what)
    graph = sizes.imports(mpy.SDK)
    members = sizes.in_import_order(graph, asked.faces)
    folders = {name: mpy.compiled(mpy.SDK) for name in members}
    folders |= {name: mpy.compiled(mpy.BOARD_PORT) for name in asked.ports}
    total = 0
    for name, folder in folders.items():
        path = folder.joinpath(*name.split("."))
        package = path / "__init__.mpy"
        total += (package if package.exists() else path.with_suffix(".mpy")).stat().st_size
    return len(folders), total


if __name__ == "__main__":
    sys.exit(main())
