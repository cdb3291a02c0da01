"""Run `headwater pipeline compact` and `headwater pipeline files`, which need no Java."""

from __future__ import annotations

import argparse
from typing import Any

from headwater_host.cli.options import directory, whole
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_spark.launch import say
from headwater_spark.sizes import parse_size


def _target(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def add_parsers(actions: Any) -> None:
    """Add the actions to the command's parser."""
    compact = actions.add_parser(
        "compact",
        help="merge small files of tables",
        description="Merge small files of the tables, and remove replaced files and those of interrupted runs.",
    )
    compact.add_argument(
        "--out", metavar="DIR", type=directory, required=True, help="Directory of the tables"
    )
    compact.add_argument(
        "--target", metavar="SIZE", type=_target, default="128m", help="Size of merged files; default: 128m"
    )
    compact.add_argument(
        "--keep",
        metavar="HOURS",
        type=whole(1, 24 * 3650),
        default=24,
        help="Least age of removed files, above any query's; default: %(default)s",
    )
    files = actions.add_parser(
        "files",
        help="list the files of a table",
        description="Print the paths of the Parquet files of a table's latest version, one a line.",
    )
    files.add_argument("table", metavar="DIR", type=directory, help="Directory of the table")


def compact(args: argparse.Namespace) -> int:
    """Compact the tables and print the number of files."""
    from headwater_spark.batches import BusyError
    from headwater_spark.delta import StaleError
    from headwater_spark.engine import LocalEngine
    from headwater_spark.growth import compact

    if not args.out.is_dir():
        raise CommandError(f"--out: {args.out} is not a directory", USAGE)
    try:
        found = compact(LocalEngine(), args.out, target_bytes=args.target, keep_hours=args.keep, say=say)
    except (BusyError, StaleError, OSError) as error:
        raise CommandError(str(error), FAILED) from error
    for name, count in found.after.items():
        print(f"{name}: {count} files, before {found.before[name]}")
    print(f"{found.removed} old files removed")
    return OK


def files(args: argparse.Namespace) -> int:
    """Print the files of a table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        for path in sorted(DeltaTable(str(args.table)).file_uris()):
            print(path)
    except TableNotFoundError:
        raise CommandError(
            f"{args.table} is not a table; a directory such as tables/messages is one", USAGE
        ) from None
    return OK
