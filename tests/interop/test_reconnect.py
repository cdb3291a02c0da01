"""Clients that keep their connection, before a broker that is stopped and started again on the same port."""

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headwater.errors import E_CLOSED
from headwater.mqtt.decode import Packet
from headwater_host import blocking
from headwater_host.aio import (
    Client,
    Message,
    MqttArgumentError,
    MqttConnectionError,
    MqttError,
    MqttReentrantError,
    MqttRefusedError,
    MqttSubscribeError,
    MqttTimeoutError,
    Reconnect,
)
from headwater_host.session import HostServerSession
from tests.host.command import Running, headwater, running
from tests.host.mqtt_server import serve
from tools.broker import HOST, Mosquitto, free_port

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]
WAIT_S = 60
QUICK = Reconnect(first=0.02, longest=0.3)


class Told:
    """What ``on_connection`` was told."""

    def __init__(self, client: Client):
        self.said: list[MqttError | None] = []
        self._more = asyncio.Event()
        client.on_connection = self._on_connection

    def _on_connection(self, error: MqttError | None) -> None:
        self.said.append(error)
        self._more.set()

    async def until(self, condition: "Callable[[list[MqttError | None]], bool]") -> None:
        async def wait() -> None:
            while not condition(self.said):
                self._more.clear()
                await self._more.wait()

        await asyncio.wait_for(wait(), WAIT_S)

    async def lost(self) -> None:
        await self.until(lambda said: bool(said) and said[-1] is not None)

    async def back(self, times: int = 1) -> None:
        await self.until(lambda said: said.count(None) >= times)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def take(client: Client, count: int) -> list[Message]:
    async def collect() -> list[Message]:
        return [await client.messages.__anext__() for _ in range(count)]

    return await asyncio.wait_for(collect(), WAIT_S)


@contextlib.asynccontextmanager
async def talker(broker: Mosquitto) -> AsyncIterator[Client]:
    async with Client(HOST, broker.port) as one:
        yield one


# ---- the asyncio client ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5.0"])
def test_a_client_subscribes_again_when_the_session_is_gone(mosquitto: StartBroker, protocol: str) -> None:
    broker = mosquitto()

    async def scenario() -> None:
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
            assert all(isinstance(error, MqttConnectionError) for error in told.said if error is not None)

    asyncio.run(scenario())


