"""Those who wait: for an answer of the server, for their turn to send, for a message."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from headwater_host.client.connection import TICK
from headwater_host.errors import ClientError, TimedOutError


def wake_one(queue: "deque[asyncio.Future[None]]") -> bool:
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
        self.busy = wake_one(self._places)
