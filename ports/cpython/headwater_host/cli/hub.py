"""``headwater hub``: run an FMQ hub; ``hub check`` and ``hub passwd`` for its operator."""

import argparse
import asyncio
import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path

from headwater_host.cli.argument_types import PASSWORD_VARIABLE
from headwater_host.cli.options import FILE, option, subcommand, whole
from headwater_host.exits import OK, USAGE, CommandError
from headwater_host.hub import config as hub_config
from headwater_host.settings import ConfigError


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
    commands = parser.add_subparsers(dest="hub_command", metavar="COMMAND")
    check = subcommand(
        commands, "check", "check a configuration file", "Exit code 2: mistakes, each printed with its line."
    )
    option(check, "config", "Configuration file (TOML)", FILE)
    passwd = subcommand(
        commands,
        "passwd",
        "print a user entry for the configuration file",
        f"Prompts for the password, unless {PASSWORD_VARIABLE} is set or standard input is not a terminal (its first "
        "line is the password).",
    )
    option(passwd, "name", "User name", metavar="NAME")
    option(passwd, "--password-file", "File whose first line is the password", FILE)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code."""
    try:
        if args.hub_command is None:
            return _serve(args)
        if args.hub_command == "check":
            hub_config.load(args.config)
        else:
            from headwater_host.hub import users

            users.check_name(args.name)
            print(users.entry(args.name, _password(args.password_file)), end="")
    except (ConfigError, ValueError) as error:
        raise CommandError(str(error), USAGE) from error
    return OK


def _serve(args: argparse.Namespace) -> int:
    config = hub_config.HubConfig() if args.config is None else hub_config.load(args.config)
    if args.port is not None:
        config = hub_config.on_port(config, args.port)
    if args.storage is not None:
        config = replace(config, storage=args.storage)
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
