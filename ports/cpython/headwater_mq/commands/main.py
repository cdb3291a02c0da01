"""``headwater mq``: put messages into a local queue of IBM MQ's kind, get them, look at them, send them on."""

import argparse
import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from headwater_host.cli import argument_types, mq_uplink
from headwater_host.cli.message_format import render
from headwater_host.cli.stdout import LOOK_AGAIN_S, check_reader
from headwater_host.exits import FAILED, OK, TIMED_OUT, USAGE, CommandError
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError, failed
from headwater_mq.attributes import check_name
from headwater_mq.commands.output import Got, sequences
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO, PMO
from headwater_mq.queue import Queue

T = TypeVar("T")
_HIGHEST = 999_999_999
_FLAGS = {
    name.removeprefix("MQMF_"): getattr(CMQC, name)
    for name in (
        "MQMF_SEGMENTATION_ALLOWED",
        "MQMF_SEGMENT",
        "MQMF_LAST_SEGMENT",
        "MQMF_MSG_IN_GROUP",
        "MQMF_LAST_MSG_IN_GROUP",
    )
}
#: What a message may be asked for by: option, field, and what says that the field counts.
_MATCHED = (
    ("msg_id", "MsgId", CMQC.MQMO_MATCH_MSG_ID),
    ("correl_id", "CorrelId", CMQC.MQMO_MATCH_CORREL_ID),
    ("group", "GroupId", CMQC.MQMO_MATCH_GROUP_ID),
    ("seq", "MsgSeqNumber", CMQC.MQMO_MATCH_MSG_SEQ_NUMBER),
    ("offset", "Offset", CMQC.MQMO_MATCH_OFFSET),
)
#: An MQLONG. What it may be is for the queue manager to say.
_LONG = argument_types.whole(-(1 << 31), (1 << 31) - 1)
_VERBOSE = sequences("%f %g %s %o")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands and their options."""
    parser.description = "A local queue of IBM MQ's kind in an SQLite file. See docs/ibm-mq-queue.md."
    commands = parser.add_subparsers(dest="mq_command", metavar="COMMAND", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )
        sub.add_argument("--store", required=True, type=Path, metavar="FILE", help="the file of the queues")
        sub.add_argument("--queue", required=name != "stats", type=_name, metavar="NAME")
        return sub

    _add_put(add("put", "put a message, or several"))
    get = add("get", "get messages: each is removed once it is printed")
    browse = add("browse", "print messages, which stay where they are")
    for sub, default in ((get, "1"), (browse, "all there are")):
        sub.add_argument(
            "-C",
            "--count",
            type=argument_types.whole(1, 1 << 62),
            help=f"at most so many; default: {default}",
        )
        _add_get(sub)
    get.add_argument("--all", action="store_true", help="all there are, in place of -C")
    stats = add("stats", "say how much there is in each queue, and which groups and messages are incomplete")
    stats.add_argument("--json", action="store_true", help="a JSON object for each queue")
    mq_uplink.add_arguments(commands)


def _add_put(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-m", "--message", metavar="TEXT", help="the data, in UTF-8")
    what.add_argument("-f", "--file", metavar="FILE", help="a file's content; - is standard input")
    what.add_argument("-s", "--stdin-file", action="store_true", help="the whole of standard input")
    what.add_argument(
        "-l", "--stdin-lines", action="store_true", help="a message for each line of standard input"
    )
    what.add_argument("-n", "--null-message", action="store_true", help="no data")
    group = parser.add_argument_group("descriptor")
    _add_version(group)
    group.add_argument(
        "--format",
        type=_format,
        metavar="NAME",
        help="what the data are; default: MQSTR with -m and -l, otherwise none",
    )
    group.add_argument(
        "--ccsid", type=_LONG, metavar="N", help="their character set; default: 1208 for MQSTR"
    )
    group.add_argument("--encoding", type=_LONG, metavar="N", help="how they write numbers; default: 546")
    group.add_argument("--priority", type=argument_types.whole(0, 9), metavar="N", help="0 to 9")
    group.add_argument(
        "--not-persistent", action="store_true", help="it need not outlive the computer's power"
    )
    group.add_argument(
        "--expiry", type=argument_types.seconds, metavar="SECONDS", help="for how long it is of use"
    )
    group.add_argument("--correl-id", type=_id, metavar="HEX")
    group = parser.add_argument_group("groups and segments")
    group.add_argument(
        "--group", type=_id, metavar="HEX", help="GroupId; default: a new one where it is needed"
    )
    group.add_argument("--seq", type=_LONG, default=1, metavar="N", help="MsgSeqNumber; default: 1")
    group.add_argument(
        "--offset", type=_LONG, default=0, metavar="N", help="where in its message a segment begins"
    )
    group.add_argument(
        "--flags",
        type=_flags,
        default=0,
        metavar="NAMES",
        help=f"MsgFlags: {', '.join(_FLAGS)}; commas between",
    )
    group.add_argument(
        "--segment-size",
        type=argument_types.whole(1, _HIGHEST),
        metavar="BYTES",
        help="cut data into segments",
    )
    group.add_argument("--as-group", action="store_true", help="with -l: the lines are a group")
    parser.add_argument(
        "--define", action="store_true", help="make the queue if there is none; in a new file it always is"
    )
    parser.add_argument(
        "--max-depth",
        type=argument_types.whole(1, _HIGHEST),
        default=5000,
        metavar="N",
        help="of a queue that is made: how many messages it takes; default: 5000",
    )
    parser.add_argument("--json", action="store_true", help="print the descriptor of each that was put")


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-W",
        "--wait",
        type=argument_types.seconds,
        metavar="SECONDS",
        help="wait so long, in all, for messages that are not there yet; default: not at all",
    )
    group = parser.add_argument_group("which messages")
    group.add_argument("--complete", action="store_true", help="logical messages, their segments joined")
    group.add_argument("--all-messages", action="store_true", help="only of groups that are there as a whole")
    group.add_argument(
        "--all-segments", action="store_true", help="only of messages that are there as a whole"
    )
    group.add_argument("--logical-order", action="store_true", help="groups and segments in their order")
    group.add_argument("--msg-id", type=_id, metavar="HEX", help="only with this MsgId")
    group.add_argument("--correl-id", type=_id, metavar="HEX", help="only with this CorrelId")
    group.add_argument("--group", type=_id, metavar="HEX", help="only with this GroupId")
    group.add_argument("--seq", type=_LONG, metavar="N", help="only with this MsgSeqNumber")
    group.add_argument("--offset", type=_LONG, metavar="N", help="only with this Offset")
    group = parser.add_argument_group("output")
    _add_version(group)
    group.add_argument(
        "-O",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the data there, as they are, one behind the other",
    )
    shape = group.add_mutually_exclusive_group()
    shape.add_argument(
        "-v", "--verbose", action="store_true", help="Format, GroupId, MsgSeqNumber and Offset in front"
    )
    shape.add_argument("--json", action="store_true", help="a JSON object for each message")
    shape.add_argument(
        "-F", "--format", type=sequences, help="a text with sequences such as %%p, %%g, %%s: see docs/cli.md"
    )
    group.add_argument("-N", "--no-newline", action="store_true", help="no line end behind a message")


def _add_version(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--md-version",
        type=int,
        choices=(1, 2),
        default=2,
        help="of the MQMD; with 1 groups and segments are told by an MQMDE in front of the data; default: 2",
    )


# -- types of arguments ------------------------------------------------------------------------------------------------


def _name(text: str) -> str:
    try:
        return check_name(text)
    except MQMIError as error:
        raise argparse.ArgumentTypeError(error.detail) from None


def _id(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 24:
        raise argparse.ArgumentTypeError(f"{text!r} is not 24 bytes in hexadecimal")
    return value


def _format(text: str) -> str:
    if not (len(text) <= 8 and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a Format: at most 8 characters of ASCII")
    return text


def _flags(text: str) -> int:
    value = 0
    for name in filter(
        None, (part.strip().upper().removeprefix("MQMF_") for part in text.replace("|", ",").split(","))
    ):
        if name not in _FLAGS:
            raise argparse.ArgumentTypeError(f"{name!r} is no flag: {', '.join(_FLAGS)}")
        value |= _FLAGS[name]
    return value


# -- the commands ------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    if args.mq_command == "put":
        work = _put
    elif args.mq_command == "stats":
        from headwater_mq.commands.stats import show as work
    elif args.mq_command == "uplink":
        work = mq_uplink.serve
    else:
        work = _get
    try:
        return work(args)
    except MQMIError as error:
        raise CommandError(str(error), FAILED) from error


def _put(args: argparse.Namespace) -> int:
    descriptor = _described(args)
    path = "-" if args.stdin_file else args.file
    file = None if path in (None, "-") else _opened(path, "rb")
    define = args.define or not args.store.exists()
    with file or nullcontext(), QueueManager(path=args.store) as manager:
        names = manager.queues()
        if args.queue not in names:
            # In a file without queues somebody else may just be making it, as we do.
            if names and not define:
                unknown = f"{args.queue} is not defined in {args.store}; --define makes it"
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
        # Two that put at once both find that there is none.
        if error.reason != CMQC.MQRC_OBJECT_ALREADY_EXISTS:
            raise


def _put_all(
    manager: QueueManager, descriptor: MD, messages: Iterator[BinaryIO], args: argparse.Namespace
) -> None:
    """Each message, with all its segments, is a unit of work; and so is a group."""
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
            # The queue manager has made one where it was needed.
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
    """The descriptor that the options ask for, but for what tells messages and segments apart."""
    if args.as_group and not args.stdin_lines:
        raise CommandError("--as-group is for -l", USAGE)
    if args.stdin_lines and args.group is not None and not args.as_group:
        raise CommandError("--group with -l needs --as-group: messages of a group have numbers", USAGE)
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
    """What of a message becomes a message of its own; one at least."""
    piece = file.read(-1 if size is None else size)
    yield piece
    while size is not None and (piece := file.read(size)):
        yield piece


def _ends(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each, and whether it is the last."""
    held: list[T] = []
    for item in items:
        if held:
            yield held.pop(), False
        held.append(item)
    for item in held:
        yield item, True


