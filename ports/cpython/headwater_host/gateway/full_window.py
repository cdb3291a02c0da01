"""Detect a broker that sends nothing until messages are acknowledged: its window of messages in flight is full."""

import time
from collections.abc import Callable

# A cycle is the time between two acknowledgements. With fewer messages, or a faster disk, it shows nothing.
_FEWEST = 10
_SLOW_S = 0.01
# Consecutive cycles that make a finding.
_CYCLES = 3


class FullWindow:
    """Watches when messages arrive and when they are acknowledged.

    A broker whose window is full sends as soon as it gets acknowledgements, and then nothing until the next ones. A
    cycle counts when its messages arrive within the first quarter of it, and nothing arrives in its second half.
    ``clock``: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Cycles that the broker spent waiting.
        self.cycles = 0
        #: Messages and seconds of the last such cycle.
        self.messages = 0
        self.seconds = 0.0
        self._row = 0
        self.reset()

    def reset(self) -> None:
        """Start again: the connection or reading was interrupted."""
        self._began = self._clock()
        self._count = 0
        self._first = self._last = 0.0
        self._row = 0

    def arrived(self) -> None:
        """Note the arrival of a message at QoS 1 or 2."""
        self._last = self._clock()
        if not self._count:
            self._first = self._last
        self._count += 1

    def acknowledged(self) -> bool:
        """End a cycle: acknowledgements were sent. Return whether the window is found to be full."""
        now = self._clock()
        took = now - self._began
        waits = (
            self._count >= _FEWEST
            and took >= _SLOW_S
            and self._first - self._began <= took / 4
            and now - self._last >= took / 2
        )
        if waits:
            self.cycles += 1
            self.messages, self.seconds = self._count, took
            self._row += 1
        else:
            self._row = 0
        self._began = now
        self._count = 0
        return self._row == _CYCLES
