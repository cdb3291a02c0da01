"""MQTT messages larger than the receive buffer, passed to a sink in pieces.

    stream_to(client.session, sink)

Without this module such messages are skipped. ``sink`` is a ``headwater.types.Sink``. Nothing here allocates.
"""

from headwater.mqtt.session import LargeMessage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.session import Session
    from headwater.types import Bytes, Sink


def stream_to(session: "Session", sink: "Sink[Packet] | None") -> None:
    """Pass large messages of a session to ``sink``; None skips them. Call it while none is passing."""
    session.large = StreamedMessage(sink)
    session.close_large = session.large.close


class StreamedMessage(LargeMessage):
    """A large message on its way to a sink. If the sink raises, it gets no more of the message, which is not
    acknowledged."""

    def __init__(self, sink: "Sink[Packet] | None"):
        super().__init__()
        self.streaming = False
        self.sink = sink
        # The sink that has taken the message at hand.
        self._taker: Sink[Packet] | None = None

    def offer(self, p: "Packet") -> bool:
        """Offer the message to the sink: whether it takes it."""
        sink = self.sink
        if sink is None:
            return False
        try:
            self.streaming = sink.open(p, self.left)
        except BaseException:
            self.qos = 0
            raise
        self._taker = sink
        return self.streaming

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        """Pass on ``n`` bytes of the payload."""
        try:
            self._taker.write(buf, at, n)  # type: ignore[union-attr]  # it streams
        except BaseException:
            self.qos = 0
            self.close(False)
            raise

    def close(self, complete: bool) -> None:
        """Tell the sink that its message has ended."""
        if self.streaming:
            self.streaming = False
            self._taker.close(complete)  # type: ignore[union-attr]  # it streams
