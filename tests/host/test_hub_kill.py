"""A hub that is killed again and again: nothing that was acknowledged is lost, doubled or reordered.

More of it: ``python -m tests.host.hub_history --operations 100000``.
"""

from pathlib import Path

import pytest

from tests.host import hub_history


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_doubled_or_reordered(tmp_path: Path, seed: int) -> None:
    history = hub_history.run(tmp_path, 4000, seed, between=600)
    assert not history.wrong, history.wrong[:10]
    assert history.life >= 3, "the hub was not killed"
    assert len(history.durable) > 100, "hardly anything was known to be on the disk"


def test_what_is_wrong_is_seen() -> None:
    history = hub_history.History()
    for n in range(4):
        history.acknowledged.add((0, n))
    history.delivered("group", (0, 0), 1)
    history.delivered("group", (0, 0), 1)
    assert not history.wrong
    history.durable.add((0, 0))
    history.delivered("group", (0, 0), 1)
    history.delivered("group", (0, 2), 1)
    history.delivered("group", (0, 1), 1)
    history.delivered("subscriber", (0, 0), 2)
    history.delivered("subscriber", (0, 0), 2)
    assert [line.partition(":")[0] for line in history.wrong] == ["doubled", "reordered", "doubled"]
    assert history.missing() == [("group", (0, 3))] + [("subscriber", (0, n)) for n in (1, 2, 3)]
