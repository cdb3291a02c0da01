"""MQTT sessions: the common base of client and server (``Session``), and the client's session (``ClientSession``).

A session does no I/O and reads no clock. Its caller

- reads at most ``rx.room`` bytes to the start of ``rx.view`` (after ``rx.window()``) and calls ``feed(n)``;
- sends ``out_buf[out_at : out_at + n]``, n from ``out()``, and calls ``sent(k)`` with the number of bytes accepted;
- calls ``poll(now_ms)`` a few times a second, and closes the transport if any of these returns a negative status.

After a protocol error of the peer the state is ERROR: ``feed`` and ``out`` return the same code and do nothing.
Publishing, receiving, acknowledging, retransmitting and keep-alive allocate nothing.

In CONNECTING only CONNACK (client) or CONNECT (server) may arrive [3.1.0-1, 3.2.0-1]; in ONLINE a second one is an
error [3.1.0-2]. In CLOSING the last packet, DISCONNECT or a refusing CONNACK, is being sent, and received bytes are
ignored [3.14.4-2]. ``headwater.connection`` defines the states; ``docs/mqtt-session.md`` has the diagrams.

Delivery of published messages at QoS 1 and 2 [4.3.2, 4.3.3]:

- AT1: PUBLISH (QoS 1) is stored; PUBACK completes it.
- AT2: PUBLISH (QoS 2) is stored; PUBREC moves it to REL.
- REL: PUBREL is sent or queued; PUBCOMP completes it. A second PUBREC means that the peer has not received PUBREL: it
  is retransmitted.
- DONE: acknowledged; the slot is free once all older messages are acknowledged.

An acknowledgement of a packet identifier that is not in flight is STRAY. It is counted and otherwise ignored, because
after a lost session it is no protocol error. A stray PUBREC is still answered with PUBREL, so that the peer can release
the identifier. An acknowledgement of the wrong type for the QoS of its message is a protocol error: WRONG.

No class here has a property: MicroPython would then look through all its bases at every store of an attribute, which
costs eight times the store.
"""

from array import array

from headwater import errors
from headwater.connection import (
    ACCEPT,
    CLOSING,
    FINISH,
    FIRST_REQUEST_ID,
    LOST,
    NO_TOPIC,
    ONLINE,
    OPEN,
    Endpoint,
    RamOutbox,
    RxBuf,
    go_behind,
    was_sent,
)
from headwater.mqtt.packets import (
    MESSAGE,
    PROTOCOL,
    Packet,
    check_filter,
    check_name,
    decode_ack,
    decode_connack,
    decode_header,
    decode_publish,
    decode_suback,
    encode_ack,
    encode_bare,
    encode_connect,
    encode_subscribe,
    packet_size,
    put_publish,
)
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.types import Bytes, NameCheck, Outbox

#: The packet types that each state accepts, one bit for each type: at a client, and at a server.
CLIENT_TAKES = (0, 1 << 2, 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9 | 1 << 11 | 1 << 13, 0, 0)
SERVER_TAKES = (
    0,
    1 << 1,
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12 | 1 << 14,
    0,
    0,
)

#: The next state of a message: ``DELIVERY[state * 4 + type - 4]`` for PUBACK (4), PUBREC (5), PUBREL (unused) and
#: PUBCOMP (7).
DELIVERY = (
    # PUBACK PUBREC - PUBCOMP
    b"\x05\x05\x05\x05"  # FREE
    b"\x04\x06\x06\x06"  # AT1
    b"\x06\x03\x06\x06"  # AT2
    b"\x06\x03\x06\x04"  # REL
    b"\x05\x05\x05\x05"  # DONE
)

_PUBLISH = const(3)
_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_ACK_SIZE = const(4)
_PUBACK_HEAD = const(0x40)
# Packet Identifier not found (5.0, 2.4).
_NOT_FOUND = const(0x92)
# In ``takes``: the bit of PUBLISH. States that accept PUBLISH accept PUBACK.
_TAKES_PUBLISH = const(8)
_DUP = const(8)
_MAX_PACKET = const(268435460)
# CONNECT needs at least 14 bytes.
_SMALLEST = const(16)
# Copies of constants of ``connection``: a constant costs less than a name.
_FREE = const(0)
_AT1 = const(1)
_AT2 = const(2)
_REL = const(3)
_DONE = const(4)
_WRONG = const(6)
_ONLINE = const(2)
# The longest packet whose remaining length has one byte.
_SHORT = const(129)
# Bits of ``opened_now``: received on this connection; its handler is running; received again meanwhile.
_OPENED = const(1)
_RUNNING = const(2)
_REPEATED = const(4)
#: Returned instead of a place for a QoS 2 identifier: the message is a duplicate.
REPETITION = const(-1)
#: Returned by a handler to process its packet again later.
LATER = const(1)
_SUBACK = const(9)
_UNSUBACK = const(11)
_PINGREQ = const(12)
_DISCONNECT = const(14)
_SUBSCRIBE_FAILED = const(0x80)
# An empty property block (5.0).
_NO_PROPERTIES = b"\x00"
_REQUESTS = const(8)
_GENERATIONS = const(31)


