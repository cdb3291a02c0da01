"""What tests of the asyncio client have in common: a second client, waiting, a broker that stands still."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

from headwater_host.client.connection import Connection
from headwater_host.client.mqtt import Client
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


async def barrier(client: Client) -> None:
    """Everything that the broker was told before this it has handled now."""
    await client.unsubscribe("barrier/none")
