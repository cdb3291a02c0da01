"""What the hub knows of a client while it is connected, and, if its session is kept, while it is not."""

import base64
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater_host.hub.errors import NO_SUBSCRIPTION_EXISTED, RefusedError
from headwater_host.hub.storage import Subscription
from headwater_host.hub.wanted import Wanted

if TYPE_CHECKING:
    from headwater_host.hub.connection import Connection
    from headwater_host.hub.consume import Consumer
    from headwater_host.hub.groups import Lane
    from headwater_host.hub.pushing import Pusher
    from headwater_host.hub.rpc import Call, Responder


class Will(NamedTuple):
    """What is published when the client vanishes."""

    topic: str
    qos: int
    retain: bool
    payload: bytes

    def kept(self) -> dict[str, Any]:
        """As JSON holds it."""
        return self._asdict() | {"payload": base64.b64encode(self.payload).decode()}

    @classmethod
    def restored(cls, kept: dict[str, Any]) -> "Will":
        """What ``kept`` made of it."""
        return cls(**kept | {"payload": base64.b64decode(kept["payload"])})


def cost(subscription: Subscription) -> int:
    """Bytes that a subscription takes in memory, about: a condition is many small functions, a level a table."""
    text = len(subscription.topic) + len(subscription.group) + 64 * len(subscription.condition)
    return (
        1000 + text + 400 * subscription.topic.count("/") + sum(100 + len(tag) for tag in subscription.tags)
    )


class Subscribed(NamedTuple):
    """A subscription; ``number`` is what its client calls it. It is to what comes behind the change ``since``."""

    subscription: Subscription
    wanted: Wanted
    number: int
    since: int = 0


@dataclass(eq=False)
class Client:
    """A client; one without a name is as many as it has connections."""

    name: str
    process: int
    user: str | None
    #: Whether its session outlives its connection.
    kept: bool
    connection: "Connection | None" = None
    will: Will | None = None
    #: By serial.
    subscriptions: dict[int, Subscribed] = field(default_factory=dict)
    #: By the id of their CONSUME.
    consumers: "dict[bytes, Consumer]" = field(default_factory=dict)
    #: What was handed to its consumers and is not acknowledged, by message id: it may be in several groups.
    open: "dict[bytes, deque[tuple[Lane, int]]]" = field(default_factory=dict)
    pusher: "Pusher | None" = None
    #: Its own calls, by their ids; and what it is to those of others.
    calls: "dict[bytes, Call]" = field(default_factory=dict)
    responder: "Responder | None" = None

    def waiting(self) -> int:
        """Bytes that are held for it beside what its connection holds."""
        held = len(self.will.payload) if self.will is not None else 0
        if self.pusher is not None:
            held += self.pusher.waiting_bytes
        return held + self.responder.waiting_bytes if self.responder is not None else held

    def number(self, serial: int) -> int:
        """What the client calls a subscription."""
        return self.process << 32 | serial

    def subscribed(self, number: int) -> Subscribed:
        """A subscription of this client. Raises RefusedError."""
        found = self.subscriptions.get(number & 0xFFFFFFFF)
        if found is None or found.number != number:
            raise RefusedError(NO_SUBSCRIPTION_EXISTED, "there is no such subscription")
        return found
