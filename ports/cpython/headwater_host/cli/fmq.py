"""Create an FMQ client from the command line; options and payloads that only FMQ has."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from headwater_host.cli import connection
from headwater_host.cli.options import FLAG, REPEATABLE, integer, option
from headwater_host.exits import USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client.fmq import Client, Limits

#: Unacknowledged messages of a consumer: maximum and default.
_MOST, _USUAL = 200, 64


def add_tags(parser: "argparse.ArgumentParser | argparse._ArgumentGroup", text: str) -> None:
    """Add ``--tag``."""
    option(parser, "--tag", text, REPEATABLE)


def add_subscription(group: argparse._ArgumentGroup) -> None:
    """Add the options of an FMQ subscription."""
    add_tags(group, "Only messages with this tag; repeatable (FMQ)")
    option(group, "--condition", 'Only messages that match, such as "celsius > 30" (FMQ)', metavar="TEXT")
    option(group, "--group", "Consume as a member of this consumer group (FMQ)", metavar="NAME")
    option(group, "--need-ack", "Acknowledge messages after printing; needs --group (FMQ)", FLAG)
    option(
        group,
        "--window",
        f"Maximum of unacknowledged messages, with --need-ack (FMQ); default: {_USUAL}",
        integer(1, _MOST),
    )


def check_subscription(args: argparse.Namespace) -> None:
    """Raise CommandError for options that contradict each other."""
    if args.need_ack and not args.group:
        raise CommandError("--need-ack needs --group", USAGE)
    if args.window and not args.need_ack:
        raise CommandError("--window needs --need-ack", USAGE)
    if args.group and args.count and not args.need_ack:
        raise CommandError(
            "--group with -C needs --need-ack; otherwise messages beyond COUNT would be lost", USAGE
        )
    if args.group and args.retained_only:
        raise CommandError(
            "--retained-only does not work with --group: groups get no retained messages", USAGE
        )


def make_client(
    args: argparse.Namespace, reconnects: bool, *, auto_ack: bool = True, limits: "Limits | None" = None
) -> "Client":
    """Create the client that ``args`` describe.

    ``reconnects``: whether to reconnect without ``--reconnect``. Raises CommandError.
    """
    from headwater_host.client.fmq import Client, ConnectionOptions, Limits, SessionOptions

    where = connection.where(args)
    if where.password is not None and where.username is None:
        raise CommandError("a password needs a user name", USAGE)
    client = Client(
        **connection.client_options(args, where, reconnects),
        connection=ConnectionOptions(keepalive=args.keepalive, more_servers=where.servers[1:]),
        session=SessionOptions(clean_start=not args.keep_session, auto_ack=auto_ack),
        limits=limits or Limits(),
    )
    connection.watch(args, client)
    connection.log.debug("%r: FMQ, as %r", where, client.identifier)
    return client


def no_topic(args: argparse.Namespace) -> None:
    """Raise CommandError if ``-L`` names a topic: the command takes it as an argument."""
    connection.choose(args)
    if args.url is not None and args.url.topic is not None:
        raise CommandError("give the topic as an argument, not in -L", USAGE)


async def subscribe(client: "Client", args: argparse.Namespace) -> None:
    """Subscribe to the topics of ``sub`` and consume them; then unsubscribe those of ``-U``."""
    group = args.group or ""
    for name in map(str, args.topic):
        subscription = await client.subscribe(
            name, tags=args.tag, condition=args.condition or "", group=group
        )
        connection.log.debug("subscribed to %r", name)
        if group and not args.subscribed:
            window = min(args.window or _USUAL, args.count or _MOST) if args.need_ack else 0
            await client.consume(subscription, window=window, need_ack=args.need_ack)
    for name in map(str, args.unsubscribe):
        # UNSUBSCRIBE needs the subscription's number, which the hub returns to SUBSCRIBE.
        await client.unsubscribe(await client.subscribe(name, group=group))
        connection.log.debug("unsubscribed from %r", name)


# -- payloads ----------------------------------------------------------------------------------------------------------


def value(text: str) -> bytes:
    """Encode JSON as an FMQ value. Raises CommandError."""
    from headwater_host.fmq.plain import from_json

    try:
        return from_json(text)
    except ValueError as error:
        raise CommandError(f"the value is not JSON: {error}", USAGE) from error


def read(payload: bytes) -> tuple[Any] | None:
    """Return the FMQ value in ``payload`` as JSON can hold it, in a tuple; None if it is not a value."""
    from headwater_host.fmq.plain import plain
    from headwater_host.fmq.values import MalformedValueError, decode

    try:
        return (plain(decode(payload)),)
    except MalformedValueError:
        return None


def shown(payload: bytes) -> bytes:
    """Return the FMQ value in ``payload`` as JSON text; return any other payload unchanged."""
    found = read(payload)
    return payload if found is None else json.dumps(found[0], ensure_ascii=False).encode(errors="replace")
