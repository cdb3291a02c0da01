"""A storage that replays the changes of another one equals it, whatever was changed and wherever the replay stopped."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.hub.errors import RefusedError, StorageError
from headwater_host.hub.storage import Change, Limits, Store, backlog
from tests.host.hub_changes import Changes
from tests.host.hub_storage import NOW, put, store_at, synced

LIMITS = Limits(ids=15, tries=2, topic_messages=8, full="drop", age=5.0, ids_age=3.0, changes=10_000)


def exported(store: Store) -> str:
    return "\n".join(store.export())


async def replay(leader: Store, follower: Store, at_once: int, most: int = 1 << 62) -> None:
    """Apply what the follower does not have, in pieces."""
    while most > 0 and (some := leader.changes(follower.seq, min(at_once, most))):
        for change in some:
            follower.apply(change)
        most -= len(some)
    await synced(follower)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 32), st.integers(50, 300))
def test_a_follower_equals_its_leader(seed: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(follow(Path(folder), random.Random(seed), steps))


async def follow(folder: Path, chance: random.Random, steps: int) -> None:
    leader = Store.open(folder / "leader.db", LIMITS)
    follower = Store.open(folder / "follower.db", LIMITS, following=True)
    candidate = Store.open(folder / "candidate.db", LIMITS, following=True)
    changes = Changes(leader, chance)
    for _ in range(steps):
        changes.step()
        if chance.random() < 0.2:
            await synced(leader)
            changes.take()
        if chance.random() < 0.1:
            await replay(leader, follower, chance.randrange(1, 30), chance.randrange(1, 60))
        if chance.random() < 0.02:
            await follower.close()
            follower = Store.open(folder / "follower.db", LIMITS, following=True)
        if chance.random() < 0.02:
            await leader.close()
            leader = Store.open(folder / "leader.db", LIMITS)
            changes.reopened(leader)
    await synced(leader)
    await replay(leader, follower, 7)
    await replay(leader, candidate, 10_000)
    assert follower.seq == leader.seq == candidate.seq
    assert exported(follower) == exported(leader)
    assert exported(candidate) == exported(leader)
    # A hub that reads the leader's file has the same in memory, and each of them can lead.
    await leader.close()
    leader = Store.open(folder / "leader.db", LIMITS)
    assert live(follower) == live(candidate) == live(leader)
    await follower.close()
    follower = Store.open(folder / "follower.db", LIMITS)
    assert live(follower) == live(leader)
    candidate.lead()
    assert dict(backlog(candidate)) == dict(backlog(follower)) == dict(backlog(leader))
    for topic in leader.topics.values():
        for group in topic.groups:
            for queue in range(len(topic.queues)):
                taken = leader.take(group, topic.name, queue, 99)
                assert follower.take(group, topic.name, queue, 99) == taken
                assert candidate.take(group, topic.name, queue, 99) == taken
    for store in (leader, follower, candidate):
        await store.close()


def live(store: Store) -> object:
    """What the memory holds, except for what only a leader has."""
    return (
        {
            topic.name: (topic.number, topic.count, topic.bytes, [q.after(0, 999) for q in topic.queues])
            for topic in store.topics.values()
        },
        {
            topic.name: {g: [p.through for p in ps] for g, ps in topic.groups.items()}
            for topic in store.topics.values()
        },
        (store.topics.count, store.topics.bytes, store.topics.queues, store.topics.places),
        sorted(store.names.match("#")),
        store.retained,
        store.retained_bytes,
        sorted(store.sessions.clients.items()),
        sorted(store.sessions.all(), key=lambda session: session.client),
        store.sessions.last_process,
        list(store._seen._order),
    )


async def test_a_trimmed_message_stays_retained_until_it_is_cleared(tmp_path: Path) -> None:
    async with (
        store_at(tmp_path / "leader.db", Limits(topic_messages=1, ids=2)) as leader,
        follower_at(tmp_path / "early.db") as early,
        follower_at(tmp_path / "late.db") as late,
    ):
        leader.register("t")
        put(leader, "t", 1, b"one", retain=True)
        for n in range(2, 6):
            put(leader, "t", n)
        await synced(leader)
        await replay(leader, early, 2)
        assert early.retained["t"].payload == b"one"
        assert early.retained == leader.retained
        put(leader, "t", 6, retain=True)
        for n in range(7, 10):
            put(leader, "t", n)
        await synced(leader)
        await replay(leader, early, 2)
        await replay(leader, late, 2)
        assert not early.retained
        assert exported(early) == exported(late) == exported(leader)


@pytest.mark.parametrize("limit", range(1, 6))
async def test_messages_of_a_deleted_topic_hide_no_others(tmp_path: Path, limit: int) -> None:
    """Dead letters have no remembered id of their own, so that a piece of them is empty."""
    limits = Limits(tries=1)
    async with store_at(tmp_path / "leader.db", limits) as leader:
        leader.register("t")
        leader.attach("g", "t")
        for n in range(6):
            put(leader, "t", n)
        await synced(leader)
        seqs = [one.message.seq for one in leader.take("g", "t", 0, 9)]
        assert leader.give_back("g", "t", 0, seqs, time_ns=NOW) == seqs
        for n in range(6, 9):
            put(leader, "t", n)
        await synced(leader)
        leader._removal.sweep = lambda: None  # type: ignore[method-assign]
        leader.unregister("$dead/t")
        await synced(leader)
        async with follower_at(tmp_path / "follower.db") as follower:
            await replay(leader, follower, limit)
            assert exported(follower) == exported(leader)
            assert len(follower.topics["t"].queues[0]) == 3


async def test_a_piece_of_changes_names_the_end_of_its_transaction(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader.db") as leader:
        ends = []
        for n in range(5):
            leader.register(f"t{n}")
            leader.register(f"u{n}")
            put(leader, f"t{n}", n)
            put(leader, f"u{n}", 10 + n)
            await synced(leader)
            ends.append(leader.durable)
        for after in range(leader.seq):
            for limit in (1, 2, 3, 100):
                some = leader.turns_after(after, limit)
                last = some.changes[-1].seq
                assert some.turn == min(end for end in ends if end >= last)
        assert leader.turns_after(leader.seq, 5).changes == []


async def test_a_change_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with follower_at(tmp_path / "follower.db") as follower:
        follower.apply(Change(1, "register", (1, "t", 2)))
        for change in (
            Change(1, "register", (5, "u", 1)),
            Change(2, "trim", (9, 0, 1)),
            Change(2, "position", ("g", 1, 7, 1)),
            Change(2, "session", ()),
            Change(2, "astonish", ()),
        ):
            with pytest.raises(StorageError, match=r"does not (come after|fit)"):
                follower.apply(change)


async def test_a_follower_gives_only_reserved_process_numbers(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader.db") as leader, follower_at(tmp_path / "follower.db") as follower:
        assert leader.sessions.process("a") == 1
        first = leader.sessions.reserve(2)
        assert leader.sessions.process("b") == first + 2
        with pytest.raises(RefusedError, match="no process numbers left"):
            follower.sessions.process("")
        assert follower.sessions.is_short
        follower.sessions.lend(first, first + 1)
        assert [follower.sessions.process(name) for name in ("a", "a")] == [first, first + 1]


@contextlib.asynccontextmanager
async def follower_at(path: Path) -> AsyncIterator[Store]:
    store = Store.open(path, following=True)
    try:
        yield store
    finally:
        await store.close()
