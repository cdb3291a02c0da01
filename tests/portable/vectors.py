"""Finds and reads the shared test vectors, ``tests/vectors/*.json``, wherever the portable tests run."""

import binascii
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def _parent(name: str) -> str:
    if "/" in name:
        return name.rsplit("/", 1)[0]
    return ".." if name == "." else "."


def path(name: str) -> str:
    """The path of a vector file: ``path("mqtt_decode")``. The directory lies beside the one with this file."""
    return _parent(_parent(__file__)) + "/vectors/" + name + ".json"


def load(name: str):  # type: ignore[no-untyped-def]  # whatever the file holds
    """The content of a vector file."""
    with open(path(name)) as file:
        return json.load(file)


def rows(name: str, section: str) -> "Iterator[dict[str, Any]]":
    """The rows of one list of a vector file, one in memory at a time: a board has no room for the whole file.

    For files with one row on a line, as all of them are laid out.
    """
    inside = False
    with open(path(name)) as file:
        for line in file:
            line = line.strip()
            if not inside:
                inside = line == '"' + section + '": ['
            elif line in ("]", "],"):
                return
            elif line:
                yield json.loads(line[:-1] if line.endswith(",") else line)
    raise ValueError("no list of this name, or no end of it: " + section)


def unhex(text: str) -> bytes:
    """The bytes of a hex field: blanks mean nothing, and ``(5a*3)`` stands for ``5a5a5a``."""
    parts = []
    for piece in text.replace(" ", "").split("("):
        group, closed, rest = piece.partition(")")
        if closed:
            digits, _, times = group.partition("*")
            parts.append(binascii.unhexlify(digits) * int(times))
        else:
            rest = group
        parts.append(binascii.unhexlify(rest))
    return b"".join(parts)


def text_of(fields, name: str) -> bytes:  # type: ignore[no-untyped-def]  # a row of a vector file
    """A string field of a row in UTF-8: ``name``, or ``name_hex`` where the string is too long to write out."""
    return unhex(fields[name + "_hex"]) if name + "_hex" in fields else fields[name].encode()
