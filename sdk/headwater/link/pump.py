"""Moves the bytes between a link and the raw line under it, and makes transports of the link's streams.

A raw line is a transport as well (``headwater.types.Transport``), one that may lose, damage and invent bytes. Whoever
knows only the contract of a transport keeps the link going by using it: every ``readinto`` and ``write`` of a stream
pumps.
"""

from headwater.link.link import Link
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.link.link import Channel
    from headwater.types import Bytes, Transport

# How much one turn reads before it sends: what is acknowledged together costs one frame.
_TURN = const(512)


class Pump:
    """``raw`` is the line, ``ticks_ms`` the clock (wrapping at 2**30 or a multiple of it).

    ``chunk`` bytes are read at a time.
    """

    def __init__(self, raw: "Transport", link: Link, ticks_ms: "Callable[[], int]", chunk: int = 128):
        self.link = link
        self._ticks = ticks_ms
        self._buf = bytearray(chunk)
        self._chunk = chunk
        self.attach(raw)

    def attach(self, raw: "Transport") -> None:
        """Go on with another line, or the same one opened anew: every stream ends."""
        self._raw = raw
        #: What broke the line, None while it is whole. Nothing moves until ``attach``.
        self.error: OSError | None = None
        self.link.lost()

    def pump(self) -> None:
        """Read what has come and send what is to go, as far as the line does either now.

        Raises nothing: see ``error``.
        """
        if self.error is None:
            try:
                self._turn(self._ticks())
            except OSError as e:
                self.error = e
                self.link.lost()

    def _turn(self, now: int) -> None:
        # First what has come: perhaps the other end is not as dead as the clock says.
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
    """One stream of a link as a transport that keeps its link going."""

    def __init__(self, pump: Pump, channel: "Channel"):
        self._pump = pump
        self.channel = channel

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """As of a transport; OSError when the line broke and what had come was read."""
        pump = self._pump
        pump.pump()
        k = self.channel.readinto(buf, n)
        if not k and pump.error is not None:
            raise pump.error
        return k

    def write(self, buf: "Bytes", off: int, n: int) -> int | None:
        """As of a transport."""
        k = self.channel.write(buf, off, n)
        self._pump.pump()
        return k

    def close(self) -> None:
        """End the stream behind what was written.

        That it gets there needs the link to be pumped on: see ``Channel.waiting``.
        """
        self.channel.close()
        self._pump.pump()
