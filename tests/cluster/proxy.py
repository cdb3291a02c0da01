"""A TCP proxy that injects faults on command, into each direction apart.

A `Network` runs proxies in a thread of its own, so that they work beside an event loop and beside blocking tests:

    with Network() as network:
        proxy = network.proxy(("127.0.0.1", 5432))
        ...  # connect to 127.0.0.1, proxy.port
        proxy.down.hold()     # nothing arrives from the server any more; connections stay open
        proxy.heal()          # what was held arrives, as after a network's failure

`up` carries bytes from the client to the server, `down` those to the client.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tools.broker import HOST

_SIZE = 1 << 16
_T = TypeVar("_T")


class Direction:
    """One direction of all connections of a proxy. Its methods may be called in any thread."""

    def __init__(self, network: "Network", name: str) -> None:
        self._network = network
        self.name = name
        #: Seconds that each piece is late.
        self.delay = 0.0
        #: Bytes that have passed.
        self.passed = 0
        self._swallows = False
        self._watch: tuple[bytes, Callable[[], None]] | None = None
        self._open = network.call(asyncio.Event)
        network.call(self._open.set)

    def hold(self) -> None:
        """Deliver nothing until `release`. The sender notices only that its buffers fill."""
        self._network.call(self._open.clear)

    def release(self) -> None:
        """Deliver what was held, and what follows."""
        self._network.call(self._release)

    def swallow(self) -> None:
        """Discard everything from now on. Connections that have lost bytes must be cut before they are used again."""
        self._swallows = True

    def when(self, text: bytes, action: Callable[[], None]) -> None:
        """Call `action` once, in the proxies' thread, before a piece that contains `text` is delivered."""
        self._watch = text, action

    def _release(self) -> None:
        self._swallows = False
        self.delay = 0.0
        self._watch = None
        self._open.set()

    async def deliver(self, data: bytes, to: asyncio.StreamWriter) -> None:
        """Deliver a piece, late, or not at all."""
        if self._watch is not None and self._watch[0] in data:
            action = self._watch[1]
            self._watch = None
            action()
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open.wait()
        if not self._swallows:
            to.write(data)
            self.passed += len(data)
            await to.drain()


class Proxy:
    """Forwards connections to `target`. Its methods may be called in any thread."""

    def __init__(self, network: "Network", target: tuple[str, int]) -> None:
        self._network = network
        self.target = target
        self.up = Direction(network, "up")
        self.down = Direction(network, "down")
        self.refuses = False
        self.port = 0
        #: Connections so far.
        self.count = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to."""
        return HOST, self.port

    def cut(self) -> None:
        """Reset all connections. New ones are accepted."""
        self._network.call(self._cut)

    def refuse(self) -> None:
        """Reset all connections, and new ones until `heal`."""
        self.refuses = True
        self.cut()

    def listen(self) -> None:
        """Accept connections, after `deafen` on the same port."""
        self._network.wait(self._listen())

    def deafen(self) -> None:
        """Stop listening, so that connections are refused, as where no process listens. Existing ones are reset."""
        self._network.wait(self._deafen())

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self.serve, HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _deafen(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._cut()

    def isolate(self) -> None:
        """Hold both directions, as when a cable is pulled: nothing ends, and nothing arrives."""
        self.up.hold()
        self.down.hold()

    def heal(self) -> None:
        """End all faults."""
        self.refuses = False
        self.up.release()
        self.down.release()

    def _cut(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until one side ends it."""
        self._connections.add(writer)
        self.count += 1
        other: asyncio.StreamWriter | None = None
        pumps: list[asyncio.Task[None]] = []
        try:
            if self.refuses or self._server is None:
                return
            far, other = await asyncio.open_connection(*self.target)
            self._connections.add(other)
            pumps = [
                asyncio.create_task(_pump(reader, other, self.up)),
                asyncio.create_task(_pump(far, writer, self.down)),
            ]
            await asyncio.wait(pumps)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for one in (writer, other):
                if one is not None:
                    self._connections.discard(one)
                    one.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_SIZE):
            await direction.deliver(data, writer)
        # The end arrives as late as the bytes in front of it, and not at all through a network that is down.
        await direction._open.wait()
        if not direction._swallows:
            writer.write_eof()
            return
    writer.transport.abort()


class Network:
    """Proxies, and the thread that runs them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self.proxies: list[Proxy] = []

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function in the proxies' thread, and wait for its result."""
        if threading.current_thread() is self._thread:
            return function()

        async def run() -> _T:
            return function()

        return self.wait(run())

    def proxy(self, target: tuple[str, int]) -> Proxy:
        """Return a proxy that accepts connections to `target` on a free port."""
        made = Proxy(self, target)
        made.listen()
        self.proxies.append(made)
        return made

    def wait(self, result: "Coroutine[Any, Any, _T]") -> _T:
        """Run a coroutine in the proxies' thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(result, self._loop).result()

    def close(self) -> None:
        """End all proxies and their connections."""

        async def end() -> None:
            for proxy in self.proxies:
                await proxy._deafen()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.wait(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
