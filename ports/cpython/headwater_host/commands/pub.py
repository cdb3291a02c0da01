"""``headwater pub``: publish messages."""

import argparse
import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from headwater_host.aio import Client
from headwater_host.commands import options
from headwater_host.exits import OK, USAGE, CommandError

# How many lines may be on their way at a time.
_WINDOW = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Publish. At QoS 1 and 2 the command ends well only when the server has acknowledged everything."
    )
    parser.add_argument("-t", "--topic", type=options.topic)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-m", "--message", metavar="TEXT", help="the payload, sent in UTF-8")
    what.add_argument(
        "-f", "--file", metavar="FILE", help="a file's content as the payload; - is standard input"
    )
    what.add_argument(
        "-l", "--stdin-lines", action="store_true", help="a message for each line of standard input"
    )
    what.add_argument("-n", "--null-message", action="store_true", help="an empty payload")
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument(
        "-r", "--retain", action="store_true", help="the server keeps it for later subscribers"
    )
    options.add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Publish; 0 when all was acknowledged (QoS 1, 2) or sent (QoS 0)."""
    args.topic, *more = options.topics(args, [] if args.topic is None else [args.topic])
    if more:
        raise CommandError("one topic: -t, or in the path of -L", USAGE)
    # The error that ends the command says it.
    logging.getLogger("headwater.client").addHandler(logging.NullHandler())
    client = options.make_client(args)
    payload: bytes | None = b"" if args.null_message else None
    if args.message is not None:
        payload = args.message.encode("utf-8", "surrogateescape")
    elif args.file == "-":
        payload = sys.stdin.buffer.read()
    elif args.file is not None:
        try:
            payload = Path(args.file).read_bytes()
        except OSError as error:
            raise CommandError(f"cannot read {args.file}: {error.strerror}", USAGE) from error
    return options.run_until_signal(_publish(client, args, payload))


async def _publish(client: Client, args: argparse.Namespace, payload: bytes | None) -> int:
    async with client:
        if payload is not None:
            await client.publish(args.topic, payload, args.qos, args.retain)
            return OK
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for line in _lines():
                if args.qos == 0:
                    await client.publish(args.topic, line, 0, args.retain)
                    continue
                # Tasks begin in their order, and so leave the messages.
                under_way.add(asyncio.ensure_future(client.publish(args.topic, line, args.qos, args.retain)))
                if len(under_way) >= _WINDOW:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
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
