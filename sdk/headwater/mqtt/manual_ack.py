"""Let the application acknowledge MQTT messages, instead of the return of ``on_message``.

    acks = ManualAck(client.session)
    client.on_message = lambda packet: waiting.append((packet.packet_id, packet.qos(), client.session.epoch))
    ...
    acks.acknowledge(*waiting.pop(0))

The next poll sends the acknowledgement. Nothing here allocates after construction.
"""

from array import array

from headwater import errors
from headwater.connection import ONLINE
from headwater.mqtt.session import LATER, REPETITION, put_ack
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.session import Session

#: Returned by ``on_message`` for a message at QoS 1 or 2 that the application acknowledges later.
KEEP = "keep"

_PUBACK = const(4)
_PUBREC = const(5)
_ACK_SIZE = const(4)
# An acknowledgement with a reason code (5.0); those from 0x80 on are errors.
_LONG_ACK = const(5)
_ERROR = const(0x80)
# States of a QoS 2 identifier: delivered and not acknowledged by the application; answered with PUBREC; delivered, and
# received again on this connection before the application acknowledged it.
_DELIVERED = const(1)
_ANSWERED = const(2)
_REPEATED = const(3)
# Replaces the place of a QoS 2 identifier for a message at QoS 1.
_QOS_1 = const(-1)