@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
def test_a_session_that_was_kept_is_not_subscribed_again(mosquitto: StartBroker, protocol: str) -> None:
    broker = mosquitto(persistence=True)

    async def scenario() -> None:
        name = f"kept-{protocol}"
        options = {"identifier": name, "clean_session": False, "protocol": protocol}
        async with Client(HOST, broker.port, reconnect=QUICK, **options) as client:  # type: ignore[arg-type]
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
        other = Client(HOST, broker.port, subscriptions=[("more", 1)], **options)  # type: ignore[arg-type]
        for _ in range(2):
            async with other:
                assert other.session_present
                assert other.granted == {"more": 1}
        assert broker.log_text().count(f"Received SUBSCRIBE from {name}") == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_meanwhile_arrives_once_and_in_order(mosquitto: StartBroker, qos: int) -> None:
    broker = mosquitto(persistence=True)

    async def scenario() -> None:
        listener = Client(HOST, broker.port, identifier="l", clean_session=False, reconnect=QUICK)
        client = Client(
            HOST, broker.port, identifier="p", clean_session=False, reconnect=QUICK, timeout=WAIT_S
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

    asyncio.run(scenario())


def test_qos_0_waits_for_the_connection_up_to_its_timeout(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, reconnect=QUICK) as client:
            told = Told(client)
            await client.subscribe("zero")
            broker.stop()
            await told.lost()
            with pytest.raises(MqttTimeoutError, match="no connection in time"):
                await client.publish("zero", "too late", timeout=0.05)
            with pytest.raises(MqttTimeoutError, match="no connection in time"):
                await client.subscribe("other", timeout=0.05)
            # At QoS 1 it is handed in, whether or not the call waits long enough.
            with pytest.raises(MqttTimeoutError, match="acknowledge"):
                await client.publish("zero", "one", 1, timeout=0.05)
            sent = asyncio.ensure_future(client.publish("zero", "zero", timeout=WAIT_S))
            asked = asyncio.ensure_future(client.subscribe("more", 1, timeout=WAIT_S))
            broker.start()
            await sent
            assert await asked == (1,)
            await told.back()
            await client.drain(WAIT_S)

    asyncio.run(scenario())


def test_a_full_outbox_makes_wait_and_then_refuses(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, reconnect=QUICK, max_queued_outgoing_messages=4) as client:
            told = Told(client)
            broker.stop()
            await told.lost()
            for n in range(4):
                await client.post("full", n, 1)
            with pytest.raises(MqttTimeoutError, match="no room"):
                await client.post("full", 4, 1, timeout=0.05)
            blocked = asyncio.ensure_future(client.post("full", 5, 1, timeout=WAIT_S))
            await asyncio.sleep(0)
            assert not blocked.done()
            broker.start()
            await blocked
            await client.drain(WAIT_S)

    asyncio.run(scenario())


def test_it_gives_up_after_so_many_attempts_and_everybody_hears_why(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
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
                with pytest.raises(MqttConnectionError, match="Connection refused"):
                    await asyncio.wait_for(one, WAIT_S)
            with pytest.raises(MqttConnectionError, match="Connection refused"):
                await client.publish("a", "b")
            # The lost connection, and each attempt but the last, which is the end.
            assert len(told.said) == 3
        broker.start()
        # The session goes on.
        async with client:
            await client.drain(WAIT_S)

    asyncio.run(scenario())


def test_the_first_connection(mosquitto: StartBroker) -> None:
    port = free_port()

    async def scenario() -> None:
        with pytest.raises(MqttConnectionError, match="Connection refused"):
            async with Client(HOST, port, reconnect=True):
                pass
        policy = Reconnect(first=0.01, longest=0.02, at_start=True, attempts=2)
        tried = Client(HOST, port, reconnect=policy)
        said: list[MqttError | None] = []
        tried.on_connection = said.append
        with pytest.raises(MqttConnectionError, match="Connection refused"):
            async with tried:
                pass
        assert len(said) == 1
        broker = mosquitto()
        patient = Client(
            HOST,
            broker.port,
            reconnect=Reconnect(first=0.01, longest=0.02, at_start=True),
            subscriptions=[("s", 1)],
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
        with pytest.raises(MqttConnectionError):
            await patient.publish("s", "x", 1)

    asyncio.run(scenario())


def test_leaving_while_there_is_no_connection(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        client = Client(HOST, broker.port, reconnect=QUICK)
        async with client:
            told = Told(client)
            broker.stop()
            await told.lost()
            waiting = asyncio.ensure_future(client.messages.__anext__())
            await asyncio.sleep(0)
        with pytest.raises(MqttConnectionError, match="has disconnected"):
            await waiting
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(scenario())


def test_several_servers(mosquitto: StartBroker) -> None:
    one, other = mosquitto(), mosquitto()

    async def scenario() -> None:
        places = [(HOST, free_port()), (HOST, other.port)]
        async with Client(HOST, one.port, more_servers=places, reconnect=QUICK) as client:
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
        async with Client(HOST, free_port(), more_servers=[(HOST, one.port)]) as client:
            assert client.server == f"{HOST}:{one.port}"

    asyncio.run(scenario())


def test_a_refusal_ends_it_unless_it_may_pass(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    closed = mosquitto(settings={"allow_anonymous": "false"})

    async def scenario() -> None:
        policy = Reconnect(first=0.01, longest=0.02, refused=None)
        places = [(HOST, closed.port)]
        async with Client(HOST, broker.port, more_servers=places, reconnect=policy) as client:
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
            with pytest.raises(MqttRefusedError, match="not authorized"):
                await asyncio.wait_for(client.messages.__anext__(), WAIT_S)
        patient = Reconnect(first=0.01, longest=0.02, refused=0.01, at_start=True)
        client = Client(HOST, closed.port, reconnect=patient)
        told = Told(client)
        entering = asyncio.ensure_future(client.__aenter__())
        await told.until(lambda said: len(said) > 2)
        assert all(isinstance(error, MqttRefusedError) for error in told.said)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)

    asyncio.run(scenario())


def test_a_subscription_that_is_refused_later_ends_it() -> None:
    async def scenario() -> None:
        async with serve() as server:
            policy = Reconnect(first=0.01, longest=0.02, refused=None)
            async with Client(HOST, server.port, reconnect=policy) as client:
                assert await client.subscribe("mine") == (0,)
                server.prepare = lambda session: setattr(session, "on_subscribe", lambda p, qos: 0x80)
                await server.connections[0].close(1)
                with pytest.raises(MqttSubscribeError, match="mine"):
                    await asyncio.wait_for(client.messages.__anext__(), WAIT_S)
                assert not client.connected

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_counts_as_lost() -> None:
    async def scenario() -> None:
        async with serve(lambda session: setattr(session, "auto_ack", False)) as server:
            policy = Reconnect(first=0.01, longest=0.02, answer=0.1)
            async with Client(HOST, server.port, reconnect=policy) as client:
                told = Told(client)
                await client.post("unheard", "?", 1)
                await told.lost()
                assert "does not answer" in str(told.said[0])
                for session in server.sessions:
                    session.auto_ack = True
                server.prepare = lambda session: None
                await client.drain(WAIT_S)

    asyncio.run(scenario())


def test_a_handler_that_raises_ends_it_and_says_so(
    mosquitto: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = mosquitto()

    async def scenario() -> None:
        async with Client(HOST, broker.port, reconnect=QUICK) as client:

            def raising(error: MqttError | None) -> None:
                raise KeyError("mine")

            client.on_connection = raising
            broker.stop()
            with pytest.raises(MqttConnectionError, match="not kept any more: KeyError"):
                await asyncio.wait_for(client.messages.__anext__(), WAIT_S)

    asyncio.run(scenario())
    assert "KeyError: 'mine'" in caplog.text


def test_a_handler_that_raises_an_error_of_ours_leaves_no_connection_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serve() as server, Client(HOST, server.port, reconnect=QUICK) as client:

            def raising(error: MqttError | None) -> None:
                if error is None:
                    # As of a call that a handler of a blocking client may not make.
                    raise MqttReentrantError("mine")

            client.on_connection = raising
            await server.connections[0].close(1)
            with pytest.raises(MqttConnectionError, match="not kept any more: MqttReentrantError"):
                await asyncio.wait_for(client.messages.__anext__(), WAIT_S)
            await asyncio.wait_for(until(lambda: len(server.lost) == len(server.sessions) == 2), WAIT_S)

    asyncio.run(scenario())
    assert "mine" in caplog.text


@pytest.mark.parametrize("many", [False, True], ids=["one", "more than may be unanswered"])
def test_what_the_program_asks_for_meanwhile_comes_behind_what_is_asked_for_again(many: bool) -> None:
    asked: list[tuple[str, int]] = []

    def hear(session: HostServerSession) -> None:
        def on_subscribe(p: Packet, qos: int) -> int:
            asked.append((p.topic_bytes().decode(), qos))
            return qos

        session.on_subscribe = on_subscribe
        session.on_unsubscribe = lambda p: asked.append((p.topic_bytes().decode(), -1))

    async def scenario() -> None:
        names = [f"{n}" for n in range(20 if many else 1)]
        async with serve(hear) as server, Client(HOST, server.port, reconnect=QUICK) as client:
            await client.subscribe([(name, 0) for name in ("gone", *names)])
            asked.clear()
            changes: list[asyncio.Future[list[object]]] = []

            def change(error: MqttError | None) -> None:
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

    asyncio.run(scenario())


def test_a_connection_that_is_lost_while_it_is_subscribed_again_is_not_waited_for() -> None:
    def hang_up(session: HostServerSession) -> None:
        session.on_subscribe = lambda p, qos: session.fail(E_CLOSED)

    async def scenario() -> None:
        wanted = [(f"{n}", 0) for n in range(20)]
        async with serve() as server:
            # What waited for its turn would wait for a connection, for as long as the timeout.
            client = Client(HOST, server.port, reconnect=QUICK, subscriptions=wanted, timeout=WAIT_S)
            async with client:
                told = Told(client)
                server.prepare = hang_up
                await server.connections[0].close(1)
                await told.until(lambda said: len(said) > 3)
                requests = [t for t in asyncio.all_tasks() if "_request" in str(t.get_coro())]
                assert not requests
                server.prepare = lambda session: None
                await told.back()

    asyncio.run(scenario())


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
    with pytest.raises(MqttArgumentError):
        Reconnect(**options)  # type: ignore[arg-type]


def test_the_threads_of_a_blocking_client_wait_through_it(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    got: list[bytes] = []
    came = threading.Condition()

    def on_message(client: blocking.Client, message: Message) -> None:
        with came:
            got.append(message.payload)
            came.notify_all()

    said: list[MqttError | None] = []
    with blocking.Client(
        HOST, broker.port, reconnect=QUICK, timeout=WAIT_S, on_message=on_message, on_connection=said.append
    ) as client:
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
    assert isinstance(said[0], MqttConnectionError)
    assert said[-1] is None


# ---- the command -----------------------------------------------------------------------------------------------------


def subscribed(broker: Mosquitto, name: str, times: int = 1) -> None:
    deadline = time.monotonic() + WAIT_S
    while broker.log_text().count(f"Sending SUBACK to {name}\n") < times:
        assert time.monotonic() < deadline, broker.log_text()
        time.sleep(0.01)


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_sub_goes_on_when_the_broker_comes_back(mosquitto: StartBroker, tmp_path: Path, version: str) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port, "-V", version)
    with running("sub", *where, "-t", "again", "-q", 1, "-C", 2, "-i", "s", directory=tmp_path) as sub:
        subscribed(broker, "s")
        assert headwater("pub", *where, "-t", "again", "-m", "one", "-q", 1).returncode == 0
        broker.stop()
        sub.wait_for("; trying again\n")
        broker.start()
        sub.wait_for(f"headwater: connected again to {HOST}:{broker.port}\n", WAIT_S)
        assert headwater("pub", *where, "-t", "again", "-m", "two", "-q", 1).returncode == 0
        assert sub.wait(WAIT_S) == 0
        assert sub.output == b"one\ntwo\n"
        assert all(line.startswith("headwater: ") for line in sub.errors.splitlines())


@pytest.mark.parametrize(
    "options, lines", [(("--no-reconnect",), 1), (("--reconnect", 0), 1), (("--reconnect", 2), 3)]
)
def test_sub_ends_with_3_when_told_so(
    mosquitto: StartBroker, tmp_path: Path, options: tuple[object, ...], lines: int
) -> None:
    broker = mosquitto()
    with running(
        "sub", "-h", HOST, "-p", broker.port, "-t", "x", "-i", "s", *options, directory=tmp_path
    ) as sub:
        subscribed(broker, "s")
        broker.stop()
        assert sub.wait(WAIT_S) == 3
        assert len(sub.errors.splitlines()) == lines, sub.errors
        assert "trying again" not in sub.errors.splitlines()[-1]


def test_sub_is_ended_by_a_signal_and_by_its_time_while_it_waits(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port, "-t", "x")
    with (
        running("sub", *where, "-i", "signal", directory=tmp_path) as sub,
        running("sub", *where, "-i", "quiet", "--quiet", "-C", 1, "-W", 2, directory=tmp_path) as timed,
    ):
        subscribed(broker, "signal")
        subscribed(broker, "quiet")
        broker.stop()
        sub.wait_for("trying again")
        assert sub.end() == 0
        assert timed.wait(WAIT_S) == 4
        assert timed.errors == ""


def write(command: Running, data: bytes) -> None:
    assert command.process.stdin
    command.process.stdin.write(data)
    command.process.stdin.flush()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_lines_of_pub_wait_for_the_broker(mosquitto: StartBroker, tmp_path: Path, qos: int) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port)
    with running(
        "pub", *where, "-t", "lines", "-l", "-q", qos, "--timeout", 2, "-i", "p",
        directory=tmp_path, stdin=subprocess.PIPE,
    ) as pub:  # fmt: skip
        write(pub, b"one\n")
        deadline = time.monotonic() + WAIT_S
        while "Received PUBLISH from p" not in broker.log_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        broker.stop()
        pub.wait_for("; trying again\n")
        write(pub, b"two\nthree\n")
        broker.start()
        pub.wait_for("connected again", WAIT_S)
        write(pub, b"four\n")
        assert pub.process.stdin
        pub.process.stdin.close()
        assert pub.wait(WAIT_S) == 0
    shown = [line for line in broker.log_text().splitlines() if "Received PUBLISH from p" in line]
    assert len(shown) >= 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_lines_of_pub_do_not_wait_when_the_oldest_may_be_dropped(
    mosquitto: StartBroker, tmp_path: Path, qos: int
) -> None:
    broker = mosquitto(persistence=True)
    listener = ("-h", HOST, "-p", broker.port, "-t", "lines", "-q", 2, "-i", "s", "-c")
    assert headwater("sub", *listener, "-E").returncode == 0
    with running(
        "pub", "-h", HOST, "-p", broker.port, "-t", "lines", "-q", qos, "-l", "--drop-oldest", 3, "-i", "p", "-d",
        directory=tmp_path, stdin=subprocess.PIPE,
    ) as pub:  # fmt: skip
        write(pub, b"0\n")
        deadline = time.monotonic() + WAIT_S
        while "Received PUBLISH from p" not in broker.log_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if qos:
            pub.wait_for("acknowledged")
        broker.stop()
        pub.wait_for("; trying again\n")
        # Many more than are read without dropping any.
        write(pub, b"".join(b"%d\n" % n for n in range(1, 5001)))
        pub.wait_for_count("dropped a message", 4997)
        broker.start()
        assert pub.process.stdin
        pub.process.stdin.close()
        assert pub.wait(WAIT_S) == 0
        assert "headwater: 4997 messages were dropped\n" in pub.errors
    while qos == 0 and broker.log_text().count("Received PUBLISH from p") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if qos:
        came = headwater("sub", *listener, "-C", 4, "-W", WAIT_S)
        assert came.stdout.split() == [b"0", b"4998", b"4999", b"5000"]


def test_pub_of_one_message_does_not_wait_and_can_be_told_to(mosquitto: StartBroker, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        for options in ((), ("--no-reconnect",)):
            with running(
                "pub", "-h", HOST, "-p", port, "-t", "a", "-n", "-q", 1, *options, directory=tmp_path
            ) as pub:
                peer, _ = silent.accept()
                with peer:
                    peer.recv(100)
                    peer.sendall(b"\x20\x02\x00\x00")
                    assert peer.recv(100)[:1] == b"\x32"
                assert pub.wait(WAIT_S) == 3
        with running(
            "pub", "-h", HOST, "-p", port, "-t", "a", "-n", "-q", 1, "--reconnect", 5, directory=tmp_path
        ) as pub:
            for reply in (b"", b"\x40\x02\x00\x01"):
                peer, _ = silent.accept()
                with peer:
                    peer.recv(100)
                    peer.sendall(b"\x20\x02\x00\x00")
                    # Without a session the second one is a new one.
                    assert peer.recv(100)[:1] == b"\x32"
                    peer.sendall(reply)
                    if reply:
                        assert peer.recv(100) == b"\xe0\x00"
            assert pub.wait(WAIT_S) == 0
