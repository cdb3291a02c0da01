"""The bound over what the hub holds for all connections: who holds most is cut off, and told so where that can be."""

import asyncio

import pytest

from headwater.fmq import spec
from headwater_host.hub.broadcast import WINDOW
from headwater_host.hub.service import Hub
from tests.host.hub_client import ClientLimits, Limits, Peer, new_id, until

KIB, MIB = 1 << 10, 1 << 20
#: The beginning of a PUBLISH with a body of 1 MiB.
HEAD = b"\x32" + new_id(spec.PUBLISH, 1) + b"\x30" + (MIB >> 4).to_bytes(3, "little")


def clients(**more: int) -> ClientLimits:
    return ClientLimits(memory=4 * MIB, frame=2 * MIB, **more)


@pytest.mark.settings(clients=clients())
async def test_who_has_begun_the_most_is_cut_off(hub: Hub) -> None:
    memory = hub.broker.memory
    good = await Peer.login(hub)
    # Less than the mean of 9 connections at the limit: however the bytes are split, another connection is heavier.
    begun = 400 * KIB
    good.raw(HEAD + b"\x11\x01t\xd0" + bytes(begun))
    peers = [await Peer.login(hub) for _ in range(8)]
    # The limit leaves room for three of them.
    for n, peer in enumerate(peers):
        peer.raw(HEAD + bytes(950 * KIB + n))
    ends = [asyncio.create_task(peer.ended()) for peer in peers]
    await until(lambda: memory.shed == sum(end.done() for end in ends) == 5)
    assert memory.held <= 4 * MIB
    for peer, end in zip(peers, ends, strict=True):
        if end.done():
            (last,) = end.result()
            assert (last.code, last.id) == (0x97, peer.auth_id)
    # The others go on.
    good.raw(bytes(MIB - begun - 4))
    assert (await good.next()).code == 0
    assert memory.shed == 5
    for peer in peers:
        peer.abort()
    await asyncio.wait(ends)
    await until(lambda: memory.held == 0)


@pytest.mark.settings(Limits(bytes=64 * MIB), clients(unread=2 * MIB))
async def test_who_does_not_read_is_cut_off(hub: Hub) -> None:
    memory = hub.broker.memory
    lazy = [await Peer.login(hub) for _ in range(6)]
    good = await Peer.login(hub)
    for peer in lazy:
        await peer.subscribe("t")
        peer.stop_reading()
    number = await good.subscribe("t", group="g")
    # One message at a time is less than the mean of 8 connections at the limit: another connection is heavier.
    good.consume(number, 1)
    talker = await Peer.login(hub)
    sent = 0
    while not memory.shed:
        await talker.send_message("t", b"%d " % sent + bytes(256 * KIB))
        sent += 1
        assert sent < 200, "more is held than may be"
    assert memory.held <= 4 * MIB
    for n in range(sent):
        got = await good.next()
        assert got.payload.startswith(b"%d " % n)
        good.ack(got.id)
    await good.ping()
    for peer in lazy:
        peer.abort()
    await until(lambda: memory.held == 0)


@pytest.mark.settings(clients=ClientLimits(memory=200 * KIB, frame=100 * KIB))
async def test_a_connection_is_shed_once(hub: Hub) -> None:
    memory = hub.broker.memory
    lazy, talker = await Peer.login(hub), await Peer.login(hub)
    await lazy.subscribe("t")
    for _ in range(WINDOW):
        await talker.send_message("t", b"")
    for _ in range(9):
        await talker.send_message("t", bytes(20 * KIB))
    before = memory.shed
    # They are stored together, and the client's connection is shed in the turn that adds them to its waiting messages.
    for ident in [talker.publish("t", bytes(4 * KIB), 1) for _ in range(10)]:
        await talker.answer(ident)
    assert (await lazy.ended())[-1].code == 0x97
    assert (before, memory.shed) == (0, 1)
    await talker.ping()


@pytest.mark.settings(clients=ClientLimits(memory=300 * KIB, frame=200 * KIB, unread=200 * KIB))
async def test_wills_count(hub: Hub) -> None:
    peers = [await Peer.open(hub) for _ in range(6)]
    # An AUTH that has partly arrived counts, too. The first will is larger, so that connection is shed.
    for peer, size in zip(peers, (60, 55, 55, 55, 55, 55), strict=True):
        await peer.auth(will=(b"w", 0, False, bytes(size * KIB)))
    assert hub.broker.memory.shed == 1
    assert hub.broker.memory.held <= 300 * KIB
    assert (await peers[0].ended())[-1].code == 0x97
