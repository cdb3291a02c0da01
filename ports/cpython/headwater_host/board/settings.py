"""The settings file of a board: read it, change it, check it."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater_host.board.errors import BoardError
from headwater_host.board.install import LIB
from headwater_host.board.repl import Board
from headwater_host.exits import USAGE

PATH = "/headwater.json"
#: The board's module that checks settings: its compiled file on the board, its source below a folder of components.
MODULE = f"{LIB}/headwater_board/settings.mpy"
SOURCE = "source/headwater_board/settings.py"


def parse(text: bytes, name: str) -> dict[str, Any]:
    """Return the settings in a JSON text. Raises BoardError."""
    try:
        found = json.loads(text)
        encode(found)
    except (ValueError, RecursionError) as error:
        raise BoardError(f"{name} is not JSON: {error}", USAGE) from error
    if not isinstance(found, dict):
        raise BoardError(f"{name} has no settings: a JSON object is needed", USAGE)
    return found


def read(board: Board, *, repair: bool = False) -> dict[str, Any]:
    """Return the board's settings as they are in its file; {} if there is none, or with `repair`, if it is damaged."""
    try:
        return parse(board.get(PATH), f"{PATH} on the board")
    except FileNotFoundError:
        return {}
    except BoardError:
        if repair:
            return {}
        raise


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


def check(folder: Path, settings: Mapping[str, Any]) -> None:
    """Check settings as the board will, with its module from a folder of components. Raises BoardError."""
    path = folder / SOURCE
    spec = importlib.util.spec_from_file_location("headwater_board_settings", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BoardError(
            f"{path} is missing, so the settings cannot be checked: build the components again", USAGE
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.check(dict(settings), PATH)
        size = len(encode(settings))
        if size > module.LARGEST:
            raise BoardError(f"the settings have {size:,} bytes; allowed: up to {module.LARGEST:,}", USAGE)
    except module.SettingsError as error:
        raise BoardError(f"the settings are wrong, and nothing was written:\n{error}", USAGE) from error
    except UnicodeEncodeError as error:
        raise BoardError(f"the settings have text that is not UTF-8: {error.object!r}", USAGE) from error


def encode(settings: Mapping[str, Any]) -> bytes:
    """Return the text of a settings file."""
    # MicroPython decodes escaped surrogate pairs to bytes that are not UTF-8.
    return (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
