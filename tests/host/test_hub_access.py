"""Access rules: the first that matches decides, and a wildcard is no way around one."""

from ipaddress import ip_network
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater_host.hub.access import ANY, Access, Rule, address, covers, overlaps
from headwater_host.hub.errors import RefusedError
from tests.host.test_hub_topics import naive
from tests.rows import each_row

HOME = (ip_network("192.168.0.0/16"), ip_network("fd00::/8"))
ROOM = (ip_network("192.168.7.0/24"),)
HERE, THERE, ABROAD = address("192.168.7.5"), address("192.168.8.1"), address("203.0.113.9")

#: Enough topics to tell any two filters of these levels apart.
_LEVELS = ("a", "b", "", "$x", "other")
TOPICS = ["/".join(parts) for n in range(1, 5) for parts in product(_LEVELS, repeat=n) if "/".join(parts)]
_filter = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=3),
    st.sampled_from([(), ("#",)]),
).filter(bool)


@settings(deadline=None, max_examples=300)
@example("+/#", "#")
@example("#", "+/#")
@example("a/+/#", "a/#")
@example("/+/#", "/#")
@example("+/+/#", "/#")
@example("+", "/#")
@given(_filter, _filter)
def test_covering_and_overlapping_are_what_the_topics_say(one: str, other: str) -> None:
    ours = {topic for topic in TOPICS if naive(one, topic)}
    theirs = {topic for topic in TOPICS if naive(other, topic)}
    assert overlaps(one, other) == overlaps(other, one) == bool(ours & theirs)
    assert covers(one, other) == (theirs <= ours)


def test_the_first_rule_that_matches_decides() -> None:
    access = Access(
        [
            Rule(types=("PUBLISH",), topics=("alarm/#",), users=("alice",), allow=HOME),
            Rule(topics=("alarm/#",), deny=ANY),
            Rule(users=(None,), topics=("public/+",), types=("SUBSCRIBE",), allow=HOME, deny=ROOM),
            Rule(users=("bob",), deny=ROOM),
        ],
        open_=False,
    )

    def may(kind: str, topic: str | None, user: str | None, peer: object = HERE) -> bool:
        return access.allows(kind, topic, user, peer)  # type: ignore[arg-type]

    assert may("PUBLISH", "alarm/fire", "alice")
    assert not may("PUBLISH", "alarm/fire", "alice", ABROAD)
    assert not may("SUBSCRIBE", "alarm/fire", "alice")
    assert not may("PUBLISH", "alarm", "carol")
    assert may("PUBLISH", "alarms", "carol", ABROAD)
    # Within a rule, denied comes first.
    assert may("SUBSCRIBE", "public/x", None, THERE)
    assert not may("SUBSCRIBE", "public/x", None, HERE)
    assert not may("SUBSCRIBE", "public/x", None, ABROAD)
    assert not may("PUBLISH", "public/x", None, THERE)
    assert not may("REGISTER", "x", "bob", HERE)
    assert may("REGISTER", "x", "bob", THERE)
    # About no topic: only rules about all topics.
    assert may("SLAVEOF", None, "alice")
    assert not may("SLAVEOF", None, "bob")
    assert not may("SLAVEOF", None, None)


def test_a_wildcard_is_no_way_around_a_rule() -> None:
    access = Access(
        [Rule(topics=("secret/#",), deny=ANY), Rule(topics=("home/+/celsius", "$dead/home/#"), allow=ANY)],
        open_=False,
    )
    for pattern in ("#", "+/x", "secret/#", "secret", "+", "+/#"):
        assert not access.allows("SUBSCRIBE", pattern, "alice", HERE), pattern
        assert not access.allows("SUBSCRIBE", pattern, None, HERE), pattern
    assert access.allows("SUBSCRIBE", "home/+/celsius", None, HERE)
    assert access.allows("SUBSCRIBE", "home/1/celsius", None, HERE)
    for pattern in ("home/#", "home/+/+", "home/+"):
        assert not access.allows("SUBSCRIBE", pattern, None, HERE), pattern
    assert access.allows("SUBSCRIBE", "$dead/home/1", None, HERE)


def test_without_rules() -> None:
    closed, open_ = Access([], open_=False), Access([], open_=True)
    assert closed.allows("PUBLISH", "t", "alice", ABROAD)
    assert not closed.allows("PUBLISH", "t", None, HERE)
    assert open_.allows("PUBLISH", "t", None, HERE)
    closed.check("PUBLISH", "t", "alice", ABROAD)
    with pytest.raises(RefusedError, match="PUBLISH 't' is not allowed for anonymous clients") as caught:
        closed.check("PUBLISH", "t", None, HERE)
    assert caught.value.reason == 0x87


def test_what_is_remembered_is_bounded_and_right() -> None:
    access = Access([Rule(topics=("t/5",), deny=ANY)], open_=True)
    for _ in range(2):
        for n in range(12_000):
            assert access.allows("PUBLISH", f"t/{n}", None, HERE) == (n != 5)
    assert len(access._known) <= 10_000


@each_row(
    "text, plain",
    [
        ("::ffff:192.168.7.5", "192.168.7.5"),
        ("192.168.7.5", "192.168.7.5"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
    ],
)
def test_addresses(text: str, plain: str) -> None:
    assert str(address(text)) == plain
