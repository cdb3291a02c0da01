"""Write the documentation's list of the clients' options from their dataclasses."""

import dataclasses
import inspect
import re
from typing import Any

from headwater_host.client import options
from headwater_host.client.mqtt import ConnectionOptions, Limits, Reconnect, SessionOptions

_ITEM = re.compile(r"^- ((?:``\w+``(?:, )?)+): (.*?)(?=^- |\Z)", re.DOTALL | re.MULTILINE)


def _meanings(kind: type) -> dict[str, str]:
    """Return the first sentence about each field from the lists in the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for names, text in _ITEM.findall(inspect.cleandoc(base.__doc__ or "")):
            words = " ".join(text.replace("``", "`").split())
            sentence = re.split(r"(?<=\.) (?=[A-Z\"])", words)[0].rstrip(".")
            found |= {name: found.get(name) or sentence for name in re.findall(r"``(\w+)``", names)}
    return found


def client_options() -> str:
    """List all fields: whose they are, their defaults, and the first sentence about each."""
    lines: list[str] = []
    kinds: tuple[tuple[str, Any, Any], ...] = (
        ("ConnectionOptions", ConnectionOptions, ConnectionOptions),
        ("SessionOptions", SessionOptions, options.SessionOptions),
        ("Limits", Limits, options.Limits),
        ("Reconnect", Reconnect, Reconnect),
    )
    for title, kind, shared in kinds:
        lines += ["", f"**`{title}`**", ""][not lines :]
        meanings = _meanings(kind)
        everywhere = {field.name for field in dataclasses.fields(shared)}
        for field in dataclasses.fields(kind):
            only = "" if field.name in everywhere else " (MQTT)"
            lines.append(f"- `{field.name}={field.default!r}`{only}: {meanings[field.name]}")
    return "\n".join(lines) + "\n"
