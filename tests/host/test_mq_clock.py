"""Expiry in local queues counts time that has passed, and not what the clock is set to."""

import sqlite3
from pathlib import Path

import pytest

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_mq.forward import Forward, LocalQueue
from headwater_mq.manager import QueueManager
from headwater_mq.queue import Queue
from tests.host.mq_queue import ALL, attempt, queue_manager
from tests.host.set_clocks import DAY, SECOND, SetClocks
from tests.rows import each_row

#: Seven days, in tenths of a second.
WEEK = 7 * 864_000


def fill(path: Path, clocks: SetClocks) -> None:
    with queue_manager(path, "Q", clocks=clocks) as manager:
        manager.put1("Q", b"a week", MD(Expiry=WEEK))
        manager.put1("Q", b"ever")


def there(path: Path, clocks: SetClocks) -> dict[bytes, int]:
    """What can be got, and what is left of its Expiry."""
    found: dict[bytes, int] = {}
    with QueueManager("QM1", path / "queues.db", clocks=clocks) as manager, Queue(manager, "Q", ALL) as queue:
        while True:
            md = MD()
            got = attempt(lambda md=md: queue.browse(None, md))
            if not isinstance(got, bytes):
                return found
            found[got] = md.Expiry


@each_row("step", [8 * DAY, -8 * DAY, -1_600_000_000 * SECOND], ids=["forward", "back", "1973"])
def test_a_clock_that_is_set_expires_nothing_and_keeps_nothing(step: int, tmp_path: Path) -> None:
    clocks = SetClocks()
    fill(tmp_path, clocks)
    clocks.step(step)
    for _ in range(2):
        assert there(tmp_path, clocks) == {b"a week": WEEK, b"ever": CMQC.MQEI_UNLIMITED}
    clocks.go(3 * DAY)
    assert there(tmp_path, clocks)[b"a week"] == WEEK - 3 * 864_000
    clocks.go(4 * DAY)
    assert there(tmp_path, clocks) == {b"ever": CMQC.MQEI_UNLIMITED}


def test_put_time_is_what_the_clock_says(tmp_path: Path) -> None:
    clocks = SetClocks()
    with queue_manager(tmp_path, "Q", clocks=clocks) as manager, Queue(manager, "Q", ALL) as queue:
        clocks.step(365 * DAY)
        queue.put(b"x")
        md = MD()
        queue.get(None, md)
        assert (md.PutDate, md.PutTime) == (b"20241113", b"22132000")


@each_row(
    "before, after, expired",
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_a_machine_that_was_off(before: bool, after: bool, expired: bool, tmp_path: Path) -> None:
    clocks = SetClocks(synced=before)
    fill(tmp_path, clocks)
    clocks.reboot(8 * DAY, synced=after)
    assert (b"a week" not in there(tmp_path, clocks)) == expired


def test_a_clock_that_is_synchronized_while_the_file_is_open(tmp_path: Path) -> None:
    """Two processes have it open; each finds out, and they agree."""
    clocks = SetClocks(synced=True)
    fill(tmp_path, clocks)
    clocks.reboot(8 * DAY, rtc=False)
    with queue_manager(tmp_path, clocks=clocks) as one, queue_manager(tmp_path, clocks=clocks) as other:
        with Queue(one, "Q", ALL) as queue:
            assert queue.browse() == b"a week"
        clocks.step(8 * DAY)
        clocks.synced = True
        clocks.go(11 * SECOND)
        other.put1("Q", b"later")
        clocks.synced = False
        clocks.go(11 * SECOND)
        one.put1("Q", b"latest")
        assert one.file.now() == other.file.now()
        with Queue(one, "Q", ALL) as queue:
            assert queue.get() == b"ever"


def test_a_file_of_an_earlier_program_gives_each_message_its_whole_expiry(tmp_path: Path) -> None:
    clocks = SetClocks()
    fill(tmp_path, clocks)
    with sqlite3.connect(tmp_path / "queues.db") as db:
        db.execute("DELETE FROM about WHERE name = 'age'")
        db.execute("UPDATE messages SET expires = 1 WHERE expires")
    db.close()
    for _ in range(2):
        assert there(tmp_path, clocks)[b"a week"] == WEEK
    clocks.go(7 * DAY)
    assert there(tmp_path, clocks) == {b"ever": CMQC.MQEI_UNLIMITED}


def test_what_a_gateway_forwards_expires_by_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = SetClocks()
    monkeypatch.setattr("headwater_mq.queue_file.MACHINE", clocks)
    forward = Forward(tmp_path / "queues.db", LocalQueue("Q", "DEAD", 10, 1000, 1 << 20))
    try:
        with forward.transaction():
            forward.put(MD(Expiry=WEEK), b"a week")
        for step in (8 * DAY, -16 * DAY):
            clocks.step(step)
            assert len(forward.batch(10, 1 << 20)) == 1
        clocks.go(7 * DAY)
        assert not forward.batch(10, 1 << 20)
    finally:
        forward.close()
