"""The hub over real sockets: broadcast subscriptions."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.values import encode
from headwater_host.hub.access import ANY, Rule
from headwater_host.hub.broadcast import WINDOW
from headwater_host.hub.service import Hub
from tests.host.hub_client import ClientLimits, Got, Peer, config, hub_of, until

#: From one network nothing of this topic may be subscribed to.
ONE_NETWORK_LESS = (Rule(("SUBSCRIBE",), ("secret/#",), (), (ip_network("127.0.0.2"),)), Rule(allow=ANY))


async def messages(peer: Peer, count: int) -> list[Got]:
    """The next messages, answered to their end."""
    found: list[Got] = []
    while len(found) < count:
        got = await peer.next()
        if got.kind == spec.ACK and got.id[0] >> 4 == spec.PUBLISH:
            continue  # of the test's own messages
        if got.kind == spec.PUBREL:
            peer.send(spec.PUBCOMP, ident=got.id)
            continue
        assert got.kind == spec.PUBLISH, got
        found.append(got)
        qos = got.flags >> 1 & 3
        if qos:
            peer.send(spec.ACK if qos == 1 else spec.PUBREC, ident=got.id)
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_come_in_order_at_their_qos(hub: Hub, qos: int, clean: bool) -> None:
    one, two = await Peer.login(hub, "one", clean=clean), await Peer.login(hub)
    await one.subscribe("a/+")
    sent = [two.publish(f"a/{n % 3}", b"%d" % n, qos, tags=("x",)) for n in range(100)]
    two.publish("b", b"not this one", qos)
    got = await messages(one, 100)
    by_topic: dict[str, list[bytes]] = {}
    for each in got:
        by_topic.setdefault(each.topic or "", []).append(each.id)
    assert by_topic == {f"a/{n}": sent[n::3] for n in range(3)}
    assert {(each.flags, each.tags) for each in got} == {(qos << 1, ("x",))}
    await one.ping()
    assert [each for each in one.got if each.kind == spec.PUBLISH] == []


async def test_a_message_comes_once_whichever_subscriptions_it_matches(hub: Hub) -> None:
    for clean in (True, False):
        peer = await Peer.login(hub, "a", clean=clean)
        numbers = [await peer.subscribe(topic) for topic in ("t", "+", "#", "t")]
        assert numbers[0] == numbers[3]
        assert len(set(numbers)) == 3
        assert {number >> 32 for number in numbers} == {peer.process}
        peer.publish("t", b"1")
        peer.publish("t", b"2")
        assert [got.payload for got in await messages(peer, 2)] == [b"1", b"2"]
        await peer.leave()


async def test_tags_and_condition(hub: Hub) -> None:
    for clean in (True, False):
        peer = await Peer.login(hub, "a", clean=clean)
        await peer.subscribe("t", ("hot",), "celsius > 30 && !old")
        for celsius, tags in (
            (40, ("hot",)),
            (20, ("hot",)),
            (41, ()),
            (42, ("hot", "old")),
            (43, ("x", "hot")),
        ):
            peer.publish("t", encode({"celsius": celsius}), 1, tags=tags)
        peer.publish("t", b"no map", 1, tags=("hot",))
        got = await messages(peer, 2)
        assert [each.payload for each in got] == [encode({"celsius": n}) for n in (40, 43)]
        await peer.ping()
        assert [each.name for each in peer.got] == ["ACK"] * len(peer.got)
        await peer.leave()


@pytest.mark.settings(
    clients=ClientLimits(subscriptions=2), rules=(Rule(topics=("secret/#",), deny=ANY), Rule(allow=ANY))
)
async def test_what_cannot_be_subscribed_to(hub: Hub) -> None:
    peer = await Peer.login(hub)
    for values, code in (
        ((b"a/#/b",), 0x8F),
        ((b"t", (), b"a &&"), 0x8F),
        ((b"t", (), b"", b"$session/a"), 0x8F),
        ((hash_of("nothing"),), 0x90),
        ((b"#",), 0x87),
        ((b"secret/1",), 0x87),
        ((b"1",), 0),
        ((b"2",), 0),
        ((b"3",), 0x97),
        ((b"2",), 0),
    ):
        got = await peer.ask(spec.SUBSCRIBE, values)
        assert got.code == code, (values, got)
        if values[-1] == b"a &&":
            assert got.values[1].startswith("column 5")
    assert (await peer.ask(spec.SUBSCRIBE, (hash_of("1"),))).values[1] & 0xFFFFFFFF == 1


async def test_unsubscribe(hub: Hub) -> None:
    for clean in (True, False):
        peer = await Peer.login(hub, "a", clean=clean)
        number = await peer.subscribe("t")
        other = await Peer.login(hub)
        assert (await other.ask(spec.UNSUBSCRIBE, (number,))).code == 0x11
        assert (await peer.ask(spec.UNSUBSCRIBE, (number,))).code == 0
        assert (await peer.ask(spec.UNSUBSCRIBE, (number,))).code == 0x11
        await other.send_message("t", b"")
        await peer.ping()
        assert not peer.got
        assert not hub.broker.store.topics["t"].groups
        await peer.leave()


async def test_no_more_than_the_window_is_under_way(hub: Hub) -> None:
    for clean in (True, False):
        one, two = await Peer.login(hub, "one", clean=clean), await Peer.login(hub)
        await one.subscribe("t")
        sent = [two.publish("t", b"%d" % n, 1) for n in range(WINDOW * 3)]
        assert [(await one.next()).id for _ in range(WINDOW)] == sent[:WINDOW]
        one.ack(sent[0])
        assert (await one.next()).id == sent[WINDOW]
        for _ in range(3):
            await one.ping()
        assert not one.got
        for ident in sent[1 : WINDOW + 1]:
            one.ack(ident)
        rest = await messages(one, WINDOW * 2 - 1)
        assert [got.id for got in rest] == sent[WINDOW + 1 :]
        await one.leave()


async def test_a_session_gets_what_came_meanwhile(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        two = await Peer.login(hub)
        await two.send_message("t", b"before")
        one = await Peer.login(hub, "one", clean=False)
        await one.subscribe("t")
        await one.subscribe("new/#")
        await two.send_message("t", b"1")
        await two.send_message("t", b"2", 2)
        first, second = await one.next(), await one.next()
        assert (first.payload, second.payload) == (b"1", b"2")
        one.send(spec.PUBREC, ident=second.id)
        assert (await one.answer(second.id)).name == "PUBREL"
        one.abort()
        await until(lambda: hub.broker.clients.by_name["one"].connection is None)
        await two.send_message("t", b"3")
        await two.send_message("new/1", b"4")
    async with hub_of(config(tmp_path)) as hub:
        await (await Peer.login(hub)).send_message("new/2", b"5")
        one = await Peer.login(hub, "one", clean=False)
        assert one.present
        released = await one.answer(second.id)
        assert released.name == "PUBREL"
        one.send(spec.PUBCOMP, ident=second.id)
        got = await messages(one, 4)
        assert sorted(each.payload for each in got) == [b"1", b"3", b"4", b"5"]
        assert [each.payload for each in got if each.topic == "t"] == [b"1", b"3"]
        # What was answered does not come again, and PUBREL neither.
        await one.ping()
        again = await Peer.login(hub, "one", clean=False)
        await again.ping()
        assert not again.got
        await (await Peer.login(hub, "one")).ping()
        assert not any(topic.groups for topic in hub.broker.store.topics.values())


async def test_what_was_under_way_comes_again_with_dup(hub: Hub) -> None:
    one, two = await Peer.login(hub, "one", clean=False), await Peer.login(hub)
    await one.subscribe("t")
    sent = [await two.send_message("t", b"%d" % n) for n in range(3)]
    assert [(await one.next()).flags for _ in range(3)] == [2, 2, 2]
    one.ack(sent[1])
    await one.ping()
    one = await Peer.login(hub, "one", clean=False)
    got = await messages(one, 2)
    assert [(each.id, each.flags) for each in got] == [(sent[0], 10), (sent[2], 10)]


@pytest.mark.settings(clients=ClientLimits(unread=1 << 12, stalled=0.2))
async def test_who_takes_nothing_is_cut_off_and_others_go_on(hub: Hub) -> None:
    slow, quick, two = await Peer.login(hub, "slow"), await Peer.login(hub), await Peer.login(hub)
    for peer in (slow, quick):
        await peer.subscribe("t")
    payload = bytes(20_000)
    got = 0
    while "slow" in hub.broker.clients.by_name:
        two.publish("t", payload)
        assert (await quick.next()).payload == payload
        got += 1
        assert got < 10_000
    two.publish("t", payload)
    await quick.next()


@pytest.mark.settings(clients=ClientLimits(unread=1 << 10))
async def test_a_flood_for_one_who_does_not_acknowledge_is_bounded(hub: Hub) -> None:
    deaf, two = await Peer.login(hub, "deaf"), await Peer.login(hub)
    await deaf.subscribe("t")
    for _ in range(WINDOW + 20):
        await two.send_message("t", bytes(1000))
    *_, last = await deaf.ended()
    assert (last.id, last.code) == (deaf.auth_id, 0x97)


async def test_a_session_keeps_what_one_of_its_networks_may_not_have(tmp_path: Path) -> None:
    """Messages, live and retained, wait for a connection that the rules let have them; restarts of the hub included."""
    settings = config(tmp_path, rules=ONE_NETWORK_LESS)

    async def connect(hub: Hub, address: str) -> Peer:
        peer = await Peer.open(hub, address)
        assert (await peer.auth("kept", clean=False)).code == 0
        return peer

    async def received(peer: Peer, count: int) -> list[tuple[str | None, bytes]]:
        got = [await peer.next() for _ in range(count)]
        for one in got:
            peer.ack(one.id)
        await peer.ping()
        assert not peer.got
        return [(one.topic, one.payload) for one in got]

    async with hub_of(settings) as hub:
        talker = await Peer.login(hub)
        await talker.send_message("secret/retained", b"0", retain=True)
        await talker.send_message("open", b"", retain=True)
        peer = await connect(hub, "127.0.0.1")
        await peer.close()
        await until(lambda: hub.broker.clients.by_name["kept"].connection is None)
        # A filter that names what is denied is refused; one that was accepted elsewhere is only held back.
        peer = await connect(hub, "127.0.0.1")
        await peer.subscribe("#")
        assert await received(peer, 1) == [("secret/retained", b"0")]
        await peer.close()
        for n in range(3):
            await talker.send_message("secret/a", b"%d" % n)
            await talker.send_message("open", b"%d" % n)
        peer = await connect(hub, "127.0.0.2")
        assert await received(peer, 3) == [("open", b"%d" % n) for n in range(3)]
        await talker.send_message("secret/a", b"3")
        await talker.send_message("open", b"3")
        assert await received(peer, 1) == [("open", b"3")]
        await peer.close()
    async with hub_of(settings) as hub:
        peer = await connect(hub, "127.0.0.2")
        assert await received(peer, 0) == []
        await peer.close()
        peer = await connect(hub, "127.0.0.1")
        assert await received(peer, 4) == [("secret/a", b"%d" % n) for n in range(4)]
        assert not hub.broker.store.topics["secret/a"].count


@pytest.mark.settings(rules=ONE_NETWORK_LESS)
async def test_retained_messages_wait_for_a_network_that_may_have_them(hub: Hub) -> None:
    talker = await Peer.login(hub)
    for n in range(WINDOW + 5):
        await talker.send_message(f"secret/{n}", b"%d" % n, retain=True)
    peer = await Peer.login(hub, "kept", clean=False)
    await peer.subscribe("secret/+")
    # None is acknowledged.
    assert len([await peer.next() for _ in range(WINDOW)]) == WINDOW
    await peer.close()
    peer = await Peer.open(hub, "127.0.0.2")
    assert (await peer.auth("kept", clean=False)).code == 0
    await peer.ping()
    assert not peer.got
    await peer.close()
    peer = await Peer.login(hub, "kept", clean=False)
    got = set()
    for _ in range(WINDOW + 5):
        one = await peer.next()
        assert one.flags & 1
        got.add(one.topic)
        peer.ack(one.id)
    assert len(got) == WINDOW + 5
