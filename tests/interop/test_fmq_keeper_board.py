"""FMQ's keeper on MicroPython, against a hub: over connections that are cut, a hub that restarts, one that forgot."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headwater_host.hub.config import Listener
from headwater_host.hub.service import Hub
from tests.host.hub_client import Peer, config, hub_of, until
from tests.interop.test_fmq_hub import stored
from tools import deploy
from tools.broker import HOST
from tools.virtual_board import VirtualBoard

PROGRAM = Path(__file__).parent / "device" / "fmq_keeper.py"
WAIT_S = 200.0
JOBS = 40
#: How many bytes of the board's each connection takes; then it is cut, most of them within a frame.
CUTS = (40, 61, 100, 170, 255, 300, 420, 611)

pytestmark = pytest.mark.needs_micropython


class Proxy:
    """A way to the hub whose connections are cut after so many bytes, as long as there are ``cuts``."""

    def __init__(self, hub: int, cuts: tuple[int, ...] = ()):
        self.hub = hub
        self.port = 0
        self.cuts = list(cuts)
        self._open: set[asyncio.StreamWriter] = set()

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        left = self.cuts.pop(0) if self.cuts else 1 << 60
        try:
            far_reader, far = await asyncio.open_connection(HOST, self.hub)
        except OSError:
            near.transport.abort()
            return

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int) -> None:
            with contextlib.suppress(OSError):
                while left and (data := await reader.read(min(left, 4096))):
                    writer.write(data)
                    left -= len(data)
                    await writer.drain()
            for one in (near, far):
                one.transport.abort()

        self._open |= {near, far}
        await asyncio.gather(pump(near_reader, far, left), pump(far_reader, near, 1 << 60))
        self._open -= {near, far}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        async with await asyncio.start_server(self._serve, HOST, 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                server.close()
                for one in self._open:
                    one.transport.abort()


def board(port: int) -> VirtualBoard:
    return VirtualBoard(
        main=PROGRAM.read_text(encoding="utf-8"),
        files={**deploy.package_files("mpy"), "settings.py": f"PORT = {port}\n"},
        name="fmqkeeper",
    )


async def said(b: VirtualBoard, text: str, after: int = 0) -> int:
    return await asyncio.to_thread(b.wait_for, text, WAIT_S, after=after)


async def give(hub: Hub, topic: str, *payloads: bytes) -> None:
    peer = await Peer.login(hub)
    for payload in payloads:
        await peer.send_message(topic, payload)
    await peer.leave()


async def ends(hub: Hub, b: VirtualBoard, jobs: int) -> None:
    """The board has had every job; it is told to stop, and everything it published is there, once, in order."""
    for n in range(jobs):
        await said(b, f"b'jobs' b'{n}'")
    await give(hub, "commands", b"stop")
    at = await said(b, "stopped 0 ")
    await said(b, "\n", after=at)
    n = int(b.log[b.log.index("stopped 0 ") :].split()[2])
    await until(lambda: len(stored(hub, "numbers")) >= n)
    assert stored(hub, "numbers") == [b"%d" % i for i in range(n)]


async def test_over_connections_that_are_cut_everything_arrives_once(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub, Proxy(hub.addresses[0][1], CUTS).running() as proxy:
        b = board(proxy.port)
        await asyncio.to_thread(b.start)
        try:
            for n, _ in enumerate(CUTS):
                await give(hub, "jobs", *(b"%d" % i for i in range(5 * n, 5 * n + 5)))
                await until(lambda n=n: len(proxy.cuts) <= len(CUTS) - n)  # type: ignore[misc]
            await until(lambda: not proxy.cuts)
            await ends(hub, b, JOBS)
            # What was acknowledged did not come again: on each connection no more than the window was open.
            assert b.log.count("b'jobs' ") <= JOBS + 4 * len(CUTS)
            assert b.log.count("offline") >= len(CUTS) - 3
        finally:
            await asyncio.to_thread(b.close)


async def test_a_hub_that_restarts_and_one_that_has_forgotten(tmp_path: Path) -> None:
    settings = config(tmp_path)
    jobs = itertools.count()

    async with contextlib.AsyncExitStack() as stack:
        b: VirtualBoard | None = None
        at = port = 0
        for present in (False, True, False):
            if b is not None and not present:
                settings = replace(settings, storage=tmp_path / "another.db")
            async with hub_of(replace(settings, listeners=(Listener(port=port),))) as hub:
                port = hub.addresses[0][1]
                if b is None:
                    b = board(port)
                    stack.push_async_callback(asyncio.to_thread, b.close)
                    await asyncio.to_thread(b.start)
                at = await said(b, f"online {present}", at)
                if not present:
                    await said(b, "answer b'commands' 0", at)
                    at = await said(b, "answer b'jobs' 0", at)
                job = next(jobs)
                await give(hub, "jobs", b"%d" % job)
                at = await said(b, f"b'jobs' b'{job}'", at)
                await give(hub, "commands", b"go on")
                at = await said(b, "b'commands' b'go on'", at)
                at = await said(b, "published", at)
            at = await said(b, "offline", at)
