"""Broadcast subscriptions, those without a group: the hub pushes PUBLISH frames (docs/protocols/fmq.md, section 4).

A client whose session is not kept gets what comes while it is connected, out of memory. A session that is kept has a
consumer group of its own, with one member: what it has not acknowledged is in the storage, connected or not. Both, and
retained messages, are sent by ``Subscriber``. A message that several subscriptions of a client match is sent once.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwater.fmq import spec
from headwater.mqtt import spec5
from headwater_host.hub import frames
from headwater_host.hub.access import covers
from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.groups import Groups, Lane, Member, Opening
from headwater_host.hub.metrics import Metric
from headwater_host.hub.storage import Delivery, Message, Store
from headwater_host.hub.topics import Subscriptions
from headwater_host.hub.turns import Steps, Turns

#: Messages at QoS 1 and 2 that a client may have unacknowledged. A board has room for 16 by default.
WINDOW = 16
#: What may wait in memory for a client: messages, and bytes as a multiple of ``unread``.
MOST_WAITING = 10_000
_UNREAD = 8
#: Messages, and bytes of them, that may wait to be handed to clients before publishers are paused.
_MOST = 1000
_MOST_BYTES = 4 << 20


class _Item(NamedTuple):
    """A message to send. ``lane`` is where it is in the session's group, None if it is in memory only."""

    message: Message
    lane: Lane | None = None
    retain: bool = False


