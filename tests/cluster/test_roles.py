"""Hubs on one PostgreSQL: following, leading, stepping down, handing over."""

import asyncio
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from headwater.mqtt import spec5
from headwater_host.client.fmq import SessionOptions
from headwater_host.hub.cluster import election
from headwater_host.hub.cluster.postgres_lease import ask_for_handover
from headwater_host.hub.errors import StorageError
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Store
from tests.cluster.hubs import SECONDS, client_of, hubs, leader_of, leading, member_of, stored
from tests.host.hub_client import Peer
from tests.waiting import until

pytestmark = pytest.mark.needs_postgresql


async def test_one_hub_leads_and_the_others_send_clients_to_it(database: str) -> None:
    async with hubs(database, 3) as started:
        leader = await leader_of(started)
        for hub in started:
            peer = await Peer.open(hub)
            answer = await peer.auth("c")
            if hub is leader:
                assert answer.code == 0
            else:
                assert answer.values == [spec5.SERVER_MOVED, member_of(leader).lease.advertise]
            found = await election.elect(hub.addresses[0], ("127.0.0.1", 1), 0, timeout=SECONDS)
            assert found.leader is not None
            assert found.leader[0] == leader.addresses[0]
            assert found.leader[1] >> 48 == member_of(leader).lease.epoch
            # The leader itself is agreed with.
            found = await election.elect(hub.addresses[0], leader.addresses[0], 0, timeout=SECONDS)
            assert found.agrees
            assert hub.health() == ""
            await peer.close()


def more_than(count: Callable[[], int], n: int) -> bool:
    return count() > n


def another_leads(started: list[Hub], old: Hub) -> bool:
    return leading(started) not in ([], [old])


async def test_a_handover_moves_clients_without_a_refused_message(database: str) -> None:
    async with hubs(database, 2) as started, client_of(started, "p") as client:
        leader = await leader_of(started)
        got: list[bytes] = []
        async with client_of(started, "s", session=SessionOptions(clean_start=False)) as reader:
            jobs = await reader.subscribe("t", group="g")
            await reader.consume(jobs, need_ack=True, window=8)

            async def read() -> None:
                async for message in reader.messages:
                    got.append(message.payload)
                    await message.ack()

            reading = asyncio.ensure_future(read())
            done = asyncio.Event()
            count = 0

            async def publish() -> None:
                nonlocal count
                while not done.is_set():
                    # A refusal would raise here.
                    await client.publish("t", b"%d" % count, 1)
                    count += 1

            publishing = asyncio.ensure_future(publish())
            for _ in range(3):
                before = count
                await until(partial(more_than, lambda: count, before + 20), seconds=SECONDS)
                await asyncio.to_thread(ask_for_handover, database, member_of(leader).lease.epoch)
                await until(partial(another_leads, started, leader), seconds=SECONDS)
                leader = await leader_of(started)
            before = count
            await until(lambda: count > before + 20, seconds=SECONDS)
            done.set()
            await publishing
            await until(lambda: len(set(got)) == count, seconds=SECONDS)
            firsts = list(dict.fromkeys(got))
            assert firsts == [b"%d" % n for n in range(count)]
            reading.cancel()


async def test_a_fenced_write_ends_leadership(database: str) -> None:
    async with hubs(database, 2) as started, client_of(started, "p") as client:
        await leader_of(started)
        await client.publish("t", b"1", 1)
        with psycopg.connect(database, autocommit=True) as db:
            # Another hub takes over while this one still trusts its lease.
            db.execute("UPDATE leader SET epoch = epoch + 1, turn = 0, holder = '', length_ms = 0")
        await client.publish("t", b"2", 1)
        await until(lambda: leading(started), seconds=SECONDS)
        assert sum(member_of(hub).takeovers for hub in started) >= 2
        await client.publish("t", b"3", 1)
        assert stored(await leader_of(started), "t") == [b"1", b"2", b"3"]


async def test_a_leader_that_stops_answers_and_sends_its_clients_on(database: str) -> None:
    async with hubs(database, 2) as started, client_of(started, "p") as client:
        leader = await leader_of(started)
        (other,) = (hub for hub in started if hub is not leader)
        await client.publish("t", b"0", 1)
        under = [asyncio.ensure_future(client.publish("t", b"%d" % n, 1)) for n in range(1, 200)]
        await asyncio.sleep(0)
        await leader.stop()
        started.remove(leader)
        await asyncio.gather(*under)
        # All may have been answered before; then the client moves a moment later.
        await until(lambda: client.server == member_of(other).lease.advertise, seconds=SECONDS)
        await client.publish("t", b"200", 1)
        assert stored(other, "t") == [b"%d" % n for n in range(201)]


async def test_a_hub_leads_again_and_again(database: str) -> None:
    async with hubs(database, 1) as started, client_of(started, "p") as client:
        for n in range(4):
            await client.publish(f"t{n}", b"%d" % n, 1)
            epoch = member_of(started[0]).lease.epoch
            with psycopg.connect(database, autocommit=True) as db:
                db.execute("UPDATE leader SET epoch = epoch + 1, turn = 0, holder = '', length_ms = 0")
            await client.publish(f"t{n}", b"again", 1)
            assert member_of(started[0]).lease.epoch > epoch
            assert stored(started[0], f"t{n}") == [b"%d" % n, b"again"]


async def test_a_follower_reads_less_at_once_from_a_slow_database(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, refused = Store.catch_up, 0

    def slow(self: Store, limit: int) -> bool:
        nonlocal refused
        if limit > 50:
            refused += 1
            raise StorageError("the database did not answer in time")
        return before(self, limit)

    async with hubs(database, 2) as started, client_of(started, "p") as client:
        leader = await leader_of(started)
        (other,) = (hub for hub in started if hub is not leader)
        monkeypatch.setattr(Store, "catch_up", slow)
        for n in range(300):
            await client.publish("t", b"%d" % n, 0)
        await client.publish("t", b"end", 1)
        await until(lambda: member_of(other).lease.seq() == leader.broker.store.seq, seconds=SECONDS)
        assert refused


async def test_a_follower_knows_new_topics_with_their_messages(database: str) -> None:
    """Topics and messages that it reads together, and more of them than it reads at once."""
    async with hubs(database, 2) as started, client_of(started, "p") as client:
        leader = await leader_of(started)
        (other,) = (hub for hub in started if hub is not leader)
        kept = member_of(other).store
        for n in range(600):
            await client.publish(f"topic/{n}", b"", 0)
            await client.publish(f"topic/{n}", b"%d" % n, 0)
        await client.publish("end", b"", 1)
        await until(lambda: member_of(other).lease.seq() == leader.broker.store.seq, seconds=SECONDS)
        # It has followed, and did not have to load everything again.
        assert member_of(other).store is kept
