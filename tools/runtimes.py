"""Run scripts on MicroPython on this machine: 64-bit (unix build) or 32-bit (WebAssembly on node)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools import toolchain

Result = subprocess.CompletedProcess[str]
_RUN_WASM = Path(__file__).with_name("wasm") / "run.mjs"
#: Maximum bytes of an argument or module folder: the unix build interns them and crashes on longer ones.
LONGEST_ARGUMENT = 255


def _tool(name: str) -> Path:
    path = toolchain.find(name)
    if path is None:
        tool = toolchain.TOOLS[name]
        raise FileNotFoundError(f"{name} ({tool.what}) is missing: {tool.get}")
    return path


def run_unix(
    script: Path,
    *arguments: str,
    path: Sequence[Path] = (),
    see: Sequence[Path] = (),
    heap: int = 2 << 20,
    timeout: float = 500,
) -> Result:
    """Run `script` on the unix build with `path` as module path. It sees all files of this machine, not only `see`.

    Raises ValueError for words longer than `LONGEST_ARGUMENT`.
    """
    for word in (str(script), *arguments, *map(str, path)):
        if len(os.fsencode(word)) > LONGEST_ARGUMENT:
            raise ValueError(f"MicroPython accepts at most {LONGEST_ARGUMENT} bytes in an argument: {word}")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "MICROPYPATH": ":".join([*map(str, path), ".frozen"]),
    }
    command = [str(_tool("micropython")), "-X", f"heapsize={heap}", str(script), *arguments]
    return _run(command, environment, timeout)


def run_wasm(
    script: Path,
    *arguments: str,
    path: Sequence[Path] = (),
    see: Sequence[Path] = (),
    heap: int = 2 << 20,
    timeout: float = 500,
) -> Result:
    """Run `script` on 32-bit MicroPython. It sees copies of its own directory, of `path` and of `see`.

    `heap` is the initial size; the heap can grow.
    """
    command = ["node", str(_RUN_WASM), str(_tool("wasm")), "--heapsize", str(heap)]
    for option, folders in (("--path", path), ("--see", see)):
        for folder in folders:
            command += [option, str(folder)]
    return _run([*command, str(script), *arguments], {"PATH": os.environ.get("PATH", os.defpath)}, timeout)


def parse_size(text: str) -> int:
    """Return the bytes of `192K`, `1M` or `4096`. Raises ValueError for other texts."""
    unit = {"K": 1024, "M": 1024 * 1024}.get(text[-1:].upper(), 0)
    digits = text[:-1] if unit else text
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise ValueError(f"not a size: {text!r} (examples: 128K, 1M, 65536)")
    return int(digits) * (unit or 1)


def declared_heap(script: Path) -> int:
    """Return the heap that a test script requests in a line `# heap: 2M`, or 0."""
    for line in script.read_text().splitlines():
        if not line.startswith("#"):
            break
        key, _, size = line[1:].partition(":")
        if key.strip() == "heap":
            return parse_size(size.strip())
    return 0


#: Functions that run a script, by the name of the tool they need (``tools.toolchain``).
RUNTIMES: Mapping[str, Callable[..., Result]] = {"micropython": run_unix, "wasm": run_wasm}


def _run(command: list[str], environment: Mapping[str, str], timeout: float) -> Result:
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout,
    )