def _get(args: argparse.Namespace) -> int:
    """Print messages; those that are got are removed when they are written out."""
    browse = args.mq_command == "browse"
    if not browse and args.all and args.count is not None:
        raise CommandError("-C or --all, not both", USAGE)
    most = args.count if browse else None if args.all else args.count or 1
    deadline = time.monotonic() + (args.wait or 0)
    printed = 0
    with (
        QueueManager(path=args.store, create=False) as manager,
        _output(args.output) as file,
    ):
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


def _opened(path: "str | Path", mode: str, opener: Callable[[str, int], int] | None = None) -> Any:
    try:
        return open(path, mode, opener=opener)
    except OSError as error:
        raise CommandError(f"cannot open {path}: {error.strerror}", USAGE) from error


def _as_it_is(name: str, flags: int) -> int:
    return os.open(name, flags & ~os.O_TRUNC, 0o666)


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO | None]:
    """The file of ``-O``, with what is in it until there is a message. What is still in its buffer when something has
    gone wrong is of no use."""
    file = None if path is None else _opened(path, "wb", _as_it_is)
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
    """The next message; None when there is none, or none came in time. BrokenPipeError: nobody reads the output."""
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
            # It was done, with a remark.
            print(f"headwater: {error}", file=sys.stderr)
            data = error.message
        return Got(args.queue, md, data)


