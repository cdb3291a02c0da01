"""The server's session of one MQTT connection, used by the gateway for serial boards and by tests of clients.

It keeps the session of one client and does no routing between clients.
"""

from headwater import errors
from headwater.connection import ACCEPT, CLOSING, FINISH, OPEN, RamOutbox, RxBuf
from headwater.mqtt import spec
from headwater.mqtt.packets import check_name, encode_bare
from headwater.mqtt.packets_server import (
    Connect,
    decode_connect,
    decode_subscribe,
    encode_connack,
    encode_suback,
    next_filter,
)
from headwater.mqtt.session import (
    LATER,
    SERVER_TAKES,
    Session,
    on_ack,
    on_publish,
    on_pubrel,
    put_ack,
    refuse,
)
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes, NameCheck, Outbox

#: Returned by ``on_connect`` to resume the client's session; 0 starts a new one.
SESSION_PRESENT = const(256)
_MAX_FILTERS = const(64)
# Sizes of UNSUBACK before 5.0, and of SUBACK without its codes.
_UNSUBACK_SIZE = const(4)
_SUBACK_HEAD = const(4)
# MQTT 5.0: Client Identifier not valid; Continue authentication; an empty property block.
_BAD_CLIENT_ID_5 = const(0x85)
_CONTINUE_AUTHENTICATION = const(0x18)
_NO_PROPERTIES = b"\x00"


class ServerSession(Session):
    """The server's session of a connection. Call ``listen`` for each transport; CONNECT must arrive within
    ``response_ms``.

    ``on_connect(connect, packet)`` returns 0 (accept with a new session), SESSION_PRESENT (accept and resume), or a
    return code of 3.2.2.3. Without it every client is accepted, and its session is resumed unless it requests a clean
    one. ``on_subscribe(packet, qos)`` is called for each filter (``packet.topic_bytes()``) and returns 0, 1, 2 or 0x80;
    ``on_unsubscribe(packet)`` is called for each filter of UNSUBSCRIBE. ``connect_packet`` has CONNECT's fields, which
    are offsets into the buffer and valid only during ``on_connect``. ``graceful`` is True if the client has sent
    DISCONNECT, which removes the will (3.14.4).
    """

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
        version: "Any" = None,
    ):
        super().__init__(
            rx or RxBuf(rx_size, version.room if version is not None else 0),
            tx_size,
            outbox or RamOutbox(outbox_size, slots),
            window,
            receive_window,
            response_ms,
            check,
            version,
        )
        self.connect_packet = Connect()
        self.keep_alive = 0
        self.graceful = False
        self.on_connect: Callable[[Connect, Packet], int] | None = None
        self.on_subscribe: Callable[[Packet, int], int] | None = None
        self.on_unsubscribe: Callable[[Packet], object] | None = None
        self.has_session = False
        self._codes = bytearray(_MAX_FILTERS)
        self.takes = SERVER_TAKES
        self.handlers = SERVER_HANDLERS
        if version is not None:
            version.attach(self)

    def use_version(
        self, takes: "tuple[int, ...]", handlers: "tuple[Callable[[Any, Any], int], ...]", connect: Connect
    ) -> None:
        """Select another version than 3.1.1. Called by the version's ``attach``.

        Sets the packet types that each state accepts, their handlers, and the cursor of CONNECT.
        """
        self.takes = takes
        self.handlers = handlers
        self.connect_packet = connect

    def listen(self, now_ms: int) -> None:
        """Start over a new transport and wait for CONNECT."""
        if self.v5 is not None:
            self.v5.listening()
        self.begin(now_ms)
        self.graceful = False
        self.event(OPEN)

    def _is_silent(self, now_ms: int) -> bool:
        """Return whether nothing has arrived for one and a half keep-alives (3.1.2.10)."""
        return (now_ms - self.rx_time) & TICKS_MASK >= self.keep_alive * 1500

    def decide(self, p: "Packet") -> int:
        """Pass a well-formed CONNECT to the application, and act on its decision. Return 0 or an error."""
        if self.on_connect is None:
            return self.accept(self.has_session)
        epoch = self.epoch
        code = self.on_connect(self.connect_packet, p)
        if self.epoch != epoch:
            # The connection has ended, so there is no client to answer.
            return 0
        return self.refuse_connect(code) if 0 < code < SESSION_PRESENT else self.accept(code > 0)

    def accept(self, present: bool) -> int:
        """Accept the client, and resume the stored session if ``present``. Return 0 or an error."""
        c = self.connect_packet
        if self.v5 is not None and not self.v5.accepts_connect():
            return self.refuse_connect(_BAD_CLIENT_ID_5)
        # A clean start discards a stored session (3.2.2.2).
        present = present and not c.clean_start()
        if not present:
            self.outbox.clear()
        self.has_session = not c.clean_start() if self.v5 is None else self.v5.session_expiry > 0
        self.keep_alive = c.keep_alive
        self._put_connack(present, spec.ACCEPTED)
        self.event(ACCEPT)
        self.resume(present)
        return 0

    def refuse_connect(self, code: int) -> int:
        """Send CONNACK with a refusing code, or AUTH at 5.0. Return 0 or an error."""
        if self.v5 is not None and code == _CONTINUE_AUTHENTICATION:
            return self.v5.ask_auth(code)  # type: ignore[no-any-return]
        self._put_connack(False, code)
        self.event(FINISH)
        return 0

    def _put_connack(self, present: bool, code: int) -> None:
        block = b"" if self.v5 is None else self.v5.connack_block(code)
        self.tx_end = encode_connack(self.tx, 0, self.tx_size, present, code, block)

    def answer_filters(self, p: "Packet") -> int:
        """Pass each filter to the application, and send the resulting codes. Return 0, LATER or E_RX_TOO_LARGE."""
        size = p.code + (_SUBACK_HEAD if self.v5 is None else _SUBACK_HEAD + 1)
        if p.code > _MAX_FILTERS or size > len(self.tx):
            return errors.E_RX_TOO_LARGE
        if self.tx_size - self.tx_end < size:
            return LATER
        packet_id = p.packet_id
        n = 0
        epoch = self.epoch
        # The handler may send retained messages: room for the answer is reserved.
        self.tx_size -= size
        try:
            qos = next_filter(p)
            while qos >= 0 and self.epoch == epoch:
                self._codes[n] = self._grant(p, qos)
                n += 1
                qos = next_filter(p)
        finally:
            if self.epoch == epoch:
                self.tx_size += size
        if self.epoch == epoch:
            self._put_codes(packet_id, memoryview(self._codes)[:n])
        return 0

    def _put_codes(self, packet_id: int, codes: "Bytes") -> None:
        if self.v5 is None:
            self.tx_end = encode_suback(self.tx, self.tx_end, self.tx_size, packet_id, codes)
            return
        # SUBACK or UNSUBACK: one more than the type of the request.
        self.tx_end = encode_suback(
            self.tx, self.tx_end, self.tx_size, packet_id, codes, _NO_PROPERTIES, (self.packet.head >> 4) + 1
        )

    def _grant(self, p: "Packet", qos: int) -> int:
        """Return SUBACK's code for one filter; at 5.0 also UNSUBACK's."""
        if self.v5 is not None:
            return self.v5.grant(p, qos)  # type: ignore[no-any-return]
        return self.on_subscribe(p, qos) if self.on_subscribe is not None else qos

    def disconnect(self, code: int = 0, properties: "Bytes" = b"") -> int:
        """Queue DISCONNECT with a reason code. Return 0, an error, or E_STATE before 5.0, where a server does not send
        it."""
        return errors.E_STATE if self.v5 is None else super().disconnect(code, properties)

    def closing(self) -> bool:
        """Return whether the transport must be closed once ``out`` returns 0."""
        return self.state == CLOSING


