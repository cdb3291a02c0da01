"""The client for asyncio on a board: ``await`` what has an answer, and iterate over what arrives.

    keeper = Keeper(Client(Tcp("broker.local"), b"board-1", clean_start=False))
    async with aio.Client(keeper) as client:
        await client.subscribe(b"board-1/commands", 1)
        await client.publish(b"board-1/hello", b"", 1)
        async for message in client:
            print(message.topic, message.payload)

A task keeps the connection (``headwater.mqtt.keeper``), so that nothing here is lost or raised because of a broken one:
what is awaited comes about on the next. To wait no longer than so long, use ``asyncio.wait_for_ms``: any of these
calls may be cancelled. What allocates, and how much: ``docs/connection.md``.
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
        """``time.ticks_ms``, as the integer that it is."""
        ...
else:
    from asyncio import core
    from time import ticks_ms

_TICKS_MASK = 0x3FFFFFFF
_LATER = (E_WINDOW, E_AGAIN, E_OFFLINE)
_TURN_MS = 20


class Message:
    """A message that has arrived. ``acknowledge`` of the client wants it, where that is the program's affair."""

    def __init__(self, packet: "Packet", epoch: int):
        self.topic = packet.topic_text()
        self.payload = packet.payload_bytes()
        self.qos = packet.qos()
        self.retain = packet.retain()
        self.packet_id = packet.packet_id
        self.epoch = epoch


class Client:
    """``keeper`` is started and stopped by ``async with``; ``keeper.client`` is the client that it keeps.

    ``queue``: how many messages may wait for the iteration. When they do, nothing more is received and the broker has
    to wait, unless an acknowledgement or an answer is due: it is received with all that lies before it. Then messages
    at QoS 1 and 2 beyond ``queue`` wait unacknowledged, and those at QoS 0 are dropped (``dropped`` counts them). Of
    QoS 1 at most ``unacknowledged`` wait beyond ``queue``, of QoS 2 at most the session's ``receive_window``. The
    others are not taken. Once there is room, the connection ends with E_RX_WINDOW, and the broker retransmits them on
    the next, if it keeps the session. What comes with one read may exceed the limit of QoS 1.

    ``turn_ms`` is how often the keeper is polled besides when something arrives. On leaving, up to ``close_ms`` go to
    what is unsent or unacknowledged; none after an exception.

    Handlers of the keeper may be set, but for ``on_answer``; ``keeper.client.on_message`` may be set as well: messages
    then go to that handler, without being copied, and none to the iteration. What a handler raises goes to the loop's
    exception handler.
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
        #: Messages at QoS 0 that were dropped.
        self.dropped = 0
        self._inbox: list[Message] = []
        # Those that are unacknowledged for want of room, and the connection that they came on.
        self._kept: list[Message] = []
        self._epoch = 0
        # How many wait for a message, and whether the queue was full, and nobody did, when the turn began: who iterates
        # has a turn as well before anything is dropped.
        self._takers = 0
        self._full = False
        # Whether a message at QoS 1 was not queued: it comes again on the next connection.
        self._missed = False
        # Who waits for an acknowledgement, by packet id: [], or what it said; and for an answer: [filter, code].
        self._undelivered: dict[int, list[int]] = {}
        self._asking: list[list[Any]] = []
        # Whether somebody waits for room, which nothing announces.
        self._crowded = False
        self._keeping: Any = None
        self._listening: Any = None
        self._source: Any = None
        self._inner = keeper.on_delivered
        keeper.on_delivered = self._delivered
        # Of 5.0 only.
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
        """Wait until there is a connection; raises HeadwaterError when the keeper has given up."""
        while self.keeper.state != ONLINE:
            await self._change()

    async def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, wait: bool = True
    ) -> int:
        """Publish: 0, or the packet id.

        Waits for room, at QoS 0 for a connection, and at QoS 1 and 2 until the message is acknowledged, unless ``wait``
        is False. Cancelled after it was handed in, it is delivered all the same. Raises HeadwaterError: E_TOPIC,
        E_QOS, E_ARGUMENT, E_TOO_LARGE; E_REFUSED when the broker of 5.0 refuses the message (``detail`` has the reason
        code); E_REFUSED and others when the keeper has given up, E_OFFLINE when it was stopped. ``keeper.publish`` is
        the one that waits for nothing, and allocates nothing.
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
        """Wait until everything published is acknowledged; raises HeadwaterError: E_TIMEOUT, or as ``online``."""
        status = await self._flush(timeout_ms)
        if status:
            raise HeadwaterError(status)

    async def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """Subscribe, now and on all connections to come: the QoS that the server grants.

        Raises HeadwaterError: E_REFUSED for a filter that the server refuses, E_FILTER, E_QOS, E_ARGUMENT; E_WINDOW
        when the keeper has no room for another one. Cancelled, it goes on: ``unsubscribe``.
        """
        return await self._ask(topic_filter, self.keeper.subscribe(topic_filter, qos))

    async def unsubscribe(self, topic_filter: "Bytes") -> None:
        """Take a subscription back; raises HeadwaterError, E_UNKNOWN_ID for one that there is not."""
        await self._ask(topic_filter, self.keeper.unsubscribe(topic_filter))

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge a message, where ``acks.automatic`` is False; in the order of arrival.

        Raises HeadwaterError: E_STATE when its connection is over, and it will come again.
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
                # Calling it allocates: its comprehensions share a variable.
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
        """Have a task that listens to the socket in use, if any; and none that listens to another."""
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
        # A task of its own for each socket: asyncio's queue must not be left with one that is closed.
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
        """Acknowledge what was kept, as far as there is room for it now."""
        client = self.keeper.client
        if self._kept and client.connected:
            self._forget()
            while self._kept and len(self._inbox) - len(self._kept) < self.queue:
                message = self._kept[0]
                if self.acks.acknowledge(message.packet_id, message.qos, message.epoch) == E_AGAIN:
                    break
                self._kept.pop(0)

    def _forget(self) -> None:
        """On a new connection forget what is unacknowledged at QoS 1, if the broker has kept the session and thus sends
        it again."""
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
        """A message of ours is over: its packet id may be another's at once."""
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
        """Wait until something has happened; raises HeadwaterError when nothing will."""
        if self.keeper.state in (OFF, GIVEN_UP):
            raise HeadwaterError(self.keeper.status or E_OFFLINE)
        await self._changed.wait()

    def _notify(self) -> None:
        """Wake everybody who waits: each knows what for."""
        self._changed.set()
        self._changed.clear()


def _refusal(code: int) -> HeadwaterError:
    return HeadwaterError(E_REFUSED, "reason code 0x%02x" % code)
