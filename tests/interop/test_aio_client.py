"""The asyncio client against a real mosquitto: delivery, sessions, refusals, pressure from both sides."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from headwater_host.aio import (
    Client,
    Message,
    MqttArgumentError,
    MqttConnectionError,
    MqttError,
    MqttReentrantError,
    MqttRefusedError,
    MqttTimeoutError,
    Will,
)
from headwater_host.connection import Connection
from tests.host.mqtt_server import speak
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    """One broker for the tests that leave it as it was."""
    return mosquitto()


@contextlib.contextmanager
def stopped(broker: Mosquitto) -> Iterator[None]:
    """The broker neither reads nor writes meanwhile, and the kernel takes what fits into its buffers."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def other(broker: Mosquitto) -> AsyncIterator[Client]:
    """A second client."""
    async with Client(HOST, broker.port) as client:
        yield client


def current(client: Client) -> Connection:
    """The client's connection. Raises what ended it."""
    connection = client._current()
    assert connection is not None
    return connection


async def take(client: Client, count: int) -> list[Message]:
    async def collect() -> list[Message]:
        taken: list[Message] = []
        while len(taken) < count:
            taken.append(await client.messages.__anext__())
        return taken

    return await asyncio.wait_for(collect(), 30)


async def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


async def barrier(client: Client) -> None:
    """Everything that the broker was told before this it has handled now."""
    await client.unsubscribe("barrier/none")


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_as_they_were_sent(broker: Mosquitto, qos: int) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_at_a_time_arrive_once_and_in_their_order(broker: Mosquitto, qos: int) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port, max_queued_outgoing_messages=50) as client:
            await client.subscribe(f"many/{qos}", qos=qos)
            await asyncio.gather(*(client.publish(f"many/{qos}", i, qos=qos) for i in range(2000)))
            came = await take(client, 2000)
            assert [int(m.payload) for m in came] == list(range(2000))
            await barrier(client)
            assert len(client.messages) == 0

    asyncio.run(scenario())


def test_who_comes_later_does_not_overtake_who_waits(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port, max_queued_outgoing_messages=1) as client:
            await client.subscribe("turns", qos=1)
            called: list[int] = []

            async def publish(first: int) -> None:
                # Each goes on as soon as its own message is acknowledged, when others wait for the same room.
                for number in range(first, first + 20):
                    called.append(number)
                    await client.publish("turns", number, qos=1)

            await asyncio.gather(*(publish(100 * k) for k in range(4)))
            assert [int(m.payload) for m in await take(client, 80)] == called

    asyncio.run(scenario())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_large_messages_pass_whole(broker: Mosquitto, qos: int) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port, timeout=30) as client:
            await client.subscribe(f"large/{qos}", qos=qos)
            large = [os.urandom(n) for n in (127, 128, 16383, 16384, 65536, 5_000_000, 10, 2_097_153)]
            await asyncio.gather(*(client.publish(f"large/{qos}", data, qos=qos) for data in large))
            assert [m.payload for m in await take(client, len(large))] == large

    asyncio.run(scenario())


def test_a_message_above_the_maximum_is_skipped_and_said(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port, max_packet_size=100_000) as client:
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

    asyncio.run(scenario())
    assert caplog.text.count("skipped a message of 200000 bytes on limit") == 3


def test_retained_messages_and_unsubscribing(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port) as client:
            await client.publish("kept/1", "one", qos=1, retain=True)
            assert await client.subscribe([("kept/#", 1), ("kept", 2), ("$SYS/none", 0)]) == (1, 2, 0)
            (message,) = await take(client, 1)
            assert message.retain
            await client.unsubscribe(["kept/#", "kept"])
            await client.publish("kept/1", None, qos=1, retain=True)
            await barrier(client)
            assert len(client.messages) == 0

    asyncio.run(scenario())


def test_more_requests_than_the_session_holds_wait_for_their_turn(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port) as client:
            assert await client.subscribe([(f"r/{i}", i % 3) for i in range(100)]) == tuple(
                i % 3 for i in range(100)
            )

    asyncio.run(scenario())


def test_several_readers_share_the_messages(broker: Mosquitto) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_nagle_is_off(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port) as client:
            connection = current(client)
            assert connection.transport is not None
            endpoint = connection.transport.get_extra_info("socket")
            assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(scenario())


