"""Topic aliases (MQTT 5.0, section 3.3.2.3.4): numbers for topics, of either direction, as long as a connection lasts.

A session takes them as arguments (``aliases_in``, ``aliases_out``) and does without otherwise.
"""

from array import array

from headwater.errors import E_ALIAS, E_RX_TOO_LARGE
from headwater.mqtt.endpoint5 import block_start
from headwater.mqtt.properties import find
from headwater.mqtt.spec5 import TOPIC_ALIAS
from headwater.wire import const, get_u16, put_block, put_varint, varint_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.decode5 import Packet5
    from headwater.rxbuf import RxBuf
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
    """Numbers for the first ``count`` topics that are published at QoS 0, as far as the other end takes them.

    Only topics that are ``bytes`` get one: what can be changed would have to be copied. What is kept for
    retransmission carries its topic always, because a number does not outlive its connection.
    """

    def __init__(self, count: int):
        if not 0 < count < 65536:
            raise ValueError("1 to 65535 topics")
        self.count = count
        #: The number chosen last, and whether the other end does not know it yet.
        self.alias = 0
        self.new = False
        self._topics: list[Bytes] = [b""] * count
        self._used = self._limit = 0

    def reset(self, limit: int) -> None:
        """A new connection, over which the other end takes ``limit`` numbers."""
        for i in range(self._used):
            self._topics[i] = b""
        self._used = 0
        self._limit = min(limit, self.count)

    def choose(self, topic: "Bytes") -> bool:
        """Whether ``topic`` has a number, or gets one when it is ``sent``."""
        if not isinstance(topic, bytes):
            return False
        for i in range(self._used):
            if self._topics[i] == topic:
                self.alias = i + 1
                self.new = False
                return True
        self.alias = self._used + 1
        self.new = True
        return self._used < self._limit

    def sent(self, topic: "Bytes") -> None:
        """The packet with the number chosen last is on its way."""
        if self.new:
            self._topics[self._used] = topic
            self._used += 1

    def publish_size(self, topic: "Bytes", payload: "Bytes", block: "Bytes") -> int:
        """How many bytes PUBLISH at QoS 0 takes with the number, and ``block``'s properties."""
        n = len(block) - block_start(block) + _PROPERTY
        n += varint_size(n) + len(payload) + 2
        if self.new:
            n += len(topic)
        return n + 1 + varint_size(n)

    def put_publish(
        self, buf: bytearray, at: int, topic: "Bytes", payload: "Bytes", head: int, block: "Bytes"
    ) -> int:
        """Write it, where there is room for it; returns the offset behind it."""
        k = block_start(block)
        m = len(block) - k + _PROPERTY
        if not self.new:
            topic = b""
        buf[at] = head
        at = put_varint(buf, at + 1, 2 + len(topic) + varint_size(m) + m + len(payload))
        at = put_block(buf, at, topic)
        # The block's own length is written over: before its properties comes the alias.
        i = at + varint_size(m) + _PROPERTY
        buf[i - k : i - k + len(block)] = block
        put_varint(buf, at, m)
        buf[i - 3] = TOPIC_ALIAS
        buf[i - 2] = self.alias >> 8
        buf[i - 1] = self.alias & 255
        i += m - _PROPERTY
        at = i + len(payload)
        buf[i:at] = payload
        return at
