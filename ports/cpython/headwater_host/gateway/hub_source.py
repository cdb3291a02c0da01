"""The built-in FMQ hub as a source: its clients' messages are recorded before they are acknowledged."""

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from headwater_host.capture.format import FMQ
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.source import GARBAGE, Source
from headwater_host.hub.config import HubConfig
from headwater_host.hub.connection import Connection
from headwater_host.hub.observer import Origin
from headwater_host.hub.service import Hub


class _Tap(NamedTuple):
    """The source that counts a connection's frames, and their connection id and peer in the log."""

    source: Source
    connection: int
    peer: str


class HubSource(Source):
    """Runs the hub and observes it (``headwater_host.hub.observer``).

    REGISTER, and PUBLISH at QoS 1 or 2, are acknowledged when both the hub's storage and the log have them on disk.
    Duplicates that the hub accepts are recorded as well: it may have been killed before the log had the first one.
    """

    def __init__(self, recorder: Recorder, config: HubConfig):
        super().__init__(recorder, "fmq:hub")
        self._config = config
        self.hub = Hub(config, self)
        self._taps: WeakKeyDictionary[Origin, _Tap] = WeakKeyDictionary()
        self._stopping = False
        # For messages of the hub itself: wills.
        self._own = _Tap(self, recorder.new_connection(), self.peer)

    async def start(self) -> None:
        """Open the storage and listen. Raises StorageError, and OSError for a listener."""
        await self.hub.start()
        self.recorder.on_gate(self._on_gate)
        self._on_gate(self.recorder.is_open)
        for host, port in self.hub.addresses:
            self.report("listening", f"listening on {host}, port {port}; storage in {self._config.storage}")

    @property
    def paused(self) -> bool:
        """True if the hub accepts no connections."""
        return self.hub.broker.paused

    def connect(self, board: Source) -> Connection:
        """Return a hub connection for a serial board; its frames count for ``board``."""
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
            self.begin_connection()
            where = f"[{host}]" if ":" in host else host
            tap = self._taps[connection] = _Tap(self, self.connection, f"fmq:{where}:{port}")
        return tap

    # -- observer of the hub ------------------------------------------------------------------------------------------

    def published(self, connection: Origin | None, frame: bytes) -> None:
        """Record a message."""
        source, number, peer = self._tap(connection)
        source.count(frame[0] >> 1 & 3, len(frame))
        self.recorder.record(number, peer, frame, 0, FMQ)

    def registered(self, connection: Origin, frame: bytes) -> None:
        """Record the name of a topic: its messages may contain only its hash."""
        source, number, peer = self._tap(connection)
        source.bytes += len(frame)
        self.recorder.record(number, peer, frame, 0, FMQ)

    def broke(self, connection: Origin, data: bytes) -> None:
        """Record the input that ended a connection."""
        source, number, peer = self._tap(connection)
        source.malformed += 1
        self.recorder.record(number, peer, data[:GARBAGE], 0, FMQ)

    def failing(self) -> str:
        """Return why the log cannot be written, without its path: clients get this text."""
        error = self.recorder.error
        return os.strerror(error.errno) if error is not None and error.errno else str(error or "")

    def behind(self, done: Callable[[], None]) -> Callable[[], None]:
        """Return a function that calls ``done`` once all frames recorded until then are on disk."""
        return partial(self.recorder.when_durable, self.recorder.records, done)

    # -- the disk, and the end ---------------------------------------------------------------------------------------

    def _on_gate(self, is_open: bool) -> None:
        self.hub.broker.pause(self._stopping or not is_open)

    def check_storage(self) -> None:
        """Log when the storage fails and when it recovers. Call this about once a second."""
        error = self.hub.broker.store.error
        if error is not None:
            self.report(
                "failing", f"the hub's storage: nothing is acknowledged: {error}; trying again", logging.ERROR
            )
        elif self.state == "failing":
            self.report("listening", "the hub's storage can be written again")

    def stop_reading(self) -> None:
        """Stop reading, even when the gate opens."""
        self._stopping = True
        self._on_gate(False)

    async def stop(self) -> None:
        """Disconnect all clients and close the storage. Raises StorageError if it could not be written."""
        await self.hub.stop()

    def status(self) -> dict[str, Any]:
        """Return the source's statistics, with the number of clients and the state of the storage."""
        broker = self.hub.broker
        store = broker.store
        storage = {"waiting": store.waiting, "error": str(store.error) if store.error else None}
        return super().status() | {"clients": len(broker.connections), "storage": storage}
