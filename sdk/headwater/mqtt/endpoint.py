"""What both ends of an MQTT connection do: take packets apart, deliver messages both ways, hand out bytes to send.

An endpoint does no I/O and knows no clock. Its user

- reads at most ``rx.room`` bytes to the start of ``rx.view`` (after ``rx.window()``) and calls ``feed(n)``;
- sends ``out_buf[out_at : out_at + n]``, n from ``out()``, and calls ``sent(k)`` with how many were taken;
- calls ``poll(now_ms)`` a few times a second, and drops the transport on a negative answer of any of these.

After a code of the peer's-fault kind the state is ERROR: ``feed`` and ``out`` then answer the same code again
and do nothing. Publishing, receiving, acknowledging, resending and keep-alive allocate nothing.

No class here, in ``outgoing``, ``sender`` or ``decode`` has a property: MicroPython then looks through all its bases
at every store of an attribute, which costs eight times the store.
"""

from array import array

from headwater import errors
from headwater.mqtt import large
from headwater.mqtt.packets import MESSAGE, Packet, check_name, decode_ack, decode_header, decode_publish
from headwater.mqtt.sender import NO_TOPIC, Sender, acknowledged, put_ack
from headwater.rxbuf import RxBuf
from headwater.transitions import ONLINE
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.types import NameCheck, Outbox, Sink

_PUBLISH = const(3)
_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_ACK_SIZE = const(4)
_PUBACK_HEAD = const(0x40)
# In ``_takes``: the bit of PUBLISH. Where it is taken, PUBACK is.
_TAKES_PUBLISH = const(8)
# An open QoS 2 id: delivered to the application, which has not acknowledged it; answered with PUBREC; or delivered,
# and sent again on this connection before the application acknowledged it.
_DELIVERED = const(1)
_ANSWERED = const(2)
_REPEATED = const(3)
# In the place of a place among the open ids: a message at QoS 2 that has come before.
_REPETITION = const(-1)
#: What a handler answers when its packet is to be taken again later.
LATER = const(1)
#: What ``on_message`` returns for a message at QoS 1 or 2 that ``acknowledge`` will acknowledge, not its return.
KEEP = "keep"


