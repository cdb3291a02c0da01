"""Read a TOML file: check every key and report all mistakes at once, each with its line."""

import importlib
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater_host.errors import ArgumentError
from headwater_host.topics import filter_bytes


class ConfigError(Exception):
    """The configuration is wrong. The text says what and where."""


@dataclass(frozen=True)
class Key:
    """A key of a table: a description of its values, and a function that converts a value.

    The function raises ConfigError, ValueError or TypeError for a wrong value.
    """

    what: str
    convert: Callable[[Any], Any]
    required: bool = False
    #: True if errors must not show the value.
    secret: bool = False
    #: The meaning and the default, for the documentation.
    meaning: str = ""


def text(value: object) -> str:
    """Convert text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


def path(value: object) -> Path:
    """Convert a path."""
    return Path(text(value))


def whole(least: int, most: int) -> Callable[[object], int]:
    """Return a conversion for whole numbers from ``least`` to ``most``."""

    def convert(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return convert


_UNITS = {name: 1 << 10 * n for n, unit in enumerate("KMGT", 1) for name in (f"{unit}iB", unit.lower())}


def size(value: object) -> int:
    """Convert a number of bytes, at least 1: a whole number, or text such as "64 MiB" or "64m"."""
    if isinstance(value, str):
        found = re.fullmatch(r"([0-9]{1,15}) ?([KMGT]iB|[kmgt])", value)
        if found is None:
            raise ValueError
        value = int(found[1]) * _UNITS[found[2]]
    return whole(1, 1 << 60)(value)


def truth(value: object) -> bool:
    """Convert true or false."""
    if not isinstance(value, bool):
        raise ValueError
    return value


def seconds(value: object) -> float:
    """Convert a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
        raise ValueError
    return float(value)


_DURATIONS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: object) -> float:
    """Convert a number of seconds above 0, or text such as "30 d", "12 h", "90 min" or "45 s"."""
    if isinstance(value, str):
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(s|min|h|d)", value)
        if found is None:
            raise ValueError
        value = float(found[1]) * _DURATIONS[found[2]]
    return seconds(value)


def filters(value: object) -> tuple[str, ...]:
    """Convert a list of different topic filters."""
    if not isinstance(value, list) or not value:
        raise ValueError
    names = tuple(text(item) for item in value)
    try:
        for name in names:
            filter_bytes(name)
    except ArgumentError as error:
        raise ConfigError(str(error)) from error
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the topic {name!r} is named twice")
    return names


#: What values of a key are, and their conversion: the first arguments of ``Key``.
Kind = tuple[str, Callable[[Any], Any]]
TEXT: Kind = "a text", text
FILE: Kind = "a file", path
TRUTH: Kind = "true or false", truth
COUNT: Kind = "a whole number above 0", whole(1, 1 << 40)
SIZE: Kind = 'a number of bytes, or text such as "64 MiB"', size
SECONDS: Kind = "a number of seconds above 0", seconds
DURATION: Kind = 'a number of seconds above 0, or text such as "30 d", "12 h" or "90 min"', duration
FILTERS: Kind = "a list of topic filters", filters


def between(least: int, most: int) -> Kind:
    """Return the kind of whole numbers from ``least`` to ``most``."""
    return f"a whole number from {least} to {most}", whole(least, most)


