"""Follow what a board prints, over its resets."""

import sys
import time
from collections.abc import Callable

from serial import Serial

from headwater_host.board.errors import BoardError, unopened
from headwater_host.board.repl import BACK_S, Board

#: Seconds for one read.
_READ_S = 0.2
# Prints a line end and the records, or nothing without a ring.
_RING = """
import sys
_ring = getattr(sys.modules.get("headwater_board.logs"), "current", None)
if _ring:
    class _Stream:
        def write(self, buf, off, n):
            sys.stdout.write(bytes(buf[off : off + n]))
            return n
    print()
    _ring.drain(_Stream())
"""


def ring(board: Board) -> str:
    """Return the records in the log ring of the program that was stopped. Raises BoardError if it has none."""
    found = board.exec(_RING)
    if not found:
        raise BoardError(
            "the board's program has no log ring (headwater_board.logs), or it ended with a reset"
        )
    return found.removeprefix("\n")


def follow(
    port: str, consume: Callable[[bytes], object], seconds: float | None = None, line: Serial | None = None
) -> None:
    """Pass the board's output to `consume` for some seconds, or for ever. The board's program continues.

    `line` is the port if it is already open. A port that vanishes, as a board with native USB does when it resets, is
    opened again. Raises BoardError if it cannot be opened, OSError if it stays away.
    """
    end = None if seconds is None else time.monotonic() + seconds
    if line is None:
        line = _open(port)
    line.timeout = _READ_S
    try:
        while end is None or time.monotonic() < end:
            try:
                data = line.read(line.in_waiting or 1)
            except OSError:
                line.close()
                line = _reopen(port)
                print(f"headwater: {port} is back", file=sys.stderr)
                continue
            consume(data)
    finally:
        line.close()


def _open(port: str) -> Serial:
    if wrong := unopened(port):
        raise wrong
    return Serial(port, 115200, exclusive=True, timeout=_READ_S)


def _reopen(port: str) -> Serial:
    """Open a port that vanished, within the time that a reset takes."""
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            return Serial(port, 115200, exclusive=True, timeout=_READ_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
