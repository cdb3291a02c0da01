"""A client's send path: enqueue messages in the order of the calls, wait for room, complete them.

The policy ``when_full`` applies to a message that cannot be enqueued now:

- "block": its call waits for its turn, for up to its timeout.
- "refuse": its call raises.
- "drop_oldest": the message waits in the backlog. When that holds ``slots`` messages, the oldest is dropped. The
  outbox takes only as many messages as may be in flight, so only messages that were never sent are dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from headwater import errors, reasons
from headwater.connection import FIRST_REQUEST_ID
from headwater_host.arguments import seconds_of
from headwater_host.client.backlog import Backlog
from headwater_host.client.connection import Connection
from headwater_host.client.delivery import Delivery
from headwater_host.client.options import Limits
from headwater_host.client.outbox import OUTBOX_LIMIT
from headwater_host.client.payload import Payload, payload_bytes
from headwater_host.client.waiting import Answers, Line
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    NotConnectedError,
    QueueFullError,
    StoreError,
    TimedOutError,
)
from headwater_host.topics import topic_bytes

if TYPE_CHECKING:
    from headwater.types import Bytes, Outbox
    from headwater_host.client.store import SqliteOutbox

_QOS = (1, 2)
# The outbox is full; or FMQ has no message ids before the first connection.
_LATER = (errors.E_WINDOW, errors.E_OFFLINE)
_More = TypeVar("_More")
#: A message as a program publishes it: topic, payload, QoS, RETAIN, and properties or tags.
Outgoing: TypeAlias = tuple[str, Payload, int, bool, _More]
_QOS_AT: Final = 2


def _ignore(status: int) -> None:
    """Ignore the status of a commit. If it failed, the next commit, which a call waits for, fails as well."""


class Publisher(Protocol[_More]):
    """The session of a protocol, as far as publishing needs it. ``more`` are the properties or tags of a message."""

    outbox: "Outbox"
    window: int

    def enqueue(self, topic: bytes, payload: "Bytes", flags: int, /) -> int:
        """Enqueue a QoS 1 or 2 message without ``more``; ``flags`` are QoS and RETAIN as in the first byte.

        Returns the message's number, or an error, whose cause only ``offer`` tells.
        """
        ...

    def offer(self, topic: bytes, payload: "Bytes", qos: int, retain: bool, more: _More, /) -> int:
        """Enqueue a message at any QoS. Returns its number or an error; E_WINDOW if there is no room now."""
        ...

    def frame_of(self, topic: bytes, payload: "Bytes", retain: bool, more: _More, /) -> bytes:
        """Return the packet of a QoS 0 message. Raises ArgumentError."""
        ...

    def frame_now(self, topic: bytes, payload: "Bytes", retain: bool, more: _More, /) -> bytes:
        """Return the packet of a QoS 0 message for the current connection, with a topic alias if it has one."""
        ...

    def copied(self, more: _More, /) -> _More:
        """Return an immutable copy, in the form in which a store returns it."""
        ...


class SendPath(Generic[_More]):
    """The send path of one client.

    ``current`` returns the connection, or None while the client reconnects, or raises the last error. ``reached``
    waits for a connection until a deadline. ``read_on`` resumes reading, because answers follow unread messages.
    Messages that a store kept in ``backlog`` are sent first, whatever the policy is.
    """

    def __init__(
        self,
        session: Publisher[_More],
        current: Callable[[], Connection | None],
        reached: Callable[[float], Awaitable[Connection]],
        read_on: Callable[[], object],
        backlog: Backlog,
        limits: Limits,
        timeout: float,
        logger: logging.Logger,
    ):
        self.answers: Answers[int] = Answers()
        # Of posted messages, by packet identifier, or by their negative number in the backlog.
        self._deliveries: dict[int, Delivery] = {}
        # Reason codes of messages that are not completely acknowledged, by packet identifier.
        self._reasons: dict[int, int] = {}
        #: The number of completely acknowledged messages.
        self.acknowledged = 0
        #: The number of dropped messages.
        self.dropped = 0
        self.backlog = backlog
        self._slots = limits.queued_outgoing
        self._drops = limits.when_full == "drop_oldest"
        self._refuses = limits.when_full == "refuse"
        self._timeout = timeout
        self._logger = logger
        # The number of dropped messages when the backlog was last empty; whether ``_send_backlog`` is scheduled.
        self._dropped_before = 0
        self._scheduled = False
        self._session = session
        box: Any = session.outbox
        self._store: SqliteOutbox | None = box if hasattr(box, "begin_commit") else None
        self._current = current
        self._reached = reached
        self._read_on = read_on
        self._line = Line()
        # Wakes the first waiting call when the outbox has at most this number of entries.
        self._room: asyncio.Future[None] | None = None
        self._enough = 0
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """True if the server owes an answer, or a call waits for room."""
        return bool(self._session.outbox.count or self.answers or self._line.busy or self._drained)

    async def publish(self, message: Outgoing[_More], timeout: float | None) -> int:
        """``Client.publish``."""
        timeout = seconds_of(timeout, self._timeout)
        status = self._send_now(message)
        if status:
            deadline = asyncio.get_running_loop().time() + timeout
            if status == errors.E_AGAIN and self._drops:
                status = self._add_to_backlog(message)
            elif status == errors.E_AGAIN:
                status = await self._send_in_turn(deadline, message)
            if status and self._store is not None and self._current() is None:
                # Only this call can report that the message cannot be stored.
                delivery = self._follow(status, message[_QOS_AT])
                await self.stored()
                return await delivery.wait(max(0.0, deadline - asyncio.get_running_loop().time()))
            if status:
                return await self.answers.wait(status, deadline)
        return 0

    async def post(self, message: Outgoing[_More], timeout: float | None) -> Delivery:
        """``Client.post``."""
        timeout = seconds_of(timeout, self._timeout)
        status = self._send_now(message)
        if status == errors.E_AGAIN and self._drops:
            status = self._add_to_backlog(message)
            delivery = self._follow(status, message[_QOS_AT])
            await self.stored()
            if self._current() is not None:
                # Without a turn of the loop, a caller that never waits would keep answers from being read.
                await asyncio.sleep(0)
            return delivery
        if status == errors.E_AGAIN:
            deadline = asyncio.get_running_loop().time() + timeout
            status = await self._send_in_turn(deadline, message)
        delivery = self._follow(status, message[_QOS_AT])
        if status:
            await self.stored()
        return delivery

    async def stored(self) -> None:
        """Wait until the store has all changes so far. Raises StoreError."""
        store = self._store
        if store is not None and store.unsynced and await store.stored():
            raise StoreError(
                f"the store cannot be written: {store.error}; what it does not have yet stays in memory"
            )

    def post_nowait(self, message: Outgoing[_More]) -> Delivery:
        """``Client.post_nowait``."""
        status = self._send_now(message)
        if status == errors.E_AGAIN:
            if not self._drops:
                raise self._no_room(message[_QOS_AT])
            status = self._add_to_backlog(message)
        return self._follow(status, message[_QOS_AT])

    def _follow(self, status: int, qos: int) -> Delivery:
        """Return the delivery of a message that was enqueued under the number ``status``, or sent (0)."""
        delivery = Delivery(max(status, 0), qos, self._current)
        if status:
            self._deliveries[status] = delivery
        else:
            delivery.settle(0)
        return delivery

    async def drain(self, timeout: float | None) -> None:
        """``Client.drain``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_of(timeout, self._timeout)
        while self._session.outbox.count or self.backlog:
            self._current()
            self._read_on()
            if self._drained is None:
                self._drained = loop.create_future()
            await asyncio.wait({self._drained}, timeout=max(0.0, deadline - loop.time()))
            if (self._session.outbox.count or self.backlog) and loop.time() >= deadline:
                raise TimedOutError("the server did not answer in time")

    def _send_now(self, message: Outgoing[_More]) -> int:
        """Send or enqueue a message. Returns 0, its number, or E_AGAIN if there is no room now.

        Raises ArgumentError, NotConnectedError, QueueFullError.
        """
        connection = self._current()
        qos = message[_QOS_AT]
        if not (
            self._line.busy
            or (connection.paused if connection is not None else self._drops or qos == 0)
            or (self._drops and (self.backlog or (qos and self._window_is_full())))
        ):
            status = self._send(connection, message)
            if status != errors.E_AGAIN:
                return status
        if self._refuses:
            raise self._no_room(qos)
        return errors.E_AGAIN

    def _no_room(self, qos: int) -> ClientError:
        if self._current() is None and qos == 0:
            return NotConnectedError("there is no connection; it was not sent", errors.E_OFFLINE)
        return QueueFullError("there is no room for the message; it was not sent")

    def _send(self, connection: Connection | None, message: Outgoing[_More]) -> int:
        topic, payload, qos, retain, more = message
        if self.backlog and not self._send_backlog():
            return errors.E_AGAIN
        data = payload if type(payload) is bytes else payload_bytes(payload)
        if qos == 0 and connection is not None:
            connection.write(self._session.frame_now(topic_bytes(topic), data, retain, more))
            return 0
        if not isinstance(qos, int):
            raise self._not_published(errors.E_QOS)
        name = topic_bytes(topic)
        status = 0
        if qos in _QOS and not more:
            status = self._session.enqueue(name, data, qos << 1 | (1 if retain else 0))
        if status <= 0:
            # With properties or tags; or to learn the cause of the error.
            status = self._session.offer(name, data, qos, retain, more)
        if status > 0:
            if connection is not None:
                if connection.held:
                    self._read_on()
                connection.push()
            elif self._store is not None:
                self._store.begin_commit(_ignore)
        if status > 0:
            return status
        if status in _LATER:
            return errors.E_AGAIN
        raise self._not_published(status)

    def _not_published(self, status: int) -> ClientError:
        if status == errors.E_STORE:
            error = getattr(self._session.outbox, "error", None)
            return StoreError(f"not published: the store cannot be written: {error}")
        return ArgumentError(f"not published: {reasons.describe(status)}", status)

    # -- the backlog -----------------------------------------------------------------------------------------------

    def _add_to_backlog(self, message: Outgoing[_More]) -> int:
        """Queue a message in the backlog, dropping the oldest if it is full. Returns its key for ``answers``."""
        topic, payload, qos, retain, more = message
        name = topic_bytes(topic)
        data = bytes(payload_bytes(payload))
        if qos not in (0, *_QOS) or not isinstance(qos, int):
            raise self._not_published(errors.E_QOS)
        # Errors in the message are raised now, not when it is sent.
        size = len(self._session.frame_of(name, data, retain, more)) + len(_QOS)
        if size > getattr(self._session.outbox, "limit", OUTBOX_LIMIT):
            raise self._not_published(errors.E_TOO_LARGE)
        backlog = self.backlog
        waiting = backlog.put(name, data, qos, bool(retain), self._session.copied(more))
        if waiting is None:
            raise self._not_published(errors.E_STORE)
        while len(backlog) > self._slots or (backlog.size > OUTBOX_LIMIT and len(backlog) > 1):
            self._drop()
        connection = self._current()
        if connection is not None:
            connection.push()
        elif self._store is not None:
            self._store.begin_commit(_ignore)
        return -waiting.seq

    def _drop(self) -> None:
        if self.dropped == self._dropped_before:
            self._logger.warning(
                "%d messages wait to be sent: from now on each new one drops the oldest",
                self._slots,
            )
        self.dropped += 1
        error = QueueFullError("the message was dropped for newer ones; it was not sent")
        self._settle(-self.backlog.pop().seq, 0, error)

    def begin(self) -> None:
        """Send waiting messages: there is a new connection, or room in it."""
        self._more_room()
        if self.backlog:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_backlog)

    def _send_backlog(self) -> bool:
        """Send messages of the backlog, oldest first, as far as there is room. Returns whether it is empty."""
        self._scheduled = False
        try:
            connection = self._current()
        except ClientError:
            return False
        while self.backlog and self._send_oldest(connection):
            pass
        if connection is not None:
            self._read_on()
            connection.push()
        if self.backlog:
            return False
        if self.dropped != self._dropped_before:
            self._logger.warning(
                "%d messages were dropped; all others that waited are enqueued",
                self.dropped - self._dropped_before,
            )
            self._dropped_before = self.dropped
        self._more_room()
        if not self._session.outbox.count:
            self._all_done()
        return True

    def _window_is_full(self) -> bool:
        """Return whether the outbox has as many messages as may be in flight."""
        return self._session.outbox.count >= self._session.window

    def _send_oldest(self, connection: Connection | None) -> bool:
        seq, topic, payload, qos, retain, more = self.backlog.queue[0]
        session = self._session
        if connection.paused if connection is not None else self._drops or qos == 0:
            return False
        try:
            if qos == 0 and connection is not None:
                frame = session.frame_now(topic, payload, retain, more)
                self.backlog.pop()
                connection.write(frame)
                self._settle(-seq, 0)
                return True
            if (self._drops and self._window_is_full()) or not self.backlog.is_ready():
                return False
            status = session.offer(topic, payload, qos, retain, more)
            if status in (*_LATER, errors.E_STORE):
                return False
            if status <= 0:
                raise self._not_published(status)
        except ClientError as error:
            # A message that this server does not accept must not delay the others.
            self._logger.warning("dropped a waiting message: %s", error)
            self.backlog.pop()
            self._settle(-seq, 0, error)
            return True
        self.backlog.pop()
        self.answers.rename(-seq, status)
        delivery = self._deliveries.pop(-seq, None)
        if delivery is not None:
            delivery.packet_id = status
            self._deliveries[status] = delivery
        return True

    # -- waiting for a turn ----------------------------------------------------------------------------------------

    async def _send_in_turn(self, deadline: float, message: Outgoing[_More]) -> int:
        loop = asyncio.get_running_loop()
        late = TimedOutError("there was no room for the message in time; it was not sent", errors.E_AGAIN)
        qos = message[_QOS_AT]
        if qos == 0:
            # Before its turn, so that messages that can be enqueued offline do not wait for it.
            await self._reached(deadline)
        if not await self._line.enter(deadline):
            raise late
        try:
            while True:
                connection = self._current()
                if connection is None and qos == 0:
                    connection = await self._reached(deadline)
                if connection is None or not connection.paused:
                    status = self._send(connection, message)
                    if status != errors.E_AGAIN:
                        return status
                    self._read_on()
                    # Waking for every free entry would cost a turn of the loop for each message.
                    self._enough = self._session.outbox.count * 3 // 4
                    self._room = loop.create_future()
                    await asyncio.wait({self._room}, timeout=max(0.0, deadline - loop.time()))
                else:
                    await connection.writable(deadline - loop.time())
                if loop.time() >= deadline:
                    raise late
        finally:
            self._line.leave()

    def reason(self, packet_id: int, code: int) -> None:
        """Record the reason code of a message that is not refused."""
        self._reasons[packet_id] = code

    def delivered(self, packet_id: int, error: ClientError | None = None) -> None:
        """Complete a message: the server has acknowledged it completely, or refused it with ``error``."""
        self.acknowledged += 1
        self._settle(packet_id, self._reasons.pop(packet_id, 0) if self._reasons else 0, error)
        if self.backlog:
            if not self._scheduled:
                # Later, because the session is in the middle of a call.
                self.begin()
            return
        if self._room is not None and self._session.outbox.count <= self._enough:
            self._more_room()
        if self._drained is not None and not self._session.outbox.count:
            self._all_done()

    def _settle(self, number: int, code: int, error: ClientError | None = None) -> None:
        """Complete the calls and the delivery of a message."""
        if error is None:
            self.answers.settle(number, code)
        else:
            self.answers.refuse(number, error)
        if self._deliveries:
            delivery = self._deliveries.pop(number, None)
            if delivery is not None:
                delivery.settle(code, error)

    def _more_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _all_done(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def interrupt(self, error: ClientError) -> None:
        """Raise ``error`` in waiting requests. Messages are retransmitted after the reconnect."""
        self.answers.fail(error, lambda i: i >= FIRST_REQUEST_ID)

    def end(self, error: ClientError) -> None:
        """Raise ``error`` in every waiting call: the client does not reconnect."""
        self.answers.fail(error)
        for delivery in self._deliveries.values():
            delivery.interrupt(error)
        self._more_room()
        self._all_done()
