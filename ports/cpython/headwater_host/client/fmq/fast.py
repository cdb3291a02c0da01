"""The fast path of FMQ's session on CPython.

As in ``headwater_host.client.mqtt.fast``, received bytes are copied once and sliced, and sent bytes are joined. An
answer finds its message without a search. State and decisions are the core's; all other frames are left to it.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from headwater import errors
from headwater.connection import ONLINE, was_sent
from headwater.fmq.frames import check_name, put_length
from headwater.fmq.session import ANSWER_SIZE, ClientSession, on_frame, settle, take_frame
from headwater.fmq.spec import ACK, PUBCOMP, PUBLISH, PUBREC
from headwater.fmq.values import put_text
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.fmq.usual import usual

if TYPE_CHECKING:
    from headwater.types import Bytes
    from headwater_host.client.connection import Chunks

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


class FastPath:
    """The fast path of one session, which uses ``enqueue`` and has ``take_frames`` in place of the core's."""

    def __init__(self) -> None:
        # Outbox entries by message id. The core searches for an id that is not in it.
        self._entries: dict[bytes, int] = {}

    # -- send path -----------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        s: ClientSession,
        frames: "Chunks | None",
        topic: "Bytes",
        payload: "Bytes",
        flags: int,
        tags: "Bytes",
    ) -> int:
        """Enqueue a QoS 1 or 2 message: its number or an error; 0 if the core must handle the message.

        A message that can leave now is appended to ``frames`` as a whole frame.
        """
        if flags < 2 or type(topic) is not bytes or not isinstance(payload, bytes | bytearray):
            return 0
        before = front(topic, bytes(tags))
        if not before:
            return errors.E_TOPIC
        if not s.process:
            # Without a process number the id would not be unique.
            return errors.E_OFFLINE
        box = s.outbox
        size = length(len(before) + len(payload))
        n = 1 + len(s.ids.ident) + len(size) + len(before) + len(payload)
        at = box.reserve(n)
        if at < 0:
            largest = box.limit if isinstance(box, GrowingOutbox) else len(box.buf)
            return errors.E_WINDOW if box.count and n <= largest else errors.E_TOO_LARGE
        ident = s.ids.next(PUBLISH, s.now)
        data = b"".join((bytes((PUBLISH << 4 | flags,)), ident, size, before, payload))
        box.buf[at : at + n] = data
        if box.commit(n, flags >> 1) < 0:
            return errors.E_STORE
        number = box.next or box.slots
        if len(self._entries) >= box.slots:
            # Refused messages stay in it. The core finds what is not in it.
            self._entries.clear()
        self._entries[bytes(ident)] = number - 1
        if s.send_whole(at, frames is not None) and frames is not None:
            frames.append(data)
        return number

    # -- receive path --------------------------------------------------------------------------------------------------

    def take_frames(self, s: ClientSession, i: int, end: int) -> int:
        """Take frequent frames, and other ones between them: the offset reached, negative at the end."""
        if s.state != ONLINE or s.large_left or end > _COPY:
            return take_frame(s, i, end)
        f = s.frame
        epoch = s.epoch
        data = bytes(memoryview(s.rx.buf)[:end])
        while i < end and not s.large_left:
            at = i
            f.buf = data
            try:
                i = self._take_usual(s, data, i, end)
            finally:
                f.buf = s.rx.buf
            if i == at:
                i = take_frame(s, i, end)
            if i < 0 or s.epoch != epoch:
                return -1
            # Also when the frame has to wait: the core has set it before it knew.
            s.rx.start = i
            if i == at:
                break
        return i

    def _take_usual(self, s: ClientSession, data: bytes, i: int, end: int) -> int:
        """Handle a frequent frame. Return the offset after it, ``i`` to leave it to the core, or a negative error."""
        f = s.frame
        stop = usual(f, data, i, end)
        if not stop or stop - i > s.rx.capacity or s.tx_size - s.tx_end < ANSWER_SIZE:
            return i
        s.frame_at = i
        # The frame counts as taken even if its handler raises.
        s.rx.start = stop
        kind = f.head >> 4
        if kind in _COLUMNS and self._is_answered(s, kind, data[f.id_at : f.id_end]):
            return stop
        bad = on_frame(s, f)
        if bad > 0:
            return i
        return s.fail(bad) if bad else stop

    def _is_answered(self, s: ClientSession, kind: int, ident: bytes) -> bool:
        """Apply an answer to the message with this id, if it is in the outbox and the answer fits."""
        i = self._entries.get(ident, -1)
        if i < 0 or not was_sent(s, i):
            return False
        box = s.outbox
        at = box.at[i] + 1
        if box.buf[at : at + len(ident)] != ident or settle(s, i, _COLUMNS[kind], ident, 0, len(ident)):
            return False
        if kind != PUBREC:
            del self._entries[ident]
        return True
