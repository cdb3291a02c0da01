"""Serial line to a board: open and reopen the port, run the reliable link over it.

Subclasses speak the board's protocol.
"""

import abc
import asyncio
import logging
import os

from headwater.link.link import CLOSING, Link
from headwater.link.pump import Pump
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.serial_port import SerialPort, new_session, ticks_ms
from headwater_host.gateway.service_channel import ServiceChannel
from headwater_host.gateway.source import Source

# Seconds between attempts to open a missing port.
_RETRY_S = 1.0
# Maximum seconds between calls of the protocol's timers.
_TICK_S = 0.5
_WINDOW = 32
#: Maximum bytes of one read.
CHUNK = 4096


class SerialLine(Source, abc.ABC):
    """The line at ``config.port``. ``channel`` is a byte stream that is opened again whenever it ends."""

    def __init__(self, recorder: Recorder, config: SerialConfig):
        super().__init__(recorder, f"serial:{config.port}")
        self._config = config
        #: True if the gateway is stopping: nothing more is read.
        self.stopping = False
        self.loop = asyncio.get_running_loop()
        self._port: SerialPort | None = None
        self._broken: asyncio.Future[None] = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._link = Link(new_session())
        self.channel = self._link.channels[0]
        self._service = ServiceChannel(self.channel, self.peer)
        self._pump: Pump | None = None

    @abc.abstractmethod
    def move(self) -> None:
        """Transfer data between ``channel`` and the protocol, as far as possible now."""

    @abc.abstractmethod
    def end_stream(self) -> None:
        """End the protocol's connection: the stream has ended or is about to."""

    @abc.abstractmethod
    def unsent(self) -> bool:
        """Return whether data for the board is still unsent."""

    # -- the port --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the port until cancelled. Raises ImportError if pyserial is missing."""
        while True:
            try:
                port = SerialPort(self._config.port, self._config.baud)
            except OSError as error:
                self.report("absent", f"cannot be opened: {text_of(error)}; trying again", logging.WARNING)
                await asyncio.sleep(_RETRY_S)
                continue
            self.report("open", "open, waiting for the board")
            try:
                await self._serve(port)
            except OSError as error:
                self.report("absent", f"the port is gone: {text_of(error)}", logging.WARNING)
            finally:
                self._release()
            await asyncio.sleep(_RETRY_S)

    async def _serve(self, port: SerialPort) -> None:
        """Serve the port until it fails. Raises OSError."""
        self._port = port
        self._broken = self.loop.create_future()
        self._link = Link(new_session(), channels=2, window=_WINDOW)
        self.channel = self._link.channels[0]
        self._service = ServiceChannel(self._link.channels[1], self.peer)
        self._pump = Pump(port, self._link, ticks_ms, CHUNK)
        self.channel.open()
        self.loop.add_reader(port.fileno(), self.work)
        self.work()
        await self._broken

    def _release(self) -> None:
        """Close the port."""
        if self._timer is not None:
            self._timer.cancel()
        self.end_stream()
        port, self._port = self._port, None
        self._pump = None
        if port is not None:
            self.loop.remove_reader(port.fileno())
            self.loop.remove_writer(port.fileno())
            self._writing = False
            port.close()

    def work(self) -> None:
        """Transfer what is possible: called when the port is ready, a timer fires or an answer is due."""
        pump = self._pump
        if pump is None or self._port is None or self._broken.done():
            return
        try:
            pump.pump()
            self.move()
            self._service.move()
            pump.pump()
            if pump.error is not None:
                raise pump.error
        except Exception as error:
            # `run` reopens the port after OSError; any other error stops the gateway.
            self._broken.set_exception(error)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(min(_TICK_S, self._link.due() / 1000), self.work)
        writing = self._link.out_end > self._link.out_at
        if writing != self._writing:
            self._writing = writing
            if writing:
                self.loop.add_writer(self._port.fileno(), self.work)
            else:
                self.loop.remove_writer(self._port.fileno())

    def drop(self, text: str, level: int = logging.INFO) -> None:
        """End the stream after the written data, and wait for the next one."""
        self.report("open", text, level)
        self.end_stream()
        self.channel.open()

    def stop_reading(self) -> None:
        """Stop reading."""
        self.stopping = True

    async def finish(self, seconds: float) -> None:
        """Send the pending answers and end the stream, within ``seconds``."""
        deadline = self.loop.time() + seconds
        channel = self.channel
        while self.unsent() and self.loop.time() < deadline:
            self.work()
            await asyncio.sleep(0.01)
        self.end_stream()
        channel.close()
        while channel.state == CLOSING and not self._broken.done() and self.loop.time() < deadline:
            self.work()
            await asyncio.sleep(0.01)

    def status(self) -> dict[str, object]:
        """Return the source's statistics, with the counters of the link."""
        link = self._link
        counted = {"damaged": link.damaged, "frames_in": link.frames_in, "frames_out": link.frames_out}
        return super().status() | {"link": counted}


def text_of(error: OSError) -> str:
    """Return the system's text of an error, without pyserial's additions."""
    return os.strerror(error.errno) if error.errno else str(error)
