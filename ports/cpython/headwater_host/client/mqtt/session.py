"""MQTT's sessions on a computer: buffers that grow, an outbox that can be a file, any number of QoS 2 messages.

State machine, encoders and decoders are the core's (``headwater.mqtt.session``).
"""

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.connection import AT2, DONE
from headwater.errors import E_ARGUMENT, E_FILTER, E_LIMIT, E_TOO_LARGE, E_WINDOW
from headwater.mqtt import spec, spec5
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.packets import Packet, publish_size
from headwater.mqtt.properties import Packet5
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import DELIVERY, ClientSession
from headwater.mqtt.v5 import ClientV5
from headwater.mqtt.v31 import V31
from headwater.reasons import REASONS
from headwater.streaming import stream_to
from headwater.types import Sink
from headwater.wire import put_varint, varint_size
from headwater_host.client.connection import Chunks
from headwater_host.client.mqtt.fast import FastPath
from headwater_host.client.mqtt.messages import publish_frame
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.rxbuf import MAX_PACKET, GrowingRxBuf
from headwater_host.client.session_config import SessionConfig
from headwater_host.errors import ArgumentError
from headwater_host.mqtt_properties import Properties, decode, encode, unblock
from headwater_host.topics import check_name

if TYPE_CHECKING:
    from headwater.types import Bytes

    _Array = array[int]
else:
    _Array = array

_ALL_IDS = 65535
_PINGREQ = bytes((spec.PINGREQ << 4, 0))
_RX = 1 << 16
_TX = 1 << 16
_LONGEST_HEADER = 5
# The size of a packet identifier.
_ID = 2
# Properties of PUBLISH that a program must not set, and the reason.
_RESERVED = {
    "topic_alias": "a topic_alias holds for one connection, so the client chooses it: Client(outgoing_topic_aliases=N)",
    "subscription_identifier": "a client sends no subscription_identifier, it only receives them (MQTT 5.0, 3.3.4-6)",
}


def _puback_ends_qos_2() -> bytes:
    table = bytearray(DELIVERY)
    table[AT2 * 4 + spec.PUBACK - 4] = DONE
    return bytes(table)


#: ``session.DELIVERY`` for servers that do not implement QoS 2 and answer with PUBACK (RabbitMQ): messages arrive as at
#: QoS 1. Otherwise such a PUBACK closes the connection (3.1.1, 4.8; 5.0, 4.13).
PUBACK_ENDS_QOS_2 = _puback_ends_qos_2()


class _OpenIds(_Array):
    """The QoS 2 identifiers in flight, by place (0: a free place), which are found without a search."""

    def __init__(self, *_: object) -> None:
        self._place: dict[int, int] = {}
        self._free: list[int] = []

    def __setitem__(self, i: int, packet_id: int) -> None:  # type: ignore[override]
        before = self[i]
        if before == packet_id:
            return
        if before:
            del self._place[before]
            self._free.append(i)
        super().__setitem__(i, packet_id)
        if packet_id:
            self._place[packet_id] = i
            # Mostly the place that ``find`` returned, which is the last one.
            if self._free[-1] == i:
                self._free.pop()
            else:
                self._free.remove(i)

    def find(self, packet_id: int) -> int:
        """Return the place of an identifier, or -1; of 0 a free place: there always is one."""
        if packet_id:
            return self._place.get(packet_id, -1)
        if not self._free:
            self._free.append(len(self))
            self.append(0)
        return self._free[-1]


