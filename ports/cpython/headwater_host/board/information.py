"""Information about a board: firmware, memory, flash, and installed components of headwater."""

import ast
from collections.abc import Iterable
from typing import Any

from headwater_host.board.errors import BoardError
from headwater_host.board.install import LIB, Record, room
from headwater_host.board.repl import Board

#: The oldest MicroPython that runs headwater.
OLDEST = (1, 24)

_FACTS = """
import gc, os, sys
gc.collect()
_i = sys.implementation
_s = os.statvfs("/")
_f = {
    "implementation": _i.name,
    "version": tuple(_i.version),
    "release": sys.version.split("; ")[-1],
    "machine": getattr(_i, "_machine", ""),
    "platform": sys.platform,
    "mpy": getattr(_i, "_mpy", 0),
    "memory_free": gc.mem_free(),
    "memory": gc.mem_free() + gc.mem_alloc(),
    "flash": _s[0] * _s[2],
    "id": "",
    "romfs": False,
    "library": None,
}
try:
    import machine
    _f["id"] = "".join("%02x" % _b for _b in machine.unique_id())
except (ImportError, AttributeError):
    pass
try:
    import headwater
    _f["library"] = (headwater.__version__, headwater.__file__)
except Exception:  # not there, or torn
    pass
try:
    os.stat("/rom")
    _f["romfs"] = True
except OSError:
    pass
print(_f)
"""


def facts(board: Board) -> dict[str, Any]:
    """Return firmware, memory and flash of a board."""
    found: dict[str, Any] = ast.literal_eval(board.exec(_FACTS))
    block, free = room(board)
    return {**found, "flash_free": block * free}


def _dotted(version: tuple[object, ...]) -> str:
    """Return a version, such as 1.29.0-preview."""
    return ".".join(map(str, version[:3])) + "".join(f"-{part}" for part in version[3:] if part)


def check_firmware(found: dict[str, Any]) -> None:
    """Raise BoardError if the firmware is not MicroPython, or too old."""
    if found["implementation"] != "micropython":
        raise BoardError(f"the board runs {found['implementation']}; headwater needs MicroPython")
    version = tuple(found["version"][:2])
    if version < OLDEST:
        raise BoardError(
            f"the firmware is too old: MicroPython {_dotted(found['version'])}; headwater needs "
            f"{_dotted(OLDEST)} or newer: https://micropython.org/download"
        )


def check_place(found: dict[str, Any]) -> None:
    """Raise BoardError if the board would import headwater from another place than the one of installations."""
    if found["library"] and not found["library"][1].startswith(f"{LIB}/"):
        version, file = found["library"]
        raise BoardError(
            f"the board takes headwater {version} from {file}, which comes before {LIB}: remove it there (ROMFS or a "
            "directory), or flash a firmware without it"
        )


def check_bytecode(found: dict[str, Any], files: Iterable[bytes]) -> None:
    """Raise BoardError if the firmware does not load the bytecode of compiled files."""
    ours, theirs = {data[1] for data in files if data[:1] == b"M"}, found["mpy"] & 0xFF
    if ours - {theirs}:
        raise BoardError(
            f"the firmware loads .mpy version {theirs}, the components are version {max(ours)}: use a headwater and a "
            "MicroPython of the same time"
        )


def firmware(found: dict[str, Any]) -> str:
    """Return the firmware in words."""
    version = f"{found['implementation']} {_dotted(found['version'])}"
    return f"{version} for {found['platform']} ({found['release']})"


def report(port: str, found: dict[str, Any], record: Record) -> str:
    """Return the lines that describe a board."""
    mpy = found["mpy"]
    installed = "not installed"
    if found["library"]:
        installed = "{} from {}".format(*found["library"])
    if record.components:
        installed = f"{record.version}: {', '.join(record.components)}"
    if not record.complete:
        installed += "; the installation was interrupted: repeat `headwater board install`"
    rows = {
        "port": port,
        "machine": found["machine"] or found["platform"],
        "id": found["id"],
        "firmware": firmware(found),
        "bytecode": f".mpy {mpy & 0xFF}.{mpy >> 8 & 3}{', ROMFS' * found['romfs']}",
        "memory": f"{found['memory_free']:,} of {found['memory']:,} bytes free",
        "flash": f"{found['flash_free']:,} of {found['flash']:,} bytes free",
        "headwater": installed,
    }
    return "".join(f"{name:10} {text}\n" for name, text in rows.items())
