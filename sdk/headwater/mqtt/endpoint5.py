"""What both ends of an MQTT 5.0 connection have beyond ``endpoint``: limits, reason codes, properties, topic aliases.

``Endpoint5`` stands before ``session.ClientSession`` or ``server.ServerSession`` among the bases of a class.
MicroPython looks through bases one behind the other, to the end of each: so it has no base itself, and calls what it
overrides by name.
"""

from headwater import errors
from headwater.connection import AT1, AT2, CLOSING, DONE, FINISH, ONLINE, RxBuf
from headwater.mqtt import spec5
from headwater.mqtt.large5 import behind_properties
from headwater.mqtt.packets import decode_ack, decode_publish
from headwater.mqtt.properties import (
    Packet5,
    Properties,
    block_has,
    block_start,
    code_of,
    encode_reason,
    has,
    number,
    skip,
)
from headwater.mqtt.session import LATER, NO_TOPIC, Session, is_bad, was_sent
from headwater.wire import NOT_BYTES, const, get_u16, put_varint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
    from headwater.types import Bytes

    _Base = Session
else:
    _Base = object

_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_DISCONNECT = const(14)
# An acknowledgement with a reason code.
_LONG_ACK = const(5)
_ERROR = const(0x80)
# As in ``endpoint``.
_ANSWERED = const(2)
# The longest packet that ``sender.rewrite`` makes.
_SHORT = const(129)
# Four-byte integers are read as at most this, which no board has to allocate; as seconds it is 34 years.
_MOST = const(0x3FFFFFFF)
_MOST_BYTE = const(0x40)

# By QoS and RETAIN as they stand in PUBLISH's first byte, a bit each: all there are; those without RETAIN.
_ALL_FLAGS = const(0x3F)
_NOT_RETAINED = const(0x15)

#: What the other end may say of itself in CONNECT or CONNACK, and what holds if it does not (3.1.2.11, 3.2.2.3). -1:
#: it said nothing.
LIMITS = {
    spec5.SESSION_EXPIRY_INTERVAL: -1,
    spec5.SERVER_KEEP_ALIVE: -1,
    spec5.RECEIVE_MAXIMUM: 65535,
    spec5.TOPIC_ALIAS_MAXIMUM: 0,
    spec5.MAXIMUM_QOS: 2,
    spec5.RETAIN_AVAILABLE: 1,
    spec5.MAXIMUM_PACKET_SIZE: _MOST,
    spec5.WILDCARD_SUBSCRIPTION_AVAILABLE: 1,
    spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE: 1,
    spec5.SHARED_SUBSCRIPTION_AVAILABLE: 1,
}

#: The reason code (4.13) that DISCONNECT gives the other end, by our error, from E_RX_TOO_LARGE (-24) down to E_ALIAS
#: (-57); 0 stands where there is nothing to tell it.
REASONS = (
    b"\x95\x93\x83\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"  # too large, window, store
    b"\x81\x81\x81\x81\x81\x81\x81\x90"  # length, type, flags, QoS, size, field, UTF-8, topic
    b"\x82\x82\x82\x82\x81\x81\x81\x82\x82\x94"  # id to truncated; property, again, value, alias
)


