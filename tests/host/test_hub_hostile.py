"""Clients that mean harm, or do not know better, against a hub's process: each is answered with a reason, memory stays
within what the limits say, and a pair of others goes on exchanging messages."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.fmq.values import encode
from headwater_host.hub import frames
from headwater_host.hub.users import hashed
from tests.host.conftest import settings_of
from tests.host.hub_client import Got, Peer, new_id
from tests.host.hub_process import SLACK, HubProcess, hub_process, undisturbed
from tools.toolchain import ROOT

VECTORS = json.loads((ROOT / "tests/vectors/fmq.json").read_text())
MALFORMED = [bytes.fromhex(row["hex"]) for row in VECTORS["malformed_frames"]]
#: Ids that are none, and values that are none where a topic belongs.
MALFORMED += [b"\x32" + bytes.fromhex(row["hex"]) + bytes(20) for row in VECTORS["malformed_message_ids"]]
MALFORMED += [
    frames.framed(spec.REGISTER << 4, new_id(spec.REGISTER, 1), bytes.fromhex(row["hex"]))
    for row in VECTORS["malformed_values"]
]
#: Malformed, not expected here, too large.
REASONS = {0x81, 0x82, 0x95}
MIB = 1 << 20


@pytest.fixture
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[HubProcess]:
    """A hub's process to attack, with the text of its file, and the bytes by which its memory may grow."""
    return attacked(tmp_path, *settings_of(request)[0])


@contextlib.asynccontextmanager
async def attacked(folder: Path, settings: str = "", most: int = 0) -> AsyncIterator[HubProcess]:
    """A pair is not disturbed, and memory grows by at most ``most`` and some slack."""
    async with hub_process(folder, settings) as hub, undisturbed(hub) as pair:
        await pair.more(50)
        before = hub.memory()
        yield hub
        await pair.more(50)
        grown = hub.memory() - before
        assert grown <= most + SLACK, f"{grown >> 20} MiB more"


async def last_word(peer: Peer) -> Got | None:
    """What the hub said at the end of a connection."""
    said = await peer.ended()
    return said[-1] if said else None


# -- frames ------------------------------------------------------------------------------------------------------------


def wrong_frames() -> list[bytes]:
    """Each type of frame with each flag that it does not have, with nothing or too much in it, and of any length."""
    ident = new_id(spec.PUBLISH, 1)
    found = [bytes([head]) + ident + b"\x0f" + b"\xff" * 15 for head in range(256)]
    for length in (b"\x4f\xff\xff\xff\xff", b"\xf0", b"\x5f" + b"\xff" * 5, b"\x41" + b"\xff" * 4):
        found += [bytes([kind << 4]) + ident + length for kind in range(16)]
    return found


async def test_what_is_no_frame_before_and_after_auth(hub: HubProcess) -> None:
    some = asyncio.Semaphore(50)

    async def is_answered(data: bytes, known: bool) -> bool:
        async with some:
            peer = await (hub.login() if known else hub.open())
            # Whatever it takes this for, there is an end of it: AUTH comes once, and not in a frame of zeros.
            peer.raw(data + bytes(64) + b"\x40")
            last = await last_word(peer)
            peer.abort()
        assert last is None or last.code in REASONS, (data.hex(), last)
        # Who is known is always told. Before AUTH, what has no id has no answer.
        assert last is not None or not known, data.hex()
        return last is not None

    wrong = [*MALFORMED, *wrong_frames()]
    answered = await asyncio.gather(*(is_answered(data, known) for data in wrong for known in (False, True)))
    assert sum(answered) > len(wrong)


async def test_each_frame_cut_at_every_byte(hub: HubProcess) -> None:
    """A client that goes in the middle of a frame leaves nothing behind."""
    for row in VECTORS["frames"]:
        data = bytes.fromhex(row["hex"])
        peers = await asyncio.gather(*(hub.login() for _ in data[1:80]))
        for end, peer in enumerate(peers, 1):
            peer.raw(data[:end])
        for peer in peers:
            await peer.close()


