"""What FMQ's contract says of messages in the hub, over raw sockets: what no other test is about."""

import asyncio
from pathlib import Path

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.kinds import Pairs
from headwater_host.fmq.values import encode
from headwater_host.hub.frames import framed
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits
from tests.host.hub_client import ClientLimits, Got, Peer, config, hub_of, new_id, until
from tests.host.test_hub_server import stored
from tests.rows import each_row


async def pushed(peer: Peer, hub: Hub) -> list[Got]:
    """The messages that have come once everything is written and sent; those at QoS 1 are acknowledged."""
    found: list[Got] = []
    before = -1
    while len(found) > before:
        before = len(found)
        await peer.ping()
        await until(lambda: hub.broker.store.waiting == 0)
        await peer.ping()
        for got in peer.got:
            if got.kind == spec.PUBLISH:
                found.append(got)
                if got.flags & 2:
                    peer.ack(got.id)
        peer.got.clear()
    return found


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_more_queues_than_can_be_said(hub: Hub) -> None:
    peer = await Peer.login(hub)
    for count in (1 << 64, 10**5000):
        ident = new_id(spec.REGISTER, peer.process)
        peer.raw(framed(spec.REGISTER << 4, ident, encode("t") + encode(count)))
        assert (await peer.answer(ident)).code == 0x97
    await peer.ping()


@each_row(
    "name, to_publish, to_subscribe",
    [
        ("", 0x90, 0x8F),
        ("a/+", 0x90, 0),
        ("#", 0x90, 0),
        ("a/#/b", 0x90, 0x8F),
        ("a+", 0x90, 0x8F),
        ("a\0b", 0x90, 0x8F),
        ("$own", 0x90, 0),
        ("x" * 65536, 0x90, 0x8F),
        ("/".join("a" * 65), 0x90, 0x8F),
        ("/".join("a" * 64), 0, 0),
        ("x" * 65535, 0, 0),
        ("/", 0, 0),
        ("a//é", 0, 0),
    ],
    ids=lambda row: f"{row[0][:10]!r} of {len(row[0])}",
)
async def test_names_of_topics(hub: Hub, name: str, to_publish: int, to_subscribe: int) -> None:
    peer = await Peer.login(hub)
    for tags in ((), ("x",)):
        for qos in (0, 1):
            ident = peer.publish(name, b"", qos, tags=tags)
            if qos or to_publish:
                assert (await peer.answer(ident)).code == to_publish
    assert (await peer.ask(spec.REGISTER, (name.encode(),))).code == to_publish
    assert (await peer.ask(spec.SUBSCRIBE, (name.encode(),))).code == to_subscribe
    assert (await peer.ask(spec.UNREGISTER, (name.encode(),))).code == to_publish
    assert not hub.broker.store.topics


async def test_a_topic_that_grows(hub: Hub) -> None:
    peer = await Peer.login(hub)
    peer.consume(await peer.subscribe("t", group="g"))
    for queues in (1, 3):
        assert (await peer.ask(spec.REGISTER, (b"t", queues))).code == 0
        for n in range(3):
            await peer.send_message("t", b"%d%d" % (queues, n), ident=new_id(spec.PUBLISH, n))
    queued = [[m.payload for m in hub.broker.store.read("t", queue, 0, 9)] for queue in range(3)]
    assert queued == [[b"10", b"11", b"12", b"30"], [b"31"], [b"32"]]
    for _ in range(6):
        peer.ack((await peer.next()).id)
    await until(lambda: not hub.broker.store.topics["t"].count)


async def test_unregister_ends_consumers_of_this_topic_and_no_others(hub: Hub) -> None:
    one, two = await Peer.login(hub), await Peer.login(hub)
    numbers = [await one.subscribe(topic, group="g") for topic in ("t", "+", "other")]
    named, wild, other = (one.consume(number) for number in numbers)
    by_hash = await one.ask(spec.SUBSCRIBE, (hash_of("t"), (), b"", b"h"))
    hashed_ = one.consume(by_hash.values[1])
    once = one.send(spec.CONSUME, (b"t", (), b"", b"i"), spec.ONCE)
    await one.ping()
    assert (await two.ask(spec.UNREGISTER, (b"t",))).code == 0
    for ident in (named, hashed_, once):
        assert (await one.answer(ident)).code == 0x8F
    # It is not there any more: that this cannot be done changes nothing.
    again = one.consume(numbers[0])
    await one.ping()
    assert (await two.ask(spec.UNREGISTER, (b"t",))).code == 0x90
    await two.send_message("t", b"new")
    await two.send_message("other", b"x")
    got = [await one.next() for _ in range(2)]
    assert {each.payload for each in got} == {b"new", b"x"}
    await one.ping()
    assert not any(each.id in (again, wild, other) for each in one.got)


