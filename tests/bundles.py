"""Bundles of the core, as they go to a board: laid over its plain modules, so that tests find both; or of what a test
uses."""

import ast
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tools import mpy, sizes
from tools.components.build import Options, build, write
from tools.toolchain import ROOT

PORTABLE = ROOT / "tests" / "portable"
ALLOC = ROOT / "tests" / "alloc"

#: What a board may have of the client's side, and the server's sessions, which share its base. What else a test
#: needs is there as plain modules.
CLIENT = (
    "headwater.errors",
    "headwater.mqtt.client",
    "headwater.mqtt.client5",
    "headwater.mqtt.keeper",
    "headwater.mqtt.backlog",
    "headwater.journal",
    "headwater.mqtt.session",
    "headwater.mqtt.v31",
    "headwater.mqtt.v5",
    "headwater.mqtt.server",
    "headwater.mqtt.server31",
    "headwater.mqtt.server5",
)
BUNDLES = {"client bundle": CLIENT, "bundle of all": tuple(sorted(sizes.imports(mpy.SDK)))}


def private_names() -> frozenset[str]:
    """The private attributes that tests look at, or whose classes override: these keep their names."""
    text = "".join(path.read_text() for folder in (PORTABLE, ALLOC) for path in folder.glob("*.py"))
    return frozenset(re.findall(r'(?:(?<!\bself)\.|"|^    def )(_[a-z]\w*)', text, re.MULTILINE))


def over_plain_modules(name: str, folder: Path) -> Path:
    """A folder to import from: the bundle ``name``, and the plain modules of what is not in it."""
    path = folder / "lib"
    shutil.copytree(mpy.compiled(mpy.SDK), path)
    made = write(build(BUNDLES[name], Options(keep=private_names())), folder / "bundle")
    for module, file in made.items():
        shutil.copy(file, path / module)
        if not module.endswith("__init__.mpy"):
            assert (mpy.SDK / module).with_suffix(".py").exists(), module
    # What is a name of the bundle must not be there as a file: nobody would notice that it is not used.
    for module in BUNDLES[name]:
        plain = path.joinpath(*module.split(".")).with_suffix(".mpy")
        if plain.exists() and plain.relative_to(path).as_posix() not in made:
            plain.unlink()
    return path


def of_what_it_uses(test: Path, folder: Path) -> Path:
    """A folder to import from: a bundle for which a portable test and its helpers are the program."""
    options = Options(only_used=True)
    programs = [test.parent / f"{name}.py" for name in _imported(test)]
    write(build([str(path) for path in programs if path.exists()], options), folder, options)
    return folder


def concerns(test: Path, modules: Iterable[str]) -> bool:
    """Whether a portable test, or a helper that it imports, uses one of the modules."""
    return not _imported(test).isdisjoint(modules)


def _imported(test: Path) -> set[str]:
    """A portable test, the helpers that it imports, and what these import."""
    seen: set[str] = set()
    waiting = [test.stem]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += _imports(test.parent / f"{name}.py")
    return seen


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """The modules that a file names, and what it takes from them; nothing where there is no file."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())) if file.exists() else ():
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)
