"""Who of those that are connected has subscribed to which topics without a group."""

from headwater_host.hub.clients import Client, Subscribed
from headwater_host.hub.storage import Message
from headwater_host.hub.topics import Subscriptions


class Broadcast:
    """The broadcast subscriptions of clients that are not kept, to be found by topic."""

    def __init__(self) -> None:
        self._index: Subscriptions[tuple[Client, Subscribed]] = Subscriptions()

    def add(self, client: Client, subscribed: Subscribed) -> None:
        """Have a subscription, in the place of what the client had subscribed with the same filter."""
        self._index.add(subscribed.subscription.topic, client, (client, subscribed))

    def remove(self, client: Client, subscribed: Subscribed) -> None:
        """Forget it, whether it was there or not."""
        self._index.remove(subscribed.subscription.topic, client)

    def stored(self, messages: list[Message]) -> None:
        """Messages are on the disk: who has subscribed gets them at once."""
        if not len(self._index):
            return
        for message in messages:
            told: set[Client] = set()
            for client, subscribed in self._index.match(message.topic):
                if client in told or client.pusher is None:
                    continue
                if message.seq > subscribed.since and subscribed.wanted(message):
                    told.add(client)
                    client.pusher.put(message)
