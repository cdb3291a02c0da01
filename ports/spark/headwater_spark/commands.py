"""Run `headwater pipeline`: turn capture logs into tables.

Modules of the extra `spark` are imported when the command runs, so that its help works without them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.mqtt.packets import check_filter
from headwater_host.capture.filesystem import LocationError, is_remote
from headwater_host.cli.options import STORAGE, STORAGE_HELP, directory, location, whole
from headwater_host.exits import FAILED, OK, USAGE, CommandError, explain
from headwater_spark import compact_command, records, report_command, stream_command
from headwater_spark.arguments import check_logs, size
from headwater_spark.identity import Identity
from headwater_spark.launch import check_writable, failed, say, started, tables_at
from headwater_spark.place import Place
from headwater_spark.session import shares
from headwater_spark.sizes import BATCH_ROWS, MAX_BATCH_ROWS, MAX_MESSAGE, PARTITION_BYTES

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
    pattern, equals, name = text.rpartition("=")
    if not (equals and all(name.partition(":"))):
        raise argparse.ArgumentTypeError(f"{text}: expected FILTER=MODULE:FUNCTION")
    _filter(pattern)
    return text


_size = size("1g")
_rows = whole(1, MAX_BATCH_ROWS)
_days = whole(1, 36_500)
_DAY_NS = 86_400 * 10**9
# Name, metavar, type (bool: no value), default (None: required; a list: repeatable), help.
_OPTIONS: tuple[tuple[str, str | None, Callable[[str], Any], Any, str], ...] = (
    ("--capture", "DIR", location, None, "Directory of a capture log, or its URI (s3://...); repeatable"),
    ("--storage", "KEY=VALUE", STORAGE["type"], [], STORAGE_HELP),
    ("--out", "DIR", location, None, "Directory for the tables, or its URI (s3://...)"),
    (
        *("--work", "DIR", directory, ()),
        "Directory of all executors for temporary files; default: in --out",
    ),
    ("--master", None, str, "local[*]", "Spark master; default: %(default)s"),
    ("--partition-bytes", "SIZE", _size, PARTITION_BYTES, "Maximum bytes of the log per task; default: 32m"),
    ("--batch-rows", "N", _rows, BATCH_ROWS, "Frames to decode at once; default: %(default)s"),
    ("--sent", "FILE", Path, [], "Compare with a board's record of sent messages; repeatable"),
    (
        *("--logical-topic", "FILTER", _filter, []),
        "Reassemble IBM MQ segments of these topics; repeatable; default: all",
    ),
    ("--horizon", "DAYS", _days, 7, "Days within which a frame may be a duplicate; default: %(default)s"),
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
_AGAIN = ("--storage", "--out", "--work", "--batch-rows", "--identity", "--decoder")
_WRITERS = (
    (
        "run",
        "turn capture logs into tables and a report",
        "Read what is new in capture logs since the last run; add it to the Delta tables frames, messages, "
        "logical_messages, telemetry, quarantine, device_health and reconciliation; write report.json and report.html. "
        "A run that was interrupted is completed first.",
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
        "Decode malformed frames and refused messages again, for example with a fixed decoder or a later version of "
        "headwater. Those that are valid now go into the tables, the others stay in quarantine. Needs no Java.",
        tuple(row for row in _OPTIONS if row[0] in _AGAIN),
    ),
)


def run(args: argparse.Namespace) -> int:
    """Run an action. Returns 1 if an acknowledged message of a board's record is lost or duplicated."""
    from deltalake.exceptions import DeltaError

    try:
        return _ACTIONS[args.action](args)
    except DeltaError as error:
        # Its further lines are a backtrace.
        raise CommandError(f"a table is missing or damaged: {str(error).splitlines()[0]}", FAILED) from error


def _run(args: argparse.Namespace) -> int:
    # Check before Spark starts, which takes half a minute, but name a missing extra first.
    import pyspark  # noqa: F401

    logs = _check_places(args)
    chosen = settings(args)
    out = tables_at(args.out, args.storage)
    check_writable(out)
    numbers: dict[str, Any] = {}
    with started(args) as spark:
        from headwater_host.progress import Display
        from headwater_spark import pipeline, report

        def write(result: Result, folder: Place) -> None:
            numbers.update(report.write(result, folder, args.sent))

        pipeline.run(spark, logs, out, report=write, sent=args.sent, say=say, display=Display(), **chosen)
        found = shares(spark)
        whole_s = sum(share.seconds for share in found) or 1.0
        for share in found:
            part = share.seconds / whole_s
            say(
                f"executor {share.executor} at {share.host}: {share.tasks} tasks, {part:.0%} of the task time"
            )
    return show(numbers, out)


def _stream(args: argparse.Namespace) -> int:
    logs, chosen = _logs(args), settings(args)
    out = tables_at(args.out, args.storage)
    if out.path is None and not args.checkpoint:
        raise CommandError(
            f"--checkpoint: name a directory for the positions of Spark's query, which cannot be in {out}",
            USAGE,
        )
    check_logs(logs, wait=not args.available_now)
    check_writable(out)
    return stream_command.run(args, logs, out, chosen)


def _requarantine(args: argparse.Namespace) -> int:
    # One process, without Java: there are few such frames.
    from headwater_host.progress import Display
    from headwater_spark.batches import BusyError
    from headwater_spark.delta import StaleError
    from headwater_spark.engine import LocalEngine
    from headwater_spark.growth import requarantine

    rules = _rules(args)
    if not args.identity:
        rules["identity"] = None
    try:
        result = requarantine(
            LocalEngine(Display()),
            tables_at(args.out, args.storage),
            batch_rows=args.batch_rows,
            work=args.work or None,
            say=say,
            **rules,
        )
    except (BusyError, LocationError, StaleError, OSError) as error:
        raise failed(error, args.out) from error
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
        "work": args.work or None,
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

    logs = [Log.at(one, args.storage) for one in args.capture]
    out = tables_at(args.out, args.storage)
    for log in logs:
        if _resolved(log.location) == _resolved(out.location):
            raise CommandError(f"--out: {args.out} is the capture log itself", USAGE)
    return logs


def _resolved(place: str) -> str:
    return place.rstrip("/") if is_remote(place) else str(Path(place).resolve())


def _check_places(args: argparse.Namespace) -> list[Log]:
    """Return the logs. Raises CommandError when one, a board's record or the output directory is unusable."""
    for path in args.sent:
        if not path.is_file():
            raise CommandError(f"--sent: {path} is not a file", USAGE)
        try:
            records.check(path)
        except (OSError, ValueError) as error:
            raise CommandError(f"--sent: {explain(error)}", USAGE) from error
    logs = _logs(args)
    check_logs(logs)
    return logs


def show(numbers: dict[str, Any], out: Place) -> int:
    """Print a run's report and return the exit code."""
    from headwater_spark import report

    print(report.headline(numbers) if numbers["records"] else report.up_to_date(out, numbers["completed"]))
    if numbers["boards"]:
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
