"""Which messages of its topics a subscription gets: those with its tags for which its condition is true."""

from collections.abc import Collection
from typing import Any

from headwater_host.fmq.kinds import Pairs
from headwater_host.fmq.values import MalformedValueError, decode
from headwater_host.hub.conditions import Condition
from headwater_host.hub.storage import Message


class _Keys:
    """The keys of the payload that was looked into last: one message is asked about by many."""

    def __init__(self) -> None:
        self._of: Message | None = None
        self._keys: dict[Any, Any] = {}

    def get(self, message: Message, name: str) -> object:
        if message is not self._of:
            self._of, self._keys = message, {}
            try:
                found = decode(message.payload)
            except MalformedValueError:
                found = None
            if isinstance(found, Pairs):
                # Some of its keys cannot be told apart by a dict; texts can.
                found = {key: value for key, value in found if isinstance(key, str)}
            if isinstance(found, dict):
                self._keys = found
        return self._keys.get(name)


_keys = _Keys()


class Wanted:
    """Called with a message, says whether it is one of them. Raises RefusedError for a condition that is none."""

    def __init__(self, tags: Collection[str], condition: str):
        self._tags = frozenset(tags)
        self._condition = Condition(condition) if condition else None

    def __call__(self, message: Message) -> bool:
        """Whether the subscription gets it."""
        if not self._tags.issubset(message.tags):
            return False
        condition = self._condition
        return condition is None or condition(
            message.topic, message.tags, lambda name: _keys.get(message, name)
        )