def _asked(args: argparse.Namespace, md: MD, gmo: GMO, is_first: bool, deadline: float) -> GMO:
    """Say in the descriptor and the options which message is wanted."""
    asked = CMQC.MQGMO_SYNCPOINT
    if args.mq_command == "browse":
        asked = CMQC.MQGMO_BROWSE_FIRST if is_first else CMQC.MQGMO_BROWSE_NEXT
    for chosen, option in (
        (args.complete, CMQC.MQGMO_COMPLETE_MSG),
        (args.all_messages, CMQC.MQGMO_ALL_MSGS_AVAILABLE),
        (args.all_segments, CMQC.MQGMO_ALL_SEGMENTS_AVAILABLE),
        (args.logical_order, CMQC.MQGMO_LOGICAL_ORDER),
    ):
        asked |= option if chosen else 0
    left = deadline - time.monotonic()
    if left > 0:
        asked |= CMQC.MQGMO_WAIT
        gmo.WaitInterval = int(min(left, LOOK_AGAIN_S) * 1000) + 1
    match = 0
    for name, field, option in _MATCHED:
        value = getattr(args, name)
        if value is not None:
            match |= option
            md[field] = value
    gmo.set(Options=asked, MatchOptions=match)
    return gmo


def _is_regular(file: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _cut(file: BinaryIO | None) -> None:
    """There is something to write: what the file held goes."""
    if file is not None and _is_regular(file):
        file.truncate(0)


def _show(got: Got, file: BinaryIO | None, args: argparse.Namespace) -> None:
    """Write a message out; when this returns it may be removed."""
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
