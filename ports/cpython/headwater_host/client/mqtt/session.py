"""The core's sessions with a computer's room.

The state machine, the encoders and the decoders are the core's. The receive buffer and the outbox grow, and as many
QoS 2 messages may be open as there are packet ids.
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
from headwater.mqtt.streaming import StreamedMessage, stream_to
from headwater.mqtt.v5 import ClientV5
from headwater.mqtt.v31 import V31
from headwater.reasons import REASONS
from headwater.types import Sink
from headwater.wire import put_varint, varint_size
from headwater_host.client.mqtt.aliases import HostAliases, Numbers
from headwater_host.client.mqtt.fast import FastEndpoint
from headwater_host.client.mqtt.messages import publish_frame
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.rxbuf import MAX_PACKET, GrowingRxBuf
from headwater_host.errors import ArgumentError
from headwater_host.mqtt_properties import Properties, decode, encode, unblock
from headwater_host.topics import check_name

if TYPE_CHECKING:
    _Array = array[int]
else:
    _Array = array

_ALL_IDS = 65535
_PINGREQ = bytes((spec.PINGREQ << 4, 0))
_RX = 1 << 16
_TX = 1 << 16
_LONGEST_HEADER = 5
# What a packet id adds to a PUBLISH.
_ID = 2


def _puback_ends_qos_2() -> bytes:
    table = bytearray(DELIVERY)
    table[AT2 * 4 + spec.PUBACK - 4] = DONE
    return bytes(table)


#: ``session.DELIVERY`` for servers that know no QoS 2 and answer its messages with PUBACK (RabbitMQ): they arrive
#: as at QoS 1, at least once. It is the server's error (4.3.3), which by the standard is the end of the connection
#: (3.1.1, 4.8; 5.0, 4.13): so this is for who asks for it.
PUBACK_ENDS_QOS_2 = _puback_ends_qos_2()


class _OpenIds(_Array):
    """The open QoS 2 packet ids, by place, as the endpoint keeps them (0 = free place); found without a search."""

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
            # The endpoint asked for a free place before: mostly it is the last one.
            if self._free[-1] == i:
                self._free.pop()
            else:
                self._free.remove(i)

    def find(self, packet_id: int) -> int:
        """The place of an id; of 0: a free place, of which there always is one, since no id is open twice."""
        if packet_id:
            return self._place.get(packet_id, -1)
        if not self._free:
            self._free.append(len(self))
            self.append(0)
        return self._free[-1]


class HostClient(FastEndpoint, ClientSession):
    """A client's session on a computer; ``version`` says of which version.

    ``max_packet`` is the largest packet that is received whole; larger messages go to ``sink`` or are skipped.
    ``puback_ends_qos_2``: see ``PUBACK_ENDS_QOS_2``.
    ``slots`` messages of ours may be unacknowledged or waiting, ``window`` of them sent. ``room`` is what CONNECT takes
    beside the strings that are named here: the will. ``outbox`` is one that outlives the process
    (``headwater_host.client.store``). ``extra`` bytes are behind the receive buffer.
    """

    GREETING = "CONNECT"
    REASONS = REASONS

    def __init__(
        self,
        client_id: bytes = b"",
        *,
        keep_alive: int = 60,
        clean_start: bool = True,
        user: bytes | None = None,
        password: bytes | None = None,
        max_packet: int = MAX_PACKET,
        slots: int = 1024,
        window: int = 20,
        response_ms: int = 10000,
        room: int = 0,
        outbox: GrowingOutbox | None = None,
        puback_ends_qos_2: bool = False,
        extra: int = 0,
        version: "ClientV5 | V31 | None" = None,
    ):
        #: Instead of ``on_answer``: called with a request's packet id, the codes of its filters (none with UNSUBACK
        #: before 5.0), and the server's reason string.
        self.on_answers: Callable[[int, bytes, str], object] | None = None
        super().__init__(
            client_id,
            keep_alive,
            clean_start,
            user,
            password,
            tx_size=_TX + room + len(client_id) + len(user or b"") + len(password or b""),
            window=window,
            receive_window=_ALL_IDS,
            response_ms=response_ms,
            check=check_name,
            rx=GrowingRxBuf(_RX, max_packet, extra),
            outbox=outbox or GrowingOutbox(_TX, slots),
            version=version,
        )
        if puback_ends_qos_2:
            self.delivery = PUBACK_ENDS_QOS_2
            # Such a server holds no ids that would have to be released first, and does not know PUBREL.
            self.outbox.fresh = False
        self._ids = _OpenIds("H")
        for packet_id in self.open_ids:
            if not packet_id:
                # The core has put those of an earlier life at the beginning.
                break
            self._ids[self._ids.find(0)] = packet_id
        self.open_ids = self._ids
        ManualAck(self, automatic=True)

    @property
    def sink(self) -> "Sink[Packet] | None":
        """The sink of messages larger than the receive buffer."""
        return self.large.sink if isinstance(self.large, StreamedMessage) else None

    @sink.setter
    def sink(self, sink: "Sink[Packet] | None") -> None:
        stream_to(self, sink)

    def block_now(self) -> Any:
        """The property block of the message that was published last; empty before 5.0."""
        return b"" if self.v5 is None else self.v5.block

    def offer(
        self,
        topic: bytes,
        payload: "bytes | bytearray | memoryview",
        qos: int,
        retain: bool,
        properties: Properties | None = None,
    ) -> int:
        """Hand in a message at QoS 1 or 2: as of ``publish``, but what the outbox could hold, were it empty, is
        E_WINDOW and not E_TOO_LARGE."""
        status = self._publish(topic, payload, qos, retain, properties)
        if status == E_TOO_LARGE and qos:
            box = self.outbox
            largest = box.limit if isinstance(box, GrowingOutbox) else len(box.buf)
            if box.count and 0 < publish_size(topic, payload, qos, self.block_now()) <= min(
                largest, self.most
            ):
                return E_WINDOW
        return status

    def _publish(
        self,
        topic: bytes,
        payload: "bytes | bytearray | memoryview",
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> int:
        _need_5(properties)
        return self.publish(topic, payload, qos, retain)

    def frame_of(
        self,
        topic: bytes,
        payload: "bytes | bytearray | memoryview",
        retain: bool,
        properties: Properties | None = None,
    ) -> bytes:
        """The packet of a message at QoS 0. Raises ArgumentError."""
        _need_5(properties)
        return publish_frame(topic, payload, retain)

    #: The same for one that goes out over the connection that there is now.
    frame_now = frame_of

    def block_of(self, properties: Properties | None, packet_type: int) -> bytes:
        """The properties of a packet as ``ask`` takes them. Raises ArgumentError."""
        _need_5(properties)
        return b""

    def ask(self, filters: Sequence[tuple[bytes, int]], block: bytes) -> tuple[int, int]:
        """SUBSCRIBE to filters with an option each, from the first on as many as the server takes in one packet;
        UNSUBSCRIBE where the options are negative.

        A packet id, E_OFFLINE or E_AGAIN; and how many filters were sent: as many codes ``on_answers`` will get. Raises
        ArgumentError when the first of them cannot be sent; a server's limit is named.
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
                self._check_request(pattern, options, block)
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
        """Raise ArgumentError for a filter that the server's limits refuse, even in a packet of its own."""
        self._check_request(pattern, options, block)
        size = 4 + len(block) + len(pattern) + (options >= 0)
        self._check_size("not sent", 1 + varint_size(size) + size)

    def _largest_packet(self) -> int:
        """How large a packet the server takes."""
        return MAX_PACKET

    def _check_size(self, what: str, size: int) -> None:
        if size > self._largest_packet():
            raise ArgumentError(
                f"{what}: the packet has {size} bytes, and the server takes no more than {self._largest_packet()}",
                E_TOO_LARGE,
            )

    def _check_request(self, pattern: bytes, options: int, block: bytes) -> None:
        """Raises ArgumentError."""

    def _tell_answer(self, p: Packet, count: int) -> None:
        if self.on_answers is None:
            super()._tell_answer(p, count)
        else:
            self.on_answers(p.packet_id, bytes(p.buf[p.payload_at : p.payload_at + count]), self.why())

    def copied(self, properties: Properties | None) -> Properties | None:
        """Properties that nobody else can change, in the form that a store gives back."""
        return unblock(encode(properties, 1 << spec.PUBLISH)) if properties else None

    def leave(self, properties: Properties | None = None) -> int:
        """As of ``disconnect``, with properties. Raises ArgumentError, and says DISCONNECT without them."""
        status = self.disconnect()
        _need_5(properties)
        return status

    def said(self) -> dict[str, Any]:
        """The properties of the packet that arrived last."""
        return {}

    def why(self) -> str:
        """What the server says of ``return_code`` (MQTT 5.0)."""
        return str(self.said().get("reason_string", ""))

    def elsewhere(self) -> str:
        """The server that the server names instead of itself (MQTT 5.0)."""
        return str(self.said().get("server_reference", ""))

    def probe(self) -> bytes:
        """PINGREQ."""
        return _PINGREQ

    def find_qos2(self, packet_id: int) -> int:
        """The place of a QoS 2 identifier; of 0, a free place."""
        return self._ids.find(packet_id)


