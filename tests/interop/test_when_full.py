"""What becomes of messages for which there is no room (``when_full``), while a broker is down, and when it is back."""

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater_host.client import blocking
from headwater_host.client.mqtt import Client, Limits, Message, Reconnect, SessionOptions, Version
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    NotConnectedError,
    QueueFullError,
    StoreError,
    TimedOutError,
)
from tests.host.mqtt_server import serve
from tests.interop.kept_clients import Told
from tools.broker import HOST, Mosquitto, free_port

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]
WAIT_S = 200
QUICK = Reconnect(first=0.02, longest=0.3)
BOUND = 5


DROPS = Limits(queued_outgoing=BOUND, when_full="drop_oldest")


def drops(broker: Mosquitto, **more: Any) -> Client:
    """A client whose oldest messages are dropped."""
    options: dict[str, Any] = {
        "identifier": "p",
        "session": SessionOptions(clean_start=False),
        "reconnect": QUICK,
        "limits": DROPS,
    }
    return Client(HOST, broker.port, **(options | more))


async def until_lost(client: Client) -> None:
    lost = asyncio.Event()
    client.on_connection = lambda error: lost.set() if error is not None else None
    if client.connected:
        await asyncio.wait_for(lost.wait(), WAIT_S)


@contextlib.asynccontextmanager
async def listening(broker: Mosquitto, client: Client) -> AsyncIterator[Callable[[bytes], Any]]:
    """What a subscriber of ``t`` has got up to a payload. Once connected, ``client`` comes back after it."""
    there = asyncio.Event()

    def on_connection(error: ClientError | None) -> None:
        (there.set if error is None else there.clear)()

    async with Client(
        HOST,
        broker.port,
        identifier="l",
        session=SessionOptions(clean_start=False, subscriptions=[("t", 2)]),
        reconnect=QUICK,
    ) as listener:
        listener.on_connection = on_connection

        async def got(last: bytes) -> list[bytes]:
            found: list[bytes] = []
            while not found or found[-1] != last:
                found.append((await asyncio.wait_for(listener.messages.__anext__(), WAIT_S)).payload)
            return found

        async with client:
            client.before_attempts = there.wait
            yield got


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % n for n in values]


