"""MQTT 5.0, attached to a session.

    session = ClientSession(b"board-1", clean_start=False, version=ClientV5(session_expiry=3600))

``session.v5`` is this object. The session calls it where 5.0 differs from 3.1.1, and uses its packet handlers.
``server5.ServerV5`` is the part of a server.
"""

from headwater import errors
from headwater.connection import AT1, AT2, CONNECTING, DONE, ONLINE, was_sent
from headwater.mqtt import spec5
from headwater.mqtt.packets import decode_ack, decode_connack
from headwater.mqtt.properties import (
    Packet5,
    Properties,
    block_at,
    block_has,
    block_start,
    check_filter5,
    code_of,
    encode_reason,
    find,
    has,
    number,
    skip,
    unshared,
)
from headwater.mqtt.session import CLIENT_HANDLERS, CLIENT_TAKES, LATER, on_ack, on_pubrel, put_ack
from headwater.wire import NOT_BYTES, const, get_u16, put_varint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.session import ClientSession, Session
    from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
    from headwater.types import Bytes

_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_DISCONNECT = const(14)
_AUTH = const(15)
# An acknowledgement with a reason code.
_LONG_ACK = const(5)
# Reason codes from 0x80 on are errors.
_ERROR = const(0x80)
# The longest packet that ``session.rewrite`` encodes.
_SHORT = const(129)
# The longest variable byte integer.
_LONGEST = const(4)
# The upper limit for four-byte integers, above which a board would allocate; as seconds it is 34 years.
_MOST = const(0x3FFFFFFF)
_MOST_BYTE = const(0x40)
_NEVER = 0xFFFFFFFF
_TOPIC_ALIAS = const(0x23)
_SUBSCRIPTION_IDENTIFIER = const(0x0B)
# Subscription options (3.8.3.1): the reserved bits, and the undefined value of Retain Handling.
_RESERVED = const(0xC0)
_RETAIN_HANDLING = const(0x30)
_QOS = const(3)

# Masks of QoS and RETAIN as in PUBLISH's first byte: all combinations; those without RETAIN.
_ALL_FLAGS = const(0x3F)
_NOT_RETAINED = const(0x15)

#: The limits that the peer may announce in CONNECT or CONNACK, with their defaults (3.1.2.11, 3.2.2.3); -1: not
#: announced.
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

#: The reason code (4.13) of DISCONNECT for each error, from E_RX_TOO_LARGE (-24) down to E_ALIAS (-57); 0: none is
#: sent.
REASONS = (
    b"\x95\x93\x83\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"  # too large, window, store
    b"\x81\x81\x81\x81\x81\x81\x81\x90"  # length, type, flags, QoS, size, field, UTF-8, topic
    b"\x82\x82\x82\x82\x81\x81\x81\x82\x82\x94"  # id to truncated; property, again, value, alias
)