class Endpoint5(_Base):
    """One end of an MQTT 5.0 connection.

    ``limits`` is what the other end has said of itself on this connection, by property (``spec5``); without a
    connection no limit is known. ``on_refused(packet_id, code)`` is called instead of ``on_delivered`` when the other
    end has refused a message (PUBACK or PUBREC with a code from 0x80 on), and when a message that was handed in before
    its limits were known does not keep to them. ``on_reason(packet_id, code)`` is called before ``on_delivered`` when
    PUBACK or PUBREC has a reason code that is neither 0 nor a refusal: ``spec5.NO_MATCHING_SUBSCRIBERS``. In
    ``on_message`` the packet's properties are ``buf[props_at:props_end]`` (``headwater.mqtt.properties.find``).

    When the other end breaks the protocol, DISCONNECT says so: ``out`` offers it once before it answers the status.
    """

    _cursor = Packet5

    packet: Packet5

    def _setup(
        self,
        aliases_in: "IncomingAliases | None",
        aliases_out: "OutgoingAliases | None",
        receive_maximum: int = 0,
    ) -> None:
        self.aliases_in = aliases_in
        self.aliases_out = aliases_out
        if aliases_in is not None:
            aliases_in.attach(self.rx)
        self.limits = dict(LIMITS)
        # Of them, for publishing: which QoS with and without RETAIN, a bit each; and the largest packet.
        self._takes_flags = _ALL_FLAGS
        self.most = _MOST
        #: The reason code of the last CONNACK, DISCONNECT.
        self.return_code = 0
        self.on_refused: Callable[[int, int], object] | None = None
        self.on_reason: Callable[[int, int], object] | None = None
        self._block = spec5.NO_PROPERTIES
        # A reason code that is more to the point than the error's.
        self._reason = 0
        # How many messages at QoS 1 and 2 the other end may have under way.
        if not 0 <= receive_maximum <= len(self._open_ids):
            raise ValueError("a receive maximum of at most the receive window")
        self._announced = receive_maximum or len(self._open_ids)
        #: More messages at QoS 1 and 2 under way end the connection (E_RX_WINDOW). For servers that exceed the receive
        #: maximum it may be larger than that.
        self.receive_limit = self._announced
        self._max_packet = 0
        # The window that the other end's receive maximum has narrowed; 0 if it has not.
        self._own_window = 0

    def _announce(self, properties: Properties, max_packet: int) -> Properties:
        """Say in CONNECT's or CONNACK's properties what this end takes."""
        if self._announced == 0 or 0 < max_packet < self.rx.capacity:
            raise ValueError("a receive window, and a maximum of what the receive buffer holds at least")
        self._max_packet = max_packet
        bad = properties.add(spec5.RECEIVE_MAXIMUM, self._announced) if self._announced < 65535 else 0
        if max_packet:
            bad = bad or properties.add(spec5.MAXIMUM_PACKET_SIZE, max_packet)
        if self.aliases_in is not None:
            bad = bad or properties.add(spec5.TOPIC_ALIAS_MAXIMUM, self.aliases_in.count)
        if bad:
            raise ValueError("no room for what is to be announced")
        return properties

    def _take_limits(self, buf: "Bytes", at: int, end: int) -> None:
        """Begin with what the other end says of itself in the properties ``buf[at:end]``."""
        self._set_limits(buf, at, end)
        limits = self.limits
        if limits[spec5.RECEIVE_MAXIMUM] < self.window:
            self._own_window = self.window
            self.window = limits[spec5.RECEIVE_MAXIMUM]
        if self.aliases_in is not None:
            self.aliases_in.clear()
        if self.aliases_out is not None:
            self.aliases_out.reset(limits[spec5.TOPIC_ALIAS_MAXIMUM])

    def _set_limits(self, buf: "Bytes", at: int, end: int) -> None:
        """Judge what is handed in by the properties ``buf[at:end]``; without any, nothing is known of a limit."""
        limits = self.limits
        read_limits(limits, buf, at, end)
        self.most = limits[spec5.MAXIMUM_PACKET_SIZE]
        self._takes_flags = _ALL_FLAGS >> 2 * (2 - limits[spec5.MAXIMUM_QOS])
        if not limits[spec5.RETAIN_AVAILABLE]:
            self._takes_flags &= _NOT_RETAINED

    def _stop(self) -> None:
        if self._own_window:
            self.window = self._own_window
            self._own_window = 0
        # The next server may be another one.
        self._set_limits(b"", 0, 0)
        Session._stop(self)

    def fail(self, code: int) -> int:
        """End the connection for a reason, and tell it to the other end, unless a packet is half sent."""
        i = errors.E_RX_TOO_LARGE - code
        reason = self._reason or (REASONS[i] if 0 <= i < len(REASONS) else 0)
        if self.out_n and self.out_at != (0 if self.out_buf is self.tx else self.outbox.at[self._entry]):
            reason = 0
        state = self.state
        self._reason = 0
        Session.fail(self, code)
        if reason:
            self._last_word(state, reason)
        return code

    def _last_word(self, state: int, reason: int) -> None:
        """Say why the connection ends, which it did in ``state``."""
        if state == ONLINE:
            self.tx_end = encode_reason(self.tx, 0, self.tx_size, _DISCONNECT, 0, reason)

    def disconnect(self, code: int = 0, properties: "Bytes" = spec5.NO_PROPERTIES) -> int:
        """Queue DISCONNECT (3.14), with a reason code. Close the transport once ``out`` is 0.

        A reason string and user properties that make it too large are left out. E_AGAIN when the transmit buffer is
        full for now, E_TOO_LARGE, E_ARGUMENT: also a code that is none of its.
        """
        if self.state == CLOSING:
            return 0
        if self.state == ONLINE:
            if not code_of(_DISCONNECT, code):
                return errors.E_ARGUMENT
            try:
                bad = self._put_reason(_DISCONNECT, code, properties)
            except NOT_BYTES:
                bad = errors.E_ARGUMENT
            if bad:
                return bad
        self.ready = NO_TOPIC
        self.event(FINISH)
        return 0

    def resume(self, session_present: bool) -> None:
        """As of ``Session``; what waits and does not keep to the limits is given up before."""
        turn = self.turn
        # ``on_refused`` may publish: nothing leaves the outbox before it is settled what of it is left.
        self.in_flight = self.window
        box = self.outbox
        i = box.head
        for _ in range(box.count):
            code = self._unfit(i)
            if code:
                self._end_refused(i, code)
                if self.turn != turn:
                    return
            i = i + 1 if i + 1 < box.slots else 0
        Session.resume(self, session_present)

    def _unfit(self, i: int) -> int:
        """Why entry ``i`` cannot be sent to this server: a reason code; or 0."""
        box = self.outbox
        if box.state[i] != AT1 and box.state[i] != AT2:
            return 0
        if box.size[i] > self.most:
            return spec5.PACKET_TOO_LARGE
        if self._takes_flags >> (box.buf[box.at[i]] & 7) & 1:
            return 0
        over = box.state[i] > self.limits[spec5.MAXIMUM_QOS]
        return spec5.QOS_NOT_SUPPORTED if over else spec5.RETAIN_NOT_SUPPORTED

    def _end_refused(self, i: int, code: int) -> None:
        self.outbox.set(i, DONE)
        if self.on_refused is not None:
            self.on_refused(i + 1, code)

    def _put(self, end: int) -> int:
        if end - self.tx_end > self.most:
            return errors.E_TOO_LARGE
        return Session._put(self, end)

    def _put_reason(self, packet_type: int, code: int, properties: "Bytes") -> int:
        """Queue DISCONNECT or AUTH: 0, E_AGAIN or E_TOO_LARGE.

        A reason string and user properties must not make it too large (3.14.2-3 and -4, 3.15.2-2 and -3).
        """
        bad = self._put(encode_reason(self.tx, self.tx_end, self.tx_size, packet_type, 0, code, properties))
        if bad == errors.E_TOO_LARGE:
            properties = _without_texts(properties)
            bad = self._put(
                encode_reason(self.tx, self.tx_end, self.tx_size, packet_type, 0, code, properties)
            )
        return bad

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: "Bytes",
        payload: "Bytes",
        qos: int = 0,
        retain: bool = False,
        properties: "Bytes" = spec5.NO_PROPERTIES,
    ) -> int:
        """As of ``Session``, with a block of properties (``Properties.block``); that must not have a topic alias.

        Also E_LIMIT: the other end has no such QoS, or does not retain; E_TOO_LARGE is also said of what is above its
        maximum packet size.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        if properties is spec5.NO_PROPERTIES:
            return self.hand_in(topic, payload, qos << 1 | (1 if retain else 0))
        try:
            if not self._may_publish(properties):
                return errors.E_ARGUMENT
        except NOT_BYTES:
            return errors.E_ARGUMENT
        self._block = properties
        try:
            return self.hand_in(topic, payload, qos << 1 | (1 if retain else 0))
        finally:
            # The next message has none, and neither this packet's.
            self._block = spec5.NO_PROPERTIES
            self.ready = NO_TOPIC

    def _may_publish(self, block: "Bytes") -> bool:
        return len(block) > 0 and not block_has(block, spec5.TOPIC_ALIAS)

    def hand_in(self, topic: "Bytes", payload: "Bytes", flags: int) -> int:
        """As of ``Session``."""
        if not self._takes_flags >> flags & 1:
            return errors.E_LIMIT
        if flags > 1 or self.aliases_out is None:
            flags = Session.hand_in(self, topic, payload, flags)
        else:
            flags = self._hand_in_aliased(topic, payload, flags)
        if self.most < _SHORT:
            self.ready = NO_TOPIC
        return flags

    def _hand_in_aliased(self, topic: "Bytes", payload: "Bytes", flags: int) -> int:
        aliases = self.aliases_out
        if aliases is None or not aliases.choose(topic, self._block):
            return Session.hand_in(self, topic, payload, flags)
        if topic is not self.known_topic and is_bad(self, topic):
            return errors.E_TOPIC
        self._block = aliases.block
        # The topic has been checked, and what is sent in its place need not be.
        self.known_topic = aliases.topic
        flags = Session.hand_in(self, aliases.topic, payload, flags)
        self.known_topic = topic
        self._block = aliases.plain
        if flags == 0:
            aliases.sent(topic)
            if self.ready is not NO_TOPIC:
                self.ready = NO_TOPIC if aliases.new else topic
        return flags

    # -- acknowledgements of ours --------------------------------------------------------------------------------------

    def _on_ack(self, p: "Packet") -> int:
        if self.tx_size - self.tx_end < _LONG_ACK:
            return LATER
        bad = decode_ack(p)
        if bad:
            return bad
        if p.code and p.head >> 4 <= _PUBREC:
            if p.code >= _ERROR:
                return self._on_refusal(p)
            i = self.outbox.find(p.packet_id)
            if self.on_reason is not None and i >= 0 and was_sent(self, i):
                i = self.turn
                self.on_reason(p.packet_id, p.code)
                if self.turn != i:
                    return 0
        # PUBCOMP may say that the id was not known: it is free then as well (4.3.3).
        return Session._on_ack(self, p)

    def _on_refusal(self, p: "Packet") -> int:
        """PUBACK or PUBREC with an error: the message is over (4.3.2, 4.3.3)."""
        i = self.outbox.find(p.packet_id)
        if i < 0 or not was_sent(self, i):
            self.strays += 1
            return 0
        if self.outbox.state[i] != (AT1 if p.head >> 4 == _PUBACK else AT2):
            return errors.E_ACK_KIND
        self.in_flight -= 1
        self._end_refused(i, p.code)
        return 0

    def _stray(self, packet_type: int, packet_id: int) -> None:
        if packet_type != _PUBREC:
            Session._stray(self, packet_type, packet_id)
            return
        self.strays += 1
        self._put_ack(_PUBREL, packet_id, spec5.PACKET_IDENTIFIER_NOT_FOUND)

    def _put_ack(self, packet_type: int, packet_id: int, code: int) -> None:
        self.tx_end = encode_reason(self.tx, self.tx_end, self.tx_size, packet_type, packet_id, code)

    # -- what arrives --------------------------------------------------------------------------------------------------

    def feed(self, n: int) -> int:
        """As of ``Session``. E_RX_WINDOW also when more messages wait for the application to acknowledge them than the
        receive maximum that was announced (3.3.4)."""
        status = Session.feed(self, n)
        if self.unanswered and status == 0 and self.unanswered + self._opened > self.receive_limit:
            return self.fail(errors.E_RX_WINDOW)
        return status

    def _free_place(self) -> int:
        return -1 if self.unanswered + self._opened >= self.receive_limit else Session._free_place(self)

    def _read_publish(self, p: Packet5) -> int:  # type: ignore[override]  # there is no other here
        bad = decode_publish(p, p.body, p.end)
        if bad > 0:
            bad = 0
            if not has(p, spec5.TOPIC_ALIAS):
                return 0
            if self.aliases_in is None:
                return errors.E_ALIAS
            bad = self.aliases_in.resolve(p)
            if bad == errors.E_ALIAS and get_u16(p.buf, p.bad_at) <= self.aliases_in.count:
                # An alias that was offered but has no topic yet is a Protocol Error (3.3.2.3.4).
                self._reason = spec5.PROTOCOL_ERROR
        return bad

    def _payload_begins(self, i: int, end: int) -> int:
        if 0 < self._max_packet < self.packet.end - i:
            return errors.E_RX_TOO_LARGE
        at = Session._payload_begins(self, i, end)
        return behind_properties(self.packet, at, end, i + self.rx.capacity) if at > 0 else at

    def acknowledge(self, packet_id: int, qos: int, epoch: int, code: int = 0) -> int:
        """As of ``Session``, with a reason code; one from 0x80 on refuses the message, which its sender then gives up.

        A message of an earlier connection cannot be refused: E_STATE. E_ARGUMENT: a code that is none of PUBACK's and
        PUBREC's.
        """
        if code == 0:
            return Session.acknowledge(self, packet_id, qos, epoch)
        if qos != 1 and qos != 2:
            return errors.E_QOS
        if not code_of(_PUBACK, code):
            return errors.E_ARGUMENT
        if not 0 < packet_id < 65536:
            return errors.E_UNKNOWN_ID
        i = self._find_open(packet_id)
        if qos == 2 and (i < 0 or self._open_epoch[i] != epoch or self._open_state[i] == _ANSWERED):
            return errors.E_UNKNOWN_ID
        if epoch != self.epoch or self.state != ONLINE:
            return errors.E_STATE
        if self.tx_size - self.tx_end < _LONG_ACK:
            return errors.E_AGAIN
        if qos == 1:
            if self.unanswered:
                self.unanswered -= 1
        elif code >= _ERROR:
            # What comes under this id is another message (4.3.3).
            self._close_id(i)
        elif self._received is not None and self._received.opened(packet_id):
            return errors.E_STORE
        else:
            self._open_state[i] = _ANSWERED
        self._put_ack(_PUBACK if qos == 1 else _PUBREC, packet_id, code)
        return 0

    def _on_pubrel(self, p: "Packet") -> int:
        bad = decode_ack(p)
        if bad:
            return bad
        if self._find_open(p.packet_id) >= 0:
            return Session._on_pubrel(self, p)
        if self.tx_size - self.tx_end < _LONG_ACK:
            return LATER
        self.strays += 1
        self._put_ack(_PUBCOMP, p.packet_id, spec5.PACKET_IDENTIFIER_NOT_FOUND)
        return 0


def new_rx(size: int, aliases: "IncomingAliases | None") -> RxBuf:
    """A receive buffer, with room behind it for topic aliases."""
    return RxBuf(size, aliases.room if aliases is not None else 0)


def read_limits(limits: "dict[int, int]", buf: "Bytes", at: int, end: int) -> None:
    """Put what the properties ``buf[at:end]`` say into ``limits``, and the default into the others."""
    for ident in LIMITS:
        limits[ident] = LIMITS[ident]
    while at < end:
        ident = buf[at]
        if ident in limits:
            large = ident == spec5.MAXIMUM_PACKET_SIZE or ident == spec5.SESSION_EXPIRY_INTERVAL
            limits[ident] = _MOST if large and buf[at + 1] >= _MOST_BYTE else number(buf, at + 1, ident)
        at = skip(buf, at)


def _without_texts(block: "Bytes") -> bytes:
    kept = b""
    i = block_start(block)
    while i < len(block):
        at = i
        i = skip(block, i)
        if block[at] != spec5.REASON_STRING and block[at] != spec5.USER_PROPERTY:
            kept += bytes(block[at:i])
    head = bytearray(4)
    return bytes(head[: put_varint(head, 0, len(kept))]) + kept


def same_text(buf: "Bytes", at: int, other: "Bytes", to: int) -> bool:
    """Whether the same text stands at ``buf[at]`` and ``other[to]``, its length in front."""
    n = get_u16(buf, at) + 2
    if to + n > len(other):
        return False
    for i in range(n):
        if buf[at + i] != other[to + i]:
            return False
    return True
