"""A hub of FMQ in this process as a source: what its clients publish goes into the log before it is answered."""

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from headwater_host.capture.format import FMQ
from headwater_host.gateway.recording import Landing
from headwater_host.gateway.source import GARBAGE, Source
from headwater_host.hub.config import HubConfig
from headwater_host.hub.connection import Connection
from headwater_host.hub.observer import Origin
from headwater_host.hub.service import Hub


class _Tap(NamedTuple):
    """Where a connection's frames count, and what the log says of them."""

    source: Source
    connection: int
    peer: str


class HubSource(Source):
    """The hub, and who sees what passes through it (``headwater_host.hub.observer``).

    A REGISTER, or a message at QoS 1 or 2, is answered when both the hub's storage and the log have it on disk. Both
    are landed whenever the hub takes them, also when it knows them: it may have been killed before the log had.
    """

    def __init__(self, landing: Landing, config: HubConfig):
        super().__init__(landing, "fmq:hub")
        self._config = config
        self.hub = Hub(config, self)
        self._taps: WeakKeyDictionary[Origin, _Tap] = WeakKeyDictionary()
        self._stopping = False
        # What the hub says itself: wills.
        self._own = _Tap(self, landing.new_connection(), self.peer)
        landing.on_gate(self._on_gate)

    async def start(self) -> None:
        """Open the storage and listen. Raises StorageError, and OSError for a listener."""
        await self.hub.start()
        self._on_gate(self.landing.is_open)
        for host, port in self.hub.addresses:
            self.say("listening", f"listening on {host}, port {port}; storage in {self._config.storage}")

    @property
    def paused(self) -> bool:
        """Whether nobody is let in."""
        return self.hub.broker.paused

    def connect(self, board: Source) -> Connection:
        """A connection for a board that comes another way; what it brings counts with ``board``."""
        connection = self.hub.broker.connect()
        self._taps[connection] = _Tap(board, board.connection, board.peer)
        return connection

    def _tap(self, connection: Origin | None) -> _Tap:
        if connection is None:
            return self._own
        tap = self._taps.get(connection)
        if tap is None:
            assert connection.address is not None
            host, port = connection.address
            self.began()
            where = f"[{host}]" if ":" in host else host
            tap = self._taps[connection] = _Tap(self, self.connection, f"fmq:{where}:{port}")
        return tap

    # -- what the hub tells ------------------------------------------------------------------------------------------

    def published(self, connection: Origin | None, frame: bytes) -> None:
        """Land a message."""
        source, number, peer = self._tap(connection)
        source.count(frame[0] >> 1 & 3, len(frame))
        self.landing.take(number, peer, frame, 0, FMQ)

    def registered(self, connection: Origin, frame: bytes) -> None:
        """Land the name of a topic, which its messages may give by hash."""
        source, number, peer = self._tap(connection)
        source.bytes += len(frame)
        self.landing.take(number, peer, frame, 0, FMQ)

    def broke(self, connection: Origin, data: bytes) -> None:
        """Keep what broke a connection."""
        source, number, peer = self._tap(connection)
        source.malformed += 1
        self.landing.take(number, peer, data[:GARBAGE], 0, FMQ)

    def failing(self) -> str:
        """Why the log cannot be written, without its path: strangers are told."""
        error = self.landing.error
        return os.strerror(error.errno) if error is not None and error.errno else str(error or "")

    def behind(self, done: Callable[[], None]) -> Callable[[], None]:
        """``done``, once everything that was landed is on disk."""
        return partial(self.landing.when_durable, self.landing.records, done)

    # -- the disk, and the end ---------------------------------------------------------------------------------------

    def _on_gate(self, is_open: bool) -> None:
        self.hub.broker.pause(self._stopping or not is_open)

    def look(self) -> None:
        """Notice that the storage cannot be written, or can be again; a few times a second is enough."""
        error = self.hub.broker.store.error
        if error is not None:
            self.say(
                "failing", f"the hub's storage: nothing is acknowledged: {error}; trying again", logging.ERROR
            )
        elif self.state == "failing":
            self.say("listening", "the hub's storage can be written again")

    def stop_reading(self) -> None:
        """Take nothing more, whatever the gate says."""
        self._stopping = True
        self._on_gate(False)

    async def stop(self) -> None:
        """Say goodbye to everybody and close the storage. Raises StorageError when that is not up to date."""
        await self.hub.stop()

    def status(self) -> dict[str, Any]:
        """As of a source, with how many are connected, and the storage."""
        broker = self.hub.broker
        store = broker.store
        storage = {"waiting": store.waiting, "error": str(store.error) if store.error else None}
        return super().status() | {"clients": len(broker.connections), "storage": storage}
