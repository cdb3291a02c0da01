"""Serial lines under MicroPython (UART, USB or console line, a terminal under unix) and their dialer.

``Serial`` runs the reliable link (``headwater.link``) over a raw line, so that a client uses it like TCP. Raw lines are
transports that may lose, damage and insert bytes. Reading and writing allocate nothing.

The link never sends ctrl-C, so the console keeps its interrupt and mpremote can still break in.
"""

import os
import select
import sys

from headwater.link.link import IDLE, Link
from headwater.link.pump import Pump, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from headwater.types import Transport

    class Raw(Transport, Protocol):
        """A raw line; ``source`` is its object for ``select.poll``."""

        source: Any

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from time import ticks_ms

_TICKS_MASK = 0x3FFFFFFF


class Uart:
    """``machine.UART(number)``; ``pins`` are its further keywords, such as ``tx`` and ``rx``.

    ``rxbuf`` must hold what arrives while the program is busy: with the link's window of 4, 1,060 bytes and a few short
    frames. ``write`` never passes more than ``txbuf`` has room for, because some ports would block.
    """

    def __init__(
        self, number: int, baudrate: int = 115200, rxbuf: int = 1200, txbuf: int = 600, **pins: "object"
    ):
        from machine import UART

        settings: dict[str, Any] = {"rxbuf": rxbuf, "txbuf": txbuf, "timeout": 0}
        settings.update(pins)
        make: Any = UART
        self.source = make(number, baudrate, **settings)
        self._any = self.source.any
        self._readinto = self.source.readinto
        self._write = self.source.write
        self._bytes_per_s = baudrate // 10
        self._txbuf = txbuf
        # Bytes that the hardware has not sent yet, at the time ``_at``.
        self._unsent = 0
        self._at = ticks_ms()

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """Read at most ``n`` bytes (``headwater.types.Transport``)."""
        # Ask for the available bytes only: for more, some ports wait a character's time each.
        k: int = self._any()
        if k == 0:
            return None
        got: int | None = self._readinto(buf, min(k, n))
        return got or None

    def write(self, buf: "bytes | bytearray | memoryview", off: int, n: int) -> int | None:
        """Write up to ``n`` bytes (``headwater.types.Transport``)."""
        now = ticks_ms()
        # One second empties every buffer, and keeps the product within 30 bits.
        sent = min((now - self._at) & _TICKS_MASK, 1000) * self._bytes_per_s // 1000
        if sent:
            self._at = now
            self._unsent = max(0, self._unsent - sent)
        room = self._txbuf - self._unsent
        if room <= 0:
            return None
        if self._unsent == 0:
            self._at = now
        k: int | None = self._write(buf, off, min(n, room))
        if not k:
            return None
        self._unsent += k
        return k

    def close(self) -> None:
        """Release the UART."""
        self.source.deinit()


class Console:
    """The line of ``sys.stdin`` and ``sys.stdout``: USB, USB serial/JTAG or UART 0.

    It reads and writes byte by byte, because larger calls would block. Printed text is sent between the frames and
    takes only time on the line. While the link runs, a terminal on the line shows frames.
    """

    def __init__(self) -> None:
        self.source: Any = sys.stdin
        stdin: Any = sys.stdin
        stdout: Any = sys.stdout
        self._readinto = stdin.buffer.readinto
        self._write = stdout.buffer.write
        self._byte = bytearray(1)
        self._in = select.poll()
        self._in.register(sys.stdin, select.POLLIN)
        self._out = select.poll()
        self._out.register(sys.stdout, select.POLLOUT)

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """Read at most ``n`` bytes (``headwater.types.Transport``)."""
        byte = self._byte
        i = 0
        while i < n and _ready(self._in):
            if not self._readinto(byte, 1):
                # The terminal was closed, which is possible under unix only.
                return i
            buf[i] = byte[0]
            i += 1
        return i or None

    def write(self, buf: "bytes | bytearray | memoryview", off: int, n: int) -> int | None:
        """Write up to ``n`` bytes (``headwater.types.Transport``)."""
        i = 0
        while i < n and _ready(self._out) and self._write(buf, off + i, 1):
            i += 1
        return i or None

    def close(self) -> None:
        """Do nothing: the prompt continues to use the line."""


