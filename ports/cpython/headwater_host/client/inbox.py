"""The queue of received messages that a program iterates over."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from headwater_host.client.waiting import wake_one
from headwater_host.errors import ClientError

_T = TypeVar("_T")


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
                    wake_one(self._readers)
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
            wake_one(self._readers)
        if len(self._queue) >= self._limit:
            self._passed()

    def put_error(self, error: ClientError) -> None:
        """Let the one who gets to this place hear of an error."""
        self._queue.append(error)
        if self._readers:
            wake_one(self._readers)

    def end(self) -> None:
        """Nothing more will come: let those who wait find out."""
        while wake_one(self._readers):
            pass

    def forget(self, which: Callable[[_T], bool]) -> None:
        """Throw away what ``which`` takes: it comes again."""
        kept = [m for m in self._queue if isinstance(m, ClientError) or not which(m)]
        self._queue.clear()
        self._queue.extend(kept)
