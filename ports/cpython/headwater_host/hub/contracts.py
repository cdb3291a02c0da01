"""Protocols of the parts of the storage that the hub's handlers use, each as narrow as its handler.

``storage.Store`` has all of them. ``Broker`` puts the handlers together.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from headwater_host.hub.storage import Delivery, Limits, Message, Sessions
from headwater_host.hub.storage.topic import Topics
from headwater_host.hub.topics import Names
from headwater_host.lifetime import AgeClock


class Committing(Protocol):
    """The last change, and the commits."""

    @property
    def seq(self) -> int:
        """The sequence number of the last change."""

    def after(self, done: Callable[[], None]) -> None:
        """Call ``done`` when every change so far is committed."""


class Answering(Committing, Protocol):
    """Answers that wait for a commit, and why there is none."""

    @property
    def committed(self) -> int:
        """The sequence number up to which everything may be answered and shown."""

    @property
    def error(self) -> Exception | None:
        """Why nothing can be written at present."""

    def answer(self, send: Callable[[bytes], None], data: bytes) -> None:
        """Send this when every change so far is committed."""


class Aging(Protocol):
    """The age time of messages."""

    @property
    def age(self) -> AgeClock:
        """The clock of the messages' age."""


class Topical(Protocol):
    """The topics."""

    @property
    def topics(self) -> Topics:
        """All topics by name."""


class Registering(Topical, Protocol):
    """Topics that come and go."""

    def register(self, name: str, queues: int = 1) -> bool:
        """Create a topic with this number of queues, or let it grow."""

    def unregister(self, name: str) -> bool:
        """Delete a topic and everything in it."""


class Pacing(Protocol):
    """Work that makes many changes, spread over transactions."""

    @property
    def is_crowded(self) -> bool:
        """True if such work is to wait for ``next_turn``."""

    def next_turn(self, done: Callable[[], None]) -> None:
        """Call ``done`` when another transaction collects changes."""


class Attaching(Topical, Pacing, Protocol):
    """Groups that begin and cease to consume topics."""

    @property
    def names(self) -> Names:
        """The topics, to be found by filter."""

    def attach(self, group: str, name: str, *, from_now: bool = False) -> bool:
        """Let a group consume a topic, from its oldest message or from now."""

    def detach(self, group: str, name: str) -> bool:
        """Forget where a group is in a topic."""


class Delivering(Attaching, Aging, Protocol):
    """Messages for groups."""

    def take(self, group: str, topic: str, queue: int, limit: int) -> list[Delivery]:
        """Return the next messages for a group."""

    def ack(self, group: str, name: str, queue: int, seq: int) -> bool:
        """Acknowledge a message."""

    def give_back(
        self, group: str, topic: str, queue: int, seqs: Iterable[int], *, time_ns: int
    ) -> list[int]:
        """Have messages redelivered; return those that were moved to the dead letters."""

    def rewind(self, group: str, name: str, queue: int) -> None:
        """Have everything unacknowledged redelivered, without counting a try."""


class Storing(Aging, Protocol):
    """Messages that are published."""

    def publish(
        self,
        topic: str,
        ident: bytes,
        process: int,
        payload: bytes,
        *,
        tags: tuple[str, ...] = (),
        qos: int = 0,
        retain: bool = False,
        time_ns: int,
    ) -> int:
        """Store a message; return its sequence number, or 0 for a duplicate."""


class Receiving(Storing, Topical, Committing, Protocol):
    """Messages that clients publish, with the share of each client."""

    @property
    def limits(self) -> Limits:
        """The limits of the storage."""

    @property
    def waiting(self) -> int:
        """Bytes of messages and changes that are not committed yet."""

    def share(self, sender: object, size: int) -> bool:
        """Count a message; return whether its sender has had its share of this transaction."""

    def next_turn(self, done: Callable[[], None]) -> None:
        """Call ``done`` when another transaction collects changes."""


class Remembering(Protocol):
    """Sessions and wills."""

    @property
    def sessions(self) -> Sessions:
        """Process numbers, sessions, QoS 2 handshakes, wills."""


class Subscribing(Remembering, Committing, Protocol):
    """Subscriptions that are stored."""


class Willing(Remembering, Storing, Protocol):
    """Wills, which are published."""


class Numbering(Remembering, Protocol):
    """Numbers that no other start of the hub has."""

    def start(self) -> int:
        """Return a number that no other start of a hub with this storage has."""


class Broadcasting(Attaching, Remembering, Protocol):
    """Retained messages, and the sessions of subscribers."""

    @property
    def seq(self) -> int:
        """The sequence number of the last change."""

    @property
    def committed(self) -> int:
        """The sequence number up to which everything may be answered and shown."""

    @property
    def retained(self) -> dict[str, Message]:
        """The retained messages by topic."""

    @property
    def retained_bytes(self) -> int:
        """Bytes of the retained messages."""