# -- retained messages -------------------------------------------------------------------------------------------------


async def test_retained_messages(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub)
        for qos in (0, 1, 2):
            await peer.send_message(f"t/{qos}", b"%d" % qos, qos, retain=True, tags=("x",) if qos else ())
        await peer.ask(spec.REGISTER, (b"t/3",))
        await peer.ask(spec.PUBLISH, (hash_of("t/3"), b"\xd0", b"3"), 1 << 1 | 1)
        for topic in ("t/4", "t/5"):
            await peer.send_message(topic, b"gone", retain=True)
        await peer.send_message("t/4", b"", 0, retain=True)
        await peer.ask(spec.UNREGISTER, (b"t/5",))
        # The same message again is no new one.
        ident = await peer.send_message("t/6", b"first", retain=True)
        await peer.send_message("t/6", b"second", retain=True)
        await peer.send_message("t/6", b"first", retain=True, ident=ident, dup=True)
        peer.abort()
    expected = {
        ("t/0", b"0", 1),
        ("t/1", b"1", 3),
        ("t/2", b"2", 5),
        ("t/3", b"3", 3),
        ("t/6", b"second", 3),
    }
    async with hub_of(config(tmp_path)) as hub:
        for clean in (True, False):
            peer = await Peer.login(hub, "a", clean=clean)
            await peer.subscribe("t/+")
            got = await pushed(peer, hub)
            assert {(each.topic, each.payload, each.flags) for each in got} == expected
            assert len(got) == len(expected)
            await peer.leave()
        peer = await Peer.login(hub)
        await peer.subscribe("t/+", ("x",), "topic != 't/2'")
        assert [each.payload for each in await pushed(peer, hub)] == [b"1"]
        peer.abort()


# -- tags and conditions -----------------------------------------------------------------------------------------------

_V5 = encode({"v": 5, "nested": {"v": 6}, "text": "5"})


@each_row(
    "tags, condition, sent, payload, gets",
    [
        (("a", "b"), "", ("b", "c", "a"), b"", True),
        (("a", "b"), "", ("a",), b"", False),
        (("a", "a"), "", ("a",), b"", True),
        ((), "a || b && !c", ("a", "c"), b"", True),
        ((), "(a || b) && !c", ("a", "c"), b"", False),
        ((), "v == 5", (), _V5, True),
        ((), "v == 6", (), _V5, False),
        ((), "text == 5", (), _V5, False),
        ((), "text == '5' && nested != 5", (), _V5, False),
        ((), "missing != 5", (), _V5, False),
        ((), "!(missing == 5)", (), _V5, True),
        ((), "v == 5", (), encode(Pairs([(1, 1), (True, 2), ("v", 5)])), True),
        ((), "v == 5", (), encode(Pairs([([], 1), ("v", 5)])), True),
        ((), "v == 5", (), _V5 + b"\0", False),
        ((), "v == 5", (), encode(["v", 5]), False),
        ((), "v == 5", (), _V5[:-1], False),
        ((), "topic == 't'", (), b"", True),
    ],
)
async def test_who_gets_a_message(
    hub: Hub, tags: tuple[str, ...], condition: str, sent: tuple[str, ...], payload: bytes, gets: bool
) -> None:
    peer = await Peer.login(hub)
    await peer.subscribe("t", tags, condition)
    peer.publish("t", payload, tags=sent)
    assert [got.payload for got in await pushed(peer, hub)] == [payload] * gets


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def test_what_is_published_around_a_subscribe_comes_once(hub: Hub) -> None:
    """All in one write, so in one commit: the retained message comes as such, what is behind SUBSCRIBE as it is."""
    for n, clean in enumerate((True, True, False)):
        peer = await Peer.login(hub, f"a{n}", clean=clean)
        await peer.ask(spec.REGISTER, (b"t",))
        peer.publish("t", b"before")
        peer.publish("t", b"kept", 1, retain=True)
        asked = peer.send(spec.SUBSCRIBE, (b"t",))
        peer.publish("t", b"behind", 1)
        assert (await peer.answer(asked)).code == 0
        assert [(got.payload, got.flags) for got in await pushed(peer, hub)] == [
            (b"kept", 3),
            (b"behind", 2),
        ]
        # Subscribed to anew it misses nothing, and retained messages come again, as in MQTT.
        peer.publish("t", b"between", 1)
        asked = peer.send(spec.SUBSCRIBE, (b"t",))
        peer.publish("t", b"last", 1)
        await peer.answer(asked)
        assert sorted(got.payload for got in await pushed(peer, hub)) == [b"between", b"kept", b"last"]
        await peer.leave()