class ManualAck:
    """Lets the application acknowledge the messages of ``session``.

    With ``automatic`` a message is acknowledged when ``on_message`` returns, unless it returns ``KEEP``. With
    ``defer_excess_qos2`` a QoS 2 message without a free place does not break the connection. Instead, it and all later
    QoS 2 messages are ignored (counted in ``excess``) until the server retransmits them on the next connection.
    """

    def __init__(self, session: "Session", automatic: bool = False, defer_excess_qos2: bool = False):
        self.session = session
        self.automatic = automatic
        self.defer_excess_qos2 = defer_excess_qos2
        self.excess = 0
        ids = session.open_ids
        # By place of the identifier: its state, and the epoch in which it was received.
        self._states = bytearray(session.receive_window)
        self._epochs = array("I", [0] * session.receive_window)
        for i in range(len(ids)):
            if ids[i]:
                self._states[i] = _ANSWERED
        session.acks = self

    def begin(self) -> None:
        """Reset the state of the previous connection."""
        self.excess = 0
        for i in range(len(self._states)):
            if self._states[i] == _REPEATED:
                self._states[i] = _DELIVERED

    def take(self, p: "Packet") -> int:
        """Deliver a message. Return 0, E_RX_WINDOW or LATER (see ``Session._take``)."""
        s = self.session
        i = _QOS_1
        if p.head & 6 == 0:
            if s.on_message is not None:
                s.on_message(p)
            return 0
        if p.head & 4:
            i = self._open(p.packet_id)
            if i == REPETITION:
                return 0
            if i < 0:
                if s.tx_end:
                    return LATER
                return 0 if self.leaves() else i
        self._deliver(s.on_message, p, i, p.packet_id, self.automatic)
        return 0

    def end_large(self, end: "Callable[[bool], None] | None") -> int:
        """Finish a message larger than the receive buffer. Return 0 or E_RX_WINDOW.

        ``end(complete)`` ends the message at its sink.
        """
        i = _QOS_1
        s = self.session
        if s.large_qos == 2:
            i = self._open(s.large_id)
            if i == REPETITION:
                return 0
            if i < 0:
                if not self.leaves():
                    return i
                if end is not None:
                    end(False)
                return 0
        self._deliver(end, True, i, s.large_id, self.automatic or end is None)
        return 0

    def leaves(self) -> bool:
        """Count a QoS 2 message without a free place. Return whether the connection may continue."""
        self.excess += self.defer_excess_qos2
        return self.defer_excess_qos2

    def _open(self, packet_id: int) -> int:
        """Record a QoS 2 identifier. Return its place, REPETITION or E_RX_WINDOW (see ``Session.open_qos2``)."""
        s = self.session
        i = s.open_qos2(packet_id, self.excess > 0)
        if i >= 0:
            self._states[i] = _DELIVERED
            self._epochs[i] = s.epoch
        elif i == REPETITION:
            i = s.find_qos2(packet_id)
            if self._states[i] == _ANSWERED:
                s.answer_qos2(packet_id)
            else:
                self._states[i] = _REPEATED
            return REPETITION
        return i

    def _deliver(
        self, handler: "Callable[..., object] | None", message: object, i: int, packet_id: int, answer: bool
    ) -> None:
        """Deliver a message (see ``session.deliver``). If ``answer``, acknowledge it unless the handler returns
        ``KEEP``."""
        s = self.session
        epoch = s.epoch
        if i < 0:
            # Counts until PUBACK is sent; the handler may acknowledge the message.
            s.unanswered += 1
        if handler is not None:
            s.tx_size -= _ACK_SIZE
            try:
                if handler(message) == KEEP:
                    answer = False
            except BaseException:
                # Unless the message was acknowledged first.
                if (
                    i >= 0
                    and s.open_ids[i] == packet_id
                    and self._epochs[i] == epoch
                    and self._states[i] != _ANSWERED
                ):
                    s.close_qos2(i)
                raise
            finally:
                if s.epoch == epoch:
                    s.tx_size += _ACK_SIZE
        if not answer:
            return
        if s.epoch != epoch:
            # The connection has ended. At QoS 1 the peer retransmits the message; at QoS 2 its duplicate is answered.
            if i >= 0 and self.acknowledge(packet_id, 2, epoch) <= errors.E_AGAIN:
                self._states[i] = _ANSWERED
        elif i >= 0:
            self._states[i] = _ANSWERED
            s.answer_qos2(packet_id)
        else:
            s.unanswered -= 1
            put_ack(s, _PUBACK, packet_id)

    def acknowledge(self, packet_id: int, qos: int, epoch: int, code: int = 0) -> int:
        """Acknowledge a message; ``epoch`` is that of the session when the message arrived. Return 0 or an error.

        Acknowledge messages in the order of arrival (4.6). At 5.0 a reason ``code`` from 0x80 on refuses the message,
        and its sender discards it. Errors: E_QOS; E_AGAIN if the transmit buffer is full for now; E_STATE for a QoS 1
        message of an earlier connection (the peer retransmits it) or a refusal of any such message; E_UNKNOWN_ID for an
        invalid packet identifier, or one without an unacknowledged QoS 2 message; E_ARGUMENT for a reason code that
        PUBACK does not allow.
        """
        s = self.session
        if qos != 1 and qos != 2:
            return errors.E_QOS
        if code and (s.v5 is None or not s.v5.is_ack_code(code)):
            return errors.E_ARGUMENT
        if not 0 < packet_id < 65536:
            return errors.E_UNKNOWN_ID
        i = 0
        if qos == 2:
            i = s.find_qos2(packet_id)
            if i < 0 or self._epochs[i] != epoch or self._states[i] == _ANSWERED:
                return errors.E_UNKNOWN_ID
            if code == 0 and (s.state != ONLINE or (epoch != s.epoch and self._states[i] != _REPEATED)):
                # The duplicate will be answered at once.
                if s.record_qos2(packet_id):
                    return errors.E_STORE
                self._states[i] = _ANSWERED
                return 0
        if (qos == 1 or code) and (epoch != s.epoch or s.state != ONLINE):
            return errors.E_STATE
        if s.tx_size - s.tx_end < (_LONG_ACK if code else _ACK_SIZE):
            return errors.E_AGAIN
        if qos == 1:
            if s.unanswered:
                s.unanswered -= 1
            put_ack(s, _PUBACK, packet_id, code)
        elif code >= _ERROR:
            # Another PUBLISH with this identifier is a new message (4.3.3).
            s.close_qos2(i)
            put_ack(s, _PUBREC, packet_id, code)
        else:
            self._states[i] = _ANSWERED
            s.answer_qos2(packet_id, code)
            return s.status
        return 0