@pytest.mark.parametrize(
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
)
def test_what_mqtt_does_not_allow_is_the_callers_error(
    broker: Mosquitto, publish: Callable[[Client], Awaitable[object]]
) -> None:
    async def scenario() -> None:
        async with Client(HOST, broker.port) as client:
            with pytest.raises(MqttArgumentError):
                await publish(client)
            assert client.connected
            await barrier(client)

    asyncio.run(scenario())


# ---- connections -----------------------------------------------------------------------------------------------------


def test_a_client_is_used_inside_async_with_once_at_a_time(broker: Mosquitto) -> None:
    client = Client(HOST, broker.port)

    async def scenario() -> None:
        with pytest.raises(MqttConnectionError, match="not connected"):
            await client.publish("a")
        async with client:
            with pytest.raises(MqttReentrantError):
                async with client:
                    pass
            await client.publish("a", qos=1)
        with pytest.raises(MqttConnectionError, match="has disconnected"):
            await client.messages.__anext__()
        async with client:
            await client.publish("a", qos=1)

    # And again in another loop.
    asyncio.run(scenario())
    client = Client(HOST, broker.port)
    asyncio.run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"clean_session": False},
        {"clean_session": False, "identifier": ""},
        {"keepalive": 65536},
        {"timeout": 0},
        {"password": "x"},
        {"username": "u" * 65536},
        {"identifier": "\ud800"},
        {"will": Will("a/#")},
        {"will": Will("a", qos=3)},
        {"will": Will("a", bytes(65536))},
        {"max_queued_outgoing_messages": 0},
        {"max_queued_outgoing_messages": 65281},
        {"max_inflight_messages": 0},
    ],
)
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(MqttArgumentError):
        Client(HOST, 1883, **options)  # type: ignore[arg-type]


def test_the_largest_connect_there_is_can_be_sent(broker: Mosquitto) -> None:
    async def scenario() -> None:
        will = Will("t" * 65535, bytes(65535))
        async with Client(
            HOST, broker.port, identifier="c" * 65535, username="u" * 65535, password=bytes(65535), will=will
        ) as client:
            await barrier(client)

    asyncio.run(scenario())


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]

        async def scenario() -> None:
            async with Client(HOST, port):
                pass

        with pytest.raises(MqttConnectionError, match=f"no connection to {HOST}:{port}: Connection refused"):
            asyncio.run(scenario())


def test_a_server_that_says_nothing(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        client = Client(HOST, broker.port, timeout=1)
        with stopped(broker), pytest.raises(MqttTimeoutError, match="did not answer CONNECT"):
            async with client:
                pass
        async with client:
            await barrier(client)

    asyncio.run(scenario())


def test_a_refusal_says_why_and_nothing_secret(mosquitto: StartBroker) -> None:
    broker = mosquitto(settings={"allow_anonymous": "false"})

    async def connect() -> None:
        async with Client(HOST, broker.port, username="who", password="what"):
            pass

    with pytest.raises(MqttRefusedError, match="not authorized") as refused:
        asyncio.run(connect())
    assert refused.value.return_code == 5
    assert "what" not in str(refused.value)


def test_the_will_is_published_when_the_connection_breaks_and_not_when_it_ends(broker: Mosquitto) -> None:
    async def scenario() -> None:
        will = Will("will/t", "gone", qos=1)
        async with other(broker) as watcher:
            await watcher.subscribe("will/#", qos=1)
            async with Client(HOST, broker.port, will=will):
                pass
            with contextlib.suppress(MqttConnectionError):
                async with Client(HOST, broker.port, will=will) as client:
                    connection = current(client)
                    assert connection.transport is not None
                    connection.transport.abort()
                    await client.messages.__anext__()
            (message,) = await take(watcher, 1)
            assert (message.topic, message.payload) == ("will/t", b"gone")
            await barrier(watcher)
            assert len(watcher.messages) == 0

    asyncio.run(scenario())


def test_an_ended_connection_reaches_everybody_who_waits(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, max_queued_outgoing_messages=2) as client:
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
            results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
            assert [type(result) for i, result in enumerate(results) if i != 4] == [MqttConnectionError] * 5
            # What had come is still there to be read.
            assert (await client.messages.__anext__()).payload == b"before"
            with pytest.raises(MqttConnectionError, match="was lost"):
                await client.messages.__anext__()
            with pytest.raises(MqttConnectionError, match="was lost"):
                await client.publish("t")
            assert not client.connected

    asyncio.run(scenario())


# ---- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_unacknowledged_goes_out_again_over_the_next_connection(
    mosquitto: StartBroker, qos: int
) -> None:
    broker = mosquitto(persistence=True)

    async def scenario() -> None:
        client = Client(HOST, broker.port, identifier="writer", clean_session=False, timeout=5)
        reader = Client(HOST, broker.port, identifier="reader", clean_session=False)
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
            assert any(isinstance(result, MqttConnectionError) for result in results)
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

    asyncio.run(scenario())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_link_that_is_cut_again_and_again_costs_no_message(mosquitto: StartBroker, qos: int) -> None:
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

    async def scenario() -> None:
        async with speak(pass_on) as port:
            writer = Client(HOST, port, identifier=f"w{qos}", clean_session=False, timeout=5)
            reader = Client(HOST, port, identifier=f"r{qos}", clean_session=False, timeout=5, auto_ack=False)
            came: list[int] = []

            async def read() -> None:
                while len(set(came)) < count:
                    with contextlib.suppress(MqttError):
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
                with contextlib.suppress(MqttError):
                    async with writer:
                        while sent < count:
                            # What is refused because there is no connection was not handed in.
                            current(writer)
                            sent += 1
                            await writer.publish(f"cut/{qos}", sent - 1, qos)
                        while writer.session.outbox.count:
                            current(writer)
                            await asyncio.sleep(0.01)
            await asyncio.wait_for(reading, 60)
            assert writer.session.epoch > 3
            assert reader.session.epoch > 3
            assert list(dict.fromkeys(came)) == list(range(count))
            if qos == 2:
                assert len(came) == count

    asyncio.run(scenario())


