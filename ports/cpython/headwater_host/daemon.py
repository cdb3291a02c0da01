"""What a process needs that serves until a signal: its log on standard error, and an end in good order."""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator


class _Utc(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime


@contextlib.contextmanager
def serving(stop: Callable[[], None]) -> Iterator[None]:
    """Within an event loop: log to standard error, and call ``stop`` on SIGTERM or SIGINT. A second signal ends the
    process at once."""
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
