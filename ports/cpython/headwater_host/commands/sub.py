"""``headwater sub``: subscribe and print what comes."""

import argparse
import asyncio
import json
import logging
import sys
import time
from typing import Any

from headwater_host.aio import Client, Message
from headwater_host.commands import options
from headwater_host.exits import OK, SIGNALLED, TIMED_OUT, USAGE, CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Subscribe, and print each message's payload and a newline, until COUNT, SECONDS or a signal."
    )
    parser.add_argument(
        "-t",
        "--topic",
        type=options.topic_filter,
        action="append",
        default=[],
        help="a filter; repeatable",
    )
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("-C", "--count", type=options.whole(1, 1 << 62), help="end after this many messages")
    parser.add_argument(
        "-W",
        "--wait",
        type=options.seconds,
        metavar="SECONDS",
        help="end after this time; with -C, exit code 4 when fewer came",
    )
    parser.add_argument(
        "-c",
        "--keep-session",
        action="store_true",
        help="the server keeps subscriptions and messages while we are away; needs -i",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("-v", "--verbose", action="store_true", help="the topic in front of each payload")
    shape.add_argument("--json", action="store_true", help="a JSON object for each message")
    options.add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Print messages; see ``add_arguments`` for when it ends how."""
    if args.keep_session and not args.id:
        raise CommandError("--keep-session needs an identifier: -i", USAGE)
    args.topic = options.topics(args, args.topic)
    logging.getLogger("headwater.client").addHandler(logging.NullHandler())
    client = options.make_client(args, clean_session=not args.keep_session, auto_ack=False)
    code = options.run_until_signal(_subscribe(client, args))
    # Without a count a signal is the way to end.
    return OK if code > SIGNALLED and args.count is None else code


async def _subscribe(client: Client, args: argparse.Namespace) -> int:
    if args.wait is None:
        await _print(client, args)
        return OK
    try:
        await asyncio.wait_for(_print(client, args), args.wait)
    except asyncio.TimeoutError:
        return OK if args.count is None else TIMED_OUT
    return OK


async def _print(client: Client, args: argparse.Namespace) -> None:
    out = sys.stdout.buffer
    left = args.count
    async with client:
        await client.subscribe([(name, args.qos) for name in args.topic])
        printed: list[Message] = []
        async for message in client.messages:
            out.write(_line(message, args))
            printed.append(message)
            if left is not None:
                left -= 1
            if not client.messages or left == 0:
                # One write for a burst; and only what is printed is acknowledged.
                out.flush()
                for message in printed:
                    await message.ack()
                printed.clear()
            if left == 0:
                return


def _line(message: Message, args: argparse.Namespace) -> bytes:
    if args.json:
        fields: dict[str, Any] = {
            "time_ns": time.time_ns(),
            "topic": str(message.topic),
            "qos": message.qos,
            "retain": message.retain,
            "dup": message.dup,
            "packet_id": message.mid or None,
        }
        try:
            fields["payload"] = message.payload.decode()
        except UnicodeDecodeError:
            fields["payload_hex"] = message.payload.hex()
        return json.dumps(fields).encode() + b"\n"
    if args.verbose:
        return message.topic.encode() + b" " + message.payload + b"\n"
    return message.payload + b"\n"
