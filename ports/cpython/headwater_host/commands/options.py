"""What ``pub`` and ``sub`` have in common: how to reach a server, and how to be ended by a signal."""

import argparse
import asyncio
import os
import re
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from headwater_host.aio import Client, MqttArgumentError, Tls, Will
from headwater_host.exits import SIGNALLED, USAGE, CommandError
from headwater_host.route import DEFAULT_PATH
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


class Url(NamedTuple):
    """What ``-L`` says. Its repr, which an error may show, has no secrets."""

    secure: bool
    websocket: str | None
    host: str
    port: int | None
    username: str | None
    password: str | None
    topic: str | None

    def __repr__(self) -> str:
        return f"Url({self.host!r})"


def url(text: str) -> Url:
    """An argument type: how to reach a server, in one piece; of MQTT's schemes the path is the topic, as it stands."""
    found = re.fullmatch(
        r"(mqtts?|wss?)://(?:([^/@]*)@)?(?:\[([^\]@]+)\]|([^:/@\[\]\s]+))(?::([0-9]{1,5}))?(?:/(.*))?",
        text,
        re.S,
    )
    port = int(found[5]) if found and found[5] else None
    if not found or (port is not None and not 1 <= port <= 65535):
        # Not what was given: there may be a password in it.
        raise argparse.ArgumentTypeError(
            "it is SCHEME://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC], with mqtt, mqtts, ws or wss, "
            "and for the latter two /PATH instead of the topic"
        )
    scheme, path = found[1], found[6] or None
    name, colon, secret = (found[2] or "").partition(":")
    web = scheme.startswith("ws")
    return Url(
        scheme.endswith("s") and scheme != "ws",
        (f"/{path}" if path else DEFAULT_PATH) if web else None,
        found[3] or found[4],
        port,
        unquote(name) or None,
        unquote(secret) if colon else None,
        None if web or path is None else topic_filter(path),
    )


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The options that say how to reach the server, and as whom."""
    group = parser.add_argument_group("connection")
    group.add_argument("-h", "--host", help="default: 127.0.0.1")
    group.add_argument("-p", "--port", type=whole(1, 65535), help="default: 1883, or 8883 with TLS")
    group.add_argument(
        "-L",
        "--url",
        type=url,
        metavar="URL",
        help="all in one: mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, or ws[s]://HOST[:PORT]/PATH with -t",
    )
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
    group = parser.add_argument_group("TLS, which any of these, mqtts://, wss:// and port 8883 ask for")
    group.add_argument(
        "--cafile",
        metavar="FILE",
        help="what vouches for the server; default: what the operating system trusts",
    )
    group.add_argument("--capath", metavar="DIR", help="the same as a directory")
    group.add_argument("--cert", metavar="FILE", help="our certificate")
    group.add_argument("--key", metavar="FILE", help="its key")
    group.add_argument("--tls-use-os-certs", action="store_true", help="TLS with nothing else said")
    group.add_argument(
        "--insecure",
        action="store_true",
        help="do not check that the certificate is for this host: anyone with a certificate can then pose as it",
    )


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


def topics(args: argparse.Namespace, more: list[str]) -> list[str]:
    """The topics of ``-t`` and of ``-L``. Raises CommandError when there is none."""
    named = [args.url.topic] if args.url is not None and args.url.topic is not None else []
    if not (more or named):
        raise CommandError("name a topic: -t, or in the path of -L", USAGE)
    return [*more, *named]


def _tls(args: argparse.Namespace, port: int | None, secure: bool) -> Tls | None:
    if args.cafile and args.capath:
        raise CommandError("--cafile or --capath, not both", USAGE)
    ca = args.cafile or args.capath
    if not (ca or args.cert or args.key or args.tls_use_os_certs or secure or port == 8883):
        if args.insecure:
            raise CommandError(
                "--insecure needs TLS: --cafile, mqtts://, wss:// or --tls-use-os-certs", USAGE
            )
        return None
    return Tls(ca, args.cert, args.key, check_hostname=not args.insecure)


def make_client(args: argparse.Namespace, **options: Any) -> Client:
    """The client that the options describe; ``options`` are further keywords of ``Client``."""
    will = None
    if args.will_topic is not None:
        will = Will(args.will_topic, args.will_payload, args.will_qos, args.will_retain)
    elif args.will_payload or args.will_qos or args.will_retain:
        raise CommandError("a will needs --will-topic", USAGE)
    where: Url | None = args.url
    if where is not None and (args.host is not None or args.port is not None):
        raise CommandError("-L names host and port: leave out -h and -p", USAGE)
    if where is None:
        where = Url(False, None, args.host or "127.0.0.1", args.port, None, None, None)
    if args.username is None:
        args.username = where.username
    secret = password(args)
    return Client(
        where.host,
        where.port,
        tls=_tls(args, where.port, where.secure),
        websocket=where.websocket,
        identifier=args.id,
        username=args.username,
        password=where.password if secret is None else secret,
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
