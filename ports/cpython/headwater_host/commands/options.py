"""What ``pub`` and ``sub`` have in common: how to reach a server, and how to be ended by a signal."""

import argparse
import asyncio
import functools
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from headwater.mqtt import spec5
from headwater_host.aio import Client, MqttArgumentError, MqttError, Reconnect, Tls, Will
from headwater_host.commands.properties import PropertyAction, of
from headwater_host.exits import SIGNALLED, USAGE, CommandError
from headwater_host.route import DEFAULT_PATH, DEFAULT_PORTS
from headwater_host.rxbuf import MAX_PACKET
from headwater_host.session import HostClientSession5
from headwater_host.topics import Wildcard, topic_bytes

PASSWORD_VARIABLE = "HEADWATER_PASSWORD"
#: What ``-d`` shows.
log = logging.getLogger("headwater.client")
_VERSIONS = {
    **dict.fromkeys(("mqttv31", "31", "3.1"), "3.1"),
    **dict.fromkeys(("mqttv311", "311", "3.1.1"), "3.1.1"),
    **dict.fromkeys(("mqttv5", "5", "5.0"), "5.0"),
}
_FOR_EVER = 0xFFFFFFFF
_TLS_PORT = DEFAULT_PORTS[True, False]
# 31 years: an event loop can reckon with it.
_PATIENCE_S = 1e9


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


def pause(text: str) -> float:
    """An argument type: a number of seconds, or 0."""
    return 0.0 if text == "0" else seconds(text)


def version(text: str) -> str:
    """An argument type: a version of MQTT, as ``Client`` names it."""
    if text not in _VERSIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(_VERSIONS)}")
    return _VERSIONS[text]


def expiry(text: str) -> int:
    """An argument type: a session expiry interval in seconds."""
    if text in ("-1", "\N{INFINITY}"):
        return _FOR_EVER
    return whole(0, _FOR_EVER)(text)


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


def servers(text: str) -> list[tuple[str, int | None]]:
    """An argument type: hosts, with ports or without, and commas between them."""
    return [_server(part.strip()) for part in text.split(",")]


def _server(text: str) -> tuple[str, int | None]:
    # An IPv6 address without a port need not have brackets.
    found = re.fullmatch(
        r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?|([^:\[\]]*:[^:\[\]]*:[^\[\]]*)", text
    )
    port = int(found[3]) if found and found[3] else None
    if not found or (port is not None and not 1 <= port <= 65535):
        # Not what was given: there may be a password in it.
        raise argparse.ArgumentTypeError(
            "it is HOST or HOST:PORT, with commas between several; in front of a port, an IPv6 address is in brackets"
        )
    return found[1] or found[2] or found[4], port


_V = "mqttv31, mqttv311 (the default) or mqttv5; also 3.1, 3.1.1, 5"


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


