"""``headwater pub``: publish messages."""

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater_host.commands import fmq, options, reach
from headwater_host.commands.properties import of
from headwater_host.errors import MqttFullError
from headwater_host.exits import OK, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host import aio
    from headwater_host.fmq import client as hub_client

# How many lines may be on their way at a time.
_WINDOW = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Publish. At QoS 1 and 2 the command ends well only when the server has acknowledged everything."
    )
    parser.add_argument("-t", "--topic", type=options.topic)
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
        type=options.whole(1, 1 << 62),
        default=1,
        metavar="N",
        help="publish it N times; not with -l",
    )
    parser.add_argument(
        "--repeat-delay",
        type=options.pause,
        default=0.0,
        metavar="SECONDS",
        help="wait in between",
    )
    parser.add_argument(
        "-M",
        "--max-inflight",
        type=options.whole(1, 65535),
        default=20,
        metavar="N",
        help="how many are sent without an acknowledgement; default: %(default)s",
    )
    parser.add_argument(
        "--drop-oldest",
        type=options.whole(1, 65280),
        metavar="N",
        help="with -l and --repeat: when N messages wait that were never sent, drop the oldest for each new one "
        "instead of waiting",
    )
    fmq.add_tags(parser, "a tag of the message; repeatable (FMQ)")
    reach.add_connection(
        parser,
        "default: with -l and --repeat for ever, otherwise not at all",
        ("connect", "publish", "disconnect", "will"),
    )


def run(args: argparse.Namespace) -> int:
    """Publish; 0 when all was acknowledged (QoS 1, 2) or sent (QoS 0)."""
    protocol = reach.choose(args)
    args.topic, *others = reach.topics(args, [] if args.topic is None else [args.topic])
    if others:
        raise CommandError("one topic: -t, or in the path of -L", USAGE)
    # What a kept session has for us is not for this command: it stays with the server.
    payload = _payload(args)
    keeps_on = payload is None or args.repeat > 1
    more: dict[str, Any] = {}
    if args.drop_oldest is not None:
        if not keeps_on:
            raise CommandError("--drop-oldest is for -l and --repeat", USAGE)
        more = {"when_full": "drop_oldest", "max_queued_outgoing_messages": args.drop_oldest}
    more |= {"max_inflight_messages": args.max_inflight, "auto_ack": False}
    if protocol == "fmq":
        hub = fmq.make_client(args, keeps_on, **more)
        work = _publish(hub, partial(hub.publish, tags=args.tag), args, payload)
    else:
        from headwater_host.commands import mqtt

        client = mqtt.make_client(args, keeps_on, **more)
        work = _publish(client, partial(client.publish, properties=of(args, "publish")), args, payload)
    return reach.run_until_signal(work)


def _payload(args: argparse.Namespace) -> bytes | None:
    """What is to be published; None for the lines of standard input."""
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
    if args.stdin_lines:
        if args.repeat > 1:
            raise CommandError("--repeat is not for -l", USAGE)
        return None
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


async def _publish(
    client: "aio.Client | hub_client.Client",
    send: Callable[..., Awaitable[object]],
    args: argparse.Namespace,
    payload: bytes | None,
) -> int:
    patience = reach.patience(client)

    async def publish(data: bytes) -> None:
        reach.log.debug("publishing %d bytes to %r at QoS %d", len(data), args.topic, args.qos)
        try:
            await send(args.topic, data, args.qos, args.retain, timeout=patience)
        except MqttFullError:
            # As it was wanted.
            reach.log.debug("dropped a message of %d bytes", len(data))
            return
        if args.qos:
            reach.log.debug("acknowledged")

    # What is over is forgotten then. With --drop-oldest so many cannot wait: nothing keeps the lines from being read.
    most = _WINDOW + (0 if args.drop_oldest is None else args.drop_oldest + args.max_inflight)
    async with client:
        reach.show_connection(client)
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for data in _lines() if payload is None else _repeated(payload, args):
                if args.qos == 0 and args.drop_oldest is None:
                    await publish(data)
                    continue
                # Tasks begin in their order, and so leave the messages.
                under_way.add(asyncio.ensure_future(publish(data)))
                if len(under_way) >= most:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            if client.dropped and not args.quiet:
                print(f"headwater: {client.dropped} messages were dropped", file=sys.stderr)
    reach.log.debug("disconnected")
    return OK


async def _lines() -> AsyncIterator[bytes]:
    """The lines of standard input, without their ends. A thread waits for them, so that a signal need not."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(_WINDOW)

    def put(line: bytes | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, line)

    def read() -> None:
        # Not through sys.stdin: its lock, held by a thread that waits, would abort the interpreter at its end.
        begun: list[bytes] = []
        try:
            while data := os.read(0, 1 << 16):
                first, *lines = data.split(b"\n")
                begun.append(first)
                for line in lines:
                    put(b"".join(begun))
                    begun = [line]
            if any(begun):
                put(b"".join(begun))
            put(None)
        except RuntimeError:
            # The loop is closed: the command has ended.
            pass

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        room.release()
        yield line.removesuffix(b"\r")
