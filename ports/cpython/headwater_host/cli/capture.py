"""``headwater capture``: list, verify, print, prune, repair, ship and export a capture log.

Exit code 0: no damage (a torn tail is not damage); 1: the log is damaged, or a disk is full; 2: it cannot be read.
"""

from __future__ import annotations

import argparse
import errno
import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from headwater_host.capture import pcapng
from headwater_host.capture.block_log import BlockLog, CaptureLockedError
from headwater_host.capture.filesystem import LocationError, parse_storage
from headwater_host.capture.format import DIRECTIONS, DUPLICATE, MARKS, PROTOCOLS, UNMARKED, Block, Record
from headwater_host.capture.log_id import LogIdError
from headwater_host.capture.manifest import Segment, list_log
from headwater_host.capture.problem import Problem
from headwater_host.capture.reader import CaptureReader, Report, SegmentTotals, verify
from headwater_host.capture.readers import list_readers, remove_reader
from headwater_host.capture.retention import Due, Limits, prune
from headwater_host.capture.scan import BlockInfo
from headwater_host.capture.ship import READER, ShipError, ship
from headwater_host.cli.options import (
    DURATION,
    FILE,
    FLAG,
    LOCATION,
    SIZE,
    STORAGE,
    STORAGE_HELP,
    choice,
    directory,
    integer,
    option,
    subcommand,
)
from headwater_host.cli.stdout import check_reader
from headwater_host.exits import FAILED, OK, USAGE, CommandError, explain
from headwater_host.inspect.records import decoded
from headwater_host.private import opened
from headwater_host.progress import Display, Step

