"""The contracts between the core and its ports, for type checkers only: nothing imports this module at run time.

MicroPython has no ``typing``; modules of the core name these classes under ``TYPE_CHECKING``.
"""

from typing import Protocol


class Transport(Protocol):
    """A non-blocking byte stream: MicroPython's own stream methods, so that a socket there is one as it stands.

    Every method raises OSError when the stream is broken.
    """

    def readinto(self, buf: bytearray | memoryview, n: int, /) -> int | None:
        """Place at most ``n`` bytes at the start of ``buf``: their number, None if none now, 0 if the peer closed."""
        ...

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int, /) -> int | None:
        """Take up to ``n`` bytes of ``buf`` from ``off``: their number (it may be less than ``n``), None if none now."""
        ...

    def close(self) -> None:
        """Release the stream; closing twice is harmless."""
        ...
