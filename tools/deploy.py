"""Copies headwater to a board, over its serial port, only what has changed.

    python -m tools.deploy --port /dev/ttyACM0 [--source py] [--main examples/device/uptime.py]
    python -m tools.deploy --port /dev/ttyACM0 --main examples/device/uptime.py --bundle

The core and the MicroPython port go to ``/lib``, compiled (.mpy: they load faster and need less memory) unless
``--source py`` is given. With ``--bundle`` only what the program needs of them does, in one piece (``tools.bundle``).
What an earlier deployment left and this one does not have is removed: MicroPython prefers a
stale .py to a fresh .mpy.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tools import mpy
from tools.board import Board, DeviceError, TransportError
from tools.bundle.build import Options, build, write
from tools.bundle.program import BundleError
from tools.toolchain import ROOT

Form = Literal["py", "mpy"]
LIB = "/lib"
#: What is ours on a board.
OURS = [f"{LIB}/headwater", f"{LIB}/headwater_board"]

# Prints a list of (path, SHA-256) of the files below the folders in ROOTS.
_LIST = """
import os, hashlib, binascii
def hash_of(path, buf=bytearray(512)):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            n = file.readinto(buf)
            if not n:
                return binascii.hexlify(digest.digest()).decode()
            digest.update(buf if n == len(buf) else buf[:n])
def walk(path):
    try:
        entries = list(os.ilistdir(path))
    except OSError:
        return
    for entry in entries:
        name = path + "/" + entry[0]
        if entry[1] & 0x4000:
            walk(name)
        else:
            print("(%r, %r)," % (name, hash_of(name)))
for root in ROOTS:
    walk(root)
"""


class DeployError(Exception):
    """What arrived on the board is not what was sent."""


def package_files(form: Form) -> dict[str, Path]:
    """What goes to a board: its name there, and the file here."""
    found = {}
    for root in (mpy.SDK, mpy.BOARD_PORT):
        source = mpy.compiled(root) if form == "mpy" else root
        for module in mpy.modules(root):
            name = module.with_suffix(f".{form}")
            found[f"{LIB}/{name.as_posix()}"] = source / name
    return found


def bundle_files(
    what: Sequence[str], options: Options | None = None, folder: Path = ROOT / "out" / "bundle"
) -> dict[str, Path]:
    """As ``package_files``, for a bundle of what modules and programs need, which is made in ``folder``."""
    made = write(build(what, options), folder, options)
    return {f"{LIB}/{name}": path for name, path in made.items()}


def tree_files(root: Path, target: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """The files below ``root`` with one of the suffixes, by their names below ``target`` on the board."""
    return {
        f"{target}/{path.relative_to(root).as_posix()}": path
        for path in sorted(root.rglob("*"))
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def synchronise(board: Board, files: Mapping[str, Path], roots: list[str]) -> tuple[list[str], list[str]]:
    """Make the folders ``roots`` of the board hold ``files`` and nothing else: the names written, and those removed."""
    data = {name: path.read_bytes() for name, path in files.items()}
    wanted = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    present = _hashes(board, roots)
    stale = sorted(set(present) - set(wanted))
    changed = sorted(name for name in wanted if present.get(name) != wanted[name])
    for name in stale:
        board.remove(name)
    for name in changed:
        board.put(name, data[name])
    if changed or stale:
        now = _hashes(board, roots)
        wrong = sorted(name for name in set(now) | set(wanted) if now.get(name) != wanted.get(name))
        if wrong:
            raise DeployError(f"the board does not hold what was sent: {', '.join(wrong)}")
    return changed, stale


def deploy(
    board: Board, form: Form = "mpy", files: Mapping[str, Path] | None = None
) -> tuple[list[str], list[str]]:
    """Copy the core and the MicroPython port, or the ``files`` in their place: the names written, and those removed."""
    return synchronise(board, package_files(form) if files is None else files, OURS)


def _hashes(board: Board, roots: list[str]) -> dict[str, str]:
    listing = board.exec(f"ROOTS = {roots!r}\n{_LIST}")
    return dict(ast.literal_eval(f"[{listing}]"))


def main() -> int:
    """Deploy from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.deploy", description="Copy headwater to a board.")
    parser.add_argument("--port", required=True, help="the board's serial port, such as /dev/ttyACM0")
    parser.add_argument(
        "--source", choices=["mpy", "py"], default="mpy", help="the form (default: %(default)s)"
    )
    parser.add_argument("--main", type=Path, metavar="FILE", help="copy FILE to the board as main.py as well")
    parser.add_argument(
        "--bundle",
        nargs="*",
        metavar="WHAT",
        help="copy only what --main and these modules or programs need, in one piece",
    )
    chosen = parser.parse_args()
    try:
        files = None
        if chosen.bundle is not None:
            main_file = [str(chosen.main)] if chosen.main else []
            files = bundle_files([*main_file, *chosen.bundle])
        with Board(chosen.port) as board:
            changed, stale = deploy(board, chosen.source, files)
            if chosen.main is not None:
                board.put("/main.py", chosen.main.read_bytes())
                changed.append("/main.py")
    except (OSError, BundleError, DeviceError, DeployError, TransportError, mpy.CompileError) as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 1
    for name in changed:
        print(f"wrote   {name}")
    for name in stale:
        print(f"removed {name}")
    if not changed and not stale:
        print("nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
