"""A server's end of one connection at MQTT 5.0."""

from headwater import errors
from headwater.connection import CONNECTING, FINISH, ONLINE
from headwater.mqtt import spec, spec5
from headwater.mqtt.endpoint5 import LIMITS, Endpoint5, new_rx, read_limits
from headwater.mqtt.packets import check_name
from headwater.mqtt.packets_server import Connect, decode_connect, encode_connack, encode_suback
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
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import LATER, SERVER_TAKES
from headwater.wire import const, get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.connection import RxBuf
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.properties import Packet5
    from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
    from headwater.types import Bytes, NameCheck, Outbox

_LEVEL_5 = const(5)
_PLUS = const(43)
_HASH = const(35)
_AUTH = const(1 << 15)
_TAKES = (0, SERVER_TAKES[1] | _AUTH, SERVER_TAKES[2] | _AUTH, 0, 0)
_ERROR = const(0x80)


class ServerSession5(Endpoint5, ServerSession):
    """A server's end; as ``ServerSession`` and ``Endpoint5``.

    ``connack_properties`` has room for ``properties_size`` bytes: what CONNACK is to say besides the receive window,
    the largest packet (``max_packet``) and the topic aliases. What it says of this end holds for the client as well:
    MAXIMUM_QOS and RETAIN_AVAILABLE are enforced, filters that need what is not available are refused,
    SERVER_KEEP_ALIVE and SESSION_EXPIRY_INTERVAL replace the client's. An empty client id is taken only with an
    ASSIGNED_CLIENT_IDENTIFIER in it, which ``on_connect`` can add.

    ``on_connect`` answers as at 3.1.1, with reason codes from 0x80 on to refuse; or CONTINUE_AUTHENTICATION: then
    ``reply`` goes out in AUTH, a block of properties. ``on_auth(packet)`` answers in the same way for each AUTH of
    the client, also when it authenticates again. ``on_subscribe(packet, options)`` and ``on_unsubscribe(packet)``
    answer with the reason code of the filter. ``session_expiry`` is for how many seconds the session is to be kept,
    at most 2**30 - 1; ``return_code`` the code of the client's DISCONNECT, which is ``graceful`` only if that is 0.
    """

    _suback_head = 5

    def __init__(
        self,
        rx_size: int = 4096,
        tx_size: int = 4096,
        outbox_size: int = 4096,
        slots: int = 16,
        window: int = 16,
        receive_window: int = 64,
        response_ms: int = 10000,
        check: "NameCheck" = check_name,
        rx: "RxBuf | None" = None,
        outbox: "Outbox | None" = None,
        max_packet: int = 0,
        aliases_in: "IncomingAliases | None" = None,
        aliases_out: "OutgoingAliases | None" = None,
        properties_size: int = 64,
    ):
        ServerSession.__init__(
            self,
            rx_size,
            tx_size,
            outbox_size,
            slots,
            window,
            receive_window,
            response_ms,
            check,
            rx or new_rx(rx_size, aliases_in),
            outbox,
        )
        self._setup(aliases_in, aliases_out)
        # A client must not send a subscription identifier (3.3.4-6).
        self.packet.special |= 1 << spec5.SUBSCRIPTION_IDENTIFIER
        self.connect_packet = Connect((spec5.PROTOCOL,))
        self.connack_properties = self._announce(Properties(properties_size, 1 << 2), max_packet)
        #: What this end has said of itself, by property.
        self.own = dict(LIMITS)
        self.session_expiry = 0
        self.reply: Bytes = spec5.NO_PROPERTIES
        self.on_auth: Callable[[Packet5], int] | None = None
        self._method = b""
        self._no_id = False
        self._authenticating = False
        self._takes = _TAKES
        self._handlers = self._handlers[:15] + (self._on_auth,)

    def listen(self, now_ms: int) -> None:
        """As of ``ServerSession``."""
        self._method = b""
        self._authenticating = False
        ServerSession.listen(self, now_ms)

    def _last_word(self, state: int, reason: int) -> None:
        if state == CONNECTING:
            # Before CONNACK there is no DISCONNECT (3.14); and to whom speaks another version there is nothing to say.
            if self.connect_packet.level == _LEVEL_5:
                self.tx_end = encode_connack(self.tx, 0, self.tx_size, False, reason, spec5.NO_PROPERTIES)
        else:
            Endpoint5._last_word(self, state, reason)

    def fail(self, code: int) -> int:
        """As of ``Endpoint5``; a client that is silent for too long is told so."""
        if code == errors.E_TIMEOUT and self.state == ONLINE:
            self._reason = spec5.KEEP_ALIVE_TIMEOUT
        return Endpoint5.fail(self, code)

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _on_connect(self, p: "Packet") -> int:
        c = self.connect_packet
        bad = decode_connect(p, c)
        if bad == errors.E_PROTOCOL and c.level >= 0:
            # In the form that clients of earlier versions understand (3.1.2.2).
            self.tx_end = encode_connack(self.tx, 0, self.tx_size, False, spec.BAD_LEVEL)
            self.event(FINISH)
            return 0
        if bad:
            return bad
        self._take_limits(p.buf, c.props_at, c.props_end)
        at = find(p.buf, c.props_at, c.props_end, spec5.AUTHENTICATION_METHOD)
        if at >= 0:
            self._method = bytes(p.buf[at : at + 2 + get_u16(p.buf, at)])
        self.reply = spec5.NO_PROPERTIES
        self._no_id = c.client_id_at == c.client_id_end
        return self._decide(p)

    def _accept(self, present: bool) -> int:
        block = self.connack_properties.block
        if self._no_id and block_at(block, spec5.ASSIGNED_CLIENT_IDENTIFIER) < 0:
            return self._refuse_connect(spec5.CLIENT_IDENTIFIER_NOT_VALID)
        own = self.own
        read_limits(own, block, block_start(block), len(block))
        # The quick way in does not look at what is not available.
        plain = own[spec5.MAXIMUM_QOS] == 2 and own[spec5.RETAIN_AVAILABLE] == 1
        self.packet.short = min(128, self.rx.capacity - 1) if plain else 0
        self.session_expiry = max(0, self.limits[spec5.SESSION_EXPIRY_INTERVAL])
        if own[spec5.SESSION_EXPIRY_INTERVAL] >= 0:
            self.session_expiry = own[spec5.SESSION_EXPIRY_INTERVAL]
        if own[spec5.SERVER_KEEP_ALIVE] >= 0:
            self.connect_packet.keep_alive = own[spec5.SERVER_KEEP_ALIVE]
        ServerSession._accept(self, present)
        self._has_session = self.session_expiry > 0
        return 0

    def _refuse_connect(self, code: int) -> int:
        if code != spec5.CONTINUE_AUTHENTICATION:
            return ServerSession._refuse_connect(self, code)
        self._authenticating = True
        return self._put(encode_reason(self.tx, self.tx_end, self.tx_size, spec5.AUTH, 0, code, self.reply))

    def _put_connack(self, present: bool, code: int) -> None:
        block = spec5.NO_PROPERTIES if code else self.connack_properties.block
        self.tx_end = encode_connack(self.tx, 0, self.tx_size, present, code, block)

    def _on_auth(self, p: "Packet") -> int:
        bad = self.packet.auth(p.body)
        if bad:
            return bad
        if self.on_auth is None or not self._method_is_theirs():
            return errors.E_UNEXPECTED
        if p.code != (spec5.CONTINUE_AUTHENTICATION if self._authenticating else spec5.RE_AUTHENTICATE):
            return errors.E_UNEXPECTED
        if self.state == CONNECTING and not self._authenticating:
            return errors.E_UNEXPECTED
        if self.tx_end or self.out_n:
            # The answer may need all the room there is.
            return LATER
        self.reply = spec5.NO_PROPERTIES
        turn = self.turn
        code = self.on_auth(self.packet)
        if self.turn != turn:
            return 0
        going = code == spec5.CONTINUE_AUTHENTICATION
        self._authenticating = going
        if self.state == CONNECTING:
            return self._refuse_connect(code) if 0 < code < 256 else self._accept(code > 0)
        if code >= _ERROR and code < 256:
            self._reason = code
            return errors.E_AUTH
        code = code if going else 0
        return self._put(encode_reason(self.tx, self.tx_end, self.tx_size, spec5.AUTH, 0, code, self.reply))

    def _method_is_theirs(self) -> bool:
        """Whether AUTH names the method that CONNECT did (4.12.0-5)."""
        p = self.packet
        at = find(p.buf, p.props_at, p.props_end, spec5.AUTHENTICATION_METHOD)
        n = len(self._method)
        return n > 0 and at >= 0 and bytes(p.buf[at : at + n]) == self._method

    # -- what arrives --------------------------------------------------------------------------------------------------

    def _read_publish(self, p: "Packet5") -> int:  # type: ignore[override]  # as of ``Endpoint5``
        bad = Endpoint5._read_publish(self, p)
        if bad:
            return bad
        if has(p, spec5.SUBSCRIPTION_IDENTIFIER):
            # 3.3.4-6
            return errors.E_UNEXPECTED
        if p.qos() > self.own[spec5.MAXIMUM_QOS]:
            self._reason = spec5.QOS_NOT_SUPPORTED
            return errors.E_RX_QOS
        if p.retain() > self.own[spec5.RETAIN_AVAILABLE]:
            self._reason = spec5.RETAIN_NOT_SUPPORTED
            return errors.E_FLAGS
        return 0

    def _on_unsubscribe(self, p: "Packet") -> int:
        return self._on_subscribe(p)

    def _grant(self, p: "Packet", qos: int) -> int:
        if p.head >> 4 == spec.UNSUBSCRIBE:
            return int(self.on_unsubscribe(p) or 0) if self.on_unsubscribe is not None else 0  # type: ignore[call-overload]
        own = self.own
        start = unshared(p.buf, p.topic_at, p.topic_end)
        if start > p.topic_at and not own[spec5.SHARED_SUBSCRIPTION_AVAILABLE]:
            return spec5.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not own[spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE] and has(
            self.packet, spec5.SUBSCRIPTION_IDENTIFIER
        ):
            return spec5.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
        if not own[spec5.WILDCARD_SUBSCRIPTION_AVAILABLE]:
            for i in range(start, p.topic_end):
                if p.buf[i] == _PLUS or p.buf[i] == _HASH:
                    return spec5.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if self.on_subscribe is not None:
            return self.on_subscribe(p, qos)
        return min(qos & 3, own[spec5.MAXIMUM_QOS])

    def _put_codes(self, packet_id: int, codes: "Bytes") -> None:
        # SUBACK or UNSUBACK: the type behind the request's.
        self.tx_end = encode_suback(
            self.tx,
            self.tx_end,
            self.tx_size,
            packet_id,
            codes,
            spec5.NO_PROPERTIES,
            (self.packet.head >> 4) + 1,
        )

    def _on_disconnect(self, p: "Packet") -> int:
        bad = self.packet.reason(p.body)
        if bad:
            return bad
        if has(self.packet, spec5.SERVER_REFERENCE):
            # Only a server refers to another (3.14.2.2.5).
            return errors.E_UNEXPECTED
        at = find(p.buf, self.packet.props_at, self.packet.props_end, spec5.SESSION_EXPIRY_INTERVAL)
        if at >= 0:
            expiry = number(p.buf, at, spec5.SESSION_EXPIRY_INTERVAL)
            if expiry and self.limits[spec5.SESSION_EXPIRY_INTERVAL] <= 0:
                # 3.14.2.2.2
                return errors.E_VALUE
            self.session_expiry = expiry
            self._has_session = expiry > 0
        self.return_code = p.code
        self.graceful = p.code == 0
        self.event(FINISH)
        return 0