@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
@pytest.mark.parametrize("kept", [False, True], ids=["ram", "sqlite"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_the_newest_arrive_when_the_broker_is_back(
    mosquitto: StartBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    qos: int,
    kept: bool,
    protocol: Version,
) -> None:
    broker = mosquitto(persistence=True)
    session = SessionOptions(clean_start=False, store=tmp_path / "store.db" if kept else None)

    with caplog.at_level(logging.WARNING, "headwater.client"):
        client = drops(broker, protocol=protocol, session=session)
        async with listening(broker, client) as got:
            broker.stop()
            await until_lost(client)
            calls = [asyncio.ensure_future(client.publish("t", n, qos, timeout=WAIT_S)) for n in range(20)]
            await asyncio.sleep(0)
            assert client.dropped == 15
            for call in calls[:15]:
                with pytest.raises(QueueFullError, match="dropped for newer ones"):
                    await call
            # Nobody waits for this one, and it takes the place of another.
            await client.post("t", 20, qos)
            with pytest.raises(QueueFullError):
                await calls[15]
            broker.start()
            await asyncio.gather(*calls[16:])
            await client.drain(WAIT_S)
            assert client.dropped == 16
            assert await got(b"20") == numbers(*range(16, 21))
            # And as before.
            await client.publish("t", "end", qos)
            assert await got(b"end") == [b"end"]
    told = [r.getMessage() for r in caplog.records if "drop" in r.getMessage()]
    assert told == [
        "5 messages wait to be sent: from now on each new one drops the oldest",
        "16 messages were dropped; all others that waited are enqueued",
    ]


@pytest.mark.parametrize("kept", [False, True], ids=["ram", "sqlite"])
async def test_what_may_have_been_sent_is_never_dropped(tmp_path: Path, kept: bool) -> None:
    session = SessionOptions(clean_start=False, store=tmp_path / "store.db" if kept else None)
    arrived: list[tuple[int, bool, bytes]] = []

    def note(session: HostServerSession) -> None:
        session.on_message = lambda p: arrived.append(
            (p.packet_id, p.head & 8 != 0, bytes(p.buf[p.payload_at : p.end]))
        )

    def silent(session: HostServerSession) -> None:
        note(session)
        session.acks.automatic = False

    async with serve(silent) as server:
        client = Client(
            HOST,
            server.port,
            identifier="p",
            session=session,
            reconnect=QUICK,
            limits=Limits(in_flight=3, queued_outgoing=4, when_full="drop_oldest"),
        )
        async with client:
            calls = [asyncio.ensure_future(client.publish("t", n, 2, timeout=WAIT_S)) for n in range(10)]
            while len(arrived) < 3:
                await asyncio.sleep(0.001)
            assert client.dropped == 3
            assert [payload for *_, payload in arrived] == numbers(0, 1, 2)
            arrived.clear()
            server.prepare = note
            await server.connections[0].close(1)
            for call in calls[3:6]:
                with pytest.raises(QueueFullError):
                    await call
            await asyncio.gather(*calls[:3], *calls[6:])
            # Those under way kept their ids; the server had no session, so that they are new to it.
            assert arrived[:3] == [(n + 1, False, b"%d" % n) for n in range(3)]
            assert [payload for *_, payload in arrived[3:]] == numbers(6, 7, 8, 9)


LIFE = """
import asyncio, sys
sys.path[:0] = {path!r}
from headwater_host.client.mqtt import Client, Limits, Reconnect, SessionOptions

async def main():
    async with Client("127.0.0.1", {port}, identifier="p",
                      session=SessionOptions(clean_start=False, store={store!r}),
                      reconnect=Reconnect(first=0.02, longest=0.3),
                      limits=Limits(queued_outgoing=5, in_flight=3, when_full="drop_oldest"),
                      protocol={protocol!r}) as client:
        for n in range({first}, {first} + 3):
            await client.post("t", n, 2)
        print("posted", flush=True)
        while client.connected:
            await asyncio.sleep(0.01)
        for n in range({first} + 3, {first} + 20):
            await client.post("t", n, 2, properties={properties!r})
        print("waiting", client.dropped, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
async def test_a_process_that_is_killed_while_the_broker_is_down(
    mosquitto: StartBroker, tmp_path: Path, protocol: Version
) -> None:
    broker = mosquitto(persistence=True)
    store = tmp_path / "store.db"
    properties = {"content_type": "n", "user_property": [("a", "b")]} if protocol == "5.0" else None

    def live(first: int) -> None:
        code = LIFE.format(
            path=sys.path,
            port=broker.port,
            store=str(store),
            first=first,
            protocol=protocol,
            properties=properties,
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "posted\n"
            # What was posted has left, or not: it is in the outbox.
            broker.kill()
            assert process.stdout.readline() == "waiting 12\n"
            process.send_signal(signal.SIGKILL)

    async with Client(
        HOST,
        broker.port,
        identifier="l",
        session=SessionOptions(clean_start=False),
        reconnect=QUICK,
        protocol=protocol,
    ) as listener:
        told = Told(listener)
        # Not at QoS 2: a broker that is killed uses ids anew that it had used, and they would count as known.
        await listener.subscribe("t", 1)
        broker.stop()
        broker.start()
        await asyncio.to_thread(live, 0)
        await told.lost()
        with SqliteOutbox(store, "p", protocol=protocol) as box:
            assert [m.payload for m in box.backlog.queue] == numbers(*range(15, 20))
            assert box.count <= 3
        if properties:
            with pytest.raises(StoreError, match=r"messages as packets of MQTT 5\.0"):
                SqliteOutbox(store, "p")
        broker.start()
        # The broker has lost the session of a listener that is killed with it.
        await told.until(lambda said: said[-1] is None)
        # Under another policy they are handed in first, and nothing else is dropped.
        async with drops(
            broker,
            session=SessionOptions(store=store),
            limits=Limits(when_full="block", queued_outgoing=4),
            protocol=protocol,
        ) as client:
            await asyncio.gather(*(client.publish("t", n, 2, timeout=WAIT_S) for n in range(100, 110)))
            await client.drain(WAIT_S)
            assert client.dropped == 0
        seen: list[Message] = []
        while not seen or seen[-1].payload != b"109":
            seen.append(await asyncio.wait_for(listener.messages.__anext__(), WAIT_S))
        found = [m.payload for m in seen]
        # The broker was killed as well: what had just arrived there may be lost with its session, or come again.
        assert [p for p in found if int(p) >= 3] == numbers(*range(15, 20), *range(100, 110))
        if properties:
            assert all(m.properties == properties for m in seen if 15 <= int(m.payload) < 20)


async def test_a_store_that_fails_for_a_while(mosquitto: StartBroker, tmp_path: Path) -> None:
    broker = mosquitto(persistence=True)

    client = drops(broker, session=SessionOptions(clean_start=False, store=tmp_path / "store.db"))
    box = client.session.outbox
    assert isinstance(box, SqliteOutbox)
    done: list[str] = []
    async with listening(broker, client) as got:
        broker.stop()
        await until_lost(client)
        await client.post("t", "kept", 2)
        box.commits.db.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match="not published: the store cannot be written"):
            await client.post("t", "refused", 2)
        box.commits.db.execute("PRAGMA query_only = 0")
        await client.post("t", "too", 2)
        # It fails once more, when the first has just gone to the outbox.
        failures = [sqlite3.SQLITE_DENY]

        def allow(action: int, table: str | None, *_: object) -> int:
            wanted = action == sqlite3.SQLITE_DELETE and table == "backlog"
            return failures.pop() if wanted and failures else sqlite3.SQLITE_OK

        box.commits.db.set_authorizer(allow)
        box.commits.db.set_trace_callback(done.append)
        broker.start()
        await client.drain(WAIT_S)
        assert not failures
        box.commits.db.set_trace_callback(None)
        await client.publish("t", "end", 2)
        assert await got(b"end") == [b"kept", b"too", b"end"]
    # Never in the backlog and in the outbox, whenever the process ends.
    to_outbox = max(k for k, statement in enumerate(done) if statement.startswith("INSERT INTO outbox"))
    from_backlog = max(k for k, s in enumerate(done) if s.startswith("DELETE FROM backlog WHERE"))
    assert to_outbox < from_backlog
    assert "COMMIT" not in done[to_outbox:from_backlog]
    box.close()


async def test_a_broker_that_does_not_keep_up(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async with drops(broker, limits=replace(DROPS, in_flight=2)) as client:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for n in range(20):
                await client.post("t", n, 1)
            assert client.dropped == 13
            with pytest.raises(TimedOutError, match="did not answer"):
                await client.publish("t", 20, 1, timeout=0.05)
            # QoS 0 does not wait for acknowledgements, but it does not overtake either.
            late = asyncio.ensure_future(client.publish("t", 21, timeout=WAIT_S))
            await asyncio.sleep(0)
            assert not late.done()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await late
        await client.drain(WAIT_S)
        assert client.dropped == 15


def test_a_connection_that_takes_no_more_for_now() -> None:
    block = b"x" * 100_000

    async def scenario() -> None:
        arrived: list[int] = []

        def count(session: HostServerSession) -> None:
            session.on_message = lambda p: arrived.append(p.end - p.payload_at)

        async with serve(count) as server:
            client = Client(
                HOST, server.port, reconnect=QUICK, limits=Limits(queued_outgoing=3, when_full="drop_oldest")
            )
            async with client:
                while not server.sessions:
                    await asyncio.sleep(0.001)
                server.connections[0].hold(1)
                sent = 0
                while client.dropped == 0:
                    await client.post("t", block)
                    sent += 1
                    assert sent < 10_000
                server.connections[0].release(1)
                await client.drain(WAIT_S)
                while len(arrived) < sent - client.dropped:
                    await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


async def test_refusing_at_once(mosquitto: StartBroker) -> None:
    broker = mosquitto()

    async with drops(broker, limits=replace(DROPS, when_full="refuse")) as client:
        await client.publish("t", "before", 1)
        broker.stop()
        await until_lost(client)
        with pytest.raises(NotConnectedError, match="there is no connection; it was not sent"):
            await client.publish("t", "x")
        for n in range(BOUND):
            await client.post("t", n, 1)
        for call in (client.post, client.publish):
            with pytest.raises(QueueFullError, match="no room"):
                await call("t", BOUND, 1)
        broker.start()
        await client.drain(WAIT_S)
        assert client.dropped == 0


async def test_what_cannot_be_sent_is_said_at_once(mosquitto: StartBroker) -> None:
    broker = mosquitto(settings={"max_qos": 1})
    with pytest.raises(ArgumentError, match="when_full='drop': one of 'block', 'refuse', 'drop_oldest'"):
        Limits(when_full="drop")  # type: ignore[arg-type]

    async with drops(broker, protocol="5.0") as client:
        broker.stop()
        await until_lost(client)
        for topic, payload, qos, properties in (
            ("a/#", b"", 0, None),
            ("t", object(), 1, None),
            ("t", b"", 3, None),
            ("t", b"", 1, {"topic_alias": 1}),
            ("t", b"", 0, {"nonsense": 1}),
        ):
            for call in (client.post, client.publish):
                with pytest.raises(ArgumentError):
                    await call(topic, payload, qos, properties=properties)  # type: ignore[arg-type]
        # What only the server can say holds nothing up.
        refused = asyncio.ensure_future(client.publish("t", "x", 2, timeout=WAIT_S))
        taken = asyncio.ensure_future(client.publish("t", "y", 1, timeout=WAIT_S))
        await asyncio.sleep(0)
        broker.start()
        await taken
        with pytest.raises(ClientError, match="the peer does not support this"):
            await refused


async def test_a_message_longer_than_the_outbox_does_not_wait_for_room(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    broker = mosquitto()
    limit = 1 << 16
    with SqliteOutbox(tmp_path / "store.db", "p", limit=limit) as store:
        session = SessionOptions(clean_start=False, store=store)
        async with drops(broker, session=session) as client:
            broker.stop()
            await until_lost(client)
            for call in (client.post, client.publish):
                with pytest.raises(ArgumentError, match="larger than"):
                    await call("t", bytes(limit), 1)
            broker.start()
            await client.publish("t", "taken", 1, timeout=WAIT_S)
            assert client.dropped == 0


async def test_what_waits_outlives_the_end_of_the_client_and_who_waits_hears_why(
    mosquitto: StartBroker,
) -> None:
    broker = mosquitto()

    client = drops(broker)
    async with client:
        broker.stop()
        await until_lost(client)
        call = asyncio.ensure_future(client.publish("t", "left", 1, timeout=WAIT_S))
        given_up = asyncio.ensure_future(client.publish("t", "given up", 1, timeout=WAIT_S))
        await asyncio.sleep(0)
        given_up.cancel()
        draining = asyncio.ensure_future(client.drain(WAIT_S))
        await asyncio.sleep(0)
    for one in (call, draining):
        with pytest.raises(NotConnectedError, match="has disconnected"):
            await one
    broker.start()
    async with listening(broker, client) as got:
        await client.drain(WAIT_S)
        assert await got(b"given up") == [b"left", b"given up"]


def test_from_threads(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    with blocking.Client(
        HOST, broker.port, reconnect=QUICK, limits=Limits(queued_outgoing=3, when_full="drop_oldest")
    ) as client:
        broker.stop()
        for n in range(100):
            client.post("t", n, 1)
        assert client.dropped >= 100 - 3 - 20
        broker.start()
        client.drain(WAIT_S)


async def test_the_first_connection_may_be_missing() -> None:
    port = free_port()

    policy = Reconnect(first=0.01, longest=0.02, at_start=True)
    client = Client(HOST, port, reconnect=policy, limits=Limits(queued_outgoing=2, when_full="drop_oldest"))
    entering = asyncio.ensure_future(client.__aenter__())
    await asyncio.sleep(0)
    for n in range(5):
        await client.post("t", n, 1)
    assert client.dropped == 3
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
