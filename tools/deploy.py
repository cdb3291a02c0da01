"""Files for a board, as tests deploy them: a component, or all modules compiled or as sources.

MicroPython prefers a stale .py to a new .mpy, so `deploy` removes what an earlier deployment has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from headwater_host.board import install
from headwater_host.board.install import LIB
from tools import mpy
from tools.board import Board

Form = Literal["py", "mpy"]


def package_files(form: Form) -> dict[str, Path]:
    """Map names on the board to files here."""
    found = {}
    for root in (mpy.SDK, mpy.BOARD_PORT):
        source = mpy.compiled(root) if form == "mpy" else root
        for module in mpy.modules(root):
            name = module.with_suffix(f".{form}")
            found[f"{LIB}/{name.as_posix()}"] = source / name
    return found


def tree_files(root: Path, target: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Map names below `target` on the board to files below `root` with one of the suffixes."""
    return {
        f"{target}/{path.relative_to(root).as_posix()}": path
        for path in sorted(root.rglob("*"))
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def synchronise(board: Board, files: Mapping[str, Path], roots: Sequence[str]) -> tuple[list[str], list[str]]:
    """Make the directories `roots` of the board contain exactly `files`. Returns the names written and removed."""
    return install.synchronise(board, {name: path.read_bytes() for name, path in files.items()}, roots)


def deploy(
    board: Board, form: Form = "mpy", files: Mapping[str, Path] | None = None
) -> tuple[list[str], list[str]]:
    """Copy the core and the MicroPython port, or `files`, to a board. Returns the names written and removed."""
    return synchronise(board, package_files(form) if files is None else files, install.OURS)
