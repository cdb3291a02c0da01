"""Run `headwater pipeline compact` and `headwater pipeline files`, which need no Java."""

from __future__ import annotations

import argparse
from typing import Any

from headwater_host.capture.filesystem import LocationError
from headwater_host.cli.options import LOCATION, STORAGE, STORAGE_HELP, directory, option, whole
from headwater_host.exits import FAILED, OK, USAGE, CommandError, explain
from headwater_spark.arguments import existing_tables, size
from headwater_spark.launch import failed, say, tables_at


def add_parsers(actions: Any) -> None:
    """Add the actions to the command's parser."""
    compact = actions.add_parser(
        "compact",
        help="merge small files of tables",
        description="Merge small files of the tables, and remove replaced files and those of interrupted runs. "
        "Needs no Java.",
    )
    option(compact, "--out", "Directory of the tables, or its URI (s3://...)", LOCATION, required=True)
    option(compact, "--storage", STORAGE_HELP, STORAGE)
    option(
        compact, "--work", "Directory for temporary files; default: in --out", type=directory, metavar="DIR"
    )
    text = "Size of merged files; default: %(default)s"
    option(compact, "--target", text, metavar="SIZE", type=size("1024g"), default="128m")
    text = "Least age of removed files, above any query's; default: %(default)s"
    option(compact, "--keep", text, metavar="HOURS", type=whole(1, 24 * 3650), default=24)
    files = actions.add_parser(
        "files",
        help="list the files of a table",
        description="Print the paths of the Parquet files of a table's latest version, one a line. Needs no Java.",
    )
    option(files, "table", "Directory of the table, or its URI (s3://...)", LOCATION)
    option(files, "--storage", STORAGE_HELP, STORAGE)


def compact(args: argparse.Namespace) -> int:
    """Compact the tables and print the number of files."""
    from headwater_host.progress import Display
    from headwater_spark.batches import BusyError
    from headwater_spark.delta import StaleError
    from headwater_spark.engine import LocalEngine
    from headwater_spark.growth import compact
    from headwater_spark.report import text_table

    out = existing_tables("--out", args.out, args.storage)
    try:
        found = compact(
            LocalEngine(Display()),
            out,
            target_bytes=args.target,
            keep_hours=args.keep,
            work=args.work,
            say=say,
        )
    except (BusyError, LocationError, StaleError, OSError) as error:
        raise failed(error, out) from error
    rows = [
        {"table": name, "files before": found.before[name], "files": n} for name, n in found.after.items()
    ]
    print(f"{text_table(rows)}\n\nold files removed: {found.removed}")
    return OK


def files(args: argparse.Namespace) -> int:
    """Print the files of a table."""
    from deltalake.exceptions import TableNotFoundError

    from headwater_spark.delta import open_table

    table = tables_at(args.table, args.storage)
    try:
        for path in sorted(open_table(table).file_uris()):
            print(path)
    except TableNotFoundError:
        raise CommandError(
            f"{table} is not a table; a directory such as tables/messages is one", USAGE
        ) from None
    except (LocationError, OSError) as error:
        raise CommandError(explain(error), FAILED) from error
    return OK
