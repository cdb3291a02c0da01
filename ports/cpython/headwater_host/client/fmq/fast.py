"""The fast path of FMQ's session on CPython.

As in ``headwater_host.client.mqtt.fast``, received bytes are copied once and sliced, sent bytes are joined, and an
answer finds its message without a search. State and decisions are the core's; all other frames are left to it.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headwater import errors
from headwater.connection import ONLINE
from headwater.fmq.frames import NO_TAGS, Frame, check_name, put_length
from headwater.fmq.session import ANSWER_SIZE, ClientSession, on_frame, settle, take_frame
from headwater.fmq.spec import ACK, PUBCOMP, PUBLISH, PUBREC
from headwater.fmq.values import put_text
from headwater_host.client.connection import Chunks
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.fmq.usual import usual

if TYPE_CHECKING:
    from headwater.types import Bytes

_FRONTS = 4096
_REMEMBERED = 256
# More received bytes are not copied: they are mostly one large frame that grows with every read.
_COPY = 1 << 17
# Answers, and their columns in the core's table of deliveries.
_COLUMNS = {ACK: 0, PUBREC: 1, PUBCOMP: 2}


@lru_cache(maxsize=_FRONTS)
def _remembered(topic: bytes, tags: bytes) -> bytes:
    return b"" if check_name(topic) else _front(topic, tags)


def _front(topic: bytes, tags: bytes) -> bytes:
    buf = bytearray(len(topic) + 9)
    return bytes(buf[: put_text(buf, 0, len(buf), topic)]) + tags


def front(topic: bytes, tags: bytes) -> bytes:
    """Encode what precedes the payload in the body of a PUBLISH; b"" if the topic is invalid."""
    if len(topic) + len(tags) <= _REMEMBERED:
        return _remembered(topic, tags)
    return b"" if check_name(topic) else _front(topic, tags)


def length(n: int) -> bytes:
    """Encode the length of a body."""
    if n < 16:
        return bytes((n,))
    if n < 4096:
        return bytes((16 | n & 15, n >> 4))
    buf = bytearray(9)
    return bytes(buf[: put_length(buf, 0, n)])


class FastSession(ClientSession):
    """The client's session with the fast path."""

    #: Where a message that can leave at once is put, as a whole frame; None: it leaves through ``out``.
    frames: Chunks | None = None

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        # Outbox entries by message id. The core searches for an id that is not in it.
        self._entries: dict[bytes, int] = {}

    # -- out -----------------------------------------------------------------------------------------------------------

    def take(self, chunks: Chunks) -> None:
        """Append a copy of everything that can be sent, which counts as sent."""
        n = self.out()
        while n > 0:
            at = self.out_at
            chunks.append(self.out_buf[at : at + n])
            n = self.sent(n)

    def enqueue(self, topic: "Bytes", payload: "Bytes", flags: int, tags: "Bytes" = NO_TAGS) -> int:
        """As the core's."""
        if flags < 2 or type(topic) is not bytes or not isinstance(payload, bytes | bytearray):
            return super().enqueue(topic, payload, flags, tags)
        before = front(topic, bytes(tags))
        if not before:
            return errors.E_TOPIC
        if not self.process:
            # Without a process number the id would not be unique.
            return errors.E_OFFLINE
        box = self.outbox
        size = length(len(before) + len(payload))
        n = 1 + len(self.ids.ident) + len(size) + len(before) + len(payload)
        at = box.reserve(n)
        if at < 0:
            largest = box.limit if isinstance(box, GrowingOutbox) else len(box.buf)
            return errors.E_WINDOW if box.count and n <= largest else errors.E_TOO_LARGE
        ident = self.ids.next(PUBLISH, self.now)
        data = b"".join((bytes((PUBLISH << 4 | flags,)), ident, size, before, payload))
        box.buf[at : at + n] = data
        if box.commit(n, flags >> 1) < 0:
            return errors.E_STORE
        number = box.next or box.slots
        if len(self._entries) >= box.slots:
            # Refused messages stay in it. The core finds what is not in it.
            self._entries.clear()
        self._entries[bytes(ident)] = number - 1
        if self.frames is not None and self.send_whole(at):
            self.frames.append(data)
        else:
            self._unsent += 1
        return number

    # -- in ------------------------------------------------------------------------------------------------------------

    def feed(self, n: int) -> int:
        """Decode ``n`` more bytes: 0, or the error that ended the connection."""
        rx = self.rx
        if n and self.state == ONLINE and not (self.large_left or rx.gap or rx.end + n > _COPY):
            self.rx_time = self.now
            self.feeding = True
            rx.end += n
            self._take_many(bytes(memoryview(rx.buf)[: rx.end]), rx.end)
            n = 0
        return super().feed(n)

    def _take_many(self, data: bytes, end: int) -> None:
        """Take whole frequent frames, and other ones between them; the core takes the rest.

        ``data`` is the content of the receive buffer from its beginning.
        """
        f = self.frame
        epoch = self.epoch
        i = self.rx.start
        while i < end and not self.large_left:
            at = i
            f.buf = data
            try:
                i = self._take_usual(f, data, i, end)
            finally:
                f.buf = self.rx.buf
            if i == at:
                i = take_frame(self, i, end)
            if i < 0 or self.epoch != epoch:
                return
            # Also when the frame has to wait: the core has set it before it knew.
            self.rx.start = i
            if i == at:
                return

    def _take_usual(self, f: Frame, data: bytes, i: int, end: int) -> int:
        """Take a frequent frame: the offset behind it; ``i`` if the core must take it; negative on an error."""
        stop = usual(f, data, i, end)
        if not stop or stop - i > self.rx.capacity or self.tx_size - self.tx_end < ANSWER_SIZE:
            return i
        self.frame_at = i
        kind = f.head >> 4
        if kind in _COLUMNS and self._is_answered(kind, data[f.id_at : f.id_end]):
            self.rx.start = stop
            return stop
        # The frame counts as taken even if its handler raises.
        self.rx.start = stop
        bad = on_frame(self, f)
        if bad > 0:
            return i
        return self.fail(bad) if bad else stop

    def _is_answered(self, kind: int, ident: bytes) -> bool:
        """Apply an answer to the message with this id, if it is in the outbox and the answer fits."""
        i = self._entries.get(ident, -1)
        box = self.outbox
        if i < 0 or (i - box.head) % box.slots >= box.count - self._unsent:
            return False
        at = box.at[i] + 1
        if box.buf[at : at + len(ident)] != ident or settle(self, i, _COLUMNS[kind], ident, 0, len(ident)):
            return False
        if kind != PUBREC:
            del self._entries[ident]
        return True
