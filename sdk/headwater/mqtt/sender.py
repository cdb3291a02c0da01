"""The way out of an MQTT connection: how messages are written, acknowledged and sent again. ``endpoint.Endpoint`` adds
the way in; ``headwater.outgoing`` says why what runs for each message looks as it does."""

from headwater import errors
from headwater.mqtt.packets import decode_ack, encode_ack, publish_size, put_publish
from headwater.mqtt.transitions import DELIVERY
from headwater.outgoing import Outgoing, go_behind
from headwater.wire import NOT_BYTES, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes, NameCheck, Outbox

_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_ACK_SIZE = const(4)
_DUP = const(8)
_MAX_PACKET = const(268435460)
# CONNECT alone takes 14 bytes.
_SMALLEST = const(16)
# As in ``transitions``; a constant costs less than a name.
_FREE = const(0)
_AT1 = const(1)
_AT2 = const(2)
_REL = const(3)
_DONE = const(4)
_WRONG = const(6)
_ONLINE = const(2)
# The longest packet whose remaining length has one byte.
_SHORT = const(129)
# Nobody's topic is this object.
NO_TOPIC = bytearray(0)


class Sender(Outgoing):
    """What ``Endpoint`` sends with."""

    #: What an acknowledgement makes of a message; a session may have a table of its own.
    delivery = DELIVERY

    def __init__(self, tx_size: int, outbox: "Outbox", window: int, response_ms: int, check: "NameCheck"):
        if tx_size < _SMALLEST:
            raise ValueError("the transmit buffer needs at least 16 bytes")
        super().__init__(tx_size, outbox, window, response_ms)
        self._check = check
        #: The largest packet that the other end accepts (5.0: its Maximum Packet Size).
        self.most = _MAX_PACKET
        # The property block of the message that is being published; empty before 5.0.
        self._block: Bytes = b""
        #: The topic of the last PUBLISH at QoS 0 that was put at the beginning of ``tx``, and where its payload is
        #: there. As long as ``tx`` begins with its first byte and the connection is as it was, it can be sent again
        #: with another payload (``rewrite``): no other packet begins so.
        self.ready: Bytes = NO_TOPIC
        self.ready_at = 0
        # Releasing the ids of a forgotten life: answers still awaited, and the last id asked for.
        self._sweep = self._swept = 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def resume(self, session_present: bool) -> None:
        """Everything unacknowledged goes out again (4.4), PUBREL first, and either in its order; new messages follow.

        When the other end has lost the session, a QoS 2 message that it had answered with PUBREC is
        delivered: done. The others are new messages of the new session.
        """
        box = self.outbox
        turn = self.turn
        # ``on_delivered`` may publish: nothing leaves the outbox before it is settled what of it is left.
        self.in_flight = self.window
        try:
            if not session_present:
                _renew(box)
                i = box.head
                for _ in range(box.count):
                    if box.state[i] == _REL:
                        self._delivered(i)
                        if self.turn != turn:
                            return
                    i = i + 1 if i + 1 < box.slots else 0
        finally:
            # Also when ``on_delivered`` raises; but not when it has ended the connection, and perhaps begun another.
            if self.turn == turn:
                self._entry = box.head
                self._unsent = box.count
                # REL is 3.
                self.in_flight = box.state.count(b"\x03")
                self._ahead = 1 + box.count
                # A server that kept a session which this end has forgotten (a reset, and the outbox was in memory) may
                # hold QoS 2 messages of it under ids that are about to be used again, and would take the new ones for
                # repetitions. So before the first of them every id is released; an id that was not held is answered as
                # well (4.3.3). Not sooner: a server that knows no QoS 2 does not know PUBREL either.
                self._sweep = box.slots if session_present and box.fresh else 0
                self._swept = 0
                if box.fresh and not session_present and box.settle():
                    self.fail(errors.E_STORE)

    # -- sending -------------------------------------------------------------------------------------------------------

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Hand in a message; it leaves through ``out``. Allocates nothing when topic and payload are
        bytes-like.

        Returns 0 (QoS 0), or its packet id (QoS 1, 2): it is then in the outbox, connection or not, until
        acknowledged. Errors: E_TOPIC, E_QOS; E_ARGUMENT (not bytes); E_OFFLINE (QoS 0 without a connection); E_AGAIN
        (the transmit buffer is full for now); E_WINDOW (the outbox is); E_TOO_LARGE.
        """
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        return self.hand_in(topic, payload, qos << 1 | (1 if retain else 0))

    def hand_in(self, topic: "Bytes", payload: "Bytes", flags: int) -> int:
        """``publish``, with QoS and RETAIN as they stand in PUBLISH's first byte."""
        try:
            if topic is not self.known_topic and is_bad(self, topic):
                return errors.E_TOPIC
            n = publish_size(topic, payload, flags >> 1, self._block)
            if n > self.most:
                return errors.E_TOO_LARGE
            if flags > 1:
                box = self.outbox
                if n < 0 or box.reserve(n) < 0:
                    return errors.E_WINDOW if box.count and 0 < n <= len(box.buf) else errors.E_TOO_LARGE
                packet_id = box.next + 1
                put_publish(box.buf, box.reserved, topic, payload, 0x30 | flags | packet_id << 8, self._block)
                if box.commit(n, flags >> 1) < 0:
                    return errors.E_STORE
                self._unsent += 1
                return packet_id
            if self.state != _ONLINE:
                return errors.E_OFFLINE
            at = self.tx_end
            if n < 0 or n > self.tx_size - at:
                return errors.E_AGAIN if 0 < n <= len(self.tx) else errors.E_TOO_LARGE
            if at == 0:
                # Whatever comes of it, this takes the place of the packet that was ready.
                self.ready = NO_TOPIC
            put_publish(self.tx, at, topic, payload, 0x30 | flags, self._block)
            self.tx_end = at + n
            if (
                at == 0
                and flags == 0
                and topic is self.known_topic
                and n <= _SHORT <= self.tx_size - _ACK_SIZE
            ):
                self.ready = topic
                self.ready_at = n - len(payload)
        except NOT_BYTES:
            return errors.E_ARGUMENT
        return 0

    def _put_ahead(self) -> int:
        """PUBREL for what was answered with PUBREC, whatever the window (5.0, 4.9); then, and with the first message at
        QoS 2, for the ids to be released. As many as the transmit buffer holds; -1 while answers are awaited."""
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
            elif self._sweep and box.state[i] == _AT2:
                # What is under way is acknowledged first: its ids are among these.
                if self.in_flight or self._swept == box.slots:
                    break
                self._swept += 1
                put_ack(self, _PUBREL, self._swept)
            else:
                if not self._sweep:
                    self._ahead = 0
                return self.tx_end
        return self.tx_end or -1

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def _on_ack(self, p: "Packet") -> int:
        bad = decode_ack(p)
        if bad:
            return bad
        i = self.outbox.find(p.packet_id)
        if i >= 0 and self.outbox.state[i] != _REL and not was_sent(self, i):
            i = -1
        new = self.delivery[(self.outbox.state[i] if i >= 0 else _FREE) * 4 + (p.head >> 4) - 4]
        if new == _DONE:
            self.in_flight -= 1
            self._delivered(i)
        elif new == _REL:
            # From now on it is its PUBREL that a new connection sends again.
            if self.outbox.set(i, _REL):
                return errors.E_STORE
            put_ack(self, _PUBREL, p.packet_id)
        elif new == _WRONG:
            return errors.E_ACK_KIND
        else:
            self._stray(p.head >> 4, p.packet_id)
        return 0

    def _stray(self, packet_type: int, packet_id: int) -> None:
        """An acknowledgement of what is not under way."""
        if self._sweep and packet_type == _PUBCOMP and packet_id <= self.outbox.slots:
            self._sweep -= 1
            if not self._sweep and self.outbox.settle():
                self.fail(errors.E_STORE)
            return
        self.strays += 1
        if packet_type == _PUBREC:
            put_ack(self, _PUBREL, packet_id)

    def _delivered(self, i: int) -> None:
        """Entry ``i`` is acknowledged to its end."""
        self.outbox.set(i, _DONE)
        if self.on_delivered is not None:
            self.on_delivered(i + 1)