class Session(Endpoint):
    """The common part of ``ClientSession`` and ``server.ServerSession``.

    ``on_message(packet)`` is called for each message with a reusable cursor: copy what must outlive the call. A message
    at QoS 1 or 2 is acknowledged when the call returns; with ``headwater.mqtt.manual_ack`` the application acknowledges
    it. A message whose handler raises is not acknowledged: the exception passes through ``feed``, and the next
    ``feed(0)`` continues after the message.

    Messages larger than the receive buffer are skipped: acknowledged, counted in ``skipped``, not delivered. With
    ``headwater.streaming`` they are passed to a sink in pieces.

    ``on_delivered(packet_id)`` is called when a published message at QoS 1 or 2 is completely acknowledged.
    """

    def __init__(
        self,
        rx: RxBuf,
        tx_size: int,
        outbox: "Outbox",
        window: int,
        receive_window: int,
        response_ms: int,
        check: "NameCheck" = check_name,
        version: "Any" = None,
    ):
        if tx_size < _SMALLEST:
            raise ValueError("tx_size %r: need at least 16 bytes" % tx_size)
        super().__init__(rx, tx_size, outbox, window, response_ms)
        self._check = check
        #: The table of a message's next state by acknowledgement; a session may replace it.
        self.delivery = DELIVERY
        #: ``manual_ack.ManualAck``, if the application acknowledges messages itself.
        self.acks: Any = None
        #: The largest packet that the peer accepts, in bytes (5.0: its Maximum Packet Size).
        self.most = _MAX_PACKET
        #: The protocol version if not 3.1.1: ``v31.V31``, or a ``v5.V5``, which is also ``v5``. None at 3.1.1.
        self.version: Any = version
        self.v5: Any = version if version is not None and version.is_5 else None
        # The release of unknown QoS 2 identifiers (``resume``): PUBCOMPs still awaited, and the last identifier sent.
        self.sweep = self._swept = 0
        self.packet = Packet(rx.buf, check) if self.v5 is None else self.v5.cursor(rx.buf, check)
        # A packet above the receive buffer's capacity is never handled whole, even if all of it has arrived.
        self.packet.short = min(128, rx.capacity - 1)
        #: Messages at QoS 1 of this connection that the application has not acknowledged yet.
        self.unanswered = 0
        # Parses packets for ``Endpoint.feed``.
        self.take_packets = take_packets
        #: The identifiers of received QoS 2 messages that wait for PUBREL (4.3.3); 0 is a free place.
        self._received = outbox.received
        if self._received is not None:
            receive_window = max(receive_window, len(self._received.ids))
        self.receive_window = receive_window
        self.open_ids = array("H", bytes(2 * receive_window))
        if self._received is not None:
            # Restored identifiers: their messages were delivered and answered before the restart.
            for i in range(len(self._received.ids)):
                self.open_ids[i] = self._received.ids[i]
        #: Flags of each identifier, such as ``_OPENED``; the number of identifiers received on this connection.
        self.opened_now = bytearray(receive_window)
        self.qos2_opened = 0
        # The current large message: bytes still to receive of a topic that does not fit; its QoS, or 0 if it must not
        # be acknowledged; its packet identifier.
        self.large_head = self.large_qos = self.large_id = 0
        # The packet types accepted by each state, and the function that handles each type.
        self.takes: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.handlers: tuple[Callable[[Any, Any], int], ...] = ()

    # -- the connection ------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Start a connection over a new transport (``Endpoint.begin``), without messages to acknowledge."""
        super().begin(now_ms)
        self.unanswered = self.qos2_opened = 0
        for i in range(len(self.opened_now)):
            self.opened_now[i] &= _RUNNING
        if self.acks is not None:
            self.acks.begin()

    def fail(self, code: int) -> int:
        """Break the connection with the error ``code``, which stays in ``status``. Return ``code``.

        At 5.0 a last packet with the reason code is queued, unless a packet is partly sent: ``out`` offers it once
        before it returns the status.
        """
        v5 = self.v5
        if v5 is None:
            return super().fail(code)
        state = self.state
        reason = v5.reason_for(code)
        super().fail(code)
        if reason:
            v5.put_last_packet(state, reason)
        return code

    def _stop(self) -> None:
        if self.v5 is not None:
            self.v5.stop()
        self.large_head = 0
        super()._stop()

    def resume(self, session_present: bool) -> None:
        """Retransmit all unacknowledged messages (4.4): first PUBREL, then PUBLISH, each in order. New messages follow.

        If the server has lost the session, a QoS 2 message that it had answered with PUBREC counts as delivered. The
        others become new messages of the new session.
        """
        if self.version is not None:
            i = self.version.resuming(session_present)
            if i < 0:
                return
            session_present = i > 0
        if not session_present:
            for i in range(len(self.open_ids)):
                self.open_ids[i] = self.opened_now[i] = 0
            if self._received is not None and self._received.closed(0):
                self.fail(errors.E_STORE)
                return
        box = self.outbox
        epoch = self.epoch
        # ``on_delivered`` may publish: block sending until the state of the outbox is settled.
        self.in_flight = self.window
        try:
            if not session_present:
                _renew(box)
                i = box.head
                for _ in range(box.count):
                    if box.state[i] == _REL:
                        self._delivered(i)
                        if self.epoch != epoch:
                            return
                    i = i + 1 if i + 1 < box.slots else 0
        finally:
            # Also if ``on_delivered`` raises, but not if it has ended the connection or started another.
            if self.epoch == epoch:
                self._entry = box.head
                self._unsent = box.count
                # REL is 3.
                self.in_flight = box.state.count(b"\x03")
                self._ahead = 1 + box.count
                # A server that has kept a session which this client has forgotten (a reset, with the outbox in RAM) may
                # hold QoS 2 identifiers that are about to be reused, and would take the new messages for duplicates.
                # Therefore PUBREL releases every identifier before the first QoS 2 message; an unused identifier is
                # answered too (4.3.3). Not earlier, because a server without QoS 2 does not know PUBREL either.
                self.sweep = box.slots if session_present and box.fresh else 0
                self._swept = 0
                if box.fresh and not session_present and box.settle():
                    self.fail(errors.E_STORE)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _check_limit(self) -> int:
        """Break the connection above the announced Receive Maximum (5.0). Return 0 or E_RX_WINDOW."""
        if self.v5 is not None and self.v5.exceeds_receive_limit():
            return self.fail(errors.E_RX_WINDOW)
        return 0

    def _read_publish(self, p: Packet) -> int:
        """Decode PUBLISH. Return 0 or an error. At 5.0 a topic alias is resolved."""
        bad = decode_publish(p, p.body, p.end)
        return bad if bad < 0 or self.v5 is None else self.v5.read_publish(p, bad)

    def _take(self, p: Packet) -> int:
        """Deliver a message to the application and acknowledge it; the buffer has room for that. Return 0 or
        E_RX_WINDOW.

        Returns LATER if earlier acknowledgements must be sent first. The server does not retransmit acknowledged
        messages on the next connection, so one that sends more than the window (mosquitto does when it resumes a
        session) delivers everything eventually.
        """
        if self.acks is not None:
            return self.acks.take(p)  # type: ignore[no-any-return]
        if p.head & 4:
            i = self.open_qos2(p.packet_id)
            if i == REPETITION:
                self.answer_duplicate(p.packet_id)
                return 0
            if i < 0:
                return LATER if self.tx_end else i
            deliver(self, self.on_message, p, i, p.packet_id)
        elif p.head & 2:
            deliver_1(self, p)
        elif self.on_message is not None:
            self.on_message(p)
        return 0

    def find_qos2(self, packet_id: int) -> int:
        """Return the place of a QoS 2 identifier in flight, or -1; for 0, a free place."""
        ids = self.open_ids
        for i in range(len(ids)):
            if ids[i] == packet_id:
                return i
        return -1

    def open_qos2(self, packet_id: int, full: bool = False) -> int:
        """Record the QoS 2 identifier of a new message. Return its place, or REPETITION if it is in flight (4.3.3).

        Returns E_RX_WINDOW if there is no free place, or if ``full`` is true.
        """
        if self.version is not None:
            self.version.opening(packet_id)
        if self.find_qos2(packet_id) >= 0:
            self.duplicates += 1
            return REPETITION
        i = -1 if full else self.free_qos2()
        if i < 0:
            return errors.E_RX_WINDOW
        self.open_ids[i] = packet_id
        self.opened_now[i] = _OPENED
        self.qos2_opened += 1
        return i

    def free_qos2(self) -> int:
        """Return a free place for a QoS 2 identifier, or -1."""
        if self.v5 is not None and self.v5.is_full():
            return -1
        return self.find_qos2(0)

    def close_qos2(self, i: int) -> None:
        """Release the place of a QoS 2 identifier."""
        self.open_ids[i] = 0
        if self.opened_now[i] & _OPENED:
            self.qos2_opened -= 1
        self.opened_now[i] = 0

    def answer_qos2(self, packet_id: int, code: int = 0) -> None:
        """Send PUBREC. From now on the message is never delivered again, even after a restart."""
        if self._received is not None and self._received.opened(packet_id):
            self.fail(errors.E_STORE)
        else:
            put_ack(self, _PUBREC, packet_id, code)

    def answer_duplicate(self, packet_id: int) -> None:
        """Send PUBREC for a duplicate. While the handler of the message runs, leave that to ``deliver``."""
        i = self.find_qos2(packet_id)
        if self.opened_now[i] & _RUNNING:
            self.opened_now[i] |= _REPEATED
        else:
            self.answer_qos2(packet_id)

    def record_qos2(self, packet_id: int) -> int:
        """Record a message as delivered after its connection ended: a duplicate is answered. Return 0 or E_STORE."""
        return 0 if self._received is None else self._received.opened(packet_id)

    # -- messages larger than the receive buffer ---------------------------------------------------------------------

    def _payload_begins(self, i: int, end: int) -> int:
        """Return the offset of the payload of the PUBLISH at ``i``, by its topic length.

        Returns 0 if that length has not arrived, or E_FIELD. The offset may be beyond the receive buffer's capacity.
        """
        p = self.packet
        at = p.body
        if self.v5 is not None and 0 < self.v5.max_packet < p.end - i:
            return errors.E_RX_TOO_LARGE
        if end - at < 2:
            return 0
        capacity_end = i + self.rx.capacity
        i = at + 2 + (p.buf[at] << 8 | p.buf[at + 1])
        if p.head & 6:
            i += 2
        if i > p.end:
            p.bad_at = at
            return errors.E_FIELD
        return i if self.v5 is None else self.v5.payload_begins(i, end, capacity_end)

    # -- sending -------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: "Bytes",
        payload: "Bytes",
        qos: int = 0,
        retain: bool = False,
        properties: "Bytes" = b"",
    ) -> int:
        """Publish a message; ``out`` sends it. Allocates nothing if topic and payload are bytes-like.

        ``properties`` is a property block (5.0: ``properties.Properties.block``). Returns 0 (QoS 0) or the packet
        identifier (QoS 1 and 2): the message then stays in the outbox, connected or not, until it is acknowledged.
        Errors: E_TOPIC, E_QOS; E_ARGUMENT (not bytes, or wrong properties); E_OFFLINE (QoS 0 without a connection);
        E_AGAIN (the transmit buffer is full for now); E_WINDOW (the outbox is full); E_TOO_LARGE; E_LIMIT (5.0: the
        peer does not accept this QoS, or RETAIN); E_STORE.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self.enqueue(topic, payload, qos << 1 | (1 if retain else 0), properties)

    def enqueue(self, topic: "Bytes", payload: "Bytes", flags: int, properties: "Bytes" = b"") -> int:
        """Publish with QoS and RETAIN given as in PUBLISH's first byte (see ``publish``)."""
        v5 = self.v5
        # The topic field of PUBLISH: empty if a topic alias replaces it.
        name = topic
        try:
            if v5 is not None:
                n = v5.prepare(topic, flags, properties)
                if n < 0:
                    return n  # type: ignore[no-any-return]
                name = v5.topic
                properties = v5.block
            elif properties:
                return errors.E_ARGUMENT
            if topic is not self.known_topic and is_bad(self, topic):
                return errors.E_TOPIC
            n = len(name) + len(payload) + len(properties) + (4 if flags > 1 else 2)
            size = n + 2 if n < 128 else packet_size(n)
            if size > self.most:
                return errors.E_TOO_LARGE
            buf: bytearray = self.tx
            packet_id = 0
            if flags > 1:
                box = self.outbox
                if size < 0 or box.reserve(size) < 0:
                    return errors.E_WINDOW if box.count and 0 < size <= len(box.buf) else errors.E_TOO_LARGE
                buf = box.buf
                at = box.reserved
                packet_id = box.next + 1
            else:
                if self.state != _ONLINE:
                    return errors.E_OFFLINE
                at = self.tx_end
                if size < 0 or size > self.tx_size - at:
                    return errors.E_AGAIN if 0 < size <= len(self.tx) else errors.E_TOO_LARGE
                if at == 0:
                    # Even on failure, this overwrites the prepared packet.
                    self.ready = NO_TOPIC
            i = put_publish(buf, at, name, n, 0x30 | flags | packet_id << 8)
            if properties:
                n = i + len(properties)
                buf[i:n] = properties
                i = n
            buf[i : at + size] = payload
            if flags > 1:
                if self.outbox.commit(size, flags >> 1) < 0:
                    return errors.E_STORE
                self._unsent += 1
                return packet_id
            self.tx_end = at + size
            if v5 is not None and not v5.sent(topic):
                # The next message with this topic differs in more than its payload.
                return 0
            if (
                at == 0
                and flags == 0
                and topic is self.known_topic
                and size <= _SHORT <= self.tx_size - _ACK_SIZE
            ):
                self.ready = topic
                self.ready_at = size - len(payload)
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return 0

    def disconnect(self, code: int = 0, properties: "Bytes" = b"") -> int:
        """Queue DISCONNECT (3.14). Close the transport once ``out`` returns 0.

        At 5.0 ``code`` is a reason code; ``spec5.DISCONNECT_WITH_WILL`` makes the server publish the will. A reason
        string and user properties that make the packet too large are left out. The properties may change the session
        expiry, unless it was 0 (3.14.2.2.2). Errors: E_AGAIN if the transmit buffer is full for now; E_TOO_LARGE;
        E_ARGUMENT, also for a code that DISCONNECT does not allow.
        """
        if self.state == CLOSING:
            return 0
        if self.v5 is not None:
            bad = self.v5.put_disconnect(code, properties or _NO_PROPERTIES)
        elif code or properties:
            bad = errors.E_ARGUMENT
        elif self.state == ONLINE:
            bad = self.queue_packet(encode_bare(self.tx, self.tx_end, self.tx_size, _DISCONNECT))
        else:
            bad = 0
        if bad == 0:
            self.ready = NO_TOPIC
            self.event(FINISH)
        return bad  # type: ignore[no-any-return]

    def queue_packet(self, end: int) -> int:
        """Extend the transmit buffer (``Endpoint.queue_packet``). Return E_TOO_LARGE also above the peer's packet
        limit."""
        return errors.E_TOO_LARGE if end - self.tx_end > self.most else super().queue_packet(end)

    def _put_ahead(self) -> int:
        """Write PUBREL for messages in REL, regardless of the window (5.0, 4.9), as many as the buffer holds.

        Then, before the first message at QoS 2, write PUBREL for the identifiers to release (``resume``). Return the
        number of bytes, or -1 while the answers to these are awaited.
        """
        box = self.outbox
        if self.state != _ONLINE or not self._unsent:
            return 0
        while self.tx_size - self.tx_end >= _ACK_SIZE:
            i = self._entry
            if self._ahead > 1:
                if box.state[i] == _REL:
                    put_ack(self, _PUBREL, i + 1)
                self._entry = i + 1 if i + 1 < box.slots else 0
                self._ahead -= 1
                if self._ahead == 1:
                    go_behind(self, box.head - 1, box.count + 1)
            elif self.sweep and box.state[i] == _AT2:
                # Messages in flight are acknowledged first: their identifiers are among these.
                if self.in_flight or self._swept == box.slots:
                    break
                self._swept += 1
                put_ack(self, _PUBREL, self._swept)
            else:
                if not self.sweep:
                    self._ahead = 0
                return self.tx_end
        return self.tx_end or -1

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def _stray(self, packet_type: int, packet_id: int) -> None:
        """Handle an acknowledgement of a message that is not in flight."""
        if self.sweep and packet_type == _PUBCOMP and packet_id <= self.outbox.slots:
            self.sweep -= 1
            if not self.sweep and self.outbox.settle():
                self.fail(errors.E_STORE)
            return
        self.strays += 1
        if packet_type == _PUBREC:
            put_ack(self, _PUBREL, packet_id, 0 if self.v5 is None else _NOT_FOUND)

    def _delivered(self, i: int) -> None:
        """Complete entry ``i``: all its acknowledgements have arrived."""
        self.outbox.set(i, _DONE)
        if self.on_delivered is not None:
            self.on_delivered(i + 1)


