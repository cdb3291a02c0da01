"""Finds and reads the shared test vectors, ``tests/vectors/*.json``, wherever the portable tests run."""

import binascii
import json


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
