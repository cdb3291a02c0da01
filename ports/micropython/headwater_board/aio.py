"""The client for asyncio on a board: await results, and iterate over received messages.

    keeper = Keeper(Client(Tcp("broker.local"), b"board-1", clean_start=False))
    async with aio.Client(keeper) as client:
        await client.subscribe(b"board-1/commands", 1)
        await client.publish(b"board-1/hello", b"", 1)
        async for message in client:
            print(message.topic, message.payload)

A task runs the keeper (``headwater.mqtt.keeper``). A lost connection raises no exception and loses no message: pending
calls complete after the client reconnects. Use ``asyncio.wait_for_ms`` to limit a call: all calls may be cancelled.
``docs/connection.md`` lists what allocates, and how much.
"""

import asyncio

from headwater.connection import send_out
from headwater.errors import E_AGAIN, E_OFFLINE, E_REFUSED, E_RX_WINDOW, E_WINDOW, HeadwaterError
from headwater.mqtt.keeper import GIVEN_UP, OFF, ONLINE, Keeper
from headwater.mqtt.manual_ack import KEEP, ManualAck

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

    core: Any

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from asyncio import core
    from time import ticks_ms

_TICKS_MASK = 0x3FFFFFFF
_LATER = (E_WINDOW, E_AGAIN, E_OFFLINE)
_TURN_MS = 20


class Message:
    """A received message. Pass it to ``Client.acknowledge`` if ``acks.automatic`` is False."""

    def __init__(self, packet: "Packet", epoch: int):
        self.topic = packet.topic_text()
        self.payload = packet.payload_bytes()
        self.qos = packet.qos()
        self.retain = packet.retain()
        self.packet_id = packet.packet_id
        self.epoch = epoch