def rewrite(s: Session, payload: "Bytes") -> int:
    """Put another payload into the prepared packet. Return the packet's size, or 0 if ``enqueue`` must encode it."""
    try:
        s.tx_end = s.ready_at + len(payload)
        if s.tx_end <= _SHORT:
            s.tx[1] = s.tx_end - 2
            s.tx[s.ready_at : s.tx_end] = payload
            return s.tx_end
    except NOT_BYTES:
        pass
    s.tx_end = 0
    return 0


def put_ack(s: Session, packet_type: int, packet_id: int, code: int = 0) -> None:
    """Write an acknowledgement, at 5.0 with a reason code. The transmit buffer must have room for it."""
    if code:
        s.v5.put_reason(packet_type, packet_id, code)
    else:
        s.tx_end = encode_ack(s.tx, s.tx_end, s.tx_size, packet_type, packet_id)


def acknowledged(s: Session, buf: "Bytes", at: int) -> bool:
    """Handle a PUBACK with its packet identifier at ``at``. Return False, without any effect, if it completes no
    message."""
    box = s.outbox
    i = (buf[at] << 8 | buf[at + 1]) - 1
    if i < 0 or i >= box.slots or box.state[i] != _AT1 or not was_sent(s, i):
        return False
    s.in_flight -= 1
    box.set(i, _DONE)
    if s.on_delivered is not None:
        s.on_delivered(i + 1)
    return True


