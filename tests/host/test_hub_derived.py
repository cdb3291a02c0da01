"""The rules of a topic hold for its dead letters and its calls, for each message, and for sessions that are older."""

from pathlib import Path
from typing import Any

import pytest

from headwater.fmq import spec
from headwater_host.fmq.hashes import hash_of
from headwater_host.hub.access import ANY, Access, Rule, address
from headwater_host.hub.service import Hub
from headwater_host.hub.topic_list import PAGE
from headwater_host.hub.users import hashed
from tests.host.hub_client import Limits, Peer, config, hub_of, until
from tests.host.test_hub_listing import page
from tests.host.test_hub_rpc import asked, call, refusal, reply, serving

USERS = {"ann": hashed(b"secret", ln=4)}
ANN: dict[str, Any] = {"user": "ann", "password": "secret"}
DEAD = "$dead/secret/x"
HERE = address("127.0.0.1")
NO_TAGS = b"\xd0"
DENIED = (Rule(users=("ann",), allow=ANY), Rule(topics=("jobs/secret",), deny=ANY))


async def a_dead_letter(hub: Hub) -> None:
    """Ann publishes a message that she refuses to acknowledge."""
    ann = await Peer.login(hub, **ANN)
    ann.consume(await ann.subscribe("secret/x", group="g"))
    await ann.send_message("secret/x", b"hers")
    got = await ann.next()
    ann.send(spec.ACK, (0x80,), ident=got.id)
    await until(lambda: DEAD in hub.broker.registry.known)


@pytest.mark.parametrize("topics", [("#",), ("secret/#",), ("+/x", "secret/+"), ("secret/x",)], ids="|".join)
async def test_an_anonymous_client_gets_nothing_of_what_is_derived(
    topics: tuple[str, ...], tmp_path: Path
) -> None:
    rules = (Rule(users=("ann",), allow=ANY), Rule(topics=topics, deny=ANY))
    settings = config(tmp_path, Limits(tries=1), users=USERS, rules=rules)
    async with hub_of(settings) as hub:
        await a_dead_letter(hub)
        ann = await serving(hub, "secret/x", **ANN)
        eve = await Peer.login(hub)
        requests: list[tuple[int, tuple[Any, ...], int]] = [
            (spec.SUBSCRIBE, (wanted, (), b"", group), 0)
            for wanted in (DEAD.encode(), b"$dead/#", b"$dead/+/x", b"$dead/secret/#", hash_of(DEAD))
            for group in (b"", b"g", b"other")
        ]
        requests += [
            (spec.CONSUME, (wanted, (), b"", b"other"), spec.ONCE)
            for wanted in (DEAD.encode(), b"$dead/#", hash_of(DEAD))
        ]
        requests += [
            (spec.SUBSCRIBE, (wanted,), 0)
            for wanted in (b"$rpc/secret/x", b"$rpc/#", b"$rpc/secret/#", b"$rpc/+/x")
        ]
        requests += [
            (spec.UNREGISTER, (DEAD.encode(),), 0),
            (spec.CONSUME, (b"secret/x", (), b"", b"", b"arguments"), spec.ONCE),
        ]
        for kind, values, flags in requests:
            got = await eve.ask(kind, values, flags)
            assert (got.name, got.code) == ("ACK", 0x87), (kind, values, got)
        assert [row["topic"] for row in (await page(eve))["topics"]] == []
        # An answer to a call that somebody else was sent is none.
        ident = call(ann, "secret/x", b"1")
        assert (await asked(ann)).id == ident
        assert (await refusal(eve, reply(eve, ident, b"forged", 1)))[0] == 0x10
        reply(ann, ident, b"right")
        got = await ann.answer_or_response(ident)
        assert got.payload == b"right"
        assert not eve.got
        # The dead letter is where it was, for her whose it is.
        assert (await page(ann, "$dead/#"))["topics"][0]["messages"] == 1
        ann.consume(await ann.subscribe(DEAD, group="other"))
        assert (await ann.next()).payload == b"hers"


@pytest.mark.settings(Limits(tries=1), users=USERS)
async def test_nobody_publishes_to_dead_letters(hub: Hub) -> None:
    await a_dead_letter(hub)
    ann = await Peer.login(hub, **ANN)
    for topic in (DEAD.encode(), hash_of(DEAD), b"$dead/other", b"$rpc/secret/x", b"$dead"):
        for qos in (0, 1, 2):
            assert (await ann.ask(spec.PUBLISH, (topic, NO_TAGS, b"x"), qos << 1)).code == 0x90, topic
    assert (await (await Peer.open(hub)).auth(will=(DEAD.encode(), 0, False, b"x"), **ANN)).code == 0x90
    assert (await ann.ask(spec.REGISTER, (b"$dead/other", 1))).code == 0x90
    assert hub.broker.store.topics[DEAD].count == 1


