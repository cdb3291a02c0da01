"""Hubs that replicate by SLAVEOF, under faults: a short history with promotions by hand.

More of it: ``python -m tests.cluster.sites``.
"""

from tests.cluster import sites
from tests.host.history import check


def test_nothing_is_lost_when_slaves_are_promoted_twice_and_on_both_sides_of_a_split() -> None:
    world = sites.run(1500, 1, ["promote twice", "promote on both sides"])
    assert not world.checker.wrong, world.checker.wrong[:10]
    assert world.checker.count["fault"] == 2
    assert world.checker.count["acked"] > 100
    assert check(world.events) == []
