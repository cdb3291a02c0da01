"""Limit the memory held for connections. Above it the heaviest connection is closed.

A connection's load is the frame it has begun to send, what it has not read, what waits for it, and its will.
"""

from collections.abc import Collection
from typing import Protocol


class Weighed(Protocol):
    """A connection, as far as its memory is concerned."""

    #: Its load, in bytes, when it was last measured.
    weight: int

    def load(self) -> int:
        """Return the bytes that are held for it now."""

    def shed(self) -> None:
        """Close it, because the hub holds too much."""


class Memory:
    """Keeps the load of ``connections`` within ``limit`` bytes."""

    def __init__(self, connections: Collection[Weighed], limit: int):
        self._connections = connections
        self._limit = limit
        self.held = 0
        #: Connections that were closed so far.
        self.shed = 0

    def weigh(self, connection: Weighed) -> None:
        """Measure a connection, and close the heaviest ones while the sum is above the limit."""
        self._measure(connection)
        if self.held > self._limit:
            self._relieve()

    def forget(self, connection: Weighed) -> None:
        """Subtract a connection that is gone."""
        self.held -= connection.weight
        connection.weight = 0

    def _measure(self, connection: Weighed) -> None:
        weight = connection.load()
        self.held += weight - connection.weight
        connection.weight = weight

    def _relieve(self) -> None:
        # Some may have read since they were measured.
        for connection in self._connections:
            if connection.weight:
                self._measure(connection)
        while self.held > self._limit:
            heaviest = max(self._connections, key=lambda connection: connection.weight)
            self.forget(heaviest)
            self.shed += 1
            heaviest.shed()