def on_connect(s: ServerSession, p: "Packet") -> int:
    """Handle CONNECT."""
    c = s.connect_packet
    bad = decode_connect(p, c)
    if bad == errors.E_PROTOCOL and c.level >= 0:
        return s.refuse_connect(spec.BAD_LEVEL)
    if bad:
        return bad
    if c.client_id_at == c.client_id_end and not c.clean_start():
        return s.refuse_connect(spec.BAD_CLIENT_ID)
    return s.decide(p)


def on_subscribe(s: ServerSession, p: "Packet") -> int:
    """Handle SUBSCRIBE; at 5.0 also UNSUBSCRIBE, whose answer has codes as well."""
    return decode_subscribe(p) or s.answer_filters(p)


def on_unsubscribe(s: ServerSession, p: "Packet") -> int:
    """Handle UNSUBSCRIBE before 5.0."""
    bad = decode_subscribe(p)
    if bad:
        return bad
    packet_id = p.packet_id
    if s.on_unsubscribe is not None:
        epoch = s.epoch
        s.tx_size -= _UNSUBACK_SIZE
        try:
            while s.epoch == epoch and next_filter(p) >= 0:
                s.on_unsubscribe(p)
        finally:
            if s.epoch == epoch:
                s.tx_size += _UNSUBACK_SIZE
        if s.epoch != epoch:
            return 0
    put_ack(s, spec.UNSUBACK, packet_id)
    return 0


def on_pingreq(s: ServerSession, p: "Packet") -> int:
    """Handle PINGREQ."""
    s.tx_end = encode_bare(s.tx, s.tx_end, s.tx_size, spec.PINGRESP)
    return 0


def on_disconnect(s: ServerSession, p: "Packet") -> int:
    """Handle DISCONNECT."""
    s.graceful = True
    s.event(FINISH)
    return 0


#: The server's handler of each packet type.
SERVER_HANDLERS = (
    refuse,
    on_connect,
    refuse,
    on_publish,
    on_ack,
    on_ack,
    on_pubrel,
    on_ack,
    on_subscribe,
    refuse,
    on_unsubscribe,
    refuse,
    on_pingreq,
    refuse,
    on_disconnect,
    refuse,
)
