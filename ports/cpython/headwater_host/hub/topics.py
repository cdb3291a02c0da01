"""Topic names and filters (FMQ, section 4; MQTT 5.0, 4.7), and indexes that find filters by topic and topics by filter.

Filters without wildcards are found by their text. The others form a tree of levels, and a topic visits only the
branches that it can match. So the time of a search depends on what is found, the topic's levels and the use of ``+``,
not on the number of subscriptions.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from headwater.mqtt import spec5
from headwater_host.errors import ArgumentError
from headwater_host.hub.errors import RefusedError
from headwater_host.topics import filter_bytes, topic_bytes

#: Levels of the longest topic or filter. The size of a tree depends on it.
MOST_LEVELS = 64

T = TypeVar("T")


def check_topic(topic: str) -> str:
    """Return a topic name, checked. Raises RefusedError."""
    try:
        topic_bytes(topic)
    except ArgumentError as error:
        raise RefusedError(spec5.TOPIC_NAME_INVALID, str(error)) from None
    return _bounded(topic, spec5.TOPIC_NAME_INVALID)


def check_filter(pattern: str) -> str:
    """Return a topic filter, checked. Raises RefusedError."""
    try:
        filter_bytes(pattern)
        if "\0" in pattern:
            raise ArgumentError(f"{pattern!r} is not a topic filter")
    except ArgumentError as error:
        raise RefusedError(spec5.TOPIC_FILTER_INVALID, str(error)) from None
    return _bounded(pattern, spec5.TOPIC_FILTER_INVALID)


def _bounded(text: str, reason: int) -> str:
    if text.count("/") >= MOST_LEVELS:
        raise RefusedError(reason, f"a topic has at most {MOST_LEVELS} levels")
    return text


def is_literal(pattern: str) -> bool:
    """Return whether a filter has no wildcards."""
    return "+" not in pattern and "#" not in pattern


class _Node(Generic[T]):
    """A level of a tree: the levels below it, and the values here."""

    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.here: dict[Hashable, T] = {}


class _Tree(Generic[T]):
    """Values by level."""

    def __init__(self) -> None:
        self.root: _Node[T] = _Node()
        self.nodes = 0

    def more(self, levels: list[str]) -> int:
        """Return how many levels would be added."""
        node = self.root
        for n, level in enumerate(levels):
            below = node.below.get(level)
            if below is None:
                return len(levels) - n
            node = below
        return 0

    def at(self, levels: list[str]) -> dict[Hashable, T]:
        """Return the values at these levels, which are added if they do not exist."""
        node = self.root
        for level in levels:
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _Node()
                self.nodes += 1
            node = below
        return node.here

    def remove(self, levels: list[str], key: Hashable) -> bool:
        path = [self.root]
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return False
            path.append(below)
        if key not in path[-1].here:
            return False
        del path[-1].here[key]
        for level, node, parent in zip(reversed(levels), reversed(path), reversed(path[:-1]), strict=False):
            if node.here or node.below:
                break
            del parent.below[level]
            self.nodes -= 1
        return True


class Subscriptions(Generic[T]):
    """Values that are subscribed to filters, found by topic. The caller bounds their number."""

    def __init__(self) -> None:
        self._count = 0
        self._literal: dict[str, dict[Hashable, T]] = {}
        self._tree: _Tree[T] = _Tree()

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, key: Hashable, value: T) -> None:
        """Subscribe a value to a well-formed filter, instead of an earlier one with the same ``key``."""
        if is_literal(pattern):
            here = self._literal.setdefault(pattern, {})
        else:
            here = self._tree.at(pattern.split("/"))
        self._count += key not in here
        here[key] = value

    def remove(self, pattern: str, key: Hashable) -> bool:
        """Unsubscribe a key; return whether it was subscribed."""
        if is_literal(pattern):
            known = self._literal.get(pattern, {})
            gone = key in known
            if gone:
                del known[key]
                if not known:
                    del self._literal[pattern]
        else:
            gone = self._tree.remove(pattern.split("/"), key)
        self._count -= gone
        return gone

    def match(self, topic: str) -> list[T]:
        """Return the values for a topic, once for each filter that matches."""
        found = list(self._literal.get(topic, {}).values())
        root = self._tree.root
        if not root.below:
            return found
        levels = topic.split("/")
        nodes = [root]
        for n, level in enumerate(levels):
            # A leading wildcard does not match topics that begin with $ (4.7.2).
            wild = n > 0 or not topic.startswith("$")
            further = []
            for node in nodes:
                below = node.below
                if wild and "#" in below:
                    found += below["#"].here.values()
                if level in below:
                    further.append(below[level])
                if wild and "+" in below:
                    further.append(below["+"])
            if not further:
                return found
            nodes = further
        for node in nodes:
            found += node.here.values()
            # "a/#" matches "a" (4.7.1.2).
            if "#" in node.below:
                found += node.below["#"].here.values()
        return found


class Names:
    """Topics, found by filter: at most ``limit``, with ``levels`` levels and ``characters`` in all."""

    def __init__(self, limit: int = 1_000_000, levels: int = 1_000_000, characters: int = 64 << 20):
        self._limit = limit
        self._characters = characters
        self._used = 0
        self._names: set[str] = set()
        self._levels = levels
        self._tree: _Tree[str] = _Tree()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, topic: str, *, anyway: bool = False) -> None:
        """Add a well-formed topic. Raises RefusedError when there are too many, unless ``anyway``."""
        if topic in self._names:
            return
        if len(self._names) >= self._limit and not anyway:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"there are {len(self._names)} topics already")
        if self._used + len(topic) > self._characters and not anyway:
            raise RefusedError(
                spec5.QUOTA_EXCEEDED, f"the names of topics have {self._used} characters already"
            )
        levels = topic.split("/")
        if self._tree.nodes + self._tree.more(levels) > self._levels and not anyway:
            raise RefusedError(spec5.QUOTA_EXCEEDED, f"there are {self._tree.nodes} levels of topics already")
        self._tree.at(levels)[None] = topic
        self._names.add(topic)
        self._used += len(topic)

    def remove(self, topic: str) -> None:
        """Remove a topic, if it is there."""
        if topic in self._names:
            self._names.remove(topic)
            self._used -= len(topic)
            self._tree.remove(topic.split("/"), None)

    def match(self, pattern: str) -> Iterator[str]:
        """Yield the topics that a well-formed filter matches. Topics may be added and removed meanwhile."""
        root, levels = self._tree.root, pattern.split("/")
        waiting = [(root, 0)]
        while waiting:
            node, n = waiting.pop()
            level = levels[n] if n < len(levels) else None
            # "a/#" matches "a" (4.7.1.2).
            if level in (None, "#"):
                yield from list(node.here.values())
            if level in ("+", "#"):
                # A leading wildcard does not match topics that begin with $ (4.7.2).
                found = [below for name, below in node.below.items() if node is not root or name[:1] != "$"]
                waiting += [(below, n + (level == "+")) for below in reversed(found)]
            elif level is not None and level in node.below:
                waiting.append((node.below[level], n + 1))
