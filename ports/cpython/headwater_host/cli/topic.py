"""``headwater topic``: list, create and delete the topics of an FMQ hub."""

import argparse
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from headwater_host.cli import connection, fmq
from headwater_host.cli.argument_types import topic, topic_filter
from headwater_host.cli.options import FLAG, integer, option, subcommand
from headwater_host.errors import ProtocolError
from headwater_host.exits import OK

if TYPE_CHECKING:
    from headwater_host.client.fmq import Client

#: The hub's procedure that lists topics: docs/protocols/fmq.md, section 4.
_TOPICS = "$hub/topics"
_NUMBERS = ("queues", "messages", "bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    parser.description = "List, create and delete the topics of an FMQ hub."
    commands = parser.add_subparsers(dest="topic_command", metavar="COMMAND", required=True)
    show = subcommand(commands, "list", "list the topics, one on each line")
    option(
        show, "filter", "Only topics that match this filter", nargs="?", type=topic_filter, metavar="FILTER"
    )
    shape = show.add_mutually_exclusive_group()
    option(shape, "-v --verbose", "Print queues, messages and bytes before each name", FLAG)
    option(shape, "--json", "Print a JSON object for each topic", FLAG)
    register = subcommand(commands, "register", "create a topic with at least N queues")
    option(register, "topic", "Topic", type=topic, metavar="TOPIC")
    option(register, "--queues", "Minimum number of queues; default: 1", integer(1, 65536), default=1)
    unregister = subcommand(
        commands, "unregister", "delete a topic and its messages; disconnect its consumers"
    )
    option(unregister, "topic", "Topic", type=topic, metavar="TOPIC")
    for sub in (show, register, unregister):
        connection.add_connection(sub, False)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code."""
    fmq.no_topic(args)
    return connection.run_until_signal(_run(fmq.make_client(args, False), args))


async def _run(client: "Client", args: argparse.Namespace) -> int:
    async with client:
        if args.topic_command == "register":
            await client.register(args.topic, args.queues)
        elif args.topic_command == "unregister":
            await client.unregister(args.topic)
        else:
            async for one in _topics(client, args.filter):
                print(_line(one, args))
    return OK


async def _topics(client: "Client", pattern: str | None) -> AsyncIterator[dict[str, Any]]:
    from headwater_host.fmq.values import MalformedValueError, decode, encode

    after = None
    while True:
        arguments = encode(pattern and str(pattern)) + encode(after)
        try:
            page = decode(await client.call(_TOPICS, arguments))
            after = page["after"]
            found = [(one["topic"], *(int(one[name]) for name in _NUMBERS)) for one in page["topics"]]
        except (MalformedValueError, LookupError, TypeError, ValueError) as error:
            raise ProtocolError(f"the hub's list of topics is malformed: {error!r}") from error
        for name, *numbers in found:
            yield {"topic": name, **dict(zip(_NUMBERS, numbers, strict=True))}
        if after is None:
            return


def _line(one: dict[str, Any], args: argparse.Namespace) -> str:
    if args.json:
        return json.dumps(one)
    return "\t".join(str(one[name]) for name in ((*_NUMBERS, "topic") if args.verbose else ("topic",)))
