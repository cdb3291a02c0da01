"""Check arguments of the commands: sizes, logs, tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headwater_host.capture.filesystem import Location, LocationError
from headwater_host.capture.manifest import list_log
from headwater_host.exits import USAGE, CommandError, explain
from headwater_spark.launch import say, tables_at
from headwater_spark.place import Place
from headwater_spark.sizes import parse_size

if TYPE_CHECKING:
    from headwater_spark.plan import Log


def size(most: str) -> Callable[[str], int]:
    """Return an argument type for sizes from 1 byte to `most`."""

    def parse(text: str) -> int:
        try:
            value = parse_size(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from error
        if not 1 <= value <= parse_size(most):
            raise argparse.ArgumentTypeError(f"{text}: a size here is 1 to {most}")
        return value

    return parse


def check_logs(logs: Iterable[Log], *, wait: bool = False) -> None:
    """Raise CommandError if a log cannot be read, or is missing and the command does not `wait` for it."""
    for log in logs:
        try:
            list_log(*log)
        except FileNotFoundError as error:
            if not wait:
                what = f"{log.location} does not exist" if error.filename else str(error)
                raise CommandError(f"--capture: {what}", USAGE) from error
            say(f"{log.location} has no capture log yet: waiting for it")
        except NotADirectoryError as error:
            raise CommandError(f"--capture: {log.location} is not a directory", USAGE) from error
        except (OSError, LocationError) as error:
            raise CommandError(f"--capture: {explain(error)}", USAGE) from error


def existing_tables(option: str, location: Location, storage: Iterable[tuple[str, str]]) -> Place:
    """Return the place of tables that an option names. Raises CommandError if it is not a directory."""
    place = tables_at(location, storage)
    if place.path is not None and not place.path.is_dir():
        raise CommandError(f"{option}: {place} is not a directory", USAGE)
    return place
