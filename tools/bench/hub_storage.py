"""The hub's storage: messages a second that are on the disk before they are answered

    python -m tools.bench.hub_storage

A publisher waits for the answer to each of its messages before it sends the next one; a consumer, where there is one,
acknowledges what it gets at once. In the event loop, without a network.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from headwater_host.hub.storage import Message, Store
from tools.toolchain import ROOT

SECONDS = 3.0
PUBLISHERS = (1, 10, 100, 1000)
PAYLOAD = b"x" * 100


async def _measure(path: str, publishers: int, consumer: bool) -> dict[str, Any]:
    store = Store.open(path)
    store.register("t", 4)
    waits: list[float] = []
    loop = asyncio.get_running_loop()

    def consume(stored: list[Message]) -> None:
        for queue in {message.queue for message in stored}:
            while deliveries := store.take("g", "t", queue, 200):
                for delivery in deliveries:
                    store.ack("g", "t", queue, delivery.message.seq)

    if consumer:
        store.attach("g", "t")
        store.on_commit = consume

    async def publish(process: int) -> None:
        n = 0
        while time.perf_counter() < end:
            n += 1
            began, answered = time.perf_counter(), loop.create_future()
            store.publish("t", b"%d.%d" % (process, n), process, PAYLOAD, qos=1, time_ns=time.time_ns())
            store.after(partial(answered.set_result, None))
            await answered
            waits.append(time.perf_counter() - began)

    began = time.perf_counter()
    end = began + SECONDS
    await asyncio.gather(*(publish(process) for process in range(publishers)))
    took = time.perf_counter() - began
    commits = store.commits
    await store.close()
    waits.sort()
    return {
        "publishers": publishers,
        "consumer": "yes" if consumer else "no",
        "messages/s": f"{len(waits) / took:,.0f}",
        "commits/s": f"{commits / took:,.0f}",
        "median wait (ms)": f"{waits[len(waits) // 2] * 1000:.2f}",
        "99 % (ms)": f"{waits[len(waits) * 99 // 100] * 1000:.2f}",
    }


def run() -> Iterator[dict[str, Any]]:
    """A row for each number of publishers, without and with a consumer."""
    for consumer in (False, True):
        for publishers in PUBLISHERS:
            # Not in /tmp, which may be in memory.
            with tempfile.TemporaryDirectory(dir=ROOT) as folder:
                yield asyncio.run(_measure(f"{folder}/hub.db", publishers, consumer))


if __name__ == "__main__":
    for row in run():
        print("  ".join(f"{name}: {value}" for name, value in row.items()), flush=True)
