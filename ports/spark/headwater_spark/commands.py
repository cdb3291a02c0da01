"""Run `headwater pipeline`: turn capture logs into tables.

Modules of the extra `spark` are imported when the command runs, so that its help works without them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.mqtt.packets import check_filter
from headwater_host.capture.filesystem import LocationError, is_remote, parse_storage
from headwater_host.capture.log_id import LogIdError
from headwater_host.capture.manifest import list_log
from headwater_host.cli.options import STORAGE, directory, location, whole
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_spark import report_command
from headwater_spark.sizes import (
    BATCH_ROWS,
    MAX_BATCH_ROWS,
    MAX_MESSAGE,
    MAX_PARTITION_BYTES,
    PARTITION_BYTES,
    parse_size,
)

if TYPE_CHECKING:
    from headwater_spark.plan import Log
    from headwater_spark.result import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    run_ = actions.add_parser(
        "run",
        help="turn a capture log into tables and a report",
        description=(
            "Read what is new in a capture log since the last run; add it to the Delta tables frames, messages, "
            "logical_messages, telemetry and quarantine; write report.json and report.html. A run that was "
            "interrupted is completed first."
        ),
    )
    for name, metavar, kind, default, what in _OPTIONS:
        action = "append" if default == [] or name == "--capture" else "store"
        run_.add_argument(
            name,
            metavar=metavar,
            type=kind,
            default=default,
            required=default is None,
            action=action,
            help=what,
        )
    report_command.add_parser(actions)


def _size(text: str) -> int:
    try:
        value = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
    if not 1 <= value <= MAX_PARTITION_BYTES:
        raise argparse.ArgumentTypeError(f"{text}: a size here is 1 to 1g")
    return value


def _filter(text: str) -> str:
    pattern = text.encode()
    if check_filter(pattern, 0, len(pattern)):
        raise argparse.ArgumentTypeError(f"{text}: not a valid topic filter")
    return text


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text}: expected KEY=VALUE")
    return key, value


_rows = whole(1, MAX_BATCH_ROWS)
_days = whole(1, 36_500)
_DAY_NS = 86_400 * 10**9
# Name, metavar, type, default (None: required; a list: repeatable), help.
_OPTIONS: tuple[tuple[str, str | None, Callable[[str], Any], Any, str], ...] = (
    ("--capture", "DIR", location, None, "Directory of a capture log, or its URI (s3://...); repeatable"),
    ("--storage", "KEY=VALUE", STORAGE["type"], [], "Storage option such as AWS_ENDPOINT_URL; repeatable"),
    ("--out", "DIR", directory, None, "Directory for the tables"),
    ("--master", None, str, "local[*]", "Spark master; default: %(default)s"),
    ("--partition-bytes", "SIZE", _size, PARTITION_BYTES, "Maximum bytes of the log per task; default: 32m"),
    ("--batch-rows", "N", _rows, BATCH_ROWS, "Frames to decode at once; default: %(default)s"),
    ("--sent", "FILE", Path, [], "Compare with a board's record of sent messages; repeatable"),
    (
        *("--logical-topic", "FILTER", _filter, []),
        "Reassemble IBM MQ segments of these topics; repeatable; default: all",
    ),
    ("--horizon", "DAYS", _days, 7, "Days within which a frame repeats a message; default: %(default)s"),
    ("--max-message", "SIZE", _size, MAX_MESSAGE, "Maximum payload size in logical_messages; default: 100m"),
    ("--conf", "KEY=VALUE", _setting, [], "Spark setting; repeatable"),
)


def run(args: argparse.Namespace) -> int:
    """Run an action. Returns 1 if an acknowledged message of a board's record is lost or duplicated."""
    if args.action == "report":
        return report_command.run(args)
    # Check before importing the extra's modules and before Spark starts, which takes half a minute.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from headwater_spark import pipeline, report
    from headwater_spark.batches import BusyError
    from headwater_spark.session import local_session

    logs = _check_places(args)
    _check_java()
    running = SparkSession.getActiveSession()
    if running is None:
        say("starting Spark")
    try:
        spark = running or local_session("headwater pipeline", args.master, dict(args.conf))
    except (Py4JError, PySparkException) as error:
        raise CommandError(
            f"Spark does not start; check --master and --conf: {_cause(str(error))}", FAILED
        ) from error
    numbers: dict[str, Any] = {}

    def write(result: Result, folder: Path) -> None:
        numbers.update(report.write(result, folder, args.sent))

    try:
        pipeline.run(
            spark,
            logs,
            args.out,
            partition_bytes=args.partition_bytes,
            batch_rows=args.batch_rows,
            logical_topics=args.logical_topic,
            max_message=args.max_message,
            horizon_ns=args.horizon * _DAY_NS,
            report=write,
            say=say,
        )
    except (BusyError, LocationError, LogIdError, OSError) as error:
        raise CommandError(str(error), FAILED) from error
    except (Py4JError, PySparkException) as error:
        raise CommandError(f"a Spark task failed: {_cause(str(error))}", FAILED) from error
    finally:
        if running is None:
            spark.stop()
    return show(numbers, args.out)


