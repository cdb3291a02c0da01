"""Which topics there are: registered by request or automatically, found by name or by hash."""

from collections.abc import Callable

from headwater.mqtt import spec5
from headwater_host.fmq.hashes import hash_of
from headwater_host.hub.contracts import Registering
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.topics import check_topic, is_literal

#: Topics that begin with this are the hub's.
OWN = "$"


def check_ours(topic: str) -> None:
    """Raise RefusedError when clients may not register, or publish to, a topic of this name."""
    check_topic(topic)
    if topic.startswith(OWN):
        raise RefusedError(spec5.TOPIC_NAME_INVALID, "topics that begin with $ are the hub's")


class Registry:
    """The topics of the storage. ``made`` and ``gone`` are called when a topic is made or grows, and before it is
    deleted."""

    def __init__(
        self, store: Registering, *, automatic: bool, made: Callable[[str], None], gone: Callable[[str], None]
    ):
        self._store = store
        self._automatic = automatic
        self._made = made
        self._gone = gone
        #: By hash, made when the first hash is used.
        self._hashes: dict[int, str] | None = None
        #: Those that ``made`` was called for, and those that were there before.
        self.known = set(store.topics)

    def __contains__(self, name: str) -> bool:
        return name in self._store.topics

    def name(self, topic: str | int) -> str:
        """Return a topic's name, given that or its hash. Raises RefusedError."""
        if isinstance(topic, str):
            return topic
        if self._hashes is None:
            self._hashes = {hash_of(name): name for name in self._store.topics}
        name = self._hashes.get(topic)
        if name is None:
            raise RefusedError(spec5.TOPIC_NAME_INVALID, "there is no topic with this hash")
        return name

    def require(self, name: str) -> None:
        """Register a topic that does not exist, if that is automatic. Raises RefusedError."""
        if name in self._store.topics:
            return
        if not self._automatic:
            raise RefusedError(spec5.TOPIC_NAME_INVALID, f"there is no topic {name!r}")
        self.register(name, 1)

    def require_named(self, pattern: str) -> None:
        """Require the topic that a filter without wildcards names, unless it is the hub's. Raises RefusedError."""
        if is_literal(pattern) and not pattern.startswith(OWN):
            self.require(pattern)

    def register(self, name: str, queues: int) -> None:
        """Register a topic, or let it grow to the given number of queues. Raises RefusedError."""
        if self._store.register(name, queues):
            self._added(name)

    def notice(self, name: str) -> None:
        """Add a topic that the storage has made itself, for dead letters."""
        if name not in self.known and name in self._store.topics:
            self._added(name)

    def _added(self, name: str) -> None:
        self.known.add(name)
        if self._hashes is not None:
            self._hashes[hash_of(name)] = name
        self._made(name)

    def unregister(self, name: str) -> None:
        """Delete a topic. Raises RefusedError when there is none."""
        if name not in self._store.topics:
            raise RefusedError(spec5.TOPIC_NAME_INVALID, f"there is no topic {name!r}")
        self._gone(name)
        self._store.unregister(name)
        self.known.discard(name)
        if self._hashes is not None:
            self._hashes.pop(hash_of(name), None)
