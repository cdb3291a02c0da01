"""Limit the log's sync rate: a token bucket, with a default rate by the device of a directory.

Syncs wear out flash cards: each one writes at least a page.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: For SD cards and eMMC: the average syncs per second, and the largest number saved up.
CARD_RATE = 20.0
CREDIT = 2000

_SYS_BLOCK = Path("/sys/dev/block")
_CARD = "mmcblk"


class SyncBudget:
    """A budget of ``rate`` syncs per second, of which up to ``credit`` accumulate while unused; ``rate`` 0: no limit.

    ``clock``: seconds that never go back.
    """

    def __init__(
        self, rate: float = 0.0, credit: int = CREDIT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if rate < 0 or credit < 1:
            raise ValueError(f"rate {rate}, credit {credit}: a rate is at least 0, a credit at least 1")
        self.rate = rate
        self._most = float(credit)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def __str__(self) -> str:
        return f"{self.rate:g} syncs/s, {self._most:g} at once" if self.rate else "syncs without a limit"

    @property
    def left(self) -> int:
        """Syncs that are possible at once."""
        return int(self._refill())

    def wait(self) -> float:
        """Return the seconds until a sync is available; 0 if one is."""
        return max(0.0, (1 - self._refill()) / self.rate) if self.rate else 0.0

    def spend(self) -> None:
        """Spend a sync. The budget never becomes negative."""
        self._left = max(0.0, self._refill() - 1)

    def _refill(self) -> float:
        now = self._clock()
        if self.rate:
            self._left = min(self._most, self._left + (now - self._at) * self.rate)
        else:
            self._left = self._most
        self._at = now
        return self._left


def default_rate(directory: Path, sys_block: Path = _SYS_BLOCK) -> float:
    """Return the rate for a log in ``directory``, which may be missing: 20 on an SD card or eMMC, otherwise 0."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    try:
        device = directory.stat().st_dev
        names = set(_names(sys_block / f"{os.major(device)}:{os.minor(device)}"))
    except OSError:
        return 0.0
    return CARD_RATE if any(name.startswith(_CARD) for name in names) else 0.0


def _names(device: Path) -> Iterator[str]:
    """Yield the names of a block device, of its disk, and of the devices below it (LVM, dm-crypt, RAID)."""
    real = device.resolve(strict=True)
    yield from real.parts
    slaves = real / "slaves"
    for below in slaves.iterdir() if slaves.is_dir() else ():
        yield from _names(below)
