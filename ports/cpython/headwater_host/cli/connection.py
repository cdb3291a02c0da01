"""How a command reaches a server, whatever it speaks: options, credentials, TLS; and how a signal ends it."""

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater_host.cli.argument_types import (
    PASSWORD_VARIABLE,
    Url,
    expiry,
    seconds,
    servers,
    topic,
    url,
    version,
    whole,
)
from headwater_host.cli.properties import PropertyAction, of
from headwater_host.client.payload import Will
from headwater_host.client.reconnect import Reconnect
from headwater_host.client.route import DEFAULT_PORTS, Tls
from headwater_host.errors import ClientError
from headwater_host.exits import SIGNALLED, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client.lifecycle import Lifecycle

#: What ``-d`` shows.
log = logging.getLogger("headwater.client")
#: Where a server listens with TLS.
_TLS_PORTS = {"mqtt": DEFAULT_PORTS[True, False], "fmq": 7761}
#: Options, by their names in the namespace, that only one protocol has.
_ONLY = {
    "mqtt": {
        "protocol_version": "-V",
        "session_expiry_interval": "-x",
        "said": "-D",
        "most_qos": "-q",
        "no_local": "--no-local",
        "retain_as_published": "--retain-as-published",
        "retain_handling": "--retain-handling",
    },
    "fmq": {
        "tag": "--tag",
        "value": "--value",
        "condition": "--condition",
        "group": "--group",
        "need_ack": "--need-ack",
        "window": "--window",
    },
}
# 31 years: an event loop can reckon with it.
_PATIENCE_S = 1e9
_V = "mqttv31, mqttv311 (the default) or mqttv5; also 3.1, 3.1.1, 5"


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