def is_bad(s: Session, topic: "Bytes") -> bool:
    """Return whether a topic is wrong. An immutable object that is correct is not checked again."""
    n = len(topic)
    if n > 65535 or s._check(topic, 0, n):
        return True
    if isinstance(topic, bytes):
        s.known_topic = topic
    return False


def _renew(box: "Outbox") -> None:
    """Clear DUP in every message: a new session has no retransmissions."""
    for i in range(box.slots):
        if box.state[i] == _AT1 or box.state[i] == _AT2:
            box.buf[box.at[i]] &= 255 - _DUP


def take_packets(s: Session, i: int, end: int) -> int:
    """Handle all frequent packets (short whole PUBLISH, PUBACK), then one packet of any type.

    This function determines a board's throughput. Returns the offset of the first packet not handled, which waits for
    bytes or for room to answer it; or a negative number if the connection has ended.
    """
    if s.large_left:
        return _go_on_large(s, i, end)
    if not s.takes[s.state] & _TAKES_PUBLISH:
        return _packet(s, i, end)
    p = s.packet
    epoch = s.epoch
    while i + 4 <= end:
        if not MESSAGE[p.buf[i]]:
            stop = i + 4
            if p.buf[i] != _PUBACK_HEAD or p.buf[i + 1] != 2:
                break
            s.rx.start = stop
            if not acknowledged(s, p.buf, i + 2):
                break
            i = stop
        else:
            stop = i + 2 + p.buf[i + 1]
            if p.buf[i + 1] >= p.short or stop > end:
                break
            p.head = p.buf[i]
            p.end = stop
            if decode_publish(p, i + 2, stop):
                break
            if p.head & 6 and s.tx_size - s.tx_end < _ACK_SIZE:
                break
            # The packet counts as received, even if its handler raises.
            s.rx.start = stop
            if p.head & 6 == 0:
                if s.on_message is not None:
                    s.on_message(p)
            elif p.head & 2 and s.acks is None:
                deliver_1(s, p)
            elif s._take(p):
                break
            i = stop
        if s.epoch != epoch:
            return -1
    return _packet(s, i, end) if i < end else i


