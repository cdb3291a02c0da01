"""What the hub has in memory, as the system counts it, against what docs/hub.md says."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.fmq import spec
from tests.host.hub_client import Peer, new_id
from tests.host.hub_process import SLACK, hub_process

MIB = 1 << 20

#: Prints by how many bytes a process with the storage has grown, and what its retained messages count.
PROGRAM = """
import asyncio, re, sys
from pathlib import Path
from headwater_host.hub.storage import Limits, Store

def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

async def main():
    what, count = sys.argv[2], int(sys.argv[3])
    many = {"topics": 1 << 20, "all_queues": 1 << 20, "places": 1 << 20, "retained": 1 << 30}
    kept = {"cached": {"cache": 32 << 20}, "ids": {"ids": count}}.get(what, {})
    store = Store.open(sys.argv[1], Limits(**{"cache": 0, "ids": 0} | many | kept))
    store._engine.file.writer.execute("PRAGMA synchronous = OFF")

    async def each(count, do):
        for n in range(count):
            do(n)
            if n % 1000 == 999:
                done = asyncio.Event()
                store.after(done.set)
                await done.wait()

    def put(n, topic="t", retain=False):
        ident = b"1\\1\\0\\x83" + (1_800_000_000_000_000_000 + n).to_bytes(8, "little")
        store.publish(topic, ident, n, b"1234", qos=1, retain=retain, time_ns=1_800_000_000_000_000_000 + n)

    store.register("t")
    store.register("p", 1000)
    await each(5000, put)
    if what == "retained":
        await each(count, lambda n: store.register("topic/number/%d" % n))
    before = rss()
    await each(count, {
        "topics": lambda n: store.register("topic/number/%d" % n),
        "places": lambda n: n % 1000 or store.attach("group %d" % n, "p"),
        "retained": lambda n: put(5000 + n, "topic/number/%d" % n, True),
    }.get(what, lambda n: put(5000 + n)))
    print(rss() - before, store.retained_bytes)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "what, count, says",
    [
        ("queued", 400_000, 16 * 400_000),
        ("cached", 150_000, 32 * MIB + 16 * 150_000),
        ("ids", 100_000, 250 * 100_000 + 16 * 100_000),
        ("topics", 20_000, 1500 * 20_000),
        ("places", 40_000, 550 * 40_000),
        ("retained", 20_000, 0),
    ],
)
def test_memory_is_what_the_page_says(tmp_path: Path, what: str, count: int, says: int) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "hub.db"), what, str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    took, retained = map(int, done.stdout.split())
    says = says or retained
    assert says * 0.5 - 4 * MIB < took < says * 1.1 + 6 * MIB, (took, says)


async def test_large_messages_leave_nothing_behind(tmp_path: Path) -> None:
    settings = '[limits]\ncache = "8 MiB"\n[clients]\nmemory = "128 MiB"\n'
    async with hub_process(tmp_path, settings) as hub:
        base = hub.memory()
        peers = [await hub.login() for _ in range(24)]

        async def send(peer: Peer, n: int) -> None:
            body = b"\x11\x01t\xd0" + bytes((12 << 20) + n)
            size = (len(body) >> 4).to_bytes(3, "little")
            head = b"\x32" + new_id(spec.PUBLISH, peer.process) + bytes((0x30 | len(body) & 15,)) + size
            try:
                peer.raw(head + body)
                await peer.next()
            except (EOFError, OSError):
                pass  # more was held than may be

        await asyncio.gather(*(send(peer, n) for n, peer in enumerate(peers)))
        for peer in peers:
            peer.abort()
        most = base + 8 * MIB + SLACK
        deadline = asyncio.get_running_loop().time() + 60
        while hub.memory() > most:
            assert asyncio.get_running_loop().time() < deadline, (hub.memory() - base) // MIB
            await asyncio.sleep(0.05)