class _OptionsFile(argparse.Action):
    """``-o``: a file with an option and its value in each line stands in the place of what is in it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: "str | Sequence[Any] | None",
        option_string: str | None = None,
    ) -> None:
        """Read it."""
        if namespace.options is not None:
            raise argparse.ArgumentError(self, "one file, and none in it")
        namespace.options = str(values)
        try:
            lines = Path(namespace.options).read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise argparse.ArgumentError(self, f"cannot read {values}: {why}") from None
        for number, line in enumerate(lines, 1):
            try:
                words = _words(line.strip())
            except ValueError as error:
                raise argparse.ArgumentError(self, f"{values}, line {number}: {error}") from None
            if words:
                parser.parse_args(words, namespace)


def _words(line: str) -> list[str]:
    """The arguments of a line. A value is the rest of it, blanks and all, but for ``-D``, which has several."""
    option, _, value = line.partition(" ")
    value = value.strip()
    if not option or option.startswith("#"):
        return []
    if not option.startswith("-"):
        # Not what it is instead: there may be a password in it.
        raise ValueError("a line begins with an option")
    if option in ("-D", "--property"):
        return [option, *shlex.split(value)]
    if value.startswith("-"):
        return [f"{option}={value}"]
    return [option, value] if value else [option]


def add_connection(parser: argparse.ArgumentParser, packets: Sequence[str], reconnects: str) -> None:
    """The options that say how to reach the server, and as whom.

    ``packets`` are those that ``-D`` may speak of, ``reconnects`` says what holds without ``--reconnect``.
    """
    parser.add_argument(
        "-o",
        "--options",
        metavar="FILE",
        action=_OptionsFile,
        help="a file of options: each line has one, with its value; # begins a comment",
    )
    parser.add_argument("-d", "--debug", action="store_true", help="say on standard error what is going on")
    parser.add_argument("--quiet", action="store_true", help="no error messages: the exit code says it")
    group = parser.add_argument_group("connection")
    group.add_argument(
        "-h",
        "--host",
        type=servers,
        metavar="HOST[:PORT][,...]",
        help="several are tried in turn; default: 127.0.0.1",
    )
    group.add_argument(
        "-p",
        "--port",
        type=whole(1, 65535),
        help="of hosts that stand without one; default: 1883, or 8883 with TLS",
    )
    group.add_argument(
        "-L",
        "--url",
        type=url,
        metavar="URL",
        help="all in one: mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, or ws[s]://HOST[:PORT]/PATH with -t",
    )
    group.add_argument("-V", "--protocol-version", type=version, default="3.1.1", metavar="VERSION", help=_V)
    named = group.add_mutually_exclusive_group()
    named.add_argument("-i", "--id", help="client identifier; default: a random one")
    named.add_argument(
        "-I", "--id-prefix", metavar="PREFIX", help="the identifier is this and our process id"
    )
    group.add_argument(
        "-c",
        "--keep-session",
        "--disable-clean-session",
        action="store_true",
        help="the server keeps subscriptions and messages while we are away; needs -i",
    )
    group.add_argument(
        "-x",
        "--session-expiry-interval",
        type=expiry,
        metavar="SECONDS",
        help="for how long (MQTT 5.0); -1 is for ever, and what -c means without this",
    )
    group.add_argument(
        "-D",
        "--property",
        nargs="+",
        action=PropertyAction,
        const=packets,
        dest="said",
        metavar=("COMMAND PROPERTY VALUE", "VALUE"),
        help=f"a property of MQTT 5.0, for {', '.join(packets)}; user-property takes a name and a value",
    )
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
    again = group.add_mutually_exclusive_group()
    again.add_argument(
        "--reconnect",
        type=whole(0, 1 << 31),
        metavar="N",
        help="how often, one time behind the other, a connection that was lost is tried again before it is the end; "
        + reconnects,
    )
    again.add_argument(
        "--no-reconnect",
        dest="reconnect",
        action="store_const",
        const=0,
        help="a connection that is lost is the end",
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


def _tls(args: argparse.Namespace, ports: set[int | None], secure: bool) -> Tls | None:
    if args.cafile and args.capath:
        raise CommandError("--cafile or --capath, not both", USAGE)
    ca = args.cafile or args.capath
    if not (ca or args.cert or args.key or args.tls_use_os_certs or secure or ports == {_TLS_PORT}):
        if _TLS_PORT in ports:
            raise CommandError(
                f"port {_TLS_PORT} asks for TLS, the others do not, and it is for all servers or none: "
                "with --tls-use-os-certs it is for all",
                USAGE,
            )
        if args.insecure:
            raise CommandError(
                "--insecure needs TLS: --cafile, mqtts://, wss:// or --tls-use-os-certs", USAGE
            )
        return None
    return Tls(ca, args.cert, args.key, check_hostname=not args.insecure)


def make_client(args: argparse.Namespace, reconnects: bool, **options: Any) -> Client:
    """The client that the options describe; ``options`` are further keywords of ``Client``.

    ``reconnects``: whether a lost connection is made again when the options do not say.
    """
    log.addHandler(logging.StreamHandler() if args.debug else logging.NullHandler())
    if args.debug:
        log.setLevel(logging.DEBUG)
    will = None
    if args.will_topic is not None:
        will = Will(args.will_topic, args.will_payload, args.will_qos, args.will_retain, of(args, "will"))
    elif args.will_payload or args.will_qos or args.will_retain or of(args, "will"):
        raise CommandError("a will needs --will-topic", USAGE)
    options |= _session(args)
    properties = dict(of(args, "connect") or {})
    largest = properties.pop("maximum_packet_size", None)
    options["topic_aliases"] = properties.pop("topic_alias_maximum", 0)
    if largest is not None:
        options["max_packet_size"] = min(largest, MAX_PACKET)
    where: Url | None = args.url
    if where is not None and (args.host is not None or args.port is not None):
        raise CommandError("-L names host and port: leave out -h and -p", USAGE)
    if where is None:
        where = Url(False, None, "", None, None, None, None)
        named = [(host, port or args.port) for host, port in args.host or [("127.0.0.1", None)]]
    else:
        named = [(where.host, where.port)]
    if args.username is None:
        args.username = where.username
    secret = password(args)
    client = Client(
        *named[0],
        more_servers=named[1:],
        tls=_tls(args, {port for _, port in named}, where.secure),
        websocket=where.websocket,
        protocol=args.protocol_version,
        properties=properties,
        username=args.username,
        password=where.password if secret is None else secret,
        keepalive=args.keepalive,
        timeout=args.timeout,
        will=will,
        reconnect=_reconnect(args, reconnects),
        **options,
    )
    client.on_connection = functools.partial(_say, args, client)
    if largest is not None and isinstance(client.session, HostClientSession5):
        # Of what is below its first buffer the session itself would not speak.
        client.session.connect_properties.set(spec5.MAXIMUM_PACKET_SIZE, largest)
    client.disconnect_properties = of(args, "disconnect")
    shown = ", ".join(host if port is None else f"{host} port {port}" for host, port in named)
    log.debug("%s: MQTT %s, as %r", shown, client.protocol, client.identifier)
    return client


def _reconnect(args: argparse.Namespace, reconnects: bool) -> Reconnect | None:
    if args.reconnect == 0 or (args.reconnect is None and not reconnects):
        return None
    # Who waits for an answer waits for the connection as well (``patience``): this is what ends it.
    return Reconnect(refused=None, attempts=args.reconnect, answer=args.timeout)


def _say(args: argparse.Namespace, client: Client, error: MqttError | None) -> None:
    if not args.quiet:
        said = f"{error}; trying again" if error is not None else f"connected again to {client.server}"
        print(f"headwater: {said}", file=sys.stderr, flush=True)


def patience(client: Client) -> float | None:
    """The ``timeout`` of a call for whose answer more than one connection may be needed."""
    return _PATIENCE_S if client.reconnects else None


def _session(args: argparse.Namespace) -> dict[str, Any]:
    """Whose session, and for how long. Takes the interval out of what ``-D`` says for CONNECT."""
    if args.protocol_version != "5.0" and (args.said or args.session_expiry_interval is not None):
        raise CommandError("-D and -x need MQTT 5.0: -V mqttv5", USAGE)
    identifier = args.id if args.id_prefix is None else f"{args.id_prefix}{os.getpid()}"
    if args.keep_session and not identifier:
        raise CommandError("--keep-session needs an identifier: -i", USAGE)
    seconds_kept = (args.said or {}).get("connect", {}).pop("session_expiry_interval", None)
    if seconds_kept is None:
        seconds_kept = args.session_expiry_interval
    elif args.session_expiry_interval is not None:
        raise CommandError("-x or -D connect session-expiry-interval, not both", USAGE)
    if seconds_kept == _FOR_EVER and not identifier:
        raise CommandError("a session that is kept for ever needs an identifier: -i", USAGE)
    if "session_expiry_interval" in (of(args, "disconnect") or ()) and not (
        args.keep_session if seconds_kept is None else seconds_kept
    ):
        raise CommandError(
            "-D disconnect session-expiry-interval needs a session that is kept: -c or -x", USAGE
        )
    return {
        "identifier": identifier,
        "clean_session": not args.keep_session,
        "session_expiry": seconds_kept,
    }


def show_connection(client: Client) -> None:
    """For ``-d``: what the server said in CONNACK, but for what serves to authenticate."""
    said = {k: v for k, v in client.server_properties.items() if not k.startswith("authentication")}
    kept = "a session that was kept" if client.session_present else "a new session"
    log.debug("connected to %s, with %s%s", client.server, kept, f"; the server says {said}" if said else "")


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