_FOLLOW_S = 0.2
# Progress is shown after this time.
_DELAY_S = 2.0
# Errors of a write to a disk that is full. They do not name the file.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The argument that names what a command writes.
_WRITTEN = {
    "export": "pcap",
    "ship": "target",
    "prune": "directory",
    "repair": "directory",
    "readers": "directory",
}
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
    stats = subcommand(commands, "stats", "count records and bytes by peer and protocol")
    remove = subcommand(
        commands,
        "prune",
        "remove old segments",
        "The gateway does so by itself with max_age and max_bytes in [capture].",
    )
    repair = subcommand(
        commands,
        "repair",
        "cut the torn tail and seal what a crash has left open",
        "A gateway does so when it starts. Damaged blocks of these segments are reported and not changed; `verify` "
        "checks the others.",
    )
    export = subcommand(
        commands,
        "export",
        "write the frames for Wireshark and tshark",
        "Addresses and TCP headers in the file are invented: the log contains frames only.",
    )
    ship_ = subcommand(
        commands,
        "ship",
        "copy sealed segments to a folder or an object store",
        "Continues where the last run stopped. Retention keeps what is not shipped.",
    )
    readers = subcommand(commands, "readers", "list the readers for which segments are kept")
    for command in (ls, check, cat, stats, export):
        option(command, "directory", "Directory of the capture log, or its URI (s3://...)", LOCATION)
    for command in (remove, repair, readers, ship_):
        option(command, "directory", "Directory of the capture log", metavar="DIR", type=directory)
    option(ship_, "target", "Directory or URI of the copy (s3://bucket/prefix)", LOCATION, metavar="TARGET")
    for command in (ls, check, cat, stats, export, ship_):
        option(command, "--storage", STORAGE_HELP, STORAGE)
    for command in (ls, check, stats, remove, readers, ship_):
        option(command, "--json", "Print one JSON object", FLAG)
    option(cat, "--limit", "Stop after N records", integer(0, 1 << 62))
    for command in (cat, export):
        option(command, "--peer", "Only records of this peer, such as serial:/dev/ttyACM0", metavar="PEER")
    form = cat.add_mutually_exclusive_group()
    option(form, "--raw", "Write only the bytes of the frames", FLAG)
    option(form, "--decode", "Add the decoded packet (MQTT, FMQ)", FLAG)
    option(cat, "--follow", "Wait for new records until interrupted", FLAG)
    option(remove, "--max-age", "Remove segments whose last record is older, such as 30d", DURATION)
    option(remove, "--max-bytes", "Remove the oldest segments above this size, such as 10GiB", SIZE)
    option(
        remove, "--unread", "Segments that a reader has not taken; default: keep", choice("keep", "remove")
    )
    option(remove, "--dry-run", "Only print what would be removed", FLAG)
    option(export, "--pcap", "Pcapng file to write; - writes standard output", FILE, required=True)
    option(ship_, "--watch", "Repeat with this time between, until SIGTERM or SIGINT", DURATION)
    option(ship_, "--check", "What is compared of each copy; default: content", choice("content", "size"))
    text = f"Name for retention; each target needs its own; default: {READER}"
    option(ship_, "--reader", text, metavar="NAME", default=READER)
    option(readers, "--forget", "Forget a reader, so that nothing is kept for it", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code. Raises CommandError if the log cannot be read."""
    command = {
        "ls": _ls,
        "verify": _verify,
        "cat": _cat,
        "stats": _stats,
        "prune": _prune,
        "repair": _repair,
        "export": _export,
        "readers": _readers,
        "ship": _ship,
    }[arguments.capture_command]
    try:
        return command(arguments)
    except BrokenPipeError:
        raise  # the reader closed the pipe
    except LocationError as error:
        raise CommandError(str(error), USAGE) from error
    except CaptureLockedError as error:
        raise CommandError(f"{arguments.directory}: {error.strerror}", FAILED) from error
    except (LogIdError, ShipError) as error:
        raise CommandError(str(error), FAILED) from error
    except OSError as error:
        if error.errno in _FULL:
            where = _WRITTEN.get(arguments.capture_command)
            if where is None or str(getattr(arguments, where)) == "-":
                raise  # standard output
            raise CommandError(
                f"cannot write {getattr(arguments, where)}: {error.strerror}", FAILED
            ) from error
        raise CommandError(explain(error), USAGE) from error


def _reader(arguments: argparse.Namespace, damage: _Damage) -> CaptureReader:
    return CaptureReader(arguments.directory, on_problem=damage, storage=parse_storage(arguments.storage))


class _Reading:
    """Tracks how much of ``segments`` a command has read, for the display."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._numbers = {segment.name: number for number, segment in enumerate(segments, 1)}
        # The size of a segment that retention removes does not matter.
        sizes = [_size(segment) for segment in segments]
        self._before = dict(zip(self._numbers, accumulate(sizes, initial=0), strict=False))
        self._size = sum(sizes)
        self._at = next(iter(self._numbers), ""), 0

    def on_block(self, info: BlockInfo) -> None:
        """Note that a block was read."""
        self._at = info.file, info.end

    def blocks(self, reader: CaptureReader) -> Iterator[Block]:
        """Yield the blocks of a reader."""
        for block in reader.blocks():
            if reader.position is not None:
                self._at = reader.position
            yield block

    def shown(self, display: Display, what: str) -> AbstractContextManager[None]:
        """Show the progress while the block runs."""

        def share() -> float:
            file, offset = self._at
            return (self._before[file] + offset) / self._size

        def detail() -> str:
            return f", segment {self._numbers[self._at[0]]} of {len(self._numbers)}"

        return display.step(Step(what, size=self._size), share, detail)


def _size(segment: Segment) -> int:
    if segment.entry is not None:
        return segment.entry.bytes
    try:
        return segment.size()
    except FileNotFoundError:
        return 0


def _display() -> Display:
    return Display(delay=_DELAY_S, prefix="capture: ")


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
    report = verify(arguments.directory, bodies=False, storage=parse_storage(arguments.storage))
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
    storage = parse_storage(arguments.storage)
    reading = _Reading(list_log(arguments.directory, storage).segments)
    with reading.shown(_display(), "verifying"):
        report = verify(arguments.directory, storage=storage, on_block=reading.on_block)
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


class _Damage:
    """Prints damage on standard error. ``status`` is the exit code, ``display`` prints there."""

    def __init__(self) -> None:
        self.status = OK
        self.display = _display()

    def __call__(self, problem: Problem) -> None:
        self.status = FAILED
        self.display.say(f"headwater: {problem}")


# ---- cat -------------------------------------------------------------------------------------------------------------


def _cat(arguments: argparse.Namespace) -> int:
    damage = _Damage()
    reader = _reader(arguments, damage)
    left = arguments.limit
    while left != 0:
        for block in reader.blocks():
            for record in _wanted(block, arguments.peer):
                _write(record, arguments.raw, arguments.decode)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return damage.status
        sys.stdout.flush()
        if not arguments.follow:
            break
        check_reader()
        time.sleep(_FOLLOW_S)
    if reader.torn is not None:
        print(f"headwater: {reader.torn}", file=sys.stderr)
    return damage.status


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


# ---- stats, export ---------------------------------------------------------------------------------------------------


def _shown_blocks(arguments: argparse.Namespace, damage: _Damage, what: str) -> Iterator[Block]:
    """Yield the blocks of the log and show the progress."""
    reading = _Reading(list_log(arguments.directory, parse_storage(arguments.storage)).segments)
    with reading.shown(damage.display, what):
        yield from reading.blocks(_reader(arguments, damage))


def _stats(arguments: argparse.Namespace) -> int:
    """Count records and bytes by peer, protocol and direction."""
    damage = _Damage()
    counts: dict[tuple[str, int, int], Totals] = {}
    for block in _shown_blocks(arguments, damage, "counting"):
        columns = zip(block.peer, block.protocol, block.direction, block.length, block.time_ns, strict=True)
        for peer, protocol, direction, length, time_ns in columns:
            key = block.peers[peer], protocol, direction
            counts[key] = counts.get(key, _NOTHING).add(length, time_ns)
    rows = [
        {
            "peer": peer,
            "protocol": PROTOCOLS.get(protocol, protocol),
            "direction": DIRECTIONS.get(direction, direction),
            "records": totals.records,
            "bytes": totals.bytes,
            "first": format_time(totals.first_ns),
            "last": format_time(totals.last_ns),
            "per_second": totals.rate,
        }
        for (peer, protocol, direction), totals in sorted(counts.items())
    ]
    if arguments.json:
        print(json.dumps({"peers": rows}))
        return damage.status
    names = ("peer", "protocol", "records", "bytes", "per_second", "direction", "first", "last")
    cells = [["-" if row[name] is None else str(row[name]) for name in names] for row in rows]
    _print_table([[name.replace("_", " ") for name in names], *cells])
    return damage.status


class Totals(NamedTuple):
    """Records and bytes of frames, with the times of the first and the last."""

    records: int
    bytes: int
    first_ns: int
    last_ns: int

    def add(self, length: int, time_ns: int) -> Totals:
        """Return the totals with one more record."""
        first, last = (self.first_ns, self.last_ns) if self.records else (time_ns, time_ns)
        return Totals(self.records + 1, self.bytes + length, min(first, time_ns), max(last, time_ns))

    @property
    def rate(self) -> float | None:
        """Records per second between the first and the last; None if they have the same time."""
        span = self.last_ns - self.first_ns
        return round((self.records - 1) * 1e9 / span, 3) if span > 0 else None


_NOTHING = Totals(0, 0, 0, 0)


def _export(arguments: argparse.Namespace) -> int:
    damage = _Damage()
    blocks = _shown_blocks(arguments, damage, "exporting")
    records = (record for block in blocks for record in _wanted(block, arguments.peer))
    # Open the log before the file is created or overwritten.
    list_log(arguments.directory, parse_storage(arguments.storage))
    if str(arguments.pcap) == "-":
        count = pcapng.export(records, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        print(f"{count} records", file=sys.stderr)
        return damage.status
    with open(arguments.pcap, "wb", opener=opened) as out:
        count = pcapng.export(records, out)
    print(f"{count} records in {arguments.pcap}")
    return damage.status


# ---- prune, repair, readers ------------------------------------------------------------------------------------------


def _prune(arguments: argparse.Namespace) -> int:
    limits = Limits(arguments.max_age, arguments.max_bytes, arguments.unread)
    if not limits:
        raise CommandError("--max-age or --max-bytes is needed", USAGE)
    now = time.time_ns()

    def age(segment: Segment) -> float:
        return (now - segment.entry.last_ns) / 1e9 if segment.entry is not None else 0.0

    removal = prune(arguments.directory, limits, age, dry_run=arguments.dry_run)
    if arguments.json:
        found = {
            "dry_run": arguments.dry_run,
            "removed": [_due(due) for due in removal.removed],
            "kept": [_due(due) for due in removal.kept],
            "left_bytes": removal.left,
        }
        print(json.dumps(found))
    else:
        verb = "would remove" if arguments.dry_run else "removed"
        for due in removal.removed:
            unread = f", which {', '.join(due.readers)} has not taken" if due.readers else ""
            print(f"{verb} {due.segment.name}, {due.bytes} bytes{unread}")
        for due in removal.kept:
            print(f"kept {due.segment.name}, {due.bytes} bytes, for {', '.join(due.readers)}")
        print(
            f"{verb} {len(removal.removed)} segments, {removal.removed_bytes} bytes; {removal.left} bytes are left"
        )
    return FAILED if removal.kept else OK


def _due(due: Due) -> dict[str, Any]:
    return {"file": due.segment.name, "bytes": due.bytes, "readers": list(due.readers)}


def _repair(arguments: argparse.Namespace) -> int:
    listing = list_log(arguments.directory)  # creates no log where there is none
    reading = _Reading([segment for segment in listing.segments if segment.entry is None])
    with reading.shown(_display(), "repairing"):
        log = BlockLog(arguments.directory, on_block=reading.on_block)
    try:
        recovery = log.recovery
    finally:
        log.close()
    for path in recovery.sealed:
        print(f"sealed {path.name}")
    if str(recovery):
        print(recovery)
    if not (recovery.sealed or str(recovery)):
        print("nothing to repair: all segments are sealed; `verify` checks them")
    return FAILED if recovery.problems else OK


def _readers(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.directory
    list_log(directory)
    if arguments.forget is not None:
        try:
            if not remove_reader(directory, arguments.forget):
                raise CommandError(f"there is no reader {arguments.forget!r}", FAILED)
        except ValueError as error:
            raise CommandError(str(error), USAGE) from error
    readers = list_readers(directory)
    if arguments.json:
        print(json.dumps({"readers": readers}))
        return OK
    for name, sequence in readers.items():
        needs = (
            "is damaged: everything is kept" if sequence is None else f"needs block {sequence} and later ones"
        )
        print(f"{name} {needs}")
    if not readers:
        print("no readers")
    return OK


# ---- ship ------------------------------------------------------------------------------------------------------------


def _ship(arguments: argparse.Namespace) -> int:
    list_log(arguments.directory)
    if arguments.watch is None:
        return _ship_once(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    status = OK
    while True:
        try:
            status = _ship_once(arguments)
        except (ShipError, OSError) as error:
            # The network or the disk may be back at the next look.
            status = FAILED
            print(f"headwater: {explain(error)}", file=sys.stderr, flush=True)
        if stop.wait(arguments.watch):
            return status


def _ship_once(arguments: argparse.Namespace) -> int:
    def on_segment(name: str, size: int) -> None:
        if not arguments.json:
            print(f"shipped {name}, {size} bytes", flush=True)

    try:
        done = ship(
            arguments.directory,
            arguments.target,
            parse_storage(arguments.storage),
            reader=arguments.reader,
            read_back=arguments.check == "content",
            on_segment=on_segment,
        )
    except ValueError as error:
        if isinstance(error, (LocationError, LogIdError)):
            raise
        raise CommandError(str(error), USAGE) from error
    if arguments.json:
        print(json.dumps(asdict(done)), flush=True)
    elif arguments.watch is None:
        print(f"shipped {len(done.shipped)} segments, {done.bytes} bytes; {done.before} were there")
    for name in done.removed:
        print(f"headwater: {name} was removed before it was shipped", file=sys.stderr, flush=True)
    return FAILED if done.removed else OK
