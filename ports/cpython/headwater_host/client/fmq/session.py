"""The FMQ session on a host: buffers that grow, an outbox that can be a file, ids by the clock."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater import errors
from headwater.connection import ONLINE
from headwater.fmq import frames
from headwater.fmq.frames import NO_TAGS
from headwater.fmq.names import REASONS
from headwater.fmq.session import LIVE, WAITS_1, ClientSession
from headwater.fmq.spec import ACK, HEADER_SIZE, PINGREQ, PUBLISH
from headwater.mqtt.spec5 import SERVER_MOVED
from headwater.streaming import stream_to
from headwater_host.client.connection import Chunks
from headwater_host.client.fmq.fast import FastPath, front, length
from headwater_host.client.fmq.ids import ClockIdMaker, HostIdTable
from headwater_host.client.rxbuf import GrowingRxBuf
from headwater_host.client.session_config import SessionConfig
from headwater_host.errors import ArgumentError

if TYPE_CHECKING:
    from headwater.fmq.frames import Field, Frame
    from headwater.types import Bytes, Sink

#: The default limit of messages that are received whole (docs/protocols/fmq.md, section 3).
MAX_BODY = 16 << 20
# The maximum length that can be encoded: larger messages than ``max_body`` are skipped, not refused.
_LARGEST = (1 << 32) - 1
#: The maximum number of unanswered or live requests; each subscription and each CONSUME is one.
REQUESTS = 4096
#: The maximum number of messages that wait for the program's acknowledgement.
RECEIVE_WINDOW = 4096
_RX = 1 << 16
_TX = 1 << 16
# Bytes of a request besides its strings, and of AUTH besides client id, user, password and will.
_AROUND = 128


class HostSession(ClientSession):
    """A client's session on a host.

    ``max_body`` is the limit of messages that are received whole; larger ones go to ``sink`` or are skipped.
    """

    GREETING = "AUTH"
    REASONS = REASONS

    #: Takes whole frames that can leave at once; None: they leave through ``out``.
    frames: Chunks | None = None

    def __init__(self, config: SessionConfig, *, max_body: int = MAX_BODY):
        box = config.make_outbox()
        kept = box.message_ids
        super().__init__(
            *config.login,
            tx_size=config.tx_size(_AROUND),
            window=config.window,
            # Replaced by larger tables below.
            receive_window=1,
            requests=1,
            response_ms=config.response_ms,
            max_body=_LARGEST,
            # Frames other than messages can have the initial size of the buffer, whatever the limit of messages.
            rx=GrowingRxBuf(_RX, max(_RX, max_body + HEADER_SIZE)),
            outbox=box,
        )
        if config.will and self.set_will(*config.will):
            raise ArgumentError("a will's QoS is 0, 1 or 2")
        self._fast = FastPath()
        self.take_packets = self._fast.take_frames
        self.ids = ClockIdMaker(kept.process, kept.ceiling, kept.keep) if kept else ClockIdMaker()
        self.process = kept.process if kept else b""
        self.requests = HostIdTable(REQUESTS)
        self.taken = HostIdTable(RECEIVE_WINDOW)
        self._first_tx = len(self.tx)

    @property
    def auto_ack(self) -> bool:
        """True if pushed messages are acknowledged automatically; the program acknowledges those of consumers."""
        return self._auto_ack and self.source == 0

    @auto_ack.setter
    def auto_ack(self, value: bool) -> None:
        self._auto_ack = value

    @property
    def sink(self) -> "Sink[Frame] | None":
        """The sink of messages larger than the receive buffer."""
        return self.stream.sink if self.stream is not None else None

    @sink.setter
    def sink(self, sink: "Sink[Frame] | None") -> None:
        stream_to(self, sink)

    def connect(self, now_ms: int) -> int:
        """Start a connection with AUTH."""
        if len(self.tx) > self._first_tx:
            # A request has enlarged it.
            self.tx = bytearray(self._first_tx)
            self._pin = memoryview(self.tx)
        return super().connect(now_ms)

    # -- out -----------------------------------------------------------------------------------------------------------

    def enqueue(self, topic: "Bytes", payload: "Bytes", flags: int, tags: "Bytes" = NO_TAGS) -> int:
        """Publish, with QoS and RETAIN as in PUBLISH's first byte. Returns as ``publish``."""
        number = self._fast.enqueue(self, self.frames, topic, payload, flags, tags)
        return number or super().enqueue(topic, payload, flags, tags)

    def offer(self, topic: bytes, payload: "Bytes", qos: int, retain: bool, tags: bytes | None = None) -> int:
        """Publish; E_WINDOW instead of E_TOO_LARGE for a message that an empty outbox could hold."""
        return self.publish(topic, bytes(payload), qos, retain, tags or NO_TAGS)

    def frame_of(self, topic: bytes, payload: "Bytes", retain: bool, tags: bytes | None = None) -> bytes:
        """Encode a message of QoS 0. Raises ArgumentError."""
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
        """Return the tags, which are immutable bytes."""
        return tags

    def request(self, head: int, values: "Sequence[Field]", state: int = -1) -> int:
        """Send any request (``ClientSession.request``); the transmit buffer grows if necessary."""
        size = _AROUND + sum(_size(value) for value in values)
        if size > self.tx_size - self.tx_end and not self.out_n:
            more = max(size, _TX)
            self.tx = self.tx + bytearray(more)
            self._pin = memoryview(self.tx)
            self.tx_size += more
        return super().request(head, values, state)

    def reject(self, receipt: int, code: int) -> int:
        """Reject a consumed message, which the hub redelivers to the group. Return 0, E_AGAIN or E_UNKNOWN_ID."""
        taken = self.taken
        i = taken.place(receipt)
        if i < 0 or taken.state[i] != WAITS_1 or self.state != ONLINE:
            return errors.E_UNKNOWN_ID
        head = ACK << 4
        bad = self.queue_packet(
            frames.encode_frame(self.tx, self.tx_end, self.tx_size, head, taken.ident(i), (code,))
        )
        if bad == 0:
            taken.state[i] = 0
        return bad

    def has(self, subscription: int) -> bool:
        """Return whether there is a subscription with this number."""
        i = self.requests.place(subscription)
        return i >= 0 and self.requests.state[i] == LIVE

    def forget(self, receipt: int) -> None:
        """Forget a message that is a duplicate of one that waits for acknowledgement."""
        i = self.taken.place(receipt)
        if i >= 0:
            self.taken.state[i] = 0

    def probe(self) -> bytes:
        """Encode a PINGREQ."""
        return bytes((PINGREQ << 4,)) + bytes(self.ids.next(PINGREQ, self.now))

    def why(self) -> str:
        """Return the hub's text for its refusal."""
        return "" if self.elsewhere() else self._text()

    def elsewhere(self) -> str:
        """Return the address of the hub that leads, if this one does not, or ""."""
        return self._text() if self.return_code == SERVER_MOVED else ""

    def _text(self) -> str:
        return self.reason().decode(errors="replace")


def _size(value: "Field") -> int:
    """Return the maximum encoded size of a field."""
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) + 9
    if isinstance(value, tuple | list):
        return 9 + sum(len(text) + 9 for text in value)
    return 24