class V5:
    """The common part of MQTT 5.0 for client and server.

    ``limits`` maps each property (``spec5``) to the limit that the peer has announced on this connection; without a
    connection to the default. ``on_refused(packet_id, code)`` is called instead of ``on_delivered`` if the peer has
    refused a message (PUBACK or PUBREC with a code from 0x80 on), or if a message that was published before connecting
    exceeds the peer's limits. ``on_reason(packet_id, code)`` is called before ``on_delivered`` if PUBACK or PUBREC has
    a reason code that is neither 0 nor a refusal: ``spec5.NO_MATCHING_SUBSCRIBERS``. In ``on_message`` the packet's
    properties are ``buf[props_at:props_end]`` (``properties.find``).

    ``receive_maximum`` limits the messages at QoS 1 and 2 that the peer may have in flight; the default, and the upper
    limit, is the session's ``receive_window``. More break the connection (E_RX_WINDOW, ``receive_limit``).
    ``max_packet`` announces the largest packet that is received, at least the size of the receive buffer; without it
    larger messages are streamed. ``aliases_in`` and ``aliases_out`` are objects of ``topic_aliases``.
    """

    is_5 = True
    cursor = Packet5
    #: True if PUBLISH may have a subscription identifier: only a server sends it (3.3.4).
    _is_server = False

    def __init__(
        self,
        max_packet: int = 0,
        aliases_in: "IncomingAliases | None" = None,
        aliases_out: "OutgoingAliases | None" = None,
        receive_maximum: int = 0,
    ):
        self.max_packet = max_packet
        self.aliases_in = aliases_in
        self.aliases_out = aliases_out
        #: Bytes after the receive buffer that the topic aliases need.
        self.room = aliases_in.room if aliases_in is not None else 0
        self.limits = dict(LIMITS)
        self.on_refused: Callable[[int, int], object] | None = None
        self.on_reason: Callable[[int, int], object] | None = None
        #: Called for AUTH (4.12).
        self.on_auth: Callable[[Packet5], Any] | None = None
        #: More messages at QoS 1 and 2 in flight break the connection (E_RX_WINDOW). May be set above the Receive
        #: Maximum, for servers that exceed it.
        self.receive_limit = receive_maximum
        #: A reason code for the peer that is more specific than that of the error; 0: none.
        self.reason = 0
        #: PUBLISH's topic and property block, set by ``prepare``.
        self.topic: Bytes = b""
        self.block: Bytes = spec5.NO_PROPERTIES
        self._aliased = False
        self._is_plain = True
        self._authenticating = False
        # The accepted combinations of QoS and RETAIN, one bit each.
        self._takes_flags = _ALL_FLAGS
        # The session's window before the peer's Receive Maximum reduced it; 0 if it did not.
        self._own_window = 0

    def attach(self, session: "Session") -> None:
        """Attach to a session; its constructor calls this."""
        self.session = session
        if self.aliases_in is not None:
            self.aliases_in.attach(session.rx)
        if not 0 <= self.receive_limit <= session.receive_window:
            raise ValueError("receive_maximum %r: need 0 to receive_window" % self.receive_limit)
        self.receive_limit = self.receive_limit or session.receive_window
        session.most = _MOST

    def _announce(self, properties: Properties) -> Properties:
        """Add this end's limits to the properties of CONNECT or CONNACK. Return the properties."""
        n = self.receive_limit
        if n == 0 or 0 < self.max_packet < self.session.rx.capacity:
            raise ValueError(
                "receive_window must not be 0, and max_packet at least the size of the receive buffer"
            )
        bad = properties.add(spec5.RECEIVE_MAXIMUM, n) if n < 65535 else 0
        if self.max_packet:
            bad = bad or properties.add(spec5.MAXIMUM_PACKET_SIZE, self.max_packet)
        if self.aliases_in is not None:
            bad = bad or properties.add(spec5.TOPIC_ALIAS_MAXIMUM, self.aliases_in.count)
        if bad:
            raise ValueError("properties_size is too small for the announced limits")
        return properties

    # -- the connection ------------------------------------------------------------------------------------------------

    def _take_limits(self, buf: "Bytes", at: int, end: int) -> None:
        """Apply the limits that the peer announces in the properties ``buf[at:end]``."""
        self._set_limits(buf, at, end)
        limits = self.limits
        session = self.session
        if limits[spec5.RECEIVE_MAXIMUM] < session.window:
            self._own_window = session.window
            session.window = limits[spec5.RECEIVE_MAXIMUM]
        if self.aliases_in is not None:
            self.aliases_in.clear()
        if self.aliases_out is not None:
            self.aliases_out.reset(limits[spec5.TOPIC_ALIAS_MAXIMUM])

    def _set_limits(self, buf: "Bytes", at: int, end: int) -> None:
        limits = self.limits
        read_limits(limits, buf, at, end)
        self.session.most = limits[spec5.MAXIMUM_PACKET_SIZE]
        self._takes_flags = _ALL_FLAGS >> 2 * (2 - limits[spec5.MAXIMUM_QOS])
        if not limits[spec5.RETAIN_AVAILABLE]:
            self._takes_flags &= _NOT_RETAINED

    def stop(self) -> None:
        """Reset the limits when the connection ends: the next server may be another."""
        if self._own_window:
            self.session.window = self._own_window
            self._own_window = 0
        self._set_limits(b"", 0, 0)

    def resuming(self, session_present: bool) -> int:
        """Refuse the messages in the outbox that exceed the peer's limits.

        Return 1 if the peer has kept the session, 0 if not, or -1 if ``on_refused`` has ended the connection.
        """
        s = self.session
        epoch = s.epoch
        # ``on_refused`` may publish: block sending until all of the outbox is checked.
        s.in_flight = s.window
        box = s.outbox
        i = box.head
        for _ in range(box.count):
            code = self._unfit(i)
            if code:
                self._end_refused(i, code)
                if s.epoch != epoch:
                    return -1
            i = i + 1 if i + 1 < box.slots else 0
        return 1 if session_present else 0

    def opening(self, packet_id: int) -> None:
        """Handle a new QoS 2 identifier: used by 3.1 only."""

    def _unfit(self, i: int) -> int:
        """Return the reason code why entry ``i`` cannot be sent to this server, or 0."""
        box = self.session.outbox
        if box.state[i] != AT1 and box.state[i] != AT2:
            return 0
        if box.size[i] > self.session.most:
            return spec5.PACKET_TOO_LARGE
        if self._takes_flags >> (box.buf[box.at[i]] & 7) & 1:
            return 0
        over = box.state[i] > self.limits[spec5.MAXIMUM_QOS]
        return spec5.QOS_NOT_SUPPORTED if over else spec5.RETAIN_NOT_SUPPORTED

    def _end_refused(self, i: int, code: int) -> None:
        self.session.outbox.set(i, DONE)
        if self.on_refused is not None:
            self.on_refused(i + 1, code)

    def reason_for(self, code: int) -> int:
        """Return the reason code that is sent to the peer for the error ``code``, or 0 if none can be sent."""
        i = errors.E_RX_TOO_LARGE - code
        reason = self.reason or (REASONS[i] if 0 <= i < len(REASONS) else 0)
        self.reason = 0
        return 0 if self.session.is_half_sent() else reason

    def put_last_packet(self, state: int, reason: int) -> None:
        """Write DISCONNECT into the transmit buffer of a connection that was broken in ``state``."""
        s = self.session
        if state == ONLINE:
            s.tx_end = encode_reason(s.tx, 0, s.tx_size, _DISCONNECT, 0, reason)

    def put_disconnect(self, code: int, properties: "Bytes") -> int:
        """Queue DISCONNECT (see ``Session.disconnect``). Return 0 or an error."""
        if self.session.state != ONLINE:
            return 0
        if not code_of(_DISCONNECT, code):
            return errors.E_ARGUMENT
        try:
            return self._put_reason(_DISCONNECT, code, properties)
        except NOT_BYTES:
            return errors.E_ARGUMENT

    def _put_reason(self, packet_type: int, code: int, properties: "Bytes") -> int:
        """Queue DISCONNECT or AUTH. Return 0, E_AGAIN or E_TOO_LARGE.

        A reason string and user properties are left out if they make it too large (3.14.2-3 and -4, 3.15.2-2 and -3).
        """
        s = self.session
        bad = s.queue_packet(encode_reason(s.tx, s.tx_end, s.tx_size, packet_type, 0, code, properties))
        if bad == errors.E_TOO_LARGE:
            properties = _without_texts(properties)
            bad = s.queue_packet(encode_reason(s.tx, s.tx_end, s.tx_size, packet_type, 0, code, properties))
        return bad

    # -- publishing ----------------------------------------------------------------------------------------------------

    def prepare(self, topic: "Bytes", flags: int, properties: "Bytes") -> int:
        """Check a message against the peer's limits, and set ``topic`` and ``block``. Return 0, E_ARGUMENT or E_LIMIT.

        The block must not have a topic alias, which is chosen here. Raises TypeError and the like if an argument is not
        bytes-like.
        """
        self.topic = topic
        self.block = spec5.NO_PROPERTIES
        self._is_plain = len(properties) == 0 or properties is spec5.NO_PROPERTIES
        if not self._is_plain:
            self.block = properties
            if self.is_forbidden(properties):
                return errors.E_ARGUMENT
        if not self._takes_flags >> flags & 1:
            return errors.E_LIMIT
        aliases = self.aliases_out
        self._aliased = flags < 2 and aliases is not None and aliases.choose(topic, self.block)
        if self._aliased and aliases is not None:
            self.topic = aliases.topic
            self.block = aliases.block
        return 0

    def is_forbidden(self, block: "Bytes") -> bool:
        """Return whether a property block has a property that the application must not set in PUBLISH."""
        i = block_start(block)
        while i < len(block):
            if block[i] == _TOPIC_ALIAS or (block[i] == _SUBSCRIPTION_IDENTIFIER and not self._is_server):
                return True
            i = skip(block, i)
        return False

    def sent(self, topic: "Bytes") -> bool:
        """Record that the prepared message, at QoS 0, is in the transmit buffer.

        Return whether the next message with this topic is the same packet with another payload.
        """
        is_same = self._is_plain and self.session.most >= _SHORT
        if self._aliased and self.aliases_out is not None:
            self.aliases_out.sent(topic)
            return is_same and not self.aliases_out.new
        return is_same

    # -- what arrives --------------------------------------------------------------------------------------------------

    def exceeds_receive_limit(self) -> bool:
        """Return whether more messages are unacknowledged than the announced Receive Maximum (3.3.4)."""
        return self.session.unanswered + self.session.qos2_opened > self.receive_limit

    def is_full(self) -> bool:
        """Return whether no other message at QoS 1 or 2 may arrive."""
        return self.session.unanswered + self.session.qos2_opened >= self.receive_limit

    def read_publish(self, p: Packet5, special: int) -> int:
        """Process the properties of a decoded PUBLISH; ``special`` is the result of ``decode_publish``. Return 0 or an
        error."""
        if not special or not has(p, spec5.TOPIC_ALIAS):
            return 0
        if self.aliases_in is None:
            return errors.E_ALIAS
        bad = self.aliases_in.resolve(p)
        if bad == errors.E_ALIAS and get_u16(p.buf, p.bad_at) <= self.aliases_in.count:
            # An alias that was offered but has no topic yet is a Protocol Error (3.3.2.3.4).
            self.reason = spec5.PROTOCOL_ERROR
        return bad

    def payload_begins(self, at: int, end: int, fits: int) -> int:
        """Return the offset of the payload of the large PUBLISH whose properties are at ``at``.

        Returns 0 if their length has not fully arrived; E_FIELD, E_LENGTH. If the length may end after the offset
        ``fits``, the result is any offset after ``fits``.
        """
        p = self.session.packet
        p.bad_at = p.body
        if at >= p.end:
            return errors.E_FIELD
        if at + _LONGEST > fits:
            return at + _LONGEST
        size = shift = 0
        i = at
        while shift < 7 * _LONGEST:
            if i == p.end:
                p.bad_at = at
                return errors.E_FIELD
            if i >= end:
                return 0
            size |= (p.buf[i] & 127) << shift
            i += 1
            if p.buf[i - 1] < 128:
                return i + size if i + size <= p.end else errors.E_FIELD
            shift += 7
        p.bad_at = at
        return errors.E_LENGTH

    def put_reason(self, packet_type: int, packet_id: int, code: int) -> None:
        """Write an acknowledgement with a reason code. The transmit buffer must have room for it."""
        s = self.session
        s.tx_end = encode_reason(s.tx, s.tx_end, s.tx_size, packet_type, packet_id, code)

    def is_ack_code(self, code: int) -> bool:
        """Return whether PUBACK and PUBREC may have this reason code."""
        return code_of(_PUBACK, code)


