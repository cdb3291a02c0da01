"""The asyncio client against a real mosquitto: messages, connections, options, refusals."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater_host.client.mqtt import Client, Limits, Will
from headwater_host.errors import (
    ArgumentError,
    ConnectRefusedError,
    NotConnectedError,
    ReentrantError,
    TimedOutError,
)
from tests.host.client_options import grouped
from tests.interop.aio_steps import barrier, current, other, stopped
from tests.rows import each_row
from tests.waiting import take, until
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    """One broker for the tests that leave it as it was."""
    return mosquitto()


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_come_as_they_were_sent(broker: Mosquitto, qos: int) -> None:
    topic = f"plain/{qos}/ä€𝄞"
    async with Client(HOST, broker.port) as client:
        assert await client.subscribe(f"plain/{qos}/#", qos=qos) == (qos,)
        sent = [None, "Grüße", b"\x00\xff", 12, -1.5, bytearray(b"b"), memoryview(b"m"), b"x" * 200]
        for payload in sent:
            await client.publish(topic, payload, qos=qos)
        came = await take(client, len(sent))
        assert [m.payload for m in came] == [
            b"", "Grüße".encode(), b"\x00\xff", b"12", b"-1.5", b"b", b"m", b"x" * 200,
        ]  # fmt: skip
        assert {m.topic for m in came} == {topic}
        assert all(m.topic.matches("plain/+/#") and not m.topic.matches("+") for m in came)
        assert {(m.qos, m.retain, m.dup) for m in came} == {(qos, False, False)}
        assert all((m.mid > 0) == (qos > 0) for m in came)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_many_at_a_time_arrive_once_and_in_their_order(broker: Mosquitto, qos: int) -> None:
    async with Client(HOST, broker.port, limits=Limits(queued_outgoing=50)) as client:
        await client.subscribe(f"many/{qos}", qos=qos)
        await asyncio.gather(*(client.publish(f"many/{qos}", i, qos=qos) for i in range(2000)))
        came = await take(client, 2000)
        assert [int(m.payload) for m in came] == list(range(2000))
        await barrier(client)
        assert len(client.messages) == 0


async def test_who_comes_later_does_not_overtake_who_waits(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port, limits=Limits(queued_outgoing=1)) as client:
        await client.subscribe("turns", qos=1)
        called: list[int] = []

        async def publish(first: int) -> None:
            # Each goes on as soon as its own message is acknowledged, when others wait for the same room.
            for number in range(first, first + 20):
                called.append(number)
                await client.publish("turns", number, qos=1)

        await asyncio.gather(*(publish(100 * k) for k in range(4)))
        assert [int(m.payload) for m in await take(client, 80)] == called


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_large_messages_pass_whole(broker: Mosquitto, qos: int) -> None:
    async with Client(HOST, broker.port, timeout=30) as client:
        await client.subscribe(f"large/{qos}", qos=qos)
        large = [os.urandom(n) for n in (127, 128, 16383, 16384, 65536, 5_000_000, 10, 2_097_153)]
        await asyncio.gather(*(client.publish(f"large/{qos}", data, qos=qos) for data in large))
        assert [m.payload for m in await take(client, len(large))] == large


async def test_a_message_above_the_maximum_is_skipped_and_said(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(HOST, broker.port, limits=Limits(packet_size=100_000)) as client:
        await client.subscribe("limit", qos=2)
        for qos in (0, 1, 2):
            for size in (200_000, 50_000):
                await client.publish("limit", bytes(size), qos=qos)
        assert [(m.qos, len(m.payload)) for m in await take(client, 3)] == [
            (0, 50_000),
            (1, 50_000),
            (2, 50_000),
        ]
        assert client.session.skipped == 3
    assert caplog.text.count("skipped a message of 200000 bytes on limit") == 3


async def test_retained_messages_and_unsubscribing(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port) as client:
        await client.publish("kept/1", "one", qos=1, retain=True)
        assert await client.subscribe([("kept/#", 1), ("kept", 2), ("$SYS/none", 0)]) == (1, 2, 0)
        (message,) = await take(client, 1)
        assert message.retain
        await client.unsubscribe(["kept/#", "kept"])
        await client.publish("kept/1", None, qos=1, retain=True)
        await barrier(client)
        assert len(client.messages) == 0


async def test_more_requests_than_the_session_holds_wait_for_their_turn(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port) as client:
        assert await client.subscribe([(f"r/{i}", i % 3) for i in range(100)]) == tuple(
            i % 3 for i in range(100)
        )


async def test_several_readers_share_the_messages(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port) as client:
        await client.subscribe("shared", qos=1)
        readers = [asyncio.create_task(take(client, 1)) for _ in range(6)]
        await asyncio.sleep(0)
        # Whoever gives up takes no message along.
        readers[0].cancel()
        readers[3].cancel()
        for i in range(4):
            await client.publish("shared", i, qos=1)
        came = [(await reader)[0].payload for i, reader in enumerate(readers) if i not in (0, 3)]
        assert sorted(came) == [b"0", b"1", b"2", b"3"]


async def test_nagle_is_off(broker: Mosquitto) -> None:
    async with Client(HOST, broker.port) as client:
        connection = current(client)
        assert connection.transport is not None
        endpoint = connection.transport.get_extra_info("socket")
        assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@each_row(
    "publish",
    [
        lambda c: c.publish("a/#"),
        lambda c: c.publish(""),
        lambda c: c.publish("a", qos=3),
        lambda c: c.publish("a", qos=-1),
        lambda c: c.publish("a", {"no": "payload"}),
        lambda c: c.subscribe("a/b#"),
        lambda c: c.subscribe("a", qos=3),
        lambda c: c.subscribe([("a", 1), ("", 1)]),
        lambda c: c.unsubscribe("#/a"),
    ],
    ids=[
        "a topic with a wildcard",
        "an empty topic",
        "QoS 3",
        "QoS -1",
        "a dict as payload",
        "# within a level",
        "a subscription with QoS 3",
        "an empty filter",
        "# before the last level",
    ],
)
async def test_what_mqtt_does_not_allow_is_the_callers_error(
    broker: Mosquitto, publish: Callable[[Client], Awaitable[object]]
) -> None:
    async with Client(HOST, broker.port) as client:
        with pytest.raises(ArgumentError):
            await publish(client)
        assert client.connected
        await barrier(client)


# ---- connections -----------------------------------------------------------------------------------------------------


def test_a_client_is_used_inside_async_with_once_at_a_time(broker: Mosquitto) -> None:
    client = Client(HOST, broker.port)

    async def scenario() -> None:
        with pytest.raises(NotConnectedError, match="not connected"):
            await client.publish("a")
        async with client:
            with pytest.raises(ReentrantError):
                async with client:
                    pass
            await client.publish("a", qos=1)
        with pytest.raises(NotConnectedError, match="has disconnected"):
            await client.messages.__anext__()
        async with client:
            await client.publish("a", qos=1)

    # And again in another loop.
    asyncio.run(scenario())
    client = Client(HOST, broker.port)
    asyncio.run(scenario())


@each_row(
    "options",
    [
        {"clean_start": False},
        {"clean_start": False, "identifier": ""},
        {"keepalive": 65536},
        {"timeout": 0},
        {"password": "x"},
        {"username": "u" * 65536},
        {"identifier": "\ud800"},
        {"will": Will("a/#")},
        {"will": Will("a", qos=3)},
        {"will": Will("a", bytes(65536))},
        {"queued_outgoing": 0},
        {"queued_outgoing": 65281},
        {"in_flight": 0},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Client(HOST, 1883, **grouped(options))


async def test_the_largest_connect_there_is_can_be_sent(broker: Mosquitto) -> None:
    will = Will("t" * 65535, bytes(65535))
    async with Client(
        HOST, broker.port, identifier="c" * 65535, username="u" * 65535, password=bytes(65535), will=will
    ) as client:
        await barrier(client)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]

        async def scenario() -> None:
            async with Client(HOST, port):
                pass

        with pytest.raises(NotConnectedError, match=f"no connection to {HOST}:{port}: Connection refused"):
            asyncio.run(scenario())


async def test_a_server_that_says_nothing(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    hurried = Client(HOST, broker.port, timeout=1)
    with stopped(broker), pytest.raises(TimedOutError, match="did not answer CONNECT"):
        async with hurried:
            pass
    async with Client(HOST, broker.port) as client:
        await barrier(client)


async def test_a_refusal_says_why_and_nothing_secret(mosquitto: StartBroker) -> None:
    broker = mosquitto(settings={"allow_anonymous": "false"})

    with pytest.raises(ConnectRefusedError, match="not authorized") as refused:
        async with Client(HOST, broker.port, username="who", password="what"):
            pass
    assert refused.value.return_code == 5
    assert "what" not in str(refused.value)


async def test_the_will_is_published_when_the_connection_breaks_and_not_when_it_ends(
    broker: Mosquitto,
) -> None:
    will = Will("will/t", "gone", qos=1)
    async with other(broker) as watcher:
        await watcher.subscribe("will/#", qos=1)
        async with Client(HOST, broker.port, will=will):
            pass
        with contextlib.suppress(NotConnectedError):
            async with Client(HOST, broker.port, will=will) as client:
                connection = current(client)
                assert connection.transport is not None
                connection.transport.abort()
                await client.messages.__anext__()
        (message,) = await take(watcher, 1)
        assert (message.topic, message.payload) == ("will/t", b"gone")
        await barrier(watcher)
        assert len(watcher.messages) == 0


async def test_an_ended_connection_reaches_everybody_who_waits(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async with Client(HOST, broker.port, limits=Limits(queued_outgoing=2)) as client:
        await client.subscribe("own", qos=1)
        await client.publish("own", "before", qos=1)
        await until(lambda: len(client.messages), "the message is there")
        os.kill(broker.pid, signal.SIGSTOP)
        waiting: list[asyncio.Future[object]] = [
            asyncio.ensure_future(client.publish("t", i, qos=1)) for i in range(4)
        ]
        waiting.append(asyncio.ensure_future(client.publish("t", "zero")))
        waiting.append(asyncio.ensure_future(client.subscribe("t")))
        await asyncio.sleep(0)
        broker.kill()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 200)
        assert [type(result) for i, result in enumerate(results) if i != 4] == [NotConnectedError] * 5
        # What had come is still there to be read.
        assert (await client.messages.__anext__()).payload == b"before"
        with pytest.raises(NotConnectedError, match="was lost"):
            await client.messages.__anext__()
        with pytest.raises(NotConnectedError, match="was lost"):
            await client.publish("t")
        assert not client.connected
