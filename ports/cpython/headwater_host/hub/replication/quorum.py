"""Count the slaves that have a transaction on disk."""

from collections import deque
from collections.abc import Callable, Iterable


class Quorum:
    """Commits a transaction when ``need`` of the slaves named ``names`` have it; 0: at once.

    One object serves one epoch of a leader. Each name counts once. The cost of a transaction and of an acknowledgement
    does not depend on how many wait.
    """

    def __init__(self, names: Iterable[str], need: int):
        self._synced = dict.fromkeys(names, 0)
        if not 0 <= need <= len(self._synced):
            raise ValueError(f"sync = {need}, but there are {len(self._synced)} slaves")
        self.need = need
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def synced(self) -> dict[str, int]:
        """The last change that each slave has on disk, to be read only."""
        return self._synced

    @property
    def reached(self) -> int:
        """The last change that enough slaves have."""
        return sorted(self._synced.values(), reverse=True)[self.need - 1] if self.need else 0

    def confirm(self, last: int, done: Callable[[], None]) -> None:
        """Call ``done`` when enough slaves have the change ``last`` and those before it."""
        if not self.need or self.reached >= last:
            self._waiting.clear()
            done()
        else:
            self._waiting.append((last, done))

    def acknowledge(self, name: str, seq: int) -> None:
        """Note that a slave has everything up to a change on disk. Other slaves than those named count nothing."""
        if name not in self._synced:
            return
        self._synced[name] = seq
        if not self.need:
            return
        reached, found = self.reached, None
        while self._waiting and self._waiting[0][0] <= reached:
            _, found = self._waiting.popleft()
        if found is not None:
            found()
