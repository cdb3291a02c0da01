"""FMQ messages larger than the receive buffer, passed to a sink in pieces.

    stream_to(client.session, sink)

Without this module such messages are skipped. ``sink`` is a ``headwater.types.Sink``. Nothing here allocates.
"""

from headwater.fmq.session import LargeMessage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame
    from headwater.fmq.session import ClientSession
    from headwater.types import Bytes, Sink


def stream_to(session: "ClientSession", sink: "Sink[Frame] | None") -> None:
    """Pass large messages of a session to ``sink``; None skips them. Call it while none is under way."""
    session.large = StreamedMessage(sink)
    session.close_large = session.large.close


class StreamedMessage(LargeMessage):
    """A large message on its way to a sink.

    A sink that raises gets no more of the message, which then is not acknowledged.
    """

    def __init__(self, sink: "Sink[Frame] | None"):
        super().__init__()
        self.streaming = False
        self.sink = sink

    def offer(self, f: "Frame") -> bool:
        """Offer the message to the sink: whether it takes it."""
        self.streaming = False
        if self.sink is None or not self.fits:
            return False
        try:
            self.streaming = self.sink.open(f, self.left)
        except BaseException:
            self.head = 0
            raise
        return self.streaming

    def take(self, buf: "Bytes", at: int, end: int) -> int:
        """Pass on the payload in ``buf[at:end]``: the offset reached."""
        n = min(self.left, end - at)
        self.left -= n
        if self.streaming and self.sink is not None and n:
            try:
                self.sink.write(buf, at, n)
            except BaseException:
                self.head = 0
                self.close(False)
                raise
        return at + n

    def close(self, complete: bool) -> None:
        """Tell the sink that its message has ended."""
        if self.streaming and self.sink is not None:
            self.streaming = False
            self.sink.close(complete)
