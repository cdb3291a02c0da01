"""A board on a serial line that speaks FMQ: a connection of the hub in this process, over the line's link."""

import asyncio
import logging
from typing import TYPE_CHECKING

from headwater.link.link import UP
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.recording import Landing
from headwater_host.gateway.serial_line import CHUNK, Line
from headwater_host.hub.connection import Connection

if TYPE_CHECKING:
    from headwater_host.gateway.hub_source import HubSource


class Stream(asyncio.Transport):
    """The link's stream, as the hub's connections know transports."""

    def __init__(self, line: "FmqBoard"):
        super().__init__()
        self._line = line
        self._limit = 1 << 16
        #: What the link has not taken yet.
        self.out = bytearray()
        self.reading = True
        self.closing = False
        #: Whether the other side was told that too much waits.
        self.full = False

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        """Send it, behind what is there."""
        if not self.closing:
            self.out += data
            self._line.soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From ``high`` on too much waits, until nothing does."""
        self._limit = self._limit if high is None else high

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return len(self.out)

    def is_full(self) -> bool:
        """Whether too much waits."""
        return self.get_write_buffer_size() > self._limit

    def pause_reading(self) -> None:
        """Bring nothing more."""
        self.reading = False

    def resume_reading(self) -> None:
        """Go on bringing."""
        self.reading = True
        self._line.soon()

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self.closing

    def close(self) -> None:
        """End it behind what was written."""
        self.closing = True
        self._line.soon()

    def abort(self) -> None:
        """End it at once."""
        self.out.clear()
        self.close()


class FmqBoard(Line):
    """The board at ``config.port``, which may come and go, as a client of ``hub``; each stream is a connection."""

    def __init__(self, landing: Landing, config: SerialConfig, hub: "HubSource"):
        super().__init__(landing, config)
        self._hub = hub
        self._stream: Stream | None = None
        self._client: Connection
        self._named = False
        self._scheduled = False
        self._buf = bytearray(CHUNK)

    def soon(self) -> None:
        """There is something to move."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._move_now)

    def _move_now(self) -> None:
        self._scheduled = False
        self.work()

    def move(self) -> None:
        """Between the stream and the hub."""
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
            self.drop("the connection is over")

    def _begin(self) -> Stream:
        self.began()
        self._named = False
        stream = self._stream = Stream(self)
        self._client = self._hub.connect(self)
        self._client.connection_made(stream)
        return stream

    def _name(self) -> None:
        client = self._client.client
        if client is not None and not self._named:
            self._named = True
            self.say("connected", f"{client.name or 'a board without a client id'} connected")

    def _flush(self, stream: Stream) -> None:
        """Pass to the link what it takes now."""
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
        """The hub's connection is over."""
        if self._stream is not None:
            self._stream.abort()
            self._stream = None
            self._client.connection_lost(None)

    def unsent(self) -> bool:
        """Whether the hub has said something that the board has not got yet."""
        return self._stream is not None and (len(self._stream.out) > 0 or self.channel.waiting() > 0)
