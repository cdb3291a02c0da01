"""Topic aliases on a computer (MQTT 5.0, section 3.3.2.3.4), for topics of any length, in both directions."""

from typing import TYPE_CHECKING

from headwater.connection import RxBuf
from headwater.errors import E_ALIAS
from headwater.mqtt.properties import Packet5, block_start, find
from headwater.mqtt.spec5 import TOPIC_ALIAS
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.wire import get_u16, put_varint

if TYPE_CHECKING:
    from headwater.types import Bytes

_LONGEST = 65535
_PROPERTY = 3


class HostIncomingAliases(IncomingAliases):
    """The core's table, with a dictionary for ``count`` topics.

    The topic of the current packet is copied after the receive buffer, where the core expects it.
    """

    def __init__(self, count: int):
        # The base's constructor is not called, because it reserves room for each topic.
        if not 0 < count < 65536:
            raise ValueError(f"count {count}: need 1 to 65535 topics")
        self.count = count
        self.room = _LONGEST
        self._topics: dict[int, bytes] = {}

    def attach(self, rx: RxBuf) -> None:
        """Use the bytes after a receive buffer."""
        self._rx = rx

    def clear(self) -> None:
        """Forget all topics: a connection begins."""
        self._topics.clear()

    def resolve(self, p: Packet5) -> int:
        """Set the topic of a PUBLISH that has a topic alias. Return 0 or E_ALIAS."""
        p.bad_at = find(p.buf, p.props_at, p.props_end, TOPIC_ALIAS)
        alias = get_u16(p.buf, p.bad_at)
        if not 0 < alias <= self.count:
            return E_ALIAS
        if p.topic_at < p.topic_end:
            self._topics[alias] = bytes(p.buf[p.topic_at : p.topic_end])
            return 0
        topic = self._topics.get(alias)
        if topic is None:
            return E_ALIAS
        rx = self._rx
        p.topic_at = rx.size
        p.topic_end = rx.size + len(topic)
        rx.buf[p.topic_at : p.topic_end] = topic
        return 0


class HostOutgoingAliases(OutgoingAliases):
    """The core's table, with a dictionary in place of a search."""

    def __init__(self, count: int):
        super().__init__(count)
        self._aliases: dict[Bytes, int] = {}

    def reset(self, limit: int) -> None:
        """Begin a connection over which the server accepts ``limit`` aliases."""
        self._aliases.clear()
        self._limit = min(limit, self.count)

    def choose(self, topic: "Bytes", block: "Bytes") -> bool:
        """Choose an alias for a message, and set ``topic`` and ``block`` accordingly. Returns False if none is left."""
        alias = self._aliases.get(topic)
        self.new = alias is None
        self.alias = alias or len(self._aliases) + 1
        if self.alias > self._limit:
            return False
        self.topic = topic if self.new else b""
        self.plain = block
        self.block = self._with_alias(bytes(block))
        return True

    def sent(self, topic: "Bytes") -> None:
        """Record the chosen alias: the message with topic and alias was sent."""
        if self.new:
            self._aliases[topic] = self.alias

    def _with_alias(self, block: bytes) -> bytes:
        """Return a property block with the alias chosen last in front."""
        start = block_start(block)
        head = bytearray(4)
        n = put_varint(head, 0, len(block) - start + _PROPERTY)
        return bytes(head[:n]) + bytes((TOPIC_ALIAS, self.alias >> 8, self.alias & 255)) + block[start:]
