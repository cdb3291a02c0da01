"""A PUBLISH or CONSUMERESP that is larger than the receive buffer: it passes through, to a sink or to nobody, and the
connection lives.

What stands before the payload is held, if it fits, and the payload is handed to the sink as it arrives. If it does not
fit the message cannot be delivered: it is skipped, and not looked at any further. Its id, which does fit, is kept in
both cases, so that it can be acknowledged.
"""

from headwater.errors import E_FIELD
from headwater.fmq.frames import ROWS, walk_fields
from headwater.fmq.spec import ID_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame
    from headwater.types import Bytes, FrameSink


class LargeMessage:
    """The state of one large message: ``left`` bytes of it are still to come, 0 when there is none.

    ``head`` is its first byte, 0 when it is not to be acknowledged; its id is ``ident[:id_size]``.
    """

    def __init__(self) -> None:
        self._sink: FrameSink | None = None
        self.left = 0
        self.head = 0
        self.ident = bytearray(ID_SIZE)
        self.id_size = 0
        self.streaming = False
        self._shown = False

    def begin(self, f: "Frame", at: int, end: int, capacity: int) -> int:
        """Look at the beginning of the frame at ``at``, which ``decode.header`` has read.

        ``buf[at:end]`` is there. Returns the offset from which on ``left`` bytes are to be passed, 0 when more must be
        read first, or a code.
        """
        # Of what is behind ``capacity`` only now and then something is here: it must make no difference.
        stop = min(f.end, end, at + capacity)
        bad = walk_fields(f, ROWS[f.head >> 4], stop)
        if bad == E_FIELD and stop < f.end:
            if end - at < capacity:
                return 0
            bad = 0
            f.payload_at = f.body
            self._shown = False
        else:
            self._shown = True
        if bad:
            return bad
        self.head = f.head
        self.id_size = f.id_end - f.id_at
        for i in range(self.id_size):
            self.ident[i] = f.buf[f.id_at + i]
        self.left = f.end - f.payload_at
        return f.payload_at

    def offer(self, f: "Frame", sink: "FrameSink | None") -> bool:
        """Offer the message to the sink: whether it takes it. If it raises, the message passes, unacknowledged."""
        self._sink = sink
        self.streaming = False
        if sink is None or not self._shown:
            return False
        try:
            self.streaming = sink.open(f, self.left)
        except BaseException:
            self.head = 0
            raise
        return self.streaming

    def take(self, buf: "Bytes", at: int, end: int) -> int:
        """Pass on what of the payload is in ``buf[at:end]``: the offset reached. The message is over when none is left.

        What the sink raises ends the message for it, unacknowledged.
        """
        n = min(self.left, end - at)
        self.left -= n
        if self.streaming and self._sink is not None and n:
            try:
                self._sink.write(buf, at, n)
            except BaseException:
                self.head = 0
                self.close(False)
                raise
        return at + n

    def close(self, complete: bool) -> None:
        """Tell the sink that its message is over."""
        if self.streaming and self._sink is not None:
            self.streaming = False
            self._sink.close(complete)

    def give_up(self) -> None:
        """The connection is over before the message is."""
        self.left = 0
        self.close(False)
