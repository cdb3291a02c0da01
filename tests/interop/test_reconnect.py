"""Clients that keep their connection, before a broker that is stopped and started again on the same port."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from headwater.errors import E_CLOSED
from headwater.mqtt.packets import Packet
from headwater_host.client import blocking
from headwater_host.client.mqtt import Client, Limits, Message, SessionOptions, Version
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.errors import ClientError, NotConnectedError, TimedOutError
from tests.host.mqtt_server import serve
from tests.interop.kept_clients import QUICK, WAIT_S, Told, talker
from tests.waiting import take, until
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5.0"])
async def test_a_client_subscribes_again_when_the_session_is_gone(
    mosquitto: StartBroker, protocol: Version
) -> None:
    broker = mosquitto()

    async with Client(HOST, broker.port, protocol=protocol, reconnect=QUICK) as client:
        told = Told(client)
        assert await client.subscribe([("a/#", 1), ("b", 2)]) == (1, 2)
        await client.subscribe("c")
        await client.unsubscribe("c")
        assert client.granted == {"a/#": 1, "b": 2}
        broker.stop()
        await told.lost()
        assert not client.connected
        broker.start()
        await told.back()
        assert not client.session_present
        async with talker(broker) as other:
            for topic in ("c", "a/1", "b"):
                await other.publish(topic, topic, qos=2)
        assert [(str(m.topic), m.qos) for m in await take(client, 2)] == [("a/1", 1), ("b", 2)]
        assert all(isinstance(error, NotConnectedError) for error in told.said if error is not None)


@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
async def test_a_session_that_was_kept_is_not_subscribed_again(
    mosquitto: StartBroker, protocol: Version
) -> None:
    broker = mosquitto(persistence=True)

    name = f"kept-{protocol}"
    options = {"identifier": name, "protocol": protocol}
    kept = SessionOptions(clean_start=False)
    async with Client(HOST, broker.port, session=kept, reconnect=QUICK, **options) as client:  # type: ignore[arg-type]
        told = Told(client)
        await client.subscribe("kept", 2)
        for n in range(3):
            broker.stop()
            await told.until(lambda said: bool(said) and said[-1] is not None)
            broker.start()
            await told.back(n + 1)
            assert client.session_present
            async with talker(broker) as other:
                await other.publish("kept", n, qos=2)
            assert [m.payload for m in await take(client, 1)] == [b"%d" % n]
    assert broker.log_text().count(f"Received SUBSCRIBE from {name}") == 1
    # Another program with the same session asks for what it wants, once.
    more = replace(kept, subscriptions=[("more", 1)])
    other = Client(HOST, broker.port, session=more, **options)  # type: ignore[arg-type]
    for _ in range(2):
        async with other:
            assert other.session_present
            assert other.granted == {"more": 1}
    assert broker.log_text().count(f"Received SUBSCRIBE from {name}") == 2


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_published_meanwhile_arrives_once_and_in_order(
    mosquitto: StartBroker, qos: int
) -> None:
    broker = mosquitto(persistence=True)

    listener = Client(
        HOST, broker.port, identifier="l", session=SessionOptions(clean_start=False), reconnect=QUICK
    )
    client = Client(
        HOST,
        broker.port,
        identifier="p",
        session=SessionOptions(clean_start=False),
        reconnect=QUICK,
        timeout=WAIT_S,
    )
    async with listener, client:
        told = Told(client)
        await listener.subscribe("order", 2)
        calls = [asyncio.ensure_future(client.publish("order", n, qos)) for n in range(50)]
        await asyncio.sleep(0)
        broker.stop()
        calls += [asyncio.ensure_future(client.publish("order", n, qos)) for n in range(50, 100)]
        await told.lost()
        await client.post("order", 100, qos)
        waiting = asyncio.ensure_future(client.drain(WAIT_S))
        broker.start()
        await asyncio.gather(*calls, waiting)
        assert client.session.outbox.count == 0
        numbers: list[int] = []
        while not numbers or numbers[-1] != 100:
            numbers += [int(m.payload) for m in await take(listener, 1)]
        assert (numbers if qos == 2 else list(dict.fromkeys(numbers))) == list(range(101))


async def test_qos_0_waits_for_the_connection_up_to_its_timeout(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async with Client(HOST, broker.port, reconnect=QUICK) as client:
        told = Told(client)
        await client.subscribe("zero")
        broker.stop()
        await told.lost()
        with pytest.raises(TimedOutError, match="no connection in time"):
            await client.publish("zero", "too late", timeout=0.05)
        with pytest.raises(TimedOutError, match="no connection in time"):
            await client.subscribe("other", timeout=0.05)
        # At QoS 1 it is handed in, whether or not the call waits long enough.
        with pytest.raises(TimedOutError, match="did not answer"):
            await client.publish("zero", "one", 1, timeout=0.05)
        sent = asyncio.ensure_future(client.publish("zero", "zero", timeout=WAIT_S))
        asked = asyncio.ensure_future(client.subscribe("more", 1, timeout=WAIT_S))
        broker.start()
        await sent
        assert await asked == (1,)
        await told.back()
        await client.drain(WAIT_S)


async def test_a_full_outbox_makes_wait_and_then_refuses(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async with Client(HOST, broker.port, reconnect=QUICK, limits=Limits(queued_outgoing=4)) as client:
        told = Told(client)
        broker.stop()
        await told.lost()
        for n in range(4):
            await client.post("full", n, 1)
        with pytest.raises(TimedOutError, match="no room"):
            await client.post("full", 4, 1, timeout=0.05)
        blocked = asyncio.ensure_future(client.post("full", 5, 1, timeout=WAIT_S))
        await asyncio.sleep(0)
        assert not blocked.done()
        broker.start()
        await blocked
        await client.drain(WAIT_S)


@pytest.mark.parametrize("many", [False, True], ids=["one", "more than may be unanswered"])
async def test_what_the_program_asks_for_meanwhile_comes_behind_what_is_asked_for_again(many: bool) -> None:
    asked: list[tuple[str, int]] = []

    def hear(session: HostServerSession) -> None:
        def on_subscribe(p: Packet, qos: int) -> int:
            asked.append((p.topic_bytes().decode(), qos))
            return qos

        session.on_subscribe = on_subscribe
        session.on_unsubscribe = lambda p: asked.append((p.topic_bytes().decode(), -1))

    names = [f"{n}" for n in range(20 if many else 1)]
    async with serve(hear) as server, Client(HOST, server.port, reconnect=QUICK) as client:
        await client.subscribe([(name, 0) for name in ("gone", *names)])
        asked.clear()
        changes: list[asyncio.Future[list[object]]] = []

        def change(error: ClientError | None) -> None:
            # At once: the connection is back soon.
            if error:
                subscribing = (client.subscribe(name, 2) for name in names)
                changes.append(asyncio.gather(client.unsubscribe("gone"), *subscribing))

        client.on_connection = change
        await server.connections[0].close(1)
        await asyncio.wait_for(until(lambda: bool(changes)), WAIT_S)
        await asyncio.wait_for(changes[0], WAIT_S)
        assert client.granted == dict.fromkeys(names, 2)
        assert dict(asked) == {"gone": -1, **client.granted}


async def test_a_connection_that_is_lost_while_it_is_subscribed_again_is_not_waited_for() -> None:
    def hang_up(session: HostServerSession) -> None:
        session.on_subscribe = lambda p, qos: session.fail(E_CLOSED)

    wanted = [(f"{n}", 0) for n in range(20)]
    async with serve() as server:
        # What waited for its turn would wait for a connection, for as long as the timeout.
        client = Client(
            HOST,
            server.port,
            reconnect=QUICK,
            session=SessionOptions(subscriptions=wanted),
            timeout=WAIT_S,
        )
        async with client:
            told = Told(client)
            server.prepare = hang_up
            await server.connections[0].close(1)
            await told.until(lambda said: len(said) > 3)
            requests = [t for t in asyncio.all_tasks() if "_request" in str(t.get_coro())]
            assert not requests
            server.prepare = lambda session: None
            await told.back()


def test_the_threads_of_a_blocking_client_wait_through_it(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    got: list[bytes] = []
    came = threading.Condition()

    def on_message(client: blocking.Client, message: Message) -> None:
        with came:
            got.append(message.payload)
            came.notify_all()

    said: list[ClientError | None] = []
    client = blocking.Client(HOST, broker.port, reconnect=QUICK, timeout=WAIT_S)
    client.on_message = on_message
    client.on_connection = said.append
    with client:
        client.subscribe("threads", 1)
        assert client.granted == {"threads": 1}
        client.publish("threads", "before", 1)
        broker.stop()
        deadline = time.monotonic() + WAIT_S
        while client.connected:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        thread = threading.Thread(target=client.publish, args=("threads", "meanwhile", 1))
        thread.start()
        broker.start()
        thread.join(WAIT_S)
        client.publish("threads", "after", 1)
        with came:
            # What went out before the new subscription did not come back.
            assert came.wait_for(lambda: got and got[-1] == b"after", WAIT_S)
        assert got[0] == b"before"
    assert said[0] is said[-1] is None
    assert isinstance(said[1], NotConnectedError)
