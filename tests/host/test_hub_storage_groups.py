"""The hub's storage: consumer groups, and what is full."""

import pytest

from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage import DEAD, Limits, Store
from headwater_host.hub.storage import store as storage
from tests.host.hub_storage import (
    BOTH_ENGINES,
    NOW,
    SECOND,
    Place,
    ident,
    put,
    queue_ids,
    rows_in,
    store_at,
    synced,
    taken,
)

pytestmark = BOTH_ENGINES

# -- consumer groups ---------------------------------------------------------------------------------------------------


async def test_groups_get_every_message_each_on_its_own(place: Place) -> None:
    async with store_at(place) as store:
        store.register("t")
        assert store.attach("g", "t")
        assert not store.attach("g", "t")
        store.attach("h", "t")
        seqs = [put(store, "t", n) for n in range(6)]
        await synced(store)
        assert taken(store, limit=4) == seqs[:4]
        assert taken(store, "h") == seqs
        for seq in (seqs[0], seqs[2]):
            assert store.ack("g", "t", 0, seq)
        assert not store.ack("g", "t", 0, seqs[0])
        for seq in seqs[:5]:
            store.ack("h", "t", 0, seq)
        await synced(store)
        # The slowest consumer decides what stays.
        assert queue_ids(store) == [ident(n) for n in range(1, 6)]
    async with store_at(place) as store:
        first, _, third, *rest = [one.seq for one in store.read("t", 0, 0, 9)]
        assert taken(store, limit=2) == [first, third]
        assert taken(store) == rest
        assert taken(store, "h") == [rest[-1]]
        store.detach("g", "t")
        assert not taken(store)
        assert queue_ids(store) == [ident(5)]
    async with store_at(place) as store:
        assert list(store.topics["t"].groups) == ["h"]
        assert queue_ids(store) == [ident(5)]


async def test_a_group_begins_with_the_oldest_message_or_now(place: Place) -> None:
    async with store_at(place) as store:
        store.register("t")
        put(store, "t", 1)
        store.attach("all", "t")
        store.attach("new", "t", from_now=True)
        put(store, "t", 2)
        store.register("t", 3)
        put(store, "t", 3, process=2)
    async with store_at(place) as store:
        assert len(taken(store, "all")) == 2
        assert len(taken(store, "new")) == 1
        assert len(taken(store, "all", queue=2)) == len(taken(store, "new", queue=2)) == 1


async def test_what_comes_back_goes_out_first_and_in_the_end_to_the_dead_letters(place: Place) -> None:
    limits = Limits(tries=3, topics=1)
    async with store_at(place, limits) as store:
        store.register("t")
        store.attach("g", "t")
        seqs = [put(store, "t", n, b"%d" % n, tags=("x",), qos=1) for n in range(4)]
        await synced(store)
        assert taken(store, limit=3) == seqs[:3]
        assert not store.give_back("g", "t", 0, [seqs[2], seqs[1], seqs[3], 99], time_ns=NOW)
        assert not store.give_back("g", "t", 0, [seqs[1]], time_ns=NOW)  # is waiting already
        assert [(one.message.seq, one.tries) for one in store.take("g", "t", 0, 9)] == [
            (seqs[1], 1), (seqs[2], 1), (seqs[3], 0)
        ]  # fmt: skip
        store.ack("g", "t", 0, seqs[2])
        assert not store.give_back("g", "t", 0, [seqs[1]], time_ns=NOW)
        store.ack("g", "t", 0, seqs[0])
    async with store_at(place, limits) as store:
        old, last = store.read("t", 0, 0, 9)[0].seq, store.read("t", 0, 0, 9)[-1].seq
        assert [(one.message.seq, one.tries) for one in store.take("g", "t", 0, 9)] == [(old, 2), (last, 0)]
        store.rewind("g", "t", 0)
        assert [(one.message.seq, one.tries) for one in store.take("g", "t", 0, 9)] == [(old, 2), (last, 0)]
        assert store.give_back("g", "t", 0, [old], time_ns=NOW + 5) == [old]
        store.ack("g", "t", 0, last)
        assert not taken(store)
        assert store.dead == 1
        assert DEAD + "t" in store.names
    async with store_at(place, limits) as store:
        assert not store.topics["t"].count
        (dead,) = store.read(DEAD + "t", 0, 0, 9)
        assert dead[1:] == (ident(1), DEAD + "t", 0, ("x",), b"1", 1, False, NOW + 5)
        store.attach("g", DEAD + "t")
        for _ in range(9):  # there is nowhere to go from here
            assert taken(store, topic=DEAD + "t") == [dead.seq]
            assert not store.give_back("g", DEAD + "t", 0, [dead.seq], time_ns=NOW)


@pytest.mark.settings(Limits(age=100, tries=2))
async def test_what_was_trimmed_meanwhile_does_not_come_back(store: Store) -> None:
    store.register("t")
    store.attach("g", "t")
    old, new = put(store, "t", 1), put(store, "t", 2, time_ns=NOW + 200 * SECOND)
    await synced(store)
    assert taken(store) == [old, new]
    store.give_back("g", "t", 0, [old, new], time_ns=NOW)
    store.trim(NOW + 200 * SECOND)
    assert taken(store) == [new]
    assert not store.ack("g", "t", 0, old)
    store.rewind("g", "t", 0)
    store.rewind("g", "t", 0)
    assert taken(store) == [new]
    put(store, "t", 3, time_ns=NOW + 200 * SECOND)
    store.trim(NOW + 900 * SECOND)
    assert not store.give_back("g", "t", 0, [new], time_ns=NOW)  # the last try, but there is nothing to bury
    assert not taken(store)
    assert not store.damaged
    assert not store.dead
    await synced(store)
    assert not store.topics["t"].count


