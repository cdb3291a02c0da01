"""The hub over real sockets: RPC (docs/protocols/fmq.md, section 4)."""

import asyncio
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import spec
from headwater_host.fmq.values import encode as value
from headwater_host.hub.access import ANY, Rule
from headwater_host.hub.service import Hub
from tests.host.hub_client import ClientLimits, Got, Peer, config, hub_of, new_id, replace, until

REPLY = "$rpc/reply"


def call(
    peer: Peer, topic: str, arguments: bytes = b"", tags: tuple[bytes, ...] = (), ident: bytes = b""
) -> bytes:
    """Call: the call's id."""
    return peer.send(spec.CONSUME, (topic.encode(), tags, b"", b"", arguments), spec.ONCE, ident)


async def serving(hub: Hub, *topics: str, name: str = "", **more: Any) -> Peer:
    peer = await Peer.login(hub, name, **more)
    for topic in topics:
        await peer.subscribe("$rpc/" + topic)
    return peer


async def asked(peer: Peer) -> Got:
    """The next call that a responder gets."""
    got = await peer.next()
    assert got.kind == spec.PUBLISH, got
    assert got.id[0] >> 4 == spec.CONSUME, got
    return got


def reply(peer: Peer, ident: bytes, result: bytes, qos: int = 0) -> bytes:
    return peer.publish(REPLY, ident + result, qos)


async def answered(responder: Peer, caller: Peer, ident: bytes, result: bytes = b"") -> None:
    """A responder's reply is the next that its caller gets."""
    reply(responder, ident, result)
    got = await caller.next()
    assert (got.correlation, got.payload) == (ident, result)


async def open_call(hub: Hub) -> tuple[Peer, Peer, bytes]:
    """A responder that was asked, its caller, and the call."""
    responder, caller = await serving(hub, "a"), await Peer.login(hub)
    ident = call(caller, "a")
    assert (await asked(responder)).id == ident
    return responder, caller, ident


async def call_again(responder: Peer, caller: Peer) -> None:
    """Another call is answered."""
    ident = call(caller, "a")
    await asked(responder)
    await answered(responder, caller, ident)


async def refusal(peer: Peer, ident: bytes) -> tuple[int, str]:
    got = await peer.answer(ident)
    assert got.kind == spec.ACK, got
    return got.code, (got.values[1:] or [""])[0]


def outcomes(hub: Hub) -> dict[str, int]:
    """Calls that are over, as the metrics tell."""
    found = {}
    for line in hub.broker.metrics.text().splitlines():
        if line.startswith("headwater_hub_calls_total{"):
            name, number = line.split('"')[1], line.rpartition(" ")[2]
            found[name] = int(number)
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_call_is_answered(hub: Hub, qos: int) -> None:
    responder = await serving(hub, "math/add")
    caller = await Peer.login(hub)
    ident = call(caller, "math/add", b"\x001+2")
    got = await asked(responder)
    assert (got.id, got.topic, got.payload, got.flags) == (ident, "$rpc/math/add", b"\x001+2", 0)
    sent = reply(responder, ident, b"3\xff", qos)
    if qos:
        assert (await responder.answer(sent)).name == ("ACK" if qos == 1 else "PUBREC")
    if qos == 2:
        assert (await responder.ask(spec.PUBREL, ident=sent)).name == "PUBCOMP"
    result = await caller.next()
    assert (result.name, result.correlation, result.topic, result.payload) == (
        "CONSUMERESP",
        ident,
        None,
        b"3\xff",
    )
    assert result.id not in (ident, sent)
    await responder.ping()
    assert responder.got == caller.got == []
    assert outcomes(hub) == {"answered": 1}
    # Nothing of it is stored, and no topic is made.
    assert not hub.broker.store.topics


async def test_nobody_serves_it(hub: Hub) -> None:
    responder = await serving(hub, "a")
    caller = await Peer.login(hub)
    assert (await refusal(caller, call(caller, "b")))[0] == 0x10
    # Neither a consumer group nor a subscriber of the topic itself is a responder.
    got = await caller.ask(spec.SUBSCRIBE, (b"$rpc/c", (), b"", b"group"))
    assert got.code == 0x8F
    await responder.subscribe("c")
    assert (await refusal(caller, call(caller, "c")))[0] == 0x10
    number = await responder.subscribe("$rpc/c")
    ident = call(caller, "c")
    assert (await asked(responder)).id == ident
    assert (await responder.ask(spec.UNSUBSCRIBE, (number,))).code == 0
    assert (await refusal(caller, call(caller, "c")))[0] == 0x10
    # What it was asked it may still answer.
    await answered(responder, caller, ident, b"late, and in time")


