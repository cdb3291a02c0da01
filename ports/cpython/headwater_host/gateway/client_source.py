"""What sources have in common that are clients of a server elsewhere: the connection, and the gate before it."""

import asyncio
import logging
from typing import TYPE_CHECKING

from headwater_host.client.connection import HOLD_GATE
from headwater_host.client.lifecycle import Lifecycle
from headwater_host.client.reconnect import Reconnect
from headwater_host.gateway.recording import Landing
from headwater_host.gateway.source import Source

if TYPE_CHECKING:
    from headwater.fmq.frames import Frame
    from headwater.mqtt.packets import Packet

#: For ever, whatever the server says: who runs it may be mending it.
RECONNECT = Reconnect(first=0.5, longest=30, refused=30, at_start=True)
#: For clients' own words, which would come twice.
QUIET = logging.getLogger("headwater.gateway.client")
QUIET.propagate = False
QUIET.addHandler(logging.NullHandler())


class ClientSource(Source):
    """Takes nothing while the gate is closed; ``_client`` is made by those who derive from it."""

    _client: Lifecycle

    def __init__(self, landing: Landing, peer: str):
        super().__init__(landing, peer)
        self._stopping = False
        self._gate = asyncio.Event()
        self._gate.set()
        landing.on_gate(self._on_gate)

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
        """There is a connection."""
        self.say("connected", text)
        if not self._gate.is_set():
            self._on_gate(False)

    async def _before_attempts(self) -> None:
        # What cannot be written is not asked for: a new connection would bring the same again.
        await self._gate.wait()
        self.began()

    def stop_reading(self) -> None:
        """Take nothing more, whatever the gate says."""
        self._stopping = True
        self._on_gate(False)


class Skip:
    """Where messages go that no record of the log can hold: acknowledged, counted and said."""

    def __init__(self, source: Source):
        self._source = source

    def open(self, packet: "Packet | Frame", size: int) -> bool:
        """As of ``headwater.types.Sink``: no."""
        source = self._source
        source.skipped += 1
        topic = packet.topic_text() or "a topic of its own size"
        source.say(source.state, f"skipped a message of {size} bytes on {topic}", logging.WARNING)
        return False

    def write(self, buf: "bytes | bytearray | memoryview", at: int, n: int) -> None:
        """Never called: nothing is taken."""

    def close(self, complete: bool) -> None:
        """Never called: nothing is taken."""
