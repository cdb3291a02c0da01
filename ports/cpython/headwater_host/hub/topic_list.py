"""$hub/topics: the hub's own remote procedure (docs/protocols/fmq.md, section 4)."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from headwater.mqtt import spec5
from headwater_host.fmq.values import MalformedValueError, decode_at, encode
from headwater_host.hub import frames
from headwater_host.hub.access import covers
from headwater_host.hub.connection import Connection
from headwater_host.hub.contracts import Topical
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.topics import check_filter

#: The topic that is called.
NAME = "$hub/topics"
#: Topics that are looked at for one answer.
PAGE = 1000


class TopicList:
    """The names of all topics, sorted, so that the cost of a page depends on the page only."""

    def __init__(self, store: Topical, loop: asyncio.AbstractEventLoop, make_id: Callable[[], bytes]):
        self._topics = store.topics
        self._loop = loop
        self._make_id = make_id
        self._names = sorted(store.topics)

    def add(self, name: str) -> None:
        """Add a topic, unless it is there."""
        at = bisect_left(self._names, name)
        if self._names[at : at + 1] != [name]:
            self._names.insert(at, name)

    def remove(self, name: str) -> None:
        """Remove a topic, if it is there."""
        at = bisect_left(self._names, name)
        if self._names[at : at + 1] == [name]:
            del self._names[at]

    def on_call(self, connection: Connection, ident: bytes, arguments: bytes) -> None:
        """Answer a call with a page of the topics that the caller may subscribe to. Raises RefusedError."""
        pattern, after = _read(arguments)
        # A client that reads page after page takes a turn for each.
        connection.hold()
        self._answer(connection, ident, pattern, after or "")

    def _answer(self, connection: Connection, ident: bytes, pattern: str | None, after: str) -> None:
        if connection.closed is not None:
            return
        begin = bisect_right(self._names, after)
        names = self._names[begin : begin + PAGE]
        more = begin + PAGE < len(self._names)
        allowed = [name for name in names if connection.may("SUBSCRIBE", name)]
        if more and not allowed:
            # The client could not name a topic to continue after: the hub looks at the next page.
            self._loop.call_soon(self._answer, connection, ident, pattern, names[-1])
            return
        found = [self._topics[name] for name in allowed if pattern is None or covers(pattern, name)]
        rows = [
            {"topic": t.name, "queues": len(t.queues), "messages": t.count, "bytes": t.bytes} for t in found
        ]
        answer = encode({"topics": rows, "after": allowed[-1] if more else None})
        connection.send(frames.response(self._make_id(), ident, frames.message(None, (), answer)))
        self._loop.call_soon(connection.release)


def _read(arguments: bytes) -> tuple[str | None, str | None]:
    """Return the filter, and the name that the page begins after; None: every topic, the first page."""
    given: list[Any] = []
    at = 0
    try:
        while at < len(arguments):
            value, at = decode_at(arguments, at, len(arguments))
            given.append(value)
    except MalformedValueError as error:
        raise RefusedError(spec5.PAYLOAD_FORMAT_INVALID, str(error)) from None
    pattern, after = [*given, None, None][:2]
    if len(given) > 2 or not all(value is None or isinstance(value, str) for value in given):
        raise RefusedError(
            spec5.PAYLOAD_FORMAT_INVALID, "the arguments are a filter, and the topic to continue after"
        )
    return check_filter(pattern) if pattern else None, after
