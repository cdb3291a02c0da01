"""FMQ into the capture log: whole frames out of what a connection brings, in whichever pieces."""

from headwater.errors import E_RX_TOO_LARGE
from headwater.fmq.decode import Frame, header
from headwater.fmq.message_id import MORE
from headwater.fmq.spec import CONSUMERESP, PUBLISH
from headwater_host.capture.format import RECEIVED
from headwater_host.gateway.landing import FMQ, Landing

#: The longest body that is taken, unless told (docs/protocols/fmq.md, section 3).
MAX_BODY = 16 << 20
#: How much of what is no frame is kept.
GARBAGE = 4096
#: What is landed, as of MQTT only PUBLISH is: messages.
MESSAGES = (PUBLISH, CONSUMERESP)


class Splitter:
    """Takes one direction of a connection apart; looks at frames' headers only.

    ``error`` is 0, or the code for which the connection is to be given up: where a frame should begin there is none,
    or one above the limit. From then on nothing is taken.
    """

    def __init__(self, max_body: int = MAX_BODY):
        self._buf = bytearray()
        self._frame = Frame(self._buf, max_body)
        # With fewer bytes than that there is nothing new to see.
        self._need = 1
        self.error = 0

    def feed(self, data: "bytes | bytearray | memoryview") -> list[bytes]:
        """The frames that are whole now that ``data`` has come."""
        buf, f = self._buf, self._frame
        if self.error:
            return []
        buf += data
        end = len(buf)
        found = []
        at = 0
        while end - at >= self._need:
            stop = header(f, at, end)
            if stop < 0:
                self.error = stop
                break
            if stop == MORE or stop > end:
                self._need = 1 + (end if stop == MORE else stop - 1) - at
                break
            found.append(bytes(memoryview(buf)[at:stop]))
            at = stop
            self._need = 1
        del buf[:at]
        return found

    def rest(self) -> bytes:
        """What is no whole frame, of its beginning; of one above the limit its header."""
        size = self._frame.body if self.error == E_RX_TOO_LARGE else GARBAGE
        return bytes(self._buf[: min(size, GARBAGE)])


class Tap:
    """Lands what comes over one direction of a connection of FMQ: messages, and what ends it because it is no frame.

    ``peer`` as docs/capture-log.md has it, ``fmq:HOST:PORT``. ``number`` is the number of the last frame that was
    landed (``Landing.when_durable`` says when it is on disk), 0 before.
    """

    def __init__(self, landing: Landing, peer: str, direction: int = RECEIVED, max_body: int = MAX_BODY):
        self._landing = landing
        self._peer = peer
        self._direction = direction
        self._splitter = Splitter(max_body)
        self.connection = landing.new_connection()
        self.number = 0

    def feed(self, data: "bytes | bytearray | memoryview") -> int:
        """Take what has come: 0, or the code for which the connection is to be given up."""
        splitter = self._splitter
        was = splitter.error
        for frame in splitter.feed(data):
            if frame[0] >> 4 in MESSAGES:
                self._land(frame)
        if splitter.error and not was:
            self._land(splitter.rest())
        return splitter.error

    def _land(self, frame: bytes) -> None:
        self.number = self._landing.take(self.connection, self._peer, frame, 0, FMQ, self._direction)
