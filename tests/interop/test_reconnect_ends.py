"""Which server a client that keeps its connection goes to, and when it gives up."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from headwater_host.client.mqtt import Client, ConnectionOptions, Reconnect, SessionOptions
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    ConnectRefusedError,
    NotConnectedError,
    ReentrantError,
)
from tests.host.mqtt_server import serve
from tests.interop.kept_clients import QUICK, WAIT_S, Told, talker
from tests.waiting import take, until
from tools.broker import HOST, Mosquitto, free_port

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


async def test_it_gives_up_after_so_many_attempts_and_everybody_hears_why(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    policy = Reconnect(first=0.01, longest=0.02, attempts=3)
    client = Client(HOST, broker.port, reconnect=policy)
    async with client:
        told = Told(client)
        waiting = [
            asyncio.ensure_future(client.messages.__anext__()),
            asyncio.ensure_future(client.publish("a", "b", 1, timeout=WAIT_S)),
        ]
        await waiting[1]
        broker.stop()
        await told.lost()
        waiting[1] = asyncio.ensure_future(client.publish("a", "b", 1, timeout=WAIT_S))
        waiting.append(asyncio.ensure_future(client.publish("a", "b", timeout=WAIT_S)))
        waiting.append(asyncio.ensure_future(client.drain(WAIT_S)))
        for one in waiting:
            with pytest.raises(NotConnectedError, match="Connection refused"):
                await asyncio.wait_for(one, WAIT_S)
        with pytest.raises(NotConnectedError, match="Connection refused"):
            await client.publish("a", "b")
        # The lost connection, and each attempt but the last, which is the end.
        assert len(told.said) == 3
    broker.start()
    # The session goes on.
    async with client:
        await client.drain(WAIT_S)


async def test_the_first_connection(mosquitto: StartBroker) -> None:
    port = free_port()

    with pytest.raises(NotConnectedError, match="Connection refused"):
        async with Client(HOST, port, reconnect=True):
            pass
    policy = Reconnect(first=0.01, longest=0.02, at_start=True, attempts=2)
    tried = Client(HOST, port, reconnect=policy)
    said: list[ClientError | None] = []
    tried.on_connection = said.append
    with pytest.raises(NotConnectedError, match="Connection refused"):
        async with tried:
            pass
    assert len(said) == 1
    broker = mosquitto()
    patient = Client(
        HOST,
        broker.port,
        reconnect=Reconnect(first=0.01, longest=0.02, at_start=True),
        session=SessionOptions(subscriptions=[("s", 1)]),
    )
    told = Told(patient)
    broker.stop()
    entering = asyncio.ensure_future(patient.__aenter__())
    await told.until(lambda said: len(said) > 2)
    broker.start()
    await asyncio.wait_for(entering, WAIT_S)
    assert patient.granted == {"s": 1}
    await patient.publish("s", "x", 1)
    assert [m.payload for m in await take(patient, 1)] == [b"x"]
    await patient.__aexit__(None, None, None)
    # Cancelled while it tries: nothing goes on behind it.
    broker.stop()
    entering = asyncio.ensure_future(patient.__aenter__())
    count = len(told.said)
    await told.until(lambda said: len(said) > count)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    with pytest.raises(NotConnectedError):
        await patient.publish("s", "x", 1)


async def test_leaving_while_there_is_no_connection(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    client = Client(HOST, broker.port, reconnect=QUICK)
    async with client:
        told = Told(client)
        broker.stop()
        await told.lost()
        waiting = asyncio.ensure_future(client.messages.__anext__())
        await asyncio.sleep(0)
    with pytest.raises(NotConnectedError, match="has disconnected"):
        await waiting
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_several_servers(mosquitto: StartBroker) -> None:
    one, other = mosquitto(), mosquitto()

    places = [(HOST, free_port()), (HOST, other.port)]
    async with Client(
        HOST, one.port, connection=ConnectionOptions(more_servers=places), reconnect=QUICK
    ) as client:
        told = Told(client)
        await client.subscribe("where", 1)
        assert client.server == f"{HOST}:{one.port}"
        one.stop()
        await told.back()
        assert client.server == f"{HOST}:{other.port}"
        async with talker(other) as speaker:
            await speaker.publish("where", "there", 1)
        assert [m.payload for m in await take(client, 1)] == [b"there"]
        one.start()
        other.stop()
        await told.back(2)
        assert client.server == f"{HOST}:{one.port}"
    # Without reconnecting as well, for the first connection.
    async with Client(
        HOST, free_port(), connection=ConnectionOptions(more_servers=[(HOST, one.port)])
    ) as client:
        assert client.server == f"{HOST}:{one.port}"


async def test_a_refusal_ends_it_unless_it_may_pass(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    closed = mosquitto(settings={"allow_anonymous": "false"})

    policy = Reconnect(first=0.01, longest=0.02, refused=None)
    places = [(HOST, closed.port)]
    async with Client(
        HOST, broker.port, connection=ConnectionOptions(more_servers=places), reconnect=policy
    ) as client:
        told = Told(client)
        broker.stop()
        # Not while another server may come back.
        await told.until(lambda said: len(said) > 3)
        assert None not in told.said
        broker.start()
        await told.back()
    async with Client(HOST, broker.port, reconnect=policy) as client:
        client._routes[0].port = closed.port
        broker.kill()
        with pytest.raises(ConnectRefusedError, match="not authorized"):
            await asyncio.wait_for(client.messages.__anext__(), WAIT_S)
    patient = Reconnect(first=0.01, longest=0.02, refused=0.01, at_start=True)
    client = Client(HOST, closed.port, reconnect=patient)
    told = Told(client)
    entering = asyncio.ensure_future(client.__aenter__())
    await told.until(lambda said: len(said) > 2)
    assert all(isinstance(error, ConnectRefusedError) for error in told.said)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)


async def test_a_server_that_does_not_answer_counts_as_lost() -> None:
    async with serve(lambda session: setattr(session.acks, "automatic", False)) as server:
        policy = Reconnect(first=0.01, longest=0.02, answer=0.1)
        async with Client(HOST, server.port, reconnect=policy) as client:
            told = Told(client)
            await client.post("unheard", "?", 1)
            await told.lost()
            assert "does not answer" in str(told.said[0])
            for session in server.sessions:
                session.acks.automatic = True
            server.prepare = lambda session: None
            await client.drain(WAIT_S)


@pytest.mark.parametrize("raised", [KeyError("mine"), ReentrantError("mine")], ids=repr)
async def test_a_handler_that_raises_is_logged_and_the_connection_made_again(
    raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[ClientError | None] = []

    def raising(error: ClientError | None) -> None:
        said.append(error)
        raise raised

    async def waiting() -> None:
        raise raised

    async with serve() as server:
        client = Client(HOST, server.port, reconnect=QUICK)
        client.on_connection = raising
        client.before_attempts = waiting
        async with client:
            for lost in range(1, 4):
                await server.connections[-1].close(1)
                await asyncio.wait_for(until(lambda n=lost: said.count(None) == n + 1), WAIT_S)  # type: ignore[misc]
            await client.publish("t", b"", 1)
    assert caplog.text.count("on_connection failed") == 7
    assert "before_attempts failed" in caplog.text


@pytest.mark.parametrize("reconnect", [None, QUICK], ids=["once", "kept"])
async def test_the_first_connection_is_told_and_its_loss_with_or_without_reconnect(
    reconnect: Reconnect | None,
) -> None:
    async with serve() as server:
        client = Client(
            HOST, server.port, reconnect=reconnect, session=SessionOptions(subscriptions=[("a", 0)])
        )
        said: list[tuple[ClientError | None, bool, dict[str, int]]] = []
        client.on_connection = lambda error: said.append((error, client.connected, client.granted))
        for _ in range(2):
            said.clear()
            async with client:
                assert said == [(None, True, {"a": 0})]
                await server.connections[-1].close(1)
                await asyncio.wait_for(until(lambda: len(said) > 1), WAIT_S)
                error, connected, _ = said[1]
                assert isinstance(error, NotConnectedError)
                assert not connected


def test_a_handler_that_ends_the_program_ends_it() -> None:
    async def scenario() -> None:
        async with serve() as server, Client(HOST, server.port, reconnect=QUICK) as client:
            client.on_connection = lambda error: sys.exit(3)
            await server.connections[-1].close(1)
            await client.messages.__anext__()

    with pytest.raises(SystemExit) as ended:
        asyncio.run(scenario())
    assert ended.value.code == 3


@pytest.mark.parametrize(
    "options",
    [
        {"first": 0},
        {"first": 2, "longest": 1},
        {"longest": 1e9},
        {"refused": -1},
        {"attempts": -1},
        {"answer": 0},
    ],
)
def test_a_policy_is_checked(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        Reconnect(**options)  # type: ignore[arg-type]
