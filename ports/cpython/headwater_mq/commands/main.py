"""The command ``headwater mq``: put, get, browse and count messages of local queues, and send them on."""

import argparse
from pathlib import Path

from headwater_host.cli import mq_uplink
from headwater_host.exits import FAILED, CommandError
from headwater_host.mq.errors import MQMIError
from headwater_mq.commands import get, put, stats
from headwater_mq.commands.arguments import queue_name

_WORK = {"put": put.run, "get": get.run, "browse": get.run, "stats": stats.run, "uplink": mq_uplink.serve}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    parser.description = "Local IBM MQ queues in an SQLite file: docs/ibm-mq-queue.md."
    commands = parser.add_subparsers(dest="mq_command", metavar="COMMAND", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )
        sub.add_argument("--store", required=True, type=Path, metavar="FILE", help="File with the queues")
        sub.add_argument(
            "--queue", required=name != "stats", type=queue_name, metavar="NAME", help="Queue name"
        )
        return sub

    put.add_arguments(add("put", "put one or more messages"))
    get.add_arguments(add("get", "print messages and remove each one once it is printed"))
    get.add_arguments(add("browse", "print messages and leave them in the queue"), browse=True)
    stats.add_arguments(add("stats", "count messages; list incomplete groups and messages"))
    mq_uplink.add_arguments(commands)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return its exit code."""
    try:
        return _WORK[args.mq_command](args)
    except MQMIError as error:
        raise CommandError(str(error), FAILED) from error
