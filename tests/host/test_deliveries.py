"""What ``post`` returns: the state of a message on its way, over lost connections, refusals and time-outs."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from headwater import errors
from headwater_host.client.mqtt import Client, Delivery, Limits, Reconnect
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.errors import NotConnectedError, PublishError, QueueFullError, TimedOutError
from tests.host.mqtt_server import HOST, Server, packet, serve, speak
from tests.waiting import until

QUICK = Reconnect(first=0.001, longest=0.01)


def silent(session: HostServerSession) -> None:
    """It leaves unacknowledged what it takes."""
    session.acks.automatic = False


def acknowledge(server: Server, delivery: Delivery) -> None:
    session = server.sessions[-1]
    assert session.acks.acknowledge(delivery.packet_id, delivery.qos, session.epoch) == 0
    server.connections[-1].push()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_it_is_done_when_the_message_is_acknowledged_to_its_end(qos: int) -> None:
    called: list[Delivery] = []
    async with serve() as server, Client(HOST, server.port) as client:
        delivery = await client.post("t", b"x", qos)
        assert delivery.qos == qos
        assert delivery.done() == (qos == 0)
        assert delivery.packet_id == (1 if qos else 0)
        delivery.add_done_callback(called.append)
        waiting = [asyncio.ensure_future(delivery.wait()) for _ in range(3)]
        cancelled = asyncio.ensure_future(delivery.wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await delivery == 0
        assert await asyncio.gather(*waiting) == [0, 0, 0]
        delivery.add_done_callback(called.append)
        await until(lambda: len(called) == 2)
        assert called == [delivery, delivery]
        assert delivery.done()
        assert (delivery.reason_code, delivery.error) == (0, None)
        assert not client._send_path._deliveries


async def test_a_time_out_and_a_callback_that_raises_change_nothing() -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    async with serve(silent) as server, Client(HOST, server.port) as client:
        delivery = client.post_nowait("t", b"x", 1)
        delivery.add_done_callback(lambda delivery: 1 / 0)
        with pytest.raises(TimedOutError):
            await delivery.wait(0.01)
        assert not delivery.done()
        assert delivery.reason_code is None
        await until(lambda: server.sessions[0].unanswered)
        acknowledge(server, delivery)
        assert await delivery == 0
        await until(lambda: failures)
        assert client.connected


async def test_it_goes_on_over_a_lost_connection() -> None:
    async with serve(silent) as server, Client(HOST, server.port, reconnect=QUICK, timeout=60) as client:
        delivery = await client.post("t", b"x", 1)
        await until(lambda: server.sessions[0].unanswered)
        waiting = asyncio.ensure_future(delivery.wait())
        await server.connections[0].close(1)
        await until(lambda: len(server.sessions) == 2 and server.sessions[1].unanswered)
        assert not waiting.done()
        acknowledge(server, delivery)
        assert await waiting == 0


async def test_without_a_connection_waiting_raises_and_the_next_one_goes_on_with_it() -> None:
    async with serve(silent) as server:
        client = Client(HOST, server.port)
        async with client:
            delivery = await client.post("t", b"x", 1)
            waiting = asyncio.ensure_future(delivery.wait())
            await until(lambda: server.sessions[0].unanswered)
            await server.connections[0].close(1)
            with pytest.raises(NotConnectedError, match="was lost"):
                await waiting
        with pytest.raises(NotConnectedError):
            await delivery
        assert not delivery.done()
        async with client:
            await until(lambda: server.sessions[1].unanswered)
            acknowledge(server, delivery)
            assert await delivery == 0


async def test_a_refused_message_has_the_servers_code_and_reason() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(bytes.fromhex("2003000000"))
        # PUBLISH of one byte to "t", at QoS 1, with no properties.
        _, body = await packet(reader)
        writer.write(b"\x40\x09" + body[3:5] + b"\x97\x05\x1f\x00\x02no")
        await reader.read()

    async with speak(talk) as port, Client(HOST, port, protocol="5.0") as client:
        delivery = await client.post("t", b"x", 1)
        with pytest.raises(PublishError, match=r"quota exceeded .*: no") as caught:
            await delivery
        assert delivery.done()
        assert delivery.error is caught.value
        assert delivery.reason_code == 0x97


async def test_without_room_nothing_is_posted_and_what_is_dropped_says_so() -> None:
    few = Limits(queued_outgoing=2, in_flight=1)
    async with serve(silent) as server:
        async with Client(HOST, server.port, timeout=60, limits=few) as client:
            for _ in range(2):
                client.post_nowait("t", b"x", 1)
            with pytest.raises(QueueFullError):
                client.post_nowait("t", b"x", 1)
            server.prepare = lambda session: None
            server.sessions[0].acks.automatic = True
        with pytest.raises(NotConnectedError):
            client.post_nowait("t", b"x", 1)
        server.prepare = silent
        async with Client(
            HOST, server.port, timeout=60, limits=replace(few, when_full="drop_oldest")
        ) as client:
            deliveries = [client.post_nowait("t", b"%d" % n, 1) for n in range(4)]
            # One is under way; of the others two wait.
            assert [delivery.packet_id for delivery in deliveries] == [1, 0, 0, 0]
            assert isinstance(deliveries[1].error, QueueFullError)
            with pytest.raises(QueueFullError):
                await deliveries[1]
            for delivery in (deliveries[0], *deliveries[2:]):
                await until(lambda d=delivery: d.packet_id and server.sessions[-1].unanswered)  # type: ignore[misc]
                acknowledge(server, delivery)
                assert await delivery == 0


async def test_without_a_connection_it_is_enqueued_and_at_qos_0_refused() -> None:
    async with serve() as server:
        client = Client(HOST, server.port, reconnect=Reconnect(first=1000, longest=1000))
        async with client:
            server.connections[0].drop(errors.E_CLOSED)
            await until(lambda: not client.connected)
            with pytest.raises(NotConnectedError):
                client.post_nowait("t")
            assert not client.post_nowait("t", b"x", 1).done()


async def test_waits_that_are_given_up_leave_nothing_behind() -> None:
    async with serve(silent) as server, Client(HOST, server.port) as client:
        delivery = client.post_nowait("t", b"x", 1)
        for _ in range(3):
            with pytest.raises(TimedOutError):
                await delivery.wait(0)
            waiting = asyncio.ensure_future(delivery.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert not delivery._waiting
        acknowledge(server, delivery)
        assert await delivery == 0
