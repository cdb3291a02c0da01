"""Channel 1 of a board's link: log records from the board, the gateway's time to it.

The channel is opened when the board opens it (``headwater_board.service``). Both directions carry lines of text.
"""

import logging
import time

from headwater.link.link import ENDED, IDLE, UP, Channel
from headwater_host.lifetime import MACHINE, Clocks

_logger = logging.getLogger("headwater.gateway.board")

#: Seconds between two times, while the channel is open.
PERIOD_S = 3600.0
#: Seconds after which an unsynchronized clock is looked at again.
RETRY_S = 10.0
#: Level by the first letter of a record.
_LEVELS = {"D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}
_MAX_LINE = 1000
_CHUNK = 4096


class ServiceChannel:
    """Serves ``channel``; ``peer`` names the line in the log."""

    def __init__(self, channel: Channel, peer: str, clocks: Clocks = MACHINE):
        self._channel = channel
        self._peer = peer
        self._clocks = clocks
        self._buf = bytearray(_CHUNK)
        self._text = b""
        self._due = 0.0

    def move(self) -> None:
        """Log what has arrived, and send the time when it is due and the clock is synchronized."""
        channel = self._channel
        if channel.state in (IDLE, ENDED) and channel.peer:
            channel.open()
            self._text = b""
            self._due = 0.0
        if channel.state != UP:
            return
        n = channel.readinto(self._buf, _CHUNK)
        if n:
            *lines, self._text = (self._text + self._buf[:n]).split(b"\n")
            for line in lines:
                self._log(line)
            self._text = self._text[:_MAX_LINE]
        now = time.monotonic()
        if now >= self._due:
            if not self._clocks.synchronized():
                self._due = now + RETRY_S
            else:
                line = b"time %d\n" % (self._clocks.wall() // 1_000_000)
                if channel.write(line, 0, len(line)):
                    self._due = now + PERIOD_S

    def _log(self, line: bytes) -> None:
        text = line[:_MAX_LINE].decode(errors="replace")
        # A board must not forge lines of the log, nor control the operator's terminal.
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        _logger.log(_LEVELS.get(text[:1], logging.INFO), "%s: %s", self._peer, text)
