"""MQTT 5.0, attached to a server's session.

server = ServerSession(version=ServerV5())
"""

from headwater import errors
from headwater.connection import CONNECTING, FINISH, ONLINE
from headwater.mqtt import spec, spec5
from headwater.mqtt.packets_server import Connect, decode_connect, encode_connack
from headwater.mqtt.properties import (
    Properties,
    block_at,
    block_start,
    encode_reason,
    find,
    has,
    number,
    unshared,
)
from headwater.mqtt.server import SERVER_HANDLERS, on_subscribe
from headwater.mqtt.session import LATER, SERVER_TAKES
from headwater.mqtt.v5 import LIMITS, V5, on_ack5, on_pubrel5, read_limits
from headwater.wire import const, get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.properties import Packet5
    from headwater.mqtt.server import ServerSession
    from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
    from headwater.types import Bytes

_LEVEL_5 = const(5)
_PLUS = const(43)
_HASH = const(35)
_AUTH = const(1 << 15)
_ERROR = const(0x80)


class ServerV5(V5):
    """The server's part of MQTT 5.0; ``v5.V5`` describes the common part.

    ``connack_properties`` holds ``properties_size`` bytes: properties of CONNACK besides the receive window, the
    largest packet (``max_packet``) and the topic aliases. The announced limits are enforced: MAXIMUM_QOS,
    RETAIN_AVAILABLE, and the availability of subscription features; SERVER_KEEP_ALIVE and SESSION_EXPIRY_INTERVAL
    replace the client's values. An empty client identifier is accepted only with an ASSIGNED_CLIENT_IDENTIFIER, which
    ``on_connect`` can add.

    The session's ``on_connect`` returns the values of 3.1.1, but reason codes from 0x80 on to refuse; or
    CONTINUE_AUTHENTICATION, which sends AUTH with the property block ``reply``. ``on_auth(packet)`` returns the same
    for each AUTH of the client, also for re-authentication. The session's ``on_subscribe(packet, options)`` and
    ``on_unsubscribe(packet)`` return the reason code of the filter. ``session_expiry`` is the time for which the
    session must be kept, in seconds, at most 2**30 - 1; ``return_code`` is the code of the client's DISCONNECT, which
    is ``graceful`` only if that is 0.
    """

    session: "ServerSession"
    _is_server = True

    def __init__(
        self,
        max_packet: int = 0,
        aliases_in: "IncomingAliases | None" = None,
        aliases_out: "OutgoingAliases | None" = None,
        properties_size: int = 64,
    ):
        super().__init__(max_packet, aliases_in, aliases_out)
        self.connack_properties = Properties(properties_size, 1 << 2)
        #: The announced limits, by property.
        self.own = dict(LIMITS)
        self.session_expiry = 0
        self.reply: Bytes = spec5.NO_PROPERTIES
        self.return_code = 0
        self._method = b""
        self._no_id = False

    def attach(self, session: "ServerSession") -> None:  # type: ignore[override]  # servers only
        """Attach to a server's session; its constructor calls this."""
        super().attach(session)
        # A client must not send a subscription identifier (3.3.4-6).
        session.packet.special |= 1 << spec5.SUBSCRIPTION_IDENTIFIER  # type: ignore[union-attr]
        self._announce(self.connack_properties)
        session.use_version(_TAKES, _HANDLERS, Connect((spec5.PROTOCOL,)))

    def listening(self) -> None:
        """Reset the state of the previous connection."""
        self._method = b""
        self._authenticating = False

    def reason_for(self, code: int) -> int:
        """Return the reason code that is sent to the client for the error ``code``, or 0 if none can be sent."""
        if code == errors.E_TIMEOUT and self.session.state == ONLINE:
            self.reason = spec5.KEEP_ALIVE_TIMEOUT
        return super().reason_for(code)

    def put_last_packet(self, state: int, reason: int) -> None:
        """Write DISCONNECT (3.14), or CONNACK before the connection is accepted, into the transmit buffer."""
        s = self.session
        if state != CONNECTING:
            super().put_last_packet(state, reason)
        elif s.connect_packet.level == _LEVEL_5:
            # A client of another version would not understand CONNACK of 5.0.
            s.tx_end = encode_connack(s.tx, 0, s.tx_size, False, reason, spec5.NO_PROPERTIES)

    # -- connecting ----------------------------------------------------------------------------------------------------

    def begin_connect(self, p: "Packet") -> None:
        """Apply the limits and the authentication method of CONNECT."""
        c = self.session.connect_packet
        self._take_limits(p.buf, c.props_at, c.props_end)
        at = find(p.buf, c.props_at, c.props_end, spec5.AUTHENTICATION_METHOD)
        if at >= 0:
            self._method = bytes(p.buf[at : at + 2 + get_u16(p.buf, at)])
        self.reply = spec5.NO_PROPERTIES
        self._no_id = c.client_id_at == c.client_id_end

    def accepts_connect(self) -> bool:
        """Apply the limits of CONNACK. Return False if the client has no identifier and none is assigned."""
        block = self.connack_properties.block
        if self._no_id and block_at(block, spec5.ASSIGNED_CLIENT_IDENTIFIER) < 0:
            return False
        s = self.session
        own = self.own
        read_limits(own, block, block_start(block), len(block))
        # The fast path does not enforce these two limits.
        plain = own[spec5.MAXIMUM_QOS] == 2 and own[spec5.RETAIN_AVAILABLE] == 1
        s.packet.short = min(128, s.rx.capacity - 1) if plain else 0
        self.session_expiry = max(0, self.limits[spec5.SESSION_EXPIRY_INTERVAL])
        if own[spec5.SESSION_EXPIRY_INTERVAL] >= 0:
            self.session_expiry = own[spec5.SESSION_EXPIRY_INTERVAL]
        if own[spec5.SERVER_KEEP_ALIVE] >= 0:
            s.connect_packet.keep_alive = own[spec5.SERVER_KEEP_ALIVE]
        return True

    def connack_block(self, code: int) -> "Bytes":
        """Return CONNACK's property block."""
        return spec5.NO_PROPERTIES if code else self.connack_properties.block

    def ask_auth(self, code: int) -> int:
        """Send AUTH with ``reply`` instead of CONNACK. Return 0 or an error."""
        self._authenticating = True
        return self._put_auth(code)

    def _put_auth(self, code: int) -> int:
        s = self.session
        return s.queue_packet(encode_reason(s.tx, s.tx_end, s.tx_size, spec5.AUTH, 0, code, self.reply))

    def continue_auth(self, p: "Packet5") -> int:
        """Continue an authentication after AUTH. Return 0, an error, or LATER."""
        s = self.session
        if self.on_auth is None or not self._is_their_method(p):
            return errors.E_UNEXPECTED
        if p.code != (spec5.CONTINUE_AUTHENTICATION if self._authenticating else spec5.RE_AUTHENTICATE):
            return errors.E_UNEXPECTED
        if s.state == CONNECTING and not self._authenticating:
            return errors.E_UNEXPECTED
        if s.tx_end or s.out_n:
            # The answer may need all of the transmit buffer.
            return LATER
        self.reply = spec5.NO_PROPERTIES
        epoch = s.epoch
        code = self.on_auth(p)
        if s.epoch != epoch:
            return 0
        going = code == spec5.CONTINUE_AUTHENTICATION
        self._authenticating = going
        if s.state == CONNECTING:
            return s.refuse_connect(code) if 0 < code < 256 else s.accept(code > 0)
        if _ERROR <= code < 256:
            self.reason = code
            return errors.E_AUTH
        return self._put_auth(code if going else 0)

    def _is_their_method(self, p: "Packet5") -> bool:
        """Return whether AUTH has the authentication method of CONNECT (4.12.0-5)."""
        at = find(p.buf, p.props_at, p.props_end, spec5.AUTHENTICATION_METHOD)
        n = len(self._method)
        return n > 0 and at >= 0 and bytes(p.buf[at : at + n]) == self._method

    # -- what arrives --------------------------------------------------------------------------------------------------

    def read_publish(self, p: "Packet5", special: int) -> int:
        """Process the properties of a decoded PUBLISH, and enforce the limits of CONNACK. Return 0 or an error."""
        bad = super().read_publish(p, special)
        if bad:
            return bad
        if has(p, spec5.SUBSCRIPTION_IDENTIFIER):
            # A client must not send a subscription identifier (3.3.4-6).
            return errors.E_UNEXPECTED
        if p.qos() > self.own[spec5.MAXIMUM_QOS]:
            self.reason = spec5.QOS_NOT_SUPPORTED
            return errors.E_RX_QOS
        if p.retain() > self.own[spec5.RETAIN_AVAILABLE]:
            self.reason = spec5.RETAIN_NOT_SUPPORTED
            return errors.E_FLAGS
        return 0

    def grant(self, p: "Packet5", qos: int) -> int:
        """Return the reason code of one filter of SUBSCRIBE or UNSUBSCRIBE."""
        s = self.session
        if p.head >> 4 == spec.UNSUBSCRIBE:
            return int(s.on_unsubscribe(p) or 0) if s.on_unsubscribe is not None else 0  # type: ignore[call-overload]
        own = self.own
        start = unshared(p.buf, p.topic_at, p.topic_end)
        if start > p.topic_at and not own[spec5.SHARED_SUBSCRIPTION_AVAILABLE]:
            return spec5.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not own[spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE] and has(p, spec5.SUBSCRIPTION_IDENTIFIER):
            return spec5.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
        if not own[spec5.WILDCARD_SUBSCRIPTION_AVAILABLE]:
            for i in range(start, p.topic_end):
                if p.buf[i] == _PLUS or p.buf[i] == _HASH:
                    return spec5.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if s.on_subscribe is not None:
            return s.on_subscribe(p, qos)
        return min(qos & 3, own[spec5.MAXIMUM_QOS])

    def end(self, p: "Packet5") -> int:
        """End the connection after the client's DISCONNECT. Return 0 or an error."""
        s = self.session
        at = find(p.buf, p.props_at, p.props_end, spec5.SESSION_EXPIRY_INTERVAL)
        if at >= 0:
            expiry = number(p.buf, at, spec5.SESSION_EXPIRY_INTERVAL)
            if expiry and self.limits[spec5.SESSION_EXPIRY_INTERVAL] <= 0:
                # A session expiry of 0 must not be changed (3.14.2.2.2).
                return errors.E_VALUE
            self.session_expiry = expiry
            s.has_session = expiry > 0
        self.return_code = p.code
        s.graceful = p.code == 0
        s.event(FINISH)
        return 0


