"""FMQ's client as the command line describes it, and what ``pub`` and ``sub`` have for FMQ alone."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from headwater_host.cli import connection
from headwater_host.cli.argument_types import whole
from headwater_host.exits import USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client.fmq import Client

#: Messages that a consumer may have before it acknowledges them: at most, and unless told.
_MOST, _USUAL = 200, 64


def add_tags(parser: "argparse.ArgumentParser | argparse._ArgumentGroup", text: str) -> None:
    """``--tag``."""
    parser.add_argument("--tag", action="append", default=[], help=text)


def add_subscription(group: argparse._ArgumentGroup) -> None:
    """What a subscription may ask for besides its filter."""
    add_tags(group, "only messages with this tag; repeatable (FMQ)")
    group.add_argument(
        "--condition",
        metavar="TEXT",
        help='only messages for which it is true, as in "hot || celsius > 30" (FMQ)',
    )
    group.add_argument(
        "--group", metavar="NAME", help="as a consumer of this group, in which each message is for one (FMQ)"
    )
    group.add_argument(
        "--need-ack",
        action="store_true",
        help="with --group: a message is done with when it is printed, not when it is sent (FMQ)",
    )
    group.add_argument(
        "--window",
        type=whole(1, _MOST),
        metavar="N",
        help=f"with --need-ack: how many may come before they are printed; default: {_USUAL} (FMQ)",
    )


def check_subscription(args: argparse.Namespace) -> None:
    """Raises CommandError for what does not fit together."""
    if args.need_ack and not args.group:
        raise CommandError("--need-ack is for consumers: --group", USAGE)
    if args.window and not args.need_ack:
        raise CommandError("--window is for --need-ack", USAGE)
    if args.group and args.count and not args.need_ack:
        raise CommandError("--group with -C needs --need-ack: what comes beyond COUNT would be lost", USAGE)
    if args.group and args.retained_only:
        raise CommandError("a group gets nothing that was kept: --retained-only is not for it", USAGE)


def make_client(args: argparse.Namespace, reconnects: bool, **options: Any) -> "Client":
    """The client that the options describe; ``options`` are further keywords of ``Client``.

    ``reconnects``: whether a lost connection is made again when the options do not say.
    """
    from headwater_host.client.fmq import Client

    where = connection.where(args)
    if where.password is not None and where.username is None:
        raise CommandError("a password needs a user name", USAGE)
    client = Client(
        *where.servers[0],
        more_servers=where.servers[1:],
        tls=where.tls,
        client_id=connection.identifier(args),
        user=where.username,
        password=where.password,
        will=connection.will(args),
        clean=not args.keep_session,
        keep_alive=args.keepalive,
        timeout=args.timeout,
        reconnect=connection.reconnect(args, reconnects),
        **options,
    )
    connection.watch(args, client)
    connection.log.debug("%r: FMQ, as %r", where, client.client_id)
    return client


def no_topic(args: argparse.Namespace) -> None:
    """Raises CommandError when ``-L`` names a topic where none is expected."""
    connection.choose(args)
    if args.url is not None and args.url.topic is not None:
        raise CommandError("the topic is an argument: it does not stand in -L", USAGE)


async def subscribe(client: "Client", args: argparse.Namespace) -> None:
    """Subscribe to the topics of ``sub``, consume them, and take back what is to be taken back."""
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
        # A subscription is taken back by its number, which the hub says to who subscribes.
        await client.unsubscribe(await client.subscribe(name, group=group))
        connection.log.debug("unsubscribed from %r", name)


# -- payloads ----------------------------------------------------------------------------------------------------------


def value(text: str) -> bytes:
    """The value that JSON stands for. Raises CommandError."""
    from headwater_host.fmq.plain import from_json

    try:
        return from_json(text)
    except ValueError as error:
        raise CommandError(f"that is no value in JSON: {error}", USAGE) from error


def read(payload: bytes) -> tuple[Any] | None:
    """The value that a payload is, as JSON has it; None when it is none."""
    from headwater_host.fmq.plain import plain
    from headwater_host.fmq.values import MalformedValueError, decode

    try:
        return (plain(decode(payload)),)
    except MalformedValueError:
        return None


def shown(payload: bytes) -> bytes:
    """A payload that is a value as JSON; another one as it is."""
    found = read(payload)
    return payload if found is None else json.dumps(found[0], ensure_ascii=False).encode(errors="replace")
