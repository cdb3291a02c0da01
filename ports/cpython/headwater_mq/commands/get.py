"""``headwater mq get`` and ``browse``: print messages of a queue."""

import argparse
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from headwater_host.cli.message_format import render
from headwater_host.cli.options import FILE, FLAG, SECONDS, option, whole
from headwater_host.cli.stdout import LOOK_AGAIN_S, check_reader
from headwater_host.exits import FAILED, OK, TIMED_OUT, USAGE, CommandError
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.commands.arguments import ID, LONG, add_version, opened
from headwater_mq.commands.output import Got, sequences
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO
from headwater_mq.queue import Queue

#: Option, field of the MQMD, match option.
_MATCHED = (
    ("msg_id", "MsgId", CMQC.MQMO_MATCH_MSG_ID),
    ("correl_id", "CorrelId", CMQC.MQMO_MATCH_CORREL_ID),
    ("group", "GroupId", CMQC.MQMO_MATCH_GROUP_ID),
    ("seq", "MsgSeqNumber", CMQC.MQMO_MATCH_MSG_SEQ_NUMBER),
    ("offset", "Offset", CMQC.MQMO_MATCH_OFFSET),
)
_VERBOSE = sequences("%f %g %s %o")


def add_arguments(parser: argparse.ArgumentParser, *, browse: bool = False) -> None:
    """Add the options of ``get``, or of ``browse``."""
    count = f"Maximum number of messages; default: {'all' if browse else '1'}"
    option(parser, "-C --count", count, type=whole(1, 1 << 62))
    if not browse:
        option(parser, "--all", "All messages, instead of -C", FLAG)
    option(parser, "-W --wait", "Total time to wait for messages; default: 0", SECONDS)
    group = parser.add_argument_group("which messages")
    option(group, "--complete", "Join the segments of each logical message", FLAG)
    option(group, "--all-messages", "Only messages of complete groups", FLAG)
    option(group, "--all-segments", "Only segments of complete messages", FLAG)
    option(group, "--logical-order", "Groups and segments in logical order", FLAG)
    option(group, "--msg-id", "Only with this MsgId", ID)
    option(group, "--correl-id", "Only with this CorrelId", ID)
    option(group, "--group", "Only with this GroupId", ID)
    option(group, "--seq", "Only with this MsgSeqNumber", LONG)
    option(group, "--offset", "Only with this Offset", LONG)
    group = parser.add_argument_group("output")
    add_version(group)
    option(group, "-O --output", "Write the data to this file, without separators", FILE)
    shape = group.add_mutually_exclusive_group()
    option(shape, "-v --verbose", "Print Format, GroupId, MsgSeqNumber and Offset first", FLAG)
    option(shape, "--json", "Print a JSON object for each message", FLAG)
    option(shape, "-F --format", "Print this text with sequences such as %%p, %%g", type=sequences)
    option(group, "-N --no-newline", "Print no newline after a message", FLAG)


def run(args: argparse.Namespace) -> int:
    """Print messages; ``get`` removes each one after it is written."""
    browse = args.mq_command == "browse"
    if not browse and args.all and args.count is not None:
        raise CommandError("-C or --all, not both", USAGE)
    most = args.count if browse else None if args.all else args.count or 1
    deadline = time.monotonic() + (args.wait or 0)
    printed = 0
    with QueueManager(path=args.store, create=False) as manager, _output(args.output) as file:
        queue = Queue(manager, args.queue, CMQC.MQOO_BROWSE if browse else CMQC.MQOO_INPUT_SHARED)
        while most is None or printed < most:
            got = _next(queue, args, printed == 0, deadline)
            if got is None:
                break
            if printed == 0:
                _cut(file)
            _show(got, file, args)
            if not browse:
                manager.commit()
            printed += 1
    if most is not None and printed < most and (args.count is not None or not browse):
        raise CommandError(f"MQRC_NO_MSG_AVAILABLE (2033): {printed} of {most} messages", TIMED_OUT)
    return OK


def _as_it_is(name: str, flags: int) -> int:
    return os.open(name, flags & ~os.O_TRUNC, 0o666)


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO | None]:
    """Open the file of ``-O``; its content stays until there is a message. After an error its buffer is discarded."""
    file = None if path is None else opened(path, "wb", _as_it_is)
    try:
        yield file
    except BaseException:
        with suppress(OSError):
            if file is not None:
                file.close()
        raise
    if file is not None:
        file.close()


def _next(queue: Queue, args: argparse.Namespace, is_first: bool, deadline: float) -> Got | None:
    """Return the next message, or None after the wait. Raises BrokenPipeError if the output has no reader."""
    while True:
        md = MD(Version=args.md_version)
        gmo = GMO(Version=CMQC.MQGMO_VERSION_2)
        try:
            data = queue.get(None, md, _asked(args, md, gmo, is_first, deadline))
        except MQMIError as error:
            if error.reason == CMQC.MQRC_NO_MSG_AVAILABLE:
                if time.monotonic() >= deadline:
                    return None
                if args.output is None or args.json or args.verbose or args.format is not None:
                    check_reader()
                continue
            if error.message is None:
                raise
            # A warning: the message was returned.
            print(f"headwater: {error}", file=sys.stderr)
            data = error.message
        return Got(args.queue, md, data)


def _asked(args: argparse.Namespace, md: MD, gmo: GMO, is_first: bool, deadline: float) -> GMO:
    """Set the descriptor and the options of MQGET."""
    asked = CMQC.MQGMO_SYNCPOINT
    if args.mq_command == "browse":
        asked = CMQC.MQGMO_BROWSE_FIRST if is_first else CMQC.MQGMO_BROWSE_NEXT
    for chosen, bit in (
        (args.complete, CMQC.MQGMO_COMPLETE_MSG),
        (args.all_messages, CMQC.MQGMO_ALL_MSGS_AVAILABLE),
        (args.all_segments, CMQC.MQGMO_ALL_SEGMENTS_AVAILABLE),
        (args.logical_order, CMQC.MQGMO_LOGICAL_ORDER),
    ):
        asked |= bit if chosen else 0
    left = deadline - time.monotonic()
    if left > 0:
        asked |= CMQC.MQGMO_WAIT
        gmo.WaitInterval = int(min(left, LOOK_AGAIN_S) * 1000) + 1
    match = 0
    for name, field, bit in _MATCHED:
        value = getattr(args, name)
        if value is not None:
            match |= bit
            md[field] = value
    gmo.set(Options=asked, MatchOptions=match)
    return gmo


def _is_regular(file: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _cut(file: BinaryIO | None) -> None:
    """Discard the content of the file before the first write."""
    if file is not None and _is_regular(file):
        file.truncate(0)


def _show(got: Got, file: BinaryIO | None, args: argparse.Namespace) -> None:
    """Write a message; after this returns it can be removed."""
    if file is not None:
        try:
            file.write(got.payload)
            file.flush()
            if _is_regular(file):
                os.fsync(file.fileno())
        except OSError as error:
            raise CommandError(f"cannot write {args.output}: {error.strerror}", FAILED) from error
    out = sys.stdout.buffer
    line = _line(got, args)
    if line is not None:
        out.write(line if args.no_newline else line + b"\n")
        out.flush()


def _line(got: Got, args: argparse.Namespace) -> bytes | None:
    if args.format is not None:
        return render(args.format, got)
    if args.json:
        return got.json().encode()
    if args.verbose:
        return render(_VERBOSE, got) + (b" " + got.payload if args.output is None else b"")
    return None if args.output is not None else got.payload