class Endpoint(Sender):
    """One end of a connection; ``session.ClientSession`` and ``server.ServerSession`` are the two.

    ``on_message(packet)`` is called for each message, with the reusable cursor: copy what must outlive the
    call. At QoS 1 and 2 the acknowledgement goes out when the call returns; with ``auto_ack`` off, when
    ``acknowledge`` is called, and so for each message of which it returns ``KEEP``. A message whose handler raises is
    not acknowledged: the exception passes through ``feed``, and the next ``feed(0)`` goes on behind the message.

    ``sink`` takes the messages that are larger than the receive buffer, in pieces (``headwater.types.Sink``).
    Without a sink they are skipped: acknowledged, counted in ``skipped``, not delivered.

    ``on_delivered(packet_id)`` is called when a message of ours at QoS 1 or 2 has been acknowledged to its
    end.
    """

    # What a version brings of its own: the cursor.
    _cursor = Packet

    def __init__(
        self,
        rx: RxBuf,
        tx_size: int,
        outbox: "Outbox",
        window: int,
        receive_window: int,
        response_ms: int,
        check: "NameCheck" = check_name,
    ):
        super().__init__(tx_size, outbox, window, response_ms, check)
        self.rx = rx
        self.packet = self._cursor(rx.buf, check)
        # Above the receive buffer's capacity no packet is taken whole, even when all of it happens to be there.
        self.packet.short = min(128, rx.capacity - 1)
        #: Counts connections, so that an acknowledgement can be told from one of the connection before.
        self.epoch = 0
        self.auto_ack = True
        #: Messages at QoS 1 of this connection that the application has to acknowledge.
        self.unanswered = 0
        self.on_message: Callable[[Packet], object] | None = None
        #: Where messages larger than the receive buffer go; None skips them.
        self.sink: Sink | None = None
        #: Messages larger than the buffer that were skipped, and repetitions at QoS 2 that were not delivered.
        self.skipped = self.duplicates = 0
        #: With True a message at QoS 2 for which there is no place does not end the connection: neither it nor any
        #: message at QoS 2 behind it is taken (``excess`` counts them), until the next connection brings them again.
        self.leave_excess = False
        self.excess = 0
        #: Whether what was read waits for room to answer it; ``feed(0)`` goes on once something was sent.
        self.stalled = False
        #: From ``feed`` on until its caller clears it: so that a caller notices when a handler calls it again.
        self.feeding = False
        # QoS 2 ids that wait for PUBREL (0 = free place), what became of each, and the epoch it came in. Then how many
        # of them this connection has opened.
        self._opened = 0
        self._received = outbox.received
        if self._received is not None:
            receive_window = max(receive_window, len(self._received.ids))
        self._open_ids = array("H", bytes(2 * receive_window))
        self._open_state = bytearray(receive_window)
        self._open_epoch = array("I", [0] * receive_window)
        if self._received is not None:
            # Those of an earlier life: their messages were delivered and answered then.
            for i in range(len(self._received.ids)):
                self._open_ids[i] = self._received.ids[i]
                self._open_state[i] = _ANSWERED
        # The message larger than the receive buffer that is passing (``large``): how much of it is to come, and of that
        # how much of a topic that does not fit; its QoS, 0 also when it is not to be acknowledged; and its sink.
        self._large_left = self._large_head = 0
        self._large_qos = self._large_id = 0
        self._taker: Sink | None = None
        self._close_taker = self._close_sink
        # The packet types that may arrive, by state, and their handlers, bound once.
        self._takes: tuple[int, ...] = (0, 0, 0, 0, 0)
        self._handlers: tuple[Callable[[Packet], int], ...] = ()

    # -- the connection ------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """A transport is there: forget what the connection before left half read and half sent."""
        self._stop()
        self.rx.clear()
        self.status = 0
        self.epoch += 1
        self.unanswered = self._opened = self.excess = 0
        self.now = self.rx_time = self.tx_time = now_ms
        for i in range(len(self._open_state)):
            if self._open_state[i] == _REPEATED:
                self._open_state[i] = _DELIVERED

    def _stop(self) -> None:
        super()._stop()
        self.stalled = self.feeding = False
        self.ready = NO_TOPIC
        self._large_left = self._large_head = 0
        # Last, because the sink may raise.
        self._close_sink(False)

    def resume(self, session_present: bool) -> None:
        """Go on with the session, or forget it because the other end has: as of ``Sender``; and the QoS 2 ids."""
        if not session_present:
            for i in range(len(self._open_ids)):
                self._open_ids[i] = 0
            if self._received is not None and self._received.closed(0):
                self.fail(errors.E_STORE)
                return
        super().resume(session_present)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def feed(self, n: int) -> int:
        """Parse ``n`` more bytes, just read into ``rx.view``: 0, or the error that broke the connection.

        Whole packets are handled where they lie; the rest waits. Stops early, with ``stalled`` set, when an
        answer has no room in the transmit buffer.
        """
        rx = self.rx
        if n:
            self.rx_time = self.now
            if rx.gap:
                rx.join(n)
        # From here on n is where what has been read ends.
        n += rx.end
        rx.end = n
        if self.status:
            return self.status
        self.stalled = False
        self.feeding = True
        i = rx.start
        if not self._takes[self.state]:
            # CLOSING, or no connection: what arrives is not looked at.
            i = n
        # A handler may end the connection, or begin another: then nothing known here holds any more.
        turn = self.turn
        while i < n:
            at = i
            if self._large_left:
                i = large.go_on(self, i, n)
            else:
                if self._takes[self.state] & _TAKES_PUBLISH:
                    at = i = _messages(self, i, n)
                if 0 <= i < n:
                    i = _packet(self, i, n)
            if i < 0 or self.turn != turn:
                return self.feed(0)
            if i == at:
                break
        rx.start = i
        return 0

    def _refuse(self, p: Packet) -> int:
        """Stands where a packet type is never taken: ``_takes`` has refused it before."""
        return errors.E_UNEXPECTED

    def _on_publish(self, p: Packet) -> int:
        return self._read_publish(p) or self._take(p)

    def _read_publish(self, p: Packet) -> int:
        return decode_publish(p, p.body, p.end)

    def _take(self, p: Packet) -> int:
        """Hand a message to the application and answer it, for which there is room: 0 or E_RX_WINDOW.

        LATER when the answers before it are to leave first: what they acknowledge does not come again on the next
        connection, so that a server which sends more than the window (mosquitto may, when it takes a session up again)
        gets all of it across in the end.
        """
        if p.head & 4:
            i = self._open(p.packet_id)
            if i == _REPETITION:
                return 0
            if i < 0:
                if self.tx_end or not self.leave_excess:
                    return LATER if self.tx_end else i
                self.excess += 1
                return 0
            self._deliver(self.on_message, p, i, p.packet_id, self.auto_ack)
        elif p.head & 2:
            _deliver_1(self, p)
        elif self.on_message is not None:
            self.on_message(p)
        return 0

    def _find_open(self, packet_id: int) -> int:
        """The place of an open QoS 2 id (0 finds a free place), or -1."""
        ids = self._open_ids
        for i in range(len(ids)):
            if ids[i] == packet_id:
                return i
        return -1

    def _open(self, packet_id: int) -> int:
        """Open a QoS 2 id for a new message: its place; or E_RX_WINDOW.

        _REPETITION when it is open already (4.3.3): that is answered, and not delivered.
        """
        i = self._find_open(packet_id)
        if i >= 0:
            self.duplicates += 1
            if self._open_state[i] == _ANSWERED:
                self._answer(i, packet_id)
            else:
                self._open_state[i] = _REPEATED
            return _REPETITION
        i = -1 if self.excess else self._free_place()
        if i < 0:
            return errors.E_RX_WINDOW
        self._open_ids[i] = packet_id
        self._open_state[i] = _DELIVERED
        self._open_epoch[i] = self.epoch
        self._opened += 1
        return i

    def _free_place(self) -> int:
        """A place for another open QoS 2 id, or -1."""
        return self._find_open(0)

    def _close_id(self, i: int) -> None:
        """The QoS 2 id in place ``i`` is free again."""
        self._open_ids[i] = 0
        if self._open_epoch[i] == self.epoch:
            self._opened -= 1

    def _deliver(
        self, handler: "Callable[..., object] | None", message: object, i: int, packet_id: int, answer: bool
    ) -> None:
        """Hand over a message at QoS 2, ``i`` being its place among the open ids, or at QoS 1; and answer it.

        The handler may publish until the transmit buffer is full: room for the answer is kept. It may raise: the
        message then counts as if it had never come. It may end the connection, and even begin another one.
        """
        turn = self.turn
        epoch = self.epoch
        if i < 0:
            # Until its PUBACK; the handler may acknowledge it.
            self.unanswered += 1
        if handler is not None:
            self.tx_size -= _ACK_SIZE
            try:
                if handler(message) == KEEP:
                    answer = False
            except BaseException:
                # Unless it was acknowledged first.
                if (
                    i >= 0
                    and self._open_ids[i] == packet_id
                    and self._open_epoch[i] == epoch
                    and self._open_state[i] != _ANSWERED
                ):
                    self._close_id(i)
                raise
            finally:
                if self.turn == turn:
                    self.tx_size += _ACK_SIZE
        if not answer:
            return
        if self.turn != turn:
            # Its connection is over. At QoS 1 it comes again; at QoS 2 it is its repetition that is to be answered.
            if i >= 0 and self.acknowledge(packet_id, 2, epoch) <= errors.E_AGAIN:
                self._open_state[i] = _ANSWERED
        elif i >= 0:
            self._answer(i, packet_id)
        else:
            self.unanswered -= 1
            put_ack(self, _PUBACK, packet_id)

    def _answer(self, i: int, packet_id: int) -> None:
        """Answer a message at QoS 2: from now on, whatever happens, it is not delivered again."""
        self._open_state[i] = _ANSWERED
        if self._received is not None and self._received.opened(packet_id):
            self.fail(errors.E_STORE)
        else:
            put_ack(self, _PUBREC, packet_id)

    def acknowledge(self, packet_id: int, qos: int, epoch: int) -> int:
        """With ``auto_ack`` off: acknowledge a message; ``epoch`` is the endpoint's when the message came.

        Acknowledge in the order of arrival (4.6). 0; E_QOS; E_AGAIN when the transmit buffer is full for now;
        E_STATE for a QoS 1 message of an earlier connection (it comes again); E_UNKNOWN_ID for what is no packet id, or
        at QoS 2 does not wait for an acknowledgement.
        """
        if qos != 1 and qos != 2:
            return errors.E_QOS
        if not 0 < packet_id < 65536:
            return errors.E_UNKNOWN_ID
        i = 0
        if qos == 2:
            i = self._find_open(packet_id)
            if i < 0 or self._open_epoch[i] != epoch or self._open_state[i] == _ANSWERED:
                return errors.E_UNKNOWN_ID
            if self.state != ONLINE or (epoch != self.epoch and self._open_state[i] != _REPEATED):
                # Its repetition will be answered at once.
                if self._received is not None and self._received.opened(packet_id):
                    return errors.E_STORE
                self._open_state[i] = _ANSWERED
                return 0
        elif epoch != self.epoch or self.state != ONLINE:
            return errors.E_STATE
        if self.tx_size - self.tx_end < _ACK_SIZE:
            return errors.E_AGAIN
        if qos == 2:
            self._answer(i, packet_id)
            return self.status
        if self.unanswered:
            self.unanswered -= 1
        put_ack(self, _PUBACK, packet_id)
        return 0

    def _on_pubrel(self, p: Packet) -> int:
        bad = decode_ack(p)
        if bad:
            return bad
        i = self._find_open(p.packet_id)
        if i >= 0:
            if self._received is not None and self._received.closed(p.packet_id):
                return errors.E_STORE
            self._close_id(i)
        else:
            # The other end missed our PUBCOMP, or it is confused: either way it may forget the id (4.3.3).
            self.strays += 1
        put_ack(self, _PUBCOMP, p.packet_id)
        return 0

    # -- messages larger than the receive buffer ---------------------------------------------------------------------

    def _payload_begins(self, i: int, end: int) -> int:
        """Where the payload of the PUBLISH at ``i`` begins, by what it says of its topic; 0 when that is not all here,
        or E_FIELD. Behind the receive buffer's capacity it may be any offset."""
        p = self.packet
        at = p.body
        if end - at < 2:
            return 0
        i = at + 2 + (p.buf[at] << 8 | p.buf[at + 1])
        if p.head & 6:
            i += 2
        if i > p.end:
            p.bad_at = at
            return errors.E_FIELD
        return i

    def _close_sink(self, complete: bool) -> None:
        """Tell the sink that its message is over."""
        sink = self._taker
        if sink is not None:
            self._taker = None
            sink.close(complete)


