"""Options of commands: declare them, and parse the usual kinds of values."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headwater_host import settings
from headwater_host.capture.filesystem import LocationError, is_remote, local_path, parse_storage
from headwater_host.exits import USAGE, CommandError


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return an argument type for whole numbers from ``least`` to ``most``."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return value

    return number


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def pause(text: str) -> float:
    """Parse a number of seconds, or 0."""
    return 0.0 if text == "0" else seconds(text)


_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?", re.ASCII)


def setting(what: str, convert: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return the argument type of a value of configuration files. ``what`` describes it."""

    def parse(text: str) -> Any:
        number = _NUMBER.fullmatch(text)
        try:
            return convert((float(text) if number[1] else int(text)) if number else text)
        except settings.ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None

    return parse


#: Kinds of options: arguments of ``add_argument``.
Kind = Mapping[str, Any]
FLAG: Kind = {"action": "store_true"}
FILE: Kind = {"type": Path, "metavar": "FILE"}
SECONDS: Kind = {"type": seconds, "metavar": "SECONDS"}
#: As in the configuration files.
DURATION: Kind = {"type": setting(*settings.DURATION), "metavar": "TIME"}
SIZE: Kind = {"type": setting(*settings.SIZE), "metavar": "SIZE"}
REPEATABLE: Kind = {"action": "append", "default": []}


def location(text: str) -> Path | str:
    """Parse a directory or the URI of one in an object store."""
    if not text:
        raise argparse.ArgumentTypeError("the directory name is empty")
    return text if is_remote(text) else local_path(text)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    try:
        (pair,) = parse_storage({key: value} if equals else {text: ""})
    except LocationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: expected {key}=VALUE")
    return pair


LOCATION: Kind = {"type": location, "metavar": "DIR"}
STORAGE: Kind = {"type": _pair, "metavar": "KEY=VALUE", "action": "append", "default": []}
STORAGE_HELP = "Storage option such as AWS_ENDPOINT_URL; repeatable"


def choice(default: str, *others: str) -> Kind:
    """Return the kind of an option that takes one of several words."""
    return {"choices": (default, *others), "default": default}


def integer(least: int, most: int) -> Kind:
    """Return the kind of an option that takes a whole number."""
    return {"type": whole(least, most), "metavar": "N"}


def option(group: argparse._ActionsContainer, flags: str, text: str, *kinds: Kind, **more: Any) -> None:
    """Add an option, or a positional argument. ``flags``: its names, separated by blanks; ``text``: its help."""
    given = {key: value for kind in (*kinds, more) for key, value in kind.items()}
    group.add_argument(*flags.split(), help=text, **given)


def subcommand(
    commands: "argparse._SubParsersAction[Any]", name: str, text: str, more: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand and return its parser. ``text``: its help; ``more``: further sentences of its description."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.{more and ' '}{more}",
        # -h is the host in commands that connect, as in mosquitto_pub: there, help is --help only.
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    return parser


def content(file: str) -> bytes:
    """Return the bytes of a file; ``-`` is standard input. Raises CommandError."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}", USAGE) from error


def directory(text: str) -> Path:
    """Parse a directory of this machine. Refuses "", which ``Path`` would take as the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("the directory name is empty")
    if is_remote(text):
        raise argparse.ArgumentTypeError(f"{text}: this needs a directory of this machine")
    return local_path(text)
