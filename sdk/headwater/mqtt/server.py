"""A server's end of one connection (MQTT 3.1.1): what the gateway speaks to its serial boards, and tests to a
client.

It keeps one client's session. Routing between clients is not its affair.
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
from headwater.mqtt.session import LATER, SERVER_TAKES, Session, put_ack
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes, NameCheck, Outbox

#: What ``on_connect`` answers to take a client back into its session; 0 takes it into a new one.
SESSION_PRESENT = const(256)
_MAX_FILTERS = const(64)
# UNSUBACK.
_UNSUBACK_SIZE = const(4)


class ServerSession(Session):
    """A server's end of a connection. ``listen`` when a transport is there; CONNECT must come within
    ``response_ms``.

    ``on_connect(connect, packet)`` decides: 0 (a new session), SESSION_PRESENT, or a return code of 3.2.2.3.
    Without it, everyone is taken, into the kept session unless the client asks for a clean one.
    ``on_subscribe(packet, qos)`` is asked for each filter (``packet.topic_bytes()``): 0, 1, 2 or 0x80;
    ``on_unsubscribe(packet)`` is told. ``connect_packet`` keeps CONNECT's fields, which are offsets into the
    buffer and valid only during ``on_connect``. ``graceful``: the client said DISCONNECT: no will (3.14.4).
    """

    # SUBACK without its codes.
    _suback_head = 4

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
    ):
        super().__init__(
            rx or RxBuf(rx_size),
            tx_size,
            outbox or RamOutbox(outbox_size, slots),
            window,
            receive_window,
            response_ms,
            check,
        )
        self.connect_packet = Connect()
        self.keep_alive = 0
        self.graceful = False
        self.on_connect: Callable[[Connect, Packet], int] | None = None
        self.on_subscribe: Callable[[Packet, int], int] | None = None
        self.on_unsubscribe: Callable[[Packet], object] | None = None
        self._has_session = False
        self._codes = bytearray(_MAX_FILTERS)
        self._takes = SERVER_TAKES
        refuse = self._refuse
        ack = self._on_ack
        self._handlers = (
            refuse,
            self._on_connect,
            refuse,
            self._on_publish,
            ack,
            ack,
            self._on_pubrel,
            ack,
            self._on_subscribe,
            refuse,
            self._on_unsubscribe,
            refuse,
            self._on_pingreq,
            refuse,
            self._on_disconnect,
            refuse,
        )

    def listen(self, now_ms: int) -> None:
        """A transport is there: wait for CONNECT."""
        self.begin(now_ms)
        self.graceful = False
        self.event(OPEN)

    def _is_silent(self, now_ms: int) -> bool:
        """Whether nothing has come for one and a half keep-alives (3.1.2.10)."""
        return (now_ms - self.rx_time) & TICKS_MASK >= self.keep_alive * 1500

    def _on_connect(self, p: "Packet") -> int:
        c = self.connect_packet
        bad = decode_connect(p, c)
        if bad == errors.E_PROTOCOL and c.level >= 0:
            return self._refuse_connect(spec.BAD_LEVEL)
        if bad:
            return bad
        if c.client_id_at == c.client_id_end and not c.clean():
            return self._refuse_connect(spec.BAD_CLIENT_ID)
        return self._decide(p)

    def _decide(self, p: "Packet") -> int:
        """Ask the application what becomes of a CONNECT that is well-formed."""
        if self.on_connect is None:
            return self._accept(self._has_session)
        turn = self.turn
        code = self.on_connect(self.connect_packet, p)
        if self.turn != turn:
            # The connection is over: there is nobody to answer.
            return 0
        return self._refuse_connect(code) if 0 < code < SESSION_PRESENT else self._accept(code > 0)

    def _accept(self, present: bool) -> int:
        """Take the client, into the session that was kept if it is ``present``."""
        c = self.connect_packet
        # A clean session begins anew, whatever was kept (3.2.2.2).
        present = present and not c.clean()
        if not present:
            self.outbox.clear()
        self._has_session = not c.clean()
        self.keep_alive = c.keep_alive
        self._put_connack(present, spec.ACCEPTED)
        self.event(ACCEPT)
        self.resume(present)
        return 0

    def _refuse_connect(self, code: int) -> int:
        self._put_connack(False, code)
        self.event(FINISH)
        return 0

    def _put_connack(self, present: bool, code: int) -> None:
        self.tx_end = encode_connack(self.tx, 0, self.tx_size, present, code)

    def _on_subscribe(self, p: "Packet") -> int:
        return decode_subscribe(p) or self._answer_filters(p)

    def _answer_filters(self, p: "Packet") -> int:
        """Ask the application about each filter, and send its codes."""
        size = p.code + self._suback_head
        if p.code > _MAX_FILTERS or size > len(self.tx):
            return errors.E_RX_TOO_LARGE
        if self.tx_size - self.tx_end < size:
            return LATER
        packet_id = p.packet_id
        n = 0
        turn = self.turn
        # The handler may send what is retained: room for the answer is kept.
        self.tx_size -= size
        try:
            qos = next_filter(p)
            while qos >= 0 and self.turn == turn:
                self._codes[n] = self._grant(p, qos)
                n += 1
                qos = next_filter(p)
        finally:
            if self.turn == turn:
                self.tx_size += size
        if self.turn == turn:
            self._put_codes(packet_id, memoryview(self._codes)[:n])
        return 0

    def _put_codes(self, packet_id: int, codes: "Bytes") -> None:
        self.tx_end = encode_suback(self.tx, self.tx_end, self.tx_size, packet_id, codes)

    def _grant(self, p: "Packet", qos: int) -> int:
        """SUBACK's code for one filter."""
        return self.on_subscribe(p, qos) if self.on_subscribe is not None else qos

    def _on_unsubscribe(self, p: "Packet") -> int:
        bad = decode_subscribe(p)
        if bad:
            return bad
        packet_id = p.packet_id
        if self.on_unsubscribe is not None:
            turn = self.turn
            self.tx_size -= _UNSUBACK_SIZE
            try:
                while self.turn == turn and next_filter(p) >= 0:
                    self.on_unsubscribe(p)
            finally:
                if self.turn == turn:
                    self.tx_size += _UNSUBACK_SIZE
            if self.turn != turn:
                return 0
        put_ack(self, spec.UNSUBACK, packet_id)
        return 0

    def _on_pingreq(self, p: "Packet") -> int:
        self.tx_end = encode_bare(self.tx, self.tx_end, self.tx_size, spec.PINGRESP)
        return 0

    def _on_disconnect(self, p: "Packet") -> int:
        self.graceful = True
        self.event(FINISH)
        return 0

    def closing(self) -> bool:
        """Whether the transport is to be closed once ``out`` is 0."""
        return self.state == CLOSING
