"""A capture log on a disk that tests hold up, and the gateway's way into it, on the test's own event loop."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from headwater_host.capture.asyncio_writer import AsyncCapture
from headwater_host.gateway.recording import Recorder
from tests.waiting import PATIENCE_S


class Disk:
    """A real fdatasync that waits while ``go`` is clear, except for those that ``once`` lets through.

    While ``error`` is set, it fails with that.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.error: OSError | None = None
        self._once = threading.Semaphore(0)

    def once(self) -> None:
        self._once.release()

    def __call__(self, fd: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.go.is_set() and not self._once.acquire(timeout=0.005):
            assert time.monotonic() < deadline
        if self.error is not None:
            raise self.error
        os.fdatasync(fd)


@contextlib.asynccontextmanager
async def recording(
    log: Path, limit_bytes: int = 1 << 20, **options: Any
) -> AsyncIterator[tuple[Recorder, Disk]]:
    """A recorder that writes to ``log``, and its disk, which goes on at the end. No error of the log is fatal."""
    disk = Disk()
    fatal: list[Exception] = []
    recorder: Recorder
    options |= {"datasync": disk, "on_error": lambda error: recorder.failed(error)}
    async with AsyncCapture(log, limit_bytes=limit_bytes, **options) as capture:
        recorder = Recorder(capture, limit_bytes, fatal.append)
        try:
            yield recorder, disk
        finally:
            disk.go.set()
    assert fatal == []


@contextlib.asynccontextmanager
async def task_of(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """A task that runs beside the test, and is cancelled at the end."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
