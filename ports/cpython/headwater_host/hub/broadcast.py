"""Who of those that are connected has subscribed to which topics without a group."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.storage import Message
from headwater_host.hub.topics import Subscriptions

#: Messages that are handed to clients in a turn of the event loop.
_TURN = 256
#: Messages, and bytes of them, that may wait for that; then publishers wait.
_MOST = 1000
_MOST_BYTES = 4 << 20


class Broadcast:
    """The broadcast subscriptions of clients that are not kept, to be found by topic."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._index: Subscriptions[tuple[Client, Subscribed]] = Subscriptions()
        self._messages: deque[Message] = deque()
        self._bytes = 0
        #: Whether more waits to be handed out than should, until nothing does.
        self.is_behind = False
        self._steps: Iterator[None] | None = None
        self._waiting: list[Callable[[], None]] = []

    def add(self, client: Client, subscribed: Subscribed) -> None:
        """Have a subscription, in the place of what the client had subscribed with the same filter."""
        self._index.add(subscribed.subscription.topic, client, (client, subscribed))

    def remove(self, client: Client, subscribed: Subscribed) -> None:
        """Forget it, whether it was there or not."""
        self._index.remove(subscribed.subscription.topic, client)

    def stored(self, messages: list[Message]) -> None:
        """Messages are on the disk: who has subscribed gets them, so many in a turn."""
        if not len(self._index):
            return
        self._messages += messages
        self._bytes += sum(message.size for message in messages)
        self.is_behind = len(self._messages) > _MOST or self._bytes > _MOST_BYTES
        if self._steps is None:
            self._steps = self._hand_out()
            self._go_on()

    def after(self, done: Callable[[], None]) -> None:
        """Call this when nothing waits to be handed out any more."""
        self._waiting.append(done)

    def _go_on(self) -> None:
        assert self._steps is not None
        try:
            done = sum(1 for _ in islice(self._steps, _TURN)) < _TURN
        except Exception as error:
            context = {"message": "a message could not be handed to a client", "exception": error}
            self._loop.call_exception_handler(context)
            # The others are to have theirs all the same.
            self._steps, done = self._hand_out(), False
        if not done:
            self._loop.call_soon(self._go_on)
            return
        self._steps = None
        self.is_behind = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def _hand_out(self) -> Iterator[None]:
        """Hand out what waits, a message to a client in each step."""
        while self._messages:
            message = self._messages.popleft()
            self._bytes -= message.size
            told: set[Client] = set()
            for client, subscribed in self._index.match(message.topic):
                if client not in told and client.pusher is not None and client.connection is not None:
                    if message.seq > subscribed.since and subscribed.wanted(message):
                        told.add(client)
                        client.pusher.put(message)
                    yield
            yield
