"""Hubs that follow a leader over TCP: roles, redirects, commits by slaves, promotion, the return of an old leader."""

import asyncio
import base64
import json
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.client.fmq import Client, SessionOptions
from headwater_host.errors import ClientError
from headwater_host.fmq import address
from headwater_host.hub import frames, site
from headwater_host.hub.errors import StorageError
from headwater_host.hub.replication.lineage import Lineage, new_ident
from headwater_host.hub.replication.promotion import most_advanced, plan
from headwater_host.hub.replication.rejoining import rejoin
from headwater_host.hub.storage import Limits
from tests.host.hub_client import new_id
from tests.host.hub_sites import Sites, sites
from tests.rows import each_row
from tests.waiting import until


async def publish(hubs: Sites, name: str, topic: str, *payloads: bytes) -> None:
    async with Client("127.0.0.1", hubs.ports[name], timeout=60) as client:
        for payload in payloads:
            await client.publish(topic, payload, qos=1)


def stored(hubs: Sites, name: str, topic: str = "t") -> list[bytes]:
    store = hubs[name].store
    return [message.payload for message in store.read(topic, 0, 0, 100)] if topic in store.topics else []


async def test_slaves_follow_and_serve_what_writes_nothing(tmp_path: Path) -> None:
    async with sites(tmp_path) as hubs:
        await hubs.start()
        await hubs.connected("a", "b", "c")
        await publish(hubs, "a", "t", b"one")
        await hubs.equal("a", "b", "c")
        async with Client("127.0.0.1", hubs.ports["b"]) as reader:
            assert not hubs["b"].is_leader
            await reader.subscribe("t")
            await publish(hubs, "a", "t", b"two", b"three")
            got = [await asyncio.wait_for(reader.messages.__anext__(), 60) for _ in range(2)]
            assert [message.payload for message in got] == [b"two", b"three"]
        # A client that writes is sent to the leader, which gets what is not acknowledged.
        async with Client("127.0.0.1", hubs.ports["b"], reconnect=True, timeout=60) as writer:
            await writer.publish("t", b"four", qos=1)
        async with Client("127.0.0.1", hubs.ports["c"], timeout=60) as member:
            with pytest.raises(ClientError, match=hubs.at("a")):
                await member.subscribe("t", group="g")
        await hubs.equal("a", "b", "c")
        assert stored(hubs, "b")[-1] == b"four"
        assert hubs["b"].store.sessions.last_process == hubs["a"].store.sessions.last_process
        # A session is the leader's: the client is sent there.
        kept = SessionOptions(clean_start=False)
        async with Client("127.0.0.1", hubs.ports["c"], identifier="kept", session=kept):
            await until(lambda: "kept" in hubs["a"].store.sessions)
        await hubs.equal("a", "b", "c")
        status = await hubs.call("a")
        assert (status["role"], status["sync"], sorted(status["connected"])) == ("leader", 2, ["b", "c"])
        status = await hubs.call("c")
        assert (status["role"], status["leader"], status["lag"]) == ("slave", hubs.at("a"), 0)


async def test_nothing_is_acknowledged_until_enough_slaves_have_it(tmp_path: Path) -> None:
    async with sites(tmp_path) as hubs:
        await hubs.start("a", "b")
        publishing = asyncio.create_task(publish(hubs, "a", "t", b"one"))
        await hubs.connected("a", "b")
        await until(lambda: hubs["a"].status()["slaves"]["b"] == hubs["a"].store.durable)
        assert not publishing.done()
        await hubs.start("c")
        await publishing
        await hubs.equal("a", "b", "c")
        # The same after a restart of the leader.
        await hubs.stop("a", "c")
        await hubs.start("a")
        publishing = asyncio.create_task(publish(hubs, "a", "t", b"two"))
        await hubs.connected("a", "b")
        await until(lambda: hubs["a"].status()["slaves"]["b"] == hubs["a"].store.durable)
        assert not publishing.done()
        await hubs.start("c")
        await publishing


async def test_a_promotion_loses_nothing_and_the_old_leader_steps_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "HERALD", 0.5)
    async with sites(tmp_path) as hubs:
        await hubs.start()
        await publish(hubs, "a", "t", b"one", b"two")
        await hubs.equal("a", "b", "c")
        await hubs.stop("a")
        ident = new_ident()
        for name in "bc":
            assert (await hubs.call(name, command="fence", epoch=2, ident=ident))["fence"] == 2
        with pytest.raises(ClientError, match="epoch 2 is promised already"):
            await hubs.call("c", command="fence", epoch=2, ident="another")
        with pytest.raises(ClientError, match="has not promised"):
            await hubs.call("c", command="promote", epoch=2, ident="another")
        await hubs.call("b", command="promote", epoch=2, ident=ident)
        await until(lambda: hubs["b"].is_leader)
        await hubs.connected("b", "c")
        publishing = asyncio.create_task(publish(hubs, "b", "t", b"three"))
        await until(lambda: hubs["b"].status()["slaves"]["c"] == hubs["b"].store.durable)
        # Two of two slaves confirm, so the old leader has to return as a slave.
        assert not publishing.done()
        await hubs.start("a")
        await until(lambda: hubs["a"].deposed == 2, "the new leader tells the old one")
        await until(lambda: not hubs["a"].is_leader and hubs["a"].health() != "")
        assert (await hubs.call("a"))["role"] == "deposed"
        assert not publishing.done()
        await hubs.stop("a")
        # It wrote the number of its start, which no slave confirmed.
        history = Lineage.parse((await hubs.call("b"))["lineage"])
        lost = await rejoin(hubs.path("a"), "b", history)
        assert lost.changes >= 1
        assert not lost.messages
        assert lost.tail is not None
        assert next(json.loads(line)["kind"] for line in lost.tail.open()) == "counter"
        assert lost.before is not None
        assert lost.before.exists()
        await hubs.start("a")
        await publishing
        await hubs.equal("b", "a", "c")
        assert stored(hubs, "a") == [b"one", b"two", b"three"]
        # The roles outlive restarts.
        await hubs.stop()
        await hubs.start()
        await hubs.connected("b", "a", "c")


