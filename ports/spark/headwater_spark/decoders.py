"""Decoders of payloads that users register by topic filter.

A decoder takes the payload of one message and returns its values by name, or None to leave it in the payload:

    def decode(payload: bytes) -> dict[str, object] | None: ...

With the decorator `columns`, it takes an Arrow array of payloads and returns a mapping of names to Arrow arrays (or a
record batch or table), with one value or null for each payload:

    @columns
    def decode(payloads: pa.BinaryArray) -> dict[str, pa.Array]: ...

Values are numbers, booleans and strings.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headwater_host.topics import Topic, Wildcard

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "headwater_takes_columns"


def columns(function: _Function) -> _Function:
    """Mark a decoder that takes an Arrow array of payloads and returns columns."""
    setattr(function, _MARK, True)
    return function


def takes_columns(function: Callable[..., Any]) -> bool:
    """Return whether a decoder takes columns."""
    return bool(getattr(function, _MARK, False))


@dataclass(frozen=True)
class Decoder:
    """A decoder for the topics that match a filter: a function, or the name of one that each task imports."""

    filter: str
    function: Callable[..., Any] | None = None
    name: str = ""
    folder: str = ""

    def resolve(self) -> Callable[..., Any]:
        """Return the function. Raises ImportError or AttributeError if there is no such function."""
        if self.function is not None:
            return self.function
        module, _, attribute = self.name.partition(":")
        # The modules beside a script, which tasks do not know.
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return found

    def matches(self, topic: str) -> bool:
        """Return whether a topic is for this decoder."""
        return Topic(topic).matches(self.filter)


def registered(decoders: Mapping[str, Callable[..., Any]] | Iterable[Decoder]) -> tuple[Decoder, ...]:
    """Return decoders given by topic filter. Raises ValueError for a filter that is malformed."""
    if isinstance(decoders, Mapping):
        decoders = [Decoder(pattern, function) for pattern, function in decoders.items()]
    found = tuple(decoders)
    for decoder in found:
        Wildcard(decoder.filter)
    return found


def parse_decoder(text: str, folder: str) -> Decoder:
    """Return the decoder of ``FILTER=module:function``, imported to check it. Raises ValueError."""
    pattern, equals, name = text.rpartition("=")
    module, colon, attribute = name.partition(":")
    if not (equals and module and colon and attribute):
        raise ValueError(f"{text!r}: expected FILTER=MODULE:FUNCTION")
    decoder = Decoder(pattern, name=name, folder=folder)
    registered([decoder])
    try:
        function = decoder.resolve()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{text!r}: {error}") from error
    except (Exception, SystemExit) as error:
        # The module's own code failed.
        raise ValueError(f"{text!r}: {type(error).__name__} in {module}: {error}") from error
    if not callable(function):
        raise ValueError(f"{text!r}: {name} is not a function")
    return decoder
