"""``headwater pub``: publish messages."""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater_host.cli import argument_types, connection, fmq, stdin
from headwater_host.cli.properties import of
from headwater_host.errors import NotConnectedError, QueueFullError
from headwater_host.exits import OK, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client import fmq as hub_client
    from headwater_host.client import mqtt as aio

# How many lines may be on their way at a time; and bytes of segments, beside what the client keeps of them.
_WINDOW = 256
_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Publish. At QoS 1 and 2 the command ends well only when the server has acknowledged everything."
    )
    parser.add_argument("-t", "--topic", type=argument_types.topic)
    # One of them is required, but it may stand in a file of options.
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-m", "--message", metavar="TEXT", help="the payload, sent in UTF-8")
    what.add_argument(
        "-f", "--file", metavar="FILE", help="a file's content as the payload; - is standard input"
    )
    what.add_argument("-s", "--stdin-file", action="store_true", help="the whole of standard input")
    what.add_argument(
        "-l", "--stdin-lines", action="store_true", help="a message for each line of standard input"
    )
    what.add_argument("-n", "--null-message", action="store_true", help="an empty payload")
    what.add_argument("--value", metavar="JSON", help="a value of FMQ, such as a map, as JSON (FMQ)")
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument(
        "-r", "--retain", action="store_true", help="the server keeps it for later subscribers"
    )
    parser.add_argument(
        "--repeat",
        type=argument_types.whole(1, 1 << 62),
        default=1,
        metavar="N",
        help="publish it N times; not with -l",
    )
    parser.add_argument(
        "--repeat-delay",
        type=argument_types.pause,
        default=0.0,
        metavar="SECONDS",
        help="wait in between",
    )
    parser.add_argument(
        "-M",
        "--max-inflight",
        type=argument_types.whole(1, 65535),
        default=20,
        metavar="N",
        help="how many are sent without an acknowledgement; default: %(default)s",
    )
    parser.add_argument(
        "--drop-oldest",
        type=argument_types.whole(1, 65280),
        metavar="N",
        help="with -l and --repeat: when N messages wait that were never sent, drop the oldest for each new one "
        "instead of waiting",
    )
    group = parser.add_argument_group("segments, as IBM MQ has them")
    group.add_argument(
        "--segment-size",
        type=_segment_size,
        metavar="BYTES",
        help="with -f and -s: publish it in messages of so many bytes, a multiple of 16, each behind an MQMDE",
    )
    group.add_argument("--format", type=_format, metavar="NAME", help="what the data are; default: nothing")
    group.add_argument(
        "--ccsid",
        type=argument_types.whole(1, 65535),
        metavar="N",
        help="their character set; default: 1208 for MQSTR",
    )
    group.add_argument(
        "--encoding", type=argument_types.whole(1, (1 << 31) - 1), metavar="N", help="how they write numbers"
    )
    fmq.add_tags(parser, "a tag of the message; repeatable (FMQ)")
    connection.add_connection(
        parser,
        "default: with -l and --repeat for ever, otherwise not at all",
        ("connect", "publish", "disconnect", "will"),
    )


def run(args: argparse.Namespace) -> int:
    """Publish; 0 when all was acknowledged (QoS 1, 2) or sent (QoS 0)."""
    protocol = connection.choose(args)
    args.topic, *others = connection.topics(args, [] if args.topic is None else [args.topic])
    if others:
        raise CommandError("one topic: -t, or in the path of -L", USAGE)
    # What a kept session has for us is not for this command: it stays with the server.
    keeps_on = args.stdin_lines or args.repeat > 1
    source, most = _source(args)
    more: dict[str, Any] = {}
    if args.drop_oldest is not None:
        if not keeps_on:
            raise CommandError("--drop-oldest is for -l and --repeat", USAGE)
        more = {"when_full": "drop_oldest", "max_queued_outgoing_messages": args.drop_oldest}
    more |= {"max_inflight_messages": args.max_inflight, "auto_ack": False}
    if protocol == "fmq":
        hub = fmq.make_client(args, keeps_on, **more)
        work = _publish(hub, partial(hub.publish, tags=args.tag), args, source, most)
    else:
        from headwater_host.cli import mqtt

        client = mqtt.make_client(args, keeps_on, **more)
        work = _publish(client, partial(client.publish, properties=of(args, "publish")), args, source, most)
    return connection.run_until_signal(work)