class HostClientSession(HostClient):
    """A client's session at MQTT 3.1.1; the keywords are those of ``HostClient``."""


class HostClientSession31(HostClient):
    """A client's session at MQTT 3.1."""

    def __init__(self, client_id: bytes = b"", **options: Any):
        super().__init__(client_id, version=V31(), **options)


class HostClientSession5(HostClient):
    """A client's session at MQTT 5.0, with the keywords of ``HostClient`` and ``v5.ClientV5``.

    The server may use ``topic_aliases`` topic aliases; ``topic_numbers`` of our topics get one at QoS 0, if the server
    accepts them. ``announce`` is the Maximum Packet Size.
    """

    def __init__(
        self,
        client_id: bytes = b"",
        *,
        topic_aliases: int = 0,
        topic_numbers: int = 0,
        announce: int = 0,
        session_expiry: int = -1,
        properties_size: int = 64,
        receive_maximum: int = 0,
        **options: Any,
    ):
        self._numbers = Numbers(topic_numbers) if topic_numbers else None
        aliases = HostAliases(topic_aliases) if topic_aliases else None
        version = ClientV5(session_expiry, announce, aliases, self._numbers, properties_size, receive_maximum)
        super().__init__(client_id, version=version, extra=version.room, **options)

    def _publish(
        self,
        topic: bytes,
        payload: "bytes | bytearray | memoryview",
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> int:
        block = self._publish_block(properties)
        status = self.publish(topic, payload, qos, retain, block)
        if status == E_TOO_LARGE:
            size = len(publish_frame(topic, payload, retain, block)) + (_ID if qos else 0)
            self._check_size("not published", size)
        return status

    def frame_of(
        self,
        topic: bytes,
        payload: "bytes | bytearray | memoryview",
        retain: bool,
        properties: Properties | None = None,
    ) -> bytes:
        """As of ``HostClient``; also for what is beyond the server's limits."""
        return self._frame(topic, payload, retain, self._publish_block(properties))

    def frame_now(
        self,
        topic: bytes,
        payload: "bytes | bytearray | memoryview",
        retain: bool,
        properties: Properties | None = None,
    ) -> bytes:
        """As of ``HostClient``, with the topic's number where it has one."""
        numbers = self._numbers
        block = self._publish_block(properties)
        if numbers is not None and numbers.choose(topic, block):
            try:
                frame = self._frame(bytes(numbers.topic), payload, retain, bytes(numbers.block))
            except ArgumentError:
                # With the number it may be too large, and without it not.
                return self._frame(topic, payload, retain, block)
            numbers.sent(topic)
            return frame
        return self._frame(topic, payload, retain, block)

    def _publish_block(self, properties: Properties | None) -> bytes:
        block = encode(properties, 1 << spec.PUBLISH)
        if properties and self.v5.is_forbidden(block):
            for name, why in _NOT_OURS.items():
                if name in properties:
                    raise ArgumentError(f"not published: {why}")
            raise ArgumentError("not published: these properties are not for a client to send")
        return block

    def _frame(
        self, topic: bytes, payload: "bytes | bytearray | memoryview", retain: bool, block: bytes
    ) -> bytes:
        frame = publish_frame(topic, payload, retain, block)
        if retain and not self.v5.limits[spec5.RETAIN_AVAILABLE]:
            raise ArgumentError("not published: the server does not retain", E_LIMIT)
        self._check_size("not published", len(frame))
        return frame

    def block_of(self, properties: Properties | None, packet_type: int) -> bytes:
        """As of ``HostClient``."""
        return encode(properties, 1 << packet_type)

    def _largest_packet(self) -> int:
        return min(MAX_PACKET, self.most)

    def _check_request(self, pattern: bytes, options: int, block: bytes) -> None:
        if self._check_filter(pattern, 0, len(pattern)):
            raise ArgumentError(f"not sent: {pattern.decode()!r} is no filter", E_FILTER)
        bad = self.v5.check_subscription(pattern, options, block) if options >= 0 else 0
        if bad == E_LIMIT:
            raise ArgumentError(f"not sent: {self._missing(pattern, block)}", bad)
        if bad:
            raise ArgumentError("not sent: these options are not for this subscription", bad)

    def _missing(self, pattern: bytes, block: bytes) -> str:
        """What the server does not have that this subscription needs."""
        if pattern.startswith(b"$share/") and not self.v5.limits[spec5.SHARED_SUBSCRIPTION_AVAILABLE]:
            return "the server has no shared subscriptions"
        if len(block) > 1 and not self.v5.limits[spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE]:
            return "the server has no subscription identifiers"
        return "the server has no wildcard subscriptions"

    def leave(self, properties: Properties | None = None) -> int:
        """As of ``HostClient``."""
        try:
            status = self.disconnect(0, encode(properties, 1 << spec.DISCONNECT))
            if status == E_ARGUMENT:
                raise ArgumentError(
                    "a session that ends with its connection cannot be given an expiry interval"
                )
        except ArgumentError:
            self.disconnect()
            raise
        return self.disconnect() if status == E_TOO_LARGE else status

    def said(self) -> dict[str, Any]:
        """As of ``HostClient``."""
        p: Packet5 = self.packet  # type: ignore[assignment]  # at 5.0
        return decode(p.buf, p.props_at, p.props_end)


def _frame(head: int, body: bytes) -> bytes:
    front = bytearray(_LONGEST_HEADER)
    front[0] = head
    return bytes(front[: put_varint(front, 1, len(body))]) + body


# Properties of PUBLISH that a program cannot give, and why not.
_NOT_OURS = {
    "topic_alias": "a topic_alias holds for one connection, so the client chooses it: Client(outgoing_topic_aliases=N)",
    "subscription_identifier": "a client sends no subscription_identifier, it only receives them (MQTT 5.0, 3.3.4-6)",
}


def _need_5(properties: Properties | None) -> None:
    if properties:
        raise ArgumentError("properties need MQTT 5.0")


class HostServerSession(FastEndpoint, ServerSession):
    """A server's end of a connection on a computer, for messages up to ``max_packet`` bytes."""

    def __init__(self, *, max_packet: int = MAX_PACKET, response_ms: int = 10000):
        super().__init__(
            tx_size=_TX,
            receive_window=_ALL_IDS,
            response_ms=response_ms,
            check=check_name,
            rx=GrowingRxBuf(_RX, max_packet),
        )
        self._ids = _OpenIds("H")
        self.open_ids = self._ids
        ManualAck(self, automatic=True)

    def find_qos2(self, packet_id: int) -> int:
        """The place of a QoS 2 identifier; of 0, a free place."""
        return self._ids.find(packet_id)


def frame_start(packet: Packet) -> int:
    """Where the PUBLISH that ``packet`` shows begins: the whole packet is ``buf[frame_start(packet):packet.end]``.

    The topic stands two bytes behind the fixed header, whose length bytes but the last have bit 7 set, as PUBLISH's
    first byte has not: so the way back is unambiguous, even when the length is written with more bytes than it needs.
    """
    buf = packet.buf
    at = packet.topic_at - 4
    while buf[at] & 128:
        at -= 1
    return at
