"""The hub over real sockets: who may come in, topics, and publishing."""

import asyncio
import shutil
import threading
import time
from ipaddress import ip_network
from pathlib import Path

import pytest

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.values import encode
from headwater_host.hub.access import ANY, Rule
from headwater_host.hub.service import Hub
from headwater_host.hub.users import Hash, hashed
from tests.host.hub_client import ClientLimits, Peer, config, hub_of, new_id, until
from tests.host.hub_storage import writing
from tests.rows import each_row

USERS = {"ann": hashed(b"secret", ln=4), "bob": hashed(b"other", ln=4)}


def stored(hub: Hub, topic: str) -> list[bytes]:
    store = hub.broker.store
    queues = range(len(store.topics[topic].queues)) if topic in store.topics else ()
    return [message.payload for queue in queues for message in store.read(topic, queue, 0, 10**6)]


async def test_auth_gives_a_process_number_that_a_name_keeps(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        nobody = await Peer.login(hub)
        other = await Peer.login(hub)
        named = await Peer.login(hub, "board")
        assert len({nobody.process, other.process, named.process}) == 3
        known = named.process
    async with hub_of(config(tmp_path)) as hub:
        again = await Peer.login(hub, "board")
        assert again.process == known
        assert (await Peer.login(hub)).process > known


async def test_auth_tells_the_time(hub: Hub) -> None:
    peer = await Peer.open(hub)
    before = time.time_ns()
    answer = await peer.auth("a")
    assert before <= answer.values[3].nanoseconds <= time.time_ns()
    assert not peer.present


@each_row(
    "name,more,reason",
    [
        ("a", {"user": "ann", "password": "wrong"}, 0x86),
        ("a", {"user": "ann"}, 0x86),
        ("a", {"user": "eve", "password": "secret"}, 0x86),
        ("", {"clean": False}, 0x85),
        ("a\n", {}, 0x85),
        ("a" * 257, {}, 0x85),
        ("a", {"will": (b"t/#", 0, False, b"")}, 0x90),
    ],
)
@pytest.mark.settings(users=USERS)
async def test_auth_is_refused(hub: Hub, name: str, more: dict[str, object], reason: int) -> None:
    peer = await Peer.open(hub)
    assert (await peer.auth(name, **more)).code == reason  # type: ignore[arg-type]
    assert await peer.ended() == []
    assert not hub.broker.clients.by_name


@pytest.mark.settings(users=USERS)
async def test_a_user_comes_in_and_another_cannot_take_the_name(hub: Hub) -> None:
    peer = await Peer.login(hub, "a", user="ann", password="secret")
    other = await Peer.open(hub)
    assert (await other.auth("a", user="bob", password="other")).code == 0x85
    await peer.ping()


@pytest.mark.settings(users={"ann": USERS["ann"]}, clients=ClientLimits(login=0.3))
async def test_a_password_check_that_takes_too_long_helps_the_next_login(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, checked = threading.Event(), Hash.holds

    def holds(self: Hash, password: bytes) -> bool:
        busy.wait()
        return checked(self, password)

    monkeypatch.setattr(Hash, "holds", holds)
    try:
        for password in ("secret", "wrong"):
            peer = await Peer.open(hub)
            answer = await peer.auth("a", user="ann", password=password)
            assert (answer.code, answer.values[1]) == (0x8D, "the password was not checked in time")
        busy.set()
        await until(lambda: hub.broker._users._free == 2)
        busy.clear()
        peer = await Peer.open(hub)
        assert (await peer.auth("a", user="ann", password="secret")).code == 0
    finally:
        busy.set()
    assert (await (await Peer.open(hub)).auth("a", user="ann", password="wrong")).code == 0x86


async def test_a_name_is_taken_over(hub: Hub) -> None:
    first = await Peer.login(hub, "a", clean=False)
    second = await Peer.login(hub, "a", clean=False)
    assert second.present
    assert second.process == first.process
    (last,) = await first.ended()
    assert (last.id, last.code) == (first.auth_id, 0x8E)
    await second.ping()
    third = await Peer.login(hub, "a")
    assert not third.present
    await third.leave()
    assert not (await Peer.login(hub, "a", clean=False)).present


async def test_a_session_outlives_the_hub_but_not_its_time(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        await (await Peer.login(hub, "a", clean=False)).leave()
        await (await Peer.login(hub, "b")).leave()
    async with hub_of(config(tmp_path, clients=ClientLimits(session=0.05))) as hub:
        assert (await Peer.login(hub, "a", clean=False)).present
        assert not (await Peer.login(hub, "b", clean=False)).present
        await (await Peer.login(hub, "a", clean=False)).leave()
        await until(lambda: "a" not in hub.broker.store.sessions)
        assert not (await Peer.login(hub, "a", clean=False)).present


async def test_nothing_goes_before_auth_and_auth_goes_once(hub: Hub) -> None:
    peer = await Peer.open(hub)
    assert (await peer.ask(spec.PINGREQ)).code == 0x82
    assert await peer.ended() == []
    peer = await Peer.login(hub)
    assert (await peer.auth()).code == 0x82
    assert await peer.ended() == []
    peer = await Peer.login(hub)
    assert (await peer.ask(spec.SLAVEOF, flags=spec.REG)).code == 0x82


async def test_frames_in_pieces_and_together(hub: Hub) -> None:
    peer = await Peer.login(hub)
    for n in range(50):
        peer.publish("t", b"%d" % n, 1)
    await peer.ping()
    data = b"\x32" + (ident := new_id(spec.PUBLISH, 1)) + b"\x05" + encode("t") + b"\xd0x"
    for byte in data:
        peer.raw(bytes([byte]))
        await asyncio.sleep(0)
    assert (await peer.answer(ident)).code == 0
    big = bytes(range(256)) * 4096
    await peer.send_message("big", big)
    assert stored(hub, "big") == [big]
    assert stored(hub, "t") == [b"%d" % n for n in range(50)] + [b"x"]


async def test_what_comes_before_a_malformed_frame_is_stored(hub: Hub) -> None:
    peer, other = await Peer.login(hub), await Peer.login(hub)
    ident, wrong = peer.publish("t", b"1", 1), new_id(4)
    peer.raw(b"\x40" + wrong + b"\0" * 100)
    *before, last = await peer.ended()
    assert (last.code, last.id) == (0x81, wrong)
    await other.ping()
    await until(lambda: stored(hub, "t") == [b"1"])
    assert [got.id for got in before] in ([ident], [])


async def test_what_has_no_id_is_answered_with_that_of_auth(hub: Hub) -> None:
    peer = await Peer.login(hub)
    peer.raw(b"\x30\x3f" + bytes(30))
    (last,) = await peer.ended()
    assert (last.id, last.code) == (peer.auth_id, 0x81)


@pytest.mark.settings(auto_register=False)
async def test_topics(hub: Hub) -> None:
    peer = await Peer.login(hub)
    assert (await peer.answer(peer.publish("a", b"", 1))).code == 0x90
    for values, code in (
        ((b"a",), 0),
        ((b"a", 4), 0),
        ((b"a", 4), 0),
        ((b"a", 3), 0x83),
        ((b"a", 0), 0x97),
        ((b"a", 1 << 40), 0x97),
        ((b"a/#",), 0x90),
        ((b"$a",), 0x90),
    ):
        assert (await peer.ask(spec.REGISTER, values)).code == code, values
    assert len(hub.broker.store.topics["a"].queues) == 4
    await peer.send_message("a", b"1")
    assert (await peer.ask(spec.UNREGISTER, (b"a",))).code == 0
    assert (await peer.ask(spec.UNREGISTER, (b"a",))).code == 0x90
    assert (await peer.answer(peer.publish("a", b"", 1))).code == 0x90


async def test_a_topic_by_its_hash(hub: Hub) -> None:
    peer = await Peer.login(hub)

    async def by_hash(topic: str, payload: bytes) -> int:
        ident = peer.send(spec.PUBLISH, (hash_of(topic), (), payload), 2)
        return (await peer.answer(ident)).code

    assert await by_hash("a", b"1") == 0x90
    await peer.ask(spec.REGISTER, (b"a",))
    assert await by_hash("a", b"2") == 0
    await peer.ask(spec.UNREGISTER, (b"a",))
    assert await by_hash("a", b"3") == 0x90
    await peer.ask(spec.REGISTER, (b"a",))
    assert await by_hash("a", b"4") == 0
    assert stored(hub, "a") == [b"4"]


async def test_what_is_acknowledged_is_stored_once(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub, "a")
        for qos in (0, 1, 2):
            ident = await peer.send_message("t", b"%d" % qos, qos)
            await peer.ping()
            again = peer.publish("t", b"again", qos, ident=ident, dup=qos > 0)
            if qos:
                assert (await peer.answer(again)).code == 0
        one = peer.publish("t", b"3", 2)
        assert (await peer.answer(one)).name == "PUBREC"
        peer.abort()
    async with hub_of(config(tmp_path)) as hub:
        peer = await Peer.login(hub, "a")
        peer.publish("t", b"3", 2, ident=one, dup=True)
        assert (await peer.answer(one)).name == "PUBREC"
        assert (await peer.ask(spec.PUBREL, ident=one)).name == "PUBCOMP"
        # A PUBREL whose PUBCOMP was lost.
        assert (await peer.ask(spec.PUBREL, ident=one)).name == "PUBCOMP"
        assert stored(hub, "t") == [b"0", b"1", b"2", b"3"]


async def test_an_answer_waits_for_the_disk(hub: Hub) -> None:
    peer = await Peer.login(hub)
    for qos in (1, 2):
        ident = peer.publish("t", b"x", qos)
        await peer.answer(ident)
        assert hub.broker.store.durable >= max(m.seq for m in hub.broker.store.read("t", 0, 0, 9))
    # While the disk takes nothing, nothing is answered.
    commits = hub.broker.store.commits
    db = writing(hub.broker.store)
    db.execute("PRAGMA query_only = ON")
    late = peer.publish("t", b"late", 1)
    await peer.ping()
    assert not peer.got
    assert hub.broker.store.commits == commits
    db.execute("PRAGMA query_only = OFF")
    assert (await peer.answer(late)).code == 0


async def test_the_queue_is_that_of_the_process(hub: Hub) -> None:
    peer = await Peer.login(hub)
    await peer.ask(spec.REGISTER, (b"t", 5))
    for process in (1, 2, 7, 300):
        await peer.send_message("t", b"%d" % process, ident=new_id(spec.PUBLISH, process))
    queues = [[m.payload for m in hub.broker.store.read("t", q, 0, 9)] for q in range(5)]
    assert queues == [[b"300"], [b"1"], [b"2", b"7"], [], []]


@pytest.mark.settings(
    users=USERS,
    rules=(
        Rule(topics=("free/#",), allow=ANY),
        Rule(users=("ann",), allow=(ip_network("127.0.0.0/8"),)),
        Rule(deny=ANY),
    ),
)
async def test_rules_refuse_and_nothing_is_stored(hub: Hub) -> None:
    peer = await Peer.login(hub)
    await peer.send_message("free/a", b"1")
    for qos in (0, 1, 2):
        assert (await peer.answer(peer.publish("other", b"1", qos))).code == 0x87
    assert (await peer.ask(spec.REGISTER, (b"other",))).code == 0x87
    assert (await peer.ask(spec.UNREGISTER, (b"other",))).code == 0x87
    assert "other" not in hub.broker.store.topics
    ann = await Peer.login(hub, user="ann", password="secret")
    await ann.send_message("other", b"1")
    will = await Peer.open(hub)
    assert (await will.auth(will=(b"other", 0, False, b""))).code == 0x87


async def test_a_will_outlives_a_hub_that_is_killed(tmp_path: Path) -> None:
    """Whoever was connected has not said goodbye: the next hub publishes it, before anybody comes, and once."""

    files = "hub.db", "hub.db-wal"
    async with hub_of(config(tmp_path)) as hub:
        peers = [
            await Peer.login(hub, name, will=(b"gone", 1, True, name.encode()))
            for name in ("a", "b", "c", "")
        ]
        await peers[1].leave()
        peers.append(await Peer.login(hub, "c"))
        await until(lambda: stored(hub, "gone") == [b"c"] and hub.broker.store.waiting == 0)
        # What a process that is killed leaves behind.
        (tmp_path / "killed").mkdir()
        for name in files:
            shutil.copy(tmp_path / name, tmp_path / "killed" / name)
    for _ in range(2):
        async with hub_of(config(tmp_path / "killed")) as hub:
            await (await Peer.login(hub)).leave()
            assert stored(hub, "gone") == [b"c", b"a", b""]
            assert hub.broker.store.retained == {}


async def test_a_will_when_the_hub_ends(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path), with_clients=False) as hub:
        peer = await Peer.login(hub, will=(b"gone", 1, False, b"x"))
    assert [got.code for got in await peer.ended()] == [0x8B]
    for _ in range(2):
        async with hub_of(config(tmp_path)) as hub:
            assert stored(hub, "gone") == [b"x"]


async def test_a_connection_that_is_accepted_while_the_hub_stops(hub: Hub) -> None:
    # It is made one turn of the event loop after it was accepted.
    hub.broker.stop()
    peer = await Peer.open(hub)
    with pytest.raises((EOFError, ConnectionError)):
        await peer.auth("late")


@pytest.mark.settings(clients=ClientLimits(connections_per_address=2))
async def test_too_many_connections(hub: Hub) -> None:
    peers = [await Peer.login(hub) for _ in range(2)]
    third = await Peer.open(hub)
    assert (await third.auth()).code == 0x97
    assert await third.ended() == []
    await peers[0].leave()
    await until(lambda: len(hub.broker.connections) == 1)
    await (await Peer.login(hub)).ping()
    await peers[1].ping()


async def test_an_end_in_good_order(tmp_path: Path) -> None:
    async with hub_of(config(tmp_path), with_clients=False) as hub:
        peer = await Peer.login(hub)
        idents = [peer.publish("t", b"x", 1) for _ in range(100)]
        await until(lambda: "t" in hub.broker.store.topics and hub.broker.store.topics["t"].count == 100)
    *answers, last = await peer.ended()
    assert [got.id for got in answers] == idents
    assert (last.id, last.code) == (peer.auth_id, 0x8B)
