"""The index of subscriptions and that of topics, against a naive matcher; and what it costs to look."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.hub import topics
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.topics import MOST_LEVELS, Names, Subscriptions, check_filter, check_topic
from tests.rows import each_row


def naive(pattern: str, topic: str) -> bool:
    """MQTT 5.0, 4.7, level by level."""
    if topic.startswith("$") and pattern[0] in "+#":
        return False
    have, want = topic.split("/"), pattern.split("/")
    if want[-1] == "#":
        want.pop()
        if len(have) < len(want):
            return False
        have = have[: len(want)]
    return len(have) == len(want) and all(w in ("+", h) for w, h in zip(want, have, strict=True))


_level = st.sampled_from(["a", "b", "", "$x"])
_topic = st.lists(_level, min_size=1, max_size=4).map("/".join).filter(bool)
_filter = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(_level | st.just("+"), max_size=4),
    st.sampled_from([(), ("#",)]),
).filter(bool)


@settings(deadline=None)
@given(
    st.lists(st.tuples(_filter, st.integers(0, 2), st.booleans()), max_size=30), st.lists(_topic, min_size=1)
)
def test_subscriptions_match_as_a_naive_matcher_does(
    steps: list[tuple[str, int, bool]], names: list[str]
) -> None:
    index: Subscriptions[tuple[str, int]] = Subscriptions()
    there: set[tuple[str, int]] = set()
    for pattern, key, add in steps:
        if add:
            index.add(pattern, key, (pattern, key))
            there.add((pattern, key))
        else:
            assert index.remove(pattern, key) == ((pattern, key) in there)
            there.discard((pattern, key))
        assert len(index) == len(there)
    for name in names:
        assert Counter(index.match(name)) == Counter(one for one in there if naive(one[0], name))
    for pattern, key in there:
        assert index.remove(pattern, key)
    assert not len(index)
    assert not index._tree.nodes
    assert not index._tree.root.below


@settings(deadline=None)
@given(st.lists(st.tuples(_topic, st.booleans()), max_size=30), st.lists(_filter, min_size=1))
def test_names_match_as_a_naive_matcher_does(steps: list[tuple[str, bool]], patterns: list[str]) -> None:
    index = Names()
    there = set()
    for name, add in steps:
        if add:
            index.add(name)
            there.add(name)
        else:
            index.remove(name)
            there.discard(name)
    assert set(index) == there
    for pattern in patterns:
        found = index.match(pattern)
        assert sorted(found) == sorted(name for name in there if naive(pattern, name))


def test_the_same_key_again_replaces() -> None:
    index: Subscriptions[str] = Subscriptions()
    for pattern in ("a/b", "a/+"):
        index.add(pattern, 1, "old")
        index.add(pattern, 1, "new")
    assert index.match("a/b") == ["new", "new"]
    assert len(index) == 2


class CountingNode(topics._Node[int]):
    """Counts how often a level is looked at."""

    looks = 0

    @property
    def below(self) -> dict[str, "topics._Node[int]"]:
        CountingNode.looks += 1
        return self._below

    @below.setter
    def below(self, value: dict[str, "topics._Node[int]"]) -> None:
        self._below = value


def test_the_number_of_subscriptions_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_Node", CountingNode)
    looks = []
    for many in (0, 20_000):
        index: Subscriptions[int] = Subscriptions()
        index.add("board/+/celsius", "x", -1)
        index.add("board/7/#", "y", -2)
        for n in range(many):
            index.add(f"board/{n}/volt", n, n)
            index.add(f"other/{n}/+", n, n)
        CountingNode.looks = 0
        assert sorted(index.match("board/7/celsius")) == [-2, -1]
        looks.append(CountingNode.looks)
    assert looks[0] == looks[1]


def test_an_index_refuses_nothing() -> None:
    """What all subscriptions cost is bounded before; the index hears of them when they are granted already."""
    index: Subscriptions[int] = Subscriptions()
    many = 1_000_001
    for n in range(many):
        index.add("a", n, n)
    assert len(index) == many


def test_explosions_are_bounded() -> None:
    names = Names(limit=2, levels=4)
    names.add("a/b")
    with pytest.raises(RefusedError, match="2 levels"):
        names.add("c/d/e")
    names.add("a/c")
    with pytest.raises(RefusedError, match="2 topics"):
        names.add("d")
    assert set(names) == {"a/b", "a/c"}
    assert names._tree.nodes == 3


@each_row("topic", ["", "a/+", "#", "a\0", "x" * 65536, "/" * MOST_LEVELS, "\ud800"])
def test_what_is_no_topic(topic: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_topic(topic)
    assert caught.value.reason == 0x90


@each_row("pattern", ["", "a+", "#/a", "a\0", "+" * 2, "x" * 65536, "+/" * MOST_LEVELS])
def test_what_is_no_filter(pattern: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_filter(pattern)
    assert caught.value.reason == 0x8F


def test_what_is_allowed() -> None:
    for name in ("a", "/", "$dead/a/b", "/" * (MOST_LEVELS - 1), "é/ä b"):
        assert check_topic(name) == check_filter(name) == name
    for pattern in ("#", "+", "+/+/#", "$dead/#"):
        assert check_filter(pattern) == pattern
