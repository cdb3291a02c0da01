"""``headwater hub``: run an FMQ hub; ``hub check`` and ``hub passwd`` for its operator."""

import argparse
import asyncio
import getpass
import json
import os
import sys
from pathlib import Path

from headwater_host.cli import hub_replication
from headwater_host.cli.argument_types import PASSWORD_VARIABLE
from headwater_host.cli.options import FILE, FLAG, option, seconds, setting, subcommand, whole
from headwater_host.exits import FAILED, OK, USAGE, CommandError
from headwater_host.hub import config as hub_config
from headwater_host.hub.errors import StorageError
from headwater_host.settings import ConfigError

#: The options for [cluster]: name, placeholder, help.
_CLUSTER = (
    ("advertise", "HOST:PORT", "Address of this hub in a cluster on PostgreSQL"),
    ("lease", "SECONDS", "Length of the leader's lease (default 5)"),
    ("standby", "required|none", "Synchronous standby of PostgreSQL (default required)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    parser.description = (
        "Run an FMQ hub until SIGTERM or SIGINT. Acknowledged messages are on disk. Without options the hub listens on "
        f"127.0.0.1, port {hub_config.DEFAULT_PORTS[False]}, and stores everything in {hub_config.DEFAULT_STORAGE}."
    )
    option(parser, "--config", "Configuration file (TOML); options override it", FILE)
    option(
        parser,
        "--storage",
        "Storage: a file, or a URL of PostgreSQL (postgresql://...)",
        type=hub_config.place,
        metavar="FILE",
    )
    option(
        parser,
        "--port",
        "Port on 127.0.0.1, 0 for any; replaces default listener",
        type=whole(0, 65535),
        metavar="PORT",
    )
    for name, metavar, text in _CLUSTER:
        key = hub_config.CLUSTER[name]
        option(parser, f"--{name}", text, type=setting(key.what, key.convert), metavar=metavar)
    commands = parser.add_subparsers(dest="hub_command", metavar="COMMAND")
    check = subcommand(
        commands, "check", "check a configuration file", "Exit code 2: mistakes, each printed with its line."
    )
    option(check, "config", "Configuration file (TOML)", FILE)
    status = subcommand(
        commands,
        "status",
        "print who leads a cluster",
        "Prints the role of the hub with this configuration, the leader, the epoch, how many changes the hub lags "
        "behind, and the standbys of PostgreSQL. Exit code 1: there is a problem, which is printed.",
    )
    option(status, "config", "Configuration file (TOML) with [cluster] or [replication]", FILE)
    option(status, "--json", "Print one JSON object", FLAG)
    handover = subcommand(
        commands,
        "handover",
        "have another hub lead",
        "The leader answers what it has received, lets another hub lead, and sends its clients there. No message is "
        "refused. Exit code 1: no other hub was ready.",
    )
    option(handover, "config", "Configuration file (TOML) with [cluster]", FILE)
    option(
        handover,
        "--timeout",
        "Seconds to wait for the new leader (default 30)",
        type=seconds,
        metavar="S",
        default=30.0,
    )
    passwd = subcommand(
        commands,
        "passwd",
        "print a user entry for the configuration file",
        f"Prompts for the password, unless {PASSWORD_VARIABLE} is set or standard input is not a terminal (its first "
        "line is the password).",
    )
    option(passwd, "name", "User name", metavar="NAME")
    option(passwd, "--password-file", "File whose first line is the password", FILE)
    hub_replication.add(commands)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code."""
    try:
        if args.hub_command is None:
            return _serve(args)
        if args.hub_command == "check":
            hub_config.load(args.config)
        elif args.hub_command in ("status", "handover"):
            return _cluster(args)
        elif args.hub_command != "passwd":
            return hub_replication.run(args)
        else:
            from headwater_host.hub import users

            users.check_name(args.name)
            print(users.entry(args.name, _password(args.password_file)), end="")
    except (ConfigError, ValueError) as error:
        raise CommandError(str(error), USAGE) from error
    return OK


def _cluster(args: argparse.Namespace) -> int:
    config = hub_config.load(args.config)
    if config.cluster is None and config.replication is not None and args.hub_command == "status":
        return hub_replication.status(config.replication, as_json=args.json)
    if config.cluster is None:
        raise CommandError(f"{args.config} has no table [cluster]: this hub runs alone", USAGE)
    try:
        from headwater_host.hub.cluster import status
    except ImportError as error:
        text = f"storage in PostgreSQL needs psycopg: pip install 'headwater[postgres]' ({error})"
        raise CommandError(text, FAILED) from error
    url = str(config.storage)
    try:
        if args.hub_command == "status":
            found = status.status(url, config.cluster)
            print(json.dumps(found) if args.json else status.text(found), end="\n" if args.json else "")
            return FAILED if found["problem"] else OK
        former, leader, epoch = status.hand_over(url, args.timeout)
    except StorageError as error:
        raise CommandError(str(error), FAILED) from error
    print(f"{leader} leads in epoch {epoch}")
    if leader == former:
        raise CommandError(f"no other hub was ready: {leader} leads again", FAILED)
    return OK


def _serve(args: argparse.Namespace) -> int:
    config = hub_config.HubConfig() if args.config is None else hub_config.load(args.config)
    if args.port is not None:
        config = hub_config.on_port(config, args.port)
    given = {name: getattr(args, name) for name, _, _ in _CLUSTER}
    config = hub_config.with_options(
        config, args.storage, {name: value for name, value in given.items() if value is not None}
    )
    from headwater_host.hub.service import serve

    return asyncio.run(serve(config))


def _password(file: Path | None) -> bytes:
    if file is not None:
        try:
            return file.read_bytes().partition(b"\n")[0].rstrip(b"\r")
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror}", USAGE) from error
    if PASSWORD_VARIABLE in os.environ:
        return os.environb[PASSWORD_VARIABLE.encode()]
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        password = getpass.getpass()
        again = getpass.getpass("Again: ")
    except EOFError:
        print(file=sys.stderr)  # end the line of the prompt
        raise CommandError("no password given", USAGE) from None
    if password != again:
        raise CommandError("the passwords differ", USAGE)
    return password.encode()
