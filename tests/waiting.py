"""Waiting for what must come: without a fixed delay, and with a limit that only a failing test reaches."""

import asyncio
import time
from collections.abc import Callable

from headwater_host.client.mqtt import Client, Message

#: Seconds that something may take on a machine with much else to do.
PATIENCE_S = 200


async def until(condition: Callable[[], object], what: str = "", seconds: float = PATIENCE_S) -> None:
    """Wait on the event loop until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], object], what: str = "", seconds: float = PATIENCE_S) -> None:
    """Wait in this thread until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


async def take(client: Client, count: int = 1) -> list[Message]:
    """The client's next messages."""

    async def collect() -> list[Message]:
        return [await client.messages.__anext__() for _ in range(count)]

    return await asyncio.wait_for(collect(), PATIENCE_S)
