"""One end of a serial line: frames apart, channels together. Bytes in, bytes out, time in; no I/O.

    link = Link(session)
    channel = link.channels[0]
    channel.open()

    link.feed(buf, 0, n, now_ms)      # what has come
    link.poll(now_ms)                 # what is due
    n = link.out()                    # what is to go: link.out_buf[link.out_at : link.out_at + n]
    link.sent(taken)

``headwater.link.pump`` does that for a raw transport. Nothing here allocates after construction.
"""

from headwater.link.channel import Channel
from headwater.link.cobs import Unstuffer
from headwater.link.crc16 import INIT, crc16
from headwater.link.frame import (
    CHANNELS,
    COUNT_MASK,
    FOREIGN,
    OK,
    PAYLOAD,
    TRAILER,
    WINDOW,
    check_frame,
    frame_size,
)
from headwater.link.transitions import WHY_LINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


class Link:
    """``session`` (1 to 65535) has to differ from that of this board's last lives: a random number, or a counter kept
    in flash.

    ``channels`` streams share the line, by turns. Each holds up to ``window`` frames of ``payload`` bytes in either
    direction, about ``2 * window * payload`` bytes of memory; the other end's window and payload may be others. Times
    in ms: HELLO is repeated every ``hello_ms``; an acknowledgement waits ``ack_ms`` for data to travel with;
    ``rto_ms`` is the first time-out, before a round trip was measured; after ``keep_ms`` without a frame the other
    end is asked for one, after ``dead_ms`` it is given up.

    Counters are modulo 2**29.
    """

    def __init__(
        self,
        session: int,
        channels: int = 1,
        window: int = 4,
        payload: int = PAYLOAD,
        *,
        hello_ms: int = 250,
        ack_ms: int = 10,
        rto_ms: int = 500,
        keep_ms: int = 2000,
        dead_ms: int = 10000,
    ):
        if not 0 < session <= 0xFFFF:
            raise ValueError("a session number is 1 to 65535")
        if not 0 < channels <= CHANNELS or not 0 < window <= WINDOW or not 0 < payload <= PAYLOAD:
            raise ValueError(
                "a link has 1 to 8 channels, a window of 1 to 64 and a payload of 1 to 240 bytes"
            )
        self.hello_ms = hello_ms
        self.ack_ms = ack_ms
        self.rto_ms = rto_ms
        self.keep_ms = keep_ms
        self.dead_ms = dead_ms
        self.now = 0
        self._in = Unstuffer(PAYLOAD + TRAILER)
        # For the channels: what they build frames with.
        self.trailer = bytearray(TRAILER)
        self.names = bytearray(4)
        self.control = bytearray(frame_size(4))
        self.scratch = bytearray(16)
        # What is to be sent.
        self.out_buf = self.control
        self.out_at = self.out_end = 0
        self._pause = True
        self._turn = 0
        #: Bytes and frames in and out; frames that were damaged (noise counts as well), or whole and not known here.
        self.bytes_in = self.bytes_out = 0
        self.frames_in = self.frames_out = 0
        self.damaged = self.foreign = 0
        self.channels = [Channel(self, i, session, window, payload) for i in range(channels)]

    def poll(self, now_ms: int) -> None:
        """Take the time, and do what is due."""
        self.now = now_ms
        for channel in self.channels:
            channel.tick(now_ms)

    def due(self) -> int:
        """In how many milliseconds ``poll`` and ``out`` have something to do, if nothing arrives."""
        ms = self.keep_ms
        for channel in self.channels:
            left = channel.due(self.now)
            if left < ms:
                ms = left
        return ms

    def feed(self, buf: "Bytes", at: int, n: int, now_ms: int) -> None:
        """Take ``n`` bytes of the line, at ``buf[at]``. Whatever they are, this raises nothing."""
        self.now = now_ms
        self.bytes_in = self.bytes_in + n & COUNT_MASK
        rx = self._in
        n += at
        while at < n:
            at = rx.take(buf, at, n)
            if rx.size:
                self._frame(rx.buf, rx.size)

    def _frame(self, buf: bytearray, n: int) -> None:
        bad = check_frame(buf, n)
        if bad == OK and buf[n - TRAILER] & 7 >= len(self.channels):
            bad = FOREIGN
        if bad == OK:
            self.frames_in = self.frames_in + 1 & COUNT_MASK
            self.channels[buf[n - TRAILER] & 7].receive(buf, n - TRAILER)
        elif bad == FOREIGN:
            self.foreign = self.foreign + 1 & COUNT_MASK
        else:
            self.damaged = self.damaged + 1 & COUNT_MASK

    def out(self) -> int:
        """How many bytes are to be sent, from ``out_buf[out_at]`` on."""
        n = self.out_end - self.out_at
        if n:
            return n
        channels = self.channels
        for _ in range(len(channels)):
            channel = channels[self._turn]
            self._turn += 1
            if self._turn == len(channels):
                self._turn = 0
            if channel.next():
                return self.out_end - self.out_at
        self._pause = True
        return 0

    def sent(self, n: int) -> None:
        """The first ``n`` of the bytes to be sent were taken by the line."""
        self.out_at += n
        self.bytes_out = self.bytes_out + n & COUNT_MASK
        if self.out_at == self.out_end:
            self._free()

    def lost(self) -> None:
        """The line was lost, or is about to be another one: every stream ends.

        Half a frame, in either direction, is forgotten.
        """
        self._in.reset()
        self.out_at = self.out_end = 0
        self._pause = True
        for channel in self.channels:
            channel.lost(WHY_LINE)

    # ---- for the channels --------------------------------------------------------------------------------------------

    def put(self, buf: bytearray, at: int, end: int) -> None:
        """The next frame on the line: ``buf[at]`` is kept for a delimiter before it, which is sent after a pause.

        Noise, or what a program printed in the pause, is so kept apart from the frame.
        """
        buf[at] = 0
        self.out_buf = buf
        self.out_at = at if self._pause else at + 1
        self.out_end = end
        self._pause = False
        self.frames_out = self.frames_out + 1 & COUNT_MASK

    def key(self, sender: int, receiver: int) -> int:
        """The key of the frames that an end with the session number ``sender`` sends to one with ``receiver``."""
        names = self.names
        names[0] = sender >> 8
        names[1] = sender & 0xFF
        names[2] = receiver >> 8
        names[3] = receiver & 0xFF
        return crc16(names, 0, 4, INIT)

    def _free(self) -> None:
        for channel in self.channels:
            channel.sender.busy = -1
