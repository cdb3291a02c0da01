"""A clock that is set makes nothing old in a hub, and a hub that is started again makes no id twice."""

import time
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host import lifetime
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits, Store
from tests.host.hub_client import Peer, config, hub_of, new_id, until
from tests.host.hub_storage import ident, synced
from tests.host.set_clocks import BEGIN, DAY, SECOND, SetClocks
from tests.host.sql import execute
from tests.host.test_hub_rpc import asked, call, reply, serving
from tests.rows import each_row

AGES = Limits(age=7 * 86_400, ids_age=86_400)


def put(store: Store, n: int, topic: str = "t") -> int:
    return store.publish(topic, ident(n), 1, b"%d" % n, qos=1, time_ns=store.age.now())


async def kept(store: Store) -> list[bytes]:
    """What is there after removing what is too old."""
    store.trim(store.age.now())
    await synced(store)
    return [message.payload for message in store.read("t", 0, 0, 100)]


async def session(path: Path, clocks: SetClocks, *, fresh: int = 0) -> tuple[list[bytes], bool]:
    """Open a storage, put a message if one is wanted, and close it: what was there, and whether id 1 was known."""
    store = Store.open(path, AGES, clocks)
    try:
        for topic in ("t", "other"):
            store.register(topic)
        found = await kept(store)
        if fresh:
            assert put(store, fresh)
        known = store.publish("other", ident(1), 1, b"", time_ns=store.age.now()) == 0 if found else False
        await synced(store)
        return found, known
    finally:
        await store.close()


@pytest.mark.parametrize("step", [8 * DAY, -8 * DAY, 400 * DAY], ids=["forward", "back", "a year"])
@pytest.mark.settings(Limits(tries=1))
async def test_a_hub_whose_clock_is_set_keeps_messages_and_ids(
    step: int, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real hub, with its own turns of the clock."""
    real, ahead = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead[0])
    peer = await Peer.login(hub)
    first = new_id(spec.PUBLISH, peer.process)
    await peer.send_message("t", b"kept", ident=first)
    # A dead letter as well.
    peer.consume(await peer.subscribe("other", group="g"))
    await peer.send_message("other", b"dead")
    peer.send(spec.ACK, (0x80,), ident=(await peer.next()).id)
    await until(lambda: "$dead/other" in hub.broker.registry.known)
    ahead[0] = step
    hub.broker._trimmed = -1e9
    await until(lambda: hub.broker._trimmed > 0)
    await peer.send_message("t", b"again", ident=first)
    store = hub.broker.store
    assert store.duplicates == 1
    for topic, payload in (("t", b"kept"), ("$dead/other", b"dead")):
        assert [message.payload for message in store.read(topic, 0, 0, 9)] == [payload]


async def test_what_is_old_by_the_time_that_passes_goes(tmp_path: Path) -> None:
    clocks = SetClocks()
    store = Store.open(tmp_path / "hub.db", AGES, clocks)
    store.register("t")
    put(store, 1)
    clocks.go(4 * DAY)
    put(store, 2)
    for step in (8 * DAY, -16 * DAY):
        clocks.step(step)
        assert await kept(store) == [b"1", b"2"]
    clocks.go(4 * DAY)
    assert await kept(store) == [b"2"]
    assert store.publish("t", ident(1), 1, b"", time_ns=store.age.now())
    await store.close()


async def test_a_hub_that_is_down_grows_older_with_its_machine(tmp_path: Path) -> None:
    clocks, path = SetClocks(), tmp_path / "hub.db"
    assert await session(path, clocks, fresh=1) == ([], False)
    clocks.step(100 * DAY)
    assert await session(path, clocks) == ([b"1"], True)
    clocks.go(6 * DAY)
    assert await session(path, clocks) == ([b"1"], False)
    clocks.go(2 * DAY)
    assert await session(path, clocks) == ([], False)


@each_row(
    "before, after, left",
    [(True, True, []), (True, False, [b"1"]), (False, True, [b"1"]), (False, False, [b"1"])],
)
async def test_a_machine_that_was_off(before: bool, after: bool, left: list[bytes], tmp_path: Path) -> None:
    """Eight days count when its clock was synchronized before and after, and else not."""

    clocks, path = SetClocks(synced=before), tmp_path / "hub.db"
    await session(path, clocks, fresh=1)
    clocks.reboot(8 * DAY, synced=after)
    assert await session(path, clocks) == (left, bool(left))


async def test_a_file_with_times_by_the_wall_clock_is_new_from_now_on(tmp_path: Path) -> None:
    """As earlier programs wrote it: nobody knows how old it is."""

    clocks, path = SetClocks(), tmp_path / "hub.db"
    await session(path, clocks, fresh=1)
    execute(path, "DELETE FROM counters WHERE name IN ('age', 'renewed')")
    clocks.step(-30 * DAY)
    clocks.go(30 * DAY)
    for passes in (0, 6 * DAY):
        clocks.go(passes)
        assert (await session(path, clocks))[0] == [b"1"]
    assert (await session(path, clocks, fresh=2))[0] == [b"1"]
    clocks.go(2 * DAY)
    assert (await session(path, clocks))[0] == [b"2"]
    assert execute(path, "SELECT time FROM messages")[0] == (BEGIN + 6 * DAY,)


async def test_age_time_is_written_now_and_then(tmp_path: Path) -> None:
    """With what is written anyway, and once an hour when nothing is."""

    clocks = SetClocks()
    store = Store.open(tmp_path / "hub.db", AGES, clocks)
    store.register("t")
    await synced(store)
    before = store.commits
    clocks.go(1800 * SECOND)
    await kept(store)
    assert store.commits == before
    clocks.go(1801 * SECOND)
    await kept(store)
    assert store.commits == before + 1
    # The power goes: what the file says is at most an hour old.
    ((text,),) = execute(tmp_path / "hub.db", "SELECT value FROM counters WHERE name = 'age'")
    clocks.reboot(DAY)
    assert lifetime.AgeClock(text, clocks).now() == BEGIN + 3601 * SECOND
    await store.close()


async def test_a_hub_makes_no_id_twice_though_its_clock_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: BEGIN)

    seen: list[bytes] = []
    for _ in range(18):
        async with hub_of(config(tmp_path)) as hub:
            responder, caller = await serving(hub, "a"), await Peer.login(hub)
            for _ in range(3):
                call(caller, "a")
                reply(responder, (await asked(responder)).id, b"x")
                seen.append((await caller.next()).id)
            for peer in (responder, caller):
                await peer.leave()
    assert len(set(seen)) == len(seen) == 54
