"""Sessions of the asyncio client that outlive their connections, against a real mosquitto."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from headwater_host.client.mqtt import Client, SessionOptions
from headwater_host.errors import ClientError, NotConnectedError
from tests.host.mqtt_server import speak
from tests.interop.aio_steps import barrier, current, other, stopped
from tests.waiting import take, until
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    """One broker for the tests that leave it as it was."""
    return mosquitto()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_unacknowledged_goes_out_again_over_the_next_connection(
    mosquitto: StartBroker, qos: int
) -> None:
    broker = mosquitto(persistence=True)

    client = Client(
        HOST, broker.port, identifier="writer", session=SessionOptions(clean_start=False), timeout=5
    )
    reader = Client(HOST, broker.port, identifier="reader", session=SessionOptions(clean_start=False))
    async with reader:
        await reader.subscribe("s/#", qos=2)
    acknowledged: list[int] = []

    async def publish(i: int) -> None:
        await client.publish(f"s/{qos}", i, qos=qos)
        acknowledged.append(i)

    async with client:
        assert not client.session_present
        await asyncio.gather(*(publish(i) for i in range(100)))
        with stopped(broker):
            waiting = [asyncio.create_task(publish(i)) for i in range(100, 300)]
            await asyncio.sleep(0)
        await until(lambda: len(acknowledged) > 110, "some more are acknowledged")
        broker.stop()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(result, NotConnectedError) for result in results)
    broker.start()
    left = client.session.outbox.count
    assert left == 300 - len(acknowledged)
    async with client:
        assert client.session_present
        await until(lambda: client.session.outbox.count == 0, "the rest is acknowledged")
    async with reader:
        assert reader.session_present
        came: list[int] = []
        while len(set(came)) < 300:
            came += [int(m.payload) for m in await take(reader, 1)]
        await barrier(reader)
        came += [int(m.payload) for m in await take(reader, len(reader.messages))]
    first = list(dict.fromkeys(came))
    assert first == list(range(300))
    if qos == 2:
        assert came == first


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_link_that_is_cut_again_and_again_costs_no_message(mosquitto: StartBroker, qos: int) -> None:
    """Writer and reader both reach the broker over a link that breaks after some thousand bytes, wherever that is."""
    broker = mosquitto()
    fate = random.Random(17)
    count = 500

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, broker.port)
        left = [fate.randrange(100, 3000)]

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while left[0] > 0 and (data := await source.read(fate.randrange(1, 400))):
                target.write(data[: left[0]])
                left[0] -= len(data)

        with contextlib.suppress(OSError):
            await asyncio.wait(
                {
                    asyncio.ensure_future(copy(reader, far_writer)),
                    asyncio.ensure_future(copy(far_reader, writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
        far_writer.transport.abort()
        writer.transport.abort()

    async with speak(pass_on) as port:
        writer = Client(
            HOST, port, identifier=f"w{qos}", session=SessionOptions(clean_start=False), timeout=5
        )
        reader = Client(
            HOST,
            port,
            identifier=f"r{qos}",
            session=SessionOptions(clean_start=False, auto_ack=False),
            timeout=5,
        )
        came: list[int] = []

        async def read() -> None:
            while len(set(came)) < count:
                with contextlib.suppress(ClientError):
                    async with reader:
                        await reader.subscribe(f"cut/{qos}", qos)
                        subscribed.set()
                        while len(set(came)) < count:
                            message = await reader.messages.__anext__()
                            came.append(int(message.payload))
                            await message.ack()

        subscribed = asyncio.Event()
        reading = asyncio.create_task(read())
        await subscribed.wait()
        sent = 0
        while sent < count or writer.session.outbox.count:
            with contextlib.suppress(ClientError):
                async with writer:
                    while sent < count:
                        # What is refused because there is no connection was not handed in.
                        current(writer)
                        sent += 1
                        await writer.publish(f"cut/{qos}", sent - 1, qos)
                    while writer.session.outbox.count:
                        current(writer)
                        await asyncio.sleep(0.01)
        await asyncio.wait_for(reading, 200)
        assert writer.session.epoch > 3
        assert reader.session.epoch > 3
        assert list(dict.fromkeys(came)) == list(range(count))
        if qos == 2:
            assert len(came) == count


async def test_messages_unacknowledged_by_the_program_come_again(mosquitto: StartBroker) -> None:
    broker = mosquitto(persistence=True)

    client = Client(
        HOST, broker.port, identifier="slow", session=SessionOptions(clean_start=False, auto_ack=False)
    )
    async with client, other(broker) as writer:
        await client.subscribe("work", qos=2)
        for i in range(6):
            await writer.publish("work", i, qos=1 + i % 2)
        came = await take(client, 6)
        assert [m.acknowledged for m in came] == [False] * 6
        await came[0].ack()
        await came[1].ack()
        # Not in its turn: 2 and 3 are not acknowledged, so neither is this.
        await came[4].ack()
        await barrier(client)
    async with client:
        # QoS 2 is delivered once only, so the message in hand is still to be acknowledged.
        again = await take(client, 2)
        assert [(m.payload, m.qos, m.dup) for m in again] == [(b"2", 1, True), (b"4", 1, True)]
        await barrier(client)
        assert len(client.messages) == 0
        # The old objects of the messages that came again are not acknowledged by anybody, and hold up nothing.
        for message in (came[3], came[5], *again):
            await message.ack()
        await barrier(client)
    async with client:
        await barrier(client)
        assert len(client.messages) == 0
    assert client.session.strays == 0


async def test_unread_messages_of_a_lost_connection_do_not_come_twice(mosquitto: StartBroker) -> None:
    broker = mosquitto(persistence=True)

    client = Client(
        HOST, broker.port, identifier="slow", session=SessionOptions(clean_start=False, auto_ack=False)
    )
    async with client, other(broker) as writer:
        await client.subscribe("work", qos=2)
        for i in range(6):
            await writer.publish("work", i, qos=i % 3)
        await until(lambda: len(client.messages) == 6, "all have come")
    async with client:
        await barrier(client)
        came = await take(client, len(client.messages))
        assert sorted(int(m.payload) for m in came) == list(range(6))


@pytest.mark.parametrize("qos", [1, 2])
async def test_acknowledgements_open_the_brokers_window(mosquitto: StartBroker, qos: int) -> None:
    broker = mosquitto(settings={"max_inflight_messages": 3})

    async with (
        Client(HOST, broker.port, session=SessionOptions(auto_ack=False)) as client,
        other(broker) as writer,
    ):
        await client.subscribe("window", qos=2)
        for i in range(50):
            await writer.publish("window", i, qos=qos)
        await barrier(client)
        assert len(client.messages) == 3
        for i in range(50):
            (message,) = await take(client, 1)
            assert int(message.payload) == i
            await message.ack()
            await message.ack()
