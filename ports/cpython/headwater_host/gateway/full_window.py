"""The sign that a broker waits for acknowledgements: a plateau of unacknowledged messages on a slow disk."""

import time
from collections.abc import Callable

# A cycle is the time between two acknowledgements. Fewer messages, or a faster disk, say nothing about a window.
_FEWEST = 10
_SLOW_S = 0.01
# So many such cycles in a row are a plateau.
_CYCLES = 3


class Plateau:
    """Watches when messages arrive and when they are acknowledged.

    A broker whose window is full sends as soon as it gets acknowledgements, and then nothing until the next ones. A
    cycle counts when its messages arrive within the first quarter of it, and nothing arrives in its second half.
    ``clock``: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: How many cycles the broker has spent waiting for acknowledgements.
        self.cycles = 0
        #: Messages in the last cycle that counted, and the seconds that it took.
        self.messages = 0
        self.seconds = 0.0
        self._row = 0
        self.reset()

    def reset(self) -> None:
        """Forget the cycle: the connection, or reading, was interrupted."""
        self._began = self._clock()
        self._count = 0
        self._first = self._last = 0.0
        self._row = 0

    def arrived(self) -> None:
        """Count a message that is to be acknowledged."""
        self._last = self._clock()
        if not self._count:
            self._first = self._last
        self._count += 1

    def acknowledged(self) -> bool:
        """End a cycle: acknowledgements were sent. Returns whether this makes a plateau."""
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