@pytest.mark.settings(clients=ClientLimits(frame=1000))
async def test_what_is_no_call(hub: Hub) -> None:
    responder, caller = await serving(hub, "#"), await Peer.login(hub)
    for topic, condition, code in [("+", b"", 0x8F), ("a/#", b"", 0x8F), ("", b"", 0x8F), ("a", b"x", 0x8F)]:
        ident = caller.send(spec.CONSUME, (topic.encode(), (), condition, b"", b""), spec.ONCE)
        assert (await refusal(caller, ident))[0] == code, topic
    # To a responder the topic is longer by "$rpc/": a frame that it would not take is not sent.
    assert (await refusal(caller, call(caller, "a", bytes(1000 - 6))))[0] == 0x95
    assert (await refusal(caller, caller.send(spec.CONSUME, (b"\x99" * 3, (), b"", b""), spec.ONCE)))[
        0
    ] == 0x81
    await caller.ended()
    await responder.ping()
    assert not responder.got


async def test_calls_are_spread_over_those_who_serve(hub: Hub) -> None:
    responders = [await serving(hub, topic) for topic in ("a/b", "a/+", "#")]
    caller = await Peer.login(hub)
    idents = [call(caller, "a/b", b"%d" % n) for n in range(6)]
    # Each in turn, and so each has two; the one who answers is the least busy.
    had = [[(await asked(responder)).id for _ in range(2)] for responder in responders]
    assert sorted(had) == sorted([idents[n], idents[n + 3]] for n in range(3))
    for ident in had[1]:
        reply(responders[1], ident, b"")
        await caller.next()
    more = [call(caller, "a/b") for _ in range(2)]
    assert [(await asked(responders[1])).id for _ in range(2)] == more
    # Who has a filter only gets what it matches.
    call(caller, "c")
    assert (await asked(responders[2])).topic == "$rpc/c"


async def test_tags_and_conditions_choose_who_is_asked(hub: Hub) -> None:
    fast, large, caller = [await Peer.login(hub) for _ in range(3)]
    await fast.subscribe("$rpc/work", ("fast",))
    await large.subscribe("$rpc/work", condition="size > 10")
    ident = call(caller, "work", value({"size": 11}))
    assert (await asked(large)).id == ident
    ident = call(caller, "work", value({"size": 1}), (b"fast", b"x"))
    got = await asked(fast)
    assert (got.id, got.tags) == (ident, ("fast", "x"))
    assert (await refusal(caller, call(caller, "work", value({"size": 1}))))[0] == 0x10


async def test_a_responder_that_is_gone(hub: Hub) -> None:
    first, second = await serving(hub, "a"), await serving(hub, "a")
    caller = await Peer.login(hub)
    idents = [call(caller, "a"), call(caller, "a")]
    assert (await asked(first)).id == idents[0]
    assert (await asked(second)).id == idents[1]
    # It may have been done: it does not go to the other one.
    first.abort()
    code, text = await refusal(caller, idents[0])
    assert (code, text) == (0x83, "the responder is gone")
    await answered(second, caller, idents[1], b"2")
    await second.ping()
    assert not second.got
    assert outcomes(hub) == {"lost": 1, "answered": 1}
    call(caller, "a")
    await asked(second)
    await second.leave()
    assert (await caller.next()).code == 0x83
    assert (await refusal(caller, call(caller, "a")))[0] == 0x10


@pytest.mark.settings(clients=ClientLimits(rpc=0.2))
async def test_a_responder_that_is_too_slow(hub: Hub) -> None:
    responder, caller, ident = await open_call(hub)
    assert await refusal(caller, ident) == (0x83, "the answer did not arrive in time")
    # Its late answer is refused, at every QoS, and it is asked again.
    for qos in (0, 1, 2):
        assert (await refusal(responder, reply(responder, ident, b"late", qos)))[0] == 0x10
    await call_again(responder, caller)
    assert not caller.got
    assert outcomes(hub) == {"late": 1, "answered": 1}


async def test_a_caller_that_is_gone(hub: Hub) -> None:
    (responder, caller, ident), other = await open_call(hub), await Peer.login(hub)
    caller.abort()
    await until(lambda: outcomes(hub) == {"abandoned": 1})
    assert (await refusal(responder, reply(responder, ident, b"for nobody")))[0] == 0x10
    await call_again(responder, other)
    assert not other.got


async def test_replies_that_are_none(hub: Hub) -> None:
    (responder, caller, ident), other = await open_call(hub), await serving(hub, "b")
    unknown = new_id(spec.CONSUME, 77)
    cases = [
        (other, ident + b"from who was not asked", 0x10),
        (caller, ident + b"from the caller itself", 0x10),
        (responder, unknown + b"x", 0x10),
        (responder, b"", 0x99),
        (responder, ident[:-1], 0x99),
        (responder, b"\xff" * 30, 0x99),
        (responder, ident[:1], 0x99),
    ]
    for peer, payload, code in cases:
        for qos in (0, 1, 2):
            assert (await refusal(peer, peer.publish(REPLY, payload, qos)))[0] == code, payload
    # None of them has disturbed the call, which has one answer.
    await answered(responder, caller, ident, b"yes")
    assert (await refusal(responder, reply(responder, ident, b"again", 1)))[0] == 0x10
    await caller.ping()
    assert not caller.got
    # Other topics of this kind are not published to.
    assert (await refusal(responder, responder.publish("$rpc/a", b"x", 1)))[0] == 0x90


