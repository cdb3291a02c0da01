"""What FMQ's contract says of the hub, over raw sockets: what no other test is about, sentence by sentence."""

import asyncio
from pathlib import Path

from headwater.fmq import spec
from headwater_host.hub.service import Hub
from headwater_host.hub.storage import Limits
from tests.host.hub_client import Got, Peer, config, hub_of, until, with_hub


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


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_what_is_published_around_a_subscribe_comes_once(tmp_path: Path) -> None:
    """All in one write, so in one commit: the retained message comes as such, what is behind SUBSCRIBE as it is."""

    @with_hub(config(tmp_path))
    async def test(hub: Hub) -> None:
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


def test_a_group_is_given_up_and_the_broadcast_goes_on(tmp_path: Path) -> None:
    @with_hub(config(tmp_path))
    async def test(hub: Hub) -> None:
        for clean in (True, False):
            peer = await Peer.login(hub, "a", clean=clean)
            await peer.subscribe("t")
            number = await peer.subscribe("t", group="g")
            assert (await peer.ask(spec.UNSUBSCRIBE, (number,))).code == 0
            peer.publish("t", b"1")
            assert [got.payload for got in await pushed(peer, hub)] == [b"1"]
            await peer.leave()


def test_a_subscribe_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        settings = config(tmp_path, limits=Limits(places=3))
        async with hub_of(settings) as hub:
            peer = await Peer.login(hub, "kept", clean=False)
            for topic in (b"t/1", b"t/2"):
                await peer.ask(spec.REGISTER, (topic, 2))
            for group in (b"g", b""):
                assert (await peer.ask(spec.SUBSCRIBE, (b"t/+", (), b"", group))).code == 0x97
            assert not any(topic.groups for topic in hub.broker.store.topics.values())
        async with hub_of(settings) as hub:
            assert hub.broker.store.sessions.get("kept") is not None
            assert not hub.broker.clients["kept"].subscriptions
            # There is room for what fits.
            assert await (await Peer.login(hub)).subscribe("t/1", group="g")

    asyncio.run(test())


def test_a_group_without_room_for_a_topic_goes_on_with_the_others(tmp_path: Path) -> None:
    @with_hub(config(tmp_path, limits=Limits(places=2)))
    async def test(hub: Hub) -> None:
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
        await until(lambda: len(hub.broker.consuming.groups["g"].members) == 1)
        await two.send_message("t/1", b"x")
        assert [(got.topic, got.payload) for got in [await two.next()]] == [("t/1", b"x")]