def _packet(s: Session, i: int, end: int) -> int:
    """Handle one packet of any type.

    Return the offset after it; ``i`` if it waits for bytes or for room to answer it; negative if the connection is
    over.
    """
    p = s.packet
    stop = decode_header(p, i, end)
    if stop <= 0:
        return s.fail(stop) if stop else i
    kind = p.head >> 4
    if not s.takes[s.state] >> kind & 1:
        return s.fail(errors.E_UNEXPECTED)
    if s.tx_size - s.tx_end < _ACK_SIZE:
        s.stalled = True
        return i
    if stop - i > s.rx.capacity:
        return _begin_large(s, i, end)
    if stop > end:
        return i
    # The packet counts as received, even if its handler raises.
    s.rx.start = stop
    bad = s.handlers[kind](s, p)
    if bad < 0:
        return s.fail(bad)
    if bad:
        # The answer has no room yet, or earlier ones must be sent first: the packet is handled again later.
        s.stalled = True
        return i
    return stop


def _begin_large(s: Session, i: int, end: int) -> int:
    """Start a packet larger than the receive buffer. The result is that of ``_packet``.

    Such a packet is handled in the same way even if all of it has arrived, so the result does not depend on timing.
    """
    p = s.packet
    if p.head >> 4 != _PUBLISH:
        return s.fail(errors.E_RX_TOO_LARGE)
    at = s._payload_begins(i, end)
    if at <= 0:
        return s.fail(at) if at else i
    fits = at - i <= s.rx.capacity
    if not fits:
        at = p.body + 2
        p.packet_id = 0
        p.topic_at = p.topic_end = at
        s.large_head = p.buf[at - 2] << 8 | p.buf[at - 1]
        if p.head & 6:
            s.large_head += 2
    elif at > end:
        return i
    else:
        bad = s._read_publish(p)
        if bad:
            return s.fail(bad)
    s.rx.start = at
    s.large_left = p.end - at
    s.large_qos = p.qos()
    s.large_id = p.packet_id
    if p.head & 4 and p.packet_id:
        if s.version is not None:
            s.version.opening(p.packet_id)
        if s.find_qos2(p.packet_id) >= 0:
            return at
        if s.free_qos2() < 0 or (s.acks is not None and s.acks.excess):
            if s.acks is None or not s.acks.leaves():
                return s.fail(errors.E_RX_WINDOW)
            # It is skipped without an acknowledgement.
            s.large_qos = 0
            return at
    # Nothing is acknowledged if the sink raises an exception.
    s.large_qos = 0
    epoch = s.epoch
    if fits and s.stream is not None:
        s.stream.open(s, p)
    if s.epoch != epoch:
        return -1
    if s.stream is None or not s.stream.streaming:
        s.skipped += 1
    s.large_qos = p.qos()
    return at


