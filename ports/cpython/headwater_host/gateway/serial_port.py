"""Serial port as a non-blocking transport: ``/dev/ttyACM0``, ``/dev/ttyUSB0``, a pty.

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
    """An open serial port that never blocks; ``fileno()`` is for ``select`` and asyncio.

    Raises OSError if the port is missing, in use or not a serial port; every method but ``close`` raises OSError after
    the port is unplugged. Raises ImportError if pyserial is missing.
    """

    def __init__(self, path: str, baudrate: int = 115200) -> None:
        """Open ``path`` exclusively: 8 data bits, no parity, 1 stop bit, no flow control."""
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
        # pyserial only opens and configures the port: reads and writes use the descriptor and never block.
        self._fd = self._port.fileno()
        os.set_blocking(self._fd, False)
        try:
            # pyserial sets VMIN to 0, which makes a read without data look like an unplugged port.
            settings = termios.tcgetattr(self._fd)
            settings[6][termios.VMIN] = 1
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
        except termios.error as e:
            self.close()
            raise OSError(*e.args) from e

    def fileno(self) -> int:
        """Return the descriptor, -1 if closed."""
        return self._fd

    def readinto(self, buf: bytearray | memoryview, n: int) -> int | None:
        """Behave as ``headwater.types.Transport``. Raises OSError if the port is unplugged."""
        try:
            data = os.read(self._open(), min(n, len(buf)))
        except OSError as e:
            if e.errno in _AGAIN:
                return None
            raise
        if not data:
            # A terminal has no end of file: the device is gone.
            raise OSError(errno.ENODEV, f"{self.path} was unplugged")
        buf[: len(data)] = data
        return len(data)

    def write(self, buf: Bytes, off: int, n: int) -> int | None:
        """Behave as ``headwater.types.Transport``. Raises OSError if the port is unplugged."""
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
    """Return a random session number for a ``Link``, unlikely to be that of the process before."""
    return secrets.randbelow(0xFFFF) + 1


def ticks_ms() -> int:
    """Return the milliseconds of a clock for ``Pump``."""
    return time.monotonic_ns() // 1_000_000 & 0x3FFFFFFF
