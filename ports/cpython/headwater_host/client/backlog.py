"""Unsent messages, of which the oldest may be dropped.

Messages in the session's outbox may have been sent, and are never dropped.
"""

from collections import deque
from typing import Any, NamedTuple


class Waiting(NamedTuple):
    """A message. ``seq`` counts the messages from 1; ``more`` has the properties of MQTT 5.0 or the tags of FMQ."""

    seq: int
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    more: Any

    @property
    def size(self) -> int:
        """The size of topic and payload in bytes."""
        return len(self.topic) + len(self.payload)


class Backlog:
    """A queue of unsent messages in memory. ``size`` is the size of all topics and payloads in bytes."""

    def __init__(self) -> None:
        self.queue: deque[Waiting] = deque()
        self.size = 0
        self._seq = 0

    def __len__(self) -> int:
        return len(self.queue)

    def put(self, topic: bytes, payload: bytes, qos: int, retain: bool, more: Any) -> Waiting | None:
        """Queue a message. Returns None if the store cannot be written."""
        message = Waiting(self._seq + 1, topic, payload, qos, retain, more)
        self.restore(message)
        if self._keep(message):
            self.queue.pop()
            self.size -= message.size
            return None
        return message

    def restore(self, message: Waiting) -> None:
        """Queue a message that a store has kept."""
        self._seq = message.seq
        self.queue.append(message)
        self.size += message.size

    def pop(self) -> Waiting:
        """Remove and return the oldest message."""
        message = self.queue.popleft()
        self.size -= message.size
        self._forget(message)
        return message

    def is_ready(self) -> bool:
        """Return whether a message can move to the outbox such that a crash leaves it in one of the two."""
        return True

    def _keep(self, message: Waiting) -> int:
        """Store a queued message. Returns 0 or E_STORE."""
        return 0

    def _forget(self, message: Waiting) -> None:
        """Delete a message from the store, which writes later what it cannot write now."""
