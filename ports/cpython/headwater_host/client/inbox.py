"""The queue of received messages."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from headwater_host.client.waiting import wake_one
from headwater_host.errors import ClientError

_T = TypeVar("_T")


class Inbox(Generic[_T]):
    """``client.messages``: received messages in their order, each for one of the iterating tasks.

    Messages that arrived before the connection ended are still returned. Then iterating raises NotConnectedError, and
    continues after the client was entered again. ``len`` is the number of queued messages.
    """

    def __init__(self, check: Callable[[], object], limit: int | None, passed: Callable[[], object]):
        # Raises when no message will arrive.
        self._check = check
        # Called when ``limit`` messages are queued, and when half of them are left.
        self._limit = sys.maxsize if limit is None else limit
        self._half = -1 if limit is None else limit // 2
        self._passed = passed
        #: Called with each message that is taken.
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
                    # Another reader gets the message for which this one was woken.
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
        """Queue a received message."""
        self._queue.append(message)
        if self._readers:
            wake_one(self._readers)
        if len(self._queue) >= self._limit:
            self._passed()

    def put_error(self, error: ClientError) -> None:
        """Queue an error: iterating raises it in place of a message."""
        self._queue.append(error)
        if self._readers:
            wake_one(self._readers)

    def end(self) -> None:
        """Wake all readers, because no message will arrive."""
        while wake_one(self._readers):
            pass

    def forget(self, which: Callable[[_T], bool]) -> None:
        """Remove the messages that ``which`` accepts: the server redelivers them."""
        kept = [m for m in self._queue if isinstance(m, ClientError) or not which(m)]
        self._queue.clear()
        self._queue.extend(kept)
