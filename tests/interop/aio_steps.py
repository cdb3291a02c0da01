"""What tests of the asyncio client have in common: a second client, waiting, a broker that stands still."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator

from headwater_host.client.connection import Connection
from headwater_host.client.mqtt import Client, Message
from tools.broker import HOST, Mosquitto


@contextlib.contextmanager
def stopped(broker: Mosquitto) -> Iterator[None]:
    """The broker neither reads nor writes meanwhile, and the kernel takes what fits into its buffers."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def other(broker: Mosquitto) -> AsyncIterator[Client]:
    """A second client."""
    async with Client(HOST, broker.port) as client:
        yield client


def current(client: Client) -> Connection:
    """The client's connection. Raises what ended it."""
    connection = client._current()
    assert connection is not None
    return connection


async def take(client: Client, count: int) -> list[Message]:
    async def collect() -> list[Message]:
        taken: list[Message] = []
        while len(taken) < count:
            taken.append(await client.messages.__anext__())
        return taken

    return await asyncio.wait_for(collect(), 200)


async def until(condition: Callable[[], object], what: str, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


async def barrier(client: Client) -> None:
    """Everything that the broker was told before this it has handled now."""
    await client.unsubscribe("barrier/none")
