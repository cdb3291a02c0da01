"""A turn of the hub is bounded: whatever one client does, others get theirs in between."""

import asyncio
import itertools
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import frames, spec
from headwater.fmq.frames import tag_list
from headwater_host.hub import broadcast, connection, groups, metrics, turns
from headwater_host.hub.broadcast import Subscriber
from headwater_host.hub.connection import Connection
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits, Store, removal, writer
from headwater_host.hub.storage import store as storage
from headwater_host.hub.storage.positions import Positions
from headwater_host.hub.storage.sqlite import SqliteEngine
from tests.host.hub_client import Peer, new_id, until
from tests.host.hub_storage import ident, put, queue_ids, rows_in, store_at, synced


def counted(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    count: Callable[..., int],
    into: list[int] | None = None,
) -> list[int]:
    """What each call of a method comes to, by ``count`` of its arguments; counted first, because another thread sees
    what the call has done before the call returns."""
    counts = [] if into is None else into
    real = getattr(owner, name)

    def call(*args: Any, **more: Any) -> Any:
        counts.append(count(*args))
        return real(*args, **more)

    monkeypatch.setattr(owner, name, call)
    return counts


def added(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, entries: Sized) -> list[int]:
    """How many entries each call of a method adds to what ``counted`` returned."""
    counts: list[int] = []
    real = getattr(owner, name)
    before = 0

    def call(*args: Any, **more: Any) -> Any:
        nonlocal before
        try:
            return real(*args, **more)
        finally:
            counts.append(len(entries) - before)
            before = len(entries)

    monkeypatch.setattr(owner, name, call)
    return counts


def burst(topic: str, count: int, process: int, size: int = 4, qos: int = 1) -> bytes:
    """Messages, one behind the other."""
    buf = bytearray(256 + size)
    out = []
    for n in range(count):
        values = topic.encode(), tag_list([]), b"%08d" % n + bytes(size)
        end = frames.encode_frame(
            buf, 0, len(buf), spec.PUBLISH << 4 | qos << 1, new_id(spec.PUBLISH, process), values
        )
        out.append(bytes(buf[:end]))
    return b"".join(out)


