"""A program that takes messages more slowly than they come: what waits is bounded, whatever the program waits for."""

import asyncio
import itertools

import pytest

from headwater import errors
from headwater_host.client.mqtt import Client, Limits
from headwater_host.errors import NotConnectedError
from tests.host.mqtt_server import HOST, serve, speak

CONNACK = bytes.fromhex("20020000")
LIMIT = 100


def message(qos: int, packet_id: int) -> bytes:
    """A PUBLISH to "t" whose payload is the id."""
    number = packet_id.to_bytes(2, "big")
    ident = number if qos else b""
    return bytes((0x30 | qos << 1, 3 + len(ident) + 2)) + b"\0\x01t" + ident + number


@pytest.mark.parametrize("reads", ["nothing", "everything"])
async def test_while_a_publish_waits_messages_at_qos_0_beyond_the_limit_are_dropped_and_counted(
    reads: str, caplog: pytest.LogCaptureFixture
) -> None:
    count = 30_000
    most = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(CONNACK)
        # PUBLISH at QoS 1 to "a" without a payload, whose acknowledgement is behind many messages.
        packet = await reader.readexactly(7)
        for begin in range(1, count + 1, 1000):
            writer.write(b"".join(message(0, i) for i in range(begin, begin + 1000)))
            await writer.drain()
        writer.write(b"\x40\x02" + packet[-2:])
        await reader.read()

    async with (
        speak(talk) as port,
        Client(HOST, port, limits=Limits(queued_incoming=LIMIT), timeout=60) as client,
    ):
        publishing = asyncio.ensure_future(client.publish("a", b"", 1))
        came = []
        while not publishing.done():
            await asyncio.sleep(0)
            most = max(most, len(client.messages))
            while reads == "everything" and len(client.messages):
                came.append(await client.messages.__anext__())
        await publishing
        assert most <= LIMIT
        assert client.dropped_incoming + len(came) + len(client.messages) == count
        if reads == "nothing":
            assert len(client.messages) == LIMIT
            # What is there is taken, and then the connection is as it was.
            for i in range(1, LIMIT + 1):
                assert (await client.messages.__anext__()).payload == i.to_bytes(2, "big")
            assert f"{count - LIMIT} messages at QoS 0 were dropped" in caplog.text


@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_beyond_the_limit_stay_unacknowledged_until_they_are_taken(qos: int) -> None:
    # As many as the session of the server has unacknowledged.
    window, count = 16, 500

    sent = 0
    taken: list[int] = []

    def send_more() -> None:
        nonlocal sent
        while sent < count and session.outbox.count < window:
            sent += 1
            assert session.publish(b"t", sent.to_bytes(2, "big"), qos) > 0
        server.connections[0].push()

    async with (
        serve() as server,
        Client(HOST, server.port, limits=Limits(queued_incoming=LIMIT), timeout=60) as client,
    ):
        session = server.sessions[0]
        # It does not acknowledge: so one publish of ours waits all the time.
        session.acks.automatic = False
        session.on_delivered = lambda packet_id: asyncio.get_running_loop().call_soon(send_more)
        publishing = asyncio.ensure_future(client.publish("a", b"", 1))
        send_more()
        while len(client.messages) < LIMIT + window or session.in_flight < window:
            await asyncio.sleep(0)
        await client.unsubscribe("barrier")
        assert len(client.messages) == LIMIT + window
        assert session.outbox.count == window
        while len(taken) < count:
            one = await client.messages.__anext__()
            assert one.acknowledged
            taken.append(int.from_bytes(one.payload, "big"))
            assert len(client.messages) <= LIMIT + window
        assert taken == list(range(1, count + 1))
        while session.outbox.count:
            await asyncio.sleep(0)
        assert client.session.auto_ack
        assert not publishing.done()
        session.acknowledge(1, 1, session.epoch)
        server.connections[0].push()
        await publishing


async def test_a_server_that_ignores_what_is_unacknowledged_is_left_with_a_reason() -> None:
    ids = itertools.cycle(range(1, 65536))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(CONNACK)
        await reader.readexactly(7)
        while not writer.is_closing():
            writer.write(b"".join(message(1, next(ids)) for _ in range(1000)))
            try:
                await writer.drain()
            except OSError:
                return

    async with (
        speak(talk) as port,
        Client(HOST, port, limits=Limits(queued_incoming=LIMIT), timeout=60) as client,
    ):
        with pytest.raises(NotConnectedError, match="more unacknowledged messages in flight than") as caught:
            await client.publish("a", b"", 1)
        assert caught.value.code == errors.E_RX_WINDOW
        assert len(client.messages) <= LIMIT + 65536


async def test_a_subscription_is_answered_behind_more_messages_than_the_limit() -> None:
    count = 30_000

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(CONNACK)
        # SUBSCRIBE to "a", eight bytes.
        packet = await reader.readexactly(8)
        writer.write(b"".join(message(0, 1) for _ in range(count)) + b"\x90\x03" + packet[2:4] + b"\0")
        await reader.read()

    async with (
        speak(talk) as port,
        Client(HOST, port, limits=Limits(queued_incoming=LIMIT), timeout=60) as client,
    ):
        assert await client.subscribe("a") == (0,)
        assert client.dropped_incoming + len(client.messages) == count
