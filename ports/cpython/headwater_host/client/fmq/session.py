"""The core's session of FMQ with a computer's room: buffers that grow, an outbox that may be a file, ids by a clock."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater import errors
from headwater.connection import ONLINE
from headwater.fmq import frames
from headwater.fmq.frames import NO_TAGS
from headwater.fmq.names import REASONS
from headwater.fmq.session import LIVE, WAITS_1
from headwater.fmq.spec import ACK, HEADER_SIZE, ID_SIZE, PINGREQ, PUBLISH
from headwater.fmq.streaming import StreamedMessage, stream_to
from headwater_host.client.fmq.fast import FastSession, front, length
from headwater_host.client.fmq.ids import ClockIdMaker, HostIdTable
from headwater_host.client.fmq.store import FmqOutbox
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.rxbuf import GrowingRxBuf
from headwater_host.errors import ArgumentError

if TYPE_CHECKING:
    from headwater.fmq.frames import Field, Frame
    from headwater.types import Bytes, Sink

#: The longest message that is received whole, unless told (docs/protocols/fmq.md, section 3).
MAX_BODY = 16 << 20
# The longest body that a length can say, and what is passed over rather than refused.
_LARGEST = (1 << 32) - 1
#: How many requests may be unanswered or live: each subscription is one, and each CONSUME.
REQUESTS = 4096
#: How many messages may wait for the program's acknowledgement.
RECEIVE_WINDOW = 4096
_RX = 1 << 16
_TX = 1 << 16
# What a request takes beside its strings; what AUTH takes beside client id, user, password and will.
_AROUND = 128


class HostSession(FastSession):
    """A client's session on a computer.

    ``max_body`` is the longest body that is received whole; longer messages go to ``sink`` or are skipped. ``slots``
    messages of ours may be unacknowledged or waiting, ``window`` of them sent. ``room`` is what AUTH takes beside the
    strings that are named here: the will. ``outbox`` may be one that outlives the process.
    """

    GREETING = "AUTH"
    REASONS = REASONS

    def __init__(
        self,
        client_id: bytes = b"",
        *,
        keep_alive: int = 60,
        clean: bool = True,
        user: bytes | None = None,
        password: bytes | None = None,
        max_body: int = MAX_BODY,
        slots: int = 1024,
        window: int = 1024,
        response_ms: int = 10000,
        room: int = 0,
        outbox: GrowingOutbox | None = None,
    ):
        box = outbox or GrowingOutbox(_TX, slots)
        kept = box if isinstance(box, FmqOutbox) else None
        super().__init__(
            client_id,
            keep_alive,
            clean,
            user,
            password,
            tx_size=_TX + _AROUND + room + len(client_id) + len(user or b"") + len(password or b""),
            window=window,
            # Tables that are large enough take their place.
            receive_window=1,
            requests=1,
            response_ms=response_ms,
            max_body=_LARGEST,
            # What is no message may be as large as the buffer is at first, whatever messages may.
            rx=GrowingRxBuf(_RX, max(_RX, max_body + HEADER_SIZE)),
            outbox=box,
        )
        self.ids = ClockIdMaker(kept.process, kept.ceiling, kept.keep_ids) if kept else ClockIdMaker()
        self.process = kept.process if kept else b""
        self.requests = HostIdTable(REQUESTS)
        self.taken = HostIdTable(RECEIVE_WINDOW)
        #: Which connection it is.
        self.epoch = 0
        self._first_tx = len(self.tx)

    @property
    def auto_ack(self) -> bool:
        """As the core's, for messages that the hub pushes; those of consumers are acknowledged by the program."""
        return self._auto_ack and self.source == 0

    @auto_ack.setter
    def auto_ack(self, value: bool) -> None:
        self._auto_ack = value

    @property
    def sink(self) -> "Sink[Frame] | None":
        """The sink of messages larger than the receive buffer."""
        return self.large.sink if isinstance(self.large, StreamedMessage) else None

    @sink.setter
    def sink(self, sink: "Sink[Frame] | None") -> None:
        stream_to(self, sink)

    def connect(self, now_ms: int) -> int:
        """As the core's."""
        self.epoch += 1
        if len(self.tx) > self._first_tx:
            # It has grown with a request.
            self.tx = bytearray(self._first_tx)
            self._pin = memoryview(self.tx)
        return super().connect(now_ms)

    # -- out -----------------------------------------------------------------------------------------------------------

    def offer(self, topic: bytes, payload: "Bytes", qos: int, retain: bool, tags: bytes | None = None) -> int:
        """As of ``publish``, but what the outbox could hold, were it empty, is E_WINDOW and not E_TOO_LARGE."""
        return self.publish(topic, bytes(payload), qos, retain, tags or NO_TAGS)

    def frame_of(self, topic: bytes, payload: "Bytes", retain: bool, tags: bytes | None = None) -> bytes:
        """The frame of a message at QoS 0. Raises ArgumentError."""
        before = front(topic, tags or NO_TAGS)
        if not before:
            raise ArgumentError(f"{topic!r} is not a topic", errors.E_TOPIC)
        return b"".join(
            (
                b"\x31" if retain else b"\x30",
                self.ids.next(PUBLISH, self.now),
                length(len(before) + len(payload)),
                before,
                payload,
            )
        )

    #: Frames do not depend on the connection.
    frame_now = frame_of

    def copied(self, tags: bytes | None) -> bytes | None:
        """Tags are bytes."""
        return tags

    def request(self, head: int, values: "Sequence[Field]", state: int = -1) -> int:
        """As the core's; the transmit buffer grows with it."""
        size = _AROUND + sum(_size(value) for value in values)
        if size > self.tx_size - self.tx_end and not self.out_n:
            more = max(size, _TX)
            self.tx = self.tx + bytearray(more)
            self._pin = memoryview(self.tx)
            self.tx_size += more
        return super().request(head, values, state)

    def reject(self, receipt: int, code: int) -> int:
        """As ``acknowledge``, for a message of a consumer: it goes to the group again."""
        taken = self.taken
        i = taken.place(receipt)
        if i < 0 or taken.state[i] != WAITS_1 or self.state != ONLINE:
            return errors.E_UNKNOWN_ID
        at = i * ID_SIZE
        ident = bytes(taken.ids[at : at + taken.sizes[i]])
        bad = self._put(frames.encode_frame(self.tx, self.tx_end, self.tx_size, ACK << 4, ident, (code,)))
        if bad == 0:
            taken.state[i] = 0
        return bad

    def has(self, subscription: int) -> bool:
        """Whether there is a subscription of this number."""
        i = self.requests.place(subscription)
        return i >= 0 and self.requests.state[i] == LIVE

    def forget(self, receipt: int) -> None:
        """A message is not to be acknowledged: it is one that is to be acknowledged already."""
        i = self.taken.place(receipt)
        if i >= 0:
            self.taken.state[i] = 0

    def probe(self) -> bytes:
        """PINGREQ."""
        return bytes((PINGREQ << 4,)) + bytes(self.ids.next(PINGREQ, self.now))

    def why(self) -> str:
        """What the hub says of what it has refused."""
        return self.reason().decode(errors="replace")

    def elsewhere(self) -> str:
        """ "": a hub that names another one does so in ``why``."""
        return ""


def _size(value: "Field") -> int:
    """Bytes that a field takes at most."""
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) + 9
    if isinstance(value, tuple | list):
        return 9 + sum(len(text) + 9 for text in value)
    return 24
