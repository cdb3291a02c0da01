"""The keep-alive of the asyncio client, by a clock that jumps to whatever the event loop waits for."""

import asyncio
import selectors
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from headwater_host.client.mqtt import Client, ConnectionOptions, Limits
from tests.host.mqtt_server import HOST, speak


class Selector(selectors.DefaultSelector):
    """Waits for nothing but what is there already; instead of that time passes."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        # What was written to a socket of this machine is there soon.
        ready = super().select(0.0 if timeout == 0 else 0.002)
        if not ready and timeout:
            self.now += timeout
        return ready


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def run(main: Coroutine[Any, Any, None]) -> None:
    loop = Loop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.mark.parametrize("keepalive", [1, 2, 5])
@pytest.mark.parametrize("state", ["idle", "publishing", "held"])
def test_the_server_hears_something_in_every_keep_alive(keepalive: int, state: str) -> None:
    heard: list[float] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(bytes.fromhex("20020000"))
        if state == "held":
            writer.write(bytes.fromhex("3003000174") * 3)
        loop = asyncio.get_running_loop()
        heard.append(loop.time())
        while packet := await reader.read(1024):
            heard.append(loop.time())
            if packet[0] == 0xC0 and state != "held":
                writer.write(b"\xd0\x00")

    async def scenario() -> None:
        async with (
            speak(talk) as port,
            Client(
                HOST,
                port,
                connection=ConnectionOptions(keepalive=keepalive),
                limits=Limits(queued_incoming=2),
            ) as client,
        ):
            step = 0.0
            while len(heard) < 30:
                # Each time a little later in the client's own rhythm.
                step += 0.037 * keepalive
                await asyncio.sleep(keepalive + step % keepalive)
                assert client.connected
                if state == "publishing":
                    await client.publish("t")
            if state == "held":
                assert client.connection is not None
                assert client.connection.held

    run(scenario())
    # Three quarters of it: a quarter is left for whatever delays the packet.
    assert max(after - before for before, after in pairwise(heard)) < 0.76 * keepalive
