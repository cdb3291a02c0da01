"""Who gets which queue: each one consumer, evenly, with as few moves as that takes; against trying everything."""

from collections import Counter, deque
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from itertools import product
from typing import TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater_host.hub.assignment import assigning

Q = TypeVar("Q", bound=Hashable)
M = TypeVar("M", bound=Hashable)


def assign(queues: Mapping[Q, Sequence[M]], now: Mapping[Q, M]) -> dict[Q, M]:
    """All steps at once."""

    def steps() -> Generator[None, None, None]:
        found.update((yield from assigning(queues, now)))

    found: dict[Q, M] = {}
    deque(steps(), maxlen=0)
    return found


def uneven(given: Iterable[str]) -> int:
    """Less is more even."""
    return sum(n * n for n in Counter(given).values())


def moves(before: dict[int, str], after: dict[int, str]) -> int:
    return sum(before[queue] != after[queue] for queue in before if queue in after)


_members = st.lists(st.sampled_from("abcd"), unique=True, max_size=3)


#: c can help a only by way of b.
_CHAIN = {1: ["a"], 2: ["a", "b"], 3: ["a", "b"], 4: ["b", "c"], 5: ["b", "c"]}


@settings(deadline=None)
@example(_CHAIN, {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"})
@example({topic: ["a", "b", "c"] for topic in range(9)}, {})
@given(
    st.dictionaries(st.integers(0, 9), st.lists(st.sampled_from("abc"), unique=True), max_size=7),
    st.dictionaries(st.integers(0, 9), st.sampled_from("abcx"), max_size=9),
)
def test_each_queue_has_one_who_may_have_it_and_it_is_as_even_as_can_be(
    queues: dict[int, list[str]], now: dict[int, str]
) -> None:
    given = assign(queues, now)
    assert given.keys() == {queue for queue, members in queues.items() if members}
    assert all(given[queue] in queues[queue] for queue in given)
    choices = [members for members in queues.values() if members]
    assert uneven(given.values()) == min(uneven(choice) for choice in product(*choices))
    assert assign(queues, given) == given


@settings(deadline=None)
@given(st.integers(0, 7), _members, st.data())
def test_among_equals_no_queue_moves_without_need(
    count: int, members: list[str], data: st.DataObject
) -> None:
    now = data.draw(st.dictionaries(st.integers(0, 7), st.sampled_from("abcd")))
    queues = dict.fromkeys(range(count), members)
    given = assign(queues, now)
    if not members:
        assert given == {}
        return
    here = {queue: now[queue] for queue in queues if now.get(queue) in members}
    best = min(
        (uneven(choice), moves(here, dict(zip(queues, choice, strict=True))))
        for choice in product(members, repeat=count)
    )
    assert (uneven(given.values()), moves(here, given)) == best
    if count:
        shares = Counter(dict.fromkeys(members, 0))
        shares.update(given.values())
        assert max(shares.values()) - min(shares.values()) <= 1


def moved(before: dict[int, str], after: dict[int, str]) -> set[int]:
    """The queues that have another member."""
    return {queue for queue in before | after if before.get(queue) != after.get(queue)}


def test_members_come_and_go() -> None:
    def of(members: str) -> dict[int, str]:
        return dict.fromkeys(range(12), members)

    alone = assign(of("a"), {})
    assert set(alone.values()) == {"a"}
    two = assign(of("ab"), alone)
    assert Counter(two.values()) == {"a": 6, "b": 6}
    assert len(moved(alone, two)) == 6
    three = assign(of("abc"), two)
    assert len(moved(two, three)) == 4
    without_b = assign(of("ac"), three)
    assert moved(three, without_b) == {q for q, m in three.items() if m == "b"}
    assert assign({}, without_b) == {}


def test_large_groups_in_little_work() -> None:
    """A thousand queues and a hundred members: how often somebody's share is asked for is bounded."""
    asked = 0

    class Counted(list[str]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            return super().__iter__()

    members = Counted(str(n) for n in range(100))
    queues = dict.fromkeys(range(1000), members)
    given = assign(queues, dict.fromkeys(range(1000), "0"))
    assert set(Counter(given.values()).values()) == {10}
    # Each queue is looked at a few times to begin with, and the list of members once for each move.
    assert asked < 4000, asked
