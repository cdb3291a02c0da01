"""FMQ board on a serial line: a connection to the built-in hub over the serial link."""

import asyncio
import logging
from typing import TYPE_CHECKING

from headwater.link.link import UP
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.serial_line import CHUNK, SerialLine
from headwater_host.hub.connection import Connection

if TYPE_CHECKING:
    from headwater_host.gateway.hub_source import HubSource


class Stream(asyncio.Transport):
    """The link's stream as an asyncio transport, for a connection of the hub."""

    def __init__(self, line: "FmqBoard"):
        super().__init__()
        self._line = line
        self._limit = 1 << 16
        #: Bytes that the link has not accepted yet.
        self.out = bytearray()
        self.reading = True
        self.closing = False
        #: True if the connection has been asked to pause writing.
        self.full = False

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        """Append ``data`` to the output."""
        if not self.closing:
            self.out += data
            self._line.soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the number of waiting bytes above which the connection pauses writing."""
        self._limit = self._limit if high is None else high

    def get_write_buffer_size(self) -> int:
        """Return the number of waiting bytes."""
        return len(self.out)

    def is_full(self) -> bool:
        """Return whether more than the limit waits."""
        return self.get_write_buffer_size() > self._limit

    def pause_reading(self) -> None:
        """Pause reading."""
        self.reading = False

    def resume_reading(self) -> None:
        """Resume reading."""
        self.reading = True
        self._line.soon()

    def is_closing(self) -> bool:
        """Return whether the transport is closing."""
        return self.closing

    def close(self) -> None:
        """Close after the waiting output is sent."""
        self.closing = True
        self._line.soon()

    def abort(self) -> None:
        """Close and discard the waiting output."""
        self.out.clear()
        self.close()


class FmqBoard(SerialLine):
    """The FMQ board at ``config.port``, a client of ``hub``. Each stream is a connection."""

    def __init__(self, recorder: Recorder, config: SerialConfig, hub: "HubSource"):
        super().__init__(recorder, config)
        self._hub = hub
        self._stream: Stream | None = None
        self._client: Connection
        self._named = False
        self._scheduled = False
        self._buf = bytearray(CHUNK)

    def soon(self) -> None:
        """Schedule a transfer."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._move_now)

    def _move_now(self) -> None:
        self._scheduled = False
        self.work()

    def move(self) -> None:
        """Transfer data between the stream and the hub."""
        stream = self._stream
        if stream is None:
            if self.channel.state != UP or self.stopping or self._hub.paused:
                return
            stream = self._begin()
        while stream.reading and not stream.closing:
            n = self.channel.readinto(self._buf, CHUNK)
            if n is None:
                break
            if n == 0:
                self.drop("the link was lost", logging.WARNING)
                return
            self._client.data_received(bytes(memoryview(self._buf)[:n]))
        self._name()
        self._flush(stream)
        if stream.full and not stream.out:
            stream.full = False
            self._client.resume_writing()
        elif stream.is_full() and not stream.full:
            stream.full = True
            self._client.pause_writing()
        if stream.closing and not stream.out:
            self.drop("the connection ended")

    def _begin(self) -> Stream:
        self.begin_connection()
        self._named = False
        stream = self._stream = Stream(self)
        self._client = self._hub.connect(self)
        self._client.connection_made(stream)
        return stream

    def _name(self) -> None:
        client = self._client.client
        if client is not None and not self._named:
            self._named = True
            self.report("connected", f"{client.name or 'a board without a client id'} connected")

    def _flush(self, stream: Stream) -> None:
        """Write the output to the link, as far as possible now."""
        out = stream.out
        try:
            while out:
                k = self.channel.write(out, 0, len(out))
                if not k:
                    break
                del out[:k]
        except OSError:
            # The board has ended the stream. Reading reports that, after the hub has handled what came before it.
            out.clear()

    def end_stream(self) -> None:
        """End the hub's connection."""
        if self._stream is not None:
            self._stream.abort()
            self._stream = None
            self._client.connection_lost(None)

    def unsent(self) -> bool:
        """Return whether output for the board is unsent."""
        return self._stream is not None and (len(self._stream.out) > 0 or self.channel.waiting() > 0)
