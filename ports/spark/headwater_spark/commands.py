"""Run `headwater pipeline`: turn capture logs into tables.

Modules of the extra `spark` are imported when the command runs, so that its help works without them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.mqtt.packets import check_filter
from headwater_host.capture.filesystem import LocationError, is_remote, parse_storage
from headwater_host.capture.manifest import list_log
from headwater_host.cli.options import STORAGE, directory, location, whole
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_spark import compact_command, report_command, stream_command
from headwater_spark.identity import Identity
from headwater_spark.launch import check_writable, say, started
from headwater_spark.session import shares
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
    """Add the actions of the command and their options."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for name, what, description, rows in _WRITERS:
        action = actions.add_parser(name, help=what, description=description)
        for row in rows:
            _add(action, *row)
    report_command.add_parser(actions)
    compact_command.add_parsers(actions)


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    metavar: str | None,
    kind: Callable[[str], Any],
    default: Any,
    what: str,
) -> None:
    if kind is bool:
        parser.add_argument(name, action="store_true", help=what)
        return
    parser.add_argument(
        name,
        metavar=metavar,
        type=kind,
        default=default,
        required=default is None,
        action="append" if default == [] or name == "--capture" else "store",
        help=what,
    )


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


def _source(text: str) -> str:
    try:
        Identity.parse([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _decoder(text: str) -> str:
    pattern, _, name = text.rpartition("=")
    _filter(pattern)
    if not all(name.partition(":")):
        raise argparse.ArgumentTypeError(f"{text}: expected FILTER=MODULE:FUNCTION")
    return text


_rows = whole(1, MAX_BATCH_ROWS)
_days = whole(1, 36_500)
_DAY_NS = 86_400 * 10**9
# Name, metavar, type (bool: no value), default (None: required; a list: repeatable), help.
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
    (
        *("--identity", "NAME=SOURCE", _source, []),
        "Source of board, boot, seq or t (board=topic:plant/{}/#); repeatable",
    ),
    (
        *("--decoder", "FILTER=MODULE:FUNCTION", _decoder, []),
        "Function that decodes payloads of these topics; repeatable",
    ),
    ("--conf", "KEY=VALUE", _setting, [], "Spark setting; repeatable"),
)


# Options of `requarantine`.
_AGAIN = ("--out", "--batch-rows", "--identity", "--decoder")
_WRITERS = (
    (
        "run",
        "turn capture logs into tables and a report",
        "Read what is new in capture logs since the last run; add it to the Delta tables frames, messages, "
        "logical_messages, telemetry and quarantine; write report.json and report.html. A run that was interrupted "
        "is completed first.",
        _OPTIONS,
    ),
    (
        "stream",
        "keep tables up to date with capture logs",
        "Add what capture logs gain to the tables of `run`, batch by batch, until SIGTERM or SIGINT.",
        tuple(row for row in _OPTIONS if row[0] != "--sent") + stream_command.OPTIONS,
    ),
    (
        "requarantine",
        "decode frames and messages in quarantine again",
        "Decode malformed frames and refused messages again, such as with a decoder that was mended or a later "
        "version of headwater. Those that are good now go into the tables, the others stay in quarantine.",
        tuple(row for row in _OPTIONS if row[0] in _AGAIN),
    ),
)


def run(args: argparse.Namespace) -> int:
    """Run an action. Returns 1 if an acknowledged message of a board's record is lost or duplicated."""
    return _ACTIONS[args.action](args)


def _run(args: argparse.Namespace) -> int:
    # Check before Spark starts, which takes half a minute, but name a missing extra first.
    import pyspark  # noqa: F401

    logs = _check_places(args)
    chosen = settings(args)
    check_writable(args.out)
    numbers: dict[str, Any] = {}
    with started(args) as spark:
        from headwater_spark import pipeline, report
        from headwater_spark.progress import Display

        def write(result: Result, folder: Path) -> None:
            numbers.update(report.write(result, folder, args.sent))

        pipeline.run(
            spark, logs, args.out, report=write, sent=args.sent, say=say, display=Display(), **chosen
        )
        found = shares(spark)
        whole_s = sum(share.seconds for share in found) or 1.0
        for share in found:
            part = share.seconds / whole_s
            say(
                f"executor {share.executor} at {share.host}: {share.tasks} tasks, {part:.0%} of the task time"
            )
    return show(numbers, args.out)


def _stream(args: argparse.Namespace) -> int:
    logs, chosen = _logs(args), settings(args)
    check_writable(args.out)
    return stream_command.run(args, logs, chosen)


def _requarantine(args: argparse.Namespace) -> int:
    # One process, without Java: there are few such frames.
    from headwater_spark.batches import BusyError
    from headwater_spark.delta import StaleError
    from headwater_spark.engine import LocalEngine
    from headwater_spark.growth import requarantine

    rules = _rules(args)
    if not args.identity:
        rules["identity"] = None
    try:
        result = requarantine(LocalEngine(), args.out, batch_rows=args.batch_rows, say=say, **rules)
    except (BusyError, StaleError, OSError) as error:
        raise CommandError(str(error), FAILED) from error
    print(
        f"{result.taken} frames decoded again: {result.rows['messages']} new messages, "
        f"{result.rows['quarantine']} still in quarantine"
    )
    return OK


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of `growth.grow`."""
    return {
        "partition_bytes": args.partition_bytes,
        "batch_rows": args.batch_rows,
        "logical_topics": args.logical_topic,
        "max_message": args.max_message,
        "horizon_ns": args.horizon * _DAY_NS,
        **_rules(args),
    }


def _rules(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the identity and the decoders. Raises CommandError when one is invalid."""
    from headwater_spark.decoders import parse_decoder

    try:
        Identity.parse(args.identity)
        decoders = [parse_decoder(text, str(Path.cwd())) for text in args.decoder]
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error
    return {"identity": args.identity, "decoders": decoders}


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "stream": _stream,
    "requarantine": _requarantine,
    "report": report_command.run,
    "compact": compact_command.compact,
    "files": compact_command.files,
}


def _logs(args: argparse.Namespace) -> list[Log]:
    """Return the logs, which may not exist. Raises CommandError if one is where the tables go."""
    from headwater_spark.plan import Log

    logs = [Log.at(one, parse_storage(args.storage)) for one in args.capture]
    for log in logs:
        if not is_remote(log.location) and args.out.resolve() == Path(log.location).resolve():
            raise CommandError(f"--out: {args.out} is the capture log itself", USAGE)
    return logs


def _check_places(args: argparse.Namespace) -> list[Log]:
    """Return the logs. Raises CommandError when one, a board's record or the output directory is unusable."""
    for path in args.sent:
        if not path.is_file():
            raise CommandError(f"--sent: {path} is not a file", USAGE)
    logs = _logs(args)
    for log in logs:
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