class ClientV5(V5):
    """The client's part of MQTT 5.0; ``V5`` describes the common part.

    ``session_expiry`` is the number of seconds for which the server keeps the session after the connection has ended
    (3.1.2.11.2). The default is as in 3.1.1: for ever, or 0 with ``clean_start``. ``connect_properties`` holds
    ``properties_size`` bytes; a program adds further properties of CONNECT to it.

    With E_REFUSED or E_DISCONNECTED, ``session.return_code`` is the reason code of the server's CONNACK or DISCONNECT,
    and ``session.packet`` still has its properties. ``session.on_answer(packet_id, code)`` is called with the reason
    codes of SUBACK and UNSUBACK. The server's limits apply to its connection only: keep-alive and window are restored
    afterwards. If ``session.client_id`` was empty, the Assigned Client Identifier replaces it.

    ``on_auth(packet)`` is called for each AUTH (4.12). It returns the property block to continue with, or None to give
    up (E_AUTH); the return value is ignored on success. AUTHENTICATION_METHOD in ``connect_properties`` requests it; a
    block with another method is E_ARGUMENT.
    """

    session: "ClientSession"

    def __init__(
        self,
        session_expiry: int = -1,
        max_packet: int = 0,
        aliases_in: "IncomingAliases | None" = None,
        aliases_out: "OutgoingAliases | None" = None,
        properties_size: int = 64,
        receive_maximum: int = 0,
    ):
        super().__init__(max_packet, aliases_in, aliases_out, receive_maximum)
        self._session_expiry = session_expiry
        self.connect_properties = Properties(properties_size, 1 << 1)
        self._own_keep_alive = -1

    def attach(self, session: "ClientSession") -> None:  # type: ignore[override]  # clients only
        """Attach to a client's session; its constructor calls this."""
        super().attach(session)
        self._announce(self.connect_properties)
        expiry = self._session_expiry
        if expiry < 0:
            expiry = 0 if session.clean_start else _NEVER
        if expiry and self.connect_properties.add(spec5.SESSION_EXPIRY_INTERVAL, expiry):
            raise ValueError("session_expiry %r: need 0 to 2**32 - 1 seconds" % expiry)
        session.use_version(spec5.PROTOCOL, check_filter5, _TAKES, _HANDLERS, spec5.NO_PROPERTIES)

    def connecting(self) -> int:
        """Check the limits in ``connect_properties``. Return 0 or E_ARGUMENT.

        E_ARGUMENT means a limit that must be an argument of this object instead, because it would not be observed.
        """
        block = self.connect_properties.block
        if (self.max_packet == 0 and block_has(block, spec5.MAXIMUM_PACKET_SIZE)) or (
            self.aliases_in is None and block_has(block, spec5.TOPIC_ALIAS_MAXIMUM)
        ):
            return errors.E_ARGUMENT
        self._authenticating = False
        return 0

    def stop(self) -> None:
        """Restore the session's own keep-alive and window."""
        if self._own_keep_alive >= 0:
            self.session.keep_alive = self._own_keep_alive
            self._own_keep_alive = -1
        super().stop()

    def check_subscription(self, topic_filter: "Bytes", qos: int, properties: "Bytes") -> int:
        """Check a subscription's options against the server's limits. Return 0, E_QOS, E_ARGUMENT or E_LIMIT."""
        try:
            if qos & _QOS == _QOS:
                return errors.E_QOS
            if qos < 0 or qos & _RESERVED or qos & _RETAIN_HANDLING == _RETAIN_HANDLING or qos > 255:
                return errors.E_ARGUMENT
            shared = unshared(topic_filter, 0, len(topic_filter)) > 0
            if shared and qos & spec5.NO_LOCAL:
                return errors.E_ARGUMENT
            if self.session.state == ONLINE and not self._offered(topic_filter, shared, properties):
                return errors.E_LIMIT
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return 0

    def _offered(self, topic_filter: "Bytes", shared: bool, properties: "Bytes") -> bool:
        limits = self.limits
        if shared and not limits[spec5.SHARED_SUBSCRIPTION_AVAILABLE]:
            return False
        if not limits[spec5.WILDCARD_SUBSCRIPTION_AVAILABLE]:
            for c in topic_filter:
                if c in b"+#":
                    return False
        if limits[spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE]:
            return True
        return not block_has(properties, spec5.SUBSCRIPTION_IDENTIFIER)

    def put_disconnect(self, code: int, properties: "Bytes") -> int:
        """Queue DISCONNECT (see ``Session.disconnect``). Return 0 or an error."""
        try:
            if block_has(properties, spec5.SESSION_EXPIRY_INTERVAL) and not block_has(
                self.connect_properties.block, spec5.SESSION_EXPIRY_INTERVAL
            ):
                return errors.E_ARGUMENT
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return super().put_disconnect(code, properties)

    def authenticate(self, properties: "Bytes") -> int:
        """Start re-authentication (4.12.1), with the method of CONNECT in the block. Return 0 or an error.

        Errors: E_OFFLINE; E_STATE if it is in progress or there is no ``on_auth``; E_AGAIN, E_TOO_LARGE, E_ARGUMENT.
        """
        if self.session.state != ONLINE:
            return errors.E_OFFLINE
        if self._authenticating or self.on_auth is None:
            return errors.E_STATE
        try:
            bad = self._put_auth(spec5.RE_AUTHENTICATE, properties)
        except NOT_BYTES:
            return errors.E_ARGUMENT
        if bad == 0:
            self._authenticating = True
        return bad

    def _put_auth(self, code: int, properties: "Bytes") -> int:
        at = block_at(properties, spec5.AUTHENTICATION_METHOD)
        if at < 0 or not self._is_our_method(properties, at):
            return errors.E_ARGUMENT
        return self._put_reason(_AUTH, code, properties)

    def _is_our_method(self, buf: "Bytes", at: int) -> bool:
        """Return whether the method at ``at`` is that of CONNECT (4.12.0-5, 4.12.1-1)."""
        block = self.connect_properties.block
        ours = block_at(block, spec5.AUTHENTICATION_METHOD)
        return ours >= 0 and same_text(buf, at, block, ours)

    def accept_limits(self, p: Packet5) -> None:
        """Apply the limits and the client identifier of an accepting CONNACK."""
        s = self.session
        self._take_limits(p.buf, p.props_at, p.props_end)
        keep_alive = self.limits[spec5.SERVER_KEEP_ALIVE]
        if keep_alive >= 0:
            self._own_keep_alive = s.keep_alive
            s.keep_alive = keep_alive
        at = find(p.buf, p.props_at, p.props_end, spec5.ASSIGNED_CLIENT_IDENTIFIER)
        if at >= 0 and not len(s.client_id):
            s.client_id = bytes(p.buf[at + 2 : at + 2 + get_u16(p.buf, at)])

    def continue_auth(self, p: Packet5) -> int:
        """Continue an authentication after AUTH. Return 0, an error, or LATER."""
        s = self.session
        if self.on_auth is None or p.code == spec5.RE_AUTHENTICATE:
            return errors.E_UNEXPECTED
        at = find(p.buf, p.props_at, p.props_end, spec5.AUTHENTICATION_METHOD)
        if at >= 0 and not self._is_our_method(p.buf, at):
            return errors.E_UNEXPECTED
        if not self._authenticating and (s.state != CONNECTING or p.code == 0):
            return errors.E_UNEXPECTED
        if s.tx_end or s.out_n:
            # The answer may need all of the transmit buffer.
            return LATER
        done = p.code == 0
        if done:
            self._authenticating = False
        epoch = s.epoch
        block = self.on_auth(p)
        if done or s.epoch != epoch:
            return 0
        if block is None:
            self.reason = spec5.BAD_AUTHENTICATION_METHOD
            return errors.E_AUTH
        return self._put_auth(spec5.CONTINUE_AUTHENTICATION, block)


