"""Messages larger than the receive buffer, passed to a sink in pieces.

    stream_to(client.session, sink)

Without it such messages are skipped. ``sink`` is a ``headwater.types.Sink``. Receiving allocates nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from headwater.types import Bytes, Sink

    class Streaming(Protocol):
        """A session that passes large messages to a stream."""

        stream: "Stream | None"


def stream_to(session: "Streaming", sink: "Sink[Any] | None") -> None:
    """Pass large messages of a session to ``sink``; None skips them. Do not call it during a large message."""
    session.stream = None if sink is None else Stream(sink)


class Stream:
    """Passes large messages to a sink.

    If the sink raises an exception, the rest of the message is skipped and the message is not acknowledged.
    """

    def __init__(self, sink: "Sink[Any]"):
        self.sink = sink
        #: True if the sink accepts the current message.
        self.streaming = False
        # Bound once, because binding allocates.
        self.end = self.close

    def open(self, session: "Any", message: "Any") -> None:
        """Offer the sink the large message that ``session`` starts to receive."""
        epoch = session.epoch
        self.streaming = self.sink.open(message, session.large_left)
        if session.epoch != epoch:
            # The sink has ended the connection.
            self.close(False)

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        """Pass ``n`` bytes of the payload to the sink."""
        try:
            self.sink.write(buf, at, n)
        except BaseException:
            self.close(False)
            raise

    def close(self, complete: bool) -> None:
        """End the sink's message."""
        if self.streaming:
            self.streaming = False
            self.sink.close(complete)
