"""Log records in memory, sent to a topic or over the serial link when there is a connection.

    log = LogRing(2048)
    log.write(WARNING, b"the sensor does not answer")
    while keeper.wait(1000) == 0:
        log.publish(keeper.publish, b"board-1/log")

A record is a line: a letter for its level, the board's time in milliseconds, the text. When the memory is full, the
oldest records are dropped and counted.
"""

import io

from micropython import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.types import Bytes, Transport

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from time import ticks_ms

_TICKS_MASK = const(0x3FFFFFFF)

# Levels, with the numbers of Python's logging.
DEBUG = const(10)
INFO = const(20)
WARNING = const(30)
ERROR = const(40)
_LETTERS = b"?DIWE"
# The letter, up to ten digits, two spaces, and the end of the line.
_FRAME = const(14)
_NEWLINE = const(10)
_SPACE = const(32)
#: The last one that was made, for ``headwater board logs --ring``.
current: "LogRing | None" = None


class LogRing:
    """Up to ``size`` bytes (64 or more) of records at ``level`` or above.

    Lines are cut after ``line`` bytes of text, or less, so that there is room for four of them.
    """

    def __init__(self, size: int = 1024, level: int = INFO, line: int = 160):
        self.level = level
        self.line = min(line, size // 4 - _FRAME)
        if self.line <= 0:
            raise ValueError("a log needs 64 bytes")
        global current
        current = self
        #: Records that were dropped for want of room.
        self.dropped = 0
        self.ticks_ms = ticks_ms
        self._buf = bytearray(size)
        self._view = memoryview(self._buf)
        self._end = 0

    def waiting(self) -> int:
        """Return the number of bytes to send."""
        return self._end

    def write(self, level: int, text: "str | Bytes") -> None:
        """Add a record. Allocates nothing for bytes; line ends in the text become spaces."""
        if level < self.level:
            return
        if isinstance(text, str):
            text = text.encode()
        if self._end + min(len(text), self.line) + _FRAME > len(self._buf):
            self._drop()
        self._buf[self._end] = _LETTERS[min(level // 10, 4)]
        self._end = self._put_number(self._end + 2, self.ticks_ms() & _TICKS_MASK)
        self._put_text(text)

    def stream(self, level: int = INFO) -> "LogStream":
        """Return a stream that writes a record for each line: ``print(..., file=log.stream())``."""
        return LogStream(self, level)

    def publish(
        self, publish: "Callable[[Bytes, Bytes, int], int]", topic: "Bytes", qos: int = 0, limit: int = 400
    ) -> int:
        """Publish whole lines of at most ``limit`` bytes as one message. Return the result of ``publish``.

        With an error the records stay. 0 without records. Allocates a memoryview.
        """
        n = self._end
        if not n:
            return 0
        if n > limit:
            n = self._lines(limit)
        status = publish(topic, self._view[:n], qos)
        if status >= 0:
            self._remove(n)
        return status

    def drain(self, stream: "Transport") -> None:
        """Write as much as ``stream`` takes now. Allocates nothing."""
        if self._end:
            k = stream.write(self._buf, 0, self._end)
            if k:
                self._remove(k)

    def _put_number(self, at: int, n: int) -> int:
        """Write the digits of ``n`` after a space at ``at - 1``, and a space. Return the offset of the text."""
        buf = self._buf
        buf[at - 1] = _SPACE
        rest = n // 10
        while rest:
            rest //= 10
            at += 1
        end = at
        while True:
            buf[at] = 48 + n % 10
            n //= 10
            if not n:
                break
            at -= 1
        buf[end + 1] = _SPACE
        return end + 2

    def _put_text(self, text: "Bytes") -> None:
        buf = self._buf
        at = self._end
        for i in range(min(len(text), self.line)):
            buf[at] = text[i] if text[i] != _NEWLINE else _SPACE
            at += 1
        buf[at] = _NEWLINE
        self._end = at + 1

    def _lines(self, limit: int) -> int:
        """Return the length of the whole lines in the first ``limit`` bytes; of the first line if it is longer."""
        buf = self._buf
        n = limit
        while n and buf[n - 1] != _NEWLINE:
            n -= 1
        return n or buf.find(b"\n") + 1

    def _drop(self) -> None:
        """Drop the oldest quarter, so that the rest is not moved for each record."""
        buf = self._buf
        n = len(buf) // 4
        while buf[n - 1] != _NEWLINE:
            n += 1
        for i in range(n):
            self.dropped += buf[i] == _NEWLINE
        self._remove(n)

    def _remove(self, n: int) -> None:
        buf = self._buf
        self._end -= n
        for i in range(self._end):
            buf[i] = buf[i + n]


class LogStream(io.IOBase):
    """Collects lines for a log."""

    def __init__(self, log: LogRing, level: int):
        self._log = log
        self._level = level
        self._line = b""

    def write(self, data: "Bytes") -> int:
        """Add ``data``; each complete line becomes a record."""
        *lines, self._line = (self._line + bytes(data)).split(b"\n")
        for line in lines:
            self._log.write(self._level, line)
        return len(data)