class Client:
    """Runs ``keeper``, which ``async with`` starts and stops; ``keeper.client`` is its client.

    ``queue`` is the number of messages that may wait for the iteration. Above it the client stops receiving, so that
    the broker has to wait. If an acknowledgement or an answer is due, the client receives it together with all messages
    before it. Beyond ``queue``, messages at QoS 1 and 2 wait unacknowledged, and those at QoS 0 are dropped (counted in
    ``dropped``). At most ``unacknowledged`` messages of QoS 1 wait beyond ``queue``, and of QoS 2 at most the session's
    ``receive_window``. Further ones are not accepted. Once there is room, the connection then ends with E_RX_WINDOW,
    and the broker retransmits them on the next connection if it keeps the session. Messages received in one read may
    exceed the limit of QoS 1.

    The keeper is polled every ``turn_ms`` milliseconds, and when bytes arrive. At the end of ``async with``, unsent and
    unacknowledged messages get up to ``close_ms`` milliseconds, none after an exception.

    Handlers of the keeper may be set, except ``on_answer``. If ``keeper.client.on_message`` is set, that handler
    receives all messages uncopied, and the iteration none. An exception of a handler is passed to the loop's exception
    handler.
    """

    def __init__(
        self,
        keeper: Keeper,
        queue: int = 8,
        turn_ms: int = 50,
        close_ms: int = 5000,
        unacknowledged: int = 64,
    ):
        self.keeper = keeper
        self.queue = queue
        self.unacknowledged = unacknowledged
        self.turn_ms = turn_ms
        self.close_ms = close_ms
        self._changed = asyncio.Event()
        #: The number of dropped messages at QoS 0.
        self.dropped = 0
        self._inbox: list[Message] = []
        # Messages left unacknowledged for lack of room, and the epoch of their connection.
        self._kept: list[Message] = []
        self._epoch = 0
        # The number of tasks that wait for a message; and whether the queue was full without such a task when the turn
        # began: an iterating task gets a turn before a message is dropped.
        self._takers = 0
        self._full = False
        # True if a message at QoS 1 was not queued: the broker retransmits it on the next connection.
        self._missed = False
        # Waiting tasks: for an acknowledgement, by packet identifier ([], or its code); for an answer: [filter, code].
        self._undelivered: dict[int, list[int]] = {}
        self._asking: list[list[Any]] = []
        # True if a task waits for room in a buffer, for which there is no event.
        self._crowded = False
        self._keeping: Any = None
        self._listening: Any = None
        self._source: Any = None
        self._inner = keeper.on_delivered
        keeper.on_delivered = self._delivered
        # For 5.0 only.
        session: Any = keeper.client.session
        self.acks = session.acks or ManualAck(session, automatic=True)
        self.acks.defer_excess_qos2 = True
        self._inner_refused: Any = None
        if session.v5 is not None:
            self._inner_refused = session.v5.on_refused
            session.v5.on_refused = self._refused
            # Some brokers exceed the Receive Maximum, for instance mosquitto 2.0.11: the limit is ``unacknowledged``.
            session.v5.receive_limit = 65535
        keeper.on_answer = self._answered
        if keeper.client.on_message is None:
            keeper.client.on_message = self._arrived

    async def __aenter__(self) -> "Client":
        self.keeper.start()
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                await self._flush(self.close_ms)
        finally:
            self._keeping.cancel()
            self.keeper.stop()
            self._listen()
            self._notify()

    async def online(self) -> None:
        """Wait until the client is connected. Raises HeadwaterError if the keeper has given up."""
        while self.keeper.state != ONLINE:
            await self._change()

    async def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, wait: bool = True
    ) -> int:
        """Publish a message. Return 0, or the packet identifier at QoS 1 and 2.

        Waits for room; at QoS 0 for a connection; and at QoS 1 and 2 for the acknowledgement, unless ``wait`` is False.
        A message is delivered even if the call is cancelled after the message was enqueued. Raises HeadwaterError:
        E_TOPIC, E_QOS, E_ARGUMENT, E_TOO_LARGE; E_REFUSED if a 5.0 broker refuses the message (``detail`` has the
        reason code); the keeper's error, such as E_REFUSED, if it has given up; E_OFFLINE if it was stopped.
        ``keeper.publish`` neither waits nor allocates.
        """
        status = self.keeper.publish(topic, payload, qos, retain)
        while status in _LATER:
            self._crowded = True
            await self._change()
            status = self.keeper.publish(topic, payload, qos, retain)
        if status < 0:
            raise HeadwaterError(status)
        if status and wait:
            mine: list[int] = []
            self._undelivered[status] = mine
            self._listen()
            try:
                while not mine:
                    await self._change()
            finally:
                if self._undelivered.get(status) is mine:
                    del self._undelivered[status]
            if mine[0]:
                raise _refusal(mine[0])
        return status

    async def flush(self, timeout_ms: int) -> None:
        """Wait until all messages are acknowledged. Raises HeadwaterError: E_TIMEOUT, or the keeper's error."""
        status = await self._flush(timeout_ms)
        if status:
            raise HeadwaterError(status)

    async def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """Subscribe on this and all later connections. Return the QoS that the server grants.

        Raises HeadwaterError: E_REFUSED if the server refuses the filter, E_FILTER, E_QOS, E_ARGUMENT; E_WINDOW if the
        keeper has no room for another subscription. The subscription continues if the call is cancelled; use
        ``unsubscribe``.
        """
        return await self._ask(topic_filter, self.keeper.subscribe(topic_filter, qos))

    async def unsubscribe(self, topic_filter: "Bytes") -> None:
        """End a subscription. Raises HeadwaterError: E_UNKNOWN_ID for an unknown filter."""
        await self._ask(topic_filter, self.keeper.unsubscribe(topic_filter))

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge a message if ``acks.automatic`` is False. Acknowledge messages in the order of arrival.

        Raises HeadwaterError: E_STATE if its connection has ended; the broker then retransmits the message.
        """
        if message.qos:
            status = self.acks.acknowledge(message.packet_id, message.qos, message.epoch)
            while status == E_AGAIN:
                self._crowded = True
                await self._change()
                status = self.acks.acknowledge(message.packet_id, message.qos, message.epoch)
            if status:
                raise HeadwaterError(status)
            self._turn()

    def __aiter__(self) -> "Client":
        return self

    async def __anext__(self) -> Message:
        self._takers += 1
        try:
            while not self._inbox:
                if self.keeper.state == OFF:
                    raise StopAsyncIteration
                await self._change()
        finally:
            self._takers -= 1
        message = self._inbox.pop(0)
        client = self.keeper.client
        if self._kept:
            self._admit()
            send_out(client)
        if not client.reading and len(self._inbox) < self.queue:
            client.reading = True
            self._listen()
        return message

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._turn()
            await asyncio.sleep_ms(self.turn_ms)

    def _turn(self) -> None:
        keeper = self.keeper
        state = keeper.state
        self._full = len(self._inbox) >= self.queue and not self._takers
        if keeper.client.connected:
            session = keeper.client.session
            if self._epoch != session.epoch:
                # The check avoids the call, which allocates: its comprehensions share a variable.
                self._forget()
            if (self._missed or self.acks.excess) and len(self._inbox) < self.queue:
                session.fail(E_RX_WINDOW)
        self._admit()
        try:
            keeper.poll()
        except Exception as e:
            asyncio.get_event_loop().call_exception_handler(
                {"message": "a handler failed", "exception": e, "future": asyncio.current_task()}
            )
        self._listen()
        if self._crowded or keeper.state != state:
            self._crowded = False
            self._notify()

    def _listen(self) -> None:
        """Run one task that waits for bytes from the current socket, and cancel that of another socket."""
        client = self.keeper.client
        source = None
        if (
            client.transport is not None
            and (client.reading or client.session.awaits())
            and hasattr(client.dialer, "source")
        ):
            source = client.dialer.source()
        if source is not self._source:
            self._source = source
            task = self._listening
            if task is not None and task is not asyncio.current_task():
                task.cancel()
            self._listening = None
            if source is not None:
                listener: Any = self._wait_for_bytes(source)
                self._listening = asyncio.create_task(listener)

    def _wait_for_bytes(self, source: "Any") -> "Generator[None, None, None]":
        # One task for each socket: asyncio's queue must not contain a closed one.
        while self._source is source:
            yield core._io_queue.queue_read(source)
            if self._source is source:
                self._turn()

    def _arrived(self, packet: "Packet") -> object:
        session = self.keeper.client.session
        self._forget()
        over = len(self._inbox) - self.queue
        qos = packet.qos()
        if self._full and over >= 0:
            if qos == 0:
                self.dropped += 1
                return None
            if over >= self.unacknowledged:
                self._missed = True
        if qos == 1 and self._missed:
            return KEEP
        message = Message(packet, session.epoch)
        self._inbox.append(message)
        if over >= -1:
            self.keeper.client.reading = False
        self._notify()
        if qos and self.acks.automatic and (over >= 0 or self._kept):
            self._kept.append(message)
            return KEEP
        return None

    def _admit(self) -> None:
        """Acknowledge deferred messages, as far as there is room now."""
        client = self.keeper.client
        if self._kept and client.connected:
            self._forget()
            while self._kept and len(self._inbox) - len(self._kept) < self.queue:
                message = self._kept[0]
                if self.acks.acknowledge(message.packet_id, message.qos, message.epoch) == E_AGAIN:
                    break
                self._kept.pop(0)

    def _forget(self) -> None:
        """On a new connection, drop unacknowledged messages at QoS 1 if the broker has kept the session and will
        retransmit them."""
        session = self.keeper.client.session
        if self._epoch != session.epoch:
            self._epoch = session.epoch
            self._missed = False
            if session.session_present:
                again = [m for m in (self._kept if self.acks.automatic else self._inbox) if m.qos == 1]
                self._inbox = [m for m in self._inbox if m not in again]
                self._kept = [m for m in self._kept if m not in again]
                if len(self._inbox) < self.queue:
                    self.keeper.client.reading = True

    def _delivered(self, packet_id: int) -> None:
        self._acknowledged(packet_id, 0)
        if self._inner is not None:
            self._inner(packet_id)

    def _refused(self, packet_id: int, code: int) -> None:
        self._acknowledged(packet_id, code)
        if self._inner_refused is not None:
            self._inner_refused(packet_id, code)

    def _acknowledged(self, packet_id: int, code: int) -> None:
        """Complete the call that waits for ``packet_id``, which may be reused at once."""
        waiter = self._undelivered.pop(packet_id, None)
        if waiter is not None:
            waiter.append(code)
            self._notify()

    def _answered(self, topic_filter: "Bytes", code: int) -> None:
        for one in self._asking:
            if one[0] == topic_filter and one[1] is None:
                one[1] = code
                self._notify()

    async def _ask(self, topic_filter: "Bytes", status: int) -> int:
        if status < 0:
            raise HeadwaterError(status)
        mine = [bytes(topic_filter), None]
        self._asking.append(mine)
        self._turn()
        try:
            while mine[1] is None:
                await self._change()
        finally:
            self._asking.remove(mine)
        code: Any = mine[1]
        if code < 0:
            raise HeadwaterError(code)
        if code & 0x80:
            raise _refusal(code)
        return int(code)

    async def _flush(self, timeout_ms: int) -> int:
        begin = ticks_ms()
        while self.keeper.waiting():
            if (ticks_ms() - begin) & _TICKS_MASK >= timeout_ms or self.keeper.state in (OFF, GIVEN_UP):
                return self.keeper.flush(0)
            await asyncio.sleep_ms(_TURN_MS)
        return 0

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def _change(self) -> None:
        """Wait for the next event. Raises HeadwaterError if the keeper is stopped or has given up."""
        if self.keeper.state in (OFF, GIVEN_UP):
            raise HeadwaterError(self.keeper.status or E_OFFLINE)
        await self._changed.wait()

    def _notify(self) -> None:
        """Wake all waiting tasks; each checks its own condition."""
        self._changed.set()
        self._changed.clear()


def _refusal(code: int) -> HeadwaterError:
    return HeadwaterError(E_REFUSED, "reason code 0x%02x" % code)
