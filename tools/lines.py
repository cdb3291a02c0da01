"""Serial lines made of ptys: what the virtual boards are wired with."""

from __future__ import annotations

import os
import termios
import time
from typing import Any

#: A reader that takes nothing for so long has gone (seconds).
STALL_S = 0.5
MAX_QUEUE = 65536


def open_pty(*, interrupts: bool) -> tuple[int, int]:
    """Open a pty pair that changes no byte: (master, slave); the master never blocks.

    With ``interrupts`` it is marked as one whose process can be interrupted, as MicroPython expects to find it.
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
    """What a non-blocking descriptor has, b"" when that is nothing."""
    try:
        return os.read(fd, size)
    except OSError:  # nothing there, or nobody at the other end
        return b""


class Outlet:
    """Bytes on their way to a non-blocking descriptor whose reader may be slow, or missing.

    A slow reader gets everything; for a missing one bytes are dropped, as on a serial line.
    """

    def __init__(self, fd: int) -> None:
        """Write to ``fd``."""
        self._fd = fd
        self._queue = bytearray()
        self._moved = time.monotonic()
        self._gone = False

    @property
    def waiting(self) -> bool:
        """Whether bytes wait to be taken: ``push`` is due soon."""
        return bool(self._queue)

    @property
    def full(self) -> bool:
        """Whether the writer should pause."""
        return len(self._queue) >= MAX_QUEUE

    def put(self, data: bytes) -> None:
        """Send ``data`` as soon as the reader takes it."""
        if not self._queue:
            self._moved = time.monotonic()
        self._queue += data
        self.push()

    def push(self) -> None:
        """Write what the reader takes now."""
        try:
            while self._queue:
                del self._queue[: os.write(self._fd, self._queue[:4096])]
                self._moved, self._gone = time.monotonic(), False
        except OSError:  # the reader's buffer is full, or the reader has closed the line
            if self._gone or time.monotonic() - self._moved > STALL_S:
                self._gone = True
                self._queue.clear()
