"""Clients that are connected or have a session."""

import base64
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from headwater.mqtt import spec5
from headwater_host.hub.conditions import Selection
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage import Sessions, Subscription


class Link(Protocol):
    """A client's connection, as the parts that serve the client see it."""

    #: True if AUTH has been answered.
    ready: bool

    @property
    def writable(self) -> bool:
        """True if it may be sent what can wait."""

    @property
    def unread(self) -> int:
        """Bytes that were written and that the client has not read."""

    def may(self, kind: str, topic: str) -> bool:
        """Return whether the rules allow a request of this type about a topic."""

    def send(self, data: bytes) -> None:
        """Send a frame."""

    def weigh(self) -> None:
        """Measure what is held for the client."""

    def close(self, reason: int = 0, text: str = "", ident: bytes = b"") -> None:
        """End the connection, with an ACK that has the reason."""


class Backlog(Protocol):
    """Something that waits in memory until a client reads."""

    waiting_bytes: int


class Will(NamedTuple):
    """Will message: published by the hub if the client disconnects unexpectedly."""

    topic: str
    qos: int
    retain: bool
    payload: bytes

    def kept(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return self._asdict() | {"payload": base64.b64encode(self.payload).decode()}

    @classmethod
    def restored(cls, kept: dict[str, Any]) -> "Will":
        """Return the will that ``kept`` was made from."""
        return cls(**kept | {"payload": base64.b64decode(kept["payload"])})


def cost(subscription: Subscription) -> int:
    """Estimate the bytes of memory of a subscription. A condition is many small functions, a level a table."""
    text = len(subscription.topic) + len(subscription.group) + 64 * len(subscription.condition)
    return (
        1000 + text + 400 * subscription.topic.count("/") + sum(100 + len(tag) for tag in subscription.tags)
    )


class Subscribed(NamedTuple):
    """A subscription in force. ``number`` is the client's name for it; it gets messages after the change ``since``."""

    subscription: Subscription
    selection: Selection
    number: int
    since: int = 0


class Client:
    """A client. Each connection without a client id is a client of its own."""

    def __init__(self, name: str, process: int, user: str | None, *, kept: bool):
        self.name = name
        self.process = process
        self.user = user
        #: True if its session outlives its connection.
        self.kept = kept
        #: True if it is gone for good, with its session.
        self.is_over = False
        self.connection: Link | None = None
        self.will: Will | None = None
        #: By serial.
        self.subscriptions: dict[int, Subscribed] = {}
        #: What waits for it, for each part of the hub that has something.
        self.backlogs: list[Backlog] = []

    def waiting(self) -> int:
        """Return the bytes held for it, without what its connection holds."""
        held = sum(backlog.waiting_bytes for backlog in self.backlogs)
        return held + len(self.will.payload) if self.will is not None else held

    def number(self, serial: int) -> int:
        """Return the number that the client knows a subscription by."""
        return self.process << 32 | serial

    def subscribed(self, number: int) -> Subscribed:
        """Return a subscription of this client. Raises RefusedError."""
        found = self.subscriptions.get(number & 0xFFFFFFFF)
        if found is None or found.number != number:
            raise RefusedError(spec5.NO_SUBSCRIPTION_EXISTED, "there is no such subscription")
        return found


class Clients:
    """Clients by name, and when their sessions expire. ``ended`` is called with each client that is gone for good."""

    def __init__(
        self,
        sessions: Sessions,
        limits: ClientLimits,
        clock: Callable[[], float],
        ended: Callable[[Client], None],
    ):
        self._sessions = sessions
        self._limits = limits
        self._clock = clock
        self._ended = ended
        #: Those with a client id, connected or with a session that is kept.
        self.by_name: dict[str, Client] = {}
        #: Those that are not connected, and when their session expires; the first one next.
        self._away: dict[str, float] = {}

    def restore(self) -> Iterator[tuple[Client, dict[int, Subscription]]]:
        """Yield the clients whose sessions the storage holds, with their subscriptions."""
        for session in self._sessions.all():
            process = self._sessions.process(session.client)
            client = Client(session.client, process, session.about.get("user"), kept=True)
            self.by_name[client.name] = client
            yield client, session.subscriptions
            self.leave(client)

    def claim(self, name: str, user: str | None, *, clean: bool) -> tuple[Client, bool]:
        """Return the client that logs in, and whether its session is resumed. Raises RefusedError.

        A connection that has this client id is closed.
        """
        before = self.by_name.get(name)
        if before is not None:
            if before.user != user:
                raise RefusedError(spec5.CLIENT_IDENTIFIER_NOT_VALID, "this client id is another user's")
            if before.connection is not None:
                before.connection.close(spec5.SESSION_TAKEN_OVER, "another connection has this client id")
            before = self.by_name.get(name)
        if before is not None:
            if before.kept and not clean:
                self._away.pop(name, None)
                return before, True
            self.end(before)
        sessions, limit = self._sessions, self._limits.sessions
        if not clean and len(sessions) >= limit:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"there are {len(sessions)} sessions already")
        if name and name not in sessions.clients and len(sessions.clients) >= limit:
            self._forget_oldest()
        return Client(name, sessions.process(name), user, kept=not clean), False

    def _forget_oldest(self) -> None:
        """Forget the process number of the oldest client that has neither a connection nor a session."""
        sessions = self._sessions
        oldest = next((name for name in sessions.clients if name not in self.by_name), None)
        if oldest is None:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"there are {len(sessions.clients)} clients already")
        sessions.forget(oldest)

    def accept(self, client: Client) -> None:
        """Add a client whose AUTH is accepted."""
        if client.name:
            self.by_name[client.name] = client
        if client.kept:
            self._sessions.save(client.name, {"user": client.user})

    def leave(self, client: Client) -> None:
        """Keep the session of a client that is not connected any more, or end it."""
        if client.kept:
            self._away[client.name] = self._clock() + self._limits.session
        else:
            self.end(client)

    def end(self, client: Client) -> None:
        """Remove a client and its session."""
        if self.by_name.get(client.name) is client:
            del self.by_name[client.name]
        self._away.pop(client.name, None)
        if client.kept:
            self._sessions.end(client.name)
        client.is_over = True
        self._ended(client)

    def expire(self, now: float) -> None:
        """End sessions whose time is up."""
        while self._away and next(iter(self._away.values())) <= now:
            self.end(self.by_name[next(iter(self._away))])
