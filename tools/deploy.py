"""Copy headwater to a board over its serial port, changed files only.

    python -m tools.deploy --port /dev/ttyACM0 [--component headwater-mqtt] [--main examples/device/uptime.py]
    python -m tools.deploy --port /dev/ttyACM0 --source mpy

A component (`tools.components`) goes to `/lib`, by default `headwater`, which is everything. With `--source` all
modules go there instead, compiled or as sources. Files of an earlier deployment that this one does not have are
removed, because MicroPython prefers a stale .py to a new .mpy.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tools import mpy
from tools.board import Board, DeviceError, TransportError
from tools.components.__main__ import OUTPUT
from tools.components.build import build, write
from tools.components.program import BundleError
from tools.components.table import ALL, COMPONENTS

Form = Literal["py", "mpy"]
LIB = "/lib"
#: Directories on a board that belong to headwater.
OURS = [f"{LIB}/headwater", f"{LIB}/headwater_board"]

# Prints (path, SHA-256) of the files below ROOTS.
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
    """The files on the board differ from those sent."""


def package_files(form: Form) -> dict[str, Path]:
    """Map names on the board to files here."""
    found = {}
    for root in (mpy.SDK, mpy.BOARD_PORT):
        source = mpy.compiled(root) if form == "mpy" else root
        for module in mpy.modules(root):
            name = module.with_suffix(f".{form}")
            found[f"{LIB}/{name.as_posix()}"] = source / name
    return found


def component_files(component: str = ALL, folder: Path = OUTPUT) -> dict[str, Path]:
    """As ``package_files``, for a component, which is built in ``folder`` with all others."""
    made = write(build(), folder)
    return {f"{LIB}/{name}": path for name, path in made[component].items()}


def tree_files(root: Path, target: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Map names below `target` on the board to files below `root` with one of the suffixes."""
    return {
        f"{target}/{path.relative_to(root).as_posix()}": path
        for path in sorted(root.rglob("*"))
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def synchronise(board: Board, files: Mapping[str, Path], roots: list[str]) -> tuple[list[str], list[str]]:
    """Make the directories `roots` of the board contain exactly `files`. Returns the names written and removed."""
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
            raise DeployError(f"files on the board differ from those sent: {', '.join(wrong)}")
    return changed, stale


def deploy(
    board: Board, form: Form = "mpy", files: Mapping[str, Path] | None = None
) -> tuple[list[str], list[str]]:
    """Copy the core and the MicroPython port, or `files`, to a board. Returns the names written and removed."""
    return synchronise(board, package_files(form) if files is None else files, OURS)


def _hashes(board: Board, roots: list[str]) -> dict[str, str]:
    listing = board.exec(f"ROOTS = {roots!r}\n{_LIST}")
    return dict(ast.literal_eval(f"[{listing}]"))


def main() -> int:
    """Deploy from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.deploy", description="Copy headwater to a board.")
    parser.add_argument("--port", required=True, help="serial port, such as /dev/ttyACM0")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--component", choices=list(COMPONENTS), default=ALL, help="default: %(default)s, everything"
    )
    form.add_argument("--source", choices=["mpy", "py"], help="copy modules instead: compiled, or as sources")
    parser.add_argument("--main", type=Path, metavar="FILE", help="also copy FILE as main.py")
    chosen = parser.parse_args()
    try:
        files = package_files(chosen.source) if chosen.source else component_files(chosen.component)
        with Board(chosen.port) as board:
            changed, stale = deploy(board, files=files)
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
