"""Topic aliases for received and for sent messages. They are valid for one connection.

Pass them to ``v5.ClientV5`` or ``server5.ServerV5`` as ``aliases_in`` and ``aliases_out``.
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
    """Topic aliases that the peer may use: up to ``count`` topics of at most ``size`` bytes each.

    They are stored after the receive buffer, in its ``extra`` bytes, so that every topic is at an offset of the same
    buffer. The peer may assign an alias to a longer topic but not use it (E_RX_TOO_LARGE).
    """

    def __init__(self, count: int, size: int = 64):
        if not 0 < count < 65536 or not 0 < size < _TOO_LONG:
            raise ValueError("count %r, size %r: need 1 to 65535 aliases of 1 to 65534 bytes" % (count, size))
        self.count = count
        self.size = size
        #: The number of bytes needed after the receive buffer.
        self.room = count * size
        self._at = 0
        self._sizes = array("H", bytes(2 * count))

    def attach(self, rx: "RxBuf") -> None:
        """Use the bytes after ``rx``."""
        if len(rx.buf) - rx.size < self.room:
            raise ValueError(
                "rx: extra %r, need %r bytes for topic aliases" % (len(rx.buf) - rx.size, self.room)
            )
        self._at = rx.size

    def clear(self) -> None:
        """Remove all aliases, for a new connection."""
        for i in range(self.count):
            self._sizes[i] = 0

    def resolve(self, p: "Packet5") -> int:
        """Record the topic of a PUBLISH with an alias, or insert it. Return 0, E_ALIAS or E_RX_TOO_LARGE."""
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

    Only ``bytes`` topics get an alias: a mutable topic would have to be copied. Messages that may be retransmitted
    always carry their topic, because an alias is valid for one connection only. So does a message with a property block
    longer than ``size`` bytes.
    """

    def __init__(self, count: int, size: int = 64):
        if not 0 < count < 65536:
            raise ValueError("count %r: need 1 to 65535 topics" % count)
        self.count = count
        #: The alias chosen last, and whether it is still unknown to the peer.
        self.alias = 0
        self.new = False
        #: Arguments for the encoder: the topic, empty if the alias replaces it, and the property block with the alias.
        self.topic: Bytes = b""
        self.block: Bytes = b""
        #: The block without the alias.
        self.plain: Bytes = b""
        self._topics: list[Bytes] = [b""] * count
        self._used = self._limit = 0
        self._alone = bytearray((_PROPERTY, TOPIC_ALIAS, 0, 0))
        # A block with the alias before other properties; ``_made`` is the part of the buffer with the last block.
        self._buf = bytearray(size + _PROPERTY + 1)
        self._pin = memoryview(self._buf)
        self._made = self._pin[:0]

    def reset(self, limit: int) -> None:
        """Start a new connection, on which the peer accepts ``limit`` aliases."""
        for i in range(self._used):
            self._topics[i] = b""
        self._used = 0
        self._limit = min(limit, self.count)

    def choose(self, topic: "Bytes", block: "Bytes") -> bool:
        """Choose the alias of ``topic``, or a new one that ``sent`` assigns. Set ``topic`` and ``block``.

        ``block`` is the message's property block. Return False if there is no alias for this message.
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
        """Encode the property block with the alias. Return False if there is no room for it."""
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
        """Record that the packet with the alias chosen last is in the transmit buffer."""
        if self.new:
            self._topics[self._used] = topic
            self._used += 1