def _segment_size(text: str) -> int:
    from headwater_host.mq.CMQC import MQMDE_LENGTH_2
    from headwater_host.mq.fields import LARGEST

    # What follows the MQMDE in IBM's largest message.
    size = argument_types.whole(16, (LARGEST - MQMDE_LENGTH_2) // 16 * 16)(text)
    if size % 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of 16")
    return size


def _format(text: str) -> str:
    # What is one character in every character set of the MQMDE, as the core has it.
    if not re.fullmatch(r"[A-Za-z0-9 ._/%]{0,8}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a Format: at most 8 letters, digits, blanks and . _ / %"
        )
    return text


def _source(args: argparse.Namespace) -> tuple[AsyncIterator[bytes], int]:
    """What is to be published, and how many of it may be on their way at a time."""
    given = (
        args.message is not None,
        args.file is not None,
        args.stdin_file,
        args.stdin_lines,
        args.null_message,
        args.value is not None,
    )
    if sum(given) != 1:
        which = "-m/--message -f/--file -s/--stdin-file -l/--stdin-lines -n/--null-message --value"
        raise CommandError(f"one of the arguments {which} is required", USAGE)
    # What is over is forgotten then. With --drop-oldest so many cannot wait: nothing keeps the lines from being read.
    most = _WINDOW + (0 if args.drop_oldest is None else args.drop_oldest + args.max_inflight)
    if args.segment_size is not None:
        return _segments(args)
    if (args.format, args.ccsid, args.encoding) != (None, None, None):
        raise CommandError("--format, --ccsid and --encoding are for --segment-size", USAGE)
    if not args.stdin_lines:
        return _repeated(_payload(args), args), most
    if args.repeat > 1:
        raise CommandError("--repeat is not for -l", USAGE)
    return stdin.in_thread(stdin.lines(), _WINDOW), most


def _segments(args: argparse.Namespace) -> tuple[AsyncIterator[bytes], int]:
    """A file in segments: never more of it in memory than may be sent without an acknowledgement, or 16 MiB."""
    if args.file is None and not args.stdin_file:
        raise CommandError("--segment-size is for -f and -s", USAGE)
    if args.repeat > 1:
        raise CommandError("--repeat is not for --segment-size", USAGE)
    if args.retain:
        raise CommandError(
            "-r is not for --segment-size: of all segments the server would keep the last", USAGE
        )
    from headwater_host.cli import segmented

    most = max(1, min(args.max_inflight, _BYTES // args.segment_size))
    return stdin.in_thread(segmented.payloads(args), 1), most


def _payload(args: argparse.Namespace) -> bytes:
    """A message."""
    if args.null_message:
        return b""
    if args.value is not None:
        return fmq.value(args.value)
    if args.message is not None:
        text: str = args.message
        return text.encode("utf-8", "surrogateescape")
    if args.stdin_file or args.file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(args.file).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {args.file}: {error.strerror}", USAGE) from error


async def _repeated(payload: bytes, args: argparse.Namespace) -> AsyncIterator[bytes]:
    for number in range(args.repeat):
        if number and args.repeat_delay:
            await asyncio.sleep(args.repeat_delay)
        yield payload


def _raise_why(done: set[asyncio.Task[None]]) -> None:
    """Several may have failed for one reason, which is told once: a server may refuse one and close the connection."""
    errors = [error for error in (task.exception() for task in done) if error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, NotConnectedError))


async def _publish(
    client: "aio.Client | hub_client.Client",
    send: Callable[..., Awaitable[object]],
    args: argparse.Namespace,
    source: AsyncIterator[bytes],
    most: int,
) -> int:
    patience = connection.patience(client)

    async def publish(data: bytes) -> None:
        connection.log.debug("publishing %d bytes to %r at QoS %d", len(data), args.topic, args.qos)
        try:
            await send(args.topic, data, args.qos, args.retain, timeout=patience)
        except QueueFullError:
            # As it was wanted.
            connection.log.debug("dropped a message of %d bytes", len(data))
            return
        if args.qos:
            connection.log.debug("acknowledged")

    async with client:
        connection.show_connection(client)
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for data in source:
                if args.qos == 0 and args.drop_oldest is None:
                    await publish(data)
                    continue
                # Tasks begin in their order, and so leave the messages.
                under_way.add(asyncio.ensure_future(publish(data)))
                if len(under_way) >= most:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    _raise_why(done)
            if under_way:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_EXCEPTION)
                _raise_why(done)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            if client.dropped and not args.quiet:
                print(f"headwater: {client.dropped} messages were dropped", file=sys.stderr)
    connection.log.debug("disconnected")
    return OK
