"""What FMQ's client hands to a program: messages, calls, subscriptions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater_host.client.payload import Payload
from headwater_host.errors import ArgumentError
from headwater_host.fmq.values import decode
from headwater_host.topics import Topic


@dataclass(eq=False)
class Subscription:
    """What was subscribed to: messages of ``topic``, a filter, with all ``tags``, for which ``condition`` is true.

    Without a ``group`` they come by themselves; with one, ``Client.consume`` begins.
    """

    topic: str
    tags: tuple[str, ...] = ()
    condition: str = ""
    group: str = ""
    #: The session's number of it; 0 while the hub has not granted it.
    number: int = field(default=0, repr=False)
    #: While it is consumed: the window and NEEDACK.
    consumed: tuple[int, bool] | None = field(default=None, repr=False)


class Message:
    """A message that arrived.

    ``id`` is its message id, which no other message ever has. ``tags`` are the publisher's. ``dup``: it may have been
    sent before. ``retain``: the hub had kept it. ``subscription`` is whose consumer it came to, None for one that came
    by itself. ``topic`` is empty where the hub has named it by its hash.
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
        #: Which connection of its client it came over.
        self.epoch = epoch
        self.subscription = subscription
        #: The session's number of what is to be acknowledged, 0 for nothing.
        self.receipt = receipt
        #: Whether the program is done with it.
        self.acknowledged = acknowledge is None
        self._acknowledge = acknowledge

    def value(self, into: type[Any] | None = None) -> Any:
        """The payload as a value (``headwater_host.fmq.values.decode``). Raises MalformedValueError."""
        return decode(self.payload, into=into)

    async def ack(self) -> None:
        """Tell the hub that the message is taken care of: of a consumer with ``need_ack``, and with ``auto_ack=False``.

        Messages are acknowledged in any order. A second call does nothing; nor does one for a message of a connection
        that is over: it comes again, unless it has QoS 2.
        """
        await self._settle(0)

    async def reject(self, reason_code: int = 0x80) -> None:
        """Give the message of a consumer with ``need_ack`` back: it goes to the group again, at once; that counts as a
        try. Others are acknowledged."""
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
    """Somebody calls what we serve: ``topic`` and ``arguments``, which ``reply`` answers, or ``refuse``."""

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
        """The arguments as a value (``headwater_host.fmq.values.decode``). Raises MalformedValueError."""
        return decode(self.arguments, into=into)

    async def reply(self, result: Payload = None) -> None:
        """Answer it; returns when the result is handed to the connection.

        Raises NotConnectedError when the connection over which it came is over: the caller has been told so.
        """
        await self._answer(self, result, 0, "")

    async def refuse(self, reason_code: int = 0x80, text: str = "") -> None:
        """Say that there is no result: a reason code from 0x80 on, and what the caller is told besides, of which the
        hub passes on 256 bytes. Raises as ``reply``."""
        if not 0x80 <= reason_code <= 0xFF:
            raise ArgumentError("a call is refused with a reason code from 0x80 to 0xff")
        await self._answer(self, None, reason_code, text)

    def __repr__(self) -> str:
        return f"Call(topic={self.topic!s}, {len(self.arguments)} bytes)"


def texts(values: Sequence[str]) -> tuple[str, ...]:
    """Tags, of which one alone may be given as a text."""
    return (values,) if isinstance(values, str) else tuple(values)
