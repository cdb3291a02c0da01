"""The settings file of a board: read it, change it, write it so that a power cut leaves the old or the new one."""

import json
from collections.abc import Mapping
from typing import Any

from headwater_host.board.errors import BoardError
from headwater_host.board.repl import Board
from headwater_host.exits import USAGE

PATH = "/headwater.json"
_NEW = "/headwater.json.new"
# Prints the mistakes that the board finds in the new file; nothing without the module.
_CHECK = f"""
try:
    from headwater_board.settings import load, SettingsError
except ImportError:
    pass
else:
    try:
        load({_NEW!r})
    except SettingsError as e:
        print(e)
"""
# littlefs replaces a file at once; FAT does not rename over a file.
_REPLACE = f"""
import os
try:
    os.rename({_NEW!r}, {PATH!r})
except OSError:
    os.remove({PATH!r})
    os.rename({_NEW!r}, {PATH!r})
"""


def parse(text: bytes, name: str) -> dict[str, Any]:
    """Return the settings in a JSON text. Raises BoardError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BoardError(f"{name} is not JSON: {error}", USAGE) from error
    if not isinstance(found, dict):
        raise BoardError(f"{name} has no settings: a JSON object is needed", USAGE)
    return found


def read(board: Board) -> dict[str, Any]:
    """Return the board's settings as they are in its file; {} if there is none."""
    try:
        return parse(board.get(PATH), f"{PATH} on the board")
    except FileNotFoundError:
        return {}


def patched(settings: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the changes of a JSON merge patch (RFC 7396): None removes a key, tables are merged."""
    result = dict(settings)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = result.get(key)
            result[key] = patched(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result


def write(board: Board, settings: Mapping[str, Any]) -> None:
    """Write settings, after the board has checked them. Raises BoardError with the mistakes."""
    board.put(_NEW, (json.dumps(settings, indent=2) + "\n").encode())
    mistakes = board.exec(_CHECK).replace(_NEW, PATH).strip()
    if mistakes:
        board.remove(_NEW)
        raise BoardError(f"the settings are wrong and were not written:\n{mistakes}", USAGE)
    board.exec(_REPLACE)
