"""Run `headwater pipeline report`: make a page from the tables. It needs neither Spark nor Java."""

from __future__ import annotations

import argparse
from typing import Any

from headwater_host.capture.filesystem import LocationError
from headwater_host.cli.options import FILE, LOCATION, REPEATABLE, STORAGE, STORAGE_HELP, option
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_spark.arguments import existing_tables
from headwater_spark.launch import failed


def add_parser(actions: Any) -> None:
    """Add the action `report` and its options."""
    parser = actions.add_parser(
        "report",
        help="make a page from the tables",
        description=(
            "Summarize the tables of a pipeline in one HTML page and print its verdict. The exit code is 1 if "
            "acknowledged messages are lost or the log is damaged. Needs no Java."
        ),
    )
    option(parser, "--tables", "Directory of the tables, or its URI (s3://...)", LOCATION, required=True)
    option(parser, "--storage", STORAGE_HELP, STORAGE)
    option(parser, "--out", "The page; default: report.html in DIR", FILE)
    text = "First receive time; default: 7 days before the last"
    option(parser, "--since", text, type=_time, metavar="TIME")
    option(parser, "--until", "Only messages received before; default: all", type=_time, metavar="TIME")
    option(parser, "--board", "Show values and gaps of this board; repeatable", REPEATABLE, metavar="NAME")


def _time(text: str) -> int:
    from headwater_spark.options import parse_time

    try:
        return parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def run(args: argparse.Namespace) -> int:
    """Write the page and print its verdict. Returns 1 if a finding is serious."""
    from headwater_host.progress import Display
    from headwater_spark.overview import Options, UnknownBoardError
    from headwater_spark.report import write_page
    from headwater_spark.verdict import headline

    tables = existing_tables("--tables", args.tables, args.storage)
    path = args.out or tables / "report.html"
    if args.since is not None and args.until is not None and args.since >= args.until:
        raise CommandError("--since is not before --until", USAGE)
    options = Options(args.since, args.until, tuple(args.board))
    try:
        findings = write_page(tables, path, options, display=Display())
    except UnknownBoardError as error:
        raise CommandError(f"--board {error}", USAGE) from error
    except LocationError as error:
        raise CommandError(str(error), USAGE) from error
    except OSError as error:
        raise failed(error, path) from error
    print(f"{headline(findings)}:")
    for finding in findings:
        print(f"{finding.level:4}  {finding.text}")
    print(f"\nThe report is {path}")
    return FAILED if findings[0].level == "bad" else OK
