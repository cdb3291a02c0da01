"""Remote FMQ hub as a source: consume its topics in a group, acknowledge messages when on disk, reconnect for ever."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from headwater.errors import E_AGAIN, E_UNKNOWN_ID
from headwater.fmq.manual_ack import acknowledge
from headwater.fmq.spec import CONSUMERESP, NONE
from headwater.reconnect import PASSING
from headwater_host.capture.format import FMQ
from headwater_host.client.connection import HOLD_GATE
from headwater_host.client.fmq import Client, ConnectionOptions, Limits, Subscription
from headwater_host.client.fmq.session import RECEIVE_WINDOW
from headwater_host.client.reconnect import is_refusal
from headwater_host.errors import ClientError, SubscribeError
from headwater_host.fmq.values import encode
from headwater_host.gateway.client_source import QUIET, RECONNECT, ClientSource, Skip
from headwater_host.gateway.config import LARGEST_BODY, FmqConfig
from headwater_host.gateway.recording import Acknowledgements, Recorder
from headwater_host.hub import frames

if TYPE_CHECKING:
    from headwater.fmq.frames import Frame

# Seconds until consuming starts again after the hub ended or refused it; between checks of the log.
_AGAIN_S = 5.0
_LOOK_S = 1.0
_NOTHING = (0, b"")


class RemoteHubSource(ClientSource):
    """Consumes the topics of ``config``, and reconnects for ever.

    The hub redelivers messages that are not acknowledged in time, and makes them dead letters after too many attempts.
    So nothing is consumed while the log cannot be written: unacknowledged messages return to the group.
    """

    _client: Client

    def __init__(self, recorder: Recorder, config: FmqConfig):
        route = config.route
        super().__init__(recorder, f"fmq:{route}")
        self._config = config
        self._client = Client(
            config.host,
            config.port,
            tls=config.tls,
            identifier=config.client_id,
            username=config.username,
            password=config.password,
            timeout=config.timeout,
            reconnect=RECONNECT,
            connection=ConnectionOptions(keepalive=config.keepalive),
            limits=Limits(queued_incoming=None, queued_outgoing=1, packet_size=LARGEST_BODY),
            logger=QUIET,
        )
        self._client.before_attempts = self._before_attempts
        self._client.on_connection = self._on_connection
        session = self._client.session
        session.on_message = self._on_message
        session.sink = Skip(self)
        self._acknowledgements = Acknowledgements(recorder, self, self._push, self._flush)
        self._subscriptions: list[Subscription] = []
        # Unacknowledged messages: subscription and message id, also by receipt.
        self._open: set[tuple[int, bytes]] = set()
        self._receipts: dict[int, tuple[int, bytes]] = {}

    # -- messages --------------------------------------------------------------------------------------------------

    def _on_message(self, f: "Frame") -> None:
        session = self._client.session
        receipt = session.receipt
        if f.head >> 4 != CONSUMERESP or not receipt or self._stopping:
            return
        key = session.source, bytes(f.buf[f.id_at : f.id_end])
        frame = self._frame(f)
        if frame is None or key in self._open:
            # A redelivery of a message that is being recorded, or a message of an ended subscription.
            session.forget(receipt)
            return
        self._open.add(key)
        self._receipts[receipt] = key
        self.count(0, len(frame))
        number = self.recorder.record(self.connection, self.peer, frame, 0, FMQ)
        self._acknowledgements.add(number, receipt, 1)

    def _frame(self, f: "Frame") -> bytes | None:
        """Return the frame with its topic, which the hub omits if the subscription names it.

        None if the subscription has ended.
        """
        at = f.at[1]
        if f.buf[at] != NONE:
            return bytes(memoryview(f.buf)[f.id_at - 1 : f.end])
        source = self._client.session.source
        topic = next((one.topic for one in self._subscriptions if one.number == source), None)
        if topic is None:
            return None
        view = memoryview(f.buf)
        body = b"".join((view[f.at[0] : at], encode(topic), view[f.tags_at : f.end]))
        return frames.framed(f.head, bytes(view[f.id_at : f.id_end]), body)

    @property
    def epoch(self) -> int:
        """The number of the connection."""
        return self._client.session.epoch

    def acknowledge(self, receipt: int, qos: int, epoch: int) -> int:
        """Acknowledge a message. Return 0; E_AGAIN without room in the buffer; E_UNKNOWN_ID after a reconnect."""
        session = self._client.session
        status = acknowledge(session, receipt) if epoch == session.epoch else E_UNKNOWN_ID
        if status != E_AGAIN and epoch == session.epoch:
            self._open.discard(self._receipts.pop(receipt, _NOTHING))
        return status

    # -- the connection --------------------------------------------------------------------------------------------

    async def _before_attempts(self) -> None:
        await super()._before_attempts()
        self._forget()

    def _on_connection(self, error: ClientError | None) -> None:
        self.refusal = _refusal(error)
        if error is not None:
            self.report("disconnected", str(error), logging.WARNING)
        else:
            self._connected("connected")

    async def run(self) -> None:
        """Consume until cancelled; then return unacknowledged messages to the group and disconnect."""
        async with self._client:
            try:
                while True:
                    await self._consume_while_it_can_be_written()
            finally:
                # Read the hub's answers, but record no message.
                self._stopping = True
                if self._client.connection is not None:
                    self._client.connection.release(HOLD_GATE)

    async def _consume_while_it_can_be_written(self) -> None:
        """Consume until the log fails or the hub ends the consumers; then wait until consuming may start again."""
        try:
            await self._consume()
            await self._until_the_log_fails()
        except ClientError as error:
            self.refusal = _refusal(error)
            self.report("refused", str(error), logging.WARNING)
            await asyncio.sleep(_AGAIN_S)
        await self._give_back()
        if self.recorder.error is not None:
            self.report("waiting", "consuming stops until the log can be written", logging.WARNING)
        while self.recorder.error is not None or not self._gate.is_set():
            await asyncio.sleep(_LOOK_S)

    async def _consume(self) -> None:
        client, topics = self._client, self._config.topics
        window = min(self._config.window, RECEIVE_WINDOW // 2 // len(topics))
        for topic in topics:
            subscription = await client.subscribe(topic, group=self._config.group)
            self._subscriptions.append(subscription)
            await client.consume(subscription, window=window, need_ack=True)
        self.refusal = ""
        self.report("consuming", f"consuming {', '.join(topics)} for the group {self._config.group}")

    async def _until_the_log_fails(self) -> None:
        """Wait until the log fails. Raises FmqConsumerError when the hub ends a consumer."""
        ended = asyncio.ensure_future(self._client.messages.__anext__())
        try:
            while self.recorder.error is None:
                await asyncio.wait({ended}, timeout=_LOOK_S)
                if ended.done():
                    ended.result()
        finally:
            ended.cancel()

    async def _give_back(self) -> None:
        """End the consumers: unacknowledged messages return to the group, without counting an attempt."""
        for subscription in self._subscriptions:
            with contextlib.suppress(ClientError):
                await self._client.unsubscribe(subscription)
        # Until here, messages of these subscriptions may arrive.
        self._subscriptions.clear()
        self._forget()

    def _forget(self) -> None:
        """Forget the unacknowledged messages: the hub redelivers them."""
        self._open.clear()
        self._receipts.clear()


def _refusal(error: ClientError | None) -> str:
    """Return why the hub would refuse the same attempt again; "" if it would not."""
    if error is None or not is_refusal(error):
        return ""
    return "" if isinstance(error, SubscribeError) and error.reason_code in PASSING else str(error)
