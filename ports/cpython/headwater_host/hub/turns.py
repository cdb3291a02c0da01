"""Work that is spread over turns of the event loop, so that it delays nobody for long."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

#: Steps in a turn, of all work; and of one piece of work before the next one has its share.
STEPS = 256
_SHARE = 64

#: A piece of work: each step is short.
Steps = Iterator[None]


class Turns:
    """Runs iterators, a bounded number of steps in each turn. What fits into this turn is done at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._work: deque[tuple[Steps, Callable[[], None]]] = deque()
        self._left = STEPS
        self._running = self._scheduled = False

    def begin(self, steps: Steps, done: Callable[[], None] = lambda: None) -> None:
        """Run ``steps`` to their end, then call ``done``. An error ends them and is logged; ``done`` is called."""
        self._work.append((steps, done))
        if not self._running:
            self._run()

    def _run(self) -> None:
        self._running = True
        try:
            while self._work and self._left > 0:
                steps, done = self._work.popleft()
                if self._is_done(steps):
                    done()
                else:
                    self._work.append((steps, done))
        finally:
            self._running = False
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._next)

    def _is_done(self, steps: Steps) -> bool:
        """Take a share of the turn's steps; return whether they are done."""
        for _ in range(min(self._left, _SHARE)):
            self._left -= 1
            try:
                next(steps)
            except StopIteration:
                return True
            except Exception as error:
                context = {"message": "work of the hub failed", "exception": error}
                self._loop.call_exception_handler(context)
                return True
        return False

    def _next(self) -> None:
        self._scheduled = False
        self._left = STEPS
        if self._work:
            self._run()
