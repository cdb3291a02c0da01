"""The hub's storage: what each call does, at once, after a commit, and after the file is opened again."""

import asyncio

import pytest

from headwater_host.hub.errors import RefusedError, StorageError
from headwater_host.hub.storage import Change, Limits, Message, Store, Subscription, backlog, statistics
from headwater_host.hub.storage.records import HELD
from tests.host.hub_storage import (
    BOTH_ENGINES,
    NOW,
    SECOND,
    Place,
    ident,
    put,
    queue_ids,
    store_at,
    synced,
    taken,
)

pytestmark = BOTH_ENGINES

# -- topics ------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_registered_and_grows_but_never_shrinks(place: Place) -> None:
    async with store_at(place) as store:
        assert store.register("t", 2)
        assert not store.register("t", 2)
        assert store.register("t", 5)
        with pytest.raises(RefusedError, match="has 5 queues") as caught:
            store.register("t", 4)
        assert caught.value.reason == 0x83
        for bad in (0, -1, 1025):
            with pytest.raises(RefusedError, match="1 to 1024 queues"):
                store.register("t", bad)
        with pytest.raises(RefusedError):
            store.register("a/+")
    async with store_at(place) as store:
        assert len(store.topics["t"].queues) == 5


async def test_topics_are_bounded(place: Place) -> None:
    async with store_at(place, Limits(topics=2)) as store:
        store.register("a")
        store.register("b")
        with pytest.raises(RefusedError, match="2 topics") as caught:
            store.register("c")
        assert caught.value.reason == 0x97
        assert list(store.names.match("#")) == ["a", "b"]
        store.unregister("a")
        store.register("c")
    async with store_at(place, Limits(topics=1)) as store:
        assert sorted(store.names.match("+")) == ["b", "c"]


async def test_queues_and_the_places_of_groups_are_bounded(place: Place) -> None:
    def full(store: Store) -> None:
        """There is room for one more queue, and for three more places, and no more than that."""
        with pytest.raises(RefusedError, match="there are 5 queues already") as caught:
            store.register("c", 2)
        assert caught.value.reason == 0x97
        with pytest.raises(RefusedError, match="there are 5 queues"):
            store.register("a", 5)
        assert "c" not in store.names
        assert store.attach("h", "a")
        with pytest.raises(RefusedError, match="groups are in 6 queues already"):
            store.attach("i", "b")
        with pytest.raises(RefusedError, match="groups are in 6 queues already"):
            store.register("a", 4)
        store.detach("h", "a")

    limits = Limits(all_queues=6, places=6)
    async with store_at(place, limits) as store:
        store.register("a", 1)
        store.attach("g", "a")
        store.register("a", 3)
        store.register("b", 2)
        store.register("c", 1)
        store.attach("g", "c")
        store.unregister("c")
        full(store)
    async with store_at(place, limits) as store:
        full(store)


async def test_an_unregistered_topic_is_gone_with_all_that_is_in_it(place: Place) -> None:
    async with store_at(place) as store:
        store.register("t", 2)
        store.attach("g", "t")
        put(store, "t", 1, b"x", retain=True)
        await synced(store)
        put(store, "t", 2, b"y")
        assert store.unregister("t")
        assert not store.unregister("t")
        assert store.topics.bytes == 0
        with pytest.raises(RefusedError, match="no topic 't'") as caught:
            put(store, "t", 3)
        assert caught.value.reason == 0x90
        store.register("t")
        put(store, "t", 4, b"z")
        assert not store.take("g", "t", 0, 10)
        assert not store.ack("g", "t", 0, 1)
    async with store_at(place) as store:
        assert queue_ids(store) == [ident(4)]
        assert not store.topics["t"].groups
        assert not store.retained


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_message_is_handed_out_when_it_is_on_the_disk(store: Store) -> None:
    commits: list[list[Message]] = []
    store.on_commit = commits.append
    store.register("t", 3)
    store.attach("g", "t")
    seq = put(store, "t", 1, b"x", process=7, tags=("a", "é"), qos=2, retain=True)
    assert store.durable < seq
    assert not store.take("g", "t", 1, 10)
    assert not store.read("t", 1, 0, 10)
    await synced(store)
    assert store.durable >= seq
    (delivery,) = store.take("g", "t", 1, 10)
    message = delivery.message
    assert message == (seq, ident(1, 7), "t", 1, ("a", "é"), b"x", 2, True, NOW)
    assert delivery.tries == 0
    assert store.retained["t"] == message
    await asyncio.sleep(0)
    assert commits == [[message]]


async def test_one_turn_is_one_transaction(store: Store) -> None:
    store.register("t")
    store.attach("g", "t")
    for n in range(1000):
        put(store, "t", n)
    await synced(store)
    assert store.commits == 1
    for seq in taken(store, limit=1000):
        store.ack("g", "t", 0, seq)
    await synced(store)
    assert store.commits == 2
    assert not store.topics["t"].count


