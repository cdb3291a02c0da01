"""The host's FMQ client when connections, hubs and its own process end: nothing is lost, nothing doubled."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headwater_host.client.fmq import Client, Reconnect, SessionOptions
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import ArgumentError
from tests.host.command import running
from tests.host.hub_client import config, hub_of
from tests.interop.fmq_peers import SECONDS, client, cutting
from tests.interop.test_fmq_hub import stored
from tools.broker import free_port

ROOT = Path(__file__).parents[2]
QUICK = Reconnect(first=0.001, longest=0.01, at_start=True)
PAYLOADS = [(b"one", 1), (b"two", 2), (b"three", 1), (b"four", 2)]


async def publish(where: tuple[str, int], name: str) -> None:
    async with client(where, name, session=SessionOptions(clean_start=False), reconnect=QUICK) as c:
        for payload, qos in PAYLOADS:
            await c.post(name, payload, qos)
        await c.drain()


async def test_what_is_published_over_cuts_is_stored_once_and_in_order(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        async with cutting(hub, []) as (where, counts):
            await publish(where, "whole")
            up, down = counts
        assert up > 100
        assert down > 50
        # Every fifth byte is enough to meet each frame in each of its parts; the core is cut at every one.
        for k in range(0, max(up, down), 5):
            cuts = [(k, -1), (-1, k), (k // 2 + 20, -1)]
            async with cutting(hub, cuts) as (where, _):
                await publish(where, f"cut {k}")
        names = ["whole", *(f"cut {k}" for k in range(0, max(up, down), 5))]
        for name in names:
            assert stored(hub, name) == [payload for payload, _ in PAYLOADS], name


async def test_consumers_and_subscriptions_come_back(tmp_path: Path) -> None:
    async with (
        hub_of(config(tmp_path)) as hub,
        client(hub, "p") as p,
        cutting(hub, []) as (where, _),
        client(where, session=SessionOptions(clean_start=True), reconnect=QUICK) as c,
    ):
        jobs = await c.subscribe("jobs", group="g")
        await c.subscribe("news")
        await c.consume(jobs, window=3, need_ack=True)
        for n in range(5):
            await p.publish("jobs", b"%d" % n, 1)
        first = await asyncio.wait_for(c.messages.__anext__(), SECONDS)
        assert first.payload == b"0"
        told: asyncio.Queue[object] = asyncio.Queue()
        c.on_connection = told.put_nowait
        assert c.connection is not None
        assert c.connection.transport is not None
        c.connection.transport.abort()
        while await asyncio.wait_for(told.get(), SECONDS) is not None:
            pass
        # What was handed out over the connection before comes again; acknowledging it now changes nothing.
        await first.ack()
        await p.publish("news", b"n", 1)
        got: list[bytes] = []
        while len(got) < 6:
            message = await asyncio.wait_for(c.messages.__anext__(), SECONDS)
            got.append(message.payload)
            await message.ack()
        assert sorted(got) == [b"0", b"1", b"2", b"3", b"4", b"n"]
        assert [payload for payload in got if payload != b"n"] == [b"0", b"1", b"2", b"3", b"4"]


async def test_subscriptions_are_taken_back_while_there_is_no_connection(tmp_path: Path) -> None:
    async with (
        hub_of(config(tmp_path)) as hub,
        client(hub, "p") as p,
        cutting(hub, []) as (where, _),
        client(where, session=SessionOptions(clean_start=True), reconnect=QUICK) as c,
    ):
        one, two = await c.subscribe("one", group="g"), await c.subscribe("two")
        await c.consume(one)
        for steps in range(12):
            assert c.connection is not None
            assert c.connection.transport is not None
            c.connection.transport.abort()
            while c.connection is not None:
                await asyncio.sleep(0)
            # While it is made again, and what is left is asked for again.
            for _ in range(steps * 3):
                await asyncio.sleep(0)
            await c.unsubscribe(two)
            two = await c.subscribe("two")
        await p.publish("two", b"2", 1)
        await p.publish("one", b"1", 1)
        got = [await asyncio.wait_for(c.messages.__anext__(), SECONDS) for _ in range(2)]
        assert sorted(m.payload for m in got) == [b"1", b"2"]
        await c.unsubscribe(one)
        with pytest.raises(ArgumentError):
            await c.unsubscribe(one)


async def test_a_hub_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()

    with contextlib.ExitStack() as stack:

        def start() -> "subprocess.Popen[bytes]":
            arguments = ("hub", "--port", port, "--storage", tmp_path / "hub.db")
            hub = stack.enter_context(running(*arguments, directory=tmp_path))
            hub.wait_for("listening on")
            return hub.process

        hubs = [start()]
        policy = Reconnect(first=0.01, longest=0.2, at_start=True)
        async with Client(
            "127.0.0.1",
            port,
            identifier="p",
            session=SessionOptions(clean_start=False),
            timeout=SECONDS,
            reconnect=policy,
        ) as p:
            sent = 0
            for wait_for in (0, 1, 50):
                # Under way: what is handed in here has not been answered yet.
                before = p._acknowledged()
                for _ in range(200):
                    await p.post("jobs", b"%d" % sent, 1 + sent % 2)
                    sent += 1
                while p._acknowledged() - before < wait_for:
                    await asyncio.sleep(0)
                hubs[-1].kill()
                hubs[-1].wait()
                hubs.append(start())
            await p.drain()
            async with Client("127.0.0.1", port, identifier="c", timeout=SECONDS) as c:
                jobs = await c.subscribe("jobs", group="g")
                await c.consume(jobs, window=100, need_ack=True)
                got: list[int] = []
                while len(got) < sent:
                    message = await asyncio.wait_for(c.messages.__anext__(), SECONDS)
                    got.append(int(message.payload))
                    await message.ack()
                assert got == list(range(sent))
                # And nothing behind it.
                await p.publish("jobs", b"end", 1)
                assert (await asyncio.wait_for(c.messages.__anext__(), SECONDS)).payload == b"end"


PUBLISHER = """
import asyncio, sys
sys.path[:0] = {path!r}
from headwater_host.client.fmq import Client, Reconnect, SessionOptions

