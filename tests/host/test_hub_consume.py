"""The hub over real sockets: consumer groups."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.values import encode
from headwater_host.hub import groups
from headwater_host.hub.errors import StorageError
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits, Message
from tests.host.hub_client import ClientLimits, Got, Peer, config, hub_of, new_id, until


async def responses(peer: Peer, count: int, *, ack: bool = True) -> list[Got]:
    found: list[Got] = []
    while len(found) < count:
        got = await peer.next()
        if got.kind == spec.ACK and got.id[0] >> 4 == spec.PUBLISH:
            continue  # of the test's own messages
        assert got.kind == spec.CONSUMERESP, got
        found.append(got)
        if ack:
            peer.ack(got.id)
    return found


async def fill(peer: Peer, topic: str, count: int, queues: int = 1, first: int = 0) -> list[bytes]:
    """Messages 0, 1, 2 … into queues 0, 1, 2 …"""
    idents = [
        peer.publish(topic, b"%d" % n, 1, ident=new_id(spec.PUBLISH, n % queues + queues))
        for n in range(first, first + count)
    ]
    for ident in idents:
        assert (await peer.answer(ident)).code == 0
    return idents


def payloads(found: list[Got]) -> list[int]:
    return [int(got.payload) for got in found]


async def test_a_group_gets_everything_from_the_oldest_on_once(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        two = await Peer.login(hub)
        sent = await fill(two, "t", 50)
        one = await Peer.login(hub)
        number = await one.subscribe("t", group="g")
        await one.ping()
        assert not one.got
        asked = one.consume(number)
        got = await responses(one, 50)
        assert [each.id for each in got] == sent
        assert {(each.correlation, each.topic) for each in got} == {(number, None)}
        sent = await fill(two, "t", 5)
        assert [each.id for each in await responses(one, 5)] == sent
        assert (await one.ask(spec.UNSUBSCRIBE, (number,))).code == 0
        assert (await one.answer(asked)).code == 0
        await one.ping()
    async with hub_of(config(tmp_path)) as hub:
        one = await Peer.login(hub)
        one.consume(await one.subscribe("+", group="g"))
        sent = await fill(one, "t", 1)
        (got_,) = await responses(one, 1)
        assert (got_.id, got_.topic) == (sent[0], "t")
        await one.ping()
        assert not one.got


async def test_groups_are_independent_also_in_one_client(hub: Hub) -> None:
    one = await Peer.login(hub)
    numbers = [await one.subscribe("t", group=group) for group in "gh"]
    for number in numbers:
        one.consume(number)
    (sent,) = await fill(one, "t", 1)
    got = await responses(one, 2, ack=False)
    assert {each.correlation for each in got} == set(numbers)
    one.ack(sent)
    one.ack(sent)
    await one.ping()
    await until(lambda: not hub.broker.store.topics["t"].count)


@pytest.mark.settings(clients=ClientLimits(window=4))
async def test_the_window(hub: Hub) -> None:
    one = await Peer.login(hub)
    cases = [(3, 3), (0, 4), (100, 4)]
    numbers = [await one.subscribe("t", group=f"g{asked}") for asked, _ in cases]
    await fill(one, "t", 20)
    for number, (asked, given) in zip(numbers, cases, strict=True):
        first = one.consume(number, asked)
        got = await responses(one, given, ack=False)
        assert payloads(got) == list(range(given))
        one.ack(got[0].id)
        assert payloads(await responses(one, 1, ack=False)) == [given]
        for _ in range(3):
            await one.ping()
        assert not one.got
        # Another CONSUME takes over: unacknowledged messages are redelivered.
        second = one.consume(number, 1)
        assert (await one.answer(first)).code == 0x8E
        assert payloads(await responses(one, 1, ack=False)) == [1]
        assert (await one.ask(spec.UNSUBSCRIBE, (number,))).code == 0
        assert (await one.answer(second)).code == 0


async def test_without_acknowledgement(hub: Hub) -> None:
    one = await Peer.login(hub)
    sent = await fill(one, "t", 1000)
    one.consume(await one.subscribe("t", group="g"), need_ack=False)
    assert [got.id for got in await responses(one, 1000, ack=False)] == sent
    await until(lambda: not hub.broker.store.topics["t"].count)


async def test_each_queue_has_one_consumer_and_its_order(hub: Hub) -> None:
    two = await Peer.login(hub)
    await two.ask(spec.REGISTER, (b"t", 4))
    peers = [await Peer.login(hub) for _ in range(3)]
    for peer in peers:
        peer.consume(await peer.subscribe("t", group="g"))
        await peer.ping()
    group = hub.broker.groups.by_name["g"]
    await until(lambda: sorted(len(member.lanes) for member in group.members) == [1, 1, 2])
    await fill(two, "t", 100, 4)
    seen: dict[int, list[int]] = {}
    for peer, member in zip(peers, group.members, strict=True):
        queues = {lane.queue for lane in member.lanes}
        got = payloads(await responses(peer, 25 * len(queues)))
        assert {n % 4 for n in got} == queues
        for n in got:
            seen.setdefault(n % 4, []).append(n)
    assert seen == {queue: list(range(queue, 100, 4)) for queue in range(4)}


async def test_a_queue_moves_when_nothing_on_it_is_open(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "PATIENCE", 1e9)
    one, two = await Peer.login(hub), await Peer.login(hub)
    await one.ask(spec.REGISTER, (b"t", 2))
    await fill(one, "t", 4, 2)
    one.consume(await one.subscribe("t", group="g"))
    first = await responses(one, 4, ack=False)
    two.consume(await two.subscribe("t", group="g"))
    await two.ping()
    await fill(one, "t", 4, 2, first=4)
    await two.ping()
    assert not two.got
    for got in first:
        one.ack(got.id)
    mine, others = payloads(await responses(one, 2)), payloads(await responses(two, 2))
    assert sorted([mine, others]) == [[4, 6], [5, 7]]


@pytest.mark.settings(clients=ClientLimits(redelivery=1000000.0))
async def test_a_queue_on_which_something_stays_open_is_not_held_up_by_another_consumer(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PATIENCE", 0.05)
    one, two = await Peer.login(hub), await Peer.login(hub)
    await one.ask(spec.REGISTER, (b"t", 2))
    await fill(one, "t", 2, 2)
    one.consume(await one.subscribe("t", group="g"), 100)
    first = await responses(one, 2, ack=False)
    two.consume(await two.subscribe("t", group="g"), 100)
    lanes = hub.broker.groups.by_name["g"].lanes.values()
    await until(lambda: any(lane.heir is not lane.owner for lane in lanes))
    for n in range(2, 22, 4):
        await fill(one, "t", 4, 2, first=n)
        # All of them come, and nobody else has what is of the same queue.
        assert sorted(payloads(await responses(one, 4, ack=n != 2))) == [*range(n, n + 4)]
    assert not two.got
    (moving,) = [lane for lane in lanes if lane.heir is not lane.owner]
    await until(lambda: len(moving.open) == 3)
    # It is waited for longer the next time.
    assert moving.patience == 0.1
    # When what was open then is acknowledged, and all that came after that, the queue moves.
    for got in first:
        one.ack(got.id)
    for opening in list(moving.open.values()):
        one.ack(opening.ident)
    await until(lambda: moving.owner is moving.heir)
    assert (moving.patience, moving.stuck) == (0.05, set())
    await fill(one, "t", 2, 2, first=22)
    assert len(await responses(one, 1)) == len(await responses(two, 1)) == 1
    assert not hub.broker.groups.draining


async def test_what_a_consumer_had_goes_to_another_when_it_dies(hub: Hub) -> None:
    one, two = await Peer.login(hub), await Peer.login(hub)
    sent = await fill(two, "t", 10)
    for peer in (one, two):
        peer.consume(await peer.subscribe("t", group="g"))
        await peer.ping()
    got = await responses(one, 10, ack=False)
    for each in got[::2]:
        one.ack(each.id)
    await one.ping()
    one.abort()
    assert [each.id for each in await responses(two, 5)] == sent[1::2]


async def test_redelivery_and_dead_letters(tmp_path: Path) -> None:
    settings = config(tmp_path, limits=Limits(tries=3), clients=ClientLimits(redelivery=0.05))
    async with hub_of(settings) as hub:
        one = await Peer.login(hub)
        (sent,) = await fill(one, "t", 1)
        dead = await Peer.login(hub)
        dead.consume(await dead.subscribe("$dead/t", group="g"))
        one.consume(await one.subscribe("t", group="g"))
        assert [got.id for got in await responses(one, 3, ack=False)] == [sent] * 3
        (got,) = await responses(dead, 1)
        assert (got.id, got.payload) == (sent, b"0")
        await one.ping()
        assert not one.got
        assert not hub.broker.store.topics["t"].count


@pytest.mark.settings(limits=Limits(tries=2))
async def test_a_lost_consumer_counts_a_try(hub: Hub) -> None:
    (sent,) = await fill(await Peer.login(hub), "t", 1)
    for _ in range(2):
        one = await Peer.login(hub)
        one.consume(await one.subscribe("t", group="g"))
        (got,) = await responses(one, 1, ack=False)
        assert got.id == sent
        one.abort()
    await until(lambda: hub.broker.store.dead == 1)


@pytest.mark.settings(limits=Limits(tries=2))
async def test_an_acknowledgement_with_a_reason_gives_back(hub: Hub) -> None:
    one = await Peer.login(hub)
    (sent,) = await fill(one, "t", 1)
    one.consume(await one.subscribe("t", group="g"))
    for _ in range(2):
        (got,) = await responses(one, 1, ack=False)
        assert got.id == sent
        one.send(spec.ACK, (0x80, b"cannot"), ident=got.id)
    await until(lambda: hub.broker.store.dead == 1)


async def test_tags_and_conditions_leave_out(hub: Hub) -> None:
    one = await Peer.login(hub)
    for n in range(600):
        one.publish("t", b"%d" % n, tags=("x",) if n % 100 == 0 else ())
    one.consume(await one.subscribe("t", ("x",), group="g"))
    assert payloads(await responses(one, 6)) == [0, 100, 200, 300, 400, 500]
    await until(lambda: not hub.broker.store.topics["t"].count)


async def test_topics_come_and_grow(hub: Hub) -> None:
    one, two = await Peer.login(hub), await Peer.login(hub)
    one.consume(await one.subscribe("#", group="g"))
    await one.ping()
    await fill(two, "new", 1)
    assert (await responses(one, 1))[0].topic == "new"
    await two.ask(spec.REGISTER, (b"new", 3))
    await fill(two, "new", 3, 3)
    assert sorted(payloads(await responses(one, 3))) == [0, 1, 2]
    assert (await one.ask(spec.CONSUME, (await one.subscribe("t"),))).code == 0x8F
    assert (await one.ask(spec.CONSUME, (7,))).code == 0x11


@pytest.mark.parametrize("topic", ["t", "t" * 251, "ü" * 126])
@pytest.mark.parametrize("hashed", [False, True], ids=["name", "hash"])
async def test_no_message_gets_longer_than_a_frame_may_be(tmp_path: Path, topic: str, hashed: bool) -> None:
    """A correlation stands before it, its name in the place of a hash, and at last ``$dead/``."""
    limit, room = 1000, 1000 - 32
    where = hash_of(topic) if hashed else topic.encode()
    # Of a hash's name the bytes count.
    front = len(encode(hash_of(topic) if hashed else topic))
    largest = room - max(front, len(topic.encode())) - 1
    async with hub_of(config(tmp_path, clients=ClientLimits(frame=limit), limits=Limits(tries=1))) as hub:
        one, two, dead = [await Peer.login(hub) for _ in range(3)]
        await one.ask(spec.REGISTER, (topic.encode(),))
        for size in (limit - front - 1, largest + 1):
            assert (await one.ask(spec.PUBLISH, (where, b"\xd0", bytes(size)), 2)).code == 0x95
        assert not hub.broker.store.topics[topic].count
        assert (await one.ask(spec.PUBLISH, (where, b"\xd0", bytes(largest)), 2)).code == 0
        ident = two.send(spec.CONSUME, (b"#", (), b"", b"g"), spec.ONCE | spec.NEEDACK)
        got = await two.answer_or_response(ident)
        assert (got.topic, len(got.payload)) == (topic, largest)
        # An id has up to 18 bytes, a subscription's number up to 9.
        assert got.size - len(ident) + 18 <= limit
        number = await dead.subscribe("$dead/#", group="g")
        dead.consume(number)
        two.send(spec.ACK, (0x80,), ident=got.id)
        got = await dead.next()
        assert (got.topic, len(got.payload)) == ("$dead/" + topic, largest)
        assert got.size - len(encode(number)) + 18 <= limit


@pytest.mark.parametrize("size", [1000 - 9, 1000 - 32 - 1])
@pytest.mark.settings(clients=ClientLimits(frame=1000))
async def test_a_will_that_would_get_too_long_is_refused(hub: Hub, size: int) -> None:
    peer = await Peer.open(hub)
    assert (await peer.auth("c", will=(b"t", 0, False, bytes(size - 8)))).code == (size > 970) * 0x95


@pytest.mark.settings(clients=ClientLimits(once=0.4))
async def test_once(hub: Hub) -> None:
    one = await Peer.login(hub)
    values = (b"t", (), b"", b"g")

    async def once(need_ack: bool = False) -> Got:
        return await one.answer_or_response(one.send(spec.CONSUME, values, spec.ONCE | need_ack))

    assert (await once()).code == 0x10
    await fill(one, "t", 3)
    got = await once()
    assert (got.payload, got.topic, got.correlation[0] >> 4) == (b"0", None, spec.CONSUME)
    got = await once(need_ack=True)
    assert got.payload == b"1"
    # It keeps the queue until it has acknowledged.
    assert (await once()).code == 0x10
    one.ack(got.id)
    assert (await once()).payload == b"2"
    waiting = one.send(spec.CONSUME, values, spec.ONCE)
    await fill(one, "t", 1)
    assert (await one.answer_or_response(waiting)).payload == b"0"
    assert (await one.ask(spec.CONSUME, (b"t", (), b"", b""), spec.ONCE)).code == 0x10
    await until(lambda: not hub.broker.groups.by_name)


async def test_a_queue_that_was_about_to_move_and_stays_goes_on(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PATIENCE", 1e9)
    one, two = await Peer.login(hub), await Peer.login(hub)
    await one.ask(spec.REGISTER, (b"t", 2))
    await fill(one, "t", 2, 2)
    one.consume(await one.subscribe("t", group="g"))
    await responses(one, 2, ack=False)
    two.consume(await two.subscribe("t", group="g"))
    lanes = hub.broker.groups.by_name["g"].lanes.values()
    await until(lambda: any(lane.heir is not lane.owner for lane in lanes))
    await fill(one, "t", 2, 2, first=2)
    (first,) = payloads(await responses(one, 1, ack=False))
    two.abort()
    (second,) = payloads(await responses(one, 1, ack=False))
    assert {first, second} == {2, 3}


async def test_messages_that_cannot_be_read_are_read_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = await Peer.login(hub)
    subscription = await peer.subscribe("t", group="g")
    for n in range(3):
        await peer.send_message("t", b"%d" % n)
    cache = hub.broker.store._cache
    read, failures = cache.read, [1, 2]

    def fail(topic: str, seqs: Iterable[int]) -> list[Message]:
        if failures:
            failures.pop()
            raise StorageError("the database does not answer")
        return read(topic, seqs)

    monkeypatch.setattr(cache, "read", fail)
    peer.consume(subscription)
    assert [(await peer.next()).payload for _ in range(3)] == [b"0", b"1", b"2"]
    assert not failures