@pytest.mark.parametrize("stuck", [1, 400])
async def test_what_an_acknowledgement_costs_does_not_depend_on_what_is_unacknowledged(
    store: Store, stuck: int
) -> None:
    async def turns(store: Store, first: int, count: int) -> int:
        """So many turns with 50 messages each: the bytes that were written about the group."""
        begin = store.seq
        for turn in range(count):
            for n in range(50):
                put(store, "t", first + 50 * turn + n)
            await synced(store)
            for seq in taken(store):
                store.ack("g", "t", 0, seq)
            await synced(store)
        return sum(len(body) for _, _, body in store._engine.changes_after(begin, 100_000, 1 << 30))

    store.register("t")
    store.attach("g", "t")
    for n in range(stuck):
        put(store, "t", n)
    await synced(store)
    assert len(taken(store, limit=stuck)) == stuck
    await turns(store, 1_000, 1)
    few = await turns(store, 2_000, 5)
    await turns(store, 3_000, 40)
    assert await turns(store, 6_000, 5) < few * 1.2
    assert rows_in(store, "opened") == stuck
    assert rows_in(store, "positions") == 1


async def test_acknowledged_in_whatever_order_each_message_is_written_about_once(store: Store) -> None:
    store.register("t")
    store.attach("g", "t")
    seqs = [put(store, "t", n) for n in range(40)]
    await synced(store)
    assert taken(store) == seqs
    begin = store.seq
    order = [*reversed(seqs[:20]), *seqs[21::2], *seqs[20::2]]
    for seq in order:
        store.ack("g", "t", 0, seq)
        await synced(store)
    written = store.changes(begin, 10_000)
    opened = [change.values[3] for change in written if change.kind == "open"]
    closed = [seq for change in written if change.kind == "close" for seq in change.values[3]]
    assert sorted(opened) == sorted(closed) == [*seqs[:19], *seqs[20:-1:2]]
    assert rows_in(store, "opened") == 0
    assert not len(store.topics["t"].queues[0])


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [Limits(topic_messages=3), Limits(topic_bytes=3 * 68), Limits(bytes=3 * 68)]
)
async def test_a_full_topic(place: Place, limits: Limits) -> None:
    async with store_at(place, limits) as store:
        """Nobody waits for the messages: the oldest leaves."""
        store.register("t", 2)
        for n in range(5):
            put(store, "t", n, b"x", process=n)
        await synced(store)
        assert queue_ids(store, queue=0) + queue_ids(store, queue=1) == [
            ident(2, 2),
            ident(4, 4),
            ident(3, 3),
        ]
        assert not store.dropped
    async with store_at(place, limits) as store:
        """A consumer has them still to come: no more is taken."""
        store.attach("g", "t")
        with pytest.raises(RefusedError, match="no room in 't'") as caught:
            put(store, "t", 5, b"x", process=5)
        assert caught.value.reason == 0x97
        for seq in taken(store):
            store.ack("g", "t", 0, seq)
        await synced(store)
        put(store, "t", 5, b"x", process=5)
        put(store, "t", 6, b"x", process=6)
        with pytest.raises(RefusedError, match="no room"):
            put(store, "t", 7, b"x", process=7)
    async with store_at(place, Limits(**vars(limits) | {"full": "drop"})) as store:
        assert store.topics["t"].count == 3
        put(store, "t", 7, b"x", process=7)
        assert store.topics["t"].count == 3
        assert store.dropped == 1


@pytest.mark.settings(Limits(topic_bytes=500))
async def test_a_message_that_never_fits(store: Store) -> None:
    store.register("t")
    put(store, "t", 1, b"x")
    with pytest.raises(RefusedError, match="no room in 't'"):
        put(store, "t", 2, b"x" * 1000)


@pytest.mark.settings(Limits(age=100))
async def test_old_messages_leave(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.register("t", 2)
    store.attach("g", "t")
    for n in range(10):
        put(store, "t", n, process=n, time_ns=NOW + n * SECOND)
    await synced(store)
    monkeypatch.setattr(storage, "_TRIMMED", 2)
    calls = [store.trim(NOW + 105 * SECOND) for _ in range(4)]
    assert calls == [True, True, False, False]
    assert queue_ids(store, queue=0) == [ident(n, n) for n in (6, 8)]
    assert queue_ids(store, queue=1) == [ident(n, n) for n in (5, 7, 9)]
    assert store.dropped == 5


@pytest.mark.settings(Limits(waiting=1000))
async def test_what_waits_for_the_disk_is_bounded(store: Store) -> None:
    store.register("t")
    put(store, "t", 1, b"x" * 900)  # the first is always taken
    with pytest.raises(RefusedError, match="waits for the disk"):
        put(store, "t", 2, b"x" * 900)
    await synced(store)
    put(store, "t", 2, b"x" * 900)
