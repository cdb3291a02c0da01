"""What ``pub`` and ``sub`` have in common: how to reach a server, and how to be ended by a signal."""

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from headwater_host.aio import Client, MqttArgumentError, Will
from headwater_host.exits import SIGNALLED, USAGE, CommandError
from headwater_host.topics import Wildcard, topic_bytes

PASSWORD_VARIABLE = "HEADWATER_PASSWORD"


def whole(least: int, most: int) -> Callable[[str], int]:
    """An argument type: a whole number in a range."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return value

    return number


def seconds(text: str) -> float:
    """An argument type: a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def directory(text: str) -> Path:
    """An argument type: a directory's path. Path makes the current one of an empty text: of an unset variable."""
    if not text:
        raise argparse.ArgumentTypeError("the directory's name is empty")
    return Path(text)


def topic(text: str) -> str:
    """An argument type: a topic name."""
    try:
        topic_bytes(text)
    except MqttArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def topic_filter(text: str) -> str:
    """An argument type: a topic filter."""
    try:
        return Wildcard(text)
    except MqttArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The options that say how to reach the server, and as whom."""
    group = parser.add_argument_group("connection")
    group.add_argument("-h", "--host", default="127.0.0.1", help="default: %(default)s")
    group.add_argument("-p", "--port", type=whole(1, 65535), default=1883, help="default: %(default)s")
    group.add_argument("-i", "--id", help="client identifier; default: a random one")
    group.add_argument("-u", "--username")
    group.add_argument(
        "-P",
        "--password",
        help=f"others on this machine can see it here; better: --password-file, or {PASSWORD_VARIABLE} "
        "in the environment",
    )
    group.add_argument("--password-file", metavar="FILE", type=Path, help="its first line is the password")
    group.add_argument(
        "-k", "--keepalive", type=whole(0, 65535), default=60, metavar="SECONDS", help="default: %(default)s"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="for connecting and for each answer; default: %(default)g",
    )
    group.add_argument("--will-topic", type=topic, metavar="TOPIC", help="published when we vanish")
    group.add_argument("--will-payload", default="", metavar="TEXT")
    group.add_argument("--will-qos", type=int, choices=(0, 1, 2), default=0)
    group.add_argument("--will-retain", action="store_true")


def password(args: argparse.Namespace) -> str | bytes | None:
    """The password from wherever it was given. Raises CommandError when its file cannot be read."""
    if args.password is not None:
        return str(args.password)
    if args.password_file is not None:
        try:
            lines: list[bytes] = args.password_file.read_bytes().splitlines()
        except OSError as error:
            raise CommandError(f"cannot read {args.password_file}: {error.strerror}", USAGE) from error
        if not lines:
            raise CommandError(f"{args.password_file} is empty: there is no password in it", USAGE)
        return lines[0]
    return os.environ.get(PASSWORD_VARIABLE) if args.username is not None else None


def make_client(args: argparse.Namespace, **options: Any) -> Client:
    """The client that the options describe; ``options`` are further keywords of ``Client``."""
    will = None
    if args.will_topic is not None:
        will = Will(args.will_topic, args.will_payload, args.will_qos, args.will_retain)
    elif args.will_payload or args.will_qos or args.will_retain:
        raise CommandError("a will needs --will-topic", USAGE)
    return Client(
        args.host,
        args.port,
        identifier=args.id,
        username=args.username,
        password=password(args),
        keepalive=args.keepalive,
        timeout=args.timeout,
        will=will,
        **options,
    )


def run_until_signal(main: Coroutine[Any, Any, int]) -> int:
    """Run ``main``: its exit code, or 128 + n when signal n (SIGINT, SIGTERM) came, which cancels it."""
    caught: list[int] = []

    async def guarded() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main)

        def end(number: int) -> None:
            caught.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        return await task

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if not caught:
            raise
        return SIGNALLED + caught[0]
