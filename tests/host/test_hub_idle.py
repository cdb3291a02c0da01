"""What a message, a new topic and a tick cost does not depend on how many topics and groups are idle."""

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headwater_host.hub.service import Hub
from tests.host.hub_client import ClientLimits, Peer, config, hub_of, until

FEW, MANY = 10, 200
# The least of so many counts: what the disk's thread has done falls into the one or the other.
ROUNDS = 5


class Steps:
    """Counts the steps of the hub's own code, in this thread."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if "headwater_host/hub/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._trace

    def __enter__(self) -> "Steps":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


async def deliver(hub: Hub, publisher: Peer, consumer: Peer, topic: str) -> None:
    """One message, from its publisher to the end of its acknowledgement."""
    await publisher.send_message(topic, b"x")
    got = await consumer.next()
    consumer.ack(got.id)
    position = hub.broker.store.topics[topic].groups["workers"][0]
    await until(lambda: not position.pending)
    await consumer.ping()


async def quiet(hub: Hub) -> None:
    """Nothing is to be written."""
    writer = hub.broker.store._writer
    await until(lambda: not writer.batch and writer._writing is None)


async def measure(path: Path, idle: int) -> dict[str, int]:
    """The steps of some things that happen, with so many topics and groups to which nothing does."""
    async with hub_of(config(path, clients=ClientLimits(subscriptions=10_000))) as hub:
        broker = hub.broker
        # What goes by the clock is called for here.
        broker._ticker.cancel()
        other = await Peer.login(hub, "other")
        for n in range(idle):
            broker.registry.register(f"idle/{n}", 1)
            other.consume(await other.subscribe(f"idle/{n}", group=f"group {n}"))
        other.consume(await other.subscribe("idle/#", group="all"))
        await other.ping()
        consumer, publisher = await Peer.login(hub, "consumer"), await Peer.login(hub, "publisher")
        consumer.consume(await consumer.subscribe("busy", group="workers"))
        await consumer.ping()
        await deliver(hub, publisher, consumer, "busy")
        found: dict[str, list[int]] = {"message": [], "tick": [], "topic": []}
        for n in range(ROUNDS):
            with Steps() as steps:
                publisher.publish("busy", b"x", 0)
                got = await consumer.next()
            found["message"].append(steps.count)
            with Steps() as steps:
                broker._tick()
            broker._ticker.cancel()
            found["tick"].append(steps.count)
            consumer.ack(got.id)
            await consumer.ping()
            await quiet(hub)
            with Steps() as steps:
                broker.registry.register(f"new/{n}", 1)
                await publisher.ping()
            found["topic"].append(steps.count)
            await quiet(hub)
        return {what: min(counts) for what, counts in found.items()}


@pytest.mark.parametrize("what", ["message", "tick", "topic"])
def test_idle_topics_and_groups_cost_nothing(steps: dict[int, dict[str, int]], what: str) -> None:
    few, many = (steps[idle][what] for idle in (FEW, MANY))
    assert few > 10
    # A number that has more digits, or a dict that grows, may take some steps; a look at each idle one takes more.
    assert many - few < (MANY - FEW) / 4


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, int]]:
    return {idle: asyncio.run(measure(tmp_path_factory.mktemp("hub"), idle)) for idle in (FEW, MANY)}