@pytest.mark.parametrize(
    "fields, told",
    [
        ((0x87, b"not you"), (0x87, "not you")),
        ((0x80,), (0x80, "")),
        # What is no failure in MQTT 5 would say something else to the caller.
        ((0x10, b"x"), (0x83, "x")),
        ((0x80, "ä".encode() * 1000), (0x80, "ä" * 128)),
    ],
    ids=["text", "code", "success", "long"],
)
async def test_a_responder_refuses_with_a_reason(
    hub: Hub, fields: tuple[Any, ...], told: tuple[int, str]
) -> None:
    (responder, caller, ident), other = await open_call(hub), await serving(hub, "b")
    # Neither another one's, nor one without a reason.
    other.send(spec.ACK, (0x80,), ident=ident)
    await other.ping()
    responder.ack(ident)
    await responder.ping()
    assert not caller.more
    responder.send(spec.ACK, fields, ident=ident)
    assert await refusal(caller, ident) == told
    assert outcomes(hub) == {"refused": 1}


async def test_an_id_is_of_one_call(hub: Hub) -> None:
    responder, caller, other = await serving(hub, "a"), await Peer.login(hub), await Peer.login(hub)
    ident = call(caller, "a")
    for peer in (caller, other):
        assert (await refusal(peer, call(peer, "a", ident=ident)))[0] == 0x91
    await asked(responder)
    await answered(responder, caller, ident, b"1")
    # Of CONSUME as well: the first would never leave its group.
    values = (b"t", (), b"", b"g")
    caller.send(spec.CONSUME, values, spec.ONCE, ident=ident)
    assert (await refusal(caller, caller.send(spec.CONSUME, values, spec.ONCE, ident=ident)))[0] == 0x91
    caller.abort()
    await until(lambda: not hub.broker.groups.by_name)


@pytest.mark.settings(clients=ClientLimits(calls=3, all_calls=5))
async def test_how_many_calls_there_may_be(hub: Hub) -> None:
    responders = [await serving(hub, topic) for topic in ("a", "a", "b")]
    callers = [await Peer.login(hub) for _ in range(3)]
    idents = [call(callers[0], "a") for _ in range(3)]
    # One caller's, one responder's, all.
    assert (await refusal(callers[0], call(callers[0], "b")))[0] == 0x97
    one = [call(callers[1], "b"), call(callers[1], "b")]
    assert (await refusal(callers[2], call(callers[2], "b")))[0] == 0x97
    for ident in one:
        await asked(responders[2])
        await answered(responders[2], callers[1], ident)
    for n in range(3):
        await asked(responders[n % 2])
        reply(responders[n % 2], idents[n], b"")
    for _ in range(3):
        await callers[0].next()
    three = [call(callers[1], "b") for _ in range(3)]
    assert (await refusal(callers[2], call(callers[2], "b")))[0] == 0x97
    await answered(responders[2], callers[1], three[0])
    call(callers[2], "b")
    for _ in range(4):
        await asked(responders[2])


@pytest.mark.settings(clients=ClientLimits(unread=1 << 16, calls=100_000))
async def test_a_responder_that_does_not_read(hub: Hub) -> None:
    """Calls wait for it in bounds; when it goes, those that it was not sent go to another."""
    stuck, caller = await serving(hub, "a"), await Peer.login(hub)
    large = bytes(1 << 15)
    (responder,) = hub.broker.calls.responders.values()
    refused = 0
    idents: set[bytes] = set()
    while not refused:
        ident = call(caller, "a", large)
        idents.add(ident)
        await caller.ping()
        while caller.got:
            got = caller.got.pop()
            assert got.code == 0x97, got
            idents.remove(got.id)
            refused += 1
    # What waits is bounded, and the caller is not disturbed.
    assert responder.waiting_bytes <= 8 << 16
    waiting = set(responder.waiting)
    assert waiting
    sent = idents - waiting
    # Who reads is asked first.
    reader = await serving(hub, "a")
    extra = call(caller, "a")
    assert (await asked(reader)).id == extra
    await answered(reader, caller, extra)
    stuck.abort()
    handed = [(await asked(reader)).id for _ in waiting]
    assert set(handed) == waiting
    for ident in handed:
        reply(reader, ident, b"done")
    over = {got.correlation or got.id: got.code for got in [await caller.next() for _ in idents]}
    assert over == dict.fromkeys(waiting, 0) | dict.fromkeys(sent, 0x83)


