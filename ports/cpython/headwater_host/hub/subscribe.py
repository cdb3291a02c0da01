"""SUBSCRIBE and UNSUBSCRIBE (docs/protocols/fmq.md, section 4)."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headwater.fmq.frames import Frame
from headwater_host.fmq.values import decode_at
from headwater_host.hub import consume, frames
from headwater_host.hub.clients import Client, Subscribed, cost
from headwater_host.hub.errors import QUOTA_EXCEEDED, RefusedError
from headwater_host.hub.pushing import Pusher
from headwater_host.hub.storage import Subscription
from headwater_host.hub.wanted import Wanted
from headwater_host.hub.wishes import have_topic, read_subscription

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker
    from headwater_host.hub.connection import Connection


def on_subscribe(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """SUBSCRIBE."""
    client = connection.client
    assert client is not None
    wish = read_subscription(broker, f)
    connection.check("SUBSCRIBE", wish.topic)
    wanted = Wanted(wish.tags, wish.condition)
    serial = _serial(broker, client, wish)
    have_topic(broker, wish.topic)
    subscription = replace(wish, serial=serial)
    known = client.subscriptions.get(serial)
    more = cost(subscription) - (cost(known.subscription) if known else 0)
    if more > 0 and broker.subscribed + more > broker.config.clients.all_subscriptions:
        raise RefusedError(QUOTA_EXCEEDED, "there is no room for more subscriptions")
    since = known.since if known else broker.store.seq
    subscribed = Subscribed(subscription, wanted, client.number(serial), since)
    if wish.group:
        broker.consuming.attach(wish.group, wish.topic)
    else:
        pusher_of(broker, client).attach(wish.topic)
    broker.calls.serve(client, subscribed)
    if client.kept:
        broker.store.sessions.subscribe(client.name, subscription)
    for consumer in client.consumers.values():
        if consumer.subscribed.number == subscribed.number:
            consumer.subscribed = subscribed
    client.subscriptions[serial] = subscribed
    broker.subscribed += more

    retained = [] if wish.group else pusher_of(broker, client).retained(subscribed)

    def answer() -> None:
        connection.send(frames.subscribed(ident, subscribed.number))
        if not wish.group and connection.client is client and client.pusher is not None:
            client.pusher.begin(subscribed, retained)

    broker.store.after(answer)


def _serial(broker: "Broker", client: Client, wish: Subscription) -> int:
    """The serial of a subscription: of the one to the same filter for the same group, or a new one."""
    for serial, known in client.subscriptions.items():
        if (known.subscription.topic, known.subscription.group) == (wish.topic, wish.group):
            return serial
    if len(client.subscriptions) >= broker.config.clients.subscriptions:
        raise RefusedError(QUOTA_EXCEEDED, f"there are {len(client.subscriptions)} subscriptions already")
    return max(client.subscriptions, default=0) + 1


def pusher_of(broker: "Broker", client: Client) -> Pusher:
    """What a client's broadcast subscriptions go through."""
    if client.pusher is None:
        client.pusher = Pusher(broker, client)
    return client.pusher


def on_unsubscribe(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """UNSUBSCRIBE. What consumes from it is ended in good order. A group stays where it is."""
    client = connection.client
    assert client is not None
    subscribed = client.subscribed(decode_at(bytes(f.buf), f.at[0], f.end)[0])
    subscription = subscribed.subscription
    connection.check("UNSUBSCRIBE", subscription.topic)
    del client.subscriptions[subscription.serial]
    broker.subscribed -= cost(subscription)
    if client.kept:
        broker.store.sessions.unsubscribe(client.name, subscription.serial)
    consume.end_consumers(client, subscribed.number, 0)
    broker.calls.leave(client, subscribed)
    if client.pusher is not None and not subscription.group:
        client.pusher.end(subscribed)
    broker.store.after(partial(connection.send, frames.ack(ident)))


def restore(broker: "Broker", client: Client, subscriptions: dict[int, Subscription]) -> None:
    """Take in the subscriptions of a session that was kept."""
    for serial, subscription in subscriptions.items():
        wanted = Wanted(subscription.tags, subscription.condition)
        subscribed = Subscribed(subscription, wanted, client.number(serial))
        client.subscriptions[serial] = subscribed
        broker.subscribed += cost(subscription)
        if not subscription.group:
            pusher_of(broker, client).restore(subscribed)
    if client.pusher is not None:
        client.pusher.recall()
