"""The budget of syncs: a token bucket, its default by device, and blocks that wait for it."""

import asyncio
import os
from pathlib import Path

import pytest

from headwater_host.capture import list_blocks
from headwater_host.capture.asyncio_writer import AsyncCapture
from headwater_host.capture.sync_budget import CARD_RATE, SyncBudget, default_rate
from tests.host.capture_logs import read_log, record, records
from tests.host.test_capture_async import SlowDisk, checked
from tests.rows import each_row


class Clock:
    """Seconds that pass when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_credit_then_rate() -> None:
    clock = Clock()
    budget = SyncBudget(20, 5, clock)
    for left in (5, 4, 3, 2, 1):
        assert budget.left == left
        assert budget.wait() == 0
        budget.spend()
    assert budget.left == 0
    assert budget.wait() == pytest.approx(1 / 20)
    clock.now += 0.03
    assert budget.wait() == pytest.approx(0.02)
    clock.now += 0.021
    assert budget.wait() == 0
    budget.spend()
    # A sync that cannot wait owes nothing.
    budget.spend()
    assert budget.wait() == pytest.approx(1 / 20)
    clock.now += 3600
    assert budget.left == 5


def test_without_a_rate_there_is_no_limit() -> None:
    clock = Clock()
    budget = SyncBudget(0, 1, clock)
    for _ in range(10):
        assert budget.wait() == 0
        budget.spend()


@each_row("rate, credit", [(-1, 1), (20, 0)])
def test_a_budget_that_is_not_possible_is_refused(rate: float, credit: int) -> None:
    with pytest.raises(ValueError, match="a rate is at least 0"):
        SyncBudget(rate, credit)


@checked
async def test_a_block_waits_for_the_budget_and_collects_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    async with AsyncCapture(tmp_path, budget=SyncBudget(20, 3, clock)) as capture:
        for number in range(1, 4):
            capture.append(*record(number - 1))
            await capture.durable(number)
        assert capture.syncs == 3
        # The credit is spent: as long as no time passes nothing more is written.
        for number in range(4, 14):
            capture.append(*record(number - 1))
            await asyncio.sleep(0.01)
        assert (capture.durable_number, capture.syncs) == (3, 3)
        clock.now += 1 / 20 + 0.001
        await capture.durable(13)
        assert capture.syncs == 4
    assert [info.header.records for info in list_blocks(tmp_path)] == [1, 1, 1, 10]
    assert read_log(tmp_path) == records(13)


@checked
async def test_what_is_full_or_flushed_or_last_does_not_wait(tmp_path: Path) -> None:
    disk = SlowDisk()
    budget = SyncBudget(20, 1, Clock())
    async with AsyncCapture(tmp_path, block_bytes=1000, budget=budget, datasync=disk) as capture:
        capture.append(*record(0))
        await capture.durable(1)
        for number in range(1, 100):
            capture.append(*record(number))
        # All but the last block, which has room.
        while capture.syncs < 5:
            await asyncio.sleep(0.001)
        durable = capture.durable_number
        assert durable < 100
        await capture.flush()
        assert capture.durable_number == 100
        capture.append(*record(100))
    assert read_log(tmp_path) == records(101)


def devices(directory: Path, target: Path, real: str, *slaves: str) -> Path:
    """A /sys in which the device of ``target`` is ``real``, with devices below it."""
    block = directory / "sys/dev/block"
    block.mkdir(parents=True)
    disks = directory / "sys/devices"
    (disks / real).mkdir(parents=True)
    for slave in slaves:
        (disks / slave).mkdir(parents=True)
        below = disks / real / "slaves"
        below.mkdir(exist_ok=True)
        (below / Path(slave).name).symlink_to(disks / slave)
    device = target.stat().st_dev
    (block / f"{os.major(device)}:{os.minor(device)}").symlink_to(disks / real)
    return block


@each_row(
    "real, slaves, rate",
    [
        ("platform/emmc2bus/mmc_host/mmc0/block/mmcblk0/mmcblk0p2", [], CARD_RATE),
        ("platform/emmc2bus/mmc_host/mmc0/block/mmcblk1", [], CARD_RATE),
        ("virtual/block/dm-0", ["mmc0/block/mmcblk0/mmcblk0p2"], CARD_RATE),
        ("virtual/block/dm-1", ["pci/block/nvme0n1/nvme0n1p3", "mmc0/block/mmcblk0"], CARD_RATE),
        ("virtual/block/dm-1", ["pci/block/nvme0n1/nvme0n1p3"], 0),
        ("pci0000:00/block/sda/sda1", [], 0),
    ],
)
def test_the_default_is_the_device_s(tmp_path: Path, real: str, slaves: list[str], rate: float) -> None:
    block = devices(tmp_path, tmp_path, real, *slaves)
    assert default_rate(tmp_path, block) == rate
    # Its parent's, as long as it does not exist.
    assert default_rate(tmp_path / "not/there/yet", block) == rate


def test_a_file_system_without_a_block_device_has_no_limit(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert default_rate(tmp_path, tmp_path / "sys") == 0
    assert default_rate(Path("/proc")) == 0
