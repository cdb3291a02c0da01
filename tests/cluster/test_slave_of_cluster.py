"""A slave with its own SQLite file follows the leader of a cluster on PostgreSQL, whichever hub that is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater_host.client.fmq import Client
from headwater_host.hub import site
from headwater_host.hub.cluster.status import status
from headwater_host.hub.config import ClusterConfig, HubConfig, Listener, ReplicationConfig
from headwater_host.hub.replication.administration import REPLICATION
from headwater_host.hub.replication.lineage import Lineage, new_ident
from headwater_host.hub.replication.rejoining import rejoin
from headwater_host.hub.replication.slaves import Slaves
from headwater_host.hub.service import Hub
from headwater_host.hub.site import Site
from headwater_host.hub.storage import Limits, Store
from tests.cluster.hubs import SECONDS, client_of, free_port, leader_of, leading, member_of
from tests.waiting import until
from tools.broker import HOST
from tools.postgres import DATABASE, USER, PostgreSql

pytestmark = pytest.mark.needs_postgresql


class World:
    """Hubs ``a`` and ``b`` on one database, and their slave ``c``."""

    def __init__(self, url: str, folder: Path, limits: Limits):
        self.ports = {name: free_port() for name in "abc"}
        self.folder = folder
        addresses = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        common: dict[str, Any] = {"limits": limits}
        self.configs: dict[str, HubConfig] = {}
        for name, port in self.ports.items():
            replication = ReplicationConfig(name, addresses, "a", 0)
            more = (
                {"storage": folder / "c.db"}
                if name == "c"
                else {"storage": url, "cluster": ClusterConfig(addresses[name], 2.0, "none")}
            )
            listener = (Listener(port=port),)
            self.configs[name] = HubConfig(listeners=listener, replication=replication, **common, **more)
        self.members: list[Hub] = []
        self.slave: Hub | None = None

    @property
    def site(self) -> Site:
        assert self.slave is not None
        assert isinstance(self.slave.member, Site)
        return self.slave.member

    async def start_slave(self) -> None:
        self.slave = Hub(self.configs["c"])
        await self.slave.start()

    async def stop_slave(self) -> None:
        slave, self.slave = self.slave, None
        if slave is not None:
            await slave.stop()

    async def leader(self) -> Store:
        return (await leader_of(self.members)).broker.store

    async def equal(self) -> None:
        """The slave has everything of the hub that leads, and equals it."""
        store = await self.leader()
        await until(
            lambda: self.site.is_following and self.site.store.durable == store.durable == store.seq,
            seconds=SECONDS,
        )
        assert list(self.site.store.export()) == list(store.export())

    async def call(self, name: str, **asked: object) -> dict[str, Any]:
        async with Client("127.0.0.1", self.ports[name], identifier="$slave/operator") as client:
            found = json.loads(await client.call(REPLICATION, json.dumps(asked).encode(), timeout=SECONDS))
        assert isinstance(found, dict)
        return found


@contextlib.asynccontextmanager
async def world(url: str, folder: Path, limits: Limits | None = None) -> AsyncIterator[World]:
    found = World(url, folder, limits or Limits())
    try:
        for name in "ab":
            hub = Hub(found.configs[name])
            found.members.append(hub)
            await hub.start()
        await found.start_slave()
        yield found
    finally:
        await found.stop_slave()
        for hub in found.members:
            await hub.stop()


def slaves_of(hub: Hub) -> Slaves:
    found = member_of(hub)._slaves
    assert found is not None
    return found


async def test_a_slave_follows_whichever_hub_of_a_cluster_leads(tmp_path: Path, database: str) -> None:
    async with world(database, tmp_path) as hubs, client_of(hubs.members, "p") as client:
        for n in range(20):
            await client.publish(f"t{n % 3}", b"%d" % n, 1, retain=n % 5 == 0)
        await hubs.equal()
        async with Client("127.0.0.1", hubs.ports["c"]) as reader:
            await reader.subscribe("live/#")
            await client.publish("live/1", b"more", 1)
            got = await asyncio.wait_for(reader.messages.__anext__(), SECONDS)
            assert got.payload == b"more"
        # A client that writes at the slave is sent to the hub that leads.
        async with Client("127.0.0.1", hubs.ports["c"], reconnect=True, timeout=SECONDS) as writer:
            await writer.publish("t0", b"by way of the slave", qos=1)
        for n in range(3):
            leader = await leader_of(hubs.members)
            with psycopg.connect(database, autocommit=True) as db:
                if n % 2:
                    db.execute("UPDATE leader SET epoch = epoch + 1, turn = 0, holder = '', length_ms = 0")
                else:
                    epoch = member_of(leader).lease.epoch
                    db.execute("SELECT pg_notify('headwater_hub_handover', %s)", (str(epoch),))
            takeovers = sum(member_of(hub).takeovers for hub in hubs.members)
            await until(
                lambda n=takeovers: sum(member_of(hub).takeovers for hub in hubs.members) > n,  # type: ignore[misc]
                seconds=SECONDS,
            )
            await client.publish("t1", b"after %d" % n, 1)
            await hubs.equal()
        # Each takeover is a start of one epoch.
        found = await hubs.call("c")
        assert (found["role"], found["epoch"], found["lag"]) == ("slave", 1, 0)
        assert len(json.loads(found["lineage"])) == 4
        assert found["leader"] == member_of(await leader_of(hubs.members)).lease.advertise


async def test_a_slave_that_was_away_gets_a_snapshot_of_the_database(tmp_path: Path, database: str) -> None:
    async with (
        world(database, tmp_path, Limits(changes=20)) as hubs,
        client_of(hubs.members, "p") as client,
    ):
        await client.publish("t", b"first", 1)
        await hubs.equal()
        await hubs.stop_slave()
        jobs = await client.subscribe("t", group="g")
        for n in range(60):
            await client.publish("t", b"%d" % n, 1)
        store = await hubs.leader()
        store.trim(store.age.now())
        await until(lambda: store.followed > 0, seconds=SECONDS)
        await hubs.start_slave()
        await hubs.equal()
        assert slaves_of(await leader_of(hubs.members)).snapshots == 1
        # From here on it gets changes.
        await client.unsubscribe(jobs)
        await client.publish("t", b"last", 1)
        await hubs.equal()
        assert slaves_of(await leader_of(hubs.members)).snapshots == 1


async def test_the_hubs_of_a_cluster_step_down_for_a_promoted_slave(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "HERALD", 0.5)
    async with world(database, tmp_path) as hubs, client_of(hubs.members, "p") as client:
        await client.publish("t", b"1", 1)
        await hubs.equal()
        ident = new_ident()
        await hubs.call("c", command="fence", epoch=2, ident=ident)
        await hubs.call("c", command="promote", epoch=2, ident=ident)
        await until(lambda: hubs.site.is_leader, seconds=SECONDS)
        # It tells the others.
        await until(lambda: not leading(hubs.members), seconds=SECONDS)
        await until(
            lambda: all("promoted to epoch 2" in hub.health() for hub in hubs.members), seconds=SECONDS
        )
        for hub in hubs.members:
            await hub.stop()
        hubs.members = [Hub(hubs.configs[name]) for name in "ab"]
        for hub in hubs.members:
            await hub.start()
        await until(
            lambda: all("promoted to epoch 2" in hub.health() for hub in hubs.members), seconds=SECONDS
        )
        assert not leading(hubs.members)
        cluster = hubs.configs["a"].cluster
        assert cluster is not None
        found = await asyncio.to_thread(status, database, cluster)
        assert (found["leader"], "promoted to epoch 2" in found["problem"]) == ("", True)
        async with Client("127.0.0.1", hubs.ports["c"], timeout=SECONDS) as other:
            await other.publish("t", b"2", 1)


async def test_a_slave_keeps_what_a_failover_to_an_asynchronous_standby_lost(
    tmp_path: Path, postgresql: Callable[..., PostgreSql]
) -> None:
    server = postgresql()
    standby = server.standby("one")
    url = f"postgresql://{USER}@{HOST}:{server.port},{HOST}:{standby.port}/{DATABASE}"
    try:
        async with world(url, tmp_path) as hubs, client_of(hubs.members, "p") as client:
            await client.publish("t", b"kept", 1)
            await hubs.equal()
            last = f"SELECT max(seq) >= {hubs.site.store.seq} FROM turns"
            while await asyncio.to_thread(standby.sql, last) != "t":
                await asyncio.sleep(0.05)
            await asyncio.to_thread(standby.kill)
            for n in range(3):
                await client.publish("t", b"lost %d" % n, 1)
            await hubs.equal()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(standby.start)
            await asyncio.to_thread(standby.promote)
            # More than was lost, so that the numbers of changes alone say nothing.
            for n in range(20):
                await client.publish("t", b"new %d" % n, 1)
            await until(
                lambda: "which this leader does not have" in hubs.site.health(),
                seconds=SECONDS,
                what="noticed",
            )
            leader = member_of(await leader_of(hubs.members)).lease.advertise
            name = next(one for one in "ab" if leader.endswith(str(hubs.ports[one])))
            history = Lineage.parse((await hubs.call(name))["lineage"])
            await hubs.stop_slave()
            found = await rejoin(tmp_path / "c.db", name, history)
            assert found.messages == {"t": 3}
            await hubs.start_slave()
            await hubs.equal()
    finally:
        standby.remove()