async def test_a_group_is_given_up_and_the_broadcast_goes_on(hub: Hub) -> None:
    for clean in (True, False):
        peer = await Peer.login(hub, "a", clean=clean)
        await peer.subscribe("t")
        number = await peer.subscribe("t", group="g")
        assert (await peer.ask(spec.UNSUBSCRIBE, (number,))).code == 0
        peer.publish("t", b"1")
        assert [got.payload for got in await pushed(peer, hub)] == [b"1"]
        await peer.leave()


async def test_a_subscribe_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = config(tmp_path, limits=Limits(places=3))
    async with hub_of(settings) as hub:
        peer = await Peer.login(hub, "kept", clean=False)
        for topic in (b"t/1", b"t/2"):
            await peer.ask(spec.REGISTER, (topic, 2))
        for group in (b"g", b""):
            assert (await peer.ask(spec.SUBSCRIBE, (b"t/+", (), b"", group))).code == 0x97
        assert not any(topic.groups for topic in hub.broker.store.topics.values())
        peer.abort()
    async with hub_of(settings) as hub:
        assert hub.broker.store.sessions.get("kept") is not None
        assert not hub.broker.clients.by_name["kept"].subscriptions
        # There is room for what fits.
        peer = await Peer.login(hub)
        assert await peer.subscribe("t/1", group="g")
        peer.abort()


async def test_a_group_without_room_for_a_topic_goes_on_with_the_others(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path, limits=Limits(places=2))) as hub:
        one, two = await Peer.login(hub), await Peer.login(hub)
        number = await two.subscribe("#", group="g")
        one.consume(await one.subscribe("#", group="g"), need_ack=False)
        for n in range(4):
            await one.send_message(f"t/{n}", b"")
        for n in range(2):
            assert (await one.next()).topic == f"t/{n}"
        # Members come and go.
        two.consume(number, need_ack=False)
        await two.ping()
        one.abort()
        await until(lambda: len(hub.broker.groups.by_name["g"].members) == 1)
        await two.send_message("t/1", b"x")
        assert [(got.topic, got.payload) for got in [await two.next()]] == [("t/1", b"x")]


async def test_what_may_have_been_sent_by_a_hub_that_ended_has_dup(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub, "a", clean=False)
        await peer.subscribe("t")
        for qos in (1, 2, 0):
            peer.publish("t", b"%d" % qos, qos)
        assert [(await peer.next()).name for _ in range(2)]
        peer.abort()
    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub, "a", clean=False)
        peer.publish("t", b"new", 1)
        got = [each for each in [await peer.next() for _ in range(4)] if each.kind == spec.PUBLISH]
        flags = {each.payload: each.flags for each in got}
        assert flags.items() >= {b"1": 8 | 2, b"2": 8 | 4}.items()
        assert flags.get(b"0", 0) == 0
        assert flags.get(b"new", 2) == 2
        peer.abort()


async def test_more_may_be_retained_than_may_wait_otherwise(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path, clients=ClientLimits(unread=1000))) as hub:
        peer = await Peer.login(hub)
        for n in range(40):
            await peer.send_message(f"t/{n:02}", bytes(1000), retain=True)
        for clean in (True, False):
            one = await Peer.login(hub, "a", clean=clean)
            await one.subscribe("t/#")
            assert len(await pushed(one, hub)) == 40
            await one.leave()


