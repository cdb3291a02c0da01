"""What stands in the way of an FMQ client: a proxy that cuts, a hub that says what the test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from headwater.fmq import frames, spec
from headwater.fmq.ids import id_end
from headwater_host.client.fmq import Client
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import encode as value
from headwater_host.hub.service import Hub

SECONDS = 200.0
PROCESS = 7
NOW = value(DateTime(1_800_000_000_000_000_000))


def client(where: "Hub | tuple[str, int]", name: str = "c", **more: Any) -> Client:
    host, port = where.addresses[0] if isinstance(where, Hub) else where
    return Client(host, port, identifier=name, **{"timeout": SECONDS, **more})


@contextlib.asynccontextmanager
async def cutting(
    hub: Hub, cuts: Iterable[tuple[int, int]]
) -> AsyncIterator[tuple[tuple[str, int], list[int]]]:
    """A proxy in front of a hub: where it is, and how many bytes went up and down over its last connection.

    Each connection is cut after so many bytes up, and so many down, of the next of ``cuts``; -1 and without one: never.
    """
    left = iter(cuts)
    counts = [0, 0]

    async def pass_on(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: int,
        limit: int,
        cut: Callable[[], None],
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if limit >= 0:
                    data = data[: limit - counts[way]]
                counts[way] += len(data)
                writer.write(data)
                await writer.drain()
                if counts[way] == limit:
                    break
        cut()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = next(left, (-1, -1))
        counts[:] = [0, 0]
        far_reader, far_writer = await asyncio.open_connection(*hub.addresses[0])

        def cut() -> None:
            writer.transport.abort()
            far_writer.transport.abort()

        if 0 in (up, down):
            cut()
            return
        await asyncio.gather(
            pass_on(reader, far_writer, 0, up, cut), pass_on(far_reader, writer, 1, down, cut)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2], counts
    finally:
        server.close()


class Line:
    """One connection of a client to a scripted hub."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer
        self._data = b""

    async def frame(self) -> tuple[int, bytes]:
        """The next frame's first byte and id; its body is not looked at. Raises EOFError."""
        while True:
            stop = id_end(self._data, 1, len(self._data)) if self._data else 0
            if stop > 0:
                kind = self._data[0] >> 4
                rest = stop
                if not spec.NO_BODY >> kind & 1 and len(self._data) > stop:
                    n = self._data[stop] >> 4
                    if len(self._data) > stop + n:
                        tail = int.from_bytes(self._data[stop + 1 : stop + 1 + n], "little")
                        rest = stop + 1 + n + (tail << 4 | self._data[stop] & 15)
                if (rest > stop or spec.NO_BODY >> kind & 1) and len(self._data) >= rest:
                    found = self._data[0], self._data[1:stop]
                    self._data = self._data[rest:]
                    return found
            more = await asyncio.wait_for(self.reader.read(1 << 16), SECONDS)
            if not more:
                raise EOFError
            self._data += more

    def say(self, head: int, ident: bytes, *values: Any) -> None:
        buf = bytearray(1 << 17)
        end = frames.encode_frame(buf, 0, len(buf), head, ident, values)
        assert end > 0, (head, values, end)
        self.writer.write(buf[:end])

    async def accept(self, present: bool = False, time: bytes = NOW, process: int = PROCESS) -> bytes:
        """Answer AUTH: its id."""
        head, ident = await self.frame()
        assert head >> 4 == spec.AUTH
        self.say(spec.ACK << 4, ident, 0, process, present, time)
        return ident

    async def ended(self) -> None:
        """Wait until the client has hung up."""
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(1 << 16), SECONDS):
                pass


@contextlib.asynccontextmanager
async def scripted(*scripts: Callable[[Line], Awaitable[None]]) -> AsyncIterator[tuple[str, int]]:
    """A hub whose connections are as the scripts say, one after the other, and the last one again and again."""
    left = list(scripts)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        with contextlib.suppress(EOFError, ConnectionError):
            await script(Line(reader, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
