"""Received messages and calls, and subscriptions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater_host.client.payload import Payload
from headwater_host.errors import ArgumentError
from headwater_host.fmq.values import decode
from headwater_host.topics import Topic


@dataclass(eq=False)
class Subscription:
    """A subscription to messages that match the filter ``topic``, have all ``tags``, and meet ``condition``.

    Without a ``group`` the hub pushes them; with one, ``Client.consume`` receives them.
    """

    topic: str
    tags: tuple[str, ...] = ()
    condition: str = ""
    group: str = ""
    #: The session's number for it, 0 until the hub grants it.
    number: int = field(default=0, repr=False)
    #: The window and NEEDACK while it has a consumer.
    consumed: tuple[int, bool] | None = field(default=None, repr=False)


class Message:
    """A received message.

    ``id`` is its message id, unique for ever. ``tags`` are the publisher's, ``dup`` and ``retain`` flags of PUBLISH.
    ``subscription`` is the subscription whose consumer received it, None for a pushed message. ``topic`` is empty if
    the hub sent only its hash.
    """

    __slots__ = (
        "_acknowledge",
        "acknowledged",
        "dup",
        "epoch",
        "id",
        "payload",
        "qos",
        "receipt",
        "retain",
        "subscription",
        "tags",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        payload: bytes,
        tags: tuple[str, ...],
        ident: bytes,
        flags: int,
        epoch: int,
        subscription: Subscription | None = None,
        receipt: int = 0,
        acknowledge: "Callable[[Message, int], Awaitable[None]] | None" = None,
    ):
        self.topic = topic
        self.payload = payload
        self.tags = tags
        self.id = ident
        self.qos = flags >> 1 & 3
        self.dup = flags & 8 != 0
        self.retain = flags & 1 != 0
        #: The number of the connection over which it arrived.
        self.epoch = epoch
        self.subscription = subscription
        #: The session's number for the acknowledgement, 0 if none is needed.
        self.receipt = receipt
        #: True if it needs no acknowledgement any more.
        self.acknowledged = acknowledge is None
        self._acknowledge = acknowledge

    def value(self, into: type[Any] | None = None) -> Any:
        """Return the payload as a value (``headwater_host.fmq.values.decode``). Raises MalformedValueError."""
        return decode(self.payload, into=into)

    async def ack(self) -> None:
        """Acknowledge the message: one of a consumer with ``need_ack``, or with ``auto_ack=False``.

        Messages are acknowledged in any order. A second call has no effect, nor has one for a message of an earlier
        connection, which the hub redelivers, except at QoS 2.
        """
        await self._settle(0)

    async def reject(self, reason_code: int = 0x80) -> None:
        """Return the message of a consumer with ``need_ack`` to the group, which counts as a delivery attempt.

        Acknowledges other messages.
        """
        await self._settle(reason_code)

    async def _settle(self, code: int) -> None:
        if not self.acknowledged and self._acknowledge is not None:
            self.acknowledged = True
            await self._acknowledge(self, code)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!s}, qos={self.qos}, retain={self.retain}, {len(self.payload)} bytes)"
        )


class Call:
    """A call of a remote procedure that this client provides: answer it by ``reply`` or ``refuse``."""

    __slots__ = ("_answer", "arguments", "epoch", "id", "topic")

    def __init__(
        self,
        topic: Topic,
        arguments: bytes,
        ident: bytes,
        epoch: int,
        answer: "Callable[[Call, Payload, int, str], Awaitable[None]]",
    ):
        self.topic = topic
        self.arguments = arguments
        self.id = ident
        self.epoch = epoch
        self._answer = answer

    def value(self, into: type[Any] | None = None) -> Any:
        """Return the arguments as a value (``headwater_host.fmq.values.decode``). Raises MalformedValueError."""
        return decode(self.arguments, into=into)

    async def reply(self, result: Payload = None) -> None:
        """Send the result; return when it is written to the connection.

        Raises NotConnectedError if the connection of the call has ended; the hub has told the caller.
        """
        await self._answer(self, result, 0, "")

    async def refuse(self, reason_code: int = 0x80, text: str = "") -> None:
        """Refuse the call with a reason code from 0x80 on and a text, of which the hub forwards 256 bytes.

        Raises ArgumentError, and NotConnectedError as ``reply`` does.
        """
        if not 0x80 <= reason_code <= 0xFF:
            raise ArgumentError(f"reason_code={reason_code!r}: 0x80 to 0xff")
        await self._answer(self, None, reason_code, text)

    def __repr__(self) -> str:
        return f"Call(topic={self.topic!s}, {len(self.arguments)} bytes)"


def texts(values: Sequence[str]) -> tuple[str, ...]:
    """Return tags as a tuple; a single tag may be given as a text."""
    return (values,) if isinstance(values, str) else tuple(values)