@pytest.mark.settings(clients=ClientLimits(unread=1 << 16, calls=100_000))
async def test_what_waits_is_sent_when_the_responder_reads_again(hub: Hub) -> None:
    responder, caller = await serving(hub, "a"), await Peer.login(hub)
    (served,) = hub.broker.calls.responders.values()
    idents = []
    while len(served.waiting) < 3:
        idents.append(call(caller, "a", bytes(1 << 15)))
        await caller.ping()
    # One that is given up is not sent any more.
    other = await Peer.login(hub)
    call(other, "a", b"given up")
    await other.ping()
    other.abort()
    await until(lambda: outcomes(hub) == {"abandoned": 1})
    for ident in idents:
        assert (await asked(responder)).id == ident
        reply(responder, ident, b"")
    assert [(await caller.next()).correlation for _ in idents] == idents
    await responder.ping()
    assert not responder.got
    assert served.waiting_bytes == 0


@pytest.mark.settings(clients=ClientLimits(unread=1 << 16))
async def test_a_caller_that_does_not_read(hub: Hub) -> None:
    """Beyond the bound it gets a reason in the place of results; the responder is not disturbed."""
    responder = await serving(hub, "a")
    # What is not looked at stays with the hub, but for what fits into this and the system's buffers.
    caller = Peer(*await asyncio.open_connection(*hub.addresses[0], limit=1 << 16))
    assert (await caller.auth()).code == 0
    idents = [call(caller, "a") for _ in range(600)]
    result = bytes(1 << 16)
    (connection,) = [c for c in hub.broker.connections if c.client not in hub.broker.calls.responders]
    most = 0
    for _ in idents:
        ident = (await asked(responder)).id
        assert (await responder.answer(reply(responder, ident, result, 1))).code == 0
        most = max(most, connection.unread)
    assert most <= (8 << 16) + 2 * len(result)
    got = [await caller.next() for _ in idents]
    assert {each.code for each in got} == {0, 0x97}
    assert {each.payload for each in got} == {result, b""}
    assert sorted(each.correlation or each.id for each in got) == sorted(idents)


async def test_a_session_that_is_kept_serves_while_it_is_connected(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with hub_of(settings) as hub:
        responder, caller = await serving(hub, "a", name="r", clean=False), await Peer.login(hub)
        await responder.leave()
        assert (await refusal(caller, call(caller, "a")))[0] == 0x10
    async with hub_of(settings) as hub:
        caller = await Peer.login(hub)
        assert (await refusal(caller, call(caller, "a")))[0] == 0x10
        responder = await Peer.login(hub, "r", clean=False)
        assert responder.present
        ident = call(caller, "a")
        assert (await asked(responder)).id == ident
        # Another connection takes over: what the first was asked is lost, and is not asked again.
        again = await Peer.login(hub, "r", clean=False)
        assert (await refusal(caller, ident))[0] == 0x83
        ident = call(caller, "a")
        assert (await asked(again)).id == ident
        await answered(again, caller, ident, b"here")


async def test_a_client_calls_itself(hub: Hub) -> None:
    one = await serving(hub, "a")
    ident = call(one, "a", b"me")
    assert (await asked(one)).payload == b"me"
    await answered(one, one, ident, b"myself")
    call(one, "a")
    await asked(one)
    one.abort()
    await until(lambda: outcomes(hub) == {"answered": 1, "abandoned": 1})


async def test_rules(tmp_path: Path) -> None:
    """SUBSCRIBE to serve, CONSUME to call, PUBLISH to answer."""
    rules = (
        Rule(("SUBSCRIBE",), ("$rpc/a", "$rpc/b"), allow=ANY),
        Rule(("CONSUME",), ("a",), allow=ANY),
        Rule(("PUBLISH",), ("$rpc/reply",), (None,), deny=(ip_network("127.0.0.2/32"),), allow=ANY),
        Rule(deny=ANY),
    )
    async with hub_of(config(tmp_path, rules=rules)) as hub:
        responder, caller = await serving(hub, "a", "b"), await Peer.login(hub)
        for topic in (b"$rpc/c", b"$rpc/#"):
            assert (await responder.ask(spec.SUBSCRIBE, (topic,))).code == 0x87
        assert (await refusal(caller, call(caller, "b")))[0] == 0x87
        ident = call(caller, "a")
        await asked(responder)
        await answered(responder, caller, ident, b"ok")
        await responder.ping()
        assert not responder.got
    async with hub_of(replace(config(tmp_path), rules=(Rule(("PUBLISH",), deny=ANY),))) as hub:
        responder, caller, ident = await open_call(hub)
        assert (await refusal(responder, reply(responder, ident, b"x")))[0] == 0x87
        await caller.ping()
        assert not caller.got
