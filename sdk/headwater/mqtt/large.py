"""A PUBLISH that is larger than the receive buffer: it passes through, to a sink or to nobody, and the
connection lives.

Its fixed header and topic are held, if they fit, and the payload is handed to the sink as it arrives. A topic
that does not fit cannot be delivered: the message is skipped, but its packet id is still read, so that it can
be acknowledged.
"""

from headwater.errors import E_FIELD, E_PACKET_ID
from headwater.mqtt import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.decode import Packet
    from headwater.types import Bytes, Sink


class LargeMessage:
    """The state of one large message: ``left`` bytes of it are still to come, 0 when there is none."""

    def __init__(self) -> None:
        self._sink: Sink | None = None
        self.left = 0
        self.qos = 0
        self.packet_id = 0
        self.streaming = False
        self._topic_left = 0
        self._id_missing = False

    def begin(self, p: "Packet", at: int, end: int, capacity: int) -> int:
        """Look at the beginning of the packet at ``at``, whose fixed header is in ``p``.

        Returns the offset from which on ``left`` bytes are to be passed, 0 when more must be read first, or a
        peer's-fault code. ``p`` has topic and packet id unless the topic does not fit (``topic_end`` is then
        ``topic_at``).
        """
        body = p.body
        if end - body < 2:
            return 0
        topic_end = body + 2 + (p.buf[body] << 8 | p.buf[body + 1])
        self.qos = p.qos()
        need = topic_end + 2 if self.qos else topic_end
        if need > p.end:
            p.bad_at = body
            return E_FIELD
        if need - at > capacity:
            return self._unshown(p)
        if need > end:
            return 0
        bad = decode.publish(p)
        if bad:
            return bad
        self.packet_id = p.packet_id
        self.left = p.end - p.payload_at
        return p.payload_at

    def _unshown(self, p: "Packet") -> int:
        """What stands before the payload does not fit: pass over it, and read the packet id on the way."""
        at = p.body + 2
        p.topic_at = p.topic_end = at
        self._topic_left = p.buf[at - 2] << 8 | p.buf[at - 1]
        self._id_missing = self.qos > 0
        self.packet_id = 0
        self.left = p.end - at
        return at

    def offer(self, p: "Packet", sink: "Sink | None") -> bool:
        """Offer the message to the sink: whether it takes it. If it raises, the message passes, unacknowledged."""
        self._sink = sink
        self.streaming = False
        if sink is None or p.topic_end == p.topic_at:
            return False
        try:
            return sink.open(p, self.left)
        except BaseException:
            self.qos = 0
            raise

    def pass_head(self, buf: "Bytes", at: int, end: int) -> int:
        """Pass over a topic that did not fit, and read the packet id behind it; the offset reached, or E_PACKET_ID."""
        if self._topic_left:
            n = min(self._topic_left, end - at)
            self._topic_left -= n
            self.left -= n
            at += n
        if self._id_missing and not self._topic_left and end - at >= 2:
            self.packet_id = buf[at] << 8 | buf[at + 1]
            if self.packet_id == 0:
                return E_PACKET_ID
            self._id_missing = False
            self.left -= 2
            at += 2
        return at

    def payload_here(self, at: int, end: int) -> int:
        """How many bytes of payload stand at ``at``."""
        return 0 if self._topic_left or self._id_missing else min(self.left, end - at)

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        """Hand ``n`` bytes of the payload to the sink; what it raises ends the message for it, unacknowledged."""
        if not self.streaming or self._sink is None:
            return
        try:
            self._sink.write(buf, at, n)
        except BaseException:
            self.qos = 0
            self.close(False)
            raise

    def close(self, complete: bool) -> None:
        """Tell the sink that its message is over."""
        if self.streaming and self._sink is not None:
            self.streaming = False
            self._sink.close(complete)

    def give_up(self) -> None:
        """The connection is over before the message is."""
        self.left = self._topic_left = 0
        self._id_missing = False
        self.close(False)
