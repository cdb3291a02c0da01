"""Broadcast subscriptions, those without a group: the hub pushes PUBLISH frames (docs/protocols/fmq.md, section 4).

A client without a kept session gets the messages published while it is connected, from memory. A kept session has its
own consumer group with one member, so that its unacknowledged messages are in the storage, connected or not.
``Subscriber`` sends both, and retained messages. A message that several subscriptions of a client match is sent once.
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
from headwater_host.hub.contracts import Broadcasting
from headwater_host.hub.groups import Groups, Lane, Member, Opening
from headwater_host.hub.metrics import Metric
from headwater_host.hub.storage import Delivery, Message
from headwater_host.hub.topics import Subscriptions
from headwater_host.hub.turns import Steps, Turns

#: Messages at QoS 1 and 2 that a client may have unacknowledged. A board has room for 16 by default.
WINDOW = 16
#: Limits of the memory queue of a client: messages, and bytes as a multiple of ``unread``.
MOST_WAITING = 10_000
_UNREAD = 8
#: Messages, and their bytes, that may wait for delivery before publishers are paused.
_MOST = 1000
_MOST_BYTES = 4 << 20


class _Item(NamedTuple):
    """A message to send. ``lane`` is its lane of the session's group, None if it is in memory only."""

    message: Message
    lane: Lane | None = None
    retain: bool = False