async def main(life, count):
    handed = open({handed!r}, "a", buffering=1)
    async with Client("127.0.0.1", {port}, identifier="killed",
                      session=SessionOptions(clean_start=False, store={store!r}),
                      reconnect=Reconnect(first=0.01, longest=0.1, at_start=True)) as client:
        print("online", flush=True)
        for n in range(count):
            await client.post("jobs", "%d.%d" % (life, n), 1 + n % 2)
            handed.write("%d.%d\\n" % (life, n))
        await client.drain(60)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
print("done", flush=True)
"""


async def test_a_publisher_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    store, handed = tmp_path / "outbox.db", tmp_path / "handed"
    seed = 7
    chance = random.Random(seed)

    async with hub_of(config(tmp_path)) as hub:
        text = PUBLISHER.format(path=sys.path, handed=str(handed), port=hub.addresses[0][1], store=str(store))
        for life in range(6):
            count = 400 if life < 5 else 0
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", text, str(life), str(count), stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), SECONDS) == b"online\n"
            if life < 5:
                before = len(stored(hub, "jobs"))
                wanted = before + chance.randrange(1, 150)
                while process.returncode is None and len(stored(hub, "jobs")) < wanted:
                    await asyncio.sleep(0.001)
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
            code = await asyncio.wait_for(process.wait(), SECONDS)
            assert code == (0 if life == 5 else code)
        got = [payload.decode() for payload in stored(hub, "jobs")]
        assert not [payload for payload, n in Counter(got).items() if n > 1], "doubled"
        promised = handed.read_text().split()
        assert not set(promised) - set(got), "lost"
        order = [tuple(map(int, payload.split("."))) for payload in got]
        assert order == sorted(order), "reordered"
    with SqliteOutbox(store, "killed", protocol="fmq") as box:
        assert box.count == 0
        assert box.message_ids.process
