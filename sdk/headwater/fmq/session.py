"""The client's end of an FMQ connection (docs/protocols/fmq.md): no I/O, and the caller's time.

Its user reads at most ``rx.room`` bytes to the start of ``rx.view`` (after ``rx.window()``) and calls ``feed(n)``;
sends ``out_buf[out_at : out_at + n]``, n from ``out()``, and calls ``sent(k)`` with how many were taken; and calls
``poll(now_ms)`` a few times a second. A negative answer of any of these says that the connection is over.

Publishing, receiving, acknowledging, resending and keep-alive allocate nothing; connecting and requests do.
"""

from headwater import errors
from headwater.errors import PEER, blame
from headwater.fmq.frames import (
    Frame,
    check_filter,
    check_name,
    encode_answer,
    encode_frame,
    length_size,
    message_size,
    put_head,
    put_length,
)
from headwater.fmq.ids import IdMaker, IdTable
from headwater.fmq.large import LargeMessage
from headwater.fmq.receive import ANSWERED_2, CALL, HELLO, LIVE, OLD_2, WAITS_1, WAITS_2, last_word, take
from headwater.fmq.receive import answer as answer_taken
from headwater.fmq.sender import ANSWER_SIZE, NO_TOPIC, Sender
from headwater.fmq.spec import (
    ACK,
    AUTH,
    CONSUME,
    ID_SIZE,
    ONCE,
    REGISTER,
    SUBSCRIBE,
    UNREGISTER,
    UNSUBSCRIBE,
)
from headwater.fmq.transitions import TAKES
from headwater.fmq.values import put_text, read
from headwater.rxbuf import RxBuf
from headwater.store import RamOutbox
from headwater.transitions import CLOSING, FINISH, LOST, ONLINE, OPEN
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.fmq.frames import Field
    from headwater.types import Bytes, FrameSink, Outbox

_PUBLISH = const(3)
_REPLY = b"$rpc/reply"
# The head of a list of no tags.
_NO_TAGS = const(0xD0)
_LISTS = (tuple, list)
# The reasons that the hub is told of what it did wrong, where that is not malformed (0x81): a protocol error, a message
# too large, more messages than there is room for.
_REASONS = {
    errors.E_UNEXPECTED: 0x82,
    errors.E_ACK_KIND: 0x82,
    errors.E_RX_TOO_LARGE: 0x95,
    errors.E_RX_WINDOW: 0x93,
}


