"""Observers of a hub; answers that wait for storage and observer."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headwater_host.hub.contracts import Answering


class Origin(Protocol):
    """The connection that something came from."""

    address: tuple[str, int] | None


class Observer(Protocol):
    """The hub's events for a program that embeds it. All methods are called in the event loop's thread, in order."""

    def published(self, connection: Origin | None, frame: bytes) -> None:
        """Take a PUBLISH that the hub has accepted, new or duplicate. ``connection`` is None for a will, whose frame
        the hub has built."""

    def registered(self, connection: Origin, frame: bytes) -> None:
        """Take a REGISTER that the hub has accepted, whether its topic is new or not."""

    def broke(self, connection: Origin, data: bytes) -> None:
        """Take a malformed frame of a client that was accepted; ``data`` is all that is there from its first byte."""

    def failing(self) -> str:
        """Return why the observer cannot store anything at present, or ""."""

    def behind(self, done: Callable[[], None]) -> Callable[[], None]:
        """Return what the hub calls instead of ``done``, an answer. It calls ``done`` once everything observed so far
        is stored, in the order of the calls."""


class Waiting(Protocol):
    """A connection, as far as its answers wait for a disk."""

    #: The last change whose answer waits for the storage, and the last one that waits for the observer as well.
    asked: int
    observed: int

    def send(self, data: bytes) -> None:
        """Send a frame."""


class Durable:
    """Sends answers once everything so far is in the storage and, if there is an observer, with the observer."""

    def __init__(self, store: Answering, observer: Observer | None):
        self._store = store
        self._observer = observer
        #: The observer has everything up to this change.
        self._observed = 0

    def after(self, done: Callable[[], None]) -> None:
        """Call ``done`` once everything so far is stored and observed."""
        if self._observer is not None:
            done = self._observer.behind(done)
        self._store.after(done)

    def answer(self, connection: Waiting, data: bytes) -> None:
        """Send a frame as ``after`` would, joined with other answers that wait for the same commit."""
        if self._observer is None:
            self._store.answer(connection.send, data)
        else:
            connection.observed = self._store.seq
            self._store.after(self._observer.behind(partial(self._kept, connection, data, self._store.seq)))

    def _kept(self, connection: Waiting, data: bytes, seq: int) -> None:
        self._observed = seq
        connection.send(data)

    def failure(self) -> str:
        """Return why nothing can be stored at present, or ""."""
        if self._store.error is not None:
            return str(self._store.error)
        return self._observer.failing() if self._observer is not None else ""

    def keeps_waiting(self, connection: Waiting) -> bool:
        """Return whether an answer for this connection is still waiting."""
        return connection.asked > self._store.committed or connection.observed > self._observed
