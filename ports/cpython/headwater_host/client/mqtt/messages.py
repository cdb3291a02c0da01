"""What a client hands to a program: messages, wills, and what may be a payload."""

import struct
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import TYPE_CHECKING

from headwater import errors
from headwater.mqtt import spec
from headwater.wire import put_varint
from headwater_host.errors import ArgumentError
from headwater_host.mqtt_properties import Properties
from headwater_host.topics import Topic

if TYPE_CHECKING:
    pass

_NONE: Properties = MappingProxyType({})
_short_head = struct.Struct(">BBH").pack


class Message:
    """A message that arrived.

    ``mid`` is its packet id, 0 at QoS 0. ``dup``: it may have been sent before. ``retain``: the server had kept it.
    ``properties`` are MQTT 5.0's (``headwater_host.mqtt_properties``).
    """

    __slots__ = (
        "_acknowledge",
        "acknowledged",
        "dup",
        "epoch",
        "mid",
        "payload",
        "properties",
        "qos",
        "retain",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        payload: bytes,
        head: int = 0x30,
        mid: int = 0,
        epoch: int = 0,
        acknowledge: "Callable[[Message], Awaitable[None]] | None" = None,
        properties: Properties = _NONE,
    ):
        self.topic = topic
        self.payload = payload
        self.qos = head >> 1 & 3
        self.dup = head & 8 != 0
        self.retain = head & 1 != 0
        self.mid = mid
        #: Which connection of its client it came over.
        self.epoch = epoch
        #: Whether the program is done with it.
        self.acknowledged = acknowledge is None
        self._acknowledge = acknowledge
        self.properties = properties

    async def ack(self) -> None:
        """With ``auto_ack=False``: tell the server that the message is taken care of.

        Messages are acknowledged in the order in which they came (MQTT 3.1.1, 4.6): this one when all before it are. A
        second call, or one at QoS 0, does nothing; nor does one for a QoS 1 message of a connection that is over: the
        server sends it again.
        """
        if not self.acknowledged and self._acknowledge is not None:
            await self._acknowledge(self)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!s}, qos={self.qos}, retain={self.retain}, {len(self.payload)} bytes)"
        )


def publish_frame(
    topic: bytes, payload: "bytes | bytearray | memoryview", retain: bool, block: bytes = b""
) -> bytes:
    """PUBLISH at QoS 0, by joining: about twice as fast here as writing in place. ``block`` is the properties' in MQTT
    5.0."""
    t = len(topic)
    n = t + len(block) + len(payload) + 2
    head = 0x31 if retain else 0x30
    if n < 128:
        return b"".join((_short_head(head, n, t), topic, block, payload))
    if n > spec.MAX_REMAINING:
        raise ArgumentError("not published: MQTT's packets end at 268 435 455 bytes", errors.E_TOO_LARGE)
    front = bytearray(7)
    front[0] = head
    at = put_varint(front, 1, n)
    front[at] = t >> 8
    front[at + 1] = t & 255
    return b"".join((front[: at + 2], topic, block, payload))
