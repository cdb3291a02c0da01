"""Clocks that tests set."""

from headwater_host.lifetime import Clocks

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
#: When they begin.
BEGIN = 1_700_000_000 * SECOND


class SetClocks(Clocks):
    """A machine whose clocks go only when told."""

    def __init__(self, *, synced: bool = False) -> None:
        self.booted = 0
        self.up = 100 * SECOND
        self.at = BEGIN
        self.synced = synced

    def boot(self) -> str:
        return f"boot {self.booted}"

    def boottime(self) -> int:
        return self.up

    def wall(self) -> int:
        return self.at

    def synchronized(self) -> bool:
        return self.synced

    def go(self, ns: int) -> None:
        """Time passes."""
        self.up += ns
        self.at += ns

    def step(self, ns: int) -> None:
        """Somebody sets the wall clock."""
        self.at += ns

    def reboot(self, off: int, *, synced: bool = False, rtc: bool = True) -> None:
        """The machine was off for so long; without ``rtc`` its clock has stood still."""
        self.booted += 1
        self.up = 5 * SECOND
        self.at += (off if rtc else 0) + self.up
        self.synced = synced
