"""CONSUME: members of a group who get CONSUMERESP (docs/protocols/fmq.md, section 4)."""

from collections import deque
from typing import TYPE_CHECKING

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater_host.fmq.values import decode_at, encode
from headwater_host.hub import frames
from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.errors import (
    NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_IN_USE,
    QUOTA_EXCEEDED,
    SESSION_TAKEN_OVER,
    TOPIC_FILTER_INVALID,
    RefusedError,
)
from headwater_host.hub.groups import Lane, Member, Opening
from headwater_host.hub.storage import Delivery
from headwater_host.hub.topics import is_literal
from headwater_host.hub.wanted import Wanted
from headwater_host.hub.wishes import have_topic, read_subscription

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker
    from headwater_host.hub.connection import Connection

#: Messages that a consumer who does not acknowledge is sent in a turn.
_UNBOUNDED = 64


class Consumer(Member):
    """One CONSUME; with ``once`` for one message. ``window`` 0: it does not acknowledge."""

    def __init__(
        self,
        broker: "Broker",
        client: Client,
        subscribed: Subscribed,
        ident: bytes,
        window: int,
        *,
        once: bool = False,
    ):
        super().__init__()
        self._broker = broker
        self._client = client
        self.subscribed = subscribed
        self.pattern = subscribed.subscription.topic
        self.group = broker.consuming.group(subscribed.subscription.group)
        self.ident = ident
        self._correlation = ident if once else encode(subscribed.number)
        self._window = window
        self.once = once
        #: Of ``once``: until when it waits, by the loop's clock; 0 when it has got its message.
        self.deadline = broker.loop.time() + broker.config.clients.once if once else 0.0
        if once:
            broker.consuming.waiting[self] = None
        self._unacknowledged = 0
        client.consumers[ident] = self
        self.group.join(self)

    def patterns(self) -> list[str]:
        """Its subscription's."""
        return [self.pattern]

    def may_have(self, topic: str) -> bool:
        """As the rules say."""
        connection = self._client.connection
        kinds = ("CONSUME",) if self.once else ("SUBSCRIBE", "CONSUME")
        return connection is not None and all(connection.may(kind, topic) for kind in kinds)

    def room(self) -> int:
        """Up to its window, while its connection takes something."""
        connection = self._client.connection
        if connection is None or not connection.writable:
            return 0
        if self.once:
            return 1 if self.deadline else 0
        return self._window - self._unacknowledged if self._window else _UNBOUNDED

    def hand(self, lane: Lane, delivery: Delivery) -> bool:
        """Send it, if it is wanted."""
        message, connection = delivery.message, self._client.connection
        if connection is None or not self.subscribed.wanted(message):
            return False
        topic = None if is_literal(self.pattern) else message.topic
        body = frames.message(topic, message.tags, message.payload)
        connection.send(frames.response(message.id, self._correlation, body))
        self._broker.sent.add(1, "CONSUMERESP")
        if self.once:
            self.deadline = 0.0
            del self._broker.consuming.waiting[self]
        if self._window:
            until = self._broker.loop.time() + self._broker.config.clients.redelivery
            lane.open[message.seq] = Opening(message.id, until)
            self._broker.consuming.watch(lane, until)
            self._client.open.setdefault(message.id, deque()).append((lane, message.seq))
            self._unacknowledged += 1
            return True
        if self.once:
            self._broker.loop.call_soon(self.finish)
        return False

    def closed(self, lane: Lane, seq: int, ident: bytes) -> None:
        """There is room for another one."""
        self._unacknowledged -= 1
        waiting = self._client.open.get(ident)
        if waiting is not None:
            waiting.remove((lane, seq))
            if not waiting:
                del self._client.open[ident]
        if self.once:
            self._broker.loop.call_soon(self.finish)

    def finish(self, *, failed: bool = False) -> None:
        """Leave the group, without a word."""
        self._broker.consuming.waiting.pop(self, None)
        self._client.consumers.pop(self.ident, None)
        self.group.leave(self, failed=failed)

    def end(self, reason: int) -> None:
        """Leave the group, and say why."""
        connection = self._client.connection
        if connection is not None:
            answer = frames.refusal(self.ident, reason) if reason else frames.ack(self.ident)
            connection.send(answer)
        self.finish()


def on_consume(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """CONSUME."""
    if connection.client is not None and ident in connection.client.consumers:
        raise RefusedError(PACKET_IDENTIFIER_IN_USE, "there is a CONSUME with this id")
    if f.head & spec.ONCE:
        _on_once(broker, connection, f, ident)
        return
    client = connection.client
    assert client is not None
    buf = bytes(f.buf)
    number = decode_at(buf, f.at[0], f.end)[0]
    asked = decode_at(buf, f.at[1], f.end)[0] if f.count > 1 else 0
    subscribed = client.subscribed(number)
    # It may have subscribed from another network, or before the rules were changed.
    for kind in ("SUBSCRIBE", "CONSUME"):
        connection.check(kind, subscribed.subscription.topic)
    if not subscribed.subscription.group:
        raise RefusedError(TOPIC_FILTER_INVALID, "what is subscribed to without a group comes by itself")
    end_consumers(client, number, SESSION_TAKEN_OVER)
    most = broker.config.clients.window
    Consumer(broker, client, subscribed, ident, min(asked or most, most) if f.head & spec.NEEDACK else 0)


def end_consumers(client: Client, number: int, reason: int) -> None:
    """End what consumes from a subscription."""
    for consumer in list(client.consumers.values()):
        if not consumer.once and consumer.subscribed.number == number:
            consumer.end(reason)


def _on_once(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    client = connection.client
    assert client is not None
    wish = read_subscription(broker, f)
    connection.check("CONSUME", wish.topic)
    if not wish.group:
        broker.calls.call(connection, f, ident, wish)
        return
    if len(client.consumers) >= broker.config.clients.subscriptions:
        raise RefusedError(QUOTA_EXCEEDED, f"{len(client.consumers)} are waiting already")
    have_topic(broker, wish.topic)
    subscribed = Subscribed(wish, Wanted(wish.tags, wish.condition), 0)
    Consumer(broker, client, subscribed, ident, 1 if f.head & spec.NEEDACK else 0, once=True)


def lost(client: Client) -> None:
    """The connection is gone: what is open goes to the group again."""
    for consumer in list(client.consumers.values()):
        consumer.finish(failed=True)


def overdue(broker: "Broker", now: float) -> None:
    """Who waited for one message in vain is told so."""
    waiting = broker.consuming.waiting
    while waiting and (consumer := next(iter(waiting))).deadline <= now:
        consumer.end(NO_MATCHING_SUBSCRIBERS)


def topic_gone(broker: "Broker", topic: str) -> None:
    """Those who consume a topic that is about to be forgotten, and no other, are told so."""
    for group in broker.consuming.interested(topic):
        for member in list(group.members):
            if isinstance(member, Consumer) and member.pattern == topic:
                member.end(TOPIC_FILTER_INVALID)


def on_ack(client: Client, ident: bytes, code: int) -> bool:
    """A CONSUMERESP is acknowledged, or, with a reason, given back at once: whether there was one."""
    waiting = client.open.get(ident)
    if not waiting:
        return False
    lane, seq = waiting[0]
    if code:
        lane.group.back(lane, seq)
    else:
        lane.group.done(lane, seq)
    return True
