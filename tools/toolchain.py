"""Find the programs that tests, demo and benchmarks need besides Python packages, and say how to install them.

`find(name)` returns a path or None; `TOOLS` is the table.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
WASM_PACKAGE = CACHE / "wasm/node_modules/@micropython/micropython-webassembly-pyscript"
JAVA_AT_LEAST = 17


@dataclass(frozen=True)
class Tool:
    """One program: its purpose, how to find it, and how to install it."""

    what: str
    find: Callable[[], Path | None]
    get: str


def _on_path(program: str) -> Path | None:
    # Debian installs daemons in directories that are not on a user's PATH.
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(program, path=places)
    return Path(found) if found else None


def _micropython() -> Path | None:
    installed = Path(sys.executable).parent / "micropython"
    return installed if installed.exists() else _on_path("micropython")


def _wasm() -> Path | None:
    return WASM_PACKAGE if WASM_PACKAGE.is_dir() and _on_path("node") else None


def _rabbitmq() -> Path | None:
    # Debian's wrapper on PATH requires another user.
    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return program if program.exists() else _on_path("rabbitmq-server")


def _postgresql() -> Path | None:
    # Debian installs the server's programs for each version, outside of PATH.
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return found[-1] if found else _on_path("postgres")


def _module(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin) if spec is not None and spec.origin else None


def _java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin/java" if home else _on_path("java")
    if java is None or not java.exists():
        return None
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', text)
    return java if version and int(version[1]) >= JAVA_AT_LEAST else None


TOOLS = {
    "mosquitto": Tool("the MQTT broker", lambda: _on_path("mosquitto"), "apt-get install mosquitto"),
    "tshark": Tool("an independent decoder", lambda: _on_path("tshark"), "apt-get install tshark"),
    "chromium": Tool("shows pages", lambda: _on_path("chromium"), "apt-get install chromium"),
    "node": Tool("runs WebAssembly", lambda: _on_path("node"), "apt-get install nodejs npm"),
    "wasm": Tool("32-bit MicroPython", _wasm, "apt-get install nodejs npm, then ./run setup"),
    "micropython": Tool(
        "MicroPython's unix build",
        _micropython,
        "./run setup (x86-64 Linux), or put a MicroPython 1.24 or newer on PATH",
    ),
    "rabbitmq": Tool(
        "another MQTT broker",
        _rabbitmq,
        "apt-get install rabbitmq-server (its service is not needed: systemctl disable --now rabbitmq-server)",
    ),
    "redis": Tool(
        "compared with the hub in its benchmark",
        lambda: _on_path("redis-server"),
        "apt-get install redis-server (its service is not needed: systemctl disable --now redis-server)",
    ),
    "postgresql": Tool(
        "storage of several hubs",
        _postgresql,
        "apt-get install postgresql (its service is not needed: systemctl disable --now postgresql)",
    ),
    "atheris": Tool(
        "a coverage-guided fuzzer",
        lambda: _module("atheris"),
        "./run setup (x86-64 Linux with Python 3.11 to 3.14), or pip install atheris",
    ),
    "ibmmq": Tool(
        "IBM's package, without its client",
        lambda: _module("ibmmq"),
        "./run setup (x86-64 Linux), or pip install ibmmq",
    ),
    "cc": Tool("a C compiler", lambda: _on_path("cc"), "apt-get install gcc libc6-dev"),
    "java": Tool("runs Spark", _java, f"apt-get install default-jre-headless ({JAVA_AT_LEAST} or newer)"),
}


@functools.cache
def find(name: str) -> Path | None:
    """Return the path of the tool `name`, or None."""
    return TOOLS[name].find()
