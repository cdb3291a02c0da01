"""Dialers whose line is always the same, because opening another allocates."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Dialer:
    """Opens its line; ``now`` is the time."""

    def __init__(self, line: "Any") -> None:
        self.line = line
        self.now = 0

    def open(self) -> "Any":
        self.line.begin(self.now)
        return self.line

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        self.now += ms


class PollDialer(Dialer):
    """One that is asked whether it can open; ``slow``: it cannot."""

    slow = False

    def ready(self) -> bool:
        return not self.slow

    def hang_up(self) -> None:
        pass
