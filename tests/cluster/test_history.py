"""Several hubs under faults: a short history, and what the observer of their database finds.

More of it: ``python -m tests.cluster.run``, and with defects ``python -m tests.cluster.run --mutants``.
"""

import pytest

from tests.cluster import run
from tests.cluster.observer import Observed, two_leaders
from tests.host.history import check
from tests.rows import each_row


@pytest.mark.needs_postgresql
def test_nothing_is_lost_when_the_leader_is_killed_or_loses_replies() -> None:
    cluster = run.run(1500, 1, ["kill", "ambiguous", "kill"])
    assert not cluster.checker.wrong, cluster.checker.wrong[:10]
    count = cluster.checker.count
    assert count["fault"] == 3
    assert len(cluster.gaps["leader killed"]) == 2
    assert count["acked"] > 100
    assert check(cluster.events) == []


@pytest.mark.needs_postgresql
def test_a_hub_that_does_not_wait_for_the_standby_is_found() -> None:
    # What the standby does not have is gone: messages, or that they were delivered.
    assert run.find("does not wait for the standby", 5).partition(":")[0] in ("lost", "doubled", "undone")


@pytest.mark.needs_postgresql
@pytest.mark.parametrize("name", ["takes a lost reply for success", "writes without a fence"])
def test_a_defect_is_found(name: str) -> None:
    assert run.find(name, 1)


def turn(epoch: int, number: int, writer: int | None) -> Observed:
    return Observed("turn", epoch, number, writer)


def write(epoch: int, number: int, writer: int) -> Observed:
    return Observed("write", epoch, number, writer)


@each_row(
    "rows,kinds",
    [
        ([turn(1, 5, 1), turn(1, 6, 1), write(1, 6, 1), turn(2, 0, None), turn(2, 1, 2), write(2, 1, 2)], []),
        ([turn(1, 1, 1), turn(2, 0, None), write(2, 0, 1)], ["two leaders"]),
        ([turn(2, 1, 2), turn(1, 2, 1)], ["two leaders"]),
        ([turn(1, 1, 1), turn(1, 3, 1)], ["two leaders"]),
        ([turn(1, 1, 1), turn(1, 0, None)], ["two leaders"]),
        ([write(1, 1, 1), write(1, 1, 1)], ["doubled"]),
    ],
)
def test_two_leaders_are_found(rows: list[Observed], kinds: list[str]) -> None:
    assert [line.partition(":")[0] for line in two_leaders(rows)] == kinds
