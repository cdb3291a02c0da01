"""The fast path of MQTT's session on CPython.

The core writes packets in place and reads them byte by byte, because a board must not allocate. On CPython an object
costs less than a few steps of the interpreter, so received bytes are copied once and sliced, and sent bytes are joined.
State and decisions are the core's; all other packets are left to it.

The portable tests of the session run over both paths (``tests/host/test_fast_path.py``).
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headwater import errors
from headwater.mqtt import packets, session, spec
from headwater.mqtt.session import acknowledged, deliver_1
from headwater.wire import put_varint
from headwater_host.topics import check_name

if TYPE_CHECKING:
    from headwater.mqtt.session import Session
    from headwater.types import Bytes
    from headwater_host.client.connection import Chunks

_PUBLISH_BIT = 1 << spec.PUBLISH
_ACK_SIZE = 4
_PUBACK = spec.PUBACK << 4
# More received bytes are not copied: they are mostly one large packet that grows with every read.
_COPY = 1 << 17
# How many topics are remembered as valid, and their maximum length.
_TOPICS = 4096
_REMEMBERED = 256

# What the fast path does with a packet, by its first byte.
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
    """Encode what precedes packet identifier and payload in a PUBLISH; b"" if the message is not valid.

    ``size`` is that of properties and payload, ``flags`` are QoS and RETAIN as in the first byte.
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


class FastPath:
    """The fast path of one session, which uses ``enqueue`` and has ``take_packets`` in place of the core's."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    # -- send path -----------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        s: "Session",
        frames: "Chunks | None",
        topic: "Bytes",
        payload: "Bytes",
        flags: int,
        properties: "Bytes",
    ) -> int:
        """Enqueue a QoS 1 or 2 message: its packet identifier or E_STORE; 0 if the core must handle the message.

        A message that can leave now is appended to ``frames`` as a whole packet.
        """
        v5 = s.v5
        if (
            flags < 2
            or type(topic) is not bytes
            or len(topic) > _REMEMBERED
            or type(payload) not in (bytes, bytearray)
            or type(properties) is not bytes
            or (v5.prepare(topic, flags, properties) < 0 if v5 is not None else properties)
        ):
            return 0
        block = v5.block if v5 is not None else b""
        front = publish_front(topic, len(payload) + len(block), flags)
        box = s.outbox
        n = len(front) + 2 + len(block) + len(payload)
        at = box.reserve(n) if front and n <= s.most else -1
        if at < 0:
            return 0
        packet_id = box.next + 1
        frame = b"".join((front, packet_id.to_bytes(2, "big"), block, payload))
        box.buf[at : at + n] = frame
        if box.commit(n, flags >> 1) < 0:
            return errors.E_STORE
        # PUBREL for the identifiers of a forgotten session precedes the first QoS 2 message (``Session.sweep``).
        if s.send_whole(at, frames is not None and not (s.sweep and flags > 3)) and frames is not None:
            frames.append(frame)
        return packet_id

    # -- receive path --------------------------------------------------------------------------------------------------

    def take_packets(self, s: "Session", i: int, end: int) -> int:
        """Take frequent packets, then let the core take the next one: the offset reached, negative at the end."""
        # A handler may have begun another connection, and feed it.
        s.packet.buf = s.rx.buf
        epoch = s.epoch
        data = b""
        while self._is_usual(s, i, end):
            # Copied once, however many packets between are left to the core.
            data = data or bytes(memoryview(s.rx.buf)[:end])
            i = self._take_many(s, data, i, end)
            if s.epoch != epoch:
                return -1
            if i == end:
                return i
            at = i
            i = session.take_packets(s, i, end)
            if i < 0 or i in (at, end) or s.epoch != epoch:
                return i
        return session.take_packets(s, i, end)

    def _is_usual(self, s: "Session", i: int, end: int) -> bool:
        """Return whether the packet at ``i`` may be one of the frequent kinds."""
        return bool(
            end - i >= _ACK_SIZE
            and end <= _COPY
            and _WAYS[s.rx.buf[i]]
            and not s.large_left
            and s.takes[s.state] & _PUBLISH_BIT
            and s.packet.short
        )

    def _take_many(self, s: "Session", data: bytes, i: int, end: int) -> int:
        """Take whole packets of the frequent kinds: the offset reached.

        ``data`` is the content of the receive buffer from its beginning, ``i`` the offset where to start.
        """
        p = s.packet
        rx = s.rx
        five: Any = p if s.v5 is not None else None
        aliased = five is not None and s.v5.aliases_in is not None
        check = p.check
        known = self._known
        epoch = s.epoch
        capacity = rx.capacity
        p.buf = data
        try:
            while end - i >= _ACK_SIZE and s.epoch == epoch:
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
                        if not packet_id or s.tx_size - s.tx_end < _ACK_SIZE:
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
                    # The packet counts as taken even if its handler raises.
                    rx.start = i = stop
                    if way == _ANSWER and s.acks is None:
                        deliver_1(s, p)
                    elif way == _ANSWER:
                        s.acks.take(p)
                    elif s.on_message is not None:
                        s.on_message(p)
                elif way == _ACKNOWLEDGED and size == 2:
                    rx.start = stop
                    if not acknowledged(s, data, at):
                        break
                    i = stop
                elif way == _HANDLE and (size == 2 or head >> 4 == spec.PUBLISH):
                    if s.tx_size - s.tx_end < _ACK_SIZE or (aliased and head >> 4 == spec.PUBLISH):
                        break
                    p.head = head
                    p.body = at
                    p.end = rx.start = stop
                    if s.handlers[head >> 4](s, p) and s.epoch == epoch:
                        # The core reports the error.
                        break
                    i = stop
                else:
                    break
        finally:
            p.buf = rx.buf
        return i
