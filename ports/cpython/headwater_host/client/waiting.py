"""Calls that wait: for an answer of the server, or for a lock, each until its deadline."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from headwater_host.client.connection import TICK
from headwater_host.errors import ClientError, TimedOutError


def wake_one(queue: "deque[asyncio.Future[None]]") -> bool:
    """Wake the first waiter. Returns whether there was one."""
    while queue:
        place = queue.popleft()
        if not place.done():
            place.set_result(None)
            return True
    return False


_T = TypeVar("_T")


class Answers(Generic[_T]):
    """Calls that wait for the answer to a packet identifier, each until its deadline (the loop's time).

    A negative key stands for a message that has no packet identifier yet, until ``rename``.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[asyncio.Future[_T], float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, packet_id: int, deadline: float) -> _T:
        """Wait for the answer. Raises TimedOutError, or the error passed to ``fail``."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[_T] = loop.create_future()
        self._waiting[packet_id] = (waiter, deadline)
        if deadline - loop.time() < 2 * TICK:
            # ``expire`` may be called too late for this deadline.
            loop.call_at(deadline, self.expire, deadline)
        try:
            return await waiter
        finally:
            if self._waiting.get(packet_id, (None,))[0] is waiter:
                del self._waiting[packet_id]

    def settle(self, packet_id: int, answer: _T) -> bool:
        """Complete a call. Returns whether one waited."""
        waiting = self._waiting.pop(packet_id, None)
        if waiting is None or waiting[0].done():
            return False
        waiting[0].set_result(answer)
        return True

    def expire(self, now: float) -> None:
        """Raise TimedOutError in calls whose deadline has passed. Call this at least every two ticks."""
        for packet_id in [i for i, (_, deadline) in self._waiting.items() if deadline <= now]:
            waiter, _ = self._waiting.pop(packet_id)
            if not waiter.done():
                waiter.set_exception(TimedOutError("the server did not answer in time"))

    def rename(self, key: int, packet_id: int) -> None:
        """Give a waiting call the packet identifier of its message."""
        if key in self._waiting:
            self._waiting[packet_id] = self._waiting.pop(key)

    def fail(self, error: ClientError, which: Callable[[int], bool] = lambda i: True) -> None:
        """Raise ``error`` in the calls whose key ``which`` accepts."""
        for packet_id in list(filter(which, self._waiting)):
            self.refuse(packet_id, error)

    def refuse(self, packet_id: int, error: ClientError) -> None:
        """Raise ``error`` in a call, if it waits."""
        waiting = self._waiting.pop(packet_id, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(error)


class Line:
    """A lock with deadlines that callers get in the order of their calls."""

    def __init__(self) -> None:
        self.busy = False
        self._places: deque[asyncio.Future[None]] = deque()

    async def enter(self, deadline: float) -> bool:
        """Wait for the lock. Returns False if the deadline passes first."""
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
        """Release the lock to the next caller."""
        self.busy = wake_one(self._places)