class Subscriber(Member):
    """Sends a client what its broadcast subscriptions match."""

    def __init__(self, client: Client, store: Store, groups: Groups, limits: ClientLimits, sent: Metric):
        super().__init__()
        self._client = client
        self._store = store
        self._groups = groups
        self._limits = limits
        self._sent = sent
        #: Messages that wait in memory: live ones of a client whose session is not kept, and retained ones.
        self._waiting: deque[_Item] = deque()
        self.waiting_bytes = 0
        #: SUBSCRIBEs whose retained messages are not all in ``_waiting`` yet; live ones that come meanwhile.
        self._loading = 0
        self._late: deque[_Item] = deque()
        #: Retained messages for a kept session that this connection may not have.
        self._withheld: list[_Item] = []
        self._in_flight: dict[bytes, _Item] = {}
        #: Those that were sent on a connection before this one.
        self._sent_before: set[bytes] = set()
        #: Messages up to this change may have been sent before the hub was started.
        self._before = store.durable
        #: Answered with PUBREC; PUBCOMP is to come.
        self._released: dict[bytes, None] = {}
        self.group = groups.group("$session/" + client.name) if client.kept else None
        if self.group is not None:
            self.group.join(self)

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _takes(self, message: Message) -> bool:
        """Return whether any of the client's broadcast subscriptions gets a message."""
        for subscription, selection, _, _ in self._client.subscriptions.values():
            if (
                not subscription.group
                and covers(subscription.topic, message.topic)
                and selection.takes(message)
            ):
                return True
        return False

    def load(self, subscribed: Subscribed, retained: list[Message]) -> Steps:
        """Prepare a subscription: attach the session's group to its topics, and add what is retained to ``retained``.

        A kept session is sure to get that: the messages are noted in the storage. Until ``loaded``, live messages wait.
        """
        self._loading += 1
        store, session = self._store, self._client.name if self.group is not None else None
        began = store.seq
        for name in store.names.match(subscribed.subscription.topic):
            yield store.next_turn if store.is_crowded else None
            topic, message = store.topics.get(name), store.retained.get(name)
            # ``spread`` attaches a topic that is made meanwhile, from its first message.
            if topic is None or topic.number > began:
                continue
            if self.group is not None:
                store.attach(self.group.name, name, from_now=True)
            # What was retained later comes as a live message.
            if message is None or (session is None and message.seq > subscribed.since):
                continue
            if subscribed.selection.takes(message):
                retained.append(message)
                if session is not None and message.qos:
                    store.sessions.hold(session, "retained", message.id)

    def send_retained(self, retained: list[Message]) -> Steps:
        """Send what ``load`` found."""
        for message in retained:
            self._add(self._waiting, _Item(message, retain=True))
            yield None

    def loaded(self) -> None:
        """Send live messages again, after a subscription's retained ones."""
        self._loading -= 1
        if not self._loading:
            self._waiting += self._late
            self._late.clear()
            self.writable()

    def restore(self) -> None:
        """Send again what was retained for the session before the hub was started, and is not acknowledged."""
        store, name = self._store, self._client.name
        session = store.sessions.get(name)
        held = list(session.retained) if session is not None else []
        known = {message.id: message for message in store.retained.values()} if held else {}
        for ident in held:
            message = known.get(ident)
            if message is None or not self._takes(message):
                # It was replaced, and its successor came as a live message; or the subscription is gone.
                store.sessions.release(name, "retained", ident)
                continue
            self._sent_before.add(ident)
            self._waiting.append(_Item(message, retain=True))
            self.waiting_bytes += message.held

    def spread(self) -> None:
        """Give the session's group the lanes of its subscriptions."""
        if self.group is not None:
            self._groups.spread(self.group)

    def leave(self, subscribed: Subscribed) -> None:
        """Detach the session's group from topics that only this subscription matched."""
        if self.group is not None:
            left = self.patterns()
            self._detach(
                topic
                for topic in self._store.names.match(subscribed.subscription.topic)
                if not any(covers(pattern, topic) for pattern in left)
            )
            self._groups.spread(self.group)

    def _detach(self, topics: Iterator[str]) -> None:
        assert self.group is not None
        for topic in topics:
            self._store.detach(self.group.name, topic)

    def end(self, pending: list[str]) -> None:
        """End the session; ``pending`` are the filters of SUBSCRIBEs in progress."""
        if self.group is not None:
            patterns = self.patterns() + pending
            self.group.leave(self, failed=False)
            for pattern in patterns:
                self._detach(self._store.names.match(pattern))

    # -- a member of the session's group -----------------------------------------------------------------------------

    def patterns(self) -> list[str]:
        """Return the filters of the broadcast subscriptions."""
        known = [subscribed.subscription for subscribed in self._client.subscriptions.values()]
        return [subscription.topic for subscription in known if not subscription.group]

    def may_take(self, topic: str) -> bool:
        """Return whether the rules let the client have messages of a topic over the connection it has now.

        A filter with wildcards says little about what it matches, and the session may have been begun from another
        network, or before the rules were changed. What is denied waits for another connection.
        """
        connection = self._client.connection
        return connection is not None and connection.may("SUBSCRIBE", topic)

    def room(self) -> int:
        """Return how much of ``WINDOW`` is free, 0 while retained messages wait or the client does not read."""
        connection = self._client.connection
        if connection is None or not connection.ready or not connection.writable:
            return 0
        return 0 if self._waiting or self._loading else max(self._window(), 0)

    def hand(self, lane: Lane, delivery: Delivery) -> bool:
        """Send a message of the session's group, if a subscription gets it."""
        message = delivery.message
        if not self._takes(message) or message.id in self._released:
            return False
        if message.qos:
            lane.open[message.seq] = Opening(message.id, 0)
        return self._send(_Item(message, lane))

    # -- sending -----------------------------------------------------------------------------------------------------

    def _window(self) -> int:
        return WINDOW - len(self._in_flight) - len(self._released)

    def put(self, message: Message) -> None:
        """Send a live message, out of memory."""
        self._add(self._late if self._loading else self._waiting, _Item(message))

    def _add(self, waiting: deque[_Item], item: _Item) -> None:
        waiting.append(item)
        self.waiting_bytes += item.message.held
        connection, store = self._client.connection, self._store
        # Retained messages are in memory in any case, and all of them may be for this client.
        count = len(self._waiting) + len(self._late)
        most_bytes = _UNREAD * self._limits.unread + store.retained_bytes
        if count > MOST_WAITING + len(store.retained) or self.waiting_bytes > most_bytes:
            if connection is not None:
                connection.close(spec5.QUOTA_EXCEEDED, "messages arrive faster than the client reads them")
            return
        self.writable()
        if (self._waiting or self._late) and connection is not None:
            connection.weigh()

    def writable(self) -> None:
        """Send what waits, as far as there is room."""
        connection = self._client.connection
        if connection is None:
            return
        waiting = self._waiting
        while waiting and connection.writable and connection.ready:
            item = waiting[0]
            message = item.message
            if message.qos and (self._window() <= 0 or message.id in self._in_flight):
                return
            waiting.popleft()
            self.waiting_bytes -= message.held
            if self.may_take(message.topic):
                self._send(item)
            elif self.group is not None:
                self._withheld.append(item)
        if not waiting and self.ready:
            self._groups.wake(self)

    def _send(self, item: _Item) -> bool:
        """Send a message; return whether the client has to acknowledge it."""
        message, connection = item.message, self._client.connection
        if connection is None:
            return message.qos > 0
        dup = message.id in self._sent_before or (
            message.qos > 0 and item.lane is not None and message.seq <= self._before
        )
        if message.qos:
            self._in_flight[message.id] = item
        body = frames.message(message.topic, message.tags, message.payload)
        connection.send(frames.publish(message.id, body, message.qos, dup, item.retain))
        self._sent.add(1, "PUBLISH")
        return message.qos > 0

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def on_answer(self, kind: int, ident: bytes, code: int) -> bool:
        """Take an ACK, PUBREC or PUBCOMP; return whether it was about a message of this client."""
        if kind == spec.PUBCOMP:
            return self._completed(ident)
        item = self._in_flight.get(ident)
        if item is None or (kind == spec.ACK and item.message.qos == 2 and not code):
            return False
        del self._in_flight[ident]
        self._sent_before.discard(ident)
        if kind == spec.PUBREC:
            self._released[ident] = None
            if self.group is not None:
                self._store.sessions.hold(self._client.name, "released", ident)
        if item.lane is not None:
            item.lane.group.done(item.lane, item.message.seq)
        elif self.group is not None:
            self._store.sessions.release(self._client.name, "retained", ident)
        self.writable()
        return True

    def _completed(self, ident: bytes) -> bool:
        if ident not in self._released:
            return False
        del self._released[ident]
        if self.group is not None:
            self._store.sessions.release(self._client.name, "released", ident)
        self.writable()
        return True

    # -- the connection ----------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Put back what is not acknowledged: it is redelivered on the next connection."""
        self._sent_before.update(self._in_flight)
        again = [item for item in self._in_flight.values() if item.lane is None] + self._withheld
        self._in_flight.clear()
        self._withheld = []
        self._waiting.extendleft(reversed(again))
        self.waiting_bytes += sum(item.message.held for item in again)
        for lane in self.lanes:
            lane.group.give_up(lane, failed=False)
            lane.group.wake(lane)

    def resume(self) -> None:
        """Go on with the handshakes and the messages of the session on a new connection."""
        connection = self._client.connection
        if connection is None:
            return
        session = self._store.sessions.get(self._client.name)
        if self.group is not None and session is not None:
            self._released.update(session.released)
        for ident in self._released:
            connection.send(frames.bare(spec.PUBREL, ident))
        self.writable()