def _go_on_large(s: Session, i: int, end: int) -> int:
    """Pass received bytes of the large message to the sink. Return the offset reached, or a negative number if the
    connection is over."""
    if end - i >= s.large_left and s.tx_size - s.tx_end < _ACK_SIZE:
        s.stalled = True
        return i
    buf = s.rx.buf
    while s.large_head and i < end:
        # A topic that did not fit is skipped, except for the packet identifier in its last two bytes.
        s.large_id = (s.large_id << 8 | buf[i]) & 0xFFFF
        s.large_head -= 1
        s.large_left -= 1
        i += 1
        if s.large_qos and not (s.large_head or s.large_id):
            return s.fail(errors.E_PACKET_ID)
    n = min(s.large_left, end - i)
    s.large_left -= n
    i += n
    s.rx.start = i
    if n and s.stream is not None and s.stream.streaming:
        epoch = s.epoch
        qos = s.large_qos
        # Nothing is acknowledged if the sink raises an exception.
        s.large_qos = 0
        s.stream.write(buf, i - n, n)
        if s.epoch != epoch:
            return -1
        s.large_qos = qos
    if s.large_left == 0 and _end_large(s):
        return s.fail(errors.E_RX_WINDOW)
    return i


def _end_large(s: Session) -> int:
    """Finish the large message. Return 0 or E_RX_WINDOW."""
    end = s.stream.end if s.stream is not None and s.stream.streaming else None
    i = -1
    if s.large_qos == 0:
        if end is not None:
            end(True)
        return 0
    if s.acks is not None:
        return s.acks.end_large(end)  # type: ignore[no-any-return]
    if s.large_qos == 2:
        i = s.open_qos2(s.large_id)
        if i == REPETITION:
            s.answer_duplicate(s.large_id)
            return 0
        if i < 0:
            return i
    deliver(s, end, True, i, s.large_id)
    return 0


def deliver(
    s: Session, handler: "Callable[..., object] | None", message: object, i: int, packet_id: int
) -> None:
    """Deliver a message at QoS 2, with its identifier at place ``i``, or at QoS 1 (-1); and acknowledge it.

    The handler may publish until the transmit buffer is full: room for the acknowledgement is reserved. If it raises,
    the message counts as not received. It may end the connection, and even start another.
    """
    epoch = s.epoch
    if i < 0:
        s.unanswered += 1
    else:
        s.opened_now[i] |= _RUNNING
    if handler is not None:
        s.tx_size -= _ACK_SIZE
        try:
            handler(message)
        except BaseException:
            # Unless another message has taken the place on a later connection.
            if i >= 0 and s.opened_now[i] & _RUNNING:
                s.close_qos2(i)
            raise
        finally:
            if s.epoch == epoch:
                s.tx_size += _ACK_SIZE
    if i >= 0:
        if s.epoch == epoch:
            s.opened_now[i] &= _OPENED
            s.answer_qos2(packet_id)
        elif s.opened_now[i] & _RUNNING:
            s.opened_now[i] -= _RUNNING
            if s.opened_now[i] == _REPEATED and s.state == _ONLINE and s.tx_size - s.tx_end >= _ACK_SIZE:
                s.answer_qos2(packet_id)
            else:
                s.record_qos2(packet_id)
    elif s.epoch == epoch:
        s.unanswered -= 1
        put_ack(s, _PUBACK, packet_id)


def deliver_1(s: Session, p: Packet) -> None:
    """Deliver a whole message at QoS 1 and acknowledge it (see ``deliver``)."""
    packet_id = p.packet_id
    epoch = s.epoch
    s.unanswered += 1
    if s.on_message is not None:
        s.tx_size -= _ACK_SIZE
        try:
            s.on_message(p)
        finally:
            if s.epoch == epoch:
                s.tx_size += _ACK_SIZE
    if s.epoch == epoch:
        s.unanswered -= 1
        s.tx_end = encode_ack(s.tx, s.tx_end, s.tx_size, _PUBACK, packet_id)


# -- what arrives, by packet type --------------------------------------------------------------------------------------


def refuse(s: Session, p: Packet) -> int:
    """Handle a packet type that is never accepted; ``takes`` rejects it earlier."""
    return errors.E_UNEXPECTED


