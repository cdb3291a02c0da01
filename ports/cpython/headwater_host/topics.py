"""Topic names and filters as text, and the check of a topic at C speed."""

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
        """Check once: an instance is known to be right."""
        if isinstance(value, Wildcard):
            return value
        filter_bytes(value)
        return super().__new__(cls, value)

    @property
    def value(self) -> str:
        """The filter as text."""
        return str(self)


class Topic(str):
    """A topic name: a string that also knows which filters it matches."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The name as text."""
        return str(self)

    def matches(self, wildcard: str) -> bool:
        """Whether the filter ``wildcard`` takes this topic (MQTT 3.1.1, 4.7.2 and 4.7.3).

        ``$share/group/filter`` is read as ``filter``. Raises ArgumentError when it is not a filter.
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
    """A topic filter in UTF-8. Raises ArgumentError when it is not one."""
    pattern = _encode(value, "topic filter")
    if len(pattern) > 65535 or packets.check_filter(pattern, 0, len(pattern)):
        raise ArgumentError(f"{value!r} is not a topic filter")
    return pattern


def topic_bytes(value: str) -> bytes:
    """A topic name in UTF-8. Raises ArgumentError when it is not one: empty, too long, a wildcard, U+0000."""
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


# Names come again and again; long ones are not remembered, so that what is remembered stays small.
_REMEMBERED = 256
_checked = lru_cache(maxsize=4096)(_check)
_topics = lru_cache(maxsize=4096)(_topic)
_names = lru_cache(maxsize=4096)(_name)


def check_name(buf: "Bytes", at: int, end: int) -> int:
    """What ``headwater.mqtt.topics.check_name`` answers, without a loop in Python."""
    name = bytes(buf[at:end])
    return _checked(name) if end - at <= _REMEMBERED else _check(name)


def topic_of(name: bytes) -> Topic:
    """The topic of a message that was checked: the same object for the same bytes, as long as it is remembered."""
    return _topics(name) if len(name) <= _REMEMBERED else _topic(name)
