"""Messages that wait, not yet handed to the session: never sent, so that the oldest of them may be dropped.

``headwater.mqtt.backlog`` for a host. What was handed to the session is in its outbox, may have been sent, and is never
dropped.
"""

from collections import deque
from typing import Any, NamedTuple


class Waiting(NamedTuple):
    """A message; ``seq`` counts up from 1 in the order of their coming. ``more`` is what else its protocol has for it:
    properties of MQTT 5.0, tags of FMQ."""

    seq: int
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    more: Any

    @property
    def size(self) -> int:
        """Bytes of topic and payload."""
        return len(self.topic) + len(self.payload)


class Backlog:
    """They, in memory, oldest first. ``len`` is how many; ``size`` how many bytes their topics and payloads are."""

    def __init__(self) -> None:
        self.queue: deque[Waiting] = deque()
        self.size = 0
        self._seq = 0

    def __len__(self) -> int:
        return len(self.queue)

    def put(self, topic: bytes, payload: bytes, qos: int, retain: bool, more: Any) -> Waiting | None:
        """Take a message; None when the store could not keep it."""
        message = Waiting(self._seq + 1, topic, payload, qos, retain, more)
        self.restore(message)
        if self._keep(message):
            self.queue.pop()
            self.size -= message.size
            return None
        return message

    def restore(self, message: Waiting) -> None:
        """Put a message behind the others, as it was."""
        self._seq = message.seq
        self.queue.append(message)
        self.size += message.size

    def pop(self) -> Waiting:
        """Take the oldest out."""
        message = self.queue.popleft()
        self.size -= message.size
        self._forget(message)
        return message

    def is_ready(self) -> bool:
        """Whether a message can go from here to the outbox, so that after a crash it is in one of the two."""
        return True

    def _keep(self, message: Waiting) -> int:
        """A message has come: 0, or E_STORE."""
        return 0

    def _forget(self, message: Waiting) -> None:
        """A message has gone. What a store cannot write now it writes later, all of it."""
