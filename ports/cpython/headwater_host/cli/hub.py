"""``headwater hub``: the server of FMQ; and ``hub check | passwd``, what its operator needs beside it."""

import argparse
import asyncio
import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path

from headwater_host.cli import argument_types
from headwater_host.cli.argument_types import PASSWORD_VARIABLE
from headwater_host.exits import OK, USAGE, CommandError
from headwater_host.hub import config as hub_config
from headwater_host.settings import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands and their options."""
    parser.description = (
        "Serve FMQ until SIGTERM or SIGINT. What is acknowledged is on disk. Without options, on 127.0.0.1, port "
        f"{hub_config.DEFAULT_PORTS[False]}, with everything in the file {hub_config.DEFAULT_STORAGE}. See docs/hub.md."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file; what is named here counts more"
    )
    parser.add_argument("--storage", type=Path, metavar="FILE", help="where everything is kept")
    parser.add_argument(
        "--port",
        type=argument_types.whole(0, 65535),
        metavar="PORT",
        help="on 127.0.0.1, where the file says nothing about listeners; 0: any",
    )
    commands = parser.add_subparsers(dest="hub_command", metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="say what is wrong with a configuration",
        description="Read a hub's file. Exit status: 0 right, 2 with every mistake on standard error.",
    )
    check.add_argument("config", metavar="FILE", type=Path, help="the TOML file: see docs/hub.md")
    passwd = commands.add_parser(
        "passwd",
        help="make a user for the configuration",
        description="Print the lines that make a user, for the hub's TOML file. The password is asked for, unless "
        f"standard input is no terminal (then it is its first line) or {PASSWORD_VARIABLE} holds it.",
    )
    passwd.add_argument("name", metavar="NAME", help="the user")
    passwd.add_argument("--password-file", type=Path, metavar="FILE", help="its first line is the password")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for: 0."""
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
        print(file=sys.stderr)  # behind the prompt
        raise CommandError("no password was given", USAGE) from None
    if password != again:
        raise CommandError("that was not the same", USAGE)
    return password.encode()
