"""What FMQ's contract says of frames, AUTH and access, over raw sockets to the hub: what no other test is about."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from vectors import load

from headwater.fmq import spec
from headwater.fmq.names import TYPES
from headwater_host.fmq.values import encode
from headwater_host.hub.config import Listener
from headwater_host.hub.frames import framed
from headwater_host.hub.service import Hub
from headwater_host.hub.users import hashed
from tests.host.hub_client import SECONDS, ClientLimits, Peer, config, hub_of, new_id, replace, until
from tests.host.test_hub_server import stored
from tests.rows import each_row

ROWS = load("fmq")


# -- frames ------------------------------------------------------------------------------------------------------------


async def test_every_malformed_frame_is_answered_with_a_reason_and_ends_the_connection(hub: Hub) -> None:
    other = await Peer.login(hub)
    for row in ROWS["malformed_frames"]:
        peer = await Peer.login(hub)
        data = bytes.fromhex(row["hex"])
        peer.raw(data + b"\0" * 32)
        (last,) = await peer.ended()
        reason = 0x95 if row["reason"] == "body_too_large" else 0x81
        assert (last.name, last.code) == ("ACK", reason), row["why"]
        # To the frame, where its id can be read.
        assert last.id in (data[1 : 1 + len(last.id)], peer.auth_id), row["why"]
    await other.ping()


#: What a client sends, and the hub takes.
TAKEN = {"REGISTER", "UNREGISTER", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "CONSUME"}
TAKEN |= {"PUBREC", "PUBREL", "PUBCOMP", "PINGREQ", "ACK"}


#: Frames that other hubs send, and this one has no part for.
REFUSALS = {"ELECT": "this hub takes part in no election", "SLAVEOF": "this hub has no [replication]"}


async def test_every_frame_is_taken_or_refused_in_its_place(tmp_path: Path) -> None:
    """None that is well-formed is malformed to the hub. ELECT and SLAVEOF are read, and refused as not expected."""
    async with hub_of(config(tmp_path, clients=ClientLimits(once=0.05, login=SECONDS))) as hub:
        for row in ROWS["frames"]:
            data, kind = bytes.fromhex(row["hex"]), TYPES[row["type"]]
            peer = await Peer.open(hub)
            if kind == "AUTH":
                peer.raw(data)
                assert (await peer.answer(bytes.fromhex(row["id"]))).code in (0, 0x86), row["name"]
            else:
                await peer.auth()
                peer.raw(data)
            if kind in TAKEN:
                await peer.ping()
                assert not any(got.code in (0x81, 0x82) for got in peer.got), row["name"]
                peer.abort()
            elif kind != "AUTH":
                (last,) = await peer.ended()
                assert (last.id.hex(), last.code) == (row["id"], 0x82), row["name"]
                assert REFUSALS.get(kind, kind) in last.values[1]


@each_row("kind, reason", [(4, 0x81), (spec.SLAVEOF, 0x82)])
async def test_the_reason_is_followed_by_an_end_in_good_order(hub: Hub, kind: int, reason: int) -> None:
    """Although much stands behind the frame: a reset might overtake the reason."""
    peer = await Peer.login(hub)
    peer.raw(framed(kind << 4 | spec.REG, new_id(kind), b"") + bytes(4 << 20))
    assert (await peer.next()).code == reason
    with pytest.raises(EOFError):
        await peer.receive()
    await peer.close()


@pytest.mark.parametrize("more", [0, 1, 2, 3])
@pytest.mark.parametrize("tags", [b"\xd0", encode(["x"])], ids=["usual", "tags"])
async def test_a_length_may_be_longer_than_need_be(tmp_path: Path, more: int, tags: bytes) -> None:
    body = encode("t") + tags + b"payload"

    def frame(size: int) -> bytes:
        rest = (len(body) >> 4).to_bytes(size, "little")
        return b"\x32" + new_id(spec.PUBLISH) + bytes([size << 4 | len(body) & 15]) + rest + body

    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub)
        data = frame(1 + more)
        peer.raw(data)
        assert (await peer.next()).code == 0
        assert stored(hub, "t") == [b"payload"]
        peer.raw(frame(5))
        assert [got.code for got in await peer.ended()] == [0x81]


async def test_what_is_too_long_is_refused_before_it_comes(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path, clients=ClientLimits(frame=100_000))) as hub:

        async def claims(peer: Peer, kind: int, size: int) -> int:
            """Say that so many bytes come, of which one does."""
            ident = new_id(kind, peer.process)
            peer.raw(framed(kind << 4, ident, bytes(size))[: 1 + len(ident) + 5])
            (last,) = await peer.ended()
            assert last.id == ident
            return last.code

        assert await claims(await Peer.login(hub), spec.PUBLISH, 100_001) == 0x95
        assert await claims(await Peer.open(hub), spec.AUTH, (64 << 10) + 1) == 0x95
        peer = await Peer.login(hub)
        # One that is no longer than a frame may be is read, and the connection goes on.
        assert (await peer.answer(peer.publish("t", bytes(100_000 - 4), 1))).code == 0x95
        await peer.send_message("t", bytes(100_000 - 32 - 4))
        assert len(stored(hub, "t")[0]) == 100_000 - 32 - 4


# -- AUTH --------------------------------------------------------------------------------------------------------------

_WILL = ("a", None, None, 0, True, "gone")


@pytest.mark.parametrize(
    "values, will",
    [
        ((), None),
        (("a",), None),
        (("a", None, None, 7), None),
        (("a", None, None, 0, True), None),
        (_WILL, (0, False, b"")),
        ((*_WILL, 1), (1, False, b"")),
        ((*_WILL, 2, True), (2, True, b"")),
        ((*_WILL, 1, True, b"last"), (1, True, b"last")),
    ],
)
async def test_what_auth_may_leave_out(hub: Hub, values: tuple[Any, ...], will: Any) -> None:
    peer = await Peer.open(hub)
    body = b"".join(value if isinstance(value, bytes) else encode(value) for value in values)
    ident = new_id(spec.AUTH)
    peer.raw(framed(spec.AUTH << 4, ident, body))
    assert (await peer.answer(ident)).code == 0
    (connection,) = hub.broker.connections
    assert connection.client is not None
    assert not connection.client.kept
    assert connection.patience == (10.5 if 7 in values else 0)
    found = connection.client.will
    assert (found and (found.qos, found.retain, found.payload)) == will
    peer.abort()
    if will:
        await until(lambda: stored(hub, "gone") == [will[2]])
        assert ("gone" in hub.broker.store.retained) == (will[1] and will[2] != b"")


@each_row(
    "name, keep_alive, will, reason",
    [
        ("a", 0, ("$rpc/reply", 0, False), 0x90),
        ("a", 0, ("$dead/t", 1, True), 0x90),
        ("$hub", 0, (), 0x85),
        ("a", 10**400, (), 0),
        ("a", 1 << 64, (), 0),
    ],
    ids=["will to replies", "will to the dead", "the hub's name", "for ever", "for very long"],
)
async def test_auth_at_its_limits(
    hub: Hub, name: str, keep_alive: int, will: tuple[Any, ...], reason: int
) -> None:
    peer = await Peer.open(hub)
    ident = new_id(spec.AUTH)
    body = b"".join(map(encode, (name, None, None, keep_alive, True, *will)))
    peer.raw(framed(spec.AUTH << 4, ident, body))
    assert (await peer.answer(ident)).code == reason
    if reason:
        assert await peer.ended() == []
    else:
        await peer.ping()
    assert not hub.broker.store.topics


@pytest.mark.parametrize("size", [1, 1000])
async def test_what_comes_behind_auth_waits_for_its_answer(hub: Hub, size: int) -> None:
    peer = await Peer.open(hub)
    auth, published, ping = (new_id(kind, 1) for kind in (spec.AUTH, spec.PUBLISH, spec.PINGREQ))
    data = framed(spec.AUTH << 4, auth, b"")
    data += framed(spec.PUBLISH << 4 | 2, published, encode("t") + b"\xd0x")
    data += bytes([spec.PINGREQ << 4]) + ping
    for at in range(0, len(data), size):
        peer.raw(data[at : at + size])
        await asyncio.sleep(0)
    got = [await peer.next() for _ in range(3)]
    assert got[0].id == auth
    # A ping needs no disk.
    assert {each.id for each in got[1:]} == {published, ping}
    assert stored(hub, "t") == [b"x"]


async def test_keep_alive_is_one_and_a_half_times(hub: Hub) -> None:
    peer, other = (
        await Peer.login(hub),
        await Peer.login(hub, "b", keep_alive=1, will=(b"w", 0, False, b"x")),
    )
    began = asyncio.get_running_loop().time()
    other.publish("t", b"")
    assert [got.code for got in await other.ended()] == [0x8D]
    assert asyncio.get_running_loop().time() - began >= 1.5
    await until(lambda: stored(hub, "w") == [b"x"])
    # No keep-alive, no end.
    await peer.ping()


@each_row("how", ["malformed", "protocol", "taken over", "cut", "goodbye"])
async def test_a_will_is_published_however_it_ends_but_by_goodbye(hub: Hub, how: str) -> None:
    peer = await Peer.login(hub, "a", will=(how.encode(), 1, False, b"x"))
    if how == "malformed":
        peer.raw(b"\x40")
    elif how == "protocol":
        await peer.auth()
    elif how == "taken over":
        await Peer.login(hub, "a")
    elif how == "cut":
        peer.abort()
    else:
        await peer.leave()
    if how == "goodbye":
        assert stored(hub, how) == []
    else:
        await until(lambda: stored(hub, how) == [b"x"])


async def test_names_beyond_their_number_are_forgotten_and_their_numbers_not_given_again(
    tmp_path: Path,
) -> None:
    async with hub_of(config(tmp_path, clients=ClientLimits(sessions=3))) as hub:
        numbers = [(await Peer.login(hub, name)).process for name in "abc"]
        for connection in list(hub.broker.connections):
            connection.abort()
        await until(lambda: not hub.broker.clients.by_name)
        kept = [await Peer.login(hub, name) for name in "cd"]
        assert kept[0].process == numbers[2]
        # The oldest that was not in use.
        back = await Peer.login(hub, "a")
        assert len({*numbers, kept[1].process, back.process}) == 5
        assert (await (await Peer.open(hub)).auth("e")).code == 0x97
        assert (await (await Peer.open(hub)).auth("")).code == 0


# -- access ------------------------------------------------------------------------------------------------------------


async def test_who_has_not_logged_in_may_nothing_where_others_can_reach_the_hub(tmp_path: Path) -> None:
    settings = replace(
        config(tmp_path, users={"ann": hashed(b"secret", ln=4)}), listeners=(Listener("0.0.0.0", 0),)
    )

    async with hub_of(settings) as hub:
        where = "127.0.0.1", hub.addresses[0][1]
        requests = (
            (spec.REGISTER, (b"t",), 0),
            (spec.UNREGISTER, (b"t",), 0),
            (spec.SUBSCRIBE, (b"t",), 0),
            (spec.CONSUME, (b"t", (), b"", b"g"), spec.ONCE),
            (spec.CONSUME, (b"t", (), b"", b""), spec.ONCE),
            (spec.PUBLISH, (b"t", b"\xd0", b""), 0),
            (spec.PUBLISH, (b"t", b"\xd0", b""), 1 << 1),
            (spec.PUBLISH, (b"$rpc/reply", b"\xd0", new_id(spec.CONSUME)), 2 << 1),
        )
        peer = await Peer.login(where)
        for kind, values, flags in requests:
            assert (await peer.ask(kind, values, flags)).code == 0x87, (kind, flags)
        await peer.ping()
        assert not hub.broker.store.topics
        ann = await Peer.login(where, user="ann", password="secret")
        await ann.send_message("t", b"")