class Tty:
    """A serial device under unix, such as ``/dev/ttyUSB0`` or one end of a pty, in raw mode."""

    def __init__(self, path: str, baudrate: int = 115200):
        terminal: Any = __import__("termios")
        self.source: Any = open(path, "r+b")
        fd = self.source.fileno()
        terminal.setraw(fd)
        settings = terminal.tcgetattr(fd)
        settings[4] = settings[5] = getattr(terminal, "B%d" % baudrate)
        # VTIME and VMIN 0: reading does not wait.
        settings[6][5] = settings[6][6] = 0
        terminal.tcsetattr(fd, terminal.TCSANOW, settings)
        self._readinto = self.source.readinto
        self._write = self.source.write
        self._in = select.poll()
        self._in.register(self.source, select.POLLIN)
        self._out = select.poll()
        self._out.register(self.source, select.POLLOUT)

    def readinto(self, buf: "bytearray | memoryview", n: int) -> int | None:
        """Read at most ``n`` bytes (``headwater.types.Transport``)."""
        k: int | None = self._readinto(buf, n)
        if not k:
            if not _ready(self._in):
                return None
            # Readable without bytes: the end of the stream, unless bytes have arrived just now.
            k = self._readinto(buf, n)
        return k

    def write(self, buf: "bytes | bytearray | memoryview", off: int, n: int) -> int | None:
        """Write up to ``n`` bytes (``headwater.types.Transport``)."""
        # The device is ready when there is room for one byte; more might wait.
        i = 0
        while i < n and _ready(self._out) and self._write(buf, off + i, 1):
            i += 1
        return i or None

    def close(self) -> None:
        """Close the device."""
        self.source.close()


def _ready(poll: "select.poll") -> bool:
    """Return whether the registered object is ready."""
    for _ in poll.ipoll(0):
        return True
    return False


class Serial:
    """A dialer over a serial line: ``Serial(1, tx=4, rx=5)``, ``Serial("usb")``, ``Serial("/dev/ttyUSB0")``.

    ``line`` is the number of a UART (``pins`` are passed to ``Uart``), ``"usb"`` for the console line, a path under
    unix, or another raw line. ``channels``, ``window`` and ``payload`` are options of the ``Link``, which is ``link``;
    its times are attributes, such as ``link.dead_ms``. ``channel`` is the channel to dial.
    """

    def __init__(
        self,
        line: "int | str | Raw",
        baudrate: int = 115200,
        channel: int = 0,
        channels: int = 1,
        window: int = 4,
        payload: int = 240,
        **pins: "object",
    ):
        raw: Raw
        if isinstance(line, int):
            # Room for everything that the peer may have in flight, so that nothing is overrun while the program is
            # busy.
            pins.setdefault("rxbuf", 265 * window + 140)
            raw = Uart(line, baudrate, **pins)  # type: ignore[arg-type]
        elif isinstance(line, str):
            raw = Console() if line == "usb" else Tty(line, baudrate)
        else:
            raw = line
        session = int.from_bytes(os.urandom(2), "little") % 0xFFFF + 1
        self.link = Link(session, channels, window, payload)
        self.ticks_ms = ticks_ms
        self.pump = Pump(raw, self.link, ticks_ms)
        self.raw = raw
        self._stream = Stream(self.pump, self.link.channels[channel])
        self._poll = select.poll()
        self._poll.register(raw.source, select.POLLIN)

    def open(self) -> "Stream":
        """Open a stream, which passes bytes once the peer has opened one. Raises OSError if the line is broken."""
        if self.pump.error is not None:
            raise self.pump.error
        self._stream.channel.open()
        return self._stream

    def wait(self, ms: int) -> None:
        """Sleep until bytes arrive or the link has work, at most ``ms`` milliseconds."""
        self.pump.pump()
        for _ in self._poll.ipoll(min(ms, self.link.due())):
            pass

    def drain(self, ms: int) -> bool:
        """Wait at most ``ms`` milliseconds until the peer has received everything, including the end of a closed
        stream.

        Return whether it has.
        """
        begin = ticks_ms()
        channel = self._stream.channel
        while channel.state != IDLE and channel.waiting() and self.pump.error is None:
            left = ms - ((ticks_ms() - begin) & _TICKS_MASK)
            if left <= 0:
                return False
            self.wait(left)
        return self.pump.error is None
