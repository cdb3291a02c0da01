"""``headwater sub``: subscribe and print messages."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Union

from headwater.mqtt import spec5
from headwater_host.cli import connection, fmq
from headwater_host.cli.argument_types import topic_filter
from headwater_host.cli.message_format import Part, Received, parse, render
from headwater_host.cli.options import FLAG, REPEATABLE, SECONDS, option, whole
from headwater_host.cli.properties import of
from headwater_host.cli.stdout import while_read
from headwater_host.client.mqtt.messages import Message
from headwater_host.exits import OK, SIGNALLED, TIMED_OUT, USAGE, CommandError
from headwater_host.mqtt_properties import plain
from headwater_host.timeouts import within

if TYPE_CHECKING:
    from headwater_host.client import fmq as hub_client
    from headwater_host.client import mqtt as aio
    from headwater_host.client.fmq import messages as hub_messages

AnyClient = Union["aio.Client", "hub_client.Client"]
AnyMessage = Union[Message, "hub_messages.Message"]

# The index is the value in SUBSCRIBE (MQTT 5.0, 3.8.3.1).
_RETAIN_HANDLING = ("always", "new", "never")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "Subscribe and print the payload of each message, until COUNT, SECONDS or a signal."
    option(parser, "-t --topic", "Topic filter; repeatable", REPEATABLE, type=topic_filter)
    option(parser, "-q --qos", "Maximum QoS (MQTT); default: 0", dest="most_qos", type=int, choices=(0, 1, 2))
    option(parser, "-C --count", "Stop after this many printed messages", type=whole(1, 1 << 62))
    option(parser, "-W --wait", "Stop after this time; exit code 4 with -C", SECONDS)
    option(parser, "-E --subscribed", "Stop when the server has granted the subscriptions", FLAG)
    option(
        parser,
        "-U --unsubscribe",
        "Unsubscribe from this filter; repeatable",
        REPEATABLE,
        type=topic_filter,
        metavar="TOPIC",
    )
    group = parser.add_argument_group("message selection")
    option(
        group,
        "-T --filter-out",
        "Exclude topics that match this filter; repeatable",
        REPEATABLE,
        type=topic_filter,
        metavar="TOPIC",
    )
    kept = group.add_mutually_exclusive_group()
    option(kept, "-R --no-retained", "Exclude retained messages", FLAG)
    option(kept, "--retained-only", "Print retained messages; stop at the first other one", FLAG)
    option(group, "--remove-retained", "Delete each retained message from the server after printing", FLAG)
    option(group, "--no-local", "Exclude messages that this client publishes (MQTT 5.0)", FLAG)
    option(group, "--retain-as-published", "Keep the retain flag as published (MQTT 5.0)", FLAG)
    option(
        group,
        "--retain-handling",
        "When to send retained messages (MQTT 5.0); default: always",
        choices=_RETAIN_HANDLING,
    )
    fmq.add_subscription(group)
    group = parser.add_argument_group("output")
    shape = group.add_mutually_exclusive_group()
    option(shape, "-v --verbose", "Print the topic before each payload", FLAG)
    option(shape, "--json", "Print a JSON object for each message", FLAG)
    option(shape, "-F --format", "Print this text with sequences such as %%t, %%p", type=_format)
    option(group, "-N --no-newline", "Print no newline after a message", FLAG)
    option(group, "--value", "Print payloads that are FMQ values as JSON (FMQ)", FLAG)
    connection.add_connection(parser, True, ("connect", "subscribe", "unsubscribe", "disconnect", "will"))


def _format(text: str) -> list[Part]:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print messages until the count, the time or a signal; return the exit code."""
    protocol = connection.choose(args)
    if args.topic or not args.unsubscribe or (args.url is not None and args.url.topic is not None):
        args.topic = connection.topics(args, args.topic)
    if protocol == "fmq":
        hub = fmq.make_client(args, not args.subscribed, auto_ack=False)
        fmq.check_subscription(args)
        work = _subscribe(hub, partial(fmq.subscribe, hub, args), args)
    else:
        from headwater_host.cli import mqtt

        client = mqtt.make_client(args, not args.subscribed, auto_ack=False)
        _check_flags(args)
        work = _subscribe(client, partial(_ask, client, args), args)
    code = connection.run_until_signal(work)
    # Without a count, a signal is the normal end.
    return OK if code > SIGNALLED and args.count is None else code