class HostClientSession(ClientSession):
    """A client's session on a computer.

    - ``max_packet``: the largest packet that is received whole; larger messages go to ``sink`` or are skipped.
    - ``room``: bytes of CONNECT besides the strings of ``config``: properties.
    - ``puback_ends_qos_2``: see ``PUBACK_ENDS_QOS_2``.
    - ``version``: ``ClientV5`` or ``V31``; None for 3.1.1.
    """

    GREETING = "CONNECT"
    REASONS = REASONS

    #: Takes whole packets that can leave at once; None: they leave through ``out``.
    frames: Chunks | None = None

    def __init__(
        self,
        config: SessionConfig,
        *,
        max_packet: int = MAX_PACKET,
        room: int = 0,
        puback_ends_qos_2: bool = False,
        version: "ClientV5 | V31 | None" = None,
    ):
        #: Instead of ``on_answer``: called with a request's packet identifier, the codes of its filters (none with
        #: UNSUBACK before 5.0), and the server's reason string.
        self.on_answers: Callable[[int, bytes, str], object] | None = None
        super().__init__(
            *config.login,
            tx_size=config.tx_size(room),
            window=config.window,
            receive_window=_ALL_IDS,
            response_ms=config.response_ms,
            check=check_name,
            rx=GrowingRxBuf(_RX, max_packet, 0 if version is None else version.room),
            outbox=config.make_outbox(),
            version=version,
        )
        self._fast = FastPath()
        self.take_packets = self._fast.take_packets
        if puback_ends_qos_2:
            self.delivery = PUBACK_ENDS_QOS_2
            # Such a server holds no identifiers to be released first, and does not know PUBREL.
            self.outbox.fresh = False
        self._ids = _OpenIds("H")
        for packet_id in self.open_ids:
            if not packet_id:
                # Those that the store has kept are at the beginning.
                break
            self._ids[self._ids.find(0)] = packet_id
        self.open_ids = self._ids
        self.acks: ManualAck = ManualAck(self, automatic=True)

    @property
    def auto_ack(self) -> bool:
        """True if a message at QoS 1 or 2 is acknowledged when its handler returns."""
        return self.acks.automatic

    @auto_ack.setter
    def auto_ack(self, on: bool) -> None:
        self.acks.automatic = on

    @property
    def sink(self) -> "Sink[Packet] | None":
        """The sink of messages larger than the receive buffer."""
        return self.stream.sink if self.stream is not None else None

    @sink.setter
    def sink(self, sink: "Sink[Packet] | None") -> None:
        stream_to(self, sink)

    def find_qos2(self, packet_id: int) -> int:
        """Return the place of a QoS 2 identifier; of 0, a free place."""
        return self._ids.find(packet_id)

    def acknowledge(self, packet_id: int, qos: int, epoch: int) -> int:
        """Acknowledge a message: as ``ManualAck.acknowledge``."""
        return self.acks.acknowledge(packet_id, qos, epoch)

    # -- publishing ------------------------------------------------------------------------------------------------

    def enqueue(self, topic: "Bytes", payload: "Bytes", flags: int, properties: "Bytes" = b"") -> int:
        """Publish, with QoS and RETAIN as in PUBLISH's first byte. Returns as ``publish``."""
        packet_id = self._fast.enqueue(self, self.frames, topic, payload, flags, properties)
        return packet_id or super().enqueue(topic, payload, flags, properties)

    def offer(
        self, topic: bytes, payload: "Bytes", qos: int, retain: bool, properties: Properties | None = None
    ) -> int:
        """Publish; E_WINDOW instead of E_TOO_LARGE for a message that an empty outbox could hold.

        Raises ArgumentError for properties that are not allowed, and for a packet that the server does not accept.
        """
        block = self._publish_block(properties)
        status = self.publish(topic, payload, qos, retain, block)
        if status == E_TOO_LARGE:
            if self.v5 is not None:
                size = len(publish_frame(topic, payload, retain, block)) + (_ID if qos else 0)
                self._check_size("not published", size)
            box = self.outbox
            largest = box.limit if isinstance(box, GrowingOutbox) else len(box.buf)
            if qos and box.count and 0 < publish_size(topic, payload, qos, block) <= min(largest, self.most):
                return E_WINDOW
        return status

    def frame_of(
        self, topic: bytes, payload: "Bytes", retain: bool, properties: Properties | None = None
    ) -> bytes:
        """Return the packet of a QoS 0 message. Raises ArgumentError."""
        return self._publish_frame(topic, payload, retain, self._publish_block(properties))

    def frame_now(
        self, topic: bytes, payload: "Bytes", retain: bool, properties: Properties | None = None
    ) -> bytes:
        """Return the packet of a QoS 0 message for the current connection, with a topic alias if it has one."""
        if self.v5 is None and not properties:
            return publish_frame(topic, payload, retain)
        block = self._publish_block(properties)
        aliases = None if self.v5 is None else self.v5.aliases_out
        if aliases is None or not aliases.choose(topic, block):
            return self._publish_frame(topic, payload, retain, block)
        try:
            frame = self._publish_frame(bytes(aliases.topic), payload, retain, bytes(aliases.block))
        except ArgumentError:
            # It may be too large only with the alias.
            return self._publish_frame(topic, payload, retain, block)
        aliases.sent(topic)
        return frame

    def _publish_frame(self, topic: bytes, payload: "Bytes", retain: bool, block: bytes) -> bytes:
        frame = publish_frame(topic, payload, retain, block)
        if self.v5 is not None:
            if retain and not self.v5.limits[spec5.RETAIN_AVAILABLE]:
                raise ArgumentError("not published: the server does not retain", E_LIMIT)
            self._check_size("not published", len(frame))
        return frame

    def _publish_block(self, properties: Properties | None) -> bytes:
        block = self.block_of(properties, spec.PUBLISH)
        if properties and self.v5.is_forbidden(block):
            reason = next(why for name, why in _RESERVED.items() if name in properties)
            raise ArgumentError(f"not published: {reason}")
        return block

    def block_of(self, properties: Properties | None, packet_type: int) -> bytes:
        """Encode the properties of a packet: b"" before 5.0. Raises ArgumentError."""
        if self.v5 is not None:
            return encode(properties, 1 << packet_type)
        if properties:
            raise ArgumentError("properties need MQTT 5.0")
        return b""

    def copied(self, properties: Properties | None) -> Properties | None:
        """Return an immutable copy, in the form in which a store returns it."""
        return unblock(encode(properties, 1 << spec.PUBLISH)) if properties else None

    # -- requests --------------------------------------------------------------------------------------------------

    def ask(self, filters: Sequence[tuple[bytes, int]], block: bytes) -> tuple[int, int]:
        """Send SUBSCRIBE for filters with their options, or UNSUBSCRIBE if the options are negative.

        The packet has as many filters, from the first on, as the server accepts in one packet. Returns its packet
        identifier, E_OFFLINE or E_AGAIN; and the number of filters, which is that of the codes for ``on_answers``.
        Raises ArgumentError if the first filter cannot be sent.
        """
        packet_id = self._request_id()
        if packet_id < 0:
            return packet_id, 0
        subscribes = filters[0][1] >= 0
        parts = [packet_id.to_bytes(2, "big"), block]
        size = 2 + len(block)
        count = 0
        for pattern, options in filters:
            size += 2 + len(pattern) + subscribes
            try:
                self._check_filter_options(pattern, options, block)
                self._check_size("not sent", 1 + varint_size(size) + size)
            except ArgumentError:
                if not count:
                    raise
                break
            parts += (len(pattern).to_bytes(2, "big"), pattern, bytes((options,)) if subscribes else b"")
            count += 1
        frame = _frame((spec.SUBSCRIBE if subscribes else spec.UNSUBSCRIBE) << 4 | 2, b"".join(parts))
        assert self.frames is not None
        self.frames.append(frame)
        return self._requested(packet_id, spec.SUBACK if subscribes else spec.UNSUBACK, count), count

    def check_request(self, pattern: bytes, options: int, block: bytes) -> None:
        """Raise ArgumentError for a filter that exceeds the server's limits even in a packet of its own."""
        self._check_filter_options(pattern, options, block)
        size = 4 + len(block) + len(pattern) + (options >= 0)
        self._check_size("not sent", 1 + varint_size(size) + size)

    def _check_size(self, what: str, size: int) -> None:
        largest = min(MAX_PACKET, self.most)
        if size > largest:
            raise ArgumentError(
                f"{what}: the packet has {size} bytes, and the server takes no more than {largest}",
                E_TOO_LARGE,
            )

    def _check_filter_options(self, pattern: bytes, options: int, block: bytes) -> None:
        if self.v5 is None:
            return
        if self._check_filter(pattern, 0, len(pattern)):
            raise ArgumentError(f"not sent: {pattern.decode()!r} is no filter", E_FILTER)
        bad = self.v5.check_subscription(pattern, options, block) if options >= 0 else 0
        if bad == E_LIMIT:
            raise ArgumentError(f"not sent: {self._missing(pattern, block)}", bad)
        if bad:
            raise ArgumentError("not sent: these options are not for this subscription", bad)

    def _missing(self, pattern: bytes, block: bytes) -> str:
        """Explain what this subscription needs and the server does not have."""
        limits = self.v5.limits
        if pattern.startswith(b"$share/") and not limits[spec5.SHARED_SUBSCRIPTION_AVAILABLE]:
            return "the server has no shared subscriptions"
        if len(block) > 1 and not limits[spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE]:
            return "the server has no subscription identifiers"
        return "the server has no wildcard subscriptions"

    def _tell_answer(self, p: Packet, count: int) -> None:
        if self.on_answers is None:
            super()._tell_answer(p, count)
        else:
            self.on_answers(p.packet_id, bytes(p.buf[p.payload_at : p.payload_at + count]), self.why())

    # -- the connection --------------------------------------------------------------------------------------------

    def probe(self) -> bytes:
        """Encode a PINGREQ."""
        return _PINGREQ

    def leave(self, properties: Properties | None = None) -> int:
        """Send DISCONNECT, without properties that are too large.

        Raises ArgumentError for properties that are not allowed, after sending DISCONNECT without them.
        """
        try:
            block = self.block_of(properties, spec.DISCONNECT)
            status = self.disconnect(0, block)
            if status == E_ARGUMENT:
                raise ArgumentError(
                    "a session that ends with its connection cannot be given an expiry interval"
                )
        except ArgumentError:
            self.disconnect()
            raise
        return self.disconnect() if status == E_TOO_LARGE else status

    def said(self) -> dict[str, Any]:
        """Return the properties of the packet that arrived last (MQTT 5.0)."""
        p = self.packet
        return decode(p.buf, p.props_at, p.props_end) if isinstance(p, Packet5) else {}

    def why(self) -> str:
        """Return the server's explanation of ``return_code`` (MQTT 5.0)."""
        return str(self.said().get("reason_string", ""))

    def elsewhere(self) -> str:
        """Return the server that this one says to use instead (MQTT 5.0)."""
        return str(self.said().get("server_reference", ""))