async def test_what_is_retained_comes_although_the_hub_ends(tmp_path: Path) -> None:
    """To a session that is kept; what was answered does not come again, nor what is not retained any more."""
    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub)
        for n in range(20):
            await peer.send_message(f"t/{n:02}", b"%d" % n, 1 + n % 2, retain=True)
        one = await Peer.login(hub, "a", clean=False)
        await one.subscribe("t/#")
        got = [await one.next() for _ in range(16)]
        for each in got[:4]:
            one.send(spec.PUBREC if each.flags & 4 else spec.ACK, ident=each.id)
        await one.ping()
        answered = {each.payload for each in got[:4]}
        await peer.send_message("t/18", b"", retain=True)
        await peer.send_message("t/19", b"new", retain=True)
        for each_ in (peer, one):
            each_.abort()
    async with hub_of(config(tmp_path)) as hub:
        one = await Peer.login(hub, "a", clean=False)
        comes = {b"%d" % n for n in range(18)} - answered | {b"", b"new"}
        flags: dict[bytes, int] = {}
        while len(flags) < len(comes):
            each = await one.next()
            if each.kind == spec.PUBLISH:
                assert flags.setdefault(each.payload, each.flags & 9) == each.flags & 9
                one.send(spec.PUBREC if each.flags & 4 else spec.ACK, ident=each.id)
            elif each.kind == spec.PUBREL:
                one.send(spec.PUBCOMP, ident=each.id)
        assert flags == {payload: 8 if payload in (b"", b"new") else 9 for payload in comes}
        await one.ping()
        session = hub.broker.store.sessions.get("a")
        assert session is not None
        assert not session.retained
        one.abort()


# -- consuming ---------------------------------------------------------------------------------------------------------


async def test_once_waits_and_what_it_does_not_acknowledge_goes_to_the_group(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path, clients=ClientLimits(once=0.4, redelivery=0.05))) as hub:
        peer = await Peer.login(hub)
        values = (b"t", (b"x",), b"topic == 't'", b"g")
        began = asyncio.get_running_loop().time()
        assert (await peer.ask(spec.CONSUME, values, spec.ONCE)).code == 0x10
        assert asyncio.get_running_loop().time() - began >= 0.4
        sent = await peer.send_message("t", b"", tags=("x",))
        for _ in range(2):
            got = await peer.answer_or_response(peer.send(spec.CONSUME, values, spec.ONCE | spec.NEEDACK))
            assert (got.name, got.id) == ("CONSUMERESP", sent)


async def test_two_consumers_of_one_client_share(hub: Hub) -> None:
    peer = await Peer.login(hub)
    await peer.ask(spec.REGISTER, (b"t", 2))
    numbers = [await peer.subscribe(topic, group="g") for topic in ("t", "+")]
    for number in numbers:
        peer.consume(number)
    await peer.ping()
    for n in range(6):
        await peer.send_message("t", b"%d" % n, ident=new_id(spec.PUBLISH, 2 + n % 2))
    got: dict[int, list[bytes]] = {}
    for _ in range(6):
        each = await peer.next()
        got.setdefault(each.correlation, []).append(each.payload)
        # Only what has no wildcards is named by its subscription.
        assert each.topic == (None if each.correlation == numbers[0] else "t")
    assert got.keys() == set(numbers)
    assert sorted(got.values()) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


async def test_what_is_given_back_comes_before_what_is_new(hub: Hub) -> None:
    peer = await Peer.login(hub)
    number = await peer.subscribe("t", group="g")
    for n in range(5):
        await peer.send_message("t", b"%d" % n)
    peer.consume(number, 3)
    got = [await peer.next() for _ in range(3)]
    assert [each.payload for each in got] == [b"0", b"1", b"2"]
    peer.send(spec.ACK, (0x80,), ident=got[1].id)
    again = await peer.next()
    assert (again.payload, again.id) == (b"1", got[1].id)
    peer.ack(got[0].id)
    assert (await peer.next()).payload == b"3"


async def test_ids_are_remembered_by_their_number(tmp_path: Path) -> None:
    settings = config(tmp_path, limits=Limits(ids=3))
    async with hub_of(settings) as hub:
        peer = await Peer.login(hub)
        ids = [await peer.send_message("t", b"%d" % n, 1 + n % 2) for n in range(4)]
        peer.abort()
    async with hub_of(settings) as hub:
        peer = await Peer.login(hub)
        for n, ident in enumerate(ids[1:]):
            # At another QoS, and to another topic, it is the same message.
            await peer.send_message("t" if n else "u", b"again", 1 + n % 2, ident=ident, dup=True)
        assert stored(hub, "t") == [b"0", b"1", b"2", b"3"]
        assert stored(hub, "u") == []
        await peer.send_message("t", b"forgotten", ident=ids[0])
        assert stored(hub, "t")[-1] == b"forgotten"
        peer.abort()