def _check_flags(args: argparse.Namespace) -> None:
    if args.protocol_version != "5.0" and _flags(args):
        raise CommandError(
            "--no-local, --retain-as-published and --retain-handling need MQTT 5.0: -V mqttv5", USAGE
        )
    if args.no_local and any(name.startswith("$share/") for name in args.topic):
        raise CommandError("--no-local does not work with shared subscriptions (MQTT 5.0, 3.8.3.1)", USAGE)


def _flags(args: argparse.Namespace) -> int:
    """Return the subscription options of MQTT 5.0 (3.8.3.1)."""
    return (
        (spec5.NO_LOCAL if args.no_local else 0)
        | (spec5.RETAIN_AS_PUBLISHED if args.retain_as_published else 0)
        | _RETAIN_HANDLING.index(args.retain_handling or "always") << spec5.RETAIN_HANDLING_SHIFT
    )


async def _subscribe(
    client: AnyClient, ask: Callable[[], Awaitable[object]], args: argparse.Namespace
) -> int:
    if args.wait is None:
        await _print(client, ask, args)
        return OK
    try:
        await within(args.wait, _print(client, ask, args))
    except asyncio.TimeoutError:
        return OK if args.count is None else TIMED_OUT
    return OK


async def _ask(client: "aio.Client", args: argparse.Namespace) -> None:
    """Send SUBSCRIBE, then UNSUBSCRIBE."""
    if args.topic:
        granted = await client.subscribe(
            [(name, args.most_qos or 0) for name in args.topic],
            options=_flags(args),
            properties=of(args, "subscribe"),
        )
        for name, qos in zip(args.topic, granted, strict=True):
            connection.log.debug("subscribed to %r at QoS %d", str(name), qos)
    if args.unsubscribe:
        await client.unsubscribe(args.unsubscribe, properties=of(args, "unsubscribe"))
        connection.log.debug("unsubscribed from %s", ", ".join(map(repr, map(str, args.unsubscribe))))


async def _print(client: AnyClient, ask: Callable[[], Awaitable[object]], args: argparse.Namespace) -> None:
    closed = None
    async with client:
        connection.show_connection(client)
        await ask()
        # A subscription that is refused later, after a reconnect, ends the command after the messages before it.
        client.on_subscription_refused = client.messages.put_error
        try:
            if not args.subscribed:
                await while_read(_take(client, args))
        except BrokenPipeError as error:
            # The reader closed the pipe: disconnect in good order first.
            closed = error
    connection.log.debug("disconnected")
    if closed is not None:
        raise closed


async def _take(client: AnyClient, args: argparse.Namespace) -> None:
    """Print and acknowledge messages until ``args.count`` is reached."""
    out = sys.stdout.buffer
    left = args.count
    patience = connection.patience(client)
    seen: list[AnyMessage] = []
    over = False
    while not over:
        message: AnyMessage = await client.messages.__anext__()
        properties = getattr(message, "properties", None)
        connection.log.debug("%r%s", message, f", {sorted(properties)}" if properties else "")
        if args.retained_only and not message.retain:
            # Not acknowledged.
            over = True
        else:
            seen.append(message)
            if _is_wanted(message, args):
                out.write(_line(message, args))
                if left is not None:
                    left -= 1
                    over = left == 0
        if over or not client.messages:
            # One write per burst. Messages are deleted and acknowledged only after they are written.
            out.flush()
            for message in seen:
                if args.remove_retained and message.retain and _is_wanted(message, args):
                    await client.publish(message.topic, b"", 1, True, timeout=patience)
                await message.ack()
            seen.clear()


def _is_wanted(message: AnyMessage, args: argparse.Namespace) -> bool:
    if args.no_retained and message.retain:
        return False
    return not any(message.topic.matches(pattern) for pattern in args.filter_out)


def _line(message: AnyMessage, args: argparse.Namespace) -> bytes:
    end = b"" if args.no_newline else b"\n"
    payload = fmq.shown(message.payload) if args.value else message.payload
    if args.format is not None:
        return render(args.format, Received(message, time.time_ns(), payload)) + end
    if args.json:
        return json.dumps(_fields(message, args)).encode() + end
    if args.verbose:
        return message.topic.encode() + b" " + payload + end
    return payload + end


def _fields(message: AnyMessage, args: argparse.Namespace) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "time_ns": time.time_ns(),
        "topic": str(message.topic),
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
    }
    if isinstance(message, Message):
        fields["packet_id"] = message.mid or None
        if args.protocol_version == "5.0":
            fields["properties"] = plain(message.properties)
    else:
        fields |= {"id": message.id.hex(), "tags": list(message.tags)}
        if args.value and (found := fmq.read(message.payload)) is not None:
            return fields | {"value": found[0]}
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_hex"] = message.payload.hex()
    return fields