def one_of(*words: str) -> Kind:
    """Return the kind of these texts."""

    def convert(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return " or ".join(f'"{word}"' for word in words), convert


def read_password(path: Path) -> bytes:
    """Return the first line of a file. Raises ConfigError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the password in {path}: {error.strerror}") from error
    if not lines or not lines[0]:
        raise ConfigError(f"there is no password in {path}")
    return lines[0]


def read_toml(source: str) -> dict[str, Any]:
    """The values of a TOML text. Raises ValueError and RecursionError; ConfigError when nothing here reads TOML."""
    try:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        text = "before Python 3.11, TOML needs a package of its own: pip install 'headwater[gateway]'"
        raise ConfigError(text) from error
    values: dict[str, Any] = toml.loads(source)
    return values


@dataclass
class SettingsFile:
    """A TOML file, where its keys stand, and what is wrong with it so far."""

    path: Path
    lines: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    _mistakes: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "SettingsFile":
        """Read a file. ConfigError: it cannot be read, or is not TOML."""
        try:
            source = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8") from error
        try:
            values = read_toml(source)
        except (ValueError, RecursionError) as error:
            # The parser's own error is a ValueError, as is a number of thousands of digits.
            raise ConfigError(f"{path}: {error}") from error
        return cls(path, source.splitlines(), values)

    def fail(self, text: str, table: str = "", index: int = 0, key: str = "") -> ConfigError:
        """An error at a key of a table; the parser of Python does not say where it found what."""
        return ConfigError(self._placed(self._find(table, index, key), text))

    def mistake(self, text: str, table: str = "", index: int = 0, key: str = "") -> None:
        """Something is wrong at a key of a table: ``check`` says so."""
        self._mistakes.append((self._find(table, index, key), text))

    def check(self) -> None:
        """ConfigError with every mistake so far, a line each."""
        if self._mistakes:
            raise ConfigError("\n".join(self._placed(*mistake) for mistake in sorted(self._mistakes)))

    def _placed(self, line: int, text: str) -> str:
        return f"{self.path}{f', line {line}' if line else ''}: {text}"

    def _find(self, table: str, index: int, key: str) -> int:
        now, seen, header = "", -1, 0
        for number, line in enumerate(self.lines, 1):
            found = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?", line)
            if found:
                now = found[1].strip("\"'")
                seen += now == table
                if now == table and seen == index:
                    header = number
            elif now == table and (not table or seen == index) and key:
                named = re.match(r"""\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+)\s*[=.]""", line)
                if named and named[1].strip("\"'") == key:
                    return number
            if now == key and not table:
                return number
        return header

    def top(self, keys: dict[str, Key], tables: Collection[str]) -> dict[str, Any]:
        """The values in front of all tables that are right; ``tables`` are the names of those."""
        values = {key: value for key, value in self.values.items() if key not in tables}
        return self.take(values, keys, known=[*keys, *tables])

    def take(
        self,
        values: dict[str, Any],
        keys: dict[str, Key],
        table: str = "",
        index: int = 0,
        known: Collection[str] = (),
    ) -> dict[str, Any]:
        """The values of a table that are right; what is wrong is a mistake. ``table`` is its name as it is shown:
        ``[name]``, or ``[[name]]`` where there may be several."""
        taken = {}
        name = table.strip("[]")
        where = f" in {table}" if table else ""
        for key, value in values.items():
            if key not in keys:
                self.mistake(
                    f"there is no key {key!r}{where}; there are {', '.join(known or keys)}", name, index, key
                )
                continue
            try:
                taken[key] = keys[key].convert(value)
            except ConfigError as error:
                self.mistake(f"{key!r}{where}: {error}", name, index, key)
            except (ValueError, TypeError):
                found = "another kind of value" if keys[key].secret else repr(value)
                self.mistake(f"{key!r}{where} is {keys[key].what}, not {found}", name, index, key)
        for key, wanted in keys.items():
            if wanted.required and key not in values:
                self.mistake(f"{key!r}{where} is missing: {wanted.what}", name, index)
        return taken

    def table(self, name: str, keys: dict[str, Key]) -> dict[str, Any]:
        """The values of the table ``[name]`` that are right; none when it is not there."""
        if name not in self.values:
            return {}
        values = self.values[name]
        if not isinstance(values, dict):
            self.mistake(f"{name!r} is a table: [{name}]", key=name)
            return {}
        return self.take(values, keys, f"[{name}]")

    def tables(self, name: str, keys: dict[str, Key]) -> list[dict[str, Any]]:
        """The values of each of the tables ``[[name]]`` that are right."""
        values = self.values.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self.mistake(f"{name!r} is a list of tables: [[{name}]]", key=name)
            return []
        return [self.take(value, keys, f"[[{name}]]", index) for index, value in enumerate(values)]
