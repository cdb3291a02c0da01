"""Detect that the reader of standard output has closed it."""

import asyncio
import io
import os
import select
import stat
import sys
from collections.abc import Coroutine
from typing import Any

#: Seconds between checks while a command has nothing to write.
LOOK_AGAIN_S = 0.25


def check_reader() -> None:
    """Raise BrokenPipeError if standard output is a pipe or socket that its reader closed."""
    fd = _pipe()
    if fd >= 0:
        poll = select.poll()
        poll.register(fd, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            raise BrokenPipeError


async def while_read(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``. Cancel it and raise BrokenPipeError when the reader of standard output has gone."""
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
    """Return the descriptor of standard output if it is a pipe or socket, otherwise -1."""
    try:
        fd = sys.stdout.fileno()
        mode = os.fstat(fd).st_mode
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        return -1
    return fd if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else -1
