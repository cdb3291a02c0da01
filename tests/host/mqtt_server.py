"""A server for tests, on the test's own event loop: the core's end of MQTT, or whatever bytes a test wants to send.

It routes nothing. Each connection gets a session of the core; ``sessions`` has them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from headwater_host.client.connection import Connection
from headwater_host.client.mqtt.session import HostServerSession

HOST = "127.0.0.1"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def packet(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next packet's fixed header and the rest. Raises IncompleteReadError at the end of the connection."""
    head = await reader.readexactly(2)
    while head[-1] & 128:
        head += await reader.readexactly(1)
    size = sum((byte & 127) << 7 * n for n, byte in enumerate(head[1:]))
    return head, await reader.readexactly(size)


def after_connect(*answers: bytes) -> Talk:
    """A server that reads CONNECT, sends the answers one by one, and then waits for the end of the connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        for answer in answers:
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(0)
        while await reader.read(1000):
            pass

    return talk


class Server:
    """Serves on ``port``; ``make`` makes the sessions, and ``prepare`` is called with each before it listens."""

    def __init__(self, prepare: Callable[[Any], object], make: Callable[[], Any]):
        self.prepare = prepare
        self.make = make
        self.port = 0
        self.sessions: list[Any] = []
        self.connections: list[Connection] = []
        self.lost: list[int] = []

    def _accept(self) -> Connection:
        session = self.make()
        self.prepare(session)
        connection = Connection(session, lambda status, detail: self.lost.append(status))
        session.listen(connection.now_ms())
        self.sessions.append(session)
        self.connections.append(connection)
        return connection


@contextlib.asynccontextmanager
async def serve(
    prepare: Callable[[Any], object] = lambda session: None,
    make: Callable[[], Any] = HostServerSession,
) -> AsyncIterator[Server]:
    """A running ``Server``."""
    server = Server(prepare, make)
    listener = await asyncio.get_running_loop().create_server(server._accept, HOST, 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for connection in server.connections:
            await connection.close(1)


@contextlib.asynccontextmanager
async def speak(talk: Talk) -> AsyncIterator[int]:
    """A server whose every connection is ``talk``: the port."""
    talks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    listener = await asyncio.start_server(accept, HOST, 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        if talks:
            await asyncio.wait(talks, timeout=5)
