"""Publish messages in a task, many in flight, and wait until all are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, TypeAlias

from headwater.fmq.spec import DATETIME, PUBLISH
from headwater_host.client import fmq, mqtt
from headwater_host.client.fmq.ids import ChosenIdMaker
from headwater_host.errors import ClientError
from headwater_host.mqtt_properties import Properties
from headwater_host.timeouts import within
from headwater_spark.servers import Server

#: The user property of MQTT 5.0 with the id of a message, in hexadecimal digits.
ID_PROPERTY = "message_id"
# Messages that wait in the client, and messages in flight; brokers of MQTT 5.0 have a limit of their own.
_QUEUED = 4096
_IN_FLIGHT = 1000
# A connection attempt may take so long, in seconds; the pauses between them.
_CONNECT_S = 10.0
_FIRST_S, _LONGEST_S = 0.2, 5.0
# The range of times in message ids: before 2007, so that no reader takes one for the time of sending.
_TIME_BITS = 60


class PublishingError(RuntimeError):
    """The server cannot be reached, or does not acknowledge a message."""


class Message(NamedTuple):
    """A message to publish. `ident` is 16 bytes that a retry has as well; `expiry` is in seconds."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    tags: tuple[str, ...]
    expiry: int | None
    ident: bytes


class Publisher(NamedTuple):
    """A task that publishes: the server, the client identifier, a number of the query below 2^32, and the seconds for
    which a message may wait for its acknowledgement."""

    server: Server
    client: str
    query: int
    timeout: float


_Post: TypeAlias = Callable[[Message], Awaitable[fmq.Delivery]]


def publish_to_hub(publisher: Publisher, batches: Iterator[list[Message]]) -> None:
    """Publish to an FMQ hub, which stores a message id once. Raises PublishingError."""
    client = fmq.Client(
        **_client_arguments(publisher),
        connection=fmq.ConnectionOptions(keepalive=0),
        limits=fmq.Limits(queued_outgoing=_QUEUED),
    )
    ids = client.session.ids = ChosenIdMaker()

    def post(message: Message) -> Awaitable[fmq.Delivery]:
        ids.chosen = message_id(publisher.query, message.ident)
        return client.post(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            timeout=publisher.timeout,
            tags=message.tags,
        )

    asyncio.run(_publish(client, post, publisher, batches))


def publish_to_broker(publisher: Publisher, batches: Iterator[list[Message]]) -> None:
    """Publish to an MQTT broker, with MQTT 5.0 with the id as a user property. Raises PublishingError."""
    has_properties = publisher.server.protocol == "5.0"
    client = mqtt.Client(
        **_client_arguments(publisher),
        protocol=publisher.server.protocol,
        connection=mqtt.ConnectionOptions(keepalive=0, websocket=publisher.server.websocket),
        limits=mqtt.Limits(queued_outgoing=_QUEUED, in_flight=_IN_FLIGHT if has_properties else None),
    )

    def post(message: Message) -> Awaitable[mqtt.Delivery]:
        properties: Properties | None = None
        if has_properties:
            properties = {"user_property": [(ID_PROPERTY, message.ident.hex())]}
            if message.expiry is not None:
                properties["message_expiry_interval"] = message.expiry
        return client.post(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            timeout=publisher.timeout,
            properties=properties,
        )

    asyncio.run(_publish(client, post, publisher, batches))


def _client_arguments(publisher: Publisher) -> dict[str, Any]:
    """Return the arguments that the clients of both protocols have."""
    server = publisher.server
    return {
        "host": server.host,
        "port": server.port,
        "tls": server.tls,
        "identifier": publisher.client,
        "username": server.username,
        "password": server.password,
        "timeout": min(_CONNECT_S, publisher.timeout),
        "reconnect": _RECONNECT,
    }


# Rights and credentials that are refused are an error at once; everything else may pass.
_RECONNECT = fmq.Reconnect(first=_FIRST_S, longest=_LONGEST_S, refused=None, at_start=True)


def message_id(query: int, ident: bytes) -> bytes:
    """Return a message id of FMQ with the first 12 bytes of `ident`, and `query` as its process number.

    A hub puts messages of one process number into one queue of a topic, so those of a query stay in the order of its
    micro-batches. The top bits are set, because an id has the shortest form; hubs assign process numbers from 1 on.
    """
    thread = int.from_bytes(ident[:4], "little") & (1 << 28) - 1 | 1 << 27
    time = int.from_bytes(ident[4:12], "little") & (1 << _TIME_BITS) - 1 | 1 << _TIME_BITS - 1
    return b"".join(
        (
            bytes((PUBLISH << 4 | 4,)),
            (query | 1 << 31).to_bytes(4, "little"),
            bytes((3 << 4 | thread & 15,)),
            (thread >> 4).to_bytes(3, "little"),
            bytes((DATETIME << 4,)),
            time.to_bytes(8, "little"),
        )
    )


async def _publish(
    client: fmq.Client | mqtt.Client, post: _Post, publisher: Publisher, batches: Iterator[list[Message]]
) -> None:
    """Publish batches, each completely acknowledged before the next: Spark may need long for that."""
    lost = ""

    def on_connection(error: ClientError | None) -> None:
        nonlocal lost
        lost = "" if error is None else str(error)

    client.on_connection = on_connection
    async with AsyncExitStack() as stack:
        connected = False
        for messages in batches:
            try:
                if messages and not connected:
                    await within(publisher.timeout, stack.enter_async_context(client))
                    connected = True
                await _acknowledged(messages, post, publisher.timeout)
            except PublishingError as error:
                raise PublishingError(f"{publisher.server}: {error}{lost and '; ' + lost}") from None
            except (ClientError, asyncio.TimeoutError) as error:
                # Attempts to connect were cancelled, or given up.
                raise PublishingError(f"{publisher.server}: {lost or error}") from None


async def _acknowledged(messages: list[Message], post: _Post, timeout: float) -> None:
    deliveries = [await _posted(message, post) for message in messages]
    for message, delivery in zip(messages, deliveries, strict=True):
        try:
            await delivery.wait(timeout)
        except ClientError as error:
            raise _of(message, error) from None


async def _posted(message: Message, post: _Post) -> fmq.Delivery:
    try:
        return await post(message)
    except ClientError as error:
        raise _of(message, error) from None


def _of(message: Message, error: ClientError) -> PublishingError:
    return PublishingError(f"topic {message.topic!r}, {len(message.payload)} bytes: {error}")
