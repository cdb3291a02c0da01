"""The fast path of MQTT's session on CPython.

A board must not allocate, so the core writes packets in place and reads them byte by byte. Here an object costs less
than a few steps of the interpreter: what was read is copied once and sliced, what is sent is joined. The state is the
core's, and so is every decision; whatever is unusual about a packet is left to the core, which finds everything as it
would have been, and says what is wrong.

The portable tests of the session run over both ways (``tests/host/test_fast_path.py``).
"""

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from headwater import errors
from headwater.mqtt import packets, spec
from headwater.mqtt.manual_ack import KEEP, ManualAck
from headwater.mqtt.session import Session, acknowledged
from headwater.wire import put_varint
from headwater_host.topics import check_name

if TYPE_CHECKING:
    from headwater.types import Bytes

_PUBLISH_BIT = 1 << spec.PUBLISH
_ACK_SIZE = 4
_PUBACK = spec.PUBACK << 4
_PUBACK_HEAD = _PUBACK << 8 | 2
_put = Struct(">HH").pack_into
# Above this, what was read is not copied: it is mostly one large packet, of which there is more with every read.
_COPY = 1 << 17
# So many topics that were found right are remembered, unless they are longer.
_TOPICS = 4096
_REMEMBERED = 256

# By first byte: what the loop below does with a packet. The rest is the core's.
_LEAVE, _DELIVER, _ANSWER, _ACKNOWLEDGED, _HANDLE = range(5)
_MESSAGES = (_DELIVER, _ANSWER)
_WAYS = bytearray(256)
for _retain in (0, 1):
    _WAYS[0x30 | _retain] = _DELIVER
    for _dup in (0, spec.DUP):
        _WAYS[0x32 | _retain | _dup] = _ANSWER
        _WAYS[0x34 | _retain | _dup] = _HANDLE
_WAYS[_PUBACK] = _ACKNOWLEDGED
for _kind in (spec.PUBREC, spec.PUBREL, spec.PUBCOMP):
    _WAYS[packets.HEADS[_kind]] = _HANDLE


@lru_cache(maxsize=_TOPICS)
def publish_front(topic: bytes, size: int, flags: int) -> bytes:
    """What stands before packet id and payload in a PUBLISH with ``size`` bytes of payload; b"" if there can be none.

    ``flags`` are QoS and RETAIN as in the first byte.
    """
    t = len(topic)
    n = t + size + (4 if flags > 1 else 2)
    if t > 65535 or n > spec.MAX_REMAINING or check_name(topic, 0, t):
        return b""
    front = bytearray(7)
    front[0] = 0x30 | flags
    at = put_varint(front, 1, n)
    front[at] = t >> 8
    front[at + 1] = t & 255
    return bytes(front[: at + 2]) + topic


