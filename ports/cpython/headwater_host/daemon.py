"""What a process needs that serves until a signal: its log on standard error, and an end in good order."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator


class _Utc(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime


#: Bytes from which on a block of memory is one of its own.
_LARGE = 1 << 18
#: ``mallopt``'s number for that (malloc.h).
_M_MMAP_THRESHOLD = -3


def _give_back_large_blocks() -> None:
    """Have large blocks of memory go back to the system when they are freed.

    glibc stops that as soon as the first one is freed: then blocks of up to 32 MiB come from its heap, and gaps among
    them stay (measured with 50 messages of 16 MiB: 460 MB stayed instead of 126). Does nothing where there is no glibc,
    and where MALLOC_MMAP_THRESHOLD_ says something.
    """
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


@contextlib.contextmanager
def serving(stop: Callable[[], None]) -> Iterator[None]:
    """Within an event loop: log to standard error, and call ``stop`` on SIGTERM or SIGINT. A second signal ends the
    process at once. Large blocks of memory go back to the system."""
    _give_back_large_blocks()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Utc())
    root = logging.getLogger("headwater")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        stop()

    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        root.removeHandler(handler)
