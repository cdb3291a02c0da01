"""The client's session (MQTT 3.1.1).

Connect, publish, subscribe, keep alive; what is unacknowledged outlives a connection.
"""

from array import array

from headwater import errors
from headwater.mqtt.endpoint import Endpoint
from headwater.mqtt.packets import (
    PROTOCOL,
    check_filter,
    check_name,
    decode_connack,
    decode_suback,
    encode_bare,
    encode_connect,
    encode_subscribe,
)
from headwater.mqtt.sender import NO_TOPIC
from headwater.mqtt.transitions import CLIENT_TAKES
from headwater.rxbuf import RxBuf
from headwater.store import FIRST_REQUEST_ID, RamOutbox
from headwater.transitions import ACCEPT, CLOSING, FINISH, LOST, ONLINE, OPEN
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes, NameCheck, Outbox

_SUBACK = const(9)
_UNSUBACK = const(11)
_PINGREQ = const(12)
_DISCONNECT = const(14)
_SUBSCRIBE_FAILED = const(0x80)
_REQUESTS = const(8)
_GENERATIONS = const(31)
# Topic, payload, QoS and RETAIN.
_NO_WILL: "tuple[Bytes | None, Bytes, int, bool]" = (None, b"", 0, False)


class ClientSession(Endpoint):
    """A client's end. Strings are bytes in UTF-8; times are milliseconds, ``keep_alive`` seconds (0 = none).

    ``clean`` (3.1.2.4): with False the server keeps the session, and QoS 2 is exactly once across
    connections. Buffers: a packet to be received whole must fit in seven eighths of ``rx_size``; CONNECT and
    SUBSCRIBE, and PUBLISH at QoS 0, must fit in ``tx_size``, PUBLISH at QoS 1 and 2 in ``outbox_size``.
    ``slots`` messages may be unacknowledged or waiting, ``window`` of them sent. ``receive_window`` is how
    many QoS 2 messages the server may have open.

    ``on_online(session_present)`` is called when the server has accepted; ``on_answer(packet_id, code)`` for
    SUBACK (code 0, 1, 2 or 0x80, refused) and UNSUBACK (code 0); without it a refusal raises HeadwaterError, E_REFUSED,
    from ``feed``, as a handler may. The will is set by ``set_will``.
    """

    # What CONNECT says of the version: name and level, and 5.0's blocks of properties.
    _protocol = PROTOCOL
    _properties: "Bytes" = b""
    _will_properties: "Bytes" = b""
    _check_filter = staticmethod(check_filter)

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
        self.client_id = client_id
        self.keep_alive = keep_alive
        self.clean = clean
        self._user = user
        self._password = password
        self._will = _NO_WILL
        #: CONNACK's return code (3.2.2.3), when the status is E_REFUSED.
        self.return_code = 0
        #: Whether the server had kept the session, by its last CONNACK (3.2.2.2).
        self.session_present = False
        self.on_online: Callable[[bool], object] | None = None
        self.on_answer: Callable[[int, int], object] | None = None
        # SUBSCRIBE and UNSUBSCRIBE that wait for their answer: packet id (0 = free place), the answer's type, and how
        # many filters there are.
        self._request_ids = array("H", bytes(2 * _REQUESTS))
        self._request_answers = bytearray(_REQUESTS)
        self._request_counts = bytearray(_REQUESTS)
        self._generation = 0
        self._takes = CLIENT_TAKES
        refuse = self._refuse
        ack = self._on_ack
        self._handlers = (
            refuse,
            refuse,
            self._on_connack,
            self._on_publish,
            ack,
            ack,
            self._on_pubrel,
            ack,
            refuse,
            self._on_suback,
            refuse,
            self._on_unsuback,
            refuse,
            self._on_pingresp,
            refuse,
            refuse,
        )

    def set_will(
        self, topic: "Bytes | None", payload: "Bytes" = b"", qos: int = 0, retain: bool = False
    ) -> int:
        """What the server publishes when the connection is lost (3.1.2.5), from the next ``connect`` on.

        E_TOPIC, E_QOS, E_ARGUMENT (not bytes, or too many).
        """
        try:
            if topic is not None and (len(topic) > 65535 or self._check(topic, 0, len(topic))):
                return errors.E_TOPIC
        except NOT_BYTES:
            return errors.E_ARGUMENT
        if not is_bytes(payload) or len(payload) > 65535:
            return errors.E_ARGUMENT
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        self._will = (topic, payload, qos, retain)
        return 0

    def connect(self, now_ms: int) -> int:
        """A transport is there: begin with CONNECT. E_TOO_LARGE or E_ARGUMENT when it cannot be built."""
        self.begin(now_ms)
        self.pinged = False
        self.return_code = 0
        for i in range(_REQUESTS):
            self._request_ids[i] = 0
        try:
            end = encode_connect(
                self.tx,
                0,
                self.tx_size,
                self.client_id,
                self.keep_alive,
                self.clean,
                self._will[0],
                self._will[1],
                self._will[2],
                self._will[3],
                self._user,
                self._password,
                self._protocol,
                self._properties,
                self._will_properties,
            )
        except NOT_BYTES:
            end = errors.E_ARGUMENT
        if end < 0:
            self.event(LOST)
            return end
        self.tx_end = end
        self.event(OPEN)
        return 0

    def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """SUBSCRIBE to one filter. Returns the packet id, which ``on_answer`` gets with the answer.

        E_FILTER, E_QOS, E_ARGUMENT, E_OFFLINE, E_TOO_LARGE; E_AGAIN when the transmit buffer is full or eight requests
        are unanswered.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self._request(topic_filter, qos, _SUBACK)

    def unsubscribe(self, topic_filter: "Bytes") -> int:
        """UNSUBSCRIBE from one filter; as ``subscribe``."""
        return self._request(topic_filter, -1, _UNSUBACK)

    def _request(self, topic_filter: "Bytes", qos: int, answer: int, properties: "Bytes" = b"") -> int:
        try:
            n = len(topic_filter)
            if n > 65535 or self._check_filter(topic_filter, 0, n):
                return errors.E_FILTER
        except NOT_BYTES:
            return errors.E_ARGUMENT
        packet_id = self._request_id()
        if packet_id < 0:
            return packet_id
        bad = self._put(
            encode_subscribe(self.tx, self.tx_end, self.tx_size, packet_id, topic_filter, qos, properties)
        )
        return bad or self._requested(packet_id, answer, 1)

    def _request_id(self) -> int:
        """The packet id that the next request is to have: or E_OFFLINE, E_AGAIN."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        k = 0
        while self._request_ids[k]:
            k += 1
            if k == _REQUESTS:
                return errors.E_AGAIN
        return FIRST_REQUEST_ID + k + _REQUESTS * self._generation

    def _requested(self, packet_id: int, answer: int, count: int) -> int:
        """A request with this id, for so many filters, waits for its answer: the id."""
        k = (packet_id - FIRST_REQUEST_ID) % _REQUESTS
        # An id is not taken again soon, so that a late answer is not mistaken for another's.
        self._generation = (self._generation + 1) % _GENERATIONS
        self._request_ids[k] = packet_id
        self._request_answers[k] = answer
        self._request_counts[k] = count
        return packet_id

    def disconnect(self) -> int:
        """Queue DISCONNECT (3.14).

        Close the transport once ``out`` is 0. E_AGAIN when the transmit buffer is full for now.
        """
        if self.state == CLOSING:
            return 0
        if self.state == ONLINE:
            bad = self._put(encode_bare(self.tx, self.tx_end, self.tx_size, _DISCONNECT))
            if bad:
                return bad
        self.ready = NO_TOPIC
        self.event(FINISH)
        return 0

    def awaits(self) -> bool:
        """As of ``Outgoing``."""
        return any(self._request_ids) or super().awaits()

    def _put_ping(self) -> int:
        return encode_bare(self.tx, self.tx_end, self.tx_size, _PINGREQ)

    # -- what arrives --------------------------------------------------------------------------------------------------

    def _on_connack(self, p: "Packet") -> int:
        return decode_connack(p) or self._accepted(p)

    def _accepted(self, p: "Packet") -> int:
        """What CONNACK means."""
        if p.code:
            self.return_code = p.code
            return errors.E_REFUSED
        if p.session_present and self.clean:
            p.bad_at = p.body
            return errors.E_CODE
        self.session_present = p.session_present
        self.event(ACCEPT)
        turn = self.turn
        self.resume(p.session_present)
        # The connection may have ended in ``on_delivered``: then it is not this one that is online.
        if self.on_online is not None and self.turn == turn:
            self.on_online(self.session_present)
        return 0

    def _on_suback(self, p: "Packet") -> int:
        return decode_suback(p) or self._answered(p, _SUBACK, p.end - p.payload_at)

    def _on_unsuback(self, p: "Packet") -> int:
        return decode_suback(p) or self._answered(p, _UNSUBACK, p.end - p.payload_at)

    def _answered(self, p: "Packet", answer: int, count: int) -> int:
        """An answer has come, with ``count`` codes at ``payload_at``: one for each filter; 3.1.1's UNSUBACK has 0."""
        for k in range(_REQUESTS):
            if self._request_ids[k] == p.packet_id:
                if self._request_answers[k] != answer:
                    return errors.E_ACK_KIND
                if count and count != self._request_counts[k]:
                    # (3.8.4-5)
                    return errors.E_SIZE
                self._request_ids[k] = 0
                self._tell_answer(p, count)
                return 0
        if count > 1:
            return errors.E_SIZE
        self.strays += 1
        return 0

    def _tell_answer(self, p: "Packet", count: int) -> None:
        code = p.buf[p.payload_at] if count else 0
        if self.on_answer is not None:
            self.on_answer(p.packet_id, code)
        elif code >= _SUBSCRIBE_FAILED:
            raise errors.HeadwaterError(errors.E_REFUSED)

    def _on_pingresp(self, p: "Packet") -> int:
        self.pinged = False
        return 0
