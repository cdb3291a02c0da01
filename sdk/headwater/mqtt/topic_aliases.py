"""Topic aliases in both directions. They last as long as a connection.

A session uses them if they are passed as ``aliases_in`` and ``aliases_out``.
"""

from array import array

from headwater.errors import E_ALIAS, E_RX_TOO_LARGE
from headwater.mqtt.properties import block_start, find
from headwater.mqtt.spec5 import TOPIC_ALIAS
from headwater.wire import const, get_u16, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.connection import RxBuf
    from headwater.mqtt.properties import Packet5
    from headwater.types import Bytes

_TOO_LONG = const(65535)
# A topic alias as a property.
_PROPERTY = const(3)


class IncomingAliases:
    """``count`` topics that the other end may give numbers to, of at most ``size`` bytes each.

    They are kept behind the receive buffer, in its ``extra`` bytes: so a packet's topic is at an offset of one buffer,
    wherever it comes from. A longer topic may be given a number, but not be called by it: that is E_RX_TOO_LARGE.
    """

    def __init__(self, count: int, size: int = 64):
        if not 0 < count < 65536 or not 0 < size < _TOO_LONG:
            raise ValueError("1 to 65535 topics of 1 to 65534 bytes")
        self.count = count
        self.size = size
        #: How many bytes the receive buffer must have behind it.
        self.room = count * size
        self._at = 0
        self._sizes = array("H", bytes(2 * count))

    def attach(self, rx: "RxBuf") -> None:
        """Use the room behind ``rx``."""
        if len(rx.buf) - rx.size < self.room:
            raise ValueError("the receive buffer has no room for topic aliases behind it")
        self._at = rx.size

    def clear(self) -> None:
        """Forget all: for a new connection."""
        for i in range(self.count):
            self._sizes[i] = 0

    def resolve(self, p: "Packet5") -> int:
        """Note the topic of a PUBLISH that has an alias, or put it in: 0, E_ALIAS or E_RX_TOO_LARGE."""
        p.bad_at = find(p.buf, p.props_at, p.props_end, TOPIC_ALIAS)
        i = get_u16(p.buf, p.bad_at) - 1
        if i >= self.count:
            return E_ALIAS
        at = self._at + i * self.size
        n = p.topic_end - p.topic_at
        if n:
            self._sizes[i] = n if n <= self.size else _TOO_LONG
            if n <= self.size:
                _copy(p.buf, p.topic_at, at, n)  # type: ignore[arg-type]
            return 0
        n = self._sizes[i]
        if n == 0 or n == _TOO_LONG:
            return E_RX_TOO_LARGE if n else E_ALIAS
        p.topic_at = at
        p.topic_end = at + n
        return 0


def _copy(buf: bytearray, at: int, to: int, n: int) -> None:
    for i in range(n):
        buf[to + i] = buf[at + i]


class OutgoingAliases:
    """Topic aliases for the first ``count`` topics published at QoS 0, up to the Topic Alias Maximum of the peer.

    Only topics that are ``bytes`` get one: what can be changed would have to be copied. Messages that are kept for
    retransmission always carry their topic, because an alias does not outlive its connection. A message whose property
    block is longer than ``size`` bytes carries its topic as well.
    """

    def __init__(self, count: int, size: int = 64):
        if not 0 < count < 65536:
            raise ValueError("1 to 65535 topics")
        self.count = count
        #: The alias chosen last, and whether the peer does not know it yet.
        self.alias = 0
        self.new = False
        #: What the encoder gets: the topic, empty if the alias stands for it, and the property block with the alias.
        self.topic: Bytes = b""
        self.block: Bytes = b""
        #: The block without the alias.
        self.plain: Bytes = b""
        self._topics: list[Bytes] = [b""] * count
        self._used = self._limit = 0
        self._alone = bytearray((_PROPERTY, TOPIC_ALIAS, 0, 0))
        # The alias in front of other properties; ``_made`` is the part of the buffer that the last block took.
        self._buf = bytearray(size + _PROPERTY + 1)
        self._pin = memoryview(self._buf)
        self._made = self._pin[:0]

    def reset(self, limit: int) -> None:
        """Begin with a new connection, over which the peer accepts ``limit`` aliases."""
        for i in range(self._used):
            self._topics[i] = b""
        self._used = 0
        self._limit = min(limit, self.count)

    def choose(self, topic: "Bytes", block: "Bytes") -> bool:
        """Choose the alias of ``topic``, or one that it gets when it is ``sent``; set ``topic`` and ``block``.

        ``block`` is the message's property block. False: there is no alias for this message.
        """
        if not isinstance(topic, bytes):
            return False
        for i in range(self._used):
            if self._topics[i] == topic:
                self.alias = i + 1
                self.new = False
                return self._encode(b"", block)
        self.alias = self._used + 1
        self.new = True
        return self._used < self._limit and self._encode(topic, block)

    def _encode(self, topic: "Bytes", block: "Bytes") -> bool:
        """Encode the property block with the alias; False if there is no room for it."""
        self.topic = topic
        self.plain = block
        if len(block) == 1:
            self.block = self._alone
            self._alone[2] = self.alias >> 8
            self._alone[3] = self.alias & 255
            return True
        k = block_start(block)
        n = len(block) - k + _PROPERTY
        at = varint_size(n) + _PROPERTY
        if at + len(block) - k > len(self._buf):
            return False
        # The block's own length is overwritten: the alias precedes its properties.
        self._buf[at - k : at - k + len(block)] = block
        put_varint(self._buf, 0, n)
        self._buf[at - 3] = TOPIC_ALIAS
        self._buf[at - 2] = self.alias >> 8
        self._buf[at - 1] = self.alias & 255
        n += at - _PROPERTY
        if n != len(self._made):
            self._made = self._pin[:n]
        self.block = self._made
        return True

    def sent(self, topic: "Bytes") -> None:
        """Note that the packet with the alias chosen last was sent."""
        if self.new:
            self._topics[self._used] = topic
            self._used += 1
