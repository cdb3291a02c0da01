"""Topic names and filters."""

from functools import lru_cache
from typing import TYPE_CHECKING

from headwater.mqtt import packets, topics
from headwater_host.errors import ArgumentError

if TYPE_CHECKING:
    from headwater.types import Bytes


class Wildcard(str):
    """A well-formed topic filter (MQTT 3.1.1, 4.7). Raises ArgumentError otherwise."""

    __slots__ = ()

    def __new__(cls, value: str) -> "Wildcard":
        """Validate the filter."""
        if isinstance(value, Wildcard):
            return value
        filter_bytes(value)
        return super().__new__(cls, value)

    @property
    def value(self) -> str:
        """The filter as a string."""
        return str(self)


class Topic(str):
    """A topic name, as a string with ``matches``."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The name as a string."""
        return str(self)

    def matches(self, wildcard: str) -> bool:
        """Return whether the filter ``wildcard`` matches this topic (MQTT 3.1.1, 4.7.2 and 4.7.3).

        ``$share/group/filter`` counts as ``filter``. Raises ArgumentError for a malformed filter.
        """
        name = self.encode()
        return topics.matches(_pattern(wildcard), name, 0, len(name))


@lru_cache(maxsize=1024)
def _pattern(wildcard: str) -> bytes:
    pattern = filter_bytes(wildcard)
    if pattern.startswith(b"$share/"):
        _, _, rest = pattern.split(b"/", 1)[1].partition(b"/")
        return rest or pattern
    return pattern


def filter_bytes(value: str) -> bytes:
    """Return a topic filter in UTF-8. Raises ArgumentError if it is malformed."""
    pattern = _encode(value, "topic filter")
    if len(pattern) > 65535 or packets.check_filter(pattern, 0, len(pattern)):
        raise ArgumentError(f"{value!r} is not a topic filter")
    return pattern


def topic_bytes(value: str) -> bytes:
    """Return a topic name in UTF-8. Raises ArgumentError if it is empty, too long, or contains a wildcard or U+0000."""
    try:
        return _names(value) if len(value) <= _REMEMBERED else _name(value)
    except TypeError as error:
        raise ArgumentError(f"a topic is text, not {type(value).__name__}") from error


def _name(value: str) -> bytes:
    name = _encode(value, "topic")
    if len(name) > 65535 or check_name(name, 0, len(name)):
        raise ArgumentError(f"{value!r} is not a topic: it is empty, too long, or has a wildcard or U+0000")
    return name


def _encode(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"the {what} {value!r} cannot be written in UTF-8") from error
    except AttributeError as error:
        raise ArgumentError(f"a {what} is text, not {type(value).__name__}") from error


def _check(name: bytes) -> int:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return packets.BAD_UTF8
    if "\0" in text:
        return packets.BAD_UTF8
    return packets.BAD_TOPIC if not text or "#" in text or "+" in text else 0


def _topic(name: bytes) -> Topic:
    return Topic(name, "utf-8")


# The same names recur. Long ones are not cached, so that the caches stay small.
_REMEMBERED = 256
_checked = lru_cache(maxsize=4096)(_check)
_topics = lru_cache(maxsize=4096)(_topic)
_names = lru_cache(maxsize=4096)(_name)


def check_name(buf: "Bytes", at: int, end: int) -> int:
    """Return what the core's check of a topic name returns, without a loop in Python."""
    name = bytes(buf[at:end])
    return _checked(name) if end - at <= _REMEMBERED else _check(name)


def topic_of(name: bytes) -> Topic:
    """Return the topic of a validated message, from a cache."""
    return _topics(name) if len(name) <= _REMEMBERED else _topic(name)
