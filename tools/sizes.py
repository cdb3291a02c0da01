"""What headwater costs on a board: flash (.mpy files), heap after import, and functions with large frames.

    python -m tools.sizes [--json] [--frames]

The flash column is the size of the file that ``mpy-cross -O2`` makes. The heap columns are what importing it takes from
the heap, measured on MicroPython: 64 bits (the unix build) and 32 bits (WebAssembly; the same object sizes as on ESP32
and RP2); names are interned in pools that grow in steps, so that a single module may pay for others. A component is
what its entry modules import in the end, measured on its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tools import mpy, toolchain
from tools.runtimes import RUNTIMES

#: A function's frame lies on the C stack up to this many machine words, and on the heap beyond (py/objfun.c).
STACK_WORDS = 11
_EXCEPTION_WORDS = 3

_MEASURE = """
import gc
for name in {modules!r}:
    gc.collect()
    before = gc.mem_alloc()
    __import__(name)
    gc.collect()
    print(name, gc.mem_alloc() - before)
"""


@dataclass
class Size:
    """One module, in bytes. ``heap64`` and ``heap32`` are None where that runtime is missing."""

    name: str
    mpy: int
    heap64: int | None = None
    heap32: int | None = None


@dataclass
class Frame:
    """A function whose frame comes from the heap: its size in machine words."""

    module: str
    function: str
    words: int


def module_name(path: Path) -> str:
    """``headwater/mqtt/__init__.py`` is ``headwater.mqtt``."""
    parts = list(path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root: Path) -> dict[str, set[str]]:
    """Which modules below ``root`` each of them imports when it is imported itself, its packages included."""
    paths = {module_name(path): path for path in mpy.modules(root)}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = imported_by(root / path)
        found |= {package for module in (name, *found) for package in _packages(module)}
        graph[name] = found & set(paths) - {name}
    return graph


def imported_by(path: Path) -> set[str]:
    """All that a file may import when it is imported itself: modules, and names that may be modules."""
    found: set[str] = set()
    for node in _run_at_import(ast.parse(path.read_text()).body):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _run_at_import(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and not (
            isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        ):
            yield from _run_at_import([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _run_at_import([*node.body, *node.orelse, *node.finalbody])
            for handler in node.handlers:
                yield from _run_at_import(handler.body)
        else:
            yield node


def _packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def in_import_order(graph: Mapping[str, set[str]], wanted: Iterable[str]) -> list[str]:
    """The modules ``wanted`` and all they import, each behind what it needs (cycles are cut)."""
    order: list[str] = []
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name not in visited:
            visited.add(name)
            for needed in sorted(graph[name]):
                visit(needed)
            order.append(name)

    for name in wanted:
        visit(name)
    return order


def heap_of(modules: list[str], runtime: str) -> dict[str, int]:
    """Bytes that importing each of the modules takes from the heap, in this order, in one process."""
    if toolchain.find(runtime) is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "measure.py"
        script.write_text(_MEASURE.format(modules=modules))
        done = RUNTIMES[runtime](script, path=[mpy.compiled(mpy.SDK)])
    if done.returncode:
        raise RuntimeError(f"on {runtime}: {done.stdout}")
    return {name: int(size) for name, size in (line.split() for line in done.stdout.splitlines())}


def measure() -> list[Size]:
    """Return the sizes of all modules of the core."""
    graph = imports(mpy.SDK)
    order = in_import_order(graph, sorted(graph))
    compiled = mpy.compiled(mpy.SDK)
    flash = {
        module_name(path): (compiled / path).with_suffix(".mpy").stat().st_size
        for path in mpy.modules(mpy.SDK)
    }
    heap64, heap32 = heap_of(order, "micropython"), heap_of(order, "wasm")
    return [Size(name, flash[name], heap64.get(name), heap32.get(name)) for name in sorted(order)]


def frames(root: Path = mpy.SDK) -> list[Frame]:
    """Functions below ``root`` whose frames come from the heap, largest first, from the compiler's own listing."""
    micropython = toolchain.find("micropython")
    if micropython is None:
        return []
    found = []
    for path in mpy.modules(root):
        command = [str(micropython), "-X", "compile-only", "-O2", "-v", "-v", "-v", "-v", str(root / path)]
        listing = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode(
            "latin-1"
        )
        pattern = r"code block '(.*?)' .*?\(N_STATE (\d+)\)\n\(N_EXC_STACK (\d+)\)"
        for function, state, exceptions in re.findall(pattern, listing, re.DOTALL):
            words = int(state) + _EXCEPTION_WORDS * int(exceptions)
            if words > STACK_WORDS and function != "<module>":
                found.append(Frame(module_name(path), function, words))
    return sorted(found, key=lambda frame: (-frame.words, frame.module, frame.function))


def _table(title: str, sizes: list[Size]) -> list[str]:
    def cell(value: int | None) -> str:
        return f"{value:>9,}" if value is not None else f"{'-':>9}"

    width = max(len(size.name) for size in sizes) + 2
    rows = [f"{title:<{width}}{'.mpy':>9}{'heap 64':>9}{'heap 32':>9}"]
    rows += [f"{size.name:<{width}}{cell(size.mpy)}{cell(size.heap64)}{cell(size.heap32)}" for size in sizes]
    return rows


def main() -> int:
    """Print the sizes."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.sizes", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--frames", action="store_true", help="also functions whose frames come from the heap"
    )
    chosen = parser.parse_args()
    modules = measure()
    large = frames() if chosen.frames or chosen.json else []
    if chosen.json:
        report = {
            "modules": [asdict(size) for size in modules],
            "frames": [asdict(frame) for frame in large],
        }
        print(json.dumps(report, indent=1))
        return 0
    print("\n".join(_table("module", modules)))
    if chosen.frames:
        print(f"\nframes of more than {STACK_WORDS} words, which a call takes from the heap and gives back")
        for frame in large:
            print(f"{frame.words:>4} words  {frame.module}.{frame.function}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
