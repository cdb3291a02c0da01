"""Broadcast subscriptions: the hub pushes PUBLISH frames (docs/protocols/fmq.md, section 4).

A client that is not kept gets what comes while it is connected, out of memory. One whose session is kept has a consumer
group of its own, of which it is the only member: what it has not acknowledged is in the storage, connection or not. A
message that several of a client's subscriptions match comes once.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headwater.fmq import spec
from headwater_host.hub import frames
from headwater_host.hub.access import covers
from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.errors import QUOTA_EXCEEDED
from headwater_host.hub.groups import Lane, Member, Opening
from headwater_host.hub.storage import Delivery, Message

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker

#: Messages at QoS 1 and 2 that a client is sent before it answers. A board has room for 16, unless told otherwise.
WINDOW = 16
#: What may wait in memory for a client: messages, and bytes as a multiple of ``unread``.
MOST_WAITING = 10_000
_UNREAD = 8


class _Flying(NamedTuple):
    """A message at QoS 1 or 2 on its way: where it is in the storage, if it is."""

    message: Message
    lane: Lane | None = None
    retain: bool = False


class Pusher(Member):
    """What one client's broadcast subscriptions go through."""

    def __init__(self, broker: "Broker", client: Client):
        super().__init__()
        self._broker = broker
        self._client = client
        #: Of a client that is not kept; of others, retained messages.
        self._waiting: deque[tuple[Message, bool]] = deque()
        #: Their size.
        self.waiting_bytes = 0
        self._flying: dict[bytes, _Flying] = {}
        #: Those of them that were sent on a connection before this one.
        self._repeated: set[bytes] = set()
        #: Those in the storage up to this change may have been sent before the hub was started.
        self._before = broker.store.durable
        #: Answered with PUBREC; PUBCOMP is to come.
        self._released: dict[bytes, None] = {}
        self.group = broker.consuming.group("$session/" + client.name) if client.kept else None
        if self.group is not None:
            self.group.join(self)

    def _wanted(self, message: Message) -> bool:
        """Whether a subscription of the client gets it, whatever its filter."""
        return any(
            covers(subscribed.subscription.topic, message.topic) and subscribed.wanted(message)
            for subscribed in self._client.subscriptions.values()
            if not subscribed.subscription.group
        )

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def attach(self, pattern: str) -> None:
        """A subscription begins: what comes from now on is for it."""
        if self.group is not None:
            self._broker.consuming.attach(self.group.name, pattern, from_now=True)
            self._broker.consuming.spread(self.group)

    def retained(self, subscribed: Subscribed) -> list[Message]:
        """What is retained for a subscription that is made now. A session that is kept is sure to get it."""
        store = self._broker.store
        topics = store.names.match(subscribed.subscription.topic) if store.retained else ()
        found = [store.retained[topic] for topic in topics if topic in store.retained]
        found = [message for message in found if subscribed.wanted(message)]
        for message in found if self.group is not None else ():
            if message.qos:
                store.sessions.hold(self._client.name, "retained", message.id)
        return found

    def begin(self, subscribed: Subscribed, retained: list[Message]) -> None:
        """The client knows of its subscription: what was ``retained`` comes first."""
        subscription = subscribed.subscription
        if self._client.subscriptions.get(subscription.serial) is not subscribed:
            return
        self.restore(subscribed)
        for message in retained:
            self.put(message, retain=True)

    def recall(self) -> None:
        """The hub was started: what was retained for the session before, and is not answered, is to come."""
        store, name = self._broker.store, self._client.name
        session = store.sessions.get(name)
        held = list(session.retained) if session is not None else []
        known = {message.id: message for message in store.retained.values()} if held else {}
        for ident in held:
            message = known.get(ident)
            if message is None or not self._wanted(message):
                # Another one has come since then, as any message does; or nobody asks for it any more.
                store.sessions.release(name, "retained", ident)
                continue
            self._repeated.add(ident)
            self._waiting.append((message, True))
            self.waiting_bytes += message.held

    def restore(self, subscribed: Subscribed) -> None:
        """A subscription is valid."""
        if self.group is None:
            self._broker.broadcast.add(self._client, subscribed)
        else:
            self._broker.consuming.spread(self.group)

    def end(self, subscribed: Subscribed) -> None:
        """A subscription is not valid any more."""
        if self.group is None:
            self._broker.broadcast.remove(self._client, subscribed)
        else:
            left = self.patterns()
            for topic in self.group.topics():
                if not any(covers(pattern, topic) for pattern in left):
                    self._broker.store.detach(self.group.name, topic)
            self._broker.consuming.spread(self.group)

    # -- a member of its own group -----------------------------------------------------------------------------------

    def patterns(self) -> list[str]:
        """Those of the broadcast subscriptions."""
        known = [subscribed.subscription for subscribed in self._client.subscriptions.values()]
        return [subscription.topic for subscription in known if not subscription.group]

    def room(self) -> int:
        """As ``WINDOW`` says."""
        connection = self._client.connection
        if connection is None or not connection.ready or not connection.writable or self._waiting:
            return 0
        return max(WINDOW - len(self._flying) - len(self._released), 0)

    def hand(self, lane: Lane, delivery: Delivery) -> bool:
        """Send it, if it is wanted."""
        message = delivery.message
        if not self._wanted(message) or not self._is_permitted(message) or message.id in self._released:
            return False
        if message.qos:
            lane.open[message.seq] = Opening(message.id, 0)
        self._send(_Flying(message, lane))
        return message.qos > 0

    def _is_permitted(self, message: Message) -> bool:
        """Whether the rules let the client have it: a filter with wildcards says little about what it matches, and a
        session may have been begun from another network, or before the rules were changed."""
        connection = self._client.connection
        return connection is not None and connection.may("SUBSCRIBE", message.topic)

    # -- messages ----------------------------------------------------------------------------------------------------

    def put(self, message: Message, *, retain: bool = False) -> None:
        """A message for the client, out of memory."""
        self._waiting.append((message, retain))
        self.waiting_bytes += message.held
        # What is retained is held in any case, and may all be for it.
        store, unread = self._broker.store, self._broker.config.clients.unread
        most = MOST_WAITING + len(store.retained)
        if len(self._waiting) > most or self.waiting_bytes > _UNREAD * unread + store.retained_bytes:
            if self._client.connection is not None:
                self._client.connection.close(QUOTA_EXCEEDED, "messages come faster than they are taken")
            return
        self.go_on()
        if self._waiting and self._client.connection is not None:
            self._client.connection.weigh()

    def go_on(self) -> None:
        """Send what waits, as far as there is room."""
        connection = self._client.connection
        if connection is None:
            return
        waiting = self._waiting
        while waiting and connection.writable and connection.ready:
            message, retain = waiting[0]
            if message.qos and (
                len(self._flying) + len(self._released) >= WINDOW or message.id in self._flying
            ):
                return
            waiting.popleft()
            self.waiting_bytes -= message.held
            if self._is_permitted(message):
                self._send(_Flying(message, None, retain))
            elif self.group is not None:
                self._broker.store.sessions.release(self._client.name, "retained", message.id)
        if not waiting and self.ready:
            self._broker.consuming.wake(self)

    def _send(self, flying: _Flying) -> None:
        message, connection = flying.message, self._client.connection
        if connection is None:
            return
        dup = message.id in self._repeated or (
            message.qos > 0 and flying.lane is not None and message.seq <= self._before
        )
        if message.qos:
            self._flying[message.id] = flying
        body = frames.message(message.topic, message.tags, message.payload)
        connection.send(frames.publish(message.id, body, message.qos, dup, flying.retain))
        self._broker.sent.add(1, "PUBLISH")

    def on_answer(self, kind: int, ident: bytes, code: int = 0) -> bool:
        """ACK, PUBREC or PUBCOMP has come: whether there was something to answer."""
        if kind == spec.PUBCOMP:
            return self._completed(ident)
        flying = self._flying.get(ident)
        if flying is None or (kind == spec.ACK and flying.message.qos == 2 and not code):
            return False
        del self._flying[ident]
        self._repeated.discard(ident)
        if kind == spec.PUBREC:
            self._released[ident] = None
            if self.group is not None:
                self._broker.store.sessions.hold(self._client.name, "released", ident)
        if flying.lane is not None:
            flying.lane.group.done(flying.lane, flying.message.seq)
        elif self.group is not None:
            self._broker.store.sessions.release(self._client.name, "retained", ident)
        self.go_on()
        return True

    def _completed(self, ident: bytes) -> bool:
        if ident not in self._released:
            return False
        del self._released[ident]
        if self.group is not None:
            self._broker.store.sessions.release(self._client.name, "released", ident)
        self.go_on()
        return True

    # -- the connection ----------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection is gone: what is not acknowledged comes again on the next one."""
        self._repeated.update(self._flying)
        again = [flying for flying in self._flying.values() if flying.lane is None]
        self._flying.clear()
        for flying in reversed(again):
            self._waiting.appendleft((flying.message, flying.retain))
            self.waiting_bytes += flying.message.held
        for lane in self.lanes:
            lane.group.give_up(lane, failed=False)
            lane.group.wake(lane)

    def resume(self) -> None:
        """There is a connection again."""
        connection = self._client.connection
        if connection is None:
            return
        session = self._broker.store.sessions.get(self._client.name)
        if self.group is not None and session is not None:
            self._released.update(session.released)
        for ident in self._released:
            connection.send(frames.bare(spec.PUBREL, ident))
        self.go_on()

    def gone(self) -> None:
        """The session has ended."""
        if self.group is None:
            for subscribed in self._client.subscriptions.values():
                if not subscribed.subscription.group:
                    self._broker.broadcast.remove(self._client, subscribed)
        else:
            topics = self.group.topics()
            self.group.leave(self, failed=False)
            for topic in topics:
                self._broker.store.detach(self.group.name, topic)