@pytest.mark.settings("[clients]\nframe = '1 MiB'\n")
async def test_a_frame_larger_than_may_be_is_refused_before_it_is_read(hub: HubProcess) -> None:
    for known, size in ((False, 65 << 10), (True, 2 * MIB)):
        length = b"\x40" + (size >> 4).to_bytes(4, "little")
        for kind in (spec.AUTH, spec.PUBLISH, spec.SUBSCRIBE, spec.CONSUME, spec.ACK):
            peer = await (hub.login() if known else hub.open())
            ident = new_id(kind, 1)
            peer.raw(bytes([kind << 4]) + ident + length)
            last = await last_word(peer)
            assert last is not None
            assert (last.code, last.id) == (0x95, ident)


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.settings("[clients]\nconnections = 100\n")
async def test_a_flood_of_connections(hub: HubProcess) -> None:
    """As many as there may be, those beyond that are told so, and further ones are not let in."""
    peers = [await hub.open() for _ in range(300)]
    codes: list[int | None] = []
    for peer in peers:
        try:
            codes.append((await peer.auth()).code)
        except (EOFError, ConnectionError):
            codes.append(None)
    assert codes.count(0) == 98
    assert codes.count(0x97) == 100
    assert codes.count(None) == 102
    for peer in peers:
        peer.abort()


@pytest.mark.settings("[clients]\nlogin = 1\nstalled = 1\n")
async def test_who_says_nothing_is_cut_off(hub: HubProcess) -> None:
    """Nothing at all, half a frame, byte after byte; and after AUTH, half a frame, or nothing in time."""
    silent, half = await hub.open(), await hub.open()
    half.raw(b"\x00")
    assert await silent.ended() == []
    assert await half.ended() == []
    unfinished = await hub.login()
    unfinished.raw(b"\x32" + new_id(spec.PUBLISH, 1) + b"\x1f")
    dead = await hub.login(keep_alive=1)
    for peer in (unfinished, dead):
        last = await last_word(peer)
        assert last is not None
        assert (last.code, last.id) == (0x8D, peer.auth_id)


@pytest.mark.settings("[clients]\nmemory = '16 MiB'\nframe = '2 MiB'\n", 16 * MIB)
async def test_frames_that_are_never_finished(hub: HubProcess) -> None:
    peers = [await hub.login() for _ in range(60)]
    head = b"\x32" + new_id(spec.PUBLISH, 1) + b"\x30" + (MIB >> 4).to_bytes(3, "little")
    for peer in peers:
        peer.raw(head + bytes(MIB - 1))
    ends = [asyncio.create_task(last_word(peer)) for peer in peers]
    while sum(end.done() for end in ends) < 40:
        await asyncio.sleep(0.01)
    # Who is cut off while still sending may not hear it.
    said = [end.result() for end in ends if end.done()]
    assert {last.code for last in said if last is not None} <= {0x97}
    for peer in peers:
        peer.abort()
    await asyncio.wait(ends)


