"""Age time: what counts, and what does not, when clocks are set, processes end and machines reboot."""

import subprocess
import sys
import time

import pytest

from headwater_host.lifetime import MACHINE, AgeClock, Clocks
from tests.host.set_clocks import BEGIN, DAY, SECOND, SetClocks
from tests.rows import each_row


def test_only_time_of_this_boot_counts() -> None:
    clocks = SetClocks()
    age = AgeClock("", clocks)
    assert age.now() == BEGIN
    for step in (8 * DAY, -16 * DAY):
        clocks.step(step)
        assert age.now() == BEGIN
    clocks.go(DAY)
    assert age.now() == BEGIN + DAY
    assert age.seconds() == (BEGIN + DAY) / 1e9


@each_row("synced", [False, True])
def test_a_process_that_was_down_counts_that_too(synced: bool) -> None:
    clocks = SetClocks(synced=synced)
    kept = AgeClock("", clocks).kept()
    clocks.step(30 * DAY)
    clocks.go(8 * DAY)
    assert AgeClock(kept, clocks).now() == BEGIN + 8 * DAY


@each_row(
    "before, after, counted", [(True, True, 8 * DAY), (True, False, 0), (False, True, 0), (False, False, 0)]
)
def test_a_machine_that_was_off_counts_that_if_it_knows(before: bool, after: bool, counted: int) -> None:
    clocks = SetClocks(synced=before)
    age = AgeClock("", clocks)
    clocks.go(DAY)
    kept = age.kept()
    clocks.reboot(8 * DAY - 5 * SECOND, synced=after)
    again = AgeClock(kept, clocks)
    assert again.now() == BEGIN + DAY + counted
    clocks.go(SECOND)
    assert again.now() == BEGIN + DAY + SECOND + counted


def test_a_clock_that_is_synchronized_later_tells_then_how_long_it_was_off() -> None:
    clocks = SetClocks(synced=True)
    kept = AgeClock("", clocks).kept()
    clocks.reboot(DAY, rtc=False)
    again = AgeClock(kept, clocks)
    clocks.go(60 * SECOND)
    assert again.now() == BEGIN + 60 * SECOND
    # A second process, or a third boot, in between.
    kept = again.kept()
    clocks.reboot(DAY, rtc=False)
    again = AgeClock(kept, clocks)
    clocks.go(60 * SECOND)
    clocks.step(2 * DAY)
    clocks.synced = True
    again.look()
    assert again.now() == BEGIN + 2 * DAY + 130 * SECOND
    # Once: from then on only this boot counts.
    clocks.step(8 * DAY)
    again.look()
    assert again.now() == AgeClock(again.kept(), clocks).now() == BEGIN + 2 * DAY + 130 * SECOND


def test_it_never_goes_back() -> None:
    clocks = SetClocks(synced=True)
    age = AgeClock("", clocks)
    clocks.go(DAY)
    kept = age.kept()
    for back in (clocks.up, 50 * SECOND):
        clocks.up -= back  # a snapshot
        assert AgeClock(kept, clocks).now() == BEGIN + DAY
    clocks.reboot(-30 * DAY, synced=True)
    assert AgeClock(kept, clocks).now() == BEGIN + DAY


def test_several_processes_have_one_clock() -> None:
    clocks = SetClocks(synced=True)
    kept = AgeClock("", clocks).kept()
    clocks.reboot(DAY)
    one, other = AgeClock(kept, clocks), AgeClock(kept, clocks)
    clocks.synced = True
    later = one.kept()
    clocks.synced = False
    other.join(later)
    assert other.now() == one.now() > BEGIN + DAY
    one.join(kept)
    assert other.now() == one.now()


def test_how_often_it_is_written() -> None:
    clocks = SetClocks()
    age = AgeClock("", clocks)
    assert not age.is_due
    clocks.go(10 * SECOND)
    assert age.is_due
    age.kept()
    assert not age.is_due


@each_row("text", ["x", "[]", "7", '["a", "b", 1, null]', "[1, 2, 3, [1]]", '{"age": 1}', "[1,2,3,4]"])
def test_what_is_no_age_time(text: str) -> None:
    with pytest.raises(ValueError, match="no age time"):
        AgeClock(text, SetClocks())


def test_where_boots_cannot_be_told_apart_nothing_counts_while_the_process_is_down() -> None:
    class Elsewhere(SetClocks):
        def boot(self) -> str:
            return ""

    clocks = Elsewhere()
    kept = AgeClock("", clocks).kept()
    clocks.go(DAY)
    again = AgeClock(kept, clocks)
    assert again.now() == BEGIN
    clocks.go(DAY)
    assert again.now() == BEGIN + DAY


def test_the_machine() -> None:
    before = MACHINE.boottime()
    assert MACHINE.boottime() >= before
    assert abs(MACHINE.wall() - time.time_ns()) < 10 * SECOND
    assert MACHINE.synchronized() in (False, True)
    assert MACHINE.boot() == Clocks().boot()


_NOW = """
import sys

from headwater_host.lifetime import AgeClock

age = AgeClock(sys.argv[1])
print(age.now())
print(age.kept())
"""


def test_a_real_boot_of_which_days_have_passed() -> None:
    """In a time namespace of Linux, whose CLOCK_BOOTTIME is days ahead."""
    ahead = ["unshare", "--time", "--boottime", str(8 * 86_400)]
    if subprocess.run([*ahead, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root and time namespaces")

    def run(front: list[str], kept: str) -> tuple[int, str]:
        done = subprocess.run(
            [*front, sys.executable, "-c", _NOW, kept], capture_output=True, check=True, text=True
        )
        now, text = done.stdout.splitlines()
        return int(now), text

    first, kept = run([], "")
    second, _ = run([], kept)
    later, _ = run(ahead, kept)
    assert 0 <= second - first < DAY
    assert 8 * DAY <= later - first < 9 * DAY
