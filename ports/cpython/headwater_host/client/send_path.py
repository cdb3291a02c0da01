"""A client's send path: messages are enqueued in the order of the calls, wait for room, and are acknowledged.

The policy ``when_full`` is for a message that cannot be enqueued now:

- "block": its call waits in line, for up to its timeout.
- "refuse": its call raises.
- "drop_oldest": the message waits in the backlog. When that holds ``slots`` messages, the oldest is dropped. The
  outbox takes only as many messages as may be in flight, so only messages that were never sent are dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

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
    from headwater.types import Outbox
    from headwater_host.client.store import SqliteOutbox

_QOS = (1, 2)
# The outbox is full; or without a first connection there are no ids for messages.
_LATER = (errors.E_WINDOW, errors.E_OFFLINE)
_More = TypeVar("_More")


def _ignore(status: int) -> None:
    """Ignore the status of a commit: when it has failed, the next commit that a call waits for fails as well."""


class Publisher(Protocol[_More]):
    """The session of a protocol, as messages are handed to it. ``more`` is what else it has for a message."""

    outbox: "Outbox"
    window: int

    def hand_in(self, topic: bytes, payload: bytes | bytearray | memoryview, flags: int, /) -> int:
        """As ``offer``, at QoS 1 or 2, for a message with nothing else; ``flags`` are QoS and RETAIN as in the first
        byte. An error says only that ``offer`` is to be asked."""
        ...

    def offer(
        self, topic: bytes, payload: bytes | bytearray | memoryview, qos: int, retain: bool, more: _More, /
    ) -> int:
        """Hand in a message at any QoS: its number, or a code. E_WINDOW: there is no room for now."""
        ...

    def frame_of(
        self, topic: bytes, payload: bytes | bytearray | memoryview, retain: bool, more: _More, /
    ) -> bytes:
        """The packet of a message at QoS 0. Raises ArgumentError."""
        ...

    def frame_now(
        self, topic: bytes, payload: bytes | bytearray | memoryview, retain: bool, more: _More, /
    ) -> bytes:
        """As ``frame_of``, for one that goes out over the connection that there is now."""
        ...

    def copied(self, more: _More, /) -> _More:
        """The same, such that nobody else can change it, in the form that a store gives back."""
        ...


class SendPath(Generic[_More]):
    """What a client publishes.

    ``current`` gives the connection, None when it will come back, or raises what ended it; ``reached(deadline)`` waits
    for it. ``read_on`` is called when there is something to be answered, which stands behind what is not being read.
    ``backlog`` has what a store kept, which leaves before anything else, whatever the policy is now.
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
        # Of messages that were posted, by packet id, or by their negative number in the backlog.
        self._deliveries: dict[int, Delivery] = {}
        # Reason codes of messages that are not yet completely acknowledged, by packet id.
        self._reasons: dict[int, int] = {}
        #: How many messages have been completely acknowledged.
        self.acknowledged = 0
        #: How many messages were dropped.
        self.dropped = 0
        self.backlog = backlog
        self._slots = limits.queued_outgoing
        self._drops = limits.when_full == "drop_oldest"
        self._refuses = limits.when_full == "refuse"
        self._timeout = timeout
        self._logger = logger
        # How many had been dropped when the backlog was last empty; whether it will be looked at in this turn.
        self._dropped_before = 0
        self._feeding = False
        self._session = session
        box: Any = session.outbox
        self._store: SqliteOutbox | None = box if hasattr(box, "begin_commit") else None
        self._current = current
        self._reached = reached
        self._read_on = read_on
        self._line = Line()
        # Who is first in line, and until how many entries are left in the outbox.
        self._room: asyncio.Future[None] | None = None
        self._enough = 0
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the server has something to answer, or a call waits for room."""
        return bool(self._session.outbox.count or self.answers or self._line.busy or self._drained)

    async def publish(
        self,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        timeout: float | None,
        more: _More,
    ) -> int:
        """``Client.publish``."""
        timeout = seconds_of(timeout, self._timeout)
        status = self._send_now(topic, payload, qos, retain, more)
        if status:
            deadline = asyncio.get_running_loop().time() + timeout
            if status == errors.E_AGAIN and self._drops:
                status = self._put_off(topic, payload, qos, retain, more)
            elif status == errors.E_AGAIN:
                status = await self._send_in_turn(deadline, topic, payload, qos, retain, more)
            if status and self._store is not None and self._current() is None:
                # Only this call can report that the message cannot be stored.
                delivery = self._follow(status, qos)
                await self.stored()
                return await delivery.wait(max(0.0, deadline - asyncio.get_running_loop().time()))
            if status:
                return await self.answers.wait(status, deadline)
        return 0

    async def post(
        self,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        timeout: float | None,
        more: _More,
    ) -> Delivery:
        """``Client.post``."""
        timeout = seconds_of(timeout, self._timeout)
        status = self._send_now(topic, payload, qos, retain, more)
        if status == errors.E_AGAIN and self._drops:
            status = self._put_off(topic, payload, qos, retain, more)
            delivery = self._follow(status, qos)
            await self.stored()
            if self._current() is not None:
                # Without a turn of the loop, a caller that never waits would keep answers from being read.
                await asyncio.sleep(0)
            return delivery
        if status == errors.E_AGAIN:
            deadline = asyncio.get_running_loop().time() + timeout
            status = await self._send_in_turn(deadline, topic, payload, qos, retain, more)
        delivery = self._follow(status, qos)
        if status:
            await self.stored()
        return delivery

    async def stored(self) -> None:
        """Wait until the store has everything so far. Raises StoreError."""
        store = self._store
        if store is not None and store.unsynced and await store.stored():
            raise StoreError(
                f"the store cannot be written: {store.error}; what it does not have yet stays in memory"
            )

    def post_nowait(self, topic: str, payload: Payload, qos: int, retain: bool, more: _More) -> Delivery:
        """``Client.post_nowait``."""
        status = self._send_now(topic, payload, qos, retain, more)
        if status == errors.E_AGAIN:
            if not self._drops:
                raise self._no_room(qos)
            status = self._put_off(topic, payload, qos, retain, more)
        return self._follow(status, qos)

    def _follow(self, status: int, qos: int) -> Delivery:
        """The delivery of a message that was just handed in: its number, or 0."""
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

    def _send_now(self, topic: str, payload: Payload, qos: int, retain: bool, more: _More) -> int:
        """0, a packet id; E_AGAIN when there is no room for now.

        Raises ArgumentError, NotConnectedError, QueueFullError.
        """
        connection = self._current()
        if not (
            self._line.busy
            or (connection.paused if connection is not None else self._drops or qos == 0)
            or (self._drops and (self.backlog or (qos and self._is_under_way())))
        ):
            status = self._send(connection, topic, payload, qos, retain, more)
            if status != errors.E_AGAIN:
                return status
        if self._refuses:
            raise self._no_room(qos)
        return errors.E_AGAIN

    def _no_room(self, qos: int) -> ClientError:
        if self._current() is None and qos == 0:
            return NotConnectedError("there is no connection; it was not sent", errors.E_OFFLINE)
        return QueueFullError("there is no room for the message; it was not sent")

    def _send(
        self,
        connection: Connection | None,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        more: _More,
    ) -> int:
        if self.backlog and not self._feed():
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
            status = self._session.hand_in(name, data, qos << 1 | (1 if retain else 0))
        if status <= 0:
            # With more; or why not: nothing has happened yet.
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

    def _put_off(self, topic: str, payload: Payload, qos: int, retain: bool, more: _More) -> int:
        """Let a message wait in the backlog, where the oldest make room for it: what ``answers`` knows it by."""
        name = topic_bytes(topic)
        data = bytes(payload_bytes(payload))
        if qos not in (0, *_QOS) or not isinstance(qos, int):
            raise self._not_published(errors.E_QOS)
        # What can be wrong with it is said now.
        size = len(self._session.frame_of(name, data, retain, more)) + len(_QOS)
        if size > getattr(self._session.outbox, "limit", OUTBOX_LIMIT):
            raise self._not_published(errors.E_TOO_LARGE)
        backlog = self.backlog
        message = backlog.put(name, data, qos, bool(retain), self._session.copied(more))
        if message is None:
            raise self._not_published(errors.E_STORE)
        while len(backlog) > self._slots or (backlog.size > OUTBOX_LIMIT and len(backlog) > 1):
            self._drop()
        connection = self._current()
        if connection is not None:
            connection.push()
        elif self._store is not None:
            self._store.begin_commit(_ignore)
        return -message.seq

    def _drop(self) -> None:
        if self.dropped == self._dropped_before:
            self._logger.warning(
                "%d messages wait to be sent: from now on the oldest of them is dropped for each new one",
                self._slots,
            )
        self.dropped += 1
        error = QueueFullError("newer messages took its place among those that wait; it was not sent")
        self._settle(-self.backlog.pop().seq, 0, error)

    def begin(self) -> None:
        """There is a connection, or there is room in it again: what waits can leave."""
        self._more_room()
        if self.backlog:
            self._feeding = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> bool:
        """Hand in what waits in the backlog, from the oldest on, as far as it can leave now: whether it is empty."""
        self._feeding = False
        try:
            connection = self._current()
        except ClientError:
            return False
        while self.backlog and self._feed_one(connection):
            pass
        if connection is not None:
            self._read_on()
            connection.push()
        if self.backlog:
            return False
        if self.dropped != self._dropped_before:
            self._logger.warning(
                "%d messages were dropped; what was left of those that waited has been handed in",
                self.dropped - self._dropped_before,
            )
            self._dropped_before = self.dropped
        self._more_room()
        if not self._session.outbox.count:
            self._all_done()
        return True

    def _is_under_way(self) -> bool:
        """Whether the outbox has as much as may be unacknowledged at a time."""
        return self._session.outbox.count >= self._session.window

    def _feed_one(self, connection: Connection | None) -> bool:
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
            if (self._drops and self._is_under_way()) or not self.backlog.is_ready():
                return False
            status = session.offer(topic, payload, qos, retain, more)
            if status in (*_LATER, errors.E_STORE):
                return False
            if status <= 0:
                raise self._not_published(status)
        except ClientError as error:
            # This server does not take it: it must not hold up the rest.
            self._logger.warning("dropped a message that waited: %s", error)
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

    # -- in turn ---------------------------------------------------------------------------------------------------

    async def _send_in_turn(
        self,
        deadline: float,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        more: _More,
    ) -> int:
        loop = asyncio.get_running_loop()
        late = TimedOutError("there was no room for the message in time; it was not sent", errors.E_AGAIN)
        if qos == 0:
            # Not in line: who can be handed in without a connection need not wait for those who cannot.
            await self._reached(deadline)
        if not await self._line.enter(deadline):
            raise late
        try:
            while True:
                connection = self._current()
                if connection is None and qos == 0:
                    connection = await self._reached(deadline)
                if connection is None or not connection.paused:
                    status = self._send(connection, topic, payload, qos, retain, more)
                    if status != errors.E_AGAIN:
                        return status
                    self._read_on()
                    # Not for every place that gets free: that would be a turn of the loop for each message.
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
        """Keep a reason code for a message that is not refused."""
        self._reasons[packet_id] = code

    def delivered(self, packet_id: int, error: ClientError | None = None) -> None:
        """Complete a message: it is completely acknowledged, or ``error`` says why the server refused it."""
        self.acknowledged += 1
        self._settle(packet_id, self._reasons.pop(packet_id, 0) if self._reasons else 0, error)
        if self.backlog:
            if not self._feeding:
                # Not from within the session.
                self.begin()
            return
        if self._room is not None and self._session.outbox.count <= self._enough:
            self._more_room()
        if self._drained is not None and not self._session.outbox.count:
            self._all_done()

    def _settle(self, number: int, code: int, error: ClientError | None = None) -> None:
        """Complete the calls and the delivery that wait for a message."""
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
        """Fail requests, which end with their connection; messages are retransmitted after the reconnect."""
        self.answers.fail(error, lambda i: i >= FIRST_REQUEST_ID)

    def end(self, error: ClientError) -> None:
        """Raise ``error`` in every waiting call: the client does not reconnect."""
        self.answers.fail(error)
        for delivery in self._deliveries.values():
            delivery.interrupt(error)
        self._more_room()
        self._all_done()