async def test_a_burst_is_taken_in_turns_and_in_small_transactions(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counted(monkeypatch, SqliteEngine, "write", lambda _, written: len(written.messages))
    taken = counted(monkeypatch, Connection, "_dispatch", lambda *_: 1)
    turns = added(monkeypatch, Connection, "_parse", taken)
    sender, other = await Peer.login(hub), await Peer.login(hub)
    begun: list[int] = []
    waits: list[int] = []
    store = hub.broker.store
    (theirs,) = [one for one in hub.broker.connections if one.auth_id == other.auth_id]
    frame, send = hub.broker.frame, theirs.send

    def came(connection: Connection, f: Any, ident: bytes) -> None:
        if connection is theirs:
            begun.append(store.commits)
        frame(connection, f, ident)

    def answered(data: bytes) -> None:
        waits.append(store.commits - begun[-1])
        send(data)

    monkeypatch.setattr(hub.broker, "frame", came)
    monkeypatch.setattr(theirs, "send", answered)
    sender.raw(burst("t", 20_000, sender.process))
    count = sent = 0
    while count < 20_000:
        # One message after the other, while the burst is on its way.
        if sent == len(waits):
            other.publish("other", b"", 1)
            sent += 1
        assert (await sender.next()).code == 0
        count += 1
    await until(lambda: sent == len(waits))
    # The answer waits for the transaction that is being written, and for its own.
    assert max(waits) <= 2
    assert len(waits) > 5
    assert max(written) <= writer.TURN // writer.PER_MESSAGE + 10
    assert max(turns) <= connection._FRAMES


async def test_a_connection_that_only_asks_takes_turns_too(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    order = counted(monkeypatch, Connection, "_dispatch", lambda taker, _: id(taker))
    peers = [await Peer.login(hub), await Peer.login(hub)]
    ping = [bytes((spec.PINGREQ << 4,)) + new_id(spec.PINGREQ, peer.process) for peer in peers]
    order.clear()
    for one, peer in zip(ping, peers, strict=True):
        peer.raw(one * 3000)
    await until(lambda: len(order) == 6000)
    first = order[0]
    mixed = order[: order.index(next(each for each in order if each is not first))]
    assert len(mixed) <= connection._FRAMES
    for peer in peers:
        await peer.ping()


async def test_large_messages_share_a_transaction_by_their_size(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counted(
        monkeypatch,
        SqliteEngine,
        "write",
        lambda _, written: sum(len(one.payload) for one in written.messages),
    )
    sender = await Peer.login(hub)
    sender.raw(burst("t", 60, sender.process, 100_000))
    for _ in range(60):
        assert (await sender.next()).code == 0
    assert max(written) <= writer.TURN + 110_000


async def test_messages_are_removed_bit_by_bit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By UNREGISTER, by the acknowledgement that all others waited for, and by age."""
    monkeypatch.setattr(removal, "SWEPT", 50)
    gone = counted(monkeypatch, SqliteEngine, "write", lambda _, written: len(written.gone))
    store.register("t")
    store.attach("g", "t")
    for what in ("unregister", "acknowledge", "detach", "age"):
        seqs = [put(store, "t", n, what.encode()) for n in range(len(gone) * 1000, len(gone) * 1000 + 220)]
        store.attach("h", "t")
        await synced(store)
        store.take("g", "t", 0, 1000)
        for seq in seqs[1:]:
            store.ack("g", "t", 0, seq)
        await synced(store)
        assert sum(gone) == 0
        if what == "unregister":
            store.unregister("t")
            store.register("t")
            store.attach("g", "t")
            assert not queue_ids(store)
            await synced(store)
            assert sum(gone) > 0
            # The new topic is not touched.
            put(store, "t", 999_999)
        elif what == "detach":
            store.ack("g", "t", 0, seqs[0])
            store.detach("h", "t")
        elif what == "age":
            store.trim(10**19)
        else:
            store.detach("h", "t")
            store.ack("g", "t", 0, seqs[0])
        left = 1 if what == "unregister" else 0
        await until(lambda left=left: rows(store) == left)  # type: ignore[misc]
        assert max(gone) <= 50
        if left:
            assert queue_ids(store) == [ident(999_999)]
            (seq,) = [one.message.seq for one in store.take("g", "t", 0, 9)]
            store.ack("g", "t", 0, seq)
            await until(lambda: rows(store) == 0)
        gone.clear()


@pytest.mark.settings(Limits(changes=100, age=0))
async def test_ids_and_changes_are_forgotten_bit_by_bit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_TRIMMED", 50)
    store.register("t")
    for n in range(220):
        put(store, "t", n)
        store.sessions.process(f"client {n}")
    await synced(store)
    ids, kept, calls = [len(store._seen)], [len(store.changes(store._counters.followed, 10_000))], 1
    while store.trim(10**19):
        await synced(store)
        ids.append(len(store._seen))
        kept.append(len(store.changes(store._counters.followed, 10_000)))
        calls += 1
    assert max(one - two for one, two in itertools.pairwise(ids)) == 50
    assert max(one - two for one, two in itertools.pairwise(kept)) <= 50
    assert not len(store._seen)
    assert kept[-1] < 130
    assert calls > 5


def rows(store: Store) -> int:
    return rows_in(store, "messages")


async def test_what_was_still_to_be_removed_is_removed_by_the_next_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "SWEPT", 50)
    async with store_at(tmp_path / "hub.db") as store:
        store.register("t", 2)
        store.register("u")
        store.attach("g", "u")
        for n in range(300):
            put(store, "t", n, process=n)
            put(store, "u", 1000 + n)
        await synced(store)
        for one in store.take("g", "u", 0, 1000):
            store.ack("g", "u", 0, one.message.seq)
        store.unregister("t")
        await synced(store)
        assert rows(store) >= 300
    async with store_at(tmp_path / "hub.db") as store:
        assert list(store.topics) == ["u"]
        assert rows(store) >= 300
        # A replica is not shown messages of a topic that is gone.
        kinds = [change.kind for change in store.changes(0, 10_000)]
        assert len(kinds) == store.seq
        assert kinds.count("message") == store.topics["u"].count
        store.trim(1)
        await until(lambda: rows(store) == 0)
        assert rows_in(store, "leaving") == 0
        assert not store.topics["u"].count


@pytest.mark.settings(Limits(topic_messages=100))
async def test_a_full_topic_makes_room_by_what_everybody_is_done_with(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "SWEPT", 5)
    store.register("t")
    store.attach("g", "t")
    for n in range(100):
        put(store, "t", n)
    await synced(store)
    for one in store.take("g", "t", 0, 1000):
        store.ack("g", "t", 0, one.message.seq)
    await synced(store)
    assert store.topics["t"].count > 50
    for n in range(100, 200):
        put(store, "t", n)
    assert not store.dropped


async def test_a_message_for_many_clients_is_handed_out_in_turns(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "STEPS", 8)
    monkeypatch.setattr(broadcast, "_MOST", 3)
    put = counted(monkeypatch, Subscriber, "put", lambda *_: 1)
    each = added(monkeypatch, turns.Turns, "_run", put)
    peers = [await Peer.login(hub) for _ in range(12)]
    for peer in peers:
        await peer.subscribe("t")
    talker = await Peer.login(hub)
    for n in range(40):
        talker.publish("t", b"%d" % n, 1)
    for peer in peers:
        got: list[int] = []
        while len(got) < 40:
            one = await peer.next()
            got.append(int(one.payload))
            peer.ack(one.id)
        assert got == list(range(40))
    assert max(each) <= 8
    assert sum(each) == 12 * 40


async def test_messages_that_are_stored_already_are_answered_however_many(hub: Hub) -> None:
    """A publisher that retransmits a burst to a hub with nothing else to write."""
    peer = await Peer.login(hub)
    again = burst("t", 2000, peer.process)
    for duplicates in (0, 2000, 4000):
        peer.raw(again)
        for _ in range(2000):
            assert (await asyncio.wait_for(peer.next(), 60)).code == 0
        assert hub.broker.store.duplicates == duplicates
    assert hub.broker.store.topics["t"].count == 2000


async def test_a_filter_that_matches_many_topics_takes_turns(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group attaches to its topics, gets its lanes, and a session its retained messages, some in each turn."""
    monkeypatch.setattr(turns, "STEPS", 20)
    steps: list[int] = []
    for owner, name in ((Positions, "attach"), (groups.Group, "_give"), (Subscriber, "_add")):
        counted(monkeypatch, owner, name, lambda *_: 1, steps)
    each = added(monkeypatch, turns.Turns, "_run", steps)
    topics = [f"t/{n}" for n in range(500)]
    for topic in topics:
        hub.broker.registry.register(topic, 1)
    talker, grouped = await Peer.login(hub), await Peer.login(hub)
    kept, direct = await Peer.login(hub, "kept", clean=False), await Peer.login(hub)
    for n, topic in enumerate(topics):
        talker.publish(topic, b"%d" % n, retain=True)
    await talker.ping()
    asked = [
        peer.send(spec.SUBSCRIBE, (b"#", (), b"", group))
        for peer, group in ((grouped, b"g"), (kept, b""), (direct, b""))
    ]
    # Others are answered meanwhile, and what they publish is delivered behind what is retained.
    for n in range(20):
        await talker.send_message(topics[n], b"new")
    for peer, sent in zip((grouped, kept, direct), asked, strict=True):
        assert (await peer.answer(sent)).code == 0
    await talker.send_message("t/0", b"last")
    for peer in (kept, direct):
        got: list[bytes] = []
        while not got or got[-1] != b"last":
            one = await peer.next()
            got.append(one.payload)
            if one.flags & 6:
                peer.ack(one.id)
        retained = [payload for payload in got if payload not in (b"new", b"last")]
        assert got[: len(retained)] == retained
        assert len(retained) >= len(topics) - 20
        assert len(set(retained)) == len(retained)
    number = await grouped.subscribe("#", group="g")
    grouped.consume(number, 100)
    had: set[str | None] = set()
    while len(had) < len(topics):
        one = await grouped.next()
        had.add(one.topic)
        grouped.ack(one.id)
    # A step of a spread looks at 16 lanes.
    assert max(each) <= 20 * 16
    assert len([one for one in each if one]) > 3 * len(topics) / 20


async def test_the_metrics_page_takes_turns(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_LINES", 10)
    for n in range(1000):
        hub.broker.registry.register(f"t/{n}", 1)
        hub.broker.store.attach("g", f"t/{n}")
    took = [0]

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            took[0] += 1

    counting = asyncio.create_task(count())
    page = asyncio.create_task(metrics._page(hub.broker.metrics))
    await asyncio.sleep(0)
    # Topics may come and go meanwhile.
    hub.broker.registry.unregister("t/7")
    hub.broker.registry.register("another", 1)
    text = (await page).decode()
    counting.cancel()
    assert took[0] >= 100
    assert text.count("headwater_hub_backlog{") in (999, 1000)