# -- handlers of packets -----------------------------------------------------------------------------------------------


def on_ack5(s: "Session", p: "Packet") -> int:
    """Handle PUBACK, PUBREC or PUBCOMP with a reason code."""
    if s.tx_size - s.tx_end < _LONG_ACK:
        return LATER
    bad = decode_ack(p)
    if bad:
        return bad
    if p.code and p.head >> 4 <= _PUBREC:
        v5: V5 = s.v5
        i = s.outbox.find(p.packet_id)
        if p.code >= _ERROR:
            # The message is completed (4.3.2, 4.3.3).
            if i < 0 or not was_sent(s, i):
                s.strays += 1
                return 0
            if s.outbox.state[i] != (AT1 if p.head >> 4 == _PUBACK else AT2):
                return errors.E_ACK_KIND
            s.in_flight -= 1
            v5._end_refused(i, p.code)
            return 0
        if v5.on_reason is not None and i >= 0 and was_sent(s, i):
            i = s.epoch
            v5.on_reason(p.packet_id, p.code)
            if s.epoch != i:
                return 0
    # PUBCOMP may have the code Packet Identifier not found: the identifier is free then too (4.3.3).
    return on_ack(s, p)


def on_pubrel5(s: "Session", p: "Packet") -> int:
    """Handle PUBREL. An unknown identifier is answered with Packet Identifier not found."""
    bad = decode_ack(p)
    if bad:
        return bad
    if s.find_qos2(p.packet_id) >= 0:
        return on_pubrel(s, p)
    if s.tx_size - s.tx_end < _LONG_ACK:
        return LATER
    s.strays += 1
    put_ack(s, _PUBCOMP, p.packet_id, spec5.PACKET_IDENTIFIER_NOT_FOUND)
    return 0


