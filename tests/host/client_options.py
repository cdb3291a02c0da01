"""Options of a client in one dictionary, for tables of tests."""

import dataclasses
from typing import Any

from headwater_host.client.mqtt import ConnectionOptions, Limits, SessionOptions

_KINDS: dict[str, Any] = {"connection": ConnectionOptions, "session": SessionOptions, "limits": Limits}


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of a client: each field of an options class goes into an object of that class."""
    keywords = dict(options)
    for name, kind in _KINDS.items():
        fields = {field.name for field in dataclasses.fields(kind)} & keywords.keys()
        if fields:
            keywords[name] = kind(**{field: keywords.pop(field) for field in fields})
    return keywords
