"""The client's session at MQTT 5.0."""

from headwater import errors
from headwater.connection import CONNECTING, ONLINE
from headwater.mqtt import spec5
from headwater.mqtt.endpoint5 import Endpoint5, new_rx, same_text
from headwater.mqtt.packets import check_name, decode_connack
from headwater.mqtt.properties import (
    Properties,
    block_at,
    block_has,
    check_filter5,
    find,
    has,
    unshared,
)
from headwater.mqtt.session import CLIENT_TAKES, LATER, ClientSession
from headwater.wire import NOT_BYTES, const, get_u16, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.connection import RxBuf
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.properties import Packet5
    from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
    from headwater.types import Bytes, NameCheck, Outbox

_SUBACK = const(9)
_UNSUBACK = const(11)
_AUTH = const(15)
_NEVER = 0xFFFFFFFF
# DISCONNECT and AUTH may come from a server of 5.0; AUTH also before CONNACK.
_TAKES = (0, CLIENT_TAKES[1] | 1 << 15, CLIENT_TAKES[2] | 3 << 14, 0, 0)
# A subscription's options (3.8.3.1): what there is no such thing as, and a value there is not.
_RESERVED = const(0xC0)
_RETAIN_HANDLING = const(0x30)
_QOS = const(3)


class ClientSession5(Endpoint5, ClientSession):
    """A client's end; as ``ClientSession`` and ``Endpoint5``.

    ``clean`` is Clean Start. ``session_expiry`` is how many seconds the server keeps the session when the connection is
    over (3.1.2.11.2); without it, it does so for ever, or not at all if ``clean``, as with 3.1.1. ``receive_maximum``
    is how many messages at QoS 1 and 2 the server may have unacknowledged, at most and by default ``receive_window``:
    more end the connection (E_RX_WINDOW, ``receive_limit``). ``max_packet`` announces the largest packet that is taken,
    at least what the receive buffer holds; without it larger messages are streamed. ``aliases_in`` and ``aliases_out``
    are of ``topic_aliases``.
    ``connect_properties`` has room for ``properties_size`` bytes, and what CONNECT is to say besides is added to it.

    ``return_code`` is the reason code of the server's last CONNACK or DISCONNECT, with E_REFUSED or E_DISCONNECTED, and
    ``packet`` then still shows its properties. ``on_answer(packet_id, code)`` gets the reason codes of SUBACK and
    UNSUBACK. What the server answers holds for its connection: keep alive and window are ours again behind it. An
    Assigned Client Identifier is ``client_id`` from then on, if that was empty; otherwise it is ignored.

    ``on_auth(packet)`` is called for each AUTH (4.12) and answers with the block of properties to go on with, or None
    to give up (E_AUTH); for a success what it answers counts for nothing. CONNECT asks for it, by
    AUTHENTICATION_METHOD in ``connect_properties``; a block that does not name the same method is E_ARGUMENT.
    """

    _protocol = spec5.PROTOCOL
    _check_filter = staticmethod(check_filter5)
    _will_properties: "Bytes" = spec5.NO_PROPERTIES

    def __init__(
        self,
        client_id: "Bytes" = b"",
        keep_alive: int = 60,
        clean: bool = True,
        user: "Bytes | None" = None,
        password: "Bytes | None" = None,
        rx_size: int = 512,
        tx_size: int = 512,
        outbox_size: int = 1024,
        slots: int = 16,
        window: int = 16,
        receive_window: int = 20,
        response_ms: int = 10000,
        check: "NameCheck" = check_name,
        rx: "RxBuf | None" = None,
        outbox: "Outbox | None" = None,
        session_expiry: int = -1,
        max_packet: int = 0,
        aliases_in: "IncomingAliases | None" = None,
        aliases_out: "OutgoingAliases | None" = None,
        properties_size: int = 64,
        receive_maximum: int = 0,
    ):
        ClientSession.__init__(
            self,
            client_id,
            keep_alive,
            clean,
            user,
            password,
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
        self._setup(aliases_in, aliases_out, receive_maximum)
        self.connect_properties = self._announce(Properties(properties_size, 1 << 1), max_packet)
        if session_expiry < 0:
            session_expiry = 0 if clean else _NEVER
        if session_expiry and self.connect_properties.add(spec5.SESSION_EXPIRY_INTERVAL, session_expiry):
            raise ValueError("the session expiry interval is 0 to 2**32 - 1 seconds")
        self.on_auth: Callable[[Packet5], Bytes | None] | None = None
        self._authenticating = False
        self._own_keep_alive = -1
        self._takes = _TAKES
        self._handlers = self._handlers[:14] + (self._on_disconnect, self._on_auth)

    def set_will(
        self,
        topic: "Bytes | None",
        payload: "Bytes" = b"",
        qos: int = 0,
        retain: bool = False,
        properties: "Bytes" = spec5.NO_PROPERTIES,
    ) -> int:
        """As of ``ClientSession``, with a block of properties: the will's, and its delay (3.1.3.2)."""
        if not is_bytes(properties) or not len(properties):
            return errors.E_ARGUMENT
        bad = ClientSession.set_will(self, topic, payload, qos, retain)
        if bad == 0:
            self._will_properties = properties
        return bad

    def connect(self, now_ms: int) -> int:
        """As of ``ClientSession``; E_ARGUMENT also when ``connect_properties`` announce a limit that is no argument of
        this session, which would not keep to it."""
        self._properties = self.connect_properties.block
        if (self._max_packet == 0 and block_has(self._properties, spec5.MAXIMUM_PACKET_SIZE)) or (
            self.aliases_in is None and block_has(self._properties, spec5.TOPIC_ALIAS_MAXIMUM)
        ):
            return errors.E_ARGUMENT
        self._authenticating = False
        return ClientSession.connect(self, now_ms)

    def subscribe(
        self, topic_filter: "Bytes", qos: int = 0, properties: "Bytes" = spec5.NO_PROPERTIES
    ) -> int:
        """SUBSCRIBE to one filter. ``qos`` may have options beside it (3.8.3.1): ``spec5.NO_LOCAL`` and so on.

        As of ``ClientSession``; also E_LIMIT: the server has no wildcards, shared subscriptions or subscription
        identifiers, and the filter, or the block, has.
        """
        bad = self._check_subscription(topic_filter, qos, properties)
        return bad or self._ask(topic_filter, qos, _SUBACK, properties)

    def _check_subscription(self, topic_filter: "Bytes", qos: int, properties: "Bytes") -> int:
        try:
            if qos & _QOS == _QOS:
                return errors.E_QOS
            if qos < 0 or qos & _RESERVED or qos & _RETAIN_HANDLING == _RETAIN_HANDLING or qos > 255:
                return errors.E_ARGUMENT
            shared = unshared(topic_filter, 0, len(topic_filter)) > 0
            if (shared and qos & spec5.NO_LOCAL) or not len(properties):
                return errors.E_ARGUMENT
            if self.state == ONLINE and not self._offered(topic_filter, shared, properties):
                return errors.E_LIMIT
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return 0

    def unsubscribe(self, topic_filter: "Bytes", properties: "Bytes" = spec5.NO_PROPERTIES) -> int:
        """UNSUBSCRIBE from one filter; as ``subscribe``."""
        return self._ask(topic_filter, -1, _UNSUBACK, properties)

    def _ask(self, topic_filter: "Bytes", options: int, answer: int, properties: "Bytes") -> int:
        if not is_bytes(properties) or not len(properties):
            return errors.E_ARGUMENT
        return self._request(topic_filter, options, answer, properties)

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

    def _may_publish(self, block: "Bytes") -> bool:
        # A client has none to send (3.3.4).
        return Endpoint5._may_publish(self, block) and not block_has(block, spec5.SUBSCRIPTION_IDENTIFIER)

    def disconnect(self, code: int = 0, properties: "Bytes" = spec5.NO_PROPERTIES) -> int:
        """As of ``Endpoint5``. ``spec5.DISCONNECT_WITH_WILL`` lets the server publish the will.

        The properties may change the session expiry, unless it was 0 (3.14.2.2.2): E_ARGUMENT.
        """
        try:
            if block_has(properties, spec5.SESSION_EXPIRY_INTERVAL) and not block_has(
                self.connect_properties.block, spec5.SESSION_EXPIRY_INTERVAL
            ):
                return errors.E_ARGUMENT
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return Endpoint5.disconnect(self, code, properties)

    def authenticate(self, properties: "Bytes") -> int:
        """Begin to authenticate again (4.12.1), with the method of CONNECT in the block.

        E_OFFLINE; E_STATE: it is going on already, or there is no ``on_auth``; E_AGAIN, E_TOO_LARGE, E_ARGUMENT.
        """
        if self.state != ONLINE:
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

    def _stop(self) -> None:
        if self._own_keep_alive >= 0:
            self.keep_alive = self._own_keep_alive
            self._own_keep_alive = -1
        Endpoint5._stop(self)

    # -- what arrives --------------------------------------------------------------------------------------------------

    def _on_connack(self, p: "Packet") -> int:
        bad = decode_connack(p)
        if bad:
            return bad
        if p.code == 0:
            self._take_limits(p.buf, self.packet.props_at, self.packet.props_end)
            keep_alive = self.limits[spec5.SERVER_KEEP_ALIVE]
            if keep_alive >= 0:
                self._own_keep_alive = self.keep_alive
                self.keep_alive = keep_alive
            at = find(p.buf, self.packet.props_at, self.packet.props_end, spec5.ASSIGNED_CLIENT_IDENTIFIER)
            if at >= 0 and not len(self.client_id):
                # It is ours from now on. Who has given an id keeps it.
                self.client_id = bytes(p.buf[at + 2 : at + 2 + get_u16(p.buf, at)])
        return self._accepted(p)

    def _on_disconnect(self, p: "Packet") -> int:
        bad = self.packet.reason(p.body)
        if bad:
            return bad
        if has(self.packet, spec5.SESSION_EXPIRY_INTERVAL):
            # Only a client may change that (3.14.2.2.2).
            return errors.E_UNEXPECTED
        if p.code == spec5.DISCONNECT_WITH_WILL:
            return errors.E_CODE
        self.return_code = p.code
        return errors.E_DISCONNECTED

    def _on_auth(self, p: "Packet") -> int:
        bad = self.packet.auth(p.body)
        if bad:
            return bad
        if self.on_auth is None or p.code == spec5.RE_AUTHENTICATE:
            return errors.E_UNEXPECTED
        at = find(p.buf, self.packet.props_at, self.packet.props_end, spec5.AUTHENTICATION_METHOD)
        if at >= 0 and not self._is_our_method(p.buf, at):
            return errors.E_UNEXPECTED
        if not self._authenticating and (self.state != CONNECTING or p.code == 0):
            return errors.E_UNEXPECTED
        if self.tx_end or self.out_n:
            # The answer may need all the room there is.
            return LATER
        done = p.code == 0
        if done:
            self._authenticating = False
        turn = self.turn
        block = self.on_auth(self.packet)
        if done or self.turn != turn:
            return 0
        if block is None:
            self._reason = spec5.BAD_AUTHENTICATION_METHOD
            return errors.E_AUTH
        return self._put_auth(spec5.CONTINUE_AUTHENTICATION, block)

    def _is_our_method(self, buf: "Bytes", at: int) -> bool:
        """Whether the method at ``at`` is the one that CONNECT named (4.12.0-5, 4.12.1-1)."""
        block = self.connect_properties.block
        ours = block_at(block, spec5.AUTHENTICATION_METHOD)
        return ours >= 0 and same_text(buf, at, block, ours)