class Subscriber(Member):
    """Sends a client the messages of its broadcast subscriptions."""

    def __init__(
        self, client: Client, store: Broadcasting, groups: Groups, limits: ClientLimits, sent: Metric
    ):
        super().__init__()
        self._client = client
        self._store = store
        self._groups = groups
        self._limits = limits
        self._sent = sent
        #: Messages that wait in memory: live ones of a client without a kept session, and retained ones.
        self._waiting: deque[_Item] = deque()
        self.waiting_bytes = 0
        #: SUBSCRIBEs with retained messages that are not in ``_waiting`` yet; live messages received meanwhile.
        self._loading = 0
        self._late: deque[_Item] = deque()
        #: Retained messages for a kept session that this connection may not have.
        self._withheld: list[_Item] = []
        self._in_flight: dict[bytes, _Item] = {}
        #: Retained messages that were sent on an earlier connection.
        self._sent_before: set[bytes] = set()
        #: Messages up to this change may have been sent before the hub was started.
        self._before = store.committed
        #: Answered with PUBREC, waiting for PUBCOMP.
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
        """Prepare a subscription: attach the session's group to its topics, and add retained messages to ``retained``.

        The storage records these messages, so that a kept session gets them. Until ``loaded``, live messages wait.
        """
        self._loading += 1
        store, session = self._store, self._client.name if self.group is not None else None
        began = store.seq
        for name in store.names.match(subscribed.subscription.topic):
            yield store.next_turn if store.is_crowded else None
            topic, message = store.topics.get(name), store.retained.get(name)
            # ``spread`` attaches a topic that is created meanwhile, from its first message.
            if topic is None or topic.number > began:
                continue
            if self.group is not None:
                store.attach(self.group.name, name, from_now=True)
            # Messages retained later arrive as live messages.
            if message is None or (session is None and message.seq > subscribed.since):
                continue
            if subscribed.selection.takes(message):
                retained.append(message)
                if session is not None and message.qos:
                    store.sessions.hold(session, "retained", message.id)

    def send_retained(self, retained: list[Message]) -> Steps:
        """Send the messages found by ``load``."""
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
        """Resend unacknowledged retained messages of the session from before the hub's start."""
        store, name = self._store, self._client.name
        session = store.sessions.get(name)
        held = list(session.retained) if session is not None else []
        known = {message.id: message for message in store.retained.values()} if held else {}
        for ident in held:
            message = known.get(ident)
            if message is None or not self._takes(message):
                # The message was replaced, and its successor arrived as a live message; or the subscription has ended.
                store.sessions.release(name, "retained", ident)
                continue
            self._sent_before.add(ident)
            self._waiting.append(_Item(message, retain=True))
            self.waiting_bytes += message.held

    def spread(self) -> None:
        """Assign the lanes of its subscriptions to the session's group."""
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
        """Return whether the access rules allow the client messages of a topic over its current connection.

        A filter with wildcards says little about what it matches, and the session may have been begun from another
        network, or before the rules were changed. What is denied waits for another connection.
        """
        connection = self._client.connection
        return connection is not None and connection.may("SUBSCRIBE", topic)

    def room(self) -> int:
        """Return the free part of ``WINDOW``, 0 while retained messages wait or the client does not read."""
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
        """Send a live message from memory."""
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
        """Send waiting messages, as far as there is room."""
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
        """Return unacknowledged messages to the queue; they are redelivered on the next connection."""
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
        """Continue the handshakes and the messages of the session on a new connection."""
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
    """All broadcast subscriptions, and the messages to deliver to them.

    Sessions that are not kept are found by topic here; a kept one is found by its group.
    """

    def __init__(self, store: Broadcasting, groups: Groups, turns: Turns, limits: ClientLimits, sent: Metric):
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
        #: True from the time when too many messages wait for delivery until none does.
        self.is_behind = False
        self._handing_out = False
        self._paused: list[Callable[[], None]] = []

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def subscriber(self, client: Client) -> Subscriber:
        """Return the subscriber of a client."""
        found = self._of.get(client)
        if found is None:
            found = Subscriber(client, self._store, self._groups, self._limits, self._sent)
            self._of[client] = found
            client.backlogs.append(found)
        return found

    def add(self, client: Client, subscribed: Subscribed) -> None:
        """Start live messages for a subscription, which replaces an earlier one with the same filter."""
        subscriber = self.subscriber(client)
        if subscriber.group is None:
            self._index.add(subscribed.subscription.topic, client, (subscriber, subscribed))

    def subscribe(self, client: Client, subscribed: Subscribed, retained: list[Message]) -> Steps:
        """Prepare a subscription and fill ``retained``. Call ``answered`` or ``abandon`` afterwards."""
        self._pending.setdefault(client, []).append(subscribed.subscription.topic)
        self.add(client, subscribed)
        yield from self.subscriber(client).load(subscribed, retained)

    def answered(self, client: Client, subscribed: Subscribed, retained: list[Message]) -> None:
        """Start to send to a subscription after its SUBSCRIBE was answered."""
        subscriber = self._of.get(client)
        self._done(client, subscribed)
        if subscriber is not None:
            subscriber.spread()
            self._turns.begin(subscriber.send_retained(retained), subscriber.loaded)

    def abandon(self, client: Client, subscribed: Subscribed) -> None:
        """Undo ``subscribe`` after a refusal: not all topics had room for the session's group."""
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
        """Restore the subscriptions of a kept session after the hub's start."""
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
        """Handle the end of a client's connection."""
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.lost()

    def resume(self, client: Client) -> None:
        """Continue with a client that has reconnected."""
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.resume()

    def writable(self, client: Client) -> None:
        """Continue to send to a client that has room again."""
        subscriber = self._of.get(client)
        if subscriber is not None:
            subscriber.writable()

    # -- live messages -----------------------------------------------------------------------------------------------

    def stored(self, messages: list[Message]) -> None:
        """Deliver messages that are now on disk."""
        if not len(self._index):
            return
        self._messages += messages
        self._bytes += sum(message.size for message in messages)
        self.is_behind = len(self._messages) > _MOST or self._bytes > _MOST_BYTES
        if not self._handing_out:
            self._handing_out = True
            self._turns.begin(self._hand_out(), self._handed_out)

    def after(self, done: Callable[[], None]) -> None:
        """Call ``done`` when no message waits for delivery."""
        self._paused.append(done)

    def _hand_out(self) -> Steps:
        """Deliver waiting messages, one message to one client in each step."""
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
            # After an error, the other messages are still delivered.
            self._turns.begin(self._hand_out(), self._handed_out)
            return
        self._handing_out = self.is_behind = False
        paused, self._paused = self._paused, []
        for go_on in paused:
            go_on()