@pytest.mark.settings("[clients]\nmemory = '16 MiB'\nunread = '1 MiB'\n[limits]\ncache = '8 MiB'\n", 24 * MIB)
async def test_those_who_do_not_read(hub: HubProcess) -> None:
    lazy = [await hub.login() for _ in range(30)]
    for peer in lazy:
        await peer.subscribe("much")
        peer.stop_reading()
    talker = await hub.login()
    # Above 16 MiB some of the 30 hold more than half a MiB: more than a message that is still arriving.
    for _ in range(256):
        await talker.send_message("much", bytes(MIB // 4))
    for peer in lazy:
        peer.abort()


@pytest.mark.settings("[clients]\nunread = '1 MiB'\n", 2 * MIB)
async def test_a_flood_of_requests_that_are_not_answered_to_anybody(hub: HubProcess) -> None:
    """Who asks on and on and never reads the answers is not read from."""
    peer = await hub.login()
    peer.stop_reading()
    ping = frames.bare(spec.PINGREQ, new_id(spec.PINGREQ, 1))
    sent = 0
    while sent < 64 and not peer.is_full():
        peer.raw(ping * (MIB // len(ping)))
        sent += 1
        await asyncio.sleep(0)
    peer.abort()


# -- logging in --------------------------------------------------------------------------------------------------------

USERS = "[clients]\nlogin = 5\n" + "".join(
    f'[[user]]\nname = "{name}"\npassword = "{hashed(name.encode() * 2, ln=14)}"\n' for name in ("ann", "bob")
)


async def test_a_flood_of_wrong_passwords(tmp_path: Path) -> None:
    """Who is in is not disturbed, and who comes from another address gets a turn."""

    async with hub_process(tmp_path, USERS) as hub, undisturbed(hub, user="ann", password="annann") as pair:
        await pair.more()
        before = hub.memory()
        wrong = [await hub.open() for _ in range(300)]
        for n, peer in enumerate(wrong):
            peer.send(spec.AUTH, (b"", b"ann", b"%d" % n, 0, True))
        other = await Peer.open(hub.address, local="127.0.0.2")
        assert (await other.auth(user="bob", password="bobbob")).code == 0
        codes = []
        for peer in wrong:
            last = await last_word(peer)
            codes.append(last.code if last else None)
        # Wrong; too many at a time; too late.
        assert set(codes) <= {0x86, 0x97, 0x8D}
        assert codes.count(0x97) >= 100
        assert codes.count(0x86) >= 1
        assert hub.memory() - before <= 2 * (16 << 20) + SLACK


# -- requests ----------------------------------------------------------------------------------------------------------

LIMITED = """
[limits]
topics = 500
all_queues = 600
places = 500
topic_bytes = '4 MiB'
bytes = '16 MiB'
retained = '1 MiB'
cache = '4 MiB'
ids = 1000
[clients]
subscriptions = 100
sessions = 200
once = 1
"""


async def refused(peer: Peer, requests: int, ask: Callable[[int], bytes]) -> set[int]:
    """Which reasons so many requests are refused with."""
    codes = set()
    for begin in range(0, requests, 50):
        idents = [ask(n) for n in range(begin, min(begin + 50, requests))]
        codes |= {(await peer.answer(ident)).code for ident in idents}
    return codes - {0}


@pytest.mark.settings(LIMITED, 24 * MIB)
async def test_floods_of_what_is_remembered(hub: HubProcess) -> None:
    peer, other = await hub.login("eve", clean=False), await hub.login()
    deep = "/".join("abcdefgh" * 7)

    def register(n: int) -> bytes:
        return peer.send(spec.REGISTER, (b"%d/%s" % (n, deep.encode()),))

    def grow(n: int) -> bytes:
        return other.send(spec.REGISTER, (b"0/" + deep.encode(), n + 1))

    def subscribe(n: int) -> bytes:
        return peer.send(spec.SUBSCRIBE, (b"+/%d" % n, (), b"", b"g%d" % n))

    def once(n: int) -> bytes:
        return peer.send(spec.CONSUME, (b"1/" + deep.encode(), (), b"", b"o%d" % n, b""), spec.ONCE)

    await other.subscribe("2/" + deep, group="keep")
    assert await refused(peer, 700, register) == {0x97}
    assert await refused(other, 700, grow) == {0x97}
    assert await refused(peer, 200, subscribe) == {0x97}
    assert 0x97 in {(await peer.answer(ident)).code for ident in [once(n) for n in range(300)]}
    assert await refused(peer, 700, lambda n: peer.publish(f"p{n}", b"", 1)) == {0x97}
    assert await refused(other, 40, lambda n: other.publish("2/" + deep, bytes(MIB >> 1), 1)) == {0x97}
    retained = await refused(other, 40, lambda n: other.publish("1/" + deep, bytes(MIB + n), 1, retain=True))
    assert retained == {0x97}
    assert await refused(other, 1500, lambda n: other.publish("1/" + deep, b"", n % 2 + 1)) == set()


@pytest.mark.settings("[clients]\nall_subscriptions = '16 MiB'\n", (16 + 2 * 2 * 64) * MIB)
async def test_subscriptions_and_topics_that_are_large(hub: HubProcess) -> None:
    """Few, each as large as it can be: what they take is bounded, not only how many they are."""
    peer = await hub.login("eve", clean=False)
    condition = ("a||" * 1365 + "a").encode()
    tags = tuple(b"%d" % n for n in range(1000))

    def subscribe(n: int) -> bytes:
        return peer.send(spec.SUBSCRIBE, (b"%d/#" % n, tags, condition, b""))

    assert await refused(peer, 100, subscribe) == {0x97}
    long = b"x" * 60_000
    register = await refused(peer, 1300, lambda n: peer.send(spec.REGISTER, (b"%d%s" % (n, long),)))
    assert register == {0x97}
    # What goes makes room.
    other = await hub.login("eve")
    assert (await other.ask(spec.SUBSCRIBE, (b"+", tags, condition))).code == 0


@pytest.mark.settings(LIMITED)
async def test_a_flood_of_sessions(hub: HubProcess) -> None:
    codes = []
    for n in range(300):
        peer = await hub.open()
        codes.append((await peer.auth(f"s{n}", clean=False)).code)
        await peer.close()
    assert codes == [0] * 200 + [0x97] * 100


DEEP = [
    "(" * 33 + "a" + ")" * 33,
    "(" * 4095,
    "!" * 4097,
    "a" * 4097,
    "a &&" * 1024,
    "a && " * 3000 + "a",
    '"' + "\\" * 4000,
    "x == 1" + "0" * 4089 + ".",
    "\U0001f600" * 4096,
    "\0",
]
HARMLESS = ["(" * 32 + "a" + ")" * 32, "!" * 4095 + "a", "a||" * 1365 + "a", "x < 1" + "0" * 4090]


@pytest.mark.settings("", 24 * MIB)
async def test_conditions_and_values_that_are_bombs(hub: HubProcess) -> None:
    peer = await hub.login()
    for condition in DEEP:
        answer = await peer.ask(spec.SUBSCRIBE, (b"bombs", (), condition.encode(), b""))
        assert answer.code == 0x8F, condition[:20]
        assert answer.values[1].startswith("column "), answer
    for n, condition in enumerate(HARMLESS):
        await peer.subscribe("bombs", condition=condition, group=f"g{n}")
    # Payloads that are maps: nested deeper than is read, with a number of a megabyte, with more than there is.
    nested = b"\xe1\x01\x11\x01x" * 5000
    number = b"\xe1\x01\x11\x01x\x63" + (MIB).to_bytes(3, "little") + b"\x7f" * MIB
    for payload in (nested, number, b"\xe8" + b"\xff" * 8, b"\xe1\x01\x11\x01x\x31\x07"):
        assert (await peer.answer(peer.publish("bombs", payload, 1))).code == 0
    await peer.ping()


@pytest.mark.settings(LIMITED, 24 * MIB)
async def test_tags_count(hub: HubProcess) -> None:
    peer = await hub.login()
    tags = encode(["x" * 1000] * 1000)

    async def publish(count: int) -> set[int]:
        codes = set()
        for _ in range(count):
            ident = new_id(spec.PUBLISH, peer.process)
            peer.raw(frames.framed(spec.PUBLISH << 4 | 2, ident, encode("tagged") + tags))
            codes.add((await peer.answer(ident)).code)
        return codes

    # More than the topic holds: the oldest go, until a group waits for them.
    assert await publish(10) == {0}
    await peer.subscribe("tagged", group="g")
    assert 0x97 in await publish(10)


async def test_an_end_in_good_order_under_load(tmp_path: Path) -> None:
    """What was acknowledged is there on the next start, though publishers did not stop."""

    acked: set[bytes] = set()
    ended: list[int] = []

    async def flood(peer: Peer, number: int) -> None:
        idents: dict[bytes, bytes] = {}
        n = 0
        try:
            while True:
                while len(idents) < 100:
                    payload = b"%d %d" % (number, n)
                    idents[peer.publish("t", payload, 1)] = payload
                    n += 1
                got = await peer.next()
                if got.id == peer.auth_id:
                    ended.append(got.code)
                elif got.code == 0:
                    acked.add(idents.pop(got.id))
        except (EOFError, ConnectionError):
            pass

    async with hub_process(tmp_path) as hub:
        lazy = await hub.login()
        await lazy.subscribe("t")
        lazy.stop_reading()
        peers = [await hub.login() for _ in range(8)]
        floods = [asyncio.create_task(flood(peer, n)) for n, peer in enumerate(peers)]
        while len(acked) < 2000:
            await asyncio.sleep(0.01)
    await asyncio.gather(*floods)
    assert ended == [0x8B] * 8
    async with hub_process(tmp_path) as hub:
        peer = await hub.login()
        peer.consume(await peer.subscribe("t", group="g"), 1000)
        got: set[bytes] = set()
        while not acked <= got:
            one = await peer.next()
            assert one.payload not in got
            got.add(one.payload)
            peer.ack(one.id)