def _frame(head: int, body: bytes) -> bytes:
    front = bytearray(_LONGEST_HEADER)
    front[0] = head
    return bytes(front[: put_varint(front, 1, len(body))]) + body


class HostServerSession(ServerSession):
    """A server's end of a connection on a computer, for messages up to ``max_packet`` bytes."""

    #: Set by ``Connection``.
    frames: Chunks | None = None

    def __init__(self, *, max_packet: int = MAX_PACKET, response_ms: int = 10000, version: Any = None):
        super().__init__(
            tx_size=_TX,
            receive_window=_ALL_IDS,
            response_ms=response_ms,
            check=check_name,
            rx=GrowingRxBuf(_RX, max_packet),
            version=version,
        )
        self.take_packets = FastPath().take_packets
        self._ids = _OpenIds("H")
        self.open_ids = self._ids
        self.acks: ManualAck = ManualAck(self, automatic=True)

    def find_qos2(self, packet_id: int) -> int:
        """Return the place of a QoS 2 identifier; of 0, a free place."""
        return self._ids.find(packet_id)

    def acknowledge(self, packet_id: int, qos: int, epoch: int) -> int:
        """Acknowledge a message: as ``ManualAck.acknowledge``."""
        return self.acks.acknowledge(packet_id, qos, epoch)


def frame_start(packet: Packet) -> int:
    """Return where the PUBLISH in ``packet`` begins: the whole packet is ``buf[frame_start(packet):packet.end]``.

    The topic is two bytes after the fixed header. Its length bytes, except the last, have bit 7 set, which the first
    byte of PUBLISH has not.
    """
    buf = packet.buf
    at = packet.topic_at - 4
    while buf[at] & 128:
        at -= 1
    return at
