"""Options of commands that connect to a server: address, credentials, TLS, reconnecting; and their signals."""

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

from headwater_host.cli.argument_types import PASSWORD_VARIABLE, Url, expiry, servers, topic, url, version
from headwater_host.cli.options import FILE, FLAG, SECONDS, integer, option, whole
from headwater_host.cli.properties import PropertyAction, of
from headwater_host.client.payload import Will
from headwater_host.client.reconnect import Reconnect
from headwater_host.client.route import DEFAULT_PORTS, Tls
from headwater_host.errors import ClientError
from headwater_host.exits import SIGNALLED, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client.lifecycle import Lifecycle

#: The log that ``-d`` prints.
log = logging.getLogger("headwater.client")
#: Default ports with TLS.
_TLS_PORTS = {"mqtt": DEFAULT_PORTS[True, False], "fmq": 7761}
#: Options that only one protocol has, by their names in the namespace.
_ONLY = {
    "mqtt": {
        "protocol_version": "-V",
        "session_expiry_interval": "-x",
        "properties": "-D",
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
# 31 years, which an event loop can add to its clock.
_PATIENCE_S = 1e9


class _OptionsFile(argparse.Action):
    """``-o``: replaced by the options in a file, one on each line with its value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: "str | Sequence[Any] | None",
        option_string: str | None = None,
    ) -> None:
        """Parse the options in the file."""
        if namespace.options is not None:
            raise argparse.ArgumentError(self, "only one options file is allowed, and none inside it")
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
    """Split a line into arguments. The rest of the line is the value, except for ``-D``, which takes several."""
    option, _, value = line.partition(" ")
    value = value.strip()
    if not option or option.startswith("#"):
        return []
    if not option.startswith("-"):
        # The error omits the line, which may contain a password.
        raise ValueError("a line must begin with an option")
    if option in ("-D", "--property"):
        return [option, *shlex.split(value)]
    if value.startswith("-"):
        return [f"{option}={value}"]
    return [option, value] if value else [option]


def add_connection(
    parser: argparse.ArgumentParser, reconnects: bool | None, packets: Sequence[str] | None = None
) -> None:
    """Add the options for reaching a server.

    ``reconnects``: whether the command reconnects by default; None: only with ``-l`` or ``--repeat``.
    ``packets``: the MQTT packets that ``-D`` may name; None: the command speaks only FMQ.
    """
    fmq_only = packets is None
    group = parser.add_argument_group("connection")
    option(
        group,
        "-h --host",
        "Servers, tried in turn; default: 127.0.0.1",
        type=servers,
        metavar="HOST[:PORT][,...]",
    )
    option(
        group,
        "-p --port",
        "Port for hosts given without one; default: "
        + ("7760, with TLS 7761" if fmq_only else "1883, with TLS 8883 (FMQ: 7760, 7761)"),
        type=whole(1, 65535),
    )
    option(
        group,
        "-L --url",
        "Server URL: " + ("fmq[s]://" if fmq_only else "mqtt[s]://, fmq[s]:// or ws[s]://"),
        type=url,
        metavar="URL",
    )
    if packets is None:
        parser.set_defaults(protocol="fmq", properties=None)
    else:
        _add_mqtt(group, packets)
    named = group.add_mutually_exclusive_group()
    option(named, "-i --id", "Client identifier; default: random")
    option(named, "-I --id-prefix", "Client identifier: PREFIX and the process id", metavar="PREFIX")
    option(
        group,
        "-c --keep-session --disable-clean-session",
        "Keep the session on the server after disconnecting; needs -i",
        FLAG,
    )
    option(group, "-u --username", "User name")
    option(
        group,
        "-P --password",
        f"Password, visible to other users; prefer --password-file or {PASSWORD_VARIABLE}",
    )
    option(group, "--password-file", "File whose first line is the password", FILE)
    option(
        group,
        "-k --keepalive",
        "Keep-alive interval; default: %(default)s",
        type=whole(0, 65535),
        default=60,
        metavar="SECONDS",
    )
    option(
        group,
        "--timeout",
        "Timeout for connecting and for each answer; default: %(default)g",
        SECONDS,
        default=10.0,
    )
    again = group.add_mutually_exclusive_group()
    option(
        again,
        "--reconnect",
        "Give up after N failed attempts in a row; default: "
        + {
            True: "never give up",
            False: "do not reconnect",
            None: "with -l, --repeat never, else do not reconnect",
        }[reconnects],
        integer(0, 1 << 31),
    )
    option(again, "--no-reconnect", "Same as --reconnect 0", dest="reconnect", action="store_const", const=0)
    option(group, "--will-topic", "Topic of the will message", type=topic, metavar="TOPIC")
    option(group, "--will-payload", "Payload of the will message", default="", metavar="TEXT")
    option(group, "--will-qos", "QoS of the will message", type=int, choices=(0, 1, 2), default=0)
    option(group, "--will-retain", "Retain the will message", FLAG)
    group = parser.add_argument_group("TLS")
    option(group, "--cafile", "CA certificates; default: those of the operating system", metavar="FILE")
    option(group, "--capath", "Directory of CA certificates", metavar="DIR")
    option(group, "--cert", "Client certificate", metavar="FILE")
    option(group, "--key", "Private key of the client certificate", metavar="FILE")
    option(group, "--tls-use-os-certs", "Use TLS with the operating system's CA certificates", FLAG)
    option(group, "--insecure", "Do not check the host name in the server certificate", FLAG)
    group = parser.add_argument_group("diagnostics")
    option(group, "-o --options", "File with an option on each line", metavar="FILE", action=_OptionsFile)
    option(group, "-d --debug", "Log to standard error", FLAG)
    option(group, "--quiet", "Print no error messages", FLAG)


def _add_mqtt(group: argparse._ArgumentGroup, packets: Sequence[str]) -> None:
    """Add the choice of protocol, and the options that only MQTT has."""
    option(group, "--protocol", "Protocol; default: that of -L, or mqtt", choices=("mqtt", "fmq"))
    option(
        group,
        "-V --protocol-version",
        "MQTT version: mqttv31, mqttv311 or mqttv5; default: mqttv311",
        type=version,
        metavar="VERSION",
    )
    option(
        group,
        "-x --session-expiry-interval",
        "Session expiry interval (MQTT 5.0); -1: never",
        type=expiry,
        metavar="SECONDS",
    )
    option(
        group,
        "-D --property",
        "Property of a packet (MQTT 5.0); repeatable",
        nargs="+",
        action=PropertyAction,
        const=packets,
        dest="properties",
        metavar=("COMMAND PROPERTY VALUE", "VALUE"),
    )


def password(args: argparse.Namespace) -> str | bytes | None:
    """Return the password from the option, its file or the environment. Raises CommandError."""
    if args.password is not None:
        return str(args.password)
    if args.password_file is not None:
        try:
            lines: list[bytes] = args.password_file.read_bytes().splitlines()
        except OSError as error:
            raise CommandError(f"cannot read {args.password_file}: {error.strerror}", USAGE) from error
        if not lines:
            raise CommandError(f"{args.password_file} is empty; its first line must be the password", USAGE)
        return lines[0]
    return os.environ.get(PASSWORD_VARIABLE) if args.username is not None else None


def topics(args: argparse.Namespace, more: list[str]) -> list[str]:
    """Return the topics of ``-t`` and ``-L``. Raises CommandError if there is none."""
    named = [args.url.topic] if args.url is not None and args.url.topic is not None else []
    if not (more or named):
        raise CommandError("a topic is required: use -t, or the path of -L", USAGE)
    return [*more, *named]


def _tls(args: argparse.Namespace, ports: set[int | None], secure: bool) -> Tls | None:
    tls_port = _TLS_PORTS[args.protocol]
    if args.cafile and args.capath:
        raise CommandError("use --cafile or --capath, not both", USAGE)
    ca = args.cafile or args.capath
    if not (ca or args.cert or args.key or args.tls_use_os_certs or secure or ports == {tls_port}):
        if tls_port in ports:
            raise CommandError(
                f"only some servers use port {tls_port}, which implies TLS; for TLS on all of them add "
                "--tls-use-os-certs",
                USAGE,
            )
        if args.insecure:
            raise CommandError(
                "--insecure needs TLS: --cafile, mqtts://, fmqs://, wss:// or --tls-use-os-certs", USAGE
            )
        return None
    return Tls(ca, args.cert, args.key, check_hostname=not args.insecure)


def choose(args: argparse.Namespace) -> str:
    """Set ``args.protocol`` to "mqtt" or "fmq" and return it. Raises CommandError for options of the other one."""
    given = args.protocol
    if args.url is not None and given not in (None, args.url.protocol):
        raise CommandError(f"-L contradicts --protocol {given}", USAGE)
    args.protocol = given or ("mqtt" if args.url is None else args.url.protocol)
    for protocol, names in _ONLY.items():
        used = [name for key, name in names.items() if _is_given(getattr(args, key, None))]
        if used and protocol != args.protocol:
            why = (
                "needs --protocol fmq" if protocol == "fmq" else "is an option of MQTT; FMQ does not have it"
            )
            raise CommandError(f"{used[0]} {why}", USAGE)
    return str(args.protocol)


def _is_given(value: object) -> bool:
    """Return whether an option was given. 0 and "" are possible values."""
    return value is not None and value is not False and value != []


class Where(NamedTuple):
    """The servers, TLS and credentials. Its repr contains no secrets."""

    servers: list[tuple[str, int | None]]
    tls: Tls | None
    websocket: str | None
    username: str | None
    password: str | bytes | None

    def __repr__(self) -> str:
        return ", ".join(host if port is None else f"{host} port {port}" for host, port in self.servers)


def where(args: argparse.Namespace) -> Where:
    """Return servers, TLS and credentials from the options; start the log of ``-d``. Raises CommandError."""
    log.addHandler(logging.StreamHandler() if args.debug else logging.NullHandler())
    if args.debug:
        log.setLevel(logging.DEBUG)
    given: Url | None = args.url
    if given is not None and (args.host is not None or args.port is not None):
        raise CommandError("-L names host and port; remove -h and -p", USAGE)
    if given is None:
        given = Url(args.protocol, False, None, "", None, None, None, None)
        named = [(host, port or args.port) for host, port in args.host or [("127.0.0.1", None)]]
    else:
        named = [(given.host, given.port)]
    if args.username is None:
        args.username = given.username
    secret = password(args)
    return Where(
        named,
        _tls(args, {port for _, port in named}, given.secure),
        given.websocket,
        args.username,
        given.password if secret is None else secret,
    )


def client_options(args: argparse.Namespace, where: Where, reconnects: bool) -> dict[str, Any]:
    """Return the arguments that the clients of both protocols take. Raises CommandError."""
    host, port = where.servers[0]
    return {
        "host": host,
        "port": port,
        "tls": where.tls,
        "identifier": identifier(args),
        "username": where.username,
        "password": where.password,
        "will": _will(args),
        "timeout": args.timeout,
        "reconnect": _reconnect(args, reconnects),
    }


def identifier(args: argparse.Namespace) -> str | None:
    """Return the client identifier, None for a random one. Raises CommandError."""
    name: str | None = args.id if args.id_prefix is None else f"{args.id_prefix}{os.getpid()}"
    if args.keep_session and not name:
        raise CommandError("--keep-session needs a client identifier: -i", USAGE)
    return name


def _will(args: argparse.Namespace) -> Will | None:
    properties = of(args, "will")
    if args.will_topic is not None:
        return Will(args.will_topic, args.will_payload, args.will_qos, args.will_retain, properties)
    if args.will_payload or args.will_qos or args.will_retain or properties:
        raise CommandError("a will needs --will-topic", USAGE)
    return None


def _reconnect(args: argparse.Namespace, reconnects: bool) -> Reconnect | None:
    """Return the reconnect policy, or None. ``reconnects``: whether to reconnect without ``--reconnect``."""
    if args.reconnect == 0 or (args.reconnect is None and not reconnects):
        return None
    # A call waits for its answer over reconnects (``patience``). Failed attempts end it.
    return Reconnect(refused=None, attempts=args.reconnect, answer=args.timeout)


def watch(args: argparse.Namespace, client: "Lifecycle") -> None:
    """Print when the client loses its connection and when it reconnects."""
    if args.quiet or not client.reconnects:
        return
    lost = False

    def report(error: ClientError | None) -> None:
        nonlocal lost
        if error is not None or lost:
            text = f"{error}; trying again" if error is not None else f"connected again to {client.server}"
            print(f"headwater: {text}", file=sys.stderr, flush=True)
        lost = error is not None

    client.on_connection = report


def patience(client: "Lifecycle") -> float | None:
    """Return the ``timeout`` for a call whose answer may come after a reconnect."""
    return _PATIENCE_S if client.reconnects else None


def show_connection(client: "Lifecycle") -> None:
    """Log the server's answer to the handshake, without authentication data."""
    properties = getattr(client, "server_properties", {})
    shown = {k: v for k, v in properties.items() if not k.startswith("authentication")}
    session = "a kept session" if client.session_present else "a new session"
    log.debug("connected to %s, %s%s", client.server, session, f"; properties: {shown}" if shown else "")


def run_until_signal(main: Coroutine[Any, Any, int]) -> int:
    """Run ``main`` and return its exit code. SIGINT and SIGTERM cancel it: 128 + the signal's number."""
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
