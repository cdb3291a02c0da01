"""Runs a script on MicroPython on this machine: 64-bit (the unix build) or 32-bit (WebAssembly on node)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools import toolchain

Result = subprocess.CompletedProcess[str]
_RUN_WASM = Path(__file__).with_name("wasm") / "run.mjs"
#: Bytes in one argument, or one folder of the module path, of the unix build: it interns them, and dies of longer ones.
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
    """Run ``script`` on the unix build, with ``path`` as module path; it sees all of this machine, not only ``see``.

    Raises ValueError for what is longer than ``LONGEST_ARGUMENT``.
    """
    for word in (str(script), *arguments, *map(str, path)):
        if len(os.fsencode(word)) > LONGEST_ARGUMENT:
            raise ValueError(f"more than {LONGEST_ARGUMENT} bytes are too long for MicroPython: {word}")
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
    """Run ``script`` on 32-bit MicroPython; it sees copies of its own folder, of ``path`` and of ``see``.

    The heap grows beyond ``heap`` when it must: it is a first size, not a limit.
    """
    command = ["node", str(_RUN_WASM), str(_tool("wasm")), "--heapsize", str(heap)]
    for option, folders in (("--path", path), ("--see", see)):
        for folder in folders:
            command += [option, str(folder)]
    return _run([*command, str(script), *arguments], {"PATH": os.environ.get("PATH", os.defpath)}, timeout)


def parse_size(text: str) -> int:
    """Bytes in ``192K``, ``1M`` or ``4096``; ValueError for anything else."""
    unit = {"K": 1024, "M": 1024 * 1024}.get(text[-1:].upper(), 0)
    digits = text[:-1] if unit else text
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise ValueError(f"not a size: {text!r} (examples: 128K, 1M, 65536)")
    return int(digits) * (unit or 1)


def declared_heap(script: Path) -> int:
    """What a test script says it needs, in a line ``# heap: 2M`` at its head; 0 when it says nothing."""
    for line in script.read_text().splitlines():
        if not line.startswith("#"):
            break
        key, _, size = line[1:].partition(":")
        if key.strip() == "heap":
            return parse_size(size.strip())
    return 0


#: Name of the tool that a runtime needs (``tools.toolchain``): how to run a script on it.
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