def _check_places(args: argparse.Namespace) -> list[Log]:
    """Return the logs. Raises CommandError when one, a board's record or the output directory is unusable."""
    from headwater_spark.plan import Log

    for path in args.sent:
        if not path.is_file():
            raise CommandError(f"--sent: {path} is not a file", USAGE)
    logs = [Log.at(one, parse_storage(args.storage)) for one in args.capture]
    for log in logs:
        if not is_remote(log.location) and args.out.resolve() == Path(log.location).resolve():
            raise CommandError(f"--out: {args.out} is the capture log itself", USAGE)
        try:
            list_log(*log)
        except NotADirectoryError as error:
            raise CommandError(f"--capture: {log.location} is not a directory", USAGE) from error
        except FileNotFoundError as error:
            what = f"{log.location} does not exist" if error.filename else str(error)
            raise CommandError(f"--capture: {what}", USAGE) from error
        except OSError as error:
            raise CommandError(f"--capture: {error}", USAGE) from error
        except LocationError as error:
            raise CommandError(str(error), USAGE) from error
    return logs


def _check_java() -> None:
    """Raise CommandError when there is no `java` that Spark's scripts can start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin/java")
        if shutil.which(java) is None:
            raise CommandError(
                f"JAVA_HOME={home}: {java} does not exist; set JAVA_HOME to a directory of Java 17 or newer, "
                "or unset it to use java from PATH",
                FAILED,
            )
    elif shutil.which("java") is None:
        why = "PATH has no java" if home is None else "JAVA_HOME is empty, and PATH has no java"
        raise CommandError(
            f"Spark needs Java 17 or newer: {why}: apt-get install default-jre-headless", FAILED
        )


def say(text: str) -> None:
    """Print a line of progress."""
    print("pipeline:", text, file=sys.stderr, flush=True)


def _cause(text: str) -> str:
    """Extract the cause from Spark's error: the last line of a Python traceback, the JVM's error, or all of it."""
    python = re.search(r"^Traceback \(most recent call last\):\n(?: .*\n)+(.+)$", text, re.MULTILINE)
    found = python or re.search(r"^: (.+)\n\tat ", text, re.MULTILINE)
    return found[1] if found else text


def show(numbers: dict[str, Any], out: Path) -> int:
    """Print a run's report and return the exit code."""
    from headwater_spark import report

    print(report.headline(numbers))
    print()
    print(report.text_table(numbers["boards"]))
    compared = numbers["compared"]
    if compared:
        print()
        print(report.text_table(compared))
    if numbers["quarantined"]:
        print()
        print(
            report.text_table(
                [{"quarantined": name, "rows": n} for name, n in numbers["quarantined"].items()]
            )
        )
    for problem in numbers["problems"]:
        say(f"{problem['kind']}: {problem['file']} at {problem['offset']}: {problem['reason']}")
    print(f"\nThe tables and report.html are in {out}")
    wrong = [row for row in compared or () if row["lost"] or row["duplicates_left"]]
    return FAILED if wrong else OK
