"""Handing in without waiting (``post``) and waiting for all of it (``drain``), against a real mosquitto."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from headwater_host.client.mqtt import Client, Limits, SessionOptions
from headwater_host.errors import ArgumentError, NotConnectedError, TimedOutError
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    return mosquitto()


async def take(client: Client, count: int) -> list[int]:
    async def collect() -> list[int]:
        return [int((await client.messages.__anext__()).payload) for _ in range(count)]

    return await asyncio.wait_for(collect(), 200)


@pytest.mark.parametrize("slots", [1, 7, 1024])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_posted_arrives_once_and_in_its_order(broker: Mosquitto, qos: int, slots: int) -> None:
    topic = f"posted/{qos}/{slots}"
    async with (
        Client(HOST, broker.port) as reader,
        Client(HOST, broker.port, limits=Limits(queued_outgoing=slots)) as client,
    ):
        await reader.subscribe(topic, qos=qos)
        for number in range(1500):
            await client.post(topic, number, qos)
        await client.drain()
        assert client.session.outbox.count == 0
        assert await take(reader, 1500) == list(range(1500))
        await reader.unsubscribe(topic)
        assert len(reader.messages) == 0


async def test_posting_waits_for_room_and_says_so_in_time(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port, limits=Limits(queued_outgoing=4)) as client:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for number in range(4):
                await client.post("full", number, 1)
            with pytest.raises(TimedOutError, match="no room for the message in time"):
                await client.post("full", 4, 1, timeout=0.05)
            with pytest.raises(TimedOutError, match="did not answer in time"):
                await client.drain(timeout=0.05)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await client.drain()
        await client.post("full", 5, 1)
        await client.drain()


async def test_several_may_drain_at_a_time_and_with_nothing_to_wait_for(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port) as client:
        await client.drain()
        for number in range(100):
            await client.post("shared", number, 2)
        await asyncio.gather(*(client.drain() for _ in range(3)), client.publish("shared", 100, 1))


async def test_draining_ends_with_the_connection_and_the_messages_wait_for_the_next_one(
    mosquitto: StartBroker,
) -> None:
    broker = mosquitto()
    client = Client(HOST, broker.port, identifier="poster", session=SessionOptions(clean_start=False))
    async with client:
        os.kill(broker.pid, signal.SIGSTOP)
        for number in range(50):
            await client.post("kept", number, 1)
        waiting = asyncio.create_task(client.drain())
        await asyncio.sleep(0)
        broker.kill()
        with pytest.raises(NotConnectedError):
            await waiting
        with pytest.raises(NotConnectedError):
            await client.post("kept", 0, 1)
    broker.start()
    async with Client(HOST, broker.port) as reader:
        await reader.subscribe("kept", qos=1)
        async with client:
            await client.post("kept", 50, 1)
            await client.drain()
        assert await take(reader, 51) == list(range(51))


@pytest.mark.parametrize("call", ["post", "publish"])
async def test_what_cannot_be_sent_is_the_callers_fault(broker: Mosquitto, call: str) -> None:
    async with Client(HOST, broker.port) as client:
        for topic, payload, qos in (
            ("a/#", b"", 0),
            ("", b"", 1),
            ("t", object(), 0),
            ("t", [1], 1),
            ("t", b"", 3),
        ):
            with pytest.raises(ArgumentError):
                await getattr(client, call)(topic, payload, qos)
        assert client.session.outbox.count == 0