def rewrite(s: Sender, payload: "Bytes") -> int:
    """Put another payload into the packet that is ready, to be sent: its size; or 0 when ``hand_in`` must see to it."""
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


def put_ack(s: Sender, packet_type: int, packet_id: int) -> None:
    """Answer with a packet id; the caller made sure that there is room."""
    s.tx_end = encode_ack(s.tx, s.tx_end, s.tx_size, packet_type, packet_id)


def acknowledged(s: Sender, buf: "Bytes", at: int) -> bool:
    """PUBACK has come, with its packet id at ``at``: whether it ends a message at QoS 1; if not, nothing happened."""
    box = s.outbox
    i = (buf[at] << 8 | buf[at + 1]) - 1
    if i < 0 or i >= box.slots or box.state[i] != _AT1 or not was_sent(s, i):
        return False
    s.in_flight -= 1
    box.set(i, _DONE)
    if s.on_delivered is not None:
        s.on_delivered(i + 1)
    return True


def is_bad(s: Sender, topic: "Bytes") -> bool:
    """Check a topic, once: the same object again is known to be right, unless it can be changed."""
    n = len(topic)
    if n > 65535 or s._check(topic, 0, n):
        return True
    if isinstance(topic, bytes):
        s.known_topic = topic
    return False


def _renew(box: "Outbox") -> None:
    """To a session that begins anew nothing is a repetition, whatever may have left before."""
    for i in range(box.slots):
        if box.state[i] == _AT1 or box.state[i] == _AT2:
            box.buf[box.at[i]] &= 255 - _DUP


def was_sent(s: Sender, i: int) -> bool:
    """Whether this connection has sent entry ``i`` to its last byte: only then can it be acknowledged."""
    box = s.outbox
    i -= box.head
    if i < 0:
        i += box.slots
    return i < box.count - s._unsent
