"""The components that a board can get: compiled files, carried by the wheel or built from a checkout.

A component NAME is NAME.json, a package file of mip, beside the files that it lists. A wheel has them because its
build compiles them (tools/wheel_components.py): bytecode is the same for all boards, and the user needs no compiler.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headwater_host.board.errors import BoardError
from headwater_host.board.install import LIB, Record, hash_of
from headwater_host.board.tracebacks import NAMES
from headwater_host.exits import USAGE

#: Where the wheel has them.
PACKAGED = Path(__file__).with_name("components")
#: Environment variable that names another folder.
VARIABLE = "HEADWATER_COMPONENTS"
#: Components for tables of the settings.
_OPTIONAL = {
    "wifi": "headwater-wifi",
    "ethernet": "headwater-wifi",
    "serial": "headwater-link",
    "update": "headwater-update",
}


class Component(NamedTuple):
    """A component: its name, version, and files by their names on the board."""

    name: str
    version: str
    files: dict[str, Path]


def available(folder: Path) -> list[str]:
    """Return the names of the components in `folder`."""
    names = sorted(path.stem for path in folder.glob("headwater*.json"))
    if not names:
        raise BoardError(
            f"there are no components in {folder}: in a checkout run `./run build`, and pass --components "
            f"out/components or set {VARIABLE}",
            USAGE,
        )
    return names


def fitting(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the components that a board with these settings needs."""
    if not settings:
        return ["headwater-mqtt"]
    names = ["headwater-device"]
    if (settings.get("broker") or {}).get("protocol") == "fmq":
        names.append("headwater-fmq")
    return names + [name for key, name in _OPTIONAL.items() if key in settings]


def load(folder: Path, names: Iterable[str]) -> list[Component]:
    """Return components by their names, with or without "headwater-"."""
    known = available(folder)
    found = []
    for name in names:
        full = name if name in known else f"headwater-{name}"
        if full not in known:
            raise BoardError(f"there is no component {name!r}; there are {', '.join(known)}", USAGE)
        package = json.loads((folder / f"{full}.json").read_text())
        files = {f"{LIB}/{target}": folder / source for target, source in package["urls"]}
        found.append(Component(full, package["version"], files))
    return found


def names(folder: Path, record: Record | None = None) -> dict[str, Any]:
    """Return what translates tracebacks of the components in `folder`; nothing if the folder does not have it.

    With `record`, only files that are the same on the board count: the lines of another build would be wrong.
    """
    known: dict[str, Any] = {"lines": {}, "names": {}}
    path = folder / NAMES
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
    if record is not None:
        files = {name: f"{name.removesuffix('.py')}.mpy" for name in known["lines"]}
        known["lines"] = {
            name: lines
            for name, lines in known["lines"].items()
            if record.files.get(f"{LIB}/{files[name]}")
            == hash_of((folder / "lib" / files[name]).read_bytes())
        }
    return known
