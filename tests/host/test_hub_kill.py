"""A hub that is killed again and again: nothing that was acknowledged is lost, doubled or reordered.

More of it: ``python -m tests.host.hub_history --operations 100000``.
"""

import sys
from pathlib import Path

import pytest

from tests.host import hub_history, hub_mutants
from tests.host.history import Event, check
from tests.rows import each_row

#: Seconds without anything new after which something is missing. A hub that is not as it should be may say nothing.
IMPATIENT = 10


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_doubled_or_reordered(tmp_path: Path, seed: int) -> None:
    world = hub_history.run(tmp_path, 5000, seed, between=700)
    assert not world.checker.wrong, world.checker.wrong[:10]
    count = world.checker.count
    assert count["killed"] >= 3, "the hub was not killed"
    assert count["done"] > 100, "hardly anything was known to be on the disk"
    assert count["willed"] >= 3
    assert count["retained"] >= 3
    assert count["answered"] >= 3
    assert check(world.events) == []


#: What is only seen at the end is not to take long.
AT_THE_END = {"keeps no wills", "keeps wills for ever"}
#: Histories of which one has to show the defect: whether a single one does is a matter of chance.
HISTORIES = 5


@pytest.mark.parametrize("name", hub_mutants.MUTANTS)
def test_a_hub_with_something_wrong_is_found_out(tmp_path: Path, name: str) -> None:
    command = [sys.executable, hub_mutants.__file__, name]
    operations = 600 if name in AT_THE_END else 6000
    for seed in range(1, HISTORIES + 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = hub_history.run(directory, operations, seed, 200, command, IMPATIENT, until_wrong=True)
        if world.checker.wrong:
            return
    pytest.fail("no history shows it")


SENT: list[Event] = [("sent", 0, n) for n in range(4)]
ACKED: list[Event] = [("acked", 0, n) for n in range(4)]


def got(who: str, *numbers: int, qos: int = 1) -> list[Event]:
    return [("got", who, 0, n, qos) for n in numbers]


GOOD = [*SENT, *ACKED, *got("group", 0, 1, 2, 3), *got("session", 0, 1, 2, 3), *got("audit", 0, 1, 2, 3)]
END: list[Event] = [("end", "group", "session", "audit")]


@each_row(
    "events",
    [
        [*GOOD, *END],
        # What was not acknowledged may be lost, or come again.
        [*SENT, *got("group", 0, 1, 0, 3), *got("audit", 0, 1, 3), *END],
        [*SENT, *got("session", 0, 1, 1, qos=1)],
        [*GOOD, ("will", 1, "asked"), ("will", 2, "kept"), ("will", 3, "leaving"), *END],
        [("will", 1, "asked"), ("willed", 1)],
        [("will", 1, "kept"), ("will", 1, "lost"), ("willed", 1), *END],
        [("will", 1, "kept"), ("will", 1, "left"), *END],
        [("retained", -1, -1, None), ("retained", 2, 3, 3), ("retained", 3, 4, None)],
        [*SENT, ("pushed", 1, 0, 0), ("pushed", 1, 0, 2), *got("audit", 0, 2), *END],
        [("called", 1), ("made", 1), ("answered", 1, 1), ("called", 2), ("made", 2), ("called", 3)],
        [("pushed", 1, 0, 5), ("pushed", 1, 0, 6), ("pushed", 2, 0, 6), ("pushed", 2, 1, 0), ("killed",)],
    ],
)
def test_what_may_be(events: list[Event]) -> None:
    assert check(events) == []


@each_row(
    "events,kinds",
    [
        ([*SENT, *ACKED, *got("audit", 0, 1, 2, 3), *END], ["lost"] * 8),
        ([*GOOD, ("sent", 0, 4), ("acked", 0, 4), ("end", "group")], ["lost"]),
        ([*GOOD, *got("audit", 2)], ["doubled"]),
        ([*GOOD, ("done", "group", 0, 1), *got("group", 0, 1)], ["doubled"]),
        ([*GOOD, ("done", "session", 0, 1), *got("session", 0, 1)], ["doubled"]),
        ([*SENT, *got("session", 0, 0, qos=2)], ["doubled"]),
        ([*SENT, *got("group", 1, 0)], ["reordered"]),
        ([*SENT, *got("audit", 0, 2, 3, 1)], ["reordered"]),
        ([*SENT, *ACKED, *got("group", 0, 3)], ["lost", "lost"]),
        (got("group", 0), ["invented"]),
        ([*SENT, *got("group", 0), *END], ["undone"]),
        ([*SENT, ("pushed", 1, 0, 1), *END], ["undone"]),
        ([("made", 1)], ["invented"]),
        ([("called", 1), ("made", 1), ("made", 1)], ["doubled"]),
        ([("called", 1), ("answered", 1, 1)], ["invented"]),
        ([("called", 1), ("made", 1), ("answered", 1, 1), ("answered", 1, 1)], ["doubled"]),
        ([("called", 1), ("called", 2), ("made", 1), ("made", 2), ("answered", 1, 2)], ["invented"]),
        ([("acked", 0, 6), ("pushed", 1, 0, 5), ("pushed", 1, 0, 7)], ["lost"]),
        ([*SENT, ("pushed", 1, 0, 0), ("pushed", 1, 0, 2), *got("audit", 0, 1, 2), *END], ["lost"]),
        ([("pushed", 1, 0, 5), ("pushed", 1, 0, 5)], ["doubled"]),
        ([("will", 1, "kept"), ("will", 1, "lost"), *END], ["lost"]),
        ([("will", 1, "lost"), ("willed", 1), ("willed", 1)], ["doubled"]),
        ([("will", 1, "left"), ("willed", 1)], ["invented"]),
        ([("willed", 1)], ["invented"]),
        ([("retained", 2, 3, 1)], ["lost"]),
        ([("retained", 2, 3, None)], ["lost"]),
        ([("retained", 4, 4, 3)], ["lost"]),
    ],
)
def test_what_is_wrong_is_seen(events: list[Event], kinds: list[str]) -> None:
    assert [line.partition(":")[0] for line in check(events)] == kinds
