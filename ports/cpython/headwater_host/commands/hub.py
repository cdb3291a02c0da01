"""``headwater hub check | passwd``: what a hub's operator needs beside the hub."""

import argparse
import getpass
import os
import sys
from pathlib import Path

from headwater_host.commands.options import PASSWORD_VARIABLE
from headwater_host.exits import OK, USAGE, CommandError
from headwater_host.settings import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands and their options."""
    commands = parser.add_subparsers(dest="hub_command", metavar="COMMAND", required=True)
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
        if args.hub_command == "check":
            from headwater_host.hub import config

            config.load(args.config)
        else:
            from headwater_host.hub import users

            users.check_name(args.name)
            print(users.entry(args.name, _password(args.password_file)), end="")
    except (ConfigError, ValueError) as error:
        raise CommandError(str(error), USAGE) from error
    return OK


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
    password = getpass.getpass()
    if password != getpass.getpass("Again: "):
        raise CommandError("that was not the same", USAGE)
    return password.encode()
