"""What the hub answers itself: ``$hub/topics``, which topics there are (docs/protocols/fmq.md, section 4)."""

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from headwater_host.fmq.values import MalformedValueError, decode_at, encode
from headwater_host.hub import frames
from headwater_host.hub.access import covers
from headwater_host.hub.errors import PAYLOAD_FORMAT_INVALID, RefusedError
from headwater_host.hub.topics import check_filter

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker
    from headwater_host.hub.connection import Connection

#: Topics that are looked at for one answer.
PAGE = 1000


class Listing:
    """The names of all topics, sorted, so that a page of them costs what is on it."""

    #: What is called for it.
    topics = ("$hub/topics",)

    def __init__(self, broker: "Broker"):
        self._broker = broker
        self._names = sorted(broker.store.topics)

    def add(self, name: str) -> None:
        """A topic is there, as it may have been before."""
        at = bisect_left(self._names, name)
        if self._names[at : at + 1] != [name]:
            self._names.insert(at, name)

    def remove(self, name: str) -> None:
        """It is not there any more, if it was."""
        at = bisect_left(self._names, name)
        if self._names[at : at + 1] == [name]:
            del self._names[at]

    def ask(self, connection: "Connection", ident: bytes, arguments: bytes) -> None:
        """Answer a call with a part of the topics that its user may subscribe to. Raises RefusedError."""
        pattern, after = _read(arguments)
        # The next request is for the next turn: others are not to wait for all of them.
        connection.hold()
        self._look(connection, ident, pattern, after or "")

    def _look(self, connection: "Connection", ident: bytes, pattern: str | None, after: str) -> None:
        if connection.closed is not None:
            return
        begin = bisect_right(self._names, after)
        names = self._names[begin : begin + PAGE]
        more = begin + PAGE < len(self._names)
        allowed = [name for name in names if connection.may("SUBSCRIBE", name)]
        if more and not allowed:
            # There is no name to go on behind that its user may see.
            self._broker.loop.call_soon(self._look, connection, ident, pattern, names[-1])
            return
        topics = self._broker.store.topics
        found = [topics[name] for name in allowed if pattern is None or covers(pattern, name)]
        rows = [
            {"topic": t.name, "queues": len(t.queues), "messages": t.count, "bytes": t.bytes} for t in found
        ]
        answer = encode({"topics": rows, "after": allowed[-1] if more else None})
        connection.send(frames.response(self._broker.voice.ident(), ident, frames.message(None, (), answer)))
        self._broker.loop.call_soon(connection.release)


def _read(arguments: bytes) -> tuple[str | None, str | None]:
    """The filter, and the name behind which the page begins; None for all, and for the first."""
    given: list[Any] = []
    at = 0
    try:
        while at < len(arguments):
            value, at = decode_at(arguments, at, len(arguments))
            given.append(value)
    except MalformedValueError as error:
        raise RefusedError(PAYLOAD_FORMAT_INVALID, str(error)) from None
    pattern, after = [*given, None, None][:2]
    if len(given) > 2 or not all(value is None or isinstance(value, str) for value in given):
        raise RefusedError(
            PAYLOAD_FORMAT_INVALID, "the arguments are a filter, and the topic to go on behind"
        )
    return check_filter(pattern) if pattern else None, after
