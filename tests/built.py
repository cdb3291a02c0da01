"""The components as they go to a board, for tests to import from."""

import re
from functools import cache
from pathlib import Path

from tools.components.build import Built, build, write
from tools.components.table import ALL
from tools.toolchain import ROOT

PORTABLE = ROOT / "tests" / "portable"
ALLOC = ROOT / "tests" / "alloc"


def private_names() -> frozenset[str]:
    """The private attributes that tests read, or that their classes override: these keep their names."""
    text = "".join(path.read_text() for folder in (PORTABLE, ALLOC) for path in folder.glob("*.py"))
    return frozenset(re.findall(r'(?:(?<!\bself)\.|"|^    def )(_[a-z]\w*)', text, re.MULTILINE))


@cache
def units() -> Built:
    """All units, built once; the attributes that tests use keep their names."""
    return build(keep=private_names())


def components(folder: Path) -> dict[str, dict[str, Path]]:
    """Write the components to ``folder``: the files of each."""
    return write(units(), folder)


def everything(folder: Path) -> Path:
    """A folder to import all of the core from, built."""
    made = components(folder)
    assert made[ALL]
    return folder / "lib"
