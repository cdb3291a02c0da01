"""Run a link over a raw line; its streams are transports.

A raw line is a transport (``headwater.types.Transport``) that may lose, damage and insert bytes. Every ``readinto`` and
``write`` of a ``Stream`` pumps, so a user of the stream keeps the link running.
"""

from headwater.link.link import Link
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.link.link import Channel
    from headwater.types import Bytes, Transport

# Bytes that are read before sending: one frame acknowledges them together.
_TURN = const(512)


class Pump:
    """Moves bytes between a link and a line.

    ``raw`` is the line, ``ticks_ms`` the clock (wrapping at 2**30 or a multiple of it), ``chunk`` the bytes per read.
    """

    def __init__(self, raw: "Transport", link: Link, ticks_ms: "Callable[[], int]", chunk: int = 128):
        self.link = link
        self._ticks = ticks_ms
        self._buf = bytearray(chunk)
        self._chunk = chunk
        self.attach(raw)

    def attach(self, raw: "Transport") -> None:
        """Use another line, or the same one reopened: every stream ends."""
        self._raw = raw
        #: The error of the line, None without one. After an error nothing moves until ``attach``.
        self.error: OSError | None = None
        self.link.lost()

    def pump(self) -> None:
        """Read and send as much as the line allows now. Never raises an exception; see ``error``."""
        if self.error is None:
            try:
                self._turn(self._ticks())
            except OSError as e:
                self.error = e
                self.link.lost()

    def _turn(self, now: int) -> None:
        # Received bytes first: they may show that the peer is alive.
        self._read(now)
        self.link.poll(now)
        self._send()

    def _read(self, now: int) -> None:
        left = _TURN
        while left > 0:
            n = self._raw.readinto(self._buf, self._chunk)
            if n is None:
                return
            if n == 0:
                raise OSError("the line was closed")
            self.link.feed(self._buf, 0, n, now)
            left -= n

    def _send(self) -> None:
        link = self.link
        n = link.out()
        while n:
            k = self._raw.write(link.out_buf, link.out_at, n)
            if not k:
                return
            link.sent(k)
            if k < n:
                return
            n = link.out()


class Stream:
    """A channel as a transport that pumps its link."""

    def __init__(self, pump: Pump, channel: "Channel"):
        self._pump = pump
        self.channel = channel

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """Read from the stream (``Transport.readinto``).

        OSError after an error of the line, once everything was read.
        """
        pump = self._pump
        pump.pump()
        k = self.channel.readinto(buf, n)
        if not k and pump.error is not None:
            raise pump.error
        return k

    def write(self, buf: "Bytes", off: int, n: int) -> int | None:
        """Write to the stream (``Transport.write``)."""
        k = self.channel.write(buf, off, n)
        self._pump.pump()
        return k

    def close(self) -> None:
        """End the stream after the written bytes. Keep pumping until ``Channel.waiting`` returns 0."""
        self.channel.close()
        self._pump.pump()