def test_messages_unacknowledged_by_the_program_come_again(mosquitto: StartBroker) -> None:
    broker = mosquitto(persistence=True)

    async def scenario() -> None:
        client = Client(HOST, broker.port, identifier="slow", clean_session=False, auto_ack=False)
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

    asyncio.run(scenario())


def test_unread_messages_of_a_lost_connection_do_not_come_twice(mosquitto: StartBroker) -> None:
    broker = mosquitto(persistence=True)

    async def scenario() -> None:
        client = Client(HOST, broker.port, identifier="slow", clean_session=False, auto_ack=False)
        async with client, other(broker) as writer:
            await client.subscribe("work", qos=2)
            for i in range(6):
                await writer.publish("work", i, qos=i % 3)
            await until(lambda: len(client.messages) == 6, "all have come")
        async with client:
            await barrier(client)
            came = await take(client, len(client.messages))
            assert sorted(int(m.payload) for m in came) == list(range(6))

    asyncio.run(scenario())


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_open_the_brokers_window(mosquitto: StartBroker, qos: int) -> None:
    broker = mosquitto(settings={"max_inflight_messages": 3})

    async def scenario() -> None:
        async with Client(HOST, broker.port, auto_ack=False) as client, other(broker) as writer:
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

    asyncio.run(scenario())


# ---- pressure --------------------------------------------------------------------------------------------------------


def test_a_full_queue_pauses_reading_and_nothing_is_lost(broker: Mosquitto) -> None:
    async def scenario() -> None:
        count, size = 3000, 4096
        async with (
            Client(HOST, broker.port, max_queued_incoming_messages=100) as client,
            other(broker) as writer,
        ):
            await client.subscribe("flood", qos=1)
            for i in range(0, count, 100):
                await asyncio.gather(
                    *(writer.publish("flood", b"%5d" % (i + k) + bytes(size), qos=1) for k in range(100))
                )
            await until(lambda: current(client).held, "reading is held")
            # 64 KiB are read at a time.
            assert 100 < len(client.messages) <= 100 + (1 << 17) // size
            came = await take(client, count)
            assert [int(m.payload[:5]) for m in came] == list(range(count))
            assert not current(client).held

    asyncio.run(scenario())


