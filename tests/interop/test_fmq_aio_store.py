"""What the host's FMQ client keeps in a file, and what it does when much waits."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headwater_host.client.fmq import Client, Limits, Reconnect, SessionOptions
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import ArgumentError, FmqRequestError, StoreError
from headwater_host.hub.broadcast import WINDOW
from headwater_host.hub.config import Listener
from headwater_host.hub.service import Hub
from tests.host.hub_client import ClientLimits, config, hub_of, replace, until
from tests.interop.fmq_peers import SECONDS, client
from tests.interop.test_fmq_hub import stored
from tools.broker import free_port

QUICK = Reconnect(first=0.001, longest=0.05, at_start=True)


def nowhere(store: Path, **more: Any) -> Client:
    """A client that will not reach a hub."""
    return Client(
        "127.0.0.1",
        free_port(),
        identifier="c",
        session=SessionOptions(clean_start=False, store=store),
        reconnect=QUICK,
        **more,
    )


async def entered(c: Client) -> "asyncio.Task[Client]":
    """Entering waits for the connection, and messages can be handed in meanwhile."""
    task = asyncio.create_task(c.__aenter__())
    await until(lambda: c._kept)
    return task


async def left(c: Client, task: "asyncio.Task[Client]") -> None:
    task.cancel()
    await asyncio.wait({task})
    box = c.session.outbox
    assert isinstance(box, SqliteOutbox)
    box.close()


async def test_what_is_handed_in_offline_goes_out_from_the_next_process(tmp_path: Path) -> None:
    store = tmp_path / "box.db"

    async with hub_of(config(tmp_path)) as hub:
        with SqliteOutbox(store, "c", protocol="fmq") as box:
            async with client(hub, session=SessionOptions(clean_start=False, store=box)) as c:
                await c.publish("t", b"first", 1)
        # The process number is known from the file: without it nothing can be handed in.
        c = nowhere(store)
        task = await entered(c)
        for n in range(5):
            await c.post("t", b"%d" % n, 1 + n % 2, tags=["x"])
        await left(c, task)
        async with client(hub, session=SessionOptions(clean_start=False, store=store)) as c:
            await c.drain()
        assert stored(hub, "t") == [b"first", *(b"%d" % n for n in range(5))]
        tags = {message.tags for message in hub.broker.store.read("t", 0, 0, 100)[1:]}
        assert tags == {("x",)}


async def test_without_a_process_number_a_message_waits_for_the_first_connection(tmp_path: Path) -> None:
    port = free_port()

    c = Client(
        "127.0.0.1",
        port,
        identifier="c",
        session=SessionOptions(clean_start=False),
        timeout=SECONDS,
        reconnect=QUICK,
    )
    task = await entered(c)
    waiting = asyncio.create_task(c.publish("t", b"x", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    async with hub_of(replace(config(tmp_path), listeners=(Listener(port=port),))) as hub:
        await asyncio.wait_for(waiting, SECONDS)
        assert stored(hub, "t") == [b"x"]
        await task
        await c.__aexit__(None, None, None)


async def test_the_oldest_are_dropped_and_the_rest_keeps_its_tags_in_the_file(tmp_path: Path) -> None:
    store = tmp_path / "box.db"

    async with hub_of(config(tmp_path)) as hub:
        # Without a process number nothing leaves the backlog.
        more: dict[str, Any] = {"limits": Limits(when_full="drop_oldest", queued_outgoing=4, in_flight=1)}
        c = nowhere(store, **more)
        task = await entered(c)
        for n in range(10):
            await c.post("t", b"%d" % n, n % 3, tags=["x", "y"])
        assert c.dropped == 6
        await left(c, task)
        async with client(hub, session=SessionOptions(clean_start=False, store=store), **more) as c:
            await c.drain()
        assert stored(hub, "t") == [b"6", b"7", b"8", b"9"]
        assert {message.tags for message in hub.broker.store.read("t", 0, 0, 100)} == {("x", "y")}


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_program_that_publishes_for_each_message_keeps_its_limit(tmp_path: Path, qos: int) -> None:
    """What waits beyond the limit is unacknowledged, and the hub pushes only so many messages."""
    limit, total = 10, 500

    async with (
        hub_of(config(tmp_path)) as hub,
        client(hub, "c", limits=Limits(queued_incoming=limit)) as c,
        client(hub, "p") as p,
    ):
        await c.subscribe("t")
        for n in range(total):
            await p.post("t", b"%d" % n, qos)
        most = 0
        for n in range(total):
            await c.publish("seen", b"%d" % n, 1)
            most = max(most, len(c.messages))
            one = await asyncio.wait_for(c.messages.__anext__(), SECONDS)
            assert one.payload == b"%d" % n
            assert one.acknowledged
        assert limit < most <= limit + WINDOW
        assert c.dropped_incoming == 0
        await c.publish("seen", b"", 1)
        assert not c._receive_path.withholds


async def test_while_a_call_waits_what_needs_no_acknowledgement_is_dropped_or_refused(tmp_path: Path) -> None:
    limit, total = 10, 200

    async with (
        hub_of(config(tmp_path)) as hub,
        client(hub, "c", limits=Limits(queued_incoming=limit)) as c,
        client(hub, "p") as p,
        client(hub, "responder") as responder,
    ):
        await responder.serve("slow")
        await c.serve("busy")
        await c.subscribe("t")
        waiting = asyncio.ensure_future(c.call("slow"))
        slow = await responder.calls.__anext__()
        calls = [asyncio.ensure_future(p.call("busy")) for _ in range(total)]
        for _ in range(total):
            await p.post("t", b"x")
        await until(lambda: c.dropped_incoming == 2 * (total - limit))
        assert len(c.messages) == len(c.calls) == limit
        await slow.reply(b"done")
        assert await waiting == b"done"
        for _ in range(limit):
            await (await c.calls.__anext__()).reply(b"yes")
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[:limit] == [b"yes"] * limit
        assert all(
            isinstance(error, FmqRequestError) and error.reason_code == 0x97 for error in results[limit:]
        )


async def test_files_that_are_not_ours(tmp_path: Path) -> None:
    store = tmp_path / "box.db"

    async with hub_of(config(tmp_path)) as hub:
        with SqliteOutbox(store, "c", protocol="fmq") as box:
            async with client(hub, session=SessionOptions(clean_start=False, store=box)) as c:
                await c.publish("t", b"", 1)
                with pytest.raises(StoreError, match="in use"):
                    client(hub, session=SessionOptions(clean_start=False, store=store))
        with pytest.raises(StoreError, match="belongs to the client"):
            client(hub, "other", session=SessionOptions(clean_start=False, store=store))
        with SqliteOutbox(store, "c", protocol="fmq") as box:
            assert box.message_ids.ceiling > 0
            at = box.reserve(20)
            box.buf[at : at + 20] = b"\x32" + bytes(19)
            box.commit(20, 1)
        with pytest.raises(StoreError, match=r"holds 1 messages as packets of FMQ: .* MQTT 3\.1\.1"):
            SqliteOutbox(store, "c")
        with (
            SqliteOutbox(store, "c", protocol="fmq") as box,
            pytest.raises(ArgumentError, match="of the client"),
        ):
            client(hub, "other", session=SessionOptions(clean_start=False, store=box))
        db = sqlite3.connect(store)
        db.execute("UPDATE ids SET ceiling = ceiling - 1")
        db.commit()
        db.close()
        with pytest.raises(StoreError, match="message ids"):
            SqliteOutbox(store, "c", protocol="fmq")


async def test_what_comes_again_while_the_program_has_it_stays_one_message(tmp_path: Path) -> None:
    settings = config(tmp_path, clients=ClientLimits(redelivery=1))
    async with hub_of(settings) as hub, client(hub) as c:
        jobs = await c.subscribe("jobs", group="g")
        await c.consume(jobs, need_ack=True)
        again = asyncio.Event()
        forget = c.session.forget

        def forgotten(receipt: int) -> None:
            forget(receipt)
            again.set()

        c.session.forget = forgotten  # type: ignore[method-assign]  # who asks for it is what is watched
        await c.publish("jobs", b"slow", 1)
        slow = await asyncio.wait_for(c.messages.__anext__(), SECONDS)
        await asyncio.wait_for(again.wait(), SECONDS)
        await slow.ack()
        await c.publish("jobs", b"next", 1)
        following = await asyncio.wait_for(c.messages.__anext__(), SECONDS)
        assert following.payload == b"next"
        await following.ack()
        assert not any(c.session.taken.state)


async def test_reading_pauses_while_too_many_messages_wait(tmp_path: Path) -> None:
    async def flood(hub: Hub, total: int) -> None:
        async with client(hub, "p") as p:
            for n in range(total):
                await p.post("t", b"%d" % n + bytes(2000), 1)
            await p.drain(SECONDS)

    total = 3000
    few: dict[str, Any] = {
        "session": SessionOptions(clean_start=False),
        "limits": Limits(queued_incoming=10),
    }
    async with hub_of(config(tmp_path)) as hub, client(hub, "c", **few) as c:
        await c.subscribe("t")
        await flood(hub, total)
        # One read brings more than ten; but not all of them.
        assert len(c.messages) < total
        got = [await asyncio.wait_for(c.messages.__anext__(), SECONDS) for _ in range(total)]
        assert [int(m.payload[:-2000]) for m in got] == list(range(total))
