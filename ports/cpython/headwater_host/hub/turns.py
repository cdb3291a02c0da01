"""Spread long work over turns of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

#: Steps in a turn, of all work, and seconds; steps of one piece of work before the next one has its share.
STEPS = 256
_SECONDS = 0.004
_SHARE = 16

#: Calls back when work can go on.
Wait = Callable[[Callable[[], None]], None]
#: A piece of work: each step is short. A step may yield what the next one has to wait for.
Steps = Iterator[Wait | None]


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
        until = self._loop.time() + _SECONDS
        try:
            while self._work and self._left > 0:
                steps, done = self._work.popleft()
                self._share(steps, done)
                if self._loop.time() > until:
                    self._left = 0
        finally:
            self._running = False
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._next)

    def _share(self, steps: Steps, done: Callable[[], None]) -> None:
        """Take a share of the turn's steps."""
        for _ in range(min(self._left, _SHARE)):
            self._left -= 1
            try:
                wait = next(steps)
            except StopIteration:
                done()
                return
            except Exception as error:
                context = {"message": "work of the hub failed", "exception": error}
                self._loop.call_exception_handler(context)
                done()
                return
            if wait is not None:
                wait(lambda: self.begin(steps, done))
                return
        self._work.append((steps, done))

    def _next(self) -> None:
        self._scheduled = False
        self._left = STEPS
        if self._work:
            self._run()