def _on_connect(s: "ServerSession", p: "Packet") -> int:
    c = s.connect_packet
    bad = decode_connect(p, c)
    if bad == errors.E_PROTOCOL and c.level >= 0:
        # In the form of 3.1.1, which clients of earlier versions understand (3.1.2.2).
        s.tx_end = encode_connack(s.tx, 0, s.tx_size, False, spec.BAD_LEVEL)
        s.event(FINISH)
        return 0
    if bad:
        return bad
    s.v5.begin_connect(p)
    return s.decide(p)


def _on_disconnect(s: "ServerSession", p: "Packet5") -> int:
    bad = p.reason(p.body)
    if bad:
        return bad
    if has(p, spec5.SERVER_REFERENCE):
        # Only a server may send a Server Reference (3.14.2.2.5).
        return errors.E_UNEXPECTED
    return s.v5.end(p)  # type: ignore[no-any-return]


def _on_auth(s: "ServerSession", p: "Packet5") -> int:
    return p.auth(p.body) or s.v5.continue_auth(p)


_TAKES = (0, SERVER_TAKES[1] | _AUTH, SERVER_TAKES[2] | _AUTH, 0, 0)
_HANDLERS = (
    SERVER_HANDLERS[:1]
    + (_on_connect,)
    + SERVER_HANDLERS[2:4]
    + (on_ack5, on_ack5, on_pubrel5, on_ack5)
    + SERVER_HANDLERS[8:10]
    + (on_subscribe,)
    + SERVER_HANDLERS[11:14]
    + (_on_disconnect, _on_auth)
)
