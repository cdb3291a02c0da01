"""``headwater mq put``: put messages into a queue."""

import argparse
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, BinaryIO, TypeVar

from headwater_host.cli.options import FLAG, SECONDS, integer, option
from headwater_host.exits import OK, USAGE, CommandError
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError, failed
from headwater_host.mq.fields import HIGHEST
from headwater_mq.commands.arguments import ID, LONG, add_version, flags_of, format_of, opened
from headwater_mq.commands.output import Got
from headwater_mq.manager import QueueManager
from headwater_mq.options import PMO
from headwater_mq.queue import Queue

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    what = parser.add_mutually_exclusive_group(required=True)
    option(what, "-m --message", "Data, encoded as UTF-8", metavar="TEXT")
    option(what, "-f --file", "File with the data; - reads standard input", metavar="FILE")
    option(what, "-s --stdin-file", "Data: all of standard input", FLAG)
    option(what, "-l --stdin-lines", "Put each line of standard input", FLAG)
    option(what, "-n --null-message", "No data", FLAG)
    group = parser.add_argument_group("descriptor")
    add_version(group)
    form = "Format of the data; default: MQSTR with -m and -l, else none"
    option(group, "--format", form, type=format_of, metavar="NAME")
    option(group, "--ccsid", "Character set of the data; default: 1208 for MQSTR", LONG)
    option(group, "--encoding", "Number encoding of the data; default: 546", LONG)
    option(group, "--priority", "Priority, 0 to 9", integer(0, 9))
    option(group, "--not-persistent", "Allow a power cut to lose the message", FLAG)
    option(group, "--expiry", "Time until the message expires", SECONDS)
    option(group, "--correl-id", "CorrelId", ID)
    group = parser.add_argument_group("groups and segments")
    option(group, "--group", "GroupId; default: a new one if needed", ID)
    option(group, "--seq", "MsgSeqNumber, or the first one; default: 1", LONG, default=1)
    option(group, "--offset", "Offset, or the first one; default: 0", LONG, default=0)
    flags = "MsgFlags, separated by commas, such as SEGMENT,LAST_SEGMENT"
    option(group, "--flags", flags, type=flags_of, default=0, metavar="NAMES")
    size = "Split the data into segments of this size"
    option(group, "--segment-size", size, integer(1, HIGHEST), metavar="BYTES")
    option(group, "--as-group", "Put the lines as one group; needs -l", FLAG)
    option(parser, "--define", "Create a missing queue; default in a new file", FLAG)
    depth = "Maximum depth of a created queue; default: 5000"
    option(parser, "--max-depth", depth, integer(1, HIGHEST), default=5000)
    option(parser, "--json", "Print the descriptor of each message as JSON", FLAG)


def run(args: argparse.Namespace) -> int:
    """Put the messages; create the queue if the options say so."""
    descriptor = _described(args)
    path = "-" if args.stdin_file else args.file
    file = None if path in (None, "-") else opened(path, "rb")
    define = args.define or not args.store.exists()
    with file or nullcontext(), QueueManager(path=args.store) as manager:
        names = manager.queues()
        if args.queue not in names:
            # Another process may be creating the same new file.
            if names and not define:
                unknown = f"{args.queue} is not defined in {args.store}; --define creates it"
                raise failed(CMQC.MQRC_UNKNOWN_OBJECT_NAME, unknown)
            _define(manager, args)
        if args.stdin_lines:
            lines = (io.BytesIO(line.rstrip(b"\n").removesuffix(b"\r")) for line in sys.stdin.buffer)
            _put_all(manager, descriptor, lines, args)
        else:
            text = (args.message or "").encode("utf-8", "surrogateescape")
            message = file or (sys.stdin.buffer if path else io.BytesIO(text))
            _put_all(manager, descriptor, iter([message]), args)
    return OK


def _define(manager: QueueManager, args: argparse.Namespace) -> None:
    try:
        manager.define(args.queue, MaxQDepth=args.max_depth)
    except MQMIError as error:
        # Another process has created it at the same time.
        if error.reason != CMQC.MQRC_OBJECT_ALREADY_EXISTS:
            raise


def _put_all(
    manager: QueueManager, descriptor: MD, messages: Iterator[BinaryIO], args: argparse.Namespace
) -> None:
    """Put each message with its segments, or the whole group, as one unit of work."""
    queue = Queue(manager, args.queue, CMQC.MQOO_OUTPUT)
    given = args.group or CMQC.MQGI_NONE
    seq = args.seq
    for message, is_last in _ends(messages) if args.as_group else ((one, True) for one in messages):
        of_group = _ending(args.as_group, is_last, CMQC.MQMF_MSG_IN_GROUP, CMQC.MQMF_LAST_MSG_IN_GROUP)
        group_id, offset = given, args.offset
        for piece, is_end in _ends(_pieces(message, args.segment_size)):
            of_message = _ending(args.segment_size, is_end, CMQC.MQMF_SEGMENT, CMQC.MQMF_LAST_SEGMENT)
            md = descriptor.copy()
            md.set(MsgFlags=args.flags | of_group | of_message)
            md.set(GroupId=group_id, MsgSeqNumber=seq, Offset=offset)
            queue.put(piece, md, PMO(Options=CMQC.MQPMO_SYNCPOINT))
            # The queue manager has set a missing one.
            group_id = md.GroupId
            offset += len(piece)
            if args.json:
                print(Got(args.queue, md, piece).json())
        if args.as_group:
            given = group_id
            seq += 1
        else:
            manager.commit()
    manager.commit()


def _ending(wanted: object, is_last: bool, member: int, last: int) -> int:
    return (member | last if is_last else member) if wanted else 0


def _described(args: argparse.Namespace) -> MD:
    """Return the descriptor without group and segment fields. Raises CommandError."""
    if args.as_group and not args.stdin_lines:
        raise CommandError("--as-group is for -l", USAGE)
    if args.stdin_lines and args.group is not None and not args.as_group:
        raise CommandError("--group with -l needs --as-group: messages of a group are numbered", USAGE)
    is_text = args.message is not None or args.stdin_lines
    form = args.format if args.format is not None else "MQSTR" if is_text else ""
    said: dict[str, Any] = {"Version": args.md_version, "Format": form}
    said["CodedCharSetId"] = args.ccsid if args.ccsid is not None else 1208 if form == "MQSTR" else 0
    if args.encoding is not None:
        said["Encoding"] = args.encoding
    if args.priority is not None:
        said["Priority"] = args.priority
    if args.not_persistent:
        said["Persistence"] = CMQC.MQPER_NOT_PERSISTENT
    if args.expiry is not None:
        said["Expiry"] = max(round(args.expiry * 10), 1)
    if args.correl_id is not None:
        said["CorrelId"] = args.correl_id
    grouped = (args.group, args.flags, args.segment_size, args.as_group, args.seq != 1, args.offset)
    if args.md_version == 1 and any(grouped):
        raise CommandError("groups and segments need --md-version 2, or an MQMDE in the data", USAGE)
    try:
        return MD(**said)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error


def _pieces(file: BinaryIO, size: int | None) -> Iterator[bytes]:
    """Yield the segments of a message, at least one."""
    piece = file.read(-1 if size is None else size)
    yield piece
    while size is not None and (piece := file.read(size)):
        yield piece


def _ends(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Yield each item and whether it is the last."""
    held: list[T] = []
    for item in items:
        if held:
            yield held.pop(), False
        held.append(item)
    for item in held:
        yield item, True