def test_a_rule_that_names_a_derived_topic_takes_precedence() -> None:
    access = Access(
        [
            Rule(users=("root",), allow=ANY),
            Rule(topics=("secret/#",), deny=ANY),
            Rule(topics=("jobs/#",), users=("bob",), allow=ANY),
            Rule(topics=("$dead/secret/#",), users=("ann",), allow=ANY),
            Rule(topics=("$rpc/jobs/admin",), deny=ANY),
            Rule(deny=ANY),
            Rule(topics=("$dead/late",), allow=ANY),
        ],
        open_=True,
    )

    def may(kind: str, topic: str, user: str | None) -> bool:
        return access.allows(kind, topic, user, HERE)

    for kind in ("SUBSCRIBE", "CONSUME", "UNREGISTER"):
        assert may(kind, "$dead/secret/x", "ann")
        assert may(kind, "$dead/secret/#", "ann")
        assert not may(kind, "$dead/#", "ann")
        assert not may(kind, "secret/x", "ann")
        assert not may(kind, "$rpc/secret/x", "ann")
        assert not may(kind, "$dead/secret/x", "bob")
        for topic in ("$dead/jobs/1", "$rpc/jobs/1", "$rpc/jobs/+/x", "$rpc/$dead/jobs/1"):
            assert may(kind, topic, "bob"), topic
        for topic in ("$rpc/jobs/admin", "$rpc/jobs/#", "$rpc/#", "$rpc/$dead/secret/x"):
            assert not may(kind, topic, "bob"), topic
            assert may(kind, topic, "root"), topic
        # A rule about all topics is in front of the last one, and behind none that is about "late".
        assert not may(kind, "$dead/late", "bob")
    # Answers to calls are about no topic "reply", and a derived topic has a name.
    assert Access([Rule(topics=("reply",), deny=ANY)], open_=True).allows("PUBLISH", "$rpc/reply", None, HERE)
    assert Access([Rule(topics=("#",), deny=ANY)], open_=True).allows("SUBSCRIBE", "$dead/", None, HERE)


async def test_a_session_from_before_the_rules_gets_no_message_that_they_deny(tmp_path: Path) -> None:
    """Its wildcards, its literal filters, what is retained for it, its consumers, and the calls that it serves."""
    before = config(tmp_path, Limits(tries=1), users=USERS)
    eve_subscribes = ("#", "secret/x", "+/x", "$dead/#", "$rpc/#")
    async with hub_of(before) as hub:
        eve = await Peer.login(hub, "eve", clean=False)
        for pattern in eve_subscribes:
            await eve.subscribe(pattern)
        grouped = await eve.subscribe("+/x", group="readers")
        await eve.leave()
        ann = await Peer.login(hub, **ANN)
        await ann.send_message("secret/x", b"while she was away")
    rules = (Rule(users=("ann",), allow=ANY), Rule(topics=("secret/#",), deny=ANY))
    async with hub_of(config(tmp_path, Limits(tries=1), users=USERS, rules=rules)) as hub:
        ann = await Peer.login(hub, "ann", **ANN)
        await ann.send_message("secret/x", b"retained", retain=True)
        eve = await Peer.login(hub, "eve", clean=False)
        assert eve.present
        await a_dead_letter(hub)
        assert (await eve.ask(spec.CONSUME, (grouped,))).code == 0x87
        # Nobody serves it who may.
        assert (await refusal(ann, call(ann, "secret/x")))[0] == 0x10
        await serving(hub, "secret/x", **ANN)
        await ann.send_message("open/x", b"for everybody", 1)
        got = await eve.next()
        assert (got.topic, got.payload) == ("open/x", b"for everybody")
        await eve.ping()
        assert not eve.got


@pytest.mark.settings(users=USERS)
async def test_a_consumer_is_given_no_queue_of_a_topic_that_it_may_not_have(hub: Hub) -> None:
    """Whatever its filter with wildcards was allowed by."""
    eve = await Peer.login(hub)
    eve.consume(await eve.subscribe("jobs/+", group="g"))
    ann = await Peer.login(hub, **ANN)
    ann.consume(await ann.subscribe("jobs/+", group="g"))
    await eve.ping()
    hub.broker.shared.access = Access(DENIED, open_=True)
    for n in range(4):
        await ann.ask(spec.REGISTER, (b"jobs/secret", n + 1))
        await ann.ask(spec.REGISTER, (b"jobs/%d" % n, 1))
    for n in range(4):
        await ann.send_message("jobs/secret", b"%d" % n)
    got = [await ann.next() for _ in range(4)]
    assert sorted(each.payload for each in got) == [b"0", b"1", b"2", b"3"]
    await eve.ping()
    assert not eve.got


@pytest.mark.settings(users=USERS)
async def test_a_consumer_that_is_alone_is_given_none_either(hub: Hub) -> None:
    eve, ann = await Peer.login(hub), await Peer.login(hub, **ANN)
    eve.consume(await eve.subscribe("jobs/+", group="g"))
    await eve.ping()
    hub.broker.shared.access = Access(DENIED, open_=True)
    await ann.send_message("jobs/secret", b"hers")
    await ann.send_message("jobs/1", b"anybody's")
    assert (await eve.next()).payload == b"anybody's"
    ann.consume(await ann.subscribe("jobs/+", group="g"))
    assert (await ann.next()).payload == b"hers"


@pytest.mark.settings(rules=(Rule(("SUBSCRIBE",), ("b/#",), deny=ANY),))
async def test_a_listing_names_no_topic_that_is_denied(hub: Hub) -> None:
    """Not to go on behind, either: with more such topics than the hub looks at for one answer."""
    for n in range(2 * PAGE + 7):
        hub.broker.registry.register(f"b/{n}", 1)
    for name in ("a", "c", "d"):
        hub.broker.registry.register(name, 1)
    peer = await Peer.login(hub)
    found, after, seen = [], None, []
    while True:
        got = await page(peer, None, after)
        found += [row["topic"] for row in got["topics"]]
        after = got["after"]
        if after is None:
            break
        seen.append(after)
    assert found == ["a", "c", "d"]
    assert seen == ["a"]
    # One who goes while the hub looks leaves nothing behind.
    call(peer, "$hub/topics", b"\x00\x11\x01a")
    peer.abort()
    await until(lambda: not hub.broker.connections)
