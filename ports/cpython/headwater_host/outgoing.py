"""A client's way out: messages are handed in, in the order of the calls; wait for room; are acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable

from headwater import errors, reasons
from headwater.store import FIRST_REQUEST_ID
from headwater_host.calls import Answers, Line
from headwater_host.connection import Connection
from headwater_host.errors import (
    MqttArgumentError,
    MqttError,
    MqttPublishError,
    MqttStoreError,
    MqttTimeoutError,
)
from headwater_host.messages import Payload, payload_bytes
from headwater_host.properties import Properties
from headwater_host.session import HostClient
from headwater_host.topics import topic_bytes

_QOS = (1, 2)


class Outgoing:
    """What a client publishes.

    ``current`` gives the connection, None when it will come back, or raises what ended it; ``reached(deadline)`` waits
    for it. ``release`` is called before waiting for an answer, which stands behind what is not being read.
    """

    def __init__(
        self,
        session: HostClient,
        current: Callable[[], Connection | None],
        reached: Callable[[float], Awaitable[Connection]],
        release: Callable[[], object],
    ):
        self.answers = Answers()
        #: How many messages have been acknowledged to their end.
        self.acknowledged = 0
        self._session = session
        self._current = current
        self._reached = reached
        self._release = release
        self._line = Line()
        # Who is first in line, and until how many entries are left in the outbox.
        self._room: asyncio.Future[None] | None = None
        self._enough = 0
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a call waits for an answer of the server."""
        return bool(self.answers) or self._line.busy or self._drained is not None

    async def publish(
        self,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        timeout: float,
        properties: Properties | None,
    ) -> None:
        """``Client.publish``."""
        status = self._send_now(topic, payload, qos, retain, properties)
        if status:
            deadline = asyncio.get_running_loop().time() + timeout
            if status == errors.E_AGAIN:
                status = await self._send_in_turn(deadline, topic, payload, qos, retain, properties)
            if status:
                self._release()
                code = await self.answers.wait(status, deadline)
                if code:
                    raise MqttPublishError(code)

    async def post(
        self,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        timeout: float,
        properties: Properties | None,
    ) -> None:
        """``Client.post``."""
        if self._send_now(topic, payload, qos, retain, properties) == errors.E_AGAIN:
            deadline = asyncio.get_running_loop().time() + timeout
            await self._send_in_turn(deadline, topic, payload, qos, retain, properties)

    async def drain(self, timeout: float) -> None:
        """``Client.drain``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._session.outbox.count:
            self._current()
            self._release()
            if self._drained is None:
                self._drained = loop.create_future()
            await asyncio.wait({self._drained}, timeout=max(0.0, deadline - loop.time()))
            if self._session.outbox.count and loop.time() >= deadline:
                raise MqttTimeoutError("the server did not acknowledge in time")

    def _send_now(
        self, topic: str, payload: Payload, qos: int, retain: bool, properties: Properties | None
    ) -> int:
        """0, a packet id; E_AGAIN when there is no room for now. Raises MqttArgumentError, MqttConnectionError."""
        connection = self._current()
        if self._line.busy or (connection.paused if connection is not None else qos == 0):
            return errors.E_AGAIN
        return self._send(connection, topic, payload, qos, retain, properties)

    def _send(
        self,
        connection: Connection | None,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> int:
        data = payload if type(payload) is bytes else payload_bytes(payload)
        if qos == 0 and connection is not None:
            connection.write(self._session.frame(topic_bytes(topic), data, retain, properties))
            return 0
        name = topic_bytes(topic)
        status = 0
        if qos in _QOS and properties is None:
            status = self._session.hand_in(name, data, qos << 1 | (1 if retain else 0))
        if status <= 0:
            # With properties; or why not: nothing has happened yet.
            status = self._session.offer(name, data, qos, retain, properties)
        if status > 0:
            if connection is not None:
                connection.push()
            elif self._session.sync():
                status = errors.E_STORE
        if status > 0:
            return status
        if status == errors.E_WINDOW:
            return errors.E_AGAIN
        if status == errors.E_STORE:
            error = getattr(self._session.outbox, "error", None)
            raise MqttStoreError(f"not published: the store cannot be written: {error}")
        raise MqttArgumentError(f"not published: {reasons.describe(status)}", status)

    async def _send_in_turn(
        self,
        deadline: float,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> int:
        loop = asyncio.get_running_loop()
        late = MqttTimeoutError("there was no room for the message in time; it was not sent", errors.E_AGAIN)
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
                    status = self._send(connection, topic, payload, qos, retain, properties)
                    if status != errors.E_AGAIN:
                        return status
                    self._release()
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

    def delivered(self, packet_id: int, code: int = 0) -> None:
        """A message is acknowledged to its end, or refused with a code."""
        self.acknowledged += 1
        self.answers.settle(packet_id, code)
        if self._room is not None and self._session.outbox.count <= self._enough:
            self._more_room()
        if self._drained is not None and not self._session.outbox.count:
            self._all_done()

    def _more_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _all_done(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def interrupt(self, error: MqttError) -> None:
        """The connection is lost, and will come back: messages go out again, requests have to be made again."""
        self.answers.fail(error, FIRST_REQUEST_ID)

    def end(self, error: MqttError) -> None:
        """The connection is over: whoever waits hears why."""
        self.answers.fail(error)
        self._more_room()
        self._all_done()