class FastEndpoint(Session):
    """``Session`` with these send and receive paths."""

    #: Where a message at QoS 1 or 2 that can leave at once is put, as a whole packet; None: it leaves through ``out``.
    frames: "list[bytes | bytearray | memoryview] | None" = None

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._known: set[bytes] = set()

    acks: "ManualAck | None"

    @property
    def auto_ack(self) -> bool:
        """Whether a message at QoS 1 or 2 is acknowledged when its handler returns."""
        return self.acks is None or self.acks.automatic

    @auto_ack.setter
    def auto_ack(self, on: bool) -> None:
        assert self.acks is not None
        self.acks.automatic = on

    def acknowledge(self, packet_id: int, qos: int, epoch: int, code: int = 0) -> int:
        """Acknowledge a message: as ``ManualAck.acknowledge``."""
        assert self.acks is not None
        return self.acks.acknowledge(packet_id, qos, epoch, code)

    # -- out -----------------------------------------------------------------------------------------------------------

    def enqueue(self, topic: "Bytes", payload: "Bytes", flags: int, properties: "Bytes" = b"") -> int:
        """As the core's."""
        v5 = self.v5
        if (
            flags < 2
            or type(topic) is not bytes
            or len(topic) > _REMEMBERED
            or type(payload) not in (bytes, bytearray)
            or type(properties) is not bytes
            or (v5.prepare(topic, flags, properties) < 0 if v5 is not None else properties)
        ):
            return super().enqueue(topic, payload, flags, properties)
        block = v5.block if v5 is not None else b""
        front = publish_front(topic, len(payload) + len(block), flags)
        box = self.outbox
        n = len(front) + 2 + len(block) + len(payload)
        at = box.reserve(n) if front and n <= self.most else -1
        if at < 0:
            return super().enqueue(topic, payload, flags, properties)
        packet_id = box.next + 1
        frame = b"".join((front, packet_id.to_bytes(2, "big"), block, payload))
        box.buf[at : at + n] = frame
        if box.commit(n, flags >> 1) < 0:
            return errors.E_STORE
        if self.frames is None or (self._sweep and flags > 3) or not self.send_whole(at):
            self._unsent += 1
        else:
            self.frames.append(frame)
        return packet_id

    def take(self, chunks: "list[bytes | bytearray | memoryview]") -> None:
        """Append a copy of everything that can be sent; it counts as sent."""
        n = self.out()
        while n > 0:
            at = self.out_at
            chunks.append(self.out_buf[at : at + n])
            n = self.sent(n)

    # -- in ------------------------------------------------------------------------------------------------------------

    def feed(self, n: int) -> int:
        """As the core's."""
        rx = self.rx
        at = rx.start
        # A handler may have begun another connection, and feed it.
        self.packet.buf = rx.buf
        if (
            not n
            or self.status
            or self.large.left
            or not self._takes[self.state] & _PUBLISH_BIT
            or not self.packet.short
        ):
            return super().feed(n)
        if rx.gap:
            rx.join(n)
        rx.end = end = rx.end + n
        self.rx_time = self.now
        if end <= _COPY and end - at >= _ACK_SIZE and _WAYS[rx.buf[at]]:
            if self._take_many(bytes(memoryview(rx.buf)[:end]), at, end):
                # The connection is over, or another one.
                return super().feed(0)
            if rx.start == end and self.v5 is None:
                self.stalled = False
                return 0
        return super().feed(0)

    def _take_many(self, data: bytes, i: int, end: int) -> bool:
        """Take packets as long as they are whole and of the usual kinds, and set ``rx.start``: whether the connection
        has ended meanwhile. ``data`` is what the receive buffer holds, from its beginning on; ``i`` where to start.
        """
        p = self.packet
        rx = self.rx
        five: Any = p if self.v5 is not None else None
        aliased = five is not None and self.v5.aliases_in is not None
        check = p.check
        known = self._known
        epoch = self.epoch
        capacity = rx.capacity
        p.buf = data
        try:
            while end - i >= _ACK_SIZE:
                head = data[i]
                way = _WAYS[head]
                at = i + 2
                size = data[i + 1]
                if size > 127:
                    size = size & 127 | data[at] << 7
                    at += 1
                stop = at + size
                if size > 16383 or stop > end or stop - i > capacity:
                    break
                if way in _MESSAGES:
                    topic_at = at + 2
                    topic_end = payload_at = topic_at + (data[at] << 8 | data[at + 1])
                    packet_id = 0
                    if way == _ANSWER:
                        payload_at += 2
                        packet_id = data[topic_end] << 8 | data[topic_end + 1] if payload_at <= stop else 0
                        if not packet_id or self.tx_size - self.tx_end < _ACK_SIZE:
                            break
                    elif payload_at > stop:
                        break
                    topic = data[topic_at:topic_end]
                    if topic not in known:
                        if check(data, topic_at, topic_end):
                            break
                        if len(topic) <= _REMEMBERED:
                            if len(known) >= _TOPICS:
                                known.clear()
                            known.add(topic)
                    p.head = head
                    p.packet_id = packet_id
                    p.topic_at = topic_at
                    p.topic_end = topic_end
                    p.payload_at = payload_at
                    p.end = stop
                    if five is not None and (payload_at == stop or five.publish_block(payload_at, stop)):
                        # Malformed, or with a topic alias.
                        break
                    # The packet is taken, even when its handler raises.
                    rx.start = i = stop
                    if way == _DELIVER:
                        if self.on_message is not None:
                            self.on_message(p)
                    else:
                        # As ``ManualAck.take``.
                        auto_ack = self.auto_ack
                        self.unanswered += 1
                        if self.on_message is not None:
                            self.tx_size -= _ACK_SIZE
                            try:
                                if self.on_message(p) == KEEP:
                                    auto_ack = False
                            finally:
                                if self.epoch == epoch:
                                    self.tx_size += _ACK_SIZE
                        if self.epoch == epoch and auto_ack:
                            self.unanswered -= 1
                            _put(self.tx, self.tx_end, _PUBACK_HEAD, packet_id)
                            self.tx_end += _ACK_SIZE
                elif way == _ACKNOWLEDGED and size == 2:
                    rx.start = stop
                    if not acknowledged(self, data, at):
                        break
                    i = stop
                elif way == _HANDLE and (size == 2 or head >> 4 == spec.PUBLISH):
                    if self.tx_size - self.tx_end < _ACK_SIZE:
                        break
                    if aliased and head >> 4 == spec.PUBLISH:
                        break
                    p.head = head
                    p.body = at
                    p.end = rx.start = stop
                    if self._handlers[head >> 4](self, p) and self.epoch == epoch:
                        # The core will find the same, and say so.
                        break
                    i = stop
                else:
                    break
                if self.epoch != epoch:
                    return True
        finally:
            p.buf = rx.buf
        rx.start = i
        return False
