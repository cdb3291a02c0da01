"""Serial lines made of ptys, for virtual boards."""

from __future__ import annotations

import os
import termios
import time
from typing import Any

#: Seconds without reading after which a reader counts as gone.
STALL_S = 0.5
MAX_QUEUE = 65536


def open_pty(*, interrupts: bool) -> tuple[int, int]:
    """Open a transparent pty pair (master, slave); the master does not block.

    With `interrupts`, its process can be interrupted, as MicroPython expects.
    """
    master, slave = os.openpty()
    os.set_blocking(master, False)
    control = [b"\0"] * len(termios.tcgetattr(slave)[6])
    control[termios.VMIN] = b"\x01"
    local = termios.ISIG | termios.NOFLSH if interrupts else 0
    mode = termios.CS8 | termios.CREAD | termios.CLOCAL
    speed = termios.B115200
    settings: list[Any] = [0, 0, mode, local, speed, speed, control]
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    return master, slave


def read_now(fd: int, size: int = 4096) -> bytes:
    """Return the available bytes of a non-blocking descriptor, or b""."""
    try:
        return os.read(fd, size)
    except OSError:  # no bytes, or no writer
        return b""


class Outlet:
    """Bytes for a non-blocking descriptor whose reader may be slow or gone.

    A slow reader gets every byte; without a reader bytes are dropped, as on a serial line.
    """

    def __init__(self, fd: int) -> None:
        """Write to `fd`."""
        self._fd = fd
        self._queue = bytearray()
        self._moved = time.monotonic()
        self._gone = False

    @property
    def waiting(self) -> bool:
        """Whether bytes wait, so that `push` is due soon."""
        return bool(self._queue)

    @property
    def full(self) -> bool:
        """Whether the writer should pause."""
        return len(self._queue) >= MAX_QUEUE

    def put(self, data: bytes) -> None:
        """Send `data` as soon as the reader accepts it."""
        if not self._queue:
            self._moved = time.monotonic()
        self._queue += data
        self.push()

    def push(self) -> None:
        """Write what the reader accepts now."""
        try:
            while self._queue:
                del self._queue[: os.write(self._fd, self._queue[:4096])]
                self._moved, self._gone = time.monotonic(), False
        except OSError:  # the reader's buffer is full, or the reader has closed the line
            if self._gone or time.monotonic() - self._moved > STALL_S:
                self._gone = True
                self._queue.clear()
