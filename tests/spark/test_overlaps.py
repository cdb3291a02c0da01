"""Which identities may be in several parts: never one too few."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_spark import overlaps
from headwater_spark.messages import COLUMNS, Groups, in_order
from headwater_spark.overlaps import MAX_RUNS, Shared, rows_in, runs_of, shared

Identity = tuple[str, str, int, int]


def groups_of(identities: list[Identity]) -> Groups:
    """Rows with these identities, (topic, board, boot, seq)."""
    n = len(identities)
    columns = {
        field.name: pa.array([None] * n, field.type.value_type).dictionary_encode()
        if pa.types.is_dictionary(field.type)
        else pa.nulls(n, field.type)
        for field in COLUMNS
    }
    for k, name in enumerate(("topic", "board")):
        columns[name] = pa.array([identity[k] for identity in identities], pa.string()).dictionary_encode()
    for k, name in ((2, "boot"), (3, "seq")):
        columns[name] = pa.array([identity[k] for identity in identities], pa.int64())
    batch = pa.record_batch([columns[name] for name in COLUMNS.names], schema=COLUMNS)
    return Groups(in_order([batch], COLUMNS), np.zeros(n, np.bool_))


def overlap(*parts: list[Identity]) -> Shared:
    return shared((k, runs_of(groups_of(part))) for k, part in enumerate(parts))


def at(*numbers: int, topic: str = "t") -> list[Identity]:
    return [(topic, "b", 1, seq) for seq in numbers]


def test_parts_one_behind_the_other_share_nothing() -> None:
    assert overlap(at(1, 2, 3), at(4, 5), at(6)) == ({}, set(), set())


def test_a_gap_that_another_part_fills_is_not_shared() -> None:
    assert overlap(at(1, 2, 4, 5), at(3, 6)) == ({}, set(), set())


def test_the_same_numbers_of_another_topic_are_not_shared() -> None:
    assert overlap(at(1, 2), at(1, 2, topic="u")) == ({}, set(), set())


def test_what_two_parts_have_is_shared_by_these_two() -> None:
    found = overlap(at(1, 2, 3), at(3, 4), at(5))
    (low, high) = found.ranges["t", "b", 1]
    assert (low.tolist(), high.tolist()) == ([3], [3])
    assert found.parts == {0, 1}


def test_only_shared_rows_are_set_aside() -> None:
    groups = groups_of(at(1, 2, 3, 7, 9) + at(3, topic="u"))
    ranges = overlap(at(2, 3, 7), at(2, 7, 8)).ranges
    assert sorted(rows_in(groups, ranges).tolist()) == [1, 3]
    assert rows_in(groups, {}).tolist() == []


def test_runs_are_bounded_and_keep_the_widest_gaps() -> None:
    seqs = list(range(0, 10 * MAX_RUNS, 2))
    wide = [seq + 1000 * (seq >= 500) for seq in seqs]
    (low, high) = runs_of(groups_of(at(*wide)))["t", "b", 1]
    assert len(low) == MAX_RUNS
    assert low[0] == 0
    assert high[-1] == wide[-1]
    assert 498 in high.tolist()
    assert 1500 in low.tolist()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("tu"), st.sampled_from("bc"), st.integers(0, 1), st.integers(0, 30)),
            max_size=20,
        ),
        max_size=5,
    ),
    st.integers(2, 5),
)
def test_whatever_is_in_two_parts_is_shared(parts: list[list[Identity]], max_runs: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlaps, "MAX_RUNS", max_runs)
        found = overlap(*parts)
    for k, part in enumerate(parts):
        others = {identity for j, other in enumerate(parts) if j != k for identity in other}
        groups = groups_of(part)
        aside = {part[row] for row in rows_in(groups, found.ranges).tolist()}
        assert others & set(part) <= aside
        assert not aside or k in found.parts
