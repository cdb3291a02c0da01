"""Remote procedure calls: callers, responders, and calls in progress (docs/protocols/fmq.md, section 4).

A call is a CONSUME with ONCE and without a group. It is not stored: it ends with its answer, with the caller's or the
responder's connection, or when ``clients.rpc`` seconds are over. A call that was sent to a responder is never sent to
another one, because it may have been executed; a call that waits until a responder reads may be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.ids import id_end
from headwater.mqtt import spec5
from headwater_host.fmq.values import encode
from headwater_host.hub import frames, requests
from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.connection import Connection
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.metrics import Metrics, Traffic
from headwater_host.hub.observer import Durable
from headwater_host.hub.storage import Message, Subscription
from headwater_host.hub.topics import Subscriptions, is_literal

#: Topics that responders subscribe to begin with this.
SERVED = "$rpc/"
#: Bytes that may wait for a responder, or for a caller, that does not read, as a multiple of ``unread``.
_UNREAD = 8
#: Bytes of a responder's error text that reach the caller.
_LONGEST_TEXT = 256


def check_responder(asked: Subscription) -> None:
    """Raise RefusedError when a subscription to calls names a group."""
    if asked.group and asked.topic.startswith(SERVED):
        raise RefusedError(spec5.TOPIC_FILTER_INVALID, "a responder subscribes without a group")


#: Answers a call itself, with its id and arguments: a procedure that the hub provides.
Procedure = Callable[[Connection, bytes, bytes], None]


@dataclass(eq=False)
class Call:
    """A call in progress. ``message`` is what the responder is to be sent, None once it was."""

    ident: bytes
    caller: Client
    deadline: float
    message: Message | None
    responder: "Responder"


class Responder:
    """A client that provides a procedure: the calls that it was sent, and those that wait until it reads, by id."""

    def __init__(self, client: Client):
        self.client = client
        self.asked: dict[bytes, Call] = {}
        self.waiting: dict[bytes, Call] = {}
        self.waiting_bytes = 0
        #: The number of its last call, among all.
        self.last = 0

    @property
    def reads(self) -> bool:
        """True if a call can be sent to it now."""
        connection = self.client.connection
        return connection is not None and connection.writable and not self.waiting

    def may_serve(self, topic: str) -> bool:
        """Return whether the rules let it have calls of a topic (with ``$rpc/``), whatever filter it subscribed to."""
        connection = self.client.connection
        return connection is not None and connection.may("SUBSCRIBE", topic)

    @property
    def count(self) -> int:
        """Calls that it has."""
        return len(self.asked) + len(self.waiting)

    def burden(self) -> tuple[bool, int, int]:
        """Return a key; the smallest gets the next call: it reads, has the fewest calls, and had none for longest."""
        return not self.reads, self.count, self.last


class Calls:
    """The handler of calls and their answers."""

    def __init__(
        self,
        limits: ClientLimits,
        clock: Callable[[], float],
        durable: Durable,
        make_id: Callable[[], bytes],
        traffic: Traffic,
        metrics: Metrics,
        procedures: dict[str, Procedure],
    ):
        self._limits = limits
        self._clock = clock
        self._durable = durable
        self._make_id = make_id
        self._traffic = traffic
        self._procedures = procedures
        self.responders: dict[Client, Responder] = {}
        self._served: Subscriptions[tuple[Responder, Subscribed]] = Subscriptions()
        #: By id, the oldest first; and those of each caller.
        self._open: dict[bytes, Call] = {}
        self._of: dict[Client, dict[bytes, Call]] = {}
        self._count = 0
        self._over = metrics.counter("calls_total", "Calls that have ended.", "outcome")
        metrics.gauge("calls", "Calls in progress.").call(lambda: len(self._open))

    # -- responders --------------------------------------------------------------------------------------------------

    def serve(self, client: Client, subscribed: Subscribed) -> None:
        """Add a subscription of a connected client, if it is to calls."""
        pattern = subscribed.subscription.topic
        if not pattern.startswith(SERVED) or client.connection is None:
            return
        responder = self.responders.get(client)
        if responder is None:
            responder = self.responders[client] = Responder(client)
            client.backlogs.append(responder)
        self._served.add(pattern, client, (responder, subscribed))

    def resume(self, client: Client) -> None:
        """Add the subscriptions of a session that is resumed."""
        for subscribed in client.subscriptions.values():
            if not subscribed.subscription.group:
                self.serve(client, subscribed)

    def leave(self, client: Client, subscribed: Subscribed) -> None:
        """Remove a subscription. Calls that the client was sent may still be answered."""
        self._served.remove(subscribed.subscription.topic, client)

    def lost(self, client: Client) -> None:
        """End the calls of a client whose connection is gone; those that wait for it go to other responders."""
        for call in list(self._of.get(client, {}).values()):
            self._end(call, "abandoned")
        responder = self.responders.pop(client, None)
        if responder is None:
            return
        client.backlogs.remove(responder)
        for subscribed in client.subscriptions.values():
            self.leave(client, subscribed)
        for call in list(responder.asked.values()):
            self._fail(call, "lost", spec5.IMPLEMENTATION_SPECIFIC_ERROR, "the responder is gone")
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

    def on_call(self, connection: Connection, f: Frame, ident: bytes, asked: Subscription) -> None:
        """Begin a call. Raises RefusedError."""
        client, limits = connection.client, self._limits
        assert client is not None
        if not is_literal(asked.topic) or asked.condition:
            raise RefusedError(spec5.TOPIC_FILTER_INVALID, "a call names one topic, and has no condition")
        arguments = requests.arguments(f)
        procedure = self._procedures.get(asked.topic)
        if procedure is not None:
            procedure(connection, ident, arguments)
            return
        if ident in self._open:
            raise RefusedError(spec5.PACKET_IDENTIFIER_IN_USE, "there is a call with this id")
        count = len(self._of.get(client, ()))
        if count >= limits.calls or len(self._open) >= limits.all_calls:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"{count} calls of this client are in progress")
        message = Message(0, ident, SERVED + asked.topic, 0, asked.tags, arguments, 0, False, 0)
        if len(encode(message.topic)) + requests.tags_size(f) + len(arguments) > limits.frame:
            raise RefusedError(spec5.PACKET_TOO_LARGE, "the call is too long for the responder")
        call = Call(ident, client, self._clock() + limits.rpc, message, self._pick(message))
        self._open[ident] = call
        self._of.setdefault(client, {})[ident] = call
        self._hand(call, message)

    def _pick(self, message: Message) -> Responder:
        """Return the responder that gets a call. Raises RefusedError."""
        able = [
            responder
            for responder, subscribed in self._served.match(message.topic)
            if responder.may_serve(message.topic) and subscribed.selection.takes(message)
        ]
        if not able:
            topic = message.topic.removeprefix(SERVED)
            raise RefusedError(spec5.NO_MATCHING_SUBSCRIBERS, f"there is no responder for {topic!r}")
        found = min(able, key=Responder.burden)
        full = found.waiting and found.waiting_bytes + message.held > _UNREAD * self._limits.unread
        if found.count >= self._limits.calls or full:
            raise RefusedError(spec5.QUOTA_EXCEEDED, "every responder has the maximum of calls waiting")
        return found

    def _hand(self, call: Call, message: Message) -> None:
        """Send a call to its responder, now or when that reads."""
        self._count += 1
        responder = call.responder
        responder.last = self._count
        reads = responder.reads
        responder.waiting[call.ident] = call
        responder.waiting_bytes += message.held
        if reads:
            self.writable(responder.client)

    def writable(self, client: Client) -> None:
        """Send what waits for a client that reads."""
        responder, connection = self.responders.get(client), client.connection
        while responder is not None and responder.waiting and connection is not None and connection.writable:
            call = next(iter(responder.waiting.values()))
            message = call.message
            assert message is not None
            self._unqueue(call)
            call.message = None
            responder.asked[call.ident] = call
            body = frames.message(message.topic, message.tags, message.payload)
            connection.send(frames.publish(call.ident, body))
            self._traffic.sent.add(1, "PUBLISH")

    @staticmethod
    def _unqueue(call: Call) -> None:
        if call.message is not None and call.responder.waiting.pop(call.ident, None) is not None:
            call.responder.waiting_bytes -= call.message.held

    # -- answers -----------------------------------------------------------------------------------------------------

    def on_reply(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Pass the result of a call on: a PUBLISH to ``$rpc/reply``. Raises RefusedError."""
        client = connection.client
        assert client is not None
        result = requests.payload(f)
        stop = id_end(result, 0, len(result))
        if stop <= 0:
            raise RefusedError(spec5.PAYLOAD_FORMAT_INVALID, "a reply begins with the id of its call")
        responder = self.responders.get(client)
        call = responder.asked.get(result[:stop]) if responder is not None else None
        if call is None:
            raise RefusedError(
                spec5.NO_MATCHING_SUBSCRIBERS, "no call of this responder waits for this reply"
            )
        qos = f.qos()
        self._traffic.received.add(1, str(qos))
        caller = call.caller.connection
        assert caller is not None
        if caller.unread > _UNREAD * self._limits.unread:
            self._fail(
                call, "refused", spec5.QUOTA_EXCEEDED, "results arrive faster than the caller reads them"
            )
        else:
            self._end(call, "answered")
            body = frames.message(None, requests.tags(f), result[stop:])
            caller.send(frames.response(self._make_id(), call.ident, body))
            self._traffic.sent.add(1, "CONSUMERESP")
        if qos:
            answer = frames.ack(ident) if qos == 1 else frames.bare(spec.PUBREC, ident)
            self._durable.after(partial(connection.send, answer))

    def on_ack(self, client: Client, f: Frame, ident: bytes) -> None:
        """Refuse a call with the reason and the text of its responder's ACK, if the ACK is about a call."""
        responder = self.responders.get(client)
        call = responder.asked.get(ident) if responder is not None else None
        if call is None or not f.code:
            return
        text = requests.refusal_text(f).encode()[:_LONGEST_TEXT].decode(errors="ignore")
        reason = f.code if f.code >= spec5.UNSPECIFIED_ERROR else spec5.IMPLEMENTATION_SPECIFIC_ERROR
        self._fail(call, "refused", reason, text)

    def overdue(self, now: float) -> None:
        """Refuse calls whose time is up."""
        while self._open:
            call = next(iter(self._open.values()))
            if call.deadline > now:
                break
            self._fail(call, "late", spec5.IMPLEMENTATION_SPECIFIC_ERROR, "the answer did not arrive in time")

    def _fail(self, call: Call, outcome: str, reason: int, text: str) -> None:
        self._end(call, outcome)
        if call.caller.connection is not None:
            call.caller.connection.send(frames.refusal(call.ident, reason, text))

    def _end(self, call: Call, outcome: str) -> None:
        """Forget a call."""
        self._open.pop(call.ident, None)
        of = self._of.get(call.caller)
        if of is not None and of.pop(call.ident, None) is not None and not of:
            del self._of[call.caller]
        call.responder.asked.pop(call.ident, None)
        self._unqueue(call)
        self._over.add(1, outcome)
