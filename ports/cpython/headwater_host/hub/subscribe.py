"""SUBSCRIBE and UNSUBSCRIBE (docs/protocols/fmq.md, section 4)."""

from dataclasses import dataclass, replace
from functools import partial

from headwater.fmq.frames import Frame
from headwater.fmq.names import TYPES
from headwater.fmq.spec import SUBSCRIBE
from headwater.mqtt import spec5
from headwater_host.hub import frames, requests
from headwater_host.hub.broadcast import Broadcasts
from headwater_host.hub.clients import Client, Subscribed, cost
from headwater_host.hub.conditions import Selection
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.connection import Connection
from headwater_host.hub.consume import Consumers
from headwater_host.hub.contracts import Subscribing
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.groups import Groups
from headwater_host.hub.registry import OWN, Registry
from headwater_host.hub.rpc import Calls, check_responder
from headwater_host.hub.storage import Message, Subscription
from headwater_host.hub.topics import check_filter
from headwater_host.hub.turns import Steps, Turns

#: Characters of the longest name of a consumer group.
LONGEST_GROUP = 256


def read_subscription(registry: Registry, f: Frame) -> Subscription:
    """Return what SUBSCRIBE, or CONSUME with ONCE, asks for. Raises RefusedError."""
    asked = requests.subscribe(f)
    topic, group = check_filter(registry.name(asked.topic)), asked.group
    if len(group) > LONGEST_GROUP or group.startswith(OWN) or not group.isprintable():
        text = f"a group's name is printable text of at most {LONGEST_GROUP} characters that does not begin with $"
        raise RefusedError(spec5.TOPIC_FILTER_INVALID, text)
    return Subscription(0, topic, tuple(asked.tags), asked.condition, group)


@dataclass
class Subscriptions:
    """Handlers of SUBSCRIBE and UNSUBSCRIBE, and what all subscriptions cost."""

    store: Subscribing
    registry: Registry
    limits: ClientLimits
    turns: Turns
    groups: Groups
    broadcasts: Broadcasts
    consumers: Consumers
    calls: Calls
    #: Bytes of memory that all subscriptions take, by ``cost``.
    held: int = 0

    def on_subscribe(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Begin a subscription. A filter may match many topics, so this may go on over several turns; the client's next
        frame waits."""
        client = connection.client
        assert client is not None
        asked = read_subscription(self.registry, f)
        connection.check("SUBSCRIBE", asked.topic)
        selection = Selection(asked.tags, asked.condition)
        check_responder(asked)
        serial = self._serial(client, asked)
        self.registry.require_named(asked.topic)
        subscription = replace(asked, serial=serial)
        known = client.subscriptions.get(serial)
        more = cost(subscription) - (cost(known.subscription) if known else 0)
        if more > 0 and self.held + more > self.limits.all_subscriptions:
            raise RefusedError(spec5.QUOTA_EXCEEDED, "there is no room for more subscriptions")
        since = known.since if known else self.store.seq
        subscribed = Subscribed(subscription, selection, client.number(serial), since)
        connection.hold()
        self.turns.begin(self._subscribe(connection, client, subscribed, more, ident), connection.release)

    def _subscribe(
        self, connection: Connection, client: Client, subscribed: Subscribed, more: int, ident: bytes
    ) -> Steps:
        """Attach the group to its topics, look for what is retained, then answer."""
        subscription = subscribed.subscription
        retained: list[Message] = []
        try:
            if subscription.group:
                yield from self.groups.attach(subscription.group, subscription.topic)
            else:
                yield from self.broadcasts.subscribe(client, subscribed, retained)
        except RefusedError as error:
            if not subscription.group:
                self.broadcasts.abandon(client, subscribed)
            connection.refuse(TYPES[SUBSCRIBE], ident, error)
            return
        except Exception:
            connection.close(spec5.UNSPECIFIED_ERROR)
            raise
        if client.is_over:
            return
        self.calls.serve(client, subscribed)
        if client.kept:
            self.store.sessions.subscribe(client.name, subscription)
        self.consumers.renew(client, subscribed)
        client.subscriptions[subscription.serial] = subscribed
        self.held += more
        connection.asked = self.store.seq
        self.store.after(partial(self._answer, connection, client, subscribed, retained, ident))

    def _answer(
        self,
        connection: Connection,
        client: Client,
        subscribed: Subscribed,
        retained: list[Message],
        ident: bytes,
    ) -> None:
        connection.send(frames.subscribed(ident, subscribed.number))
        if not subscribed.subscription.group:
            self.broadcasts.answered(client, subscribed, retained)

    def _serial(self, client: Client, asked: Subscription) -> int:
        """Return the serial of the client's subscription to the same filter for the same group, or a new one."""
        for serial, known in client.subscriptions.items():
            if (known.subscription.topic, known.subscription.group) == (asked.topic, asked.group):
                return serial
        count = len(client.subscriptions)
        if count >= self.limits.subscriptions:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"this client has {count} subscriptions already")
        return max(client.subscriptions, default=0) + 1

    def on_unsubscribe(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """End a subscription, and what consumes it. A group stays where it is."""
        client = connection.client
        assert client is not None
        subscribed = client.subscribed(requests.unsubscribe(f))
        subscription = subscribed.subscription
        connection.check("UNSUBSCRIBE", subscription.topic)
        del client.subscriptions[subscription.serial]
        self.held -= cost(subscription)
        if client.kept:
            self.store.sessions.unsubscribe(client.name, subscription.serial)
        self.consumers.end(client, subscribed.number, 0)
        self.calls.leave(client, subscribed)
        if not subscription.group:
            self.broadcasts.unsubscribe(client, subscribed)
        self.store.after(partial(connection.send, frames.ack(ident)))

    def restore(self, client: Client, subscriptions: dict[int, Subscription]) -> None:
        """Go on with the subscriptions of a kept session, after a start of the hub."""
        for serial, subscription in subscriptions.items():
            selection = Selection(subscription.tags, subscription.condition)
            client.subscriptions[serial] = Subscribed(subscription, selection, client.number(serial))
            self.held += cost(subscription)
        self.broadcasts.restore(client)

    def end(self, client: Client) -> None:
        """Forget the subscriptions of a client that is gone for good."""
        self.held -= sum(cost(known.subscription) for known in client.subscriptions.values())
        self.broadcasts.end(client)
