"""Finds and reads the shared test vectors, ``tests/vectors/*.json``, wherever the portable tests run."""

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
