"""Those who wait: for an answer of the server, for their turn to send, for a message."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from headwater_host.client.connection import TICK
from headwater_host.errors import ClientError, TimedOutError


def _wake(queue: "deque[asyncio.Future[None]]") -> bool:
    """Wake the first who still waits; whether there was one."""
    while queue:
        place = queue.popleft()
        if not place.done():
            place.set_result(None)
            return True
    return False


_T = TypeVar("_T")


class Answers(Generic[_T]):
    """Calls that wait for the answer to a packet id, each until its deadline (the loop's time).

    Who waits for a message that has no packet id yet does so by a negative number, until ``rename``.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[asyncio.Future[_T], float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, packet_id: int, deadline: float) -> _T:
        """The answer. Raises TimedOutError, or what ``fail`` was given."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[_T] = loop.create_future()
        self._waiting[packet_id] = (waiter, deadline)
        if deadline - loop.time() < 2 * TICK:
            # Sooner than ``expire`` is sure to be called.
            loop.call_at(deadline, self.expire, deadline)
        try:
            return await waiter
        finally:
            if self._waiting.get(packet_id, (None,))[0] is waiter:
                del self._waiting[packet_id]

    def settle(self, packet_id: int, answer: _T) -> bool:
        """The answer is there; whether anybody still waits for it."""
        waiting = self._waiting.pop(packet_id, None)
        if waiting is None or waiting[0].done():
            return False
        waiting[0].set_result(answer)
        return True

    def expire(self, now: float) -> None:
        """Let go of those whose deadline is over; to be called at least every two ticks."""
        for packet_id in [i for i, (_, deadline) in self._waiting.items() if deadline <= now]:
            waiter, _ = self._waiting.pop(packet_id)
            if not waiter.done():
                waiter.set_exception(TimedOutError("the server did not answer in time"))

    def rename(self, key: int, packet_id: int) -> None:
        """Who waits for ``key`` waits for a packet id from now on."""
        if key in self._waiting:
            self._waiting[packet_id] = self._waiting.pop(key)

    def fail(self, error: ClientError, which: Callable[[int], bool] = lambda i: True) -> None:
        """No answer will come, for the ids that ``which`` takes."""
        for packet_id in list(filter(which, self._waiting)):
            self.refuse(packet_id, error)

    def refuse(self, packet_id: int, error: ClientError) -> None:
        """No answer will come for this one; nobody may wait for it."""
        waiting = self._waiting.pop(packet_id, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(error)


class Line:
    """One caller at a time, in the order of their coming; who comes while somebody is in line does not overtake."""

    def __init__(self) -> None:
        self.busy = False
        self._places: deque[asyncio.Future[None]] = deque()

    async def enter(self, deadline: float) -> bool:
        """Wait for one's turn, which ``leave`` ends; False when the deadline is over first."""
        if not self.busy:
            self.busy = True
            return True
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._places.append(place)
        try:
            await asyncio.wait({place}, timeout=max(0.0, deadline - loop.time()))
        except asyncio.CancelledError:
            if place.done():
                self.leave()
            place.cancel()
            raise
        if place.done():
            return True
        place.cancel()
        return False

    def leave(self) -> None:
        """The next one's turn."""
        self.busy = _wake(self._places)


class Inbox(Generic[_T]):
    """``client.messages``: the messages that arrive, in their order, each to one of those who iterate.

    What had arrived before the connection ended is still delivered; then iterating raises NotConnectedError, and goes
    on after the client was entered again. ``len`` is how many wait.
    """

    def __init__(self, check: Callable[[], object], limit: int | None, passed: Callable[[], object]):
        # Raises when no message will come.
        self._check = check
        # Called when there are so many, and when there are half of it left.
        self._limit = sys.maxsize if limit is None else limit
        self._half = -1 if limit is None else limit // 2
        self._passed = passed
        #: Called with each message that is taken, where something is to be done then.
        self.on_taken: Callable[[_T], object] | None = None
        self._queue: deque[_T | ClientError] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __aiter__(self) -> AsyncIterator[_T]:
        return self

    async def __anext__(self) -> _T:
        while not self._queue:
            self._check()
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                if not reader.cancelled():
                    # The message that this one was woken for is the next one's.
                    _wake(self._readers)
                raise
        message = self._queue.popleft()
        if len(self._queue) == self._half:
            self._passed()
        if isinstance(message, ClientError):
            raise message
        if self.on_taken is not None:
            self.on_taken(message)
        return message

    def put(self, message: _T) -> None:
        """A message has arrived."""
        self._queue.append(message)
        if self._readers:
            _wake(self._readers)
        if len(self._queue) >= self._limit:
            self._passed()

    def put_error(self, error: ClientError) -> None:
        """Let the one who gets to this place hear of an error."""
        self._queue.append(error)
        if self._readers:
            _wake(self._readers)

    def end(self) -> None:
        """Nothing more will come: let those who wait find out."""
        while _wake(self._readers):
            pass

    def forget(self, which: Callable[[_T], bool]) -> None:
        """Throw away what ``which`` takes: it comes again."""
        kept = [m for m in self._queue if isinstance(m, ClientError) or not which(m)]
        self._queue.clear()
        self._queue.extend(kept)
