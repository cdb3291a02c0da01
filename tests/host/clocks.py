"""Clocks that tests hold still."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

WATCHDOG_S = 30.0


@contextlib.contextmanager
def loop_clock_stands() -> Iterator[None]:
    """No timer of the running loop fires inside. If the task waits for one, it is cancelled after ``WATCHDOG_S``."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    watchdog = threading.Timer(WATCHDOG_S, lambda: loop.call_soon_threadsafe(task.cancel))
    now = loop.time()
    loop.time = lambda: now  # type: ignore[method-assign]
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        del loop.time