def on_publish(s: Session, p: Packet) -> int:
    """Handle a PUBLISH that the fast path has not handled."""
    return s._read_publish(p) or s._take(p)


def on_ack(s: Session, p: Packet) -> int:
    """Handle PUBACK, PUBREC or PUBCOMP: set the next state of the message."""
    bad = decode_ack(p)
    if bad:
        return bad
    i = s.outbox.find(p.packet_id)
    if i >= 0 and s.outbox.state[i] != _REL and not was_sent(s, i):
        i = -1
    new = s.delivery[(s.outbox.state[i] if i >= 0 else _FREE) * 4 + (p.head >> 4) - 4]
    if new == _DONE:
        s.in_flight -= 1
        s._delivered(i)
    elif new == _REL:
        # From now on, a new connection retransmits PUBREL instead of PUBLISH.
        if s.outbox.set(i, _REL):
            return errors.E_STORE
        put_ack(s, _PUBREL, p.packet_id)
    elif new == _WRONG:
        return errors.E_ACK_KIND
    else:
        s._stray(p.head >> 4, p.packet_id)
    return 0


def on_pubrel(s: Session, p: Packet) -> int:
    """Handle PUBREL: the peer has released the packet identifier."""
    bad = decode_ack(p)
    if bad:
        return bad
    i = s.find_qos2(p.packet_id)
    if i >= 0:
        if s._received is not None and s._received.closed(p.packet_id):
            return errors.E_STORE
        s.close_qos2(i)
    else:
        # The peer missed PUBCOMP or is confused; in either case it may release the identifier (4.3.3).
        s.strays += 1
    put_ack(s, _PUBCOMP, p.packet_id)
    return 0


