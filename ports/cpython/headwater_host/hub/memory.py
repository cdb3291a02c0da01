"""What the hub holds for all connections together is bounded: when it is too much, who holds most is cut off.

That is what a connection has begun to send, what it has not read, what waits for it, and its will.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater_host.hub.connection import Connection


class Memory:
    """Of these connections, at most ``limit`` bytes; each has its ``weight``, as it was when it was last looked at."""

    def __init__(self, connections: "Collection[Connection]", limit: int):
        self._connections = connections
        self._limit = limit
        self.held = 0
        #: How many were cut off.
        self.shed = 0

    def weigh(self, connection: "Connection") -> None:
        """A connection may hold more, or less."""
        self._look(connection)
        if self.held > self._limit:
            self._relieve()

    def forget(self, connection: "Connection") -> None:
        """A connection is gone."""
        self.held -= connection.weight
        connection.weight = 0

    def _look(self, connection: "Connection") -> None:
        weight = connection.load()
        self.held += weight - connection.weight
        connection.weight = weight

    def _relieve(self) -> None:
        # What others have read meanwhile counts no more.
        for connection in self._connections:
            if connection.weight:
                self._look(connection)
        while self.held > self._limit:
            heaviest = max(self._connections, key=lambda connection: connection.weight)
            self.forget(heaviest)
            self.shed += 1
            heaviest.shed()