def test_a_reader_that_publishes_does_not_wait_for_itself(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with (
            Client(HOST, broker.port, max_queued_incoming_messages=5, timeout=10) as client,
            other(broker) as writer,
        ):
            await client.subscribe("ask", qos=0)
            for _ in range(500):
                await writer.publish("ask", bytes(1000))
            await barrier(writer)
            await until(lambda: current(client).held, "reading is held")
            for _ in range(500):
                await take(client, 1)
                # The acknowledgement stands behind all those messages.
                await client.publish("answer", "yes", qos=1)

    asyncio.run(scenario())


def test_a_held_connection_stays_alive(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with (
            Client(HOST, broker.port, max_queued_incoming_messages=1, keepalive=1, timeout=5) as client,
            other(broker) as writer,
        ):
            await client.subscribe("flood")
            for _ in range(3):
                await writer.publish("flood", "x")
            await until(lambda: current(client).held, "reading is held")
            begin = broker.log_text().count("Received PINGREQ")
            await until(
                lambda: broker.log_text().count("Received PINGREQ") >= begin + 8, "eight probes went out"
            )
            assert len(await take(client, 3)) == 3
            await barrier(client)

    asyncio.run(scenario())


def test_an_idle_connection_stays_alive_and_a_dead_one_is_noticed(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, keepalive=1, timeout=1.5) as client:
            await until(lambda: broker.log_text().count("Received PINGREQ") >= 3, "three pings")
            assert client.connected
            with stopped(broker), pytest.raises(MqttConnectionError, match="does not answer"):
                await asyncio.wait_for(client.messages.__anext__(), 20)

    asyncio.run(scenario())


def test_a_broker_that_does_not_read_makes_publishing_wait(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, timeout=1.5) as client:
            sent = 0
            with stopped(broker):
                with contextlib.suppress(MqttTimeoutError):
                    while sent < 100_000:
                        await client.publish("wall", bytes(10_000))
                        sent += 1
                connection = current(client)
                assert connection.transport is not None
                assert connection.transport.get_write_buffer_size() < 1 << 20
            assert 0 < sent < 100_000
            # It goes on where it was.
            await client.publish("wall", "end", qos=1, timeout=20)

    asyncio.run(scenario())


def test_an_acknowledgement_that_is_late_is_a_timeout_and_the_message_is_delivered(
    mosquitto: StartBroker,
) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, max_queued_outgoing_messages=2) as client:
            await client.subscribe("late", qos=1)
            with stopped(broker):
                with pytest.raises(MqttTimeoutError, match="did not acknowledge"):
                    # The client's own time-out is 10 s.
                    await asyncio.wait_for(client.publish("late", 1, qos=1, timeout=0.05), 8)
                cancelled = asyncio.create_task(client.publish("late", 2, qos=1))
                await asyncio.sleep(0)
                cancelled.cancel()
                with pytest.raises(MqttTimeoutError, match="no room"):
                    await client.publish("late", 3, qos=1, timeout=0.05)
                with pytest.raises(MqttTimeoutError):
                    await client.subscribe("x", timeout=0.05)
            assert [m.payload for m in await take(client, 2)] == [b"1", b"2"]
            await client.publish("late", 4, qos=1)
            assert [m.payload for m in await take(client, 1)] == [b"4"]

    asyncio.run(scenario())


def test_leaving_sends_what_waits(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with other(broker) as reader:
            await reader.subscribe("leave/#")
            async with Client(HOST, broker.port) as client:
                for i in range(2000):
                    await client.publish("leave/it", b"%4d" % i + bytes(1000))
            assert [int(m.payload[:4]) for m in await take(reader, 2000)] == list(range(2000))

    asyncio.run(scenario())


def test_the_loop_of_the_documentation_survives_a_restart(
    mosquitto: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = mosquitto()
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        client = Client(HOST, broker.port, timeout=5)
        online = asyncio.Event()
        came: list[bytes] = []

        async def keep() -> None:
            while True:
                try:
                    async with client:
                        await client.subscribe("again")
                        online.set()
                        while True:
                            came.append((await client.messages.__anext__()).payload)
                except MqttError:
                    await asyncio.sleep(0.05)

        task = asyncio.create_task(keep())
        for i in range(3):
            await asyncio.wait_for(online.wait(), 10)
            online.clear()
            await client.publish("again", i, qos=1)
            await until(lambda i=i: len(came) == i + 1, "the message has come")  # type: ignore[misc]
            broker.kill()
            broker.start()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert came == [b"0", b"1", b"2"]

    asyncio.run(scenario())
    assert "the connection was lost" in caplog.text