def _on_connack(s: "ClientSession", p: Packet5) -> int:
    bad = decode_connack(p)
    if bad:
        return bad
    if p.code == 0:
        s.v5.accept_limits(p)
    return s.accepted(p)


def _on_disconnect(s: "ClientSession", p: Packet5) -> int:
    bad = p.reason(p.body)
    if bad:
        return bad
    if has(p, spec5.SESSION_EXPIRY_INTERVAL):
        # Only a client may change the session expiry (3.14.2.2.2).
        return errors.E_UNEXPECTED
    if p.code == spec5.DISCONNECT_WITH_WILL:
        return errors.E_CODE
    s.return_code = p.code
    return errors.E_DISCONNECTED


def _on_auth(s: "ClientSession", p: Packet5) -> int:
    return p.auth(p.body) or s.v5.continue_auth(p)


# A server of 5.0 may send DISCONNECT and AUTH; AUTH also before CONNACK.
_TAKES = (0, CLIENT_TAKES[1] | 1 << 15, CLIENT_TAKES[2] | 3 << 14, 0, 0)
_HANDLERS = (
    CLIENT_HANDLERS[:2]
    + (_on_connack, CLIENT_HANDLERS[3], on_ack5, on_ack5, on_pubrel5, on_ack5)
    + CLIENT_HANDLERS[8:14]
    + (_on_disconnect, _on_auth)
)


def read_limits(limits: "dict[int, int]", buf: "Bytes", at: int, end: int) -> None:
    """Set ``limits`` to those in the properties ``buf[at:end]``, and to the defaults for the others."""
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
    """Return whether the length-prefixed strings at ``buf[at]`` and ``other[to]`` are equal."""
    n = get_u16(buf, at) + 2
    if to + n > len(other):
        return False
    for i in range(n):
        if buf[at + i] != other[to + i]:
            return False
    return True
