"""Wait for a limited time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_Result = TypeVar("_Result")


async def within(seconds: float | None, work: Awaitable[_Result]) -> _Result:
    """Return the result of ``work``. Raises asyncio.TimeoutError after ``seconds``, and then cancels it.

    Before Python 3.12, ``asyncio.wait_for`` loses a cancellation of its own task that arrives when ``work`` has just
    finished: a loop around it would never end.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
        # Also retrieves the exception of work that fails while its caller is cancelled.
        await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
