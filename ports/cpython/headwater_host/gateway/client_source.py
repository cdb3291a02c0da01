"""Base of sources that are clients of a remote server: the connection and the gate."""

import asyncio
import logging
from typing import TYPE_CHECKING

from headwater_host.client.connection import HOLD_GATE
from headwater_host.client.lifecycle import Lifecycle
from headwater_host.client.reconnect import Reconnect
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.source import Source

if TYPE_CHECKING:
    from headwater.fmq.frames import Frame
    from headwater.mqtt.packets import Packet

#: Retry for ever, even after a refusal: the operator may be changing the server's settings.
RECONNECT = Reconnect(first=0.5, longest=30, refused=30, at_start=True)
#: The logger of clients. The source logs the same events itself.
QUIET = logging.getLogger("headwater.gateway.client")
QUIET.propagate = False
QUIET.addHandler(logging.NullHandler())


class ClientSource(Source):
    """A source that reads nothing while the gate is closed. Subclasses create ``_client``."""

    _client: Lifecycle

    def __init__(self, recorder: Recorder, peer: str):
        super().__init__(recorder, peer)
        self._stopping = False
        self._gate = asyncio.Event()
        self._gate.set()
        recorder.on_gate(self._on_gate)

    def _push(self) -> None:
        if self._client.connection is not None:
            self._client.connection.push()

    def _flush(self) -> None:
        if self._client.connection is not None:
            self._client.connection.flush()

    def _on_gate(self, is_open: bool) -> None:
        connection = self._client.connection
        if is_open and not self._stopping:
            self._gate.set()
            if connection is not None:
                connection.release(HOLD_GATE)
        else:
            self._gate.clear()
            if connection is not None:
                connection.hold(HOLD_GATE)

    def _connected(self, text: str) -> None:
        """Log the connection; hold reading if the gate is closed."""
        self.report("connected", text)
        if not self._gate.is_set():
            self._on_gate(False)

    async def _before_attempts(self) -> None:
        # Do not connect while the log cannot be written: the server would send the same messages again.
        await self._gate.wait()
        self.begin_connection()

    def stop_reading(self) -> None:
        """Stop reading, even when the gate opens."""
        self._stopping = True
        self._on_gate(False)


class Skip:
    """Sink for messages that are too large for a record: they are acknowledged, counted and logged."""

    def __init__(self, source: Source):
        self._source = source

    def open(self, packet: "Packet | Frame", size: int) -> bool:
        """Refuse the message, as ``headwater.types.Sink`` allows."""
        source = self._source
        source.skipped += 1
        topic = packet.topic_text() or "a topic larger than the buffer"
        source.report(source.state, f"skipped a message of {size} bytes on {topic}", logging.WARNING)
        return False

    def write(self, buf: "bytes | bytearray | memoryview", at: int, n: int) -> None:
        """Never called: `open` refuses."""

    def close(self, complete: bool) -> None:
        """Never called: `open` refuses."""
