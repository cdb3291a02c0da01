"""Run `headwater pipeline report`: make a page from the tables. It needs neither Spark nor Java."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater_host.cli.options import directory
from headwater_host.exits import FAILED, OK, USAGE, CommandError


def add_parser(actions: Any) -> None:
    """Add the action `report` and its options."""
    parser = actions.add_parser(
        "report",
        help="make a page from the tables",
        description=(
            "Summarize the tables of a pipeline in one HTML page and print its verdict. The exit code is 1 if "
            "acknowledged messages are lost or the log is damaged."
        ),
    )
    for name, metavar, kind, default, what in _OPTIONS:
        action = "append" if default == [] else "store"
        parser.add_argument(
            name,
            metavar=metavar,
            type=kind,
            default=default,
            required=name == "--tables",
            action=action,
            help=what,
        )


def _time(text: str) -> int:
    from headwater_spark.options import parse_time

    try:
        return parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


# Name, metavar, type, default (a list: repeatable), help.
_OPTIONS: tuple[tuple[str, str, Callable[[str], Any], Any, str], ...] = (
    ("--tables", "DIR", directory, None, "Directory of the tables"),
    ("--out", "FILE", Path, None, "The page; default: report.html in DIR"),
    ("--since", "TIME", _time, None, "First receive time; default: 7 days before the last"),
    ("--until", "TIME", _time, None, "Only messages received before; default: all"),
    ("--board", "NAME", str, [], "Show values and gaps of this board; repeatable"),
)


def run(args: argparse.Namespace) -> int:
    """Write the page and print its verdict. Returns 1 if a finding is serious."""
    from headwater_spark.overview import Options
    from headwater_spark.progress import Display
    from headwater_spark.report import write_page
    from headwater_spark.verdict import headline

    if not args.tables.is_dir():
        raise CommandError(f"--tables: {args.tables} is not a directory", USAGE)
    path = args.out or args.tables / "report.html"
    options = Options(args.since, args.until, tuple(args.board))
    try:
        findings = write_page(args.tables, path, options, display=Display())
    except OSError as error:
        raise CommandError(str(error), FAILED) from error
    print(f"{headline(findings)}:")
    for finding in findings:
        print(f"{finding.level:4}  {finding.text}")
    print(f"\nThe report is {path}")
    return FAILED if findings[0].level == "bad" else OK