class ClientSession(Sender):
    """The client's session; it outlives connections.

    With ``clean`` False the hub keeps the session. Buffers: a frame to be received whole must fit in seven eighths of
    ``rx_size``; requests, and PUBLISH at QoS 0, in ``tx_size``, PUBLISH at QoS 1 and 2 in ``outbox_size``. ``slots``
    messages may be unacknowledged or waiting, ``window`` of them sent. ``requests`` may be unanswered or live: each
    subscription takes a place, and each CONSUME. ``receive_window`` messages may wait for the application or, at QoS 2,
    for PUBREL. Messages of more than ``max_body`` bytes end the connection.

    ``thread``, ``boot`` and ``process`` go into the message ids (``ids.IdMaker``). ``process`` is what the hub
    gave before, which a board may keep: only with it messages at QoS 1 and 2 can be handed in before the first
    connection, and their ids are unique only with a ``boot`` that counts.

    ``on_online(session_present)`` is called when the hub has accepted. ``on_message(frame)`` is called for each PUBLISH
    and CONSUMERESP, with the reusable cursor; ``source`` is then the number of the subscription or call that a
    CONSUMERESP belongs to, 0 for PUBLISH. ``on_call(frame)``, if it is there, is called instead for a PUBLISH that is
    an RPC's request, and ``on_result(number, frame)`` for what one ``call`` or ``consume_once`` brought. With
    ``auto_ack`` off, what is to be acknowledged is by ``acknowledge``, with the ``receipt`` of that moment. A message
    whose handler raises is not acknowledged: the exception passes through ``feed``, and the next ``feed(0)`` goes on
    behind the message.

    ``on_answer(number, code)``: a request was answered, 0 or a reason code; of a ``consume``, it has ended. ``reason``
    says more.

    ``sink`` takes messages larger than the receive buffer (``headwater.types.FrameSink``); without it they are skipped:
    acknowledged, and counted in ``skipped``.
    """

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
        receive_window: int = 16,
        requests: int = 16,
        response_ms: int = 10000,
        max_body: int = 1 << 24,
        thread: int = 0,
        boot: int = 0,
        process: "Bytes" = b"",
        rx: "RxBuf | None" = None,
        outbox: "Outbox | None" = None,
    ):
        super().__init__(
            tx_size, outbox or RamOutbox(outbox_size, slots), window, response_ms, IdMaker(thread, boot)
        )
        if process:
            self.process = process
            if self.ids.set_process(process, 0, len(process)):
                raise ValueError("a process number is too long")
        self.rx = rx or RxBuf(rx_size)
        if self.rx.capacity < 56:
            raise ValueError("the receive buffer needs at least 64 bytes")
        self.frame = Frame(self.rx.buf, max_body)
        self.client_id = client_id
        self.keep_alive = keep_alive
        self.clean = clean
        self._user = user
        self._password = password
        self._will: tuple[Field, ...] = ()
        #: The hub's reason code, when the status is E_REFUSED or E_DISCONNECTED; ``reason`` is its text.
        self.return_code = 0
        #: Whether the hub had kept the session, by its last answer to AUTH.
        self.session_present = False
        self.on_online: Callable[[bool], object] | None = None
        self.on_answer: Callable[[int, int], object] | None = None
        self.on_message: Callable[[Frame], object] | None = None
        self.on_call: Callable[[Frame], object] | None = None
        self.on_result: Callable[[int, Frame], object] | None = None
        self.sink: FrameSink | None = None
        self.auto_ack = True
        #: During ``on_message``: see there.
        self.source = self.receipt = 0
        #: Messages that were skipped, and repetitions at QoS 2 that were not delivered.
        self.skipped = self.duplicates = 0
        #: Whether what was read waits for room to answer it; ``feed(0)`` goes on once something was sent.
        self.stalled = False
        #: From ``feed`` on until its caller clears it.
        self.feeding = False
        self.requests = IdTable(requests)
        self.taken = IdTable(receive_window)
        self.large = LargeMessage()
        # For ``receive``: the message larger than the receive buffer that is passing, and the type of the answer to it;
        # the id of what is being taken; the place of the call that it ends, or -1; where in the buffer it begins.
        self.large_answer = 0
        self.close_large = self.large.close
        self.ident: Bytes = self.rx.buf
        self.ident_at = self.ident_end = 0
        self.ending = -1
        self.frame_at = 0

    def set_will(
        self, topic: "Bytes | None", payload: "Bytes" = b"", qos: int = 0, retain: bool = False
    ) -> int:
        """What the hub publishes when the connection is lost, from the next ``connect`` on: 0, E_TOPIC, E_QOS."""
        try:
            if topic is not None and check_name(topic):
                return errors.E_TOPIC
        except NOT_BYTES:
            return errors.E_ARGUMENT
        if not is_bytes(payload):
            return errors.E_ARGUMENT
        if qos != 0 and qos != 1 and qos != 2:
            return errors.E_QOS
        self._will = () if topic is None else (topic, qos, retain, payload)
        return 0

    # -- the connection ------------------------------------------------------------------------------------------------

    def connect(self, now_ms: int) -> int:
        """A transport is there: begin with AUTH. E_TOO_LARGE or E_ARGUMENT when it cannot be built."""
        self._stop()
        self.rx.clear()
        self.status = self.return_code = 0
        self.pinged = False
        self.now = self.rx_time = self.tx_time = now_ms
        asked = self.requests
        for i in range(asked.places):
            if asked.state[i] != LIVE:
                asked.state[i] = 0
        taken = self.taken
        for i in range(taken.places):
            if taken.state[i] == WAITS_1:
                taken.state[i] = 0
            elif taken.state[i] == WAITS_2:
                taken.state[i] = OLD_2
        values: tuple[Field, ...] = (
            self.client_id,
            self._user,
            self._password,
            self.keep_alive,
            self.clean,
        ) + self._will
        if values == (b"", None, None, 0, True):
            values = ()
        ident = self.ids.next(AUTH, now_ms)
        end = errors.E_ARGUMENT
        if is_bytes(self.client_id):
            end = encode_frame(self.tx, 0, self.tx_size, AUTH << 4, ident, values)
        i = asked.free()
        if end < 0 or i < 0:
            self.event(LOST)
            return end if end < 0 else errors.E_ARGUMENT
        asked.put(i, HELLO, ident, 0, len(ident))
        self.tx_end = end
        self.event(OPEN)
        return 0

    def disconnect(self) -> int:
        """Queue the end of the session's connection: an ACK to its AUTH. The will is not published.

        Close the transport once ``out`` is 0. E_AGAIN when the transmit buffer is full for now.
        """
        if self.state == CLOSING:
            return 0
        if self.state == ONLINE:
            asked = self.requests
            for i in range(asked.places):
                if asked.state[i] == HELLO:
                    n = i * ID_SIZE
                    end = encode_answer(
                        self.tx, self.tx_end, self.tx_size, ACK, asked.ids, n, n + asked.sizes[i]
                    )
                    bad = self._put(end)
                    if bad:
                        return bad
        self.event(FINISH)
        return 0

    def _stop(self) -> None:
        super()._stop()
        self.stalled = self.feeding = False
        # Last, because the sink may raise.
        self.large.give_up()

    def fail(self, code: int) -> int:
        """As of ``Sender``; and when the hub has done something wrong it is told so, if nothing else is half sent."""
        idle = self.out_n == 0
        super().fail(code)
        if idle and (blame(code) == PEER or code in _REASONS):
            last_word(self, _REASONS.get(code, 0x81))
        return code

    def awaits(self) -> bool:
        """As of ``Sender``. CONSUME is answered when it ends."""
        for state in self.requests.state:
            if state == CALL or (0 < state < LIVE and state != CONSUME):
                return True
        return super().awaits()

    # -- requests ------------------------------------------------------------------------------------------------------

    def register(self, topic: "Bytes", queues: int = 1) -> int:
        """REGISTER a topic with so many queues. Returns the request's number, which ``on_answer`` gets.

        This and the following: E_TOPIC or E_FILTER, E_ARGUMENT, E_OFFLINE, E_TOO_LARGE; E_AGAIN when the transmit
        buffer is full or too many requests are unanswered or live.
        """
        bad = _refused(check_name, topic)
        if bad or is_bytes(queues) or queues < 1:
            return bad or errors.E_ARGUMENT
        return self.request(REGISTER << 4, (topic,) if queues == 1 else (topic, queues))

    def unregister(self, topic: "Bytes") -> int:
        """UNREGISTER a topic: as ``register``."""
        return _refused(check_name, topic) or self.request(UNREGISTER << 4, (topic,))

    def subscribe(
        self,
        topic_filter: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        group: "Bytes" = b"",
    ) -> int:
        """SUBSCRIBE: its number, which ``on_answer`` gets with the answer, and which stands for the subscription.

        Without a ``group`` the hub sends what it gets, with PUBLISH. With one, ``consume`` begins.
        """
        values: tuple[Field, ...] = (topic_filter, tags, condition, group)
        if not group:
            values = values[:3] if condition else values[:2] if tags else values[:1]
        if not _is_query(tags, condition, group):
            return errors.E_ARGUMENT
        return _refused(check_filter, topic_filter) or self.request(SUBSCRIBE << 4, values)

    def unsubscribe(self, subscription: int) -> int:
        """UNSUBSCRIBE: the number of this request, as ``register``; E_UNKNOWN_ID when there is no such subscription."""
        return self._of_subscription(UNSUBSCRIBE << 4, subscription, 0, UNSUBSCRIBE)

    def consume(self, subscription: int, window: int = 0, need_ack: bool = False) -> int:
        """CONSUME from a subscription, until ``on_answer`` is called: the number of this request, as ``unsubscribe``.

        With ``need_ack`` each message is acknowledged, and ``window`` of them may be unacknowledged: no more than
        ``receive_window`` (E_ARGUMENT), which is what 0 stands for.
        """
        most = self.taken.places
        if not 0 <= window <= (most if need_ack else 1 << 29):
            return errors.E_ARGUMENT
        return self._of_subscription(
            CONSUME << 4 | (1 if need_ack else 0),
            subscription,
            window or (most if need_ack else 0),
            CONSUME,
        )

    def consume_once(
        self,
        topic: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        group: "Bytes" = b"",
        need_ack: bool = False,
        arguments: "Bytes" = b"",
    ) -> int:
        """CONSUME with ONCE, one message: its number, with which the message comes to ``on_result``, or to
        ``on_answer`` why there is none."""
        if not _is_query(tags, condition, group) or not is_bytes(arguments):
            return errors.E_ARGUMENT
        if _refused(check_filter, topic):
            return _refused(check_filter, topic)
        n = self.request(
            CONSUME << 4 | ONCE | (1 if need_ack else 0),
            (topic, tags, condition, group, arguments),
            CALL,
        )
        if n > 0 and need_ack:
            self.requests.more[self.requests.place(n)] = 1
        return n

    def call(self, topic: "Bytes", arguments: "Bytes" = b"") -> int:
        """Call whoever serves ``$rpc/TOPIC``: as ``consume_once``; 0x10 says that nobody does, 0x83 that there was no
        result."""
        return _refused(check_name, topic) or self.consume_once(topic, arguments=arguments)

    def reply(self, call: "Frame | Bytes", result: "Bytes") -> int:
        """Answer a call, with its frame while that is valid, or with its id: as ``publish`` at QoS 0."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        try:
            if isinstance(call, Frame):
                return _reply(self, call.buf, call.id_at, call.id_end, result)
            return _reply(self, call, 0, len(call), result)
        except NOT_BYTES:
            return errors.E_ARGUMENT

    def refuse(self, call: "Frame | Bytes", code: int, text: "Bytes" = b"") -> int:
        """Refuse a call, as ``reply``, with a reason code of 128 to 255 and a text in UTF-8 for the caller."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        if not 128 <= code < 256 or not is_bytes(text):
            return errors.E_ARGUMENT
        try:
            ident = bytes(call.buf[call.id_at : call.id_end]) if isinstance(call, Frame) else call
            return self._put(encode_frame(self.tx, self.tx_end, self.tx_size, ACK << 4, ident, (code, text)))
        except NOT_BYTES:
            return errors.E_ARGUMENT

    def request(self, head: int, values: "Sequence[Field]", state: int = -1) -> int:
        """Any request, by its first byte and fields (``encode.frame``): its number, as ``register``."""
        if self.state != ONLINE:
            return errors.E_OFFLINE
        asked = self.requests
        i = asked.free()
        if i < 0:
            return errors.E_AGAIN
        ident = self.ids.next(head >> 4, self.now)
        bad = self._put(encode_frame(self.tx, self.tx_end, self.tx_size, head, ident, values))
        if bad:
            return bad
        asked.put(i, head >> 4 if state < 0 else state, ident, 0, len(ident))
        return asked.number(i)

    def _of_subscription(self, head: int, subscription: int, window: int, state: int) -> int:
        asked = self.requests
        i = asked.place(subscription)
        if i < 0 or asked.state[i] != LIVE:
            return errors.E_UNKNOWN_ID
        at = i * ID_SIZE
        ident = bytes(asked.ids[at : at + asked.sizes[i]])
        n = self.request(head, (ident, window) if window else (ident,), state)
        if n > 0:
            asked.more[asked.place(n)] = i
            if state == CONSUME:
                asked.more[i] = head & 1
        return n

    def acknowledge(self, receipt: int) -> int:
        """With ``auto_ack`` off: acknowledge the message whose ``receipt`` it is.

        0; E_AGAIN when the transmit buffer is full for now; E_UNKNOWN_ID when it does not wait for that: it was
        acknowledged, or its connection is over and it comes again.
        """
        taken = self.taken
        i = taken.place(receipt)
        if i < 0 or taken.state[i] == ANSWERED_2:
            return errors.E_UNKNOWN_ID
        if self.state != ONLINE or taken.state[i] == OLD_2:
            if taken.state[i] == WAITS_1:
                return errors.E_UNKNOWN_ID
            # Its repetition will be answered at once.
            taken.state[i] = ANSWERED_2
            return 0
        if self.tx_size - self.tx_end < ANSWER_SIZE:
            return errors.E_AGAIN
        answer_taken(self, i)
        return 0

    def reason(self) -> bytes:
        """What the hub says of its refusal: a text in UTF-8, often an empty one. It allocates.

        Of use in ``on_answer`` and ``on_refused``, and behind E_REFUSED and E_DISCONNECTED."""
        f = self.frame
        if f.head >> 4 != ACK or f.code == 0 or f.count < 2 or read(f.value, f.at[1], f.end) < 0:
            return b""
        return bytes(f.buf[f.value.at : f.value.end])

    # -- receiving -----------------------------------------------------------------------------------------------------

    def feed(self, n: int) -> int:
        """Parse ``n`` more bytes, just read into ``rx.view``: 0, or the error that broke the connection.

        Whole frames are handled where they lie; the rest waits. Stops early, with ``stalled`` set, when an answer has
        no room in the transmit buffer.
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
        if not TAKES[self.state]:
            # CLOSING, or no connection: what arrives is not looked at.
            i = n
        # A handler may end the connection, or begin another: then nothing known here holds any more.
        turn = self.turn
        while i < n:
            at = i
            i = take(self, i, n)
            if i < 0 or self.turn != turn:
                return self.feed(0)
            if i == at:
                break
        rx.start = i
        return 0


def _is_query(tags: object, condition: object, group: object) -> bool:
    """Whether these can be fields of SUBSCRIBE."""
    return is_bytes(condition) and is_bytes(group) and (is_bytes(tags) or isinstance(tags, _LISTS))


def _refused(check: "Callable[[Bytes], int]", topic: "Bytes") -> int:
    """What ``check`` says of a topic or a filter, or E_ARGUMENT when it is not bytes."""
    try:
        return check(topic)
    except NOT_BYTES:
        return errors.E_ARGUMENT


def _reply(s: ClientSession, buf: "Bytes", at: int, end: int, result: "Bytes") -> int:
    """PUBLISH to ``$rpc/reply``: the call's id, which is ``buf[at:end]``, and the result."""
    n = message_size(_REPLY, result) + end - at
    size = 1 + len(s.ids.ident) + length_size(n) + n
    if size > s.tx_size - s.tx_end:
        return errors.E_AGAIN if size <= len(s.tx) else errors.E_TOO_LARGE
    # It may stand where the frame is that was ready.
    s.ready = NO_TOPIC
    to = put_head(s.tx, s.tx_end, _PUBLISH << 4, s.ids.next(_PUBLISH, s.now))
    to = put_text(s.tx, put_length(s.tx, to, n), len(s.tx), _REPLY)
    s.tx[to] = _NO_TAGS
    to += 1
    while at < end:
        s.tx[to] = buf[at]
        to += 1
        at += 1
    s.tx[to : to + len(result)] = result
    s.tx_end += size
    return 0
