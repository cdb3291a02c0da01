"""Standard output whose reader may go, as in ``headwater sub ... | head -1``: noticed also when nothing is written."""

import asyncio
import io
import os
import select
import stat
import sys
from collections.abc import Coroutine
from typing import Any

#: How long a command that waits for something to write lets pass before it looks again, in s.
LOOK_AGAIN_S = 0.25


def check_reader() -> None:
    """Raise BrokenPipeError when standard output is a pipe, or a socket, and nobody reads it any more."""
    fd = _pipe()
    if fd >= 0:
        poll = select.poll()
        poll.register(fd, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            raise BrokenPipeError


async def while_read(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``, which writes to standard output; cancel it and raise BrokenPipeError when nobody reads that."""
    if _pipe() < 0:
        return await work
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=LOOK_AGAIN_S))[0]:
            check_reader()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _pipe() -> int:
    """The descriptor of standard output when that is a pipe or a socket, else -1."""
    try:
        fd = sys.stdout.fileno()
        mode = os.fstat(fd).st_mode
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        return -1
    return fd if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else -1
