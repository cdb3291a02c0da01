"""A client's receive path: limit the queue of received messages by pausing reads, withholding or dropping.

At the limit

- reading pauses while the server owes no answer: TCP then holds the server back, and nothing is lost;
- otherwise reading continues, because acknowledgements and answers follow messages in the same stream. Messages at QoS
  1 and 2 are queued, and stay unacknowledged until the program takes them. The server therefore stops after as many as
  it may send unacknowledged (Receive Maximum). Messages at QoS 0 are dropped and counted.

A server that sends more than ``RECEIVE_MAXIMUM`` unacknowledged messages ends the connection.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headwater_host.client.connection import HOLD_APPLICATION, Connection

if TYPE_CHECKING:
    from headwater.fmq.frames import Frame
    from headwater.mqtt.packets import Packet

#: How many messages a server may send without an acknowledgement: as many as there are packet ids.
RECEIVE_MAXIMUM = 65535


class _Message(Protocol):
    qos: int
    acknowledged: bool


_M = TypeVar("_M", bound=_Message)


class ReceivePath(Generic[_M]):
    """The messages that arrive at a client.

    ``connection`` returns the connection or None. ``is_awaited`` returns whether the server owes the client an answer.
    ``withhold(True)`` makes the session leave messages at QoS 1 and 2 unacknowledged from the next one on;
    ``acknowledge`` acknowledges such a message. The lengths of ``queues`` count against ``limit``.
    """

    def __init__(
        self,
        limit: int | None,
        connection: Callable[[], Connection | None],
        is_awaited: Callable[[], bool],
        withhold: Callable[[bool], object],
        acknowledge: Callable[[_M], object],
        logger: logging.Logger,
    ):
        self.limit = sys.maxsize if limit is None else limit
        #: Messages at QoS 0 that were dropped.
        self.dropped = 0
        #: Messages that are queued and unacknowledged until the program takes them, oldest first.
        self.withheld: deque[_M] = deque()
        self.queues: list[Sized] = []
        self._connection = connection
        self._is_awaited = is_awaited
        self._withhold = withhold
        self._acknowledge = acknowledge
        self._logger = logger
        #: True if messages at QoS 1 and 2 stay unacknowledged for now; always while a queue is full.
        self.withholds = False
        # True if reading has gone on although a queue was full, until it is half empty.
        self._overrun = False
        self._dropped_before = 0

    @property
    def is_full(self) -> bool:
        """True if a queue has reached its limit."""
        return max(map(len, self.queues)) >= self.limit

    def has_room(self, queue: Sized) -> bool:
        """Return whether to queue a message that needs no acknowledgement; otherwise count it as dropped.

        When reading pauses, the messages that are already read are queued beyond the limit.
        """
        if len(queue) < self.limit or not (self._overrun or self._is_awaited()):
            return True
        self._overrun = True
        if self.dropped == self._dropped_before:
            self._logger.warning(
                "%d received messages wait for the program: messages at QoS 0 are dropped", self.limit
            )
        self.dropped += 1
        return False

    def look(self) -> None:
        """Pause or resume reading: when a queue reaches its limit or half of it, or a call starts to wait."""
        connection = self._connection()
        waiting = max(map(len, self.queues))
        if waiting <= self.limit // 2:
            self._overrun = False
            if not self.withheld:
                self._set_withholds(False)
            if self.dropped != self._dropped_before:
                count, self._dropped_before = self.dropped - self._dropped_before, self.dropped
                self._logger.warning("%d messages at QoS 0 were dropped: the program was behind", count)
            if connection is not None:
                connection.release(HOLD_APPLICATION)
            return
        is_full = waiting >= self.limit
        if is_full:
            self._set_withholds(True)
        if self._is_awaited():
            self._overrun |= is_full
            if connection is not None:
                connection.release(HOLD_APPLICATION)
        elif is_full and connection is not None:
            connection.hold(HOLD_APPLICATION)

    def read_on(self) -> None:
        """Resume reading for a call that waits for an answer, which follows unread messages."""
        connection = self._connection()
        if connection is not None and connection.held:
            self._overrun = True
            connection.release(HOLD_APPLICATION)

    def taken(self, message: _M) -> None:
        """Acknowledge a withheld message that the program has taken out of a queue."""
        if self.withheld and self.withheld[0] is message:
            self.withheld.popleft()
            message.acknowledged = True
            self._acknowledge(message)
        if not self.withheld and not self.is_full:
            self._set_withholds(False)

    def begin(self) -> None:
        """Start a new connection, over which the server retransmits unacknowledged messages at QoS 1."""
        self.withheld = deque(message for message in self.withheld if message.qos == 2)
        self._set_withholds(bool(self.withheld) or self.is_full)

    def _set_withholds(self, value: bool) -> None:
        if value != self.withholds:
            self.withholds = value
            self._withhold(value)


class SkipLarge:
    """The sink for messages that exceed ``packet_size``: it logs and refuses them, so the session skips them."""

    def __init__(self, logger: logging.Logger):
        self._logger = logger

    def open(self, packet: "Packet | Frame", size: int) -> bool:
        """Refuse the message (``headwater.types.Sink``)."""
        self._logger.warning(
            "skipped a message of %d bytes on %s: it exceeds packet_size", size, packet.topic_text()
        )
        return False

    def write(self, buf: "bytes | bytearray | memoryview", at: int, n: int) -> None:
        """Never called, because ``open`` refuses."""

    def close(self, complete: bool) -> None:
        """Never called, because ``open`` refuses."""
