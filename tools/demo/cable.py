"""A TCP proxy that can cut connections, as WiFi does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any


class Cable:
    """Listen on a loopback port and connect each client to `(host, port)`.

    Bytes take `delay_ms` each way, so that a cut finds delivered messages whose acknowledgements are in flight,
    which causes duplicates. `cut` aborts every connection at once and refuses new ones until `mend`.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", delay_ms: int = 0) -> None:
        """Prepare the proxy; `with` starts it."""
        self._target = (host, port)
        self._delay_s = delay_ms / 1000
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable", daemon=True)
        #: Port that clients connect to.
        self.port = 0
        #: Bytes passed in both directions.
        self.passed = 0

    def __enter__(self) -> Cable:
        """Listen."""
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort every connection."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Abort every connection and refuse new ones."""
        self._do(self._cut())

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            # Abort instead of close: bytes in flight are lost, as when WiFi drops.
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(tasks, timeout=5) if tasks else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._writers -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.passed += len(data)
                await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()