class ClientSession(Session):
    """The client's session. Strings are bytes in UTF-8; times are milliseconds, ``keep_alive`` is seconds (0: none).

    ``clean_start`` (3.1.2.4): with False the server keeps the session, and QoS 2 is exactly once across connections.
    Buffers: a packet to be received whole must fit in seven eighths of ``rx_size``; CONNECT, SUBSCRIBE and PUBLISH at
    QoS 0 must fit in ``tx_size``, PUBLISH at QoS 1 and 2 in ``outbox_size``. Up to ``slots`` messages may be
    unacknowledged or waiting, ``window`` of them in flight. ``receive_window`` limits the QoS 2 messages that the
    server may have in flight. ``version`` is ``v5.ClientV5()`` for MQTT 5.0, ``v31.V31()`` for 3.1. Before 5.0, methods
    with ``properties`` (a property block) return E_ARGUMENT if these are given.

    ``on_online(session_present)`` is called when the server has accepted the connection; ``on_answer(packet_id, code)``
    for SUBACK (code 0, 1, 2, or 0x80: refused) and UNSUBACK (code 0). Without ``on_answer``, a refusal raises
    HeadwaterError with E_REFUSED from ``feed``. ``set_will`` sets the will.
    """

    def __init__(
        self,
        client_id: "Bytes" = b"",
        keep_alive: int = 60,
        clean_start: bool = True,
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
        self.client_id = client_id
        self.keep_alive = keep_alive
        self.clean_start = clean_start
        self._user = user
        self._password = password
        self._will_topic: Bytes | None = None
        self._will_payload: Bytes = b""
        self._will_qos = 0
        self._will_retain = False
        #: CONNACK's return code (3.2.2.3), if the status is E_REFUSED.
        self.return_code = 0
        #: Session Present of the last CONNACK (3.2.2.2): True if the server has kept the session.
        self.session_present = False
        self.on_online: Callable[[bool], object] | None = None
        self.on_answer: Callable[[int, int], object] | None = None
        # Unanswered SUBSCRIBE and UNSUBSCRIBE: packet identifier (0: a free place), type of the answer, number of
        # filters.
        self._request_ids = array("H", bytes(2 * _REQUESTS))
        self._request_answers = bytearray(_REQUESTS)
        self._request_counts = bytearray(_REQUESTS)
        self._generation = 0
        # Set by the version: name and level in CONNECT, check of filters, packet types accepted.
        self.protocol = PROTOCOL
        self._will_properties: Bytes = b""
        self._check_filter: NameCheck = check_filter
        self.takes = CLIENT_TAKES
        self.handlers = CLIENT_HANDLERS
        if version is not None:
            version.attach(self)

    def use_version(
        self,
        protocol: bytes,
        check: "NameCheck",
        takes: "tuple[int, ...]",
        handlers: "tuple[Callable[[Any, Any], int], ...]",
        no_properties: bytes,
    ) -> None:
        """Select another version than 3.1.1. Called by the version's ``attach``.

        Sets the protocol name and level for CONNECT, the check of filters, the packet types that each state accepts,
        their handlers, and an empty property block.
        """
        self.protocol = protocol
        self._check_filter = check
        self.takes = takes
        self.handlers = handlers
        self._will_properties = no_properties

    def set_will(
        self,
        topic: "Bytes | None",
        payload: "Bytes" = b"",
        qos: int = 0,
        retain: bool = False,
        properties: "Bytes" = b"",
    ) -> int:
        """Set the will, which the server publishes if the connection is lost (3.1.2.5), from the next ``connect`` on.

        At 5.0 ``properties`` are those of the will, such as its delay (3.1.3.2). Return 0, E_TOPIC, E_QOS, or
        E_ARGUMENT (not bytes, or more than 65,535 bytes).
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
        if not is_bytes(properties) or (properties and self.v5 is None):
            return errors.E_ARGUMENT
        self._will_properties = properties or (b"" if self.v5 is None else _NO_PROPERTIES)
        self._will_topic = topic
        self._will_payload = payload
        self._will_qos = qos
        self._will_retain = retain
        return 0

    def connect(self, now_ms: int) -> int:
        """Send CONNECT over a new transport. Return 0, or E_TOO_LARGE or E_ARGUMENT if CONNECT cannot be encoded."""
        if self.version is not None:
            bad = self.version.connecting()
            if bad:
                return bad  # type: ignore[no-any-return]
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
                self.clean_start,
                self._will_topic,
                self._will_payload,
                self._will_qos,
                self._will_retain,
                self._user,
                self._password,
                self.protocol,
                b"" if self.v5 is None else self.v5.connect_properties.block,
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

    def subscribe(self, topic_filter: "Bytes", qos: int = 0, properties: "Bytes" = b"") -> int:
        """Send SUBSCRIBE with one filter. Return the packet identifier, which is passed to ``on_answer`` with the
        answer.

        At 5.0 ``qos`` may include options (3.8.3.1), such as ``spec5.NO_LOCAL``. Errors: E_FILTER, E_QOS, E_ARGUMENT,
        E_OFFLINE, E_TOO_LARGE; E_AGAIN if the transmit buffer is full or eight requests are unanswered; E_LIMIT if the
        server does not support wildcards, shared subscriptions or subscription identifiers.
        """
        if self.v5 is not None:
            properties = properties or _NO_PROPERTIES
            bad = self.v5.check_subscription(topic_filter, qos, properties)
            if bad:
                return bad  # type: ignore[no-any-return]
        elif qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self._request(topic_filter, qos, _SUBACK, properties)

    def unsubscribe(self, topic_filter: "Bytes", properties: "Bytes" = b"") -> int:
        """Send UNSUBSCRIBE with one filter. Results and errors are those of ``subscribe``."""
        return self._request(topic_filter, -1, _UNSUBACK, properties)

    def _request(self, topic_filter: "Bytes", qos: int, answer: int, properties: "Bytes") -> int:
        if not is_bytes(properties) or (properties and self.v5 is None):
            return errors.E_ARGUMENT
        properties = properties or (b"" if self.v5 is None else _NO_PROPERTIES)
        try:
            n = len(topic_filter)
            if n > 65535 or self._check_filter(topic_filter, 0, n):
                return errors.E_FILTER
        except NOT_BYTES:
            return errors.E_ARGUMENT
        packet_id = self._request_id()
        if packet_id < 0:
            return packet_id
        bad = self.queue_packet(
            encode_subscribe(self.tx, self.tx_end, self.tx_size, packet_id, topic_filter, qos, properties)
        )
        return bad or self._requested(packet_id, answer, 1)

    def _request_id(self) -> int:
        """Return the packet identifier of the next request, or E_OFFLINE, or E_AGAIN."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        k = 0
        while self._request_ids[k]:
            k += 1
            if k == _REQUESTS:
                return errors.E_AGAIN
        return FIRST_REQUEST_ID + k + _REQUESTS * self._generation

    def _requested(self, packet_id: int, answer: int, count: int) -> int:
        """Record a request for ``count`` filters that waits for its answer. Return its packet identifier."""
        k = (packet_id - FIRST_REQUEST_ID) % _REQUESTS
        # An identifier is not reused soon, so that a late answer is not assigned to another request.
        self._generation = (self._generation + 1) % _GENERATIONS
        self._request_ids[k] = packet_id
        self._request_answers[k] = answer
        self._request_counts[k] = count
        return packet_id

    def awaits(self) -> bool:
        """Return whether an acknowledgement or an answer is due."""
        return any(self._request_ids) or super().awaits()

    def _put_ping(self) -> int:
        return encode_bare(self.tx, self.tx_end, self.tx_size, _PINGREQ)

    # -- what arrives --------------------------------------------------------------------------------------------------

    def accepted(self, p: "Packet") -> int:
        """Handle the content of CONNACK. Return 0 or an error."""
        if p.code:
            self.return_code = p.code
            return errors.E_REFUSED
        if p.session_present and self.clean_start:
            p.bad_at = p.body
            return errors.E_CODE
        self.session_present = p.session_present
        self.event(ACCEPT)
        epoch = self.epoch
        self.resume(p.session_present)
        # ``on_delivered`` may have ended the connection; ``on_online`` is not called then.
        if self.on_online is not None and self.epoch == epoch:
            self.on_online(self.session_present)
        return 0

    def _answered(self, p: "Packet", answer: int, count: int) -> int:
        """Handle an answer with ``count`` codes at ``payload_at``, one for each filter; UNSUBACK of 3.1.1 has none."""
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


def on_connack(s: "Any", p: Packet) -> int:
    """Handle CONNACK."""
    return decode_connack(p) or s.accepted(p)


def on_suback(s: "Any", p: Packet) -> int:
    """Handle SUBACK or UNSUBACK."""
    return decode_suback(p) or s._answered(p, p.head >> 4, p.end - p.payload_at)


def on_pingresp(s: "Any", p: Packet) -> int:
    """Handle PINGRESP."""
    s.pinged = False
    return 0


#: The client's handler of each packet type.
CLIENT_HANDLERS = (
    refuse,
    refuse,
    on_connack,
    on_publish,
    on_ack,
    on_ack,
    on_pubrel,
    on_ack,
    refuse,
    on_suback,
    refuse,
    on_suback,
    refuse,
    on_pingresp,
    refuse,
    refuse,
)