def add_connection(
    parser: argparse.ArgumentParser, reconnects: str, packets: Sequence[str] | None = None
) -> None:
    """The options that say how to reach the server, and as whom; ``reconnects`` says what holds without
    ``--reconnect``. ``packets`` are MQTT's that ``-D`` may speak of; None: the command speaks FMQ only.
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
        help="of hosts that stand without one; default: "
        + ("7760, or 7761 with TLS" if packets is None else "1883, or 8883 with TLS; for FMQ 7760 and 7761"),
    )
    group.add_argument(
        "-L",
        "--url",
        type=url,
        metavar="URL",
        help="all in one: "
        + (
            "fmq[s]://[USER[:PASSWORD]@]HOST[:PORT]"
            if packets is None
            else "mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, fmq[s]://..., or ws[s]://HOST[:PORT]/PATH with -t"
        ),
    )
    if packets is None:
        parser.set_defaults(protocol="fmq", said=None)
    else:
        _add_mqtt(group, packets)
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
    group = parser.add_argument_group(
        "TLS, which any of these, a URL that says so, and port "
        f"{_TLS_PORTS['fmq'] if packets is None else _TLS_PORTS['mqtt']} ask for"
    )
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


def _add_mqtt(group: argparse._ArgumentGroup, packets: Sequence[str]) -> None:
    """What only MQTT has, and the choice of it."""
    group.add_argument(
        "--protocol",
        choices=("mqtt", "fmq"),
        help="what the server speaks; default: mqtt, unless -L says fmq://",
    )
    group.add_argument("-V", "--protocol-version", type=version, metavar="VERSION", help=_V)
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
    tls_port = _TLS_PORTS[args.protocol]
    if args.cafile and args.capath:
        raise CommandError("--cafile or --capath, not both", USAGE)
    ca = args.cafile or args.capath
    if not (ca or args.cert or args.key or args.tls_use_os_certs or secure or ports == {tls_port}):
        if tls_port in ports:
            raise CommandError(
                f"port {tls_port} asks for TLS, the others do not, and it is for all servers or none: "
                "with --tls-use-os-certs it is for all",
                USAGE,
            )
        if args.insecure:
            raise CommandError(
                "--insecure needs TLS: --cafile, mqtts://, fmqs://, wss:// or --tls-use-os-certs", USAGE
            )
        return None
    return Tls(ca, args.cert, args.key, check_hostname=not args.insecure)


def choose(args: argparse.Namespace) -> str:
    """Settle ``args.protocol``: "mqtt" or "fmq". Raises CommandError for what the other one has."""
    said = args.protocol
    if args.url is not None and said not in (None, args.url.protocol):
        raise CommandError(f"-L says another protocol than --protocol {said}", USAGE)
    args.protocol = said or ("mqtt" if args.url is None else args.url.protocol)
    for protocol, names in _ONLY.items():
        given = [name for key, name in names.items() if _is_given(getattr(args, key, None))]
        if given and protocol != args.protocol:
            why = (
                "needs FMQ: --protocol fmq"
                if protocol == "fmq"
                else "is MQTT's: there is no such thing in FMQ"
            )
            raise CommandError(f"{given[0]} {why}", USAGE)
    return str(args.protocol)


def _is_given(value: object) -> bool:
    """Whether an option was there: 0 and the empty text may be what was said."""
    return value is not None and value is not False and value != []


class Where(NamedTuple):
    """Where the servers are, and who we are there. Its repr has no secrets."""

    servers: list[tuple[str, int | None]]
    tls: Tls | None
    websocket: str | None
    username: str | None
    password: str | bytes | None

    def __repr__(self) -> str:
        return ", ".join(host if port is None else f"{host} port {port}" for host, port in self.servers)


def where(args: argparse.Namespace) -> Where:
    """What the options say of that; and let ``-d`` show the rest. Raises CommandError."""
    log.addHandler(logging.StreamHandler() if args.debug else logging.NullHandler())
    if args.debug:
        log.setLevel(logging.DEBUG)
    said: Url | None = args.url
    if said is not None and (args.host is not None or args.port is not None):
        raise CommandError("-L names host and port: leave out -h and -p", USAGE)
    if said is None:
        said = Url(args.protocol, False, None, "", None, None, None, None)
        named = [(host, port or args.port) for host, port in args.host or [("127.0.0.1", None)]]
    else:
        named = [(said.host, said.port)]
    if args.username is None:
        args.username = said.username
    secret = password(args)
    return Where(
        named,
        _tls(args, {port for _, port in named}, said.secure),
        said.websocket,
        args.username,
        said.password if secret is None else secret,
    )


def identifier(args: argparse.Namespace) -> str | None:
    """Who we are to the server; None for anybody. Raises CommandError."""
    name: str | None = args.id if args.id_prefix is None else f"{args.id_prefix}{os.getpid()}"
    if args.keep_session and not name:
        raise CommandError("--keep-session needs an identifier: -i", USAGE)
    return name


def will(args: argparse.Namespace) -> Will | None:
    """What is published when we vanish. Raises CommandError."""
    said = of(args, "will")
    if args.will_topic is not None:
        return Will(args.will_topic, args.will_payload, args.will_qos, args.will_retain, said)
    if args.will_payload or args.will_qos or args.will_retain or said:
        raise CommandError("a will needs --will-topic", USAGE)
    return None


def reconnect(args: argparse.Namespace, reconnects: bool) -> Reconnect | None:
    """How a lost connection is made again; ``reconnects``: whether, when the options do not say."""
    if args.reconnect == 0 or (args.reconnect is None and not reconnects):
        return None
    # Who waits for an answer waits for the connection as well (``patience``): this is what ends it.
    return Reconnect(refused=None, attempts=args.reconnect, answer=args.timeout)


def watch(args: argparse.Namespace, client: "Lifecycle") -> None:
    """Tell when the connection of a client that reconnects is lost, and when it is there again."""
    if args.quiet or not client.reconnects:
        return
    lost = False

    def say(error: ClientError | None) -> None:
        nonlocal lost
        if error is not None or lost:
            said = f"{error}; trying again" if error is not None else f"connected again to {client.server}"
            print(f"headwater: {said}", file=sys.stderr, flush=True)
        lost = error is not None

    client.on_connection = say


def patience(client: "Lifecycle") -> float | None:
    """The ``timeout`` of a call for whose answer more than one connection may be needed."""
    return _PATIENCE_S if client.reconnects else None


def show_connection(client: "Lifecycle") -> None:
    """For ``-d``: what the server said when it accepted us, but for what serves to authenticate."""
    properties = getattr(client, "server_properties", {})
    said = {k: v for k, v in properties.items() if not k.startswith("authentication")}
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