def _messages(s: Endpoint, i: int, end: int) -> int:
    """Take the packets that come most: PUBLISH, whole and short, and PUBACK, as many as stand one behind the other.

    A board's throughput is decided here; whatever is unusual about a packet is left to ``_packet``. Returns the offset
    reached, or negative when the connection is over.
    """
    p = s.packet
    turn = s.turn
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
            # The packet is taken, even when its handler raises.
            s.rx.start = stop
            if p.head & 6 == 0:
                if s.on_message is not None:
                    s.on_message(p)
            elif p.head & 2:
                _deliver_1(s, p)
            elif s._take(p):
                break
            i = stop
        if s.turn != turn:
            return -1
    return i


def _packet(s: Endpoint, i: int, end: int) -> int:
    """Take one packet, of any kind: the offset behind it; ``i`` when it has to wait, for bytes or for room to answer
    it; negative when the connection is over."""
    p = s.packet
    stop = decode_header(p, i, end)
    if stop <= 0:
        return s.fail(stop) if stop else i
    kind = p.head >> 4
    if not s._takes[s.state] >> kind & 1:
        return s.fail(errors.E_UNEXPECTED)
    if s.tx_size - s.tx_end < _ACK_SIZE:
        s.stalled = True
        return i
    if stop - i > s.rx.capacity:
        return large.begin(s, i, end)
    if stop > end:
        return i
    # The packet is taken, even when its handler raises.
    s.rx.start = stop
    bad = s._handlers[kind](p)
    if bad < 0:
        return s.fail(bad)
    if bad:
        # The answer has no room yet, or others must leave first: the packet is taken again later.
        s.stalled = True
        return i
    return stop


def _deliver_1(s: Endpoint, p: Packet) -> None:
    """As ``_deliver``, for a message at QoS 1 that is whole."""
    packet_id = p.packet_id
    turn = s.turn
    # As at QoS 2: what a handler changes holds from the next message on.
    auto_ack = s.auto_ack
    # Until its PUBACK; the handler may acknowledge it.
    s.unanswered += 1
    if s.on_message is not None:
        s.tx_size -= _ACK_SIZE
        try:
            if s.on_message(p) == KEEP:
                auto_ack = False
        finally:
            if s.turn == turn:
                s.tx_size += _ACK_SIZE
    if s.turn == turn and auto_ack:
        s.unanswered -= 1
        put_ack(s, _PUBACK, packet_id)
