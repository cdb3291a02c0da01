# heap: 1M
"""Every module of the core can be imported here: none needs what only CPython has."""

import os
import sys

import headwater


def _modules(folder: str, package: str) -> list[str]:
    found: list[str] = []
    for entry in sorted(os.listdir(folder)):
        stem, dot, kind = entry.rpartition(".")
        if dot and kind in ("py", "mpy") and stem != "__init__":
            found.append(package + "." + stem)
        elif not dot and entry != "__pycache__" and os.stat(folder + "/" + entry)[0] & 0x4000:
            found += [package + "." + entry] + _modules(folder + "/" + entry, package + "." + entry)
    return found


def test_every_module_of_the_core_imports() -> None:
    file = headwater.__file__
    assert file
    modules = _modules(file.rsplit("/", 1)[0], "headwater")
    assert "headwater.errors" in modules, modules
    for name in modules:
        if name != "headwater.types":  # for type checkers only
            __import__(name)
            assert name in sys.modules, name
