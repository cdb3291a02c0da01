"""Runs a script on MicroPython on this machine: 64-bit (the unix build) or 32-bit (WebAssembly on node)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools import toolchain

Result = subprocess.CompletedProcess[str]
_RUN_WASM = Path(__file__).with_name("wasm") / "run.mjs"


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
    timeout: float = 100,
) -> Result:
    """Run ``script`` on the unix build, with ``path`` as module path; it sees all of this machine, not only ``see``."""
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
    timeout: float = 100,
) -> Result:
    """Run ``script`` on 32-bit MicroPython; it sees copies of its own folder, of ``path`` and of ``see``.

    The heap grows beyond ``heap`` when it must: it is a first size, not a limit.
    """
    command = ["node", str(_RUN_WASM), str(_tool("wasm")), "--heapsize", str(heap)]
    for option, folders in (("--path", path), ("--see", see)):
        for folder in folders:
            command += [option, str(folder)]
    return _run([*command, str(script), *arguments], {"PATH": os.environ.get("PATH", os.defpath)}, timeout)


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
