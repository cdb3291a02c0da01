"""Options of ``headwater board install`` that change the settings of the board, and questions at the terminal."""

import argparse
import getpass
import os
import sys
from typing import Any

from headwater_host.cli.argument_types import PASSWORD_VARIABLE, url
from headwater_host.cli.options import FILE, REPEATABLE, content, option
from headwater_host.exits import USAGE, CommandError

#: Environment variable with the password of WiFi.
WIFI_VARIABLE = "HEADWATER_WIFI_PASSWORD"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option(parser, "--settings", "JSON file with all settings of the board", FILE)
    option(
        parser,
        "--wifi",
        "WiFi network; asks for its password; repeatable",
        REPEATABLE,
        nargs="?",
        const="",
        metavar="SSID",
    )
    option(parser, "--country", "Country code for WiFi, such as CH", metavar="CODE")
    option(parser, "--broker", "Broker's URL: mqtt[s]:// or fmq[s]://", type=url, metavar="URL")
    option(parser, "--ca", "CA certificates for the broker (PEM or DER)", FILE)
    option(parser, "--client-id", "Client identifier of the board")


def patch(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the changes of the settings that options ask for, and the files that these name."""
    changes: dict[str, Any] = {}
    broker: dict[str, Any] = {}
    files = {}
    for name in ("country", "client_id"):
        if getattr(args, name) == "":
            raise CommandError(f"--{name.replace('_', '-')}: the value is empty", USAGE)
    if args.wifi:
        changes["wifi"] = [_network(ssid) for ssid in args.wifi]
    if args.country:
        changes["country"] = args.country
    if args.client_id:
        broker["client_id"] = args.client_id
    if args.broker:
        given = args.broker
        if given.websocket:
            raise CommandError("--broker: boards have no WebSocket; use mqtt:// or mqtts://", USAGE)
        secret = given.password
        if given.username and secret is None:
            secret = _secret(f"Password of {given.username} at {given.host}", PASSWORD_VARIABLE)
        broker |= {"protocol": given.protocol, "host": given.host, "port": given.port}
        broker |= {"user": given.username, "password": secret}
        if given.topic:
            changes["topic"] = str(given.topic)
        if given.secure and not args.ca:
            raise CommandError("--broker: TLS needs the broker's CA certificates: --ca FILE", USAGE)
        if not given.secure:
            broker["tls"] = None
    if args.ca:
        data = content(str(args.ca))
        name = "/ca.pem" if b"-----BEGIN" in data else "/ca.der"
        if name == "/ca.der" and data[:1] != b"\x30":
            raise CommandError(f"--ca {args.ca}: no certificate in PEM or DER", USAGE)
        broker["tls"] = {"ca": name}
        files[name] = data
    if broker:
        changes["broker"] = broker
    return changes, files


def _network(ssid: str) -> dict[str, str]:
    """Return a WiFi network of the settings; ask for what is not given."""
    ssid = ssid or _line("WiFi network: ")
    return {"ssid": ssid, "password": _secret(f"Password of {ssid} (empty: open network)", WIFI_VARIABLE)}


def _line(prompt: str) -> str:
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise CommandError("standard input ended before the answer", USAGE)
    return line.rstrip("\r\n")


def _secret(prompt: str, variable: str) -> str:
    """Return a password: from the environment, from the terminal without echo, or a line of standard input."""
    if variable in os.environ:
        return os.environ[variable]
    if not sys.stdin.isatty():
        return _line("")
    try:
        return getpass.getpass(f"{prompt}: ")
    except EOFError:
        raise CommandError("no password given", USAGE) from None


def confirmed(question: str) -> bool:
    """Ask for yes or no on the terminal."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} To agree without a terminal, pass --yes", USAGE)
    return _line(f"{question} [y/N] ").lower() in ("y", "yes")
