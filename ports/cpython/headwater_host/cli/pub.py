"""``headwater pub``: publish messages."""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headwater_host.cli import connection, fmq, stdin
from headwater_host.cli.argument_types import topic
from headwater_host.cli.options import FLAG, content, integer, option, pause, whole
from headwater_host.cli.properties import of
from headwater_host.client.options import Limits
from headwater_host.errors import NotConnectedError, QueueFullError
from headwater_host.exits import OK, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client import fmq as hub_client
    from headwater_host.client import mqtt as aio

# Limits for unacknowledged publications: lines; bytes of segments, in addition to the client's outbox.
_WINDOW = 256
_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "Publish messages. At QoS 1 and 2, exit code 0 means acknowledged."
    option(parser, "-t --topic", "Topic", type=topic)
    # One is required, but may be in the options file: `_source` checks.
    what = parser.add_mutually_exclusive_group()
    option(what, "-m --message", "Payload, encoded as UTF-8", metavar="TEXT")
    option(what, "-f --file", "File with the payload; - reads standard input", metavar="FILE")
    option(what, "-s --stdin-file", "Payload: all of standard input", FLAG)
    option(what, "-l --stdin-lines", "Publish each line of standard input", FLAG)
    option(what, "-n --null-message", "Empty payload", FLAG)
    option(what, "--value", "Payload: this JSON as an FMQ value (FMQ)", metavar="JSON")
    option(parser, "-q --qos", "QoS; default: 0", type=int, choices=(0, 1, 2), default=0)
    option(parser, "-r --retain", "Retain the message on the server", FLAG)
    option(parser, "--repeat", "Publish the message N times; not with -l", integer(1, 1 << 62), default=1)
    option(parser, "--repeat-delay", "Pause between repetitions", type=pause, default=0.0, metavar="SECONDS")
    option(
        parser,
        "-M --max-inflight",
        "Maximum of unacknowledged messages; default: %(default)s",
        integer(1, 65535),
        default=20,
    )
    option(
        parser, "--drop-oldest", "Keep the newest N unsent messages; needs -l or --repeat", integer(1, 65280)
    )
    group = parser.add_argument_group("segments (IBM MQ)")
    option(
        group,
        "--segment-size",
        "Split -f or -s into this size, multiple of 16",
        type=_segment_size,
        metavar="BYTES",
    )
    option(group, "--format", "Format of the data; default: none", type=_format, metavar="NAME")
    option(group, "--ccsid", "Character set of the data; default: 1208 for MQSTR", integer(1, 65535))
    option(group, "--encoding", "Number encoding of the data; default: 273", integer(1, (1 << 31) - 1))
    fmq.add_tags(parser, "Tag of the message; repeatable (FMQ)")
    connection.add_connection(parser, None, ("connect", "publish", "disconnect", "will"))


def run(args: argparse.Namespace) -> int:
    """Publish. Return 0 when all messages are acknowledged (QoS 1 and 2) or sent (QoS 0)."""
    protocol = connection.choose(args)
    args.topic, *others = connection.topics(args, [] if args.topic is None else [args.topic])
    if others:
        raise CommandError("give one topic: -t, or the path of -L", USAGE)
    keeps_on = args.stdin_lines or args.repeat > 1
    source, most = _source(args)
    if args.drop_oldest is not None and not keeps_on:
        raise CommandError("--drop-oldest needs -l or --repeat", USAGE)
    if protocol == "fmq":
        hub = fmq.make_client(args, keeps_on, auto_ack=False, limits=_limits(args, Limits))
        work = _publish(hub, partial(hub.publish, tags=args.tag), args, source, most)
    else:
        from headwater_host.cli import mqtt

        client = mqtt.make_client(args, keeps_on, auto_ack=False, limits=_limits(args, mqtt.Limits))
        work = _publish(client, partial(client.publish, properties=of(args, "publish")), args, source, most)
    return connection.run_until_signal(work)


_L = TypeVar("_L", bound=Limits)


def _limits(args: argparse.Namespace, kind: Callable[..., _L]) -> _L:
    if args.drop_oldest is None:
        return kind(in_flight=args.max_inflight)
    return kind(in_flight=args.max_inflight, when_full="drop_oldest", queued_outgoing=args.drop_oldest)


def _segment_size(text: str) -> int:
    from headwater_host.mq.CMQC import MQMDE_LENGTH_2
    from headwater_host.mq.fields import LARGEST

    # IBM's largest message minus the MQMDE.
    size = whole(16, (LARGEST - MQMDE_LENGTH_2) // 16 * 16)(text)
    if size % 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of 16")
    return size


def _format(text: str) -> str:
    # Characters with one byte in every character set of the MQMDE.
    if not re.fullmatch(r"[A-Za-z0-9 ._/%]{0,8}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a Format: at most 8 letters, digits, blanks and . _ / %"
        )
    return text


def _source(args: argparse.Namespace) -> tuple[AsyncIterator[bytes], int]:
    """Return the payloads, and how many may be unacknowledged at a time. Raises CommandError."""
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
    # With --drop-oldest, reading never waits: more lines may be in flight than are kept.
    most = _WINDOW + (0 if args.drop_oldest is None else args.drop_oldest + args.max_inflight)
    if args.segment_size is not None:
        return _segments(args)
    if (args.format, args.ccsid, args.encoding) != (None, None, None):
        raise CommandError("--format, --ccsid and --encoding need --segment-size", USAGE)
    if not args.stdin_lines:
        return _repeated(_payload(args), args), most
    if args.repeat > 1:
        raise CommandError("--repeat does not work with -l", USAGE)
    return stdin.in_thread(stdin.lines(), _WINDOW), most


def _segments(args: argparse.Namespace) -> tuple[AsyncIterator[bytes], int]:
    """Return the segments of a file. At most the unacknowledged ones, or 16 MiB, are in memory."""
    if args.file is None and not args.stdin_file:
        raise CommandError("--segment-size needs -f or -s", USAGE)
    if args.repeat > 1:
        raise CommandError("--repeat does not work with --segment-size", USAGE)
    if args.retain:
        raise CommandError(
            "-r does not work with --segment-size: the server would retain only the last segment", USAGE
        )
    from headwater_host.cli import segmented

    most = max(1, min(args.max_inflight, _BYTES // args.segment_size))
    return stdin.in_thread(segmented.payloads(args), 1), most


def _payload(args: argparse.Namespace) -> bytes:
    """Return the payload of a single message. Raises CommandError."""
    if args.null_message:
        return b""
    if args.value is not None:
        return fmq.value(args.value)
    if args.message is not None:
        text: str = args.message
        return text.encode("utf-8", "surrogateescape")
    return content("-" if args.stdin_file else args.file)


async def _repeated(payload: bytes, args: argparse.Namespace) -> AsyncIterator[bytes]:
    for number in range(args.repeat):
        if number and args.repeat_delay:
            await asyncio.sleep(args.repeat_delay)
        yield payload


def _raise_why(done: set[asyncio.Task[None]]) -> None:
    """Raise the most specific error of the tasks: a server may refuse one message and then close the connection."""
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
            # --drop-oldest
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
                # Tasks start in order, so messages are sent in order.
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