async def test_after_calls_in_order_and_at_once_when_there_is_nothing_to_wait_for(store: Store) -> None:
    order: list[int] = []
    store.after(lambda: order.append(0))
    assert order == [0]
    store.register("t")
    store.after(lambda: order.append(1))
    await asyncio.sleep(0)  # the first transaction is under way
    store.after(lambda: order.append(2))
    put(store, "t", 1)
    store.after(lambda: order.append(3))
    assert order == [0]
    await synced(store)
    assert order == [0, 1, 2, 3]


async def test_a_call_back_that_fails_stops_nobody(store: Store) -> None:
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
    store.register("t")
    store.after(lambda: 1 // 0)  # type: ignore[arg-type]
    await synced(store)
    put(store, "t", 1)
    await synced(store)
    assert [type(one) for one in said] == [ZeroDivisionError]


async def test_an_id_is_stored_once_even_when_its_message_is_gone(place: Place) -> None:
    async with store_at(place) as store:
        store.register("t")
        store.attach("g", "t")
        assert put(store, "t", 1)
        assert not put(store, "t", 1)
        await synced(store)
        for seq in taken(store):
            store.ack("g", "t", 0, seq)
        await synced(store)
        assert not store.topics["t"].count
        assert store.duplicates == 1
    async with store_at(place) as store:
        assert not put(store, "t", 1)
        assert put(store, "t", 2)


async def test_the_window_of_ids(place: Place) -> None:
    limits = Limits(ids=3, ids_age=100)
    async with store_at(place, limits) as store:
        store.register("t")
        for n in range(4):
            put(store, "t", n)
        await synced(store)
    async with store_at(place, limits) as store:
        assert put(store, "t", 0)  # forgotten as the fourth came; now 1 is
        assert not put(store, "t", 2)
        assert put(store, "t", 1)
        await synced(store)
        put(store, "t", 9, time_ns=NOW + 50 * SECOND)
        await synced(store)
        store.trim(NOW + 101 * SECOND)
        await synced(store)
    async with store_at(place, limits) as store:
        assert not put(store, "t", 9)
        assert put(store, "t", 1)


async def test_retained_messages(place: Place) -> None:
    limits = Limits(retained=2 * HELD + 115)
    async with store_at(place, limits) as store:
        for name in ("a", "b", "c"):
            store.register(name)
        put(store, "a", 1, b"old", retain=True)
        put(store, "a", 2, b"new", retain=True)
        put(store, "b", 3, b"x", retain=True)
        put(store, "b", 4, b"", retain=True)
        put(store, "c", 5, b"not retained")
        with pytest.raises(RefusedError, match="no room for more retained"):
            put(store, "c", 6, b"x" * 110, retain=True)
        put(store, "a", 7, b"y" * 100, retain=True)
        put(store, "a", 8, b"newest", retain=True)
    async with store_at(place, limits) as store:
        assert {name: message.payload for name, message in store.retained.items()} == {"a": b"newest"}
        put(store, "c", 9, b"x" * 100, retain=True)
        put(store, "a", 10, b"", retain=True)
    async with store_at(place, limits) as store:
        assert list(store.retained) == ["c"]


async def test_what_is_not_in_memory_is_read(place: Place) -> None:
    async with store_at(place, Limits(cache=500)) as store:
        store.register("t")
        for n in range(50):
            put(store, "t", n, bytes([n]) * 10, tags=("x",) if n % 2 else ())
        await synced(store)
        await asyncio.sleep(0)
        assert len(store._cache) < 10
        assert [message.payload[0] for message in store.read("t", 0, 0, 100)] == list(range(50))
        middle = store.read("t", 0, 0, 100)[20].seq
        assert [message.payload[0] for message in store.read("t", 0, middle, 3)] == [21, 22, 23]
    async with store_at(place) as store:
        assert [message.tags for message in store.read("t", 0, 0, 2)] == [(), ("x",)]


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_process_numbers_are_never_given_twice(place: Place) -> None:
    async with store_at(place) as store:
        sessions = store.sessions
        assert [sessions.process(name) for name in ("a", "b", "a", "", "", "c")] == [1, 2, 1, 3, 4, 5]
        sessions.forget("c")
        sessions.forget("nobody")
    async with store_at(place) as store:
        assert store.sessions.clients == {"a": 1, "b": 2}
        assert [store.sessions.process(name) for name in ("c", "b", "")] == [6, 2, 7]
    async with store_at(place) as store:
        assert store.sessions.process("d") == 8


async def test_sessions_come_back(place: Place) -> None:
    about = {"user": "é", "will": {"topic": "t", "payload": "AA=="}, "expiry": 1.5}
    one, two = Subscription(1, "a/+", ("x", "y"), "b == 1", "g"), Subscription(2, "c")
    async with store_at(place) as store:
        sessions = store.sessions
        sessions.save("a", {})
        for subscription in (one, two, Subscription(3, "d")):
            sessions.subscribe("a", subscription)
        assert sessions.unsubscribe("a", 3)
        assert not sessions.unsubscribe("a", 3)
        assert not sessions.unsubscribe("nobody", 3)
        for n in range(3):
            sessions.hold("a", "received", ident(n))
        sessions.hold("a", "received", ident(2))
        sessions.hold("a", "released", ident(9))
        assert sessions.release("a", "received", ident(1))
        assert not sessions.release("a", "received", ident(1))
        assert not sessions.release("nobody", "received", ident(1))
        sessions.save("a", about)
        sessions.save("b", {})
        sessions.subscribe("b", one)
        sessions.hold("b", "received", ident(1))
        sessions.end("b")
        sessions.end("nobody")
    async with store_at(place) as store:
        (session,) = store.sessions.all()
        assert session is store.sessions.get("a")
        assert session.client == "a"
        assert session.about == about
        assert session.subscriptions == {1: one, 2: two}
        assert set(session.received) == {ident(0), ident(2)}
        assert set(session.released) == {ident(9)}
        store.sessions.save("b", {})
        assert len(store.sessions) == 2
    async with store_at(place) as store:
        again = store.sessions.get("b")
        assert again is not None
        assert not again.subscriptions
        assert not again.received


# -- numbers -----------------------------------------------------------------------------------------------------------


async def test_statistics(store: Store) -> None:
    store.register("t", 2)
    store.attach("g", "t")
    store.attach("h", "t")
    seqs = [put(store, "t", n, b"x" * 33, process=0) for n in range(6)]
    put(store, "t", 9, b"y" * 33, process=1, retain=True)
    put(store, "t", 9, process=1)
    assert statistics(store)["unwritten_bytes"] > 700
    await synced(store)
    taken(store)
    store.ack("g", "t", 0, seqs[0])
    store.ack("g", "t", 0, seqs[3])
    assert dict(backlog(store)) == {("t", "g"): 5, ("t", "h"): 7}
    assert statistics(store) == {
        "topics": 1, "messages": 7, "message_bytes": 700, "retained_messages": 1, "sessions": 0,
        "sequence": store.durable, "unwritten_bytes": 0, "write_error": 0, "commits_total": 1,
        "duplicates_total": 1, "dead_letters_total": 0, "dropped_total": 0, "damaged_total": 0,
    }  # fmt: skip


# -- following ---------------------------------------------------------------------------------------------------------


async def test_every_change_has_a_sequence_number_and_can_be_followed(store: Store) -> None:
    store.register("t")
    store.attach("g", "t")
    store.sessions.process("a")
    seqs = [put(store, "t", n, b"x") for n in range(3)]
    await synced(store)
    assert taken(store) == seqs
    store.ack("g", "t", 0, seqs[0])
    await synced(store)
    changes = store.changes(0, 100)
    assert [change.seq for change in changes] == list(range(1, store.seq + 1))
    assert [change.kind for change in changes] == [
        "register", "counter", "client", "seen", "message", "message", "position", "position", "trim"
    ]  # fmt: skip
    assert changes[0].values == (1, "t", 1)
    assert changes[3].values == (ident(0), NOW)
    assert changes[4].values[0].payload == b"x"
    assert changes[7].values == ("g", 1, 0, seqs[0])
    assert changes[8].values == (1, 0, seqs[0])
    for step in (1, 2, 4):
        followed, seq = [], 0
        while more := store.changes(seq, step):
            followed += more
            seq = more[-1].seq
        assert followed == changes


async def test_changes_are_kept_for_a_while(place: Place) -> None:
    async with store_at(place, Limits(changes=10)) as store:
        for n in range(1, 30):
            store.sessions.process(f"client {n}")
        await synced(store)
        store.trim(NOW)
        await synced(store)
    async with store_at(place, Limits(changes=10)) as store:
        assert store.seq == 59
        with pytest.raises(StorageError, match="up to 48 are not kept any more"):
            store.changes(47, 10)
        assert [change.seq for change in store.changes(48, 100)] == list(range(49, 60))


async def test_changes_are_read_a_few_bytes_at_a_time(store: Store) -> None:
    store.register("t")
    for n in range(12):
        put(store, "t", n, bytes(100_000), retain=n % 5 == 0)
        store.sessions.save("c", {"text": "x" * 90_000 + str(n)})
    put(store, "t", 90, bytes(500_000))
    put(store, "t", 91, tags=("x" * 400_000,))
    put(store, "t", 92)
    await synced(store)
    size, seq, found = 250_000, 0, []
    while some := store.turns_after(seq, 1000, size).changes:
        sizes = [_size(change) for change in some]
        assert sum(sizes) - max(sizes) < 2 * size
        found += some
        seq = some[-1].seq
    assert [change.seq for change in found] == list(range(1, store.seq + 1))
    assert [len(one.values[0].payload) for one in found if one.kind == "message"] == [
        *[100_000] * 12, 500_000, 0, 0
    ]  # fmt: skip


def _size(change: Change) -> int:
    first = change.values[0]
    return (
        len(first.payload + str(first.tags).encode())
        if isinstance(first, Message)
        else len(str(change.values))
    )
