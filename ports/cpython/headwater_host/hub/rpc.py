"""RPC: who calls, who serves, what is under way (docs/protocols/fmq.md, section 4).

A call is a CONSUME with ONCE and without a group. Nothing of it is stored: it ends with its answer, with the caller's
connection, with its responder's, or when ``clients.rpc`` seconds are over. What a responder was sent is never sent to
another one, because it may have been done; what still waits for a responder to read may be.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.ids import id_end
from headwater_host.fmq.values import decode_at, encode
from headwater_host.hub import frames
from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.errors import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_IN_USE,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    QUOTA_EXCEEDED,
    TOPIC_FILTER_INVALID,
    RefusedError,
)
from headwater_host.hub.storage import Message, Subscription
from headwater_host.hub.topic_list import Listing
from headwater_host.hub.topics import Subscriptions, is_literal

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker
    from headwater_host.hub.connection import Connection

#: Where answers are published, and what the topics begin with that responders subscribe to.
REPLY = "$rpc/reply"
SERVED = "$rpc/"
#: What may wait for a responder, or for a caller, that does not read: bytes, as a multiple of ``unread``.
_UNREAD = 8
#: Bytes of a responder's words that a caller is told.
_LONGEST_TEXT = 256
_FAILED = 0x80


@dataclass(eq=False)
class Call:
    """A call under way; ``message`` is what its responder is to be sent, until it is."""

    ident: bytes
    caller: Client
    deadline: float
    message: Message | None
    responder: "Responder"


class Responder:
    """A client that serves something: the calls that it was sent, and those that wait until it reads, by their ids."""

    def __init__(self, client: Client):
        self.client = client
        self.asked: dict[bytes, Call] = {}
        self.waiting: dict[bytes, Call] = {}
        self.waiting_bytes = 0
        #: The hub's count of calls when it got one last.
        self.turn = 0

    @property
    def reads(self) -> bool:
        """Whether it can be sent a call now."""
        connection = self.client.connection
        return connection is not None and connection.writable and not self.waiting

    def may_serve(self, topic: str) -> bool:
        """Whether the rules let it have calls of this topic, ``$rpc/`` in front, whatever filter it subscribed to."""
        connection = self.client.connection
        return connection is not None and connection.may("SUBSCRIBE", topic)

    @property
    def count(self) -> int:
        """The calls that it has."""
        return len(self.asked) + len(self.waiting)

    def burden(self) -> tuple[bool, int, int]:
        """The smallest gets the next call: who reads, has the fewest, and got none for the longest time."""
        return not self.reads, self.count, self.turn


class Calls:
    """All calls."""

    def __init__(self, broker: "Broker"):
        self._broker = broker
        self._served: Subscriptions[tuple[Responder, Subscribed]] = Subscriptions()
        #: By id, the one that began first in front.
        self._open: dict[bytes, Call] = {}
        self._turn = 0
        self.listing = Listing(broker)
        self._over = broker.metrics.counter("calls_total", "Calls that are over.", "outcome")
        broker.metrics.gauge("calls", "Calls under way.").call(lambda: len(self._open))

    # -- responders --------------------------------------------------------------------------------------------------

    def serve(self, client: Client, subscribed: Subscribed) -> None:
        """A client that is connected has subscribed: to calls, it may be. Raises RefusedError."""
        pattern, group = subscribed.subscription.topic, subscribed.subscription.group
        if not pattern.startswith(SERVED):
            return
        if group:
            raise RefusedError(TOPIC_FILTER_INVALID, "who serves a topic subscribes without a group")
        if client.responder is None:
            client.responder = Responder(client)
        self._served.add(pattern, client, (client.responder, subscribed))

    def back(self, client: Client) -> None:
        """A client has been accepted, with the subscriptions of its session."""
        for subscribed in client.subscriptions.values():
            if not subscribed.subscription.group:
                self.serve(client, subscribed)

    def leave(self, client: Client, subscribed: Subscribed) -> None:
        """It has unsubscribed. What it was asked it may still answer."""
        self._served.remove(subscribed.subscription.topic, client)

    def lost(self, client: Client) -> None:
        """It has no connection any more."""
        for call in list(client.calls.values()):
            self._end(call, "abandoned")
        responder, client.responder = client.responder, None
        if responder is None:
            return
        for subscribed in client.subscriptions.values():
            self.leave(client, subscribed)
        for call in list(responder.asked.values()):
            self._fail(call, "lost", IMPLEMENTATION_SPECIFIC_ERROR, "the responder is gone")
        for call in list(responder.waiting.values()):
            message = call.message
            assert message is not None
            try:
                call.responder = self._pick(message)
            except RefusedError as error:
                self._fail(call, "lost", error.reason, str(error))
            else:
                self._hand(call, message)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, connection: "Connection", f: Frame, ident: bytes, wish: Subscription) -> None:
        """Somebody calls. Raises RefusedError."""
        client, limits = connection.client, self._broker.config.clients
        assert client is not None
        if not is_literal(wish.topic) or wish.condition:
            raise RefusedError(TOPIC_FILTER_INVALID, "a call names one topic, and has no condition")
        arguments = bytes(f.buf[f.at[4] : f.end])
        if wish.topic in self.listing.topics:
            self.listing.ask(connection, ident, arguments)
            return
        if ident in self._open:
            raise RefusedError(PACKET_IDENTIFIER_IN_USE, "there is a call with this id")
        if len(client.calls) >= limits.calls or len(self._open) >= limits.all_calls:
            raise RefusedError(QUOTA_EXCEEDED, f"{len(client.calls)} of your calls are under way")
        message = Message(0, ident, SERVED + wish.topic, 0, wish.tags, arguments, 0, False, 0)
        if len(encode(message.topic)) + f.at[2] - f.at[1] + len(arguments) > limits.frame:
            raise RefusedError(PACKET_TOO_LARGE, "for the responder the arguments are too long")
        call = Call(ident, client, self._broker.loop.time() + limits.rpc, message, self._pick(message))
        self._open[ident] = client.calls[ident] = call
        self._hand(call, message)

    def _pick(self, message: Message) -> Responder:
        """Who gets a call. Raises RefusedError."""
        limits = self._broker.config.clients
        able = [
            who
            for who, subscribed in self._served.match(message.topic)
            if who.may_serve(message.topic) and subscribed.wanted(message)
        ]
        if not able:
            raise RefusedError(
                NO_MATCHING_SUBSCRIBERS, f"nobody serves {message.topic.removeprefix(SERVED)!r}"
            )
        found = min(able, key=Responder.burden)
        full = found.waiting and found.waiting_bytes + message.held > _UNREAD * limits.unread
        if found.count >= limits.calls or full:
            raise RefusedError(QUOTA_EXCEEDED, "whoever serves this has as many calls as may wait")
        return found

    def _hand(self, call: Call, message: Message) -> None:
        """Send a call to its responder, now or when that reads."""
        self._turn += 1
        call.responder.turn = self._turn
        reads = call.responder.reads
        call.responder.waiting[call.ident] = call
        call.responder.waiting_bytes += message.held
        if reads:
            self.go_on(call.responder.client)

    def go_on(self, client: Client) -> None:
        """A client reads: what waits for it is sent."""
        responder, connection = client.responder, client.connection
        while responder is not None and responder.waiting and connection is not None and connection.writable:
            call = next(iter(responder.waiting.values()))
            message = call.message
            assert message is not None
            self._unqueue(call)
            call.message = None
            responder.asked[call.ident] = call
            body = frames.message(message.topic, message.tags, message.payload)
            connection.send(frames.publish(call.ident, body))
            self._broker.sent.add(1, "PUBLISH")

    @staticmethod
    def _unqueue(call: Call) -> None:
        if call.message is not None and call.responder.waiting.pop(call.ident, None) is not None:
            call.responder.waiting_bytes -= call.message.held

    # -- answers -----------------------------------------------------------------------------------------------------

    def on_reply(self, connection: "Connection", f: Frame, ident: bytes) -> None:
        """A PUBLISH to ``REPLY``. Raises RefusedError."""
        client = connection.client
        assert client is not None
        buf = bytes(f.buf)
        stop = id_end(buf, f.payload_at, f.end)
        if stop <= 0:
            raise RefusedError(PAYLOAD_FORMAT_INVALID, "a reply begins with the id of its call")
        responder = client.responder
        call = responder.asked.get(buf[f.payload_at : stop]) if responder is not None else None
        if call is None:
            raise RefusedError(NO_MATCHING_SUBSCRIBERS, "nobody waits for this reply of yours")
        qos = f.qos()
        self._broker.received.add(1, str(qos))
        caller = call.caller.connection
        assert caller is not None
        if caller.unread > _UNREAD * self._broker.config.clients.unread:
            self._fail(call, "refused", QUOTA_EXCEEDED, "results come faster than they are taken")
        else:
            self._end(call, "answered")
            tags = decode_at(buf, f.tags_at, f.end)[0]
            body = frames.message(None, tags, buf[stop : f.end])
            caller.send(frames.response(self._broker.voice.ident(), call.ident, body))
            self._broker.sent.add(1, "CONSUMERESP")
        if qos:
            told = frames.ack(ident) if qos == 1 else frames.bare(spec.PUBREC, ident)
            self._broker.after(partial(connection.send, told))

    def on_ack(self, client: Client, f: Frame, ident: bytes) -> None:
        """An ACK has come: with a reason it refuses a call, if it is about one."""
        call = client.responder.asked.get(ident) if client.responder is not None else None
        if call is None or not f.code:
            return
        text = decode_at(bytes(f.buf), f.at[1], f.end)[0] if f.count > 1 else ""
        short = text.encode()[:_LONGEST_TEXT].decode(errors="ignore")
        self._fail(call, "refused", f.code if f.code >= _FAILED else IMPLEMENTATION_SPECIFIC_ERROR, short)

    def overdue(self, now: float) -> None:
        """Time has passed."""
        while self._open:
            call = next(iter(self._open.values()))
            if call.deadline > now:
                break
            self._fail(call, "late", IMPLEMENTATION_SPECIFIC_ERROR, "no answer has come in time")

    def _fail(self, call: Call, outcome: str, reason: int, text: str) -> None:
        self._end(call, outcome)
        if call.caller.connection is not None:
            call.caller.connection.send(frames.refusal(call.ident, reason, text))

    def _end(self, call: Call, outcome: str) -> None:
        """Forget a call."""
        self._open.pop(call.ident, None)
        call.caller.calls.pop(call.ident, None)
        call.responder.asked.pop(call.ident, None)
        self._unqueue(call)
        self._over.add(1, outcome)
