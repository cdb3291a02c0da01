"""A serial line to a board, as a raw transport: ``/dev/ttyACM0``, ``/dev/ttyUSB0``, a pty.

    port = SerialPort("/dev/ttyACM0")
    link = Link(new_session())
    pump = Pump(port, link, ticks_ms)
    stream = Stream(pump, link.channels[0])

A raw line loses and damages bytes; the reliable byte stream over it is ``headwater.link`` (``docs/serial-link.md``).
"""

from __future__ import annotations

import errno
import os
import secrets
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.types import Bytes

_AGAIN = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR}


class SerialPort:
    """An open serial port that never blocks: ``fileno()`` is for ``select`` and for asyncio's ``add_reader``.

    Raises OSError: the port is not there, is in use, or is no serial port; and later, from every method but
    ``close``, when it was unplugged. Raises ImportError when pyserial is missing.
    """

    def __init__(self, path: str, baudrate: int = 115200) -> None:
        """Open ``path`` for this process alone: 8 data bits, no parity, 1 stop bit, no flow control."""
        try:
            import serial
        except ImportError as e:
            raise ImportError("serial ports need pyserial: pip install 'headwater[gateway]'") from e
        try:
            self._port = serial.Serial(path, baudrate, timeout=0, write_timeout=0, exclusive=True)
        except (ValueError, serial.SerialException) as e:
            code, text = errno.EINVAL, str(e)
            if isinstance(e, OSError) and e.errno:
                code, text = e.errno, e.strerror or text
            raise OSError(code, text if path in text else f"{path}: {text}") from e
        self.path = path
        # pyserial opens and configures; reading and writing the descriptor is what does not block in any case.
        self._fd = self._port.fileno()
        os.set_blocking(self._fd, False)
        try:
            # With pyserial's VMIN of 0, a terminal without bytes reads like one that is gone.
            settings = termios.tcgetattr(self._fd)
            settings[6][termios.VMIN] = 1
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
        except termios.error as e:
            self.close()
            raise OSError(*e.args) from e

    def fileno(self) -> int:
        """The descriptor, -1 when closed."""
        return self._fd

    def readinto(self, buf: bytearray | memoryview, n: int) -> int | None:
        """As of a transport; a port that is gone raises OSError."""
        try:
            data = os.read(self._open(), min(n, len(buf)))
        except OSError as e:
            if e.errno in _AGAIN:
                return None
            raise
        if not data:
            # A terminal has no end of file: the other side of it is gone.
            raise OSError(errno.ENODEV, f"{self.path} was unplugged")
        buf[: len(data)] = data
        return len(data)

    def write(self, buf: Bytes, off: int, n: int) -> int | None:
        """As of a transport; a port that is gone raises OSError."""
        try:
            return os.write(self._open(), memoryview(buf)[off : off + n]) or None
        except OSError as e:
            if e.errno in _AGAIN:
                return None
            raise

    def close(self) -> None:
        """Close the port; closing twice is harmless."""
        if self._fd >= 0:
            self._fd = -1
            self._port.close()

    def _open(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, f"{self.path} is closed")
        return self._fd


def new_session() -> int:
    """A session number for a ``Link``: random, so that it differs from that of the process before."""
    return secrets.randbelow(0xFFFF) + 1


def ticks_ms() -> int:
    """Milliseconds for a ``Pump``."""
    return time.monotonic_ns() // 1_000_000 & 0x3FFFFFFF