class Broadcasts:
    """All broadcast subscriptions, and the messages that are to be handed to them.

    Sessions that are not kept are found by topic here; a kept one is found by its group.
    """

    def __init__(self, store: Store, groups: Groups, turns: Turns, limits: ClientLimits, sent: Metric):
        self._store = store
        self._groups = groups
        self._turns = turns
        self._limits = limits
        self._sent = sent
        self._of: dict[Client, Subscriber] = {}
        #: The filters of SUBSCRIBEs in progress.
        self._pending: dict[Client, list[str]] = {}
        self._index: Subscriptions[tuple[Subscriber, Subscribed]] = Subscriptions()
        self._messages: deque[Message] = deque()
        self._bytes = 0
        #: Whether too many messages wait to be handed out; until none does.
        self.is_behind = False
        self._handing_out = False
        self._paused: list[Callable[[], None]] = []

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def subscriber(self, client: Client) -> Subscriber:
        """Return what sends to a client."""
        found = self._of.get(client)
        if found is None:
            found = Subscriber(client, self._store, self._groups, self._limits, self._sent)
            self._of[client] = found
            client.backlogs.append(found)
        return found

    def add(self, client: Client, subscribed: Subscribed) -> None:
        """Let a subscription have live messages, instead of an earlier one with the same filter."""
        subscriber = self.subscriber(client)
        if subscriber.group is None:
            self._index.add(subscribed.subscription.topic, client, (subscriber, subscribed))

    def subscribe(self, client: Client, subscribed: Subscribed, retained: list[Message]) -> Steps:
        """Prepare a subscription; ``retained`` is filled. Then ``answered`` or ``abandon`` is to be called."""
        self._pending.setdefault(client, []).append(subscribed.subscription.topic)
        self.add(client, subscribed)
        yield from self.subscriber(client).load(subscribed, retained)

    def answered(self, client: Client, subscribed: Subscribed, retained: list[Message]) -> None:
        """Begin to send to a subscription whose SUBSCRIBE has been answered."""
        subscriber = self._of.get(client)
        self._done(client, subscribed)
        if subscriber is not None:
            subscriber.spread()
            self._turns.begin(subscriber.send_retained(retained), subscriber.loaded)

    def abandon(self, client: Client, subscribed: Subscribed) -> None:
        """Undo ``subscribe``, which was refused: there was no room for a session's group in all topics."""
        subscriber = self._of.get(client)
        self._done(client, subscribed)
        if subscriber is not None:
            subscriber.leave(subscribed)
            subscriber.loaded()

    def _done(self, client: Client, subscribed: Subscribed) -> None:
        pending = self._pending.get(client)
        if pending is not None:
            pending.remove(subscribed.subscription.topic)
            if not pending:
                del self._pending[client]

    def restore(self, client: Client) -> None:
        """Go on with the subscriptions of a kept session, after a start of the hub."""
        if any(not known.subscription.group for known in client.subscriptions.values()):
            subscriber = self.subscriber(client)
            subscriber.spread()
            subscriber.restore()

    def unsubscribe(self, client: Client, subscribed: Subscribed) -> None:
        """Remove a subscription."""
        self._index.remove(subscribed.subscription.topic, client)
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.leave(subscribed)

    def end(self, client: Client) -> None:
        """Remove a client and all its subscriptions."""
        pending = self._pending.pop(client, [])
        subscriber = self._of.pop(client, None)
        if subscriber is None:
            return
        client.backlogs.remove(subscriber)
        for pattern in (*subscriber.patterns(), *pending):
            self._index.remove(pattern, client)
        subscriber.end(pending)

    # -- events ------------------------------------------------------------------------------------------------------

    def on_answer(self, client: Client, kind: int, ident: bytes, code: int) -> bool:
        """Take an ACK, PUBREC or PUBCOMP; return whether it was about a message of this client."""
        subscriber = self._of.get(client)
        return subscriber is not None and subscriber.on_answer(kind, ident, code)

    def lost(self, client: Client) -> None:
        """The connection is gone."""
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.lost()

    def resume(self, client: Client) -> None:
        """A client is connected again."""
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.resume()

    def writable(self, client: Client) -> None:
        """A client can be sent more."""
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.writable()

    # -- live messages -----------------------------------------------------------------------------------------------

    def stored(self, messages: list[Message]) -> None:
        """Hand out messages that are on the disk now."""
        if not len(self._index):
            return
        self._messages += messages
        self._bytes += sum(message.size for message in messages)
        self.is_behind = len(self._messages) > _MOST or self._bytes > _MOST_BYTES
        if not self._handing_out:
            self._handing_out = True
            self._turns.begin(self._hand_out(), self._handed_out)

    def after(self, done: Callable[[], None]) -> None:
        """Call ``done`` when no message waits to be handed out."""
        self._paused.append(done)

    def _hand_out(self) -> Steps:
        """Hand out what waits, a message to a client in each step."""
        while self._messages:
            message = self._messages.popleft()
            self._bytes -= message.size
            had: set[Subscriber] = set()
            for subscriber, subscribed in self._index.match(message.topic):
                if subscriber not in had:
                    if message.seq > subscribed.since and subscribed.selection.takes(message):
                        had.add(subscriber)
                        subscriber.put(message)
                    yield None
            yield None

    def _handed_out(self) -> None:
        if self._messages:
            # An error ended it: the other messages are handed out all the same.
            self._turns.begin(self._hand_out(), self._handed_out)
            return
        self._handing_out = self.is_behind = False
        paused, self._paused = self._paused, []
        for go_on in paused:
            go_on()
