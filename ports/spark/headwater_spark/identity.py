"""Sources of a message's identity and send time: its payload, its topic, or MQTT user properties."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: What makes an identity, and the send time.
PARTS = ("board", "boot", "seq")
TIME = "t"
SLOTS = (*PARTS, TIME)

FIELD, TOPIC, PROPERTY, VALUE = "field", "topic", "property", "value"
_KINDS = (FIELD, TOPIC, PROPERTY, VALUE)
_LEVEL = "{}"


class Source(NamedTuple):
    """A source: its kind, and the name of a field or property, a topic pattern, or a constant."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.what}"


_DEFAULT = tuple((slot, Source(FIELD, slot)) for slot in SLOTS)


@dataclass(frozen=True)
class Identity:
    """The source of each of SLOTS."""

    sources: tuple[tuple[str, Source], ...] = _DEFAULT

    @classmethod
    def parse(cls, given: Iterable[str] | Mapping[str, str]) -> Identity:
        """Return an identity from ``{"board": "topic:plant/{}/#"}`` or ``["board=topic:plant/{}/#"]``.

        What is not given has the field of its name. Raises ValueError with the text that is wrong.
        """
        pairs = given.items() if isinstance(given, Mapping) else [_pair(text) for text in given]
        sources = dict(_DEFAULT)
        for slot, text in pairs:
            sources[slot] = _source(slot, text)
        fields = [source.what for source in sources.values() if source.kind == FIELD]
        for name in fields:
            if fields.count(name) > 1:
                raise ValueError(f"the field {name!r} cannot be two parts of an identity")
        return cls(tuple(sources.items()))

    def fields(self) -> dict[str, str]:
        """Return the slots that come from the payload, by the name of their field."""
        return {source.what: slot for slot, source in self.sources if source.kind == FIELD}

    def others(self) -> list[tuple[str, Source]]:
        """Return the slots that do not come from the payload."""
        return [(slot, source) for slot, source in self.sources if source.kind != FIELD]

    def texts(self) -> list[str]:
        """Return the sources that are not the default, as `parse` takes them."""
        return [f"{slot}={source}" for slot, source in self.sources if (slot, source) not in _DEFAULT]


def _pair(text: str) -> tuple[str, str]:
    slot, equals, source = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected NAME=KIND:WHAT, such as board=topic:plant/{{}}/#")
    return slot, source


def _source(slot: str, text: str) -> Source:
    if slot not in SLOTS:
        raise ValueError(f"{slot!r} is no part of an identity: {', '.join(SLOTS)}")
    kind, _, what = text.partition(":")
    if kind not in _KINDS or not what:
        raise ValueError(f"{slot}={text}: expected one of {', '.join(f'{one}:...' for one in _KINDS)}")
    if kind == TOPIC:
        level_of(what)
    if kind == VALUE and slot != PARTS[0] and not whole_number(what):
        raise ValueError(f"{slot}={text}: not a whole number from 0 to 2**63 - 1")
    return Source(kind, what)


def level_of(pattern: str) -> re.Pattern[str]:
    """Compile a topic pattern: a filter in which one level is {}, the level to take. Raises ValueError."""
    levels = pattern.split("/")
    if levels.count(_LEVEL) != 1 or any(
        (level == "#" and k < len(levels) - 1)
        or (level not in ("+", "#", _LEVEL) and re.search("[+#{}]", level))
        for k, level in enumerate(levels)
    ):
        raise ValueError(f"{pattern!r}: expected a topic filter with one level {{}}, such as plant/{{}}/#")
    every = levels[-1] == "#"
    forms = {"+": "[^/]*", _LEVEL: "([^/]+)"}
    body = "/".join(forms.get(level, re.escape(level)) for level in (levels[:-1] if every else levels))
    return re.compile(body + ("(?:/.*)?" if every else ""), re.DOTALL)


def whole_number(text: str) -> bool:
    """Return whether a text is an integer from 0 to 2**63 - 1."""
    return bool(re.fullmatch("[0-9]{1,19}", text)) and int(text) < 1 << 63