async def test_a_forced_promotion_keeps_the_lost_tail_of_the_old_leader(tmp_path: Path) -> None:
    async with sites(tmp_path, "ab", sync=0) as hubs:
        await hubs.start()
        await publish(hubs, "a", "t", b"one")
        await hubs.equal("a", "b")
        await hubs.stop("b")
        await publish(hubs, "a", "t", b"only at a")
        await hubs.stop("a")
        await hubs.start("b")
        found = {"b": await hubs.call("b")}
        with pytest.raises(StorageError, match="--force"):
            plan(found, 2, 0)
        chosen = plan(found, 2, 0, force=True)
        await hubs.call("b", command="fence", epoch=chosen.epoch, ident=chosen.ident)
        await hubs.call("b", command="promote", epoch=chosen.epoch, ident=chosen.ident)
        await until(lambda: hubs["b"].is_leader)
        await publish(hubs, "b", "t", b"two")
        history = Lineage.parse((await hubs.call("b"))["lineage"])
        lost = await rejoin(hubs.path("a"), "b", history)
        assert lost.messages == {"t": 1}
        assert lost.tail is not None
        kept = [json.loads(line) for line in lost.tail.open()]
        assert [base64.b64decode(one["payload"]) for one in kept if one["kind"] == "message"] == [
            b"only at a"
        ]
        await hubs.start("a")
        await hubs.connected("b", "a")
        await hubs.equal("b", "a")
        assert stored(hubs, "a") == [b"one", b"two"]
        # What continues the leader's history is not touched.
        await hubs.stop("a")
        again = await rejoin(hubs.path("a"), "b", history)
        assert (again.changes, again.tail, again.before) == (0, None, None)


STATUS = {"role": "slave", "epoch": 3, "fence": 0, "seq": 10, "lineage": '[[3,"x",0]]'}


@each_row(
    "hubs, sync, slaves, safe",
    [
        (3, 2, 1, True),
        (3, 2, 2, True),
        (3, 1, 1, False),
        (3, 1, 2, True),
        (5, 3, 1, False),
        (5, 3, 2, True),
        (5, 1, 3, False),
        (5, 1, 4, True),
        (2, 1, 1, True),
        (2, 0, 1, False),
        (3, 0, 2, False),
    ],
)
def test_a_promotion_fences_enough_slaves(hubs: int, sync: int, slaves: int, safe: bool) -> None:
    found = dict.fromkeys("bcdef"[:slaves], STATUS)
    forced = plan(found, hubs, sync, force=True)
    assert forced.epoch == 4
    assert (forced.risk == "") == safe
    if safe:
        assert plan(found, hubs, sync).slaves == forced.slaves
    else:
        with pytest.raises(StorageError, match="--force"):
            plan(found, hubs, sync)
    with pytest.raises(StorageError, match="'a' leads epoch 3: stop it first"):
        plan(found | {"a": STATUS | {"role": "leader"}}, hubs, sync)
    fenced = {"b": STATUS, "c": STATUS | {"seq": 11}, "d": STATUS | {"seq": 99, "lineage": '[[2,"w",0]]'}}
    assert most_advanced(fenced) == "c"
    # A leader that was restored from a backup has begun again after change 9, and 10 and 11 were others.
    fenced["d"] = STATUS | {"seq": 10, "lineage": '[[3,"x",0],[3,"y",9]]'}
    assert most_advanced(fenced) == "d"
    # Another promotion had made this one a leader; the fence has ended that.
    fenced["b"] = STATUS | {"role": "deposed", "lineage": '[[3,"x",0],[4,"z",10]]', "seq": 12}
    assert most_advanced(fenced) == "d"
    assert plan({"b": STATUS | {"fence": 8}}, 2, 1).epoch == 9


async def test_a_slave_that_was_away_for_long_gets_a_snapshot(tmp_path: Path) -> None:
    async with sites(tmp_path, "ab", sync=0, limits=Limits(changes=10)) as hubs:
        await hubs.start("a")
        await publish(hubs, "a", "t", *(b"%d" % n for n in range(60)))
        store = hubs["a"].store
        store.trim(store.age.now())
        await until(lambda: store.followed > 0)
        await hubs.start("b")
        await hubs.connected("a", "b")
        await hubs.equal("a", "b")
        assert hubs["a"]._slaves is not None
        assert hubs["a"]._slaves.snapshots == 1


async def test_slaves_are_listed(tmp_path: Path) -> None:
    async with sites(tmp_path, "ab", sync=0) as hubs:
        await hubs.start()
        await hubs.connected("a", "b")
        reader, writer = await asyncio.open_connection("127.0.0.1", hubs.ports["a"])
        writer.write(frames.framed(spec.AUTH << 4, new_id(spec.AUTH), b""))
        writer.write(frames.framed(spec.SLAVEOF << 4 | spec.REG, new_id(spec.SLAVEOF), b""))
        data = b""
        wanted = address.encode(("127.0.0.1", hubs.ports["b"]))
        while wanted not in data:
            more = await asyncio.wait_for(reader.read(1000), 60)
            assert more
            data += more
        writer.close()
