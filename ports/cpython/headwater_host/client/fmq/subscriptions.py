"""Subscriptions, consumers and calls."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from headwater import errors
from headwater.fmq import frames, spec
from headwater.fmq.manual_ack import acknowledge
from headwater_host.client.connection import TICK
from headwater_host.client.fmq.messages import Call, Message, Subscription
from headwater_host.client.fmq.requests import Answer, Requests
from headwater_host.client.fmq.session import HostSession
from headwater_host.client.inbox import Inbox
from headwater_host.client.payload import Payload, payload_bytes
from headwater_host.errors import ClientError, FmqConsumerError, NotConnectedError
from headwater_host.fmq.values import decode_at
from headwater_host.topics import Topic, topic_of

if TYPE_CHECKING:
    from headwater.fmq.frames import Frame

#: The prefix of the topics that a responder subscribes to.
SERVED = "$rpc/"
_REPLY = b"$rpc/reply"
# MQTT's "Quota exceeded".
_BUSY = 0x97


class Subscribing(Requests):
    """The part of the FMQ client that subscribes, consumes and receives."""

    def __init__(self, session: HostSession, *rest: Any):
        super().__init__(session, *rest)
        session.on_message = self._on_message
        session.on_call = self._on_call
        session.on_result = self._on_result
        session.on_answer = self._on_answer
        # Granted subscriptions, by filter and group: requested again when the hub has forgotten them.
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        # By the session's numbers: subscriptions that have a consumer. By the numbers of requests that are unanswered:
        # what was subscribed to, and consumed.
        self._consumed: dict[int, Subscription] = {}
        self._subscribing: dict[int, Subscription] = {}
        self._consuming: dict[int, Subscription] = {}
        # How many calls ask for a subscription, by filter and group.
        self._wanted: Counter[tuple[str, str]] = Counter()
        # Messages to be acknowledged, by id and consumer.
        self._unacknowledged: dict[tuple[bytes, int], Message] = {}
        #: Calls of the topics that this client serves.
        self.calls: Inbox[Call] = self._inbox()

    def _on_begin(self, session_present: bool) -> None:
        # The hub retransmits these messages; a message at QoS 2 that it retransmits is recognized by its id.
        epoch = self.session.epoch
        self.messages.forget(
            lambda m: (
                not m.acknowledged
                and m.epoch != epoch
                and (m.subscription is not None or (session_present and m.qos == 1))
            )
        )
        self._unacknowledged.clear()
        # The hub has told the callers of the last connection that there is no answer.
        self.calls.forget(lambda call: True)
        super()._on_begin(session_present)

    def _on_interrupted(self, error: ClientError) -> None:
        super()._on_interrupted(error)
        self._forget_requests()

    def _on_over(self, error: ClientError) -> None:
        super()._on_over(error)
        self._forget_requests()
        if self._policy is None:
            self._subscriptions.clear()
        self.calls.end()

    def _forget_requests(self) -> None:
        self._subscribing.clear()
        self._consuming.clear()

    def _on_answer(self, number: int, code: int) -> None:
        f = self.session.frame
        why = self.session.why() if code else ""
        wanted = self._subscribing.pop(number, None)
        if wanted is not None and code == 0:
            self._granted(wanted, number)
        subscription = self._consuming.pop(number, None)
        if subscription is not None:
            subscription.consumed = None
            if code:
                self.messages.put_error(FmqConsumerError(subscription.topic, code, why))
        answer = Answer(code, why, bytes(f.buf[f.body : f.end]))
        if not self._answers.settle(number, answer) and wanted is not None:
            asyncio.get_running_loop().call_soon(self._drop_unwanted, wanted)

    def _granted(self, wanted: Subscription, number: int) -> None:
        """Record a granted subscription, also if no call waits: an earlier one has a new number now."""
        wanted.number = number
        known = self._subscriptions.get((wanted.topic, wanted.group), wanted)
        known.tags, known.condition, known.number = wanted.tags, wanted.condition, number
        if known.consumed:
            self._consumed[number] = known

    def _drop_unwanted(self, wanted: Subscription) -> None:
        """End a granted subscription that no call waited for and the program does not have."""
        key = wanted.topic, wanted.group
        asked = {(one.topic, one.group) for one in self._subscribing.values()}
        if self._wanted[key] or key in asked or key in self._subscriptions:
            return
        if not self.session.has(wanted.number):
            return
        connection = self.connection
        if connection is not None:
            connection.flush()
            if self.session.unsubscribe(wanted.number) == errors.E_AGAIN:
                asyncio.get_running_loop().call_later(TICK, self._drop_unwanted, wanted)
            connection.push()

    def _on_message(self, f: "Frame") -> None:
        message = self._message(f)
        if message.subscription is not None and not message.acknowledged:
            key = (message.id, message.subscription.number)
            if key in self._unacknowledged:
                # The hub redelivers after its limit, but the program may still acknowledge the first delivery.
                self.session.forget(message.receipt)
                return
            self._unacknowledged[key] = message
        elif self._receive_path.withholds:
            if not message.acknowledged:
                if self.auto_ack:
                    self._receive_path.withheld.append(message)
            elif message.qos == 0 and not self._receive_path.has_room(self.messages):
                return
        self.messages.put(message)

    def _message(self, f: "Frame") -> Message:
        session = self.session
        view = memoryview(f.buf)
        subscription = self._consumed.get(session.source) if session.source else None
        topic = Topic("")
        if f.topic_end > f.topic_at and f.has_topic():
            topic = topic_of(bytes(view[f.topic_at : f.topic_end]))
        elif subscription is not None:
            topic = Topic(subscription.topic)
        tags: tuple[str, ...] = ()
        if f.payload_at - f.tags_at > 1:
            block = bytes(view[f.tags_at : f.payload_at])
            tags = tuple(decode_at(block, 0, len(block))[0])
        return Message(
            topic,
            bytes(view[f.payload_at : f.end]),
            tags,
            bytes(view[f.id_at : f.id_end]),
            f.head & 15 if f.head >> 4 == spec.PUBLISH else 0,
            session.epoch,
            subscription,
            session.receipt,
            self._acknowledge if session.receipt and not session.auto_ack else None,
        )

    def _on_result(self, f: "Frame") -> None:
        message = self._message(f)
        if not self._answers.settle(self.session.source, message) and message.receipt:
            # The call has timed out: return the message to the group.
            asyncio.get_running_loop().call_soon(self.session.reject, message.receipt, 0x80)

    def _answer_message(self, message: Message, code: int = 0) -> None:
        session = self.session
        connection = self.connection
        if message.epoch != session.epoch and message.qos != 2:
            return
        if message.subscription is not None:
            self._unacknowledged.pop((message.id, message.subscription.number), None)
        if self._settle(message.receipt, code) == errors.E_AGAIN and connection is not None:
            connection.flush()
            self._settle(message.receipt, code)
        if connection is not None:
            connection.push()

    def _settle(self, receipt: int, code: int) -> int:
        status = self.session.reject(receipt, code) if code else errors.E_UNKNOWN_ID
        return acknowledge(self.session, receipt) if status == errors.E_UNKNOWN_ID else status

    async def _acknowledge(self, message: Message, code: int) -> None:
        self._answer_message(message, code)
        connection = self.connection
        if connection is not None and connection.paused:
            await connection.writable(self.timeout)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _on_call(self, f: "Frame") -> None:
        view = memoryview(f.buf)
        ident = bytes(view[f.id_at : f.id_end])
        if self._receive_path.withholds and not self._receive_path.has_room(self.calls):
            if self.connection is not None:
                self.connection.write(_refusal(ident, _BUSY, "too many calls wait for the responder"))
            return
        topic = bytes(view[f.topic_at : f.topic_end]) if f.has_topic() else b""
        self.calls.put(
            Call(
                topic_of(topic.removeprefix(SERVED.encode())),
                bytes(view[f.payload_at : f.end]),
                ident,
                self.session.epoch,
                self._answer_call,
            )
        )

    async def _answer_call(self, call: Call, result: Payload, code: int, text: str) -> None:
        data = call.id + bytes(payload_bytes(result))
        connection = self._current()
        if connection is None or call.epoch != self.session.epoch:
            raise NotConnectedError("the connection over which the call came is over", errors.E_OFFLINE)
        if code:
            connection.write(_refusal(call.id, code, text))
        else:
            connection.write(self.session.frame_of(_REPLY, data, False))
        if connection.paused:
            await connection.writable(self.timeout)


def _refusal(ident: bytes, code: int, text: str) -> bytes:
    """Return an ACK with a reason."""
    said = text.encode(errors="replace")
    buf = bytearray(len(said) + 64)
    return bytes(buf[: frames.encode_frame(buf, 0, len(buf), spec.ACK << 4, ident, (code, said))])
