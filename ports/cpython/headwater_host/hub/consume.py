"""CONSUME: members of consumer groups (docs/protocols/fmq.md, section 4)."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.mqtt import spec5
from headwater_host.fmq.values import encode
from headwater_host.hub import frames, requests
from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.conditions import Selection
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.connection import Connection
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.groups import Groups, Lane, Member, Opening
from headwater_host.hub.metrics import Metric
from headwater_host.hub.registry import Registry
from headwater_host.hub.storage import Delivery, Subscription
from headwater_host.hub.topics import is_literal

#: Messages sent in one turn to a consumer that does not acknowledge.
_UNBOUNDED = 64

#: Handles a CONSUME with ONCE and without a group: a call.
OnCall = Callable[[Connection, Frame, bytes, Subscription], None]
#: Reads the fields of SUBSCRIBE, or CONSUME with ONCE. Raises RefusedError.
ReadSubscription = Callable[[Frame], Subscription]


class Consumer(Member):
    """One CONSUME; with ``deadline``, for one message until then. With ``window`` 0 it does not acknowledge."""

    def __init__(
        self,
        consumers: "Consumers",
        client: Client,
        subscribed: Subscribed,
        ident: bytes,
        window: int,
        deadline: float = 0.0,
    ):
        super().__init__()
        self._consumers = consumers
        self.client = client
        self.subscribed = subscribed
        self.pattern = subscribed.subscription.topic
        self.group = consumers.groups.group(subscribed.subscription.group)
        self.ident = ident
        self.once = deadline > 0
        self._correlation = ident if self.once else encode(subscribed.number)
        self.window = window
        #: With ONCE: 0 after its message was sent.
        self.deadline = deadline
        self._unacknowledged = 0

    def patterns(self) -> list[str]:
        """Return the filter of the subscription."""
        return [self.pattern]

    def may_have(self, topic: str) -> bool:
        """Return whether the access rules allow a topic."""
        connection = self.client.connection
        kinds = ("CONSUME",) if self.once else ("SUBSCRIBE", "CONSUME")
        return connection is not None and all(connection.may(kind, topic) for kind in kinds)

    def room(self) -> int:
        """Return how much of its window is free, 0 while its client does not read."""
        connection = self.client.connection
        if connection is None or not connection.writable:
            return 0
        if self.once:
            return 1 if self.deadline else 0
        return self.window - self._unacknowledged if self.window else _UNBOUNDED

    def hand(self, lane: Lane, delivery: Delivery) -> bool:
        """Send a message, if the subscription gets it."""
        message, connection = delivery.message, self.client.connection
        if connection is None or not self.subscribed.selection.takes(message):
            return False
        topic = None if is_literal(self.pattern) else message.topic
        body = frames.message(topic, message.tags, message.payload)
        connection.send(frames.response(message.id, self._correlation, body))
        self.deadline = 0.0
        self._consumers.handed(self, lane, message.seq, message.id)
        if self.window:
            self._unacknowledged += 1
        return self.window > 0

    def closed(self, lane: Lane, seq: int, ident: bytes) -> None:
        """Make room for another message."""
        self._unacknowledged -= 1
        self._consumers.closed(self, lane, seq, ident)

    def end(self, reason: int) -> None:
        """Leave the group, and send the client the reason."""
        connection = self.client.connection
        if connection is not None:
            answer = frames.refusal(self.ident, reason) if reason else frames.ack(self.ident)
            connection.send(answer)
        self._consumers.finish(self)


class _Consuming:
    """The consumers of one client."""

    def __init__(self) -> None:
        #: By the id of their CONSUME.
        self.consumers: dict[bytes, Consumer] = {}
        #: Messages that were sent and are not acknowledged, by id. The same message may be in several groups.
        self.open: dict[bytes, deque[tuple[Lane, int]]] = {}


class Consumers:
    """The handler of CONSUME, and all consumers."""

    def __init__(
        self,
        groups: Groups,
        registry: Registry,
        limits: ClientLimits,
        sent: Metric,
        loop: asyncio.AbstractEventLoop,
        read_subscription: ReadSubscription,
        on_call: OnCall,
    ):
        self.groups = groups
        self._registry = registry
        self._limits = limits
        self._sent = sent
        self._loop = loop
        self._read_subscription = read_subscription
        self._on_call = on_call
        self._of: dict[Client, _Consuming] = {}
        #: Those that wait for one message, in the order of their deadlines.
        self._waiting: OrderedDict[Consumer, None] = OrderedDict()

    # -- requests ----------------------------------------------------------------------------------------------------

    def on_consume(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Start to consume a subscription; with ONCE, wait for one message or call a remote procedure."""
        client = connection.client
        assert client is not None
        if ident in self._consumers(client):
            raise RefusedError(spec5.PACKET_IDENTIFIER_IN_USE, "there is a CONSUME with this id")
        if f.head & spec.ONCE:
            self._on_once(connection, client, f, ident)
            return
        asked = requests.consume(f)
        subscribed = client.subscribed(asked.number)
        # It may have subscribed from another network, or before the rules were changed.
        for kind in ("SUBSCRIBE", "CONSUME"):
            connection.check(kind, subscribed.subscription.topic)
        if not subscribed.subscription.group:
            raise RefusedError(spec5.TOPIC_FILTER_INVALID, "a subscription without a group needs no CONSUME")
        self.end(client, asked.number, spec5.SESSION_TAKEN_OVER)
        most = self._limits.window
        window = min(asked.window or most, most) if f.head & spec.NEEDACK else 0
        self._join(Consumer(self, client, subscribed, ident, window))

    def _on_once(self, connection: Connection, client: Client, f: Frame, ident: bytes) -> None:
        asked = self._read_subscription(f)
        connection.check("CONSUME", asked.topic)
        if not asked.group:
            self._on_call(connection, f, ident, asked)
            return
        count = len(self._consumers(client))
        if count >= self._limits.subscriptions:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"{count} CONSUMEs of this client are waiting already")
        self._registry.require_named(asked.topic)
        subscribed = Subscribed(asked, Selection(asked.tags, asked.condition), 0)
        window = 1 if f.head & spec.NEEDACK else 0
        consumer = Consumer(self, client, subscribed, ident, window, self._loop.time() + self._limits.once)
        self._waiting[consumer] = None
        self._join(consumer)

    def _join(self, consumer: Consumer) -> None:
        self._of.setdefault(consumer.client, _Consuming()).consumers[consumer.ident] = consumer
        consumer.group.join(consumer)

    def _consumers(self, client: Client) -> dict[bytes, Consumer]:
        of = self._of.get(client)
        return of.consumers if of is not None else {}

    def on_ack(self, client: Client, ident: bytes, code: int) -> bool:
        """Acknowledge a message, or return it with a reason code. Return whether it was unacknowledged."""
        of = self._of.get(client)
        opened = of.open.get(ident) if of is not None else None
        if not opened:
            return False
        lane, seq = opened[0]
        if code:
            lane.group.back(lane, seq)
        else:
            lane.group.done(lane, seq)
        return True

    # -- what consumers report ---------------------------------------------------------------------------------------

    def handed(self, consumer: Consumer, lane: Lane, seq: int, ident: bytes) -> None:
        """Record that a message was sent to a consumer."""
        self._sent.add(1, "CONSUMERESP")
        if consumer.once:
            del self._waiting[consumer]
        if consumer.window:
            until = self._loop.time() + self._limits.redelivery
            lane.open[seq] = Opening(ident, until)
            self.groups.watch(lane, until)
            self._of[consumer.client].open.setdefault(ident, deque()).append((lane, seq))
        elif consumer.once:
            self._loop.call_soon(self.finish, consumer)

    def closed(self, consumer: Consumer, lane: Lane, seq: int, ident: bytes) -> None:
        """Record that a message is no longer unacknowledged."""
        opened = self._of[consumer.client].open
        waiting = opened.get(ident)
        if waiting is not None:
            waiting.remove((lane, seq))
            if not waiting:
                del opened[ident]
        if consumer.once:
            self._loop.call_soon(self.finish, consumer)

    def finish(self, consumer: Consumer, *, failed: bool = False) -> None:
        """Remove a consumer from its group. With ``failed``, its unacknowledged messages count a delivery attempt."""
        self._waiting.pop(consumer, None)
        of = self._of.get(consumer.client)
        if of is not None and of.consumers.get(consumer.ident) is consumer:
            del of.consumers[consumer.ident]
        consumer.group.leave(consumer, failed=failed)
        if of is not None and not of.consumers and not of.open:
            self._of.pop(consumer.client, None)

    # -- events ------------------------------------------------------------------------------------------------------

    def end(self, client: Client, number: int, reason: int) -> None:
        """End the consumers of a subscription."""
        for consumer in list(self._consumers(client).values()):
            if not consumer.once and consumer.subscribed.number == number:
                consumer.end(reason)

    def renew(self, client: Client, subscribed: Subscribed) -> None:
        """Apply new tags and a new condition to the consumers of a subscription."""
        for consumer in self._consumers(client).values():
            if consumer.subscribed.number == subscribed.number:
                consumer.subscribed = subscribed

    def lost(self, client: Client) -> None:
        """Handle the end of a connection: return its unacknowledged messages to the group."""
        for consumer in list(self._consumers(client).values()):
            self.finish(consumer, failed=True)

    def writable(self, client: Client) -> None:
        """Continue to send to a client that has room again."""
        for consumer in self._consumers(client).values():
            self.groups.wake(consumer)

    def overdue(self, now: float) -> None:
        """Refuse each CONSUME with ONCE that has reached its deadline."""
        while self._waiting and (consumer := next(iter(self._waiting))).deadline <= now:
            consumer.end(spec5.NO_MATCHING_SUBSCRIBERS)

    def topic_gone(self, topic: str) -> None:
        """End consumers of a topic that is about to be deleted, but not those of a filter that matches it."""
        for group in self.groups.interested(topic):
            for member in list(group.members):
                if isinstance(member, Consumer) and member.pattern == topic:
                    member.end(spec5.TOPIC_FILTER_INVALID)
