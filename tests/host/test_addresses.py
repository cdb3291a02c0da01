"""A host with several addresses, the first of which is dead: neither refused nor answered."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headwater_host.client import blocking
from headwater_host.client.mqtt import Client
from headwater_host.errors import TimedOutError
from tests.host.mqtt_server import HOST, serve

NAME = "two.addresses.test"
DEAD = "127.0.0.2"


@contextlib.contextmanager
def black_hole(port: int) -> Iterator[None]:
    """An address where the kernel drops each attempt to connect: the queue of connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((DEAD, port))
        listener.listen(0)
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((DEAD, port))
        yield


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != NAME:
            return real(host, port, *args, **options)
        return [entry for address in (DEAD, HOST) for entry in real(address, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("resolver")
async def test_the_next_address_is_tried_beside_a_dead_one() -> None:
    async with serve() as server:
        with black_hole(server.port):
            # Alone it is as dead as it should be.
            with pytest.raises(TimedOutError):
                async with Client(DEAD, server.port, timeout=1):
                    pass
            async with Client(NAME, server.port, timeout=10) as client:
                await client.publish("t", b"x", 1)


@pytest.mark.usefixtures("resolver")
def test_the_blocking_client_does_so_as_well() -> None:
    ready, over = threading.Event(), threading.Event()
    ports: list[int] = []

    async def scenario() -> None:
        async with serve() as server:
            ports.append(server.port)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(scenario(),))
    thread.start()
    try:
        assert ready.wait(30)
        with black_hole(ports[0]), blocking.Client(NAME, ports[0], timeout=10) as client:
            client.publish("t", b"x", 1)
    finally:
        over.set()
        thread.join()


class _Proxy:
    """Has the methods of an object, and not its class."""

    def __init__(self, target: Any):
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class _Loop(_Proxy):
    """An event loop such as uvloop's: no class of asyncio's, its transports neither, and with fewer options."""

    async def create_connection(
        self,
        factory: Any,
        host: str,
        port: int,
        *,
        ssl: Any,
        server_hostname: Any,
        ssl_handshake_timeout: Any,
    ) -> Any:
        def make() -> Any:
            protocol = factory()
            made = protocol.connection_made
            protocol.connection_made = lambda transport: made(_Proxy(transport))
            return protocol

        return await self._target.create_connection(
            make,
            host,
            port,
            ssl=ssl,
            server_hostname=server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
        )


async def test_a_client_on_an_event_loop_that_is_not_asyncios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve() as server:
        loop = _Loop(asyncio.get_running_loop())
        monkeypatch.setattr("headwater_host.client.route.asyncio.get_running_loop", lambda: loop)
        async with Client("localhost", server.port) as client:
            await client.publish("t", b"x", 1)
