"""``headwater capture ls | verify | cat``: list, verify and print a capture log.

Exit code 0: no damage (a torn tail is not damage); 1: the log is damaged; 2: it cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from headwater_host.capture.format import DIRECTIONS, DUPLICATE, MARKS, PROTOCOLS, UNMARKED, Block, Record
from headwater_host.capture.problem import Problem
from headwater_host.capture.reader import CaptureReader, Report, SegmentTotals, verify
from headwater_host.cli.options import FLAG, integer, option, subcommand
from headwater_host.cli.stdout import check_reader
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_host.inspect.records import decoded

_FOLLOW_S = 0.2
_COLUMNS = ("segment", "state", "blocks", "records", "bytes", "first", "last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    commands = parser.add_subparsers(dest="capture_command", metavar="COMMAND", required=True)
    ls = subcommand(commands, "ls", "list the segments")
    check = subcommand(
        commands, "verify", "read the whole log and report damage", "Exit code 1: the log is damaged."
    )
    cat = subcommand(
        commands, "cat", "print the records", "One JSON object on each line; damage on standard error."
    )
    for command in (ls, check, cat):
        option(command, "directory", "Directory of the capture log", metavar="DIR", type=Path)
    for command in (ls, check):
        option(command, "--json", "Print one JSON object", FLAG)
    option(cat, "--limit", "Stop after N records", integer(0, 1 << 62))
    option(cat, "--peer", "Only records of this peer, such as serial:/dev/ttyACM0", metavar="PEER")
    form = cat.add_mutually_exclusive_group()
    option(form, "--raw", "Write only the bytes of the frames", FLAG)
    option(form, "--decode", "Add the decoded packet (MQTT, FMQ)", FLAG)
    option(cat, "--follow", "Wait for new records until interrupted", FLAG)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code. Raises CommandError if the log cannot be read."""
    command = {"ls": _ls, "verify": _verify, "cat": _cat}[arguments.capture_command]
    try:
        return command(arguments)
    except BrokenPipeError:
        raise  # the reader closed the pipe
    except OSError as error:
        what = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        raise CommandError(what, USAGE) from error


def format_time(time_ns: int | None) -> str | None:
    """Format a receive time as ISO 8601 in UTC with nanoseconds; None for None or outside the calendar."""
    if time_ns is None:
        return None
    seconds, fraction = divmod(time_ns, 10**9)
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


# ---- ls, verify ------------------------------------------------------------------------------------------------------


def _segment(totals: SegmentTotals) -> dict[str, Any]:
    return totals._asdict() | {"first": format_time(totals.first_ns), "last": format_time(totals.last_ns)}


def _sums(report: Report) -> dict[str, int]:
    fields = ("bytes", "blocks", "records")
    sums = {field: sum(getattr(segment, field) for segment in report.segments) for field in fields}
    return {"segments": len(report.segments)} | sums


def _ls(arguments: argparse.Namespace) -> int:
    report = verify(arguments.directory, bodies=False)
    if arguments.json:
        print(json.dumps({"segments": list(map(_segment, report.segments)), "total": _sums(report)}))
        return OK
    rows: list[Iterable[object]] = [_COLUMNS]
    for totals in report.segments:
        times = format_time(totals.first_ns) or "-", format_time(totals.last_ns) or "-"
        state = "sealed" if totals.sealed else "open"
        rows.append((totals.file, state, totals.blocks, totals.records, totals.bytes, *times))
    sums = _sums(report)
    rows.append(("total", "", sums["blocks"], sums["records"], sums["bytes"], "", ""))
    _print_table([[str(cell) for cell in row] for row in rows])
    if report.problems or report.torn:
        print(
            f"{len(report.problems) + len(report.torn)} problems in headers; see capture verify",
            file=sys.stderr,
        )
    return OK


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if 2 <= index <= 4 else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def _verify(arguments: argparse.Namespace) -> int:
    report = verify(arguments.directory)
    sums = _sums(report)
    # A number without a name is printed as a number.
    protocols = [(PROTOCOLS.get(number, number), count) for number, count in sorted(report.protocols.items())]
    if arguments.json:
        found = {
            "damaged": report.damaged,
            "problems": [problem._asdict() for problem in report.problems],
            "torn": [problem._asdict() for problem in report.torn],
            "total": sums,
            "protocols": {str(name): count for name, count in protocols},
        }
        print(json.dumps(found))
    else:
        for problem in (*report.problems, *report.torn):
            print(problem)
        counts = ", ".join(f"{count} {what}" for what, count in sums.items())
        if protocols:
            counts += f" ({', '.join(f'{count} {name}' for name, count in protocols)})"
        print(f"{'damaged' if report.damaged else 'clean'}: {counts}; {len(report.problems)} problems")
    return FAILED if report.damaged else OK


# ---- cat -------------------------------------------------------------------------------------------------------------


def _cat(arguments: argparse.Namespace) -> int:
    status = OK

    def report(problem: Problem) -> None:
        nonlocal status
        status = FAILED
        print(f"headwater: {problem}", file=sys.stderr)

    reader = CaptureReader(arguments.directory, on_problem=report)
    left = arguments.limit
    while left != 0:
        for block in reader.blocks():
            for record in _wanted(block, arguments.peer):
                _write(record, arguments.raw, arguments.decode)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return status
        sys.stdout.flush()
        if not arguments.follow:
            break
        check_reader()
        time.sleep(_FOLLOW_S)
    if reader.torn is not None:
        print(f"headwater: {reader.torn}", file=sys.stderr)
    return status


def _wanted(block: Block, peer: str | None) -> Iterator[Record]:
    if peer is None:
        return block.records()
    if peer not in block.peers:
        return iter(())
    return (record for record in block.records() if record.peer == peer)


def _write(record: Record, raw: bool, decode: bool) -> None:
    if raw:
        sys.stdout.buffer.write(record.frame)
        return
    fields: dict[str, Any] = {
        "time": format_time(record.time_ns),
        "time_ns": record.time_ns,
        "connection": record.connection,
        "peer": record.peer,
        # A number without a name is printed as a number.
        "direction": DIRECTIONS.get(record.direction, record.direction),
        "protocol": PROTOCOLS.get(record.protocol, record.protocol),
        "version": record.version,
        "frame": record.frame.hex(),
    }
    if record.mark != UNMARKED:
        fields["mark"] = MARKS.get(record.mark, record.mark)
    if record.mark == DUPLICATE:
        fields["first_ns"] = record.first_ns
    if decode:
        fields["packet"] = decoded(record)
    print(json.dumps(fields))
