"""Writes components as a ROMFS image, which MicroPython (1.25 or newer) runs from flash in place.

The image is ``lib`` of a board: ``mpremote romfs deploy`` puts it into the board's ROMFS partition, which is mounted as
``/rom``, and ``/rom/lib`` is a part of ``sys.path``. Code, names and constants stay where they are; functions, classes
and what a program makes are in RAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mpremote.romfs import VfsRomWriter

FOLDER = "lib"


def image(files: Mapping[str, Path]) -> bytes:
    """The image of files, by their names below ``FOLDER``."""
    writer = VfsRomWriter()
    writer.opendir(FOLDER)
    _add(writer, "", files)
    writer.closedir()
    return bytes(writer.finalise())


def _add(writer: VfsRomWriter, folder: str, files: Mapping[str, Path]) -> None:
    """Add what is in ``folder``, which is empty or ends with a slash."""
    inside = sorted(name for name in files if name.startswith(folder))
    for name in dict.fromkeys(name.removeprefix(folder).partition("/")[0] for name in inside):
        if folder + name in files:
            writer.mkfile(name, files[folder + name].read_bytes())
        else:
            writer.opendir(name)
            _add(writer, f"{folder}{name}/", files)
            writer.closedir()
